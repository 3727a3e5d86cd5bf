//! What does not answer, but is not dead: links that are cut and hosts that are frozen, under load.

use rustix::process::Signal;

use crate::hosts::{A, B, Cut, NAMES, W};
use crate::load::Load;
use crate::pair::{Pair, can_run};

/// Shows: without the link between the two servers the incumbent goes on alone, and healing gives the pair back (case 3).
#[test]
fn the_link_between_the_servers_is_cut() {
    if !can_run() {
        return;
    }
    let pair = Pair::start();
    let mut load = Load::start(&pair, "link a-b");
    for how in [Cut::Drops, Cut::Refuses] {
        load.fault(&format!("{how:?}"));
        pair.hosts.cut(A, B, how);
        pair.until_solo(A);
        load.goes_on(&pair);
        load.fault("healed");
        pair.hosts.heal();
        pair.until_pair(A);
        load.goes_on(&pair);
    }
    load.check(&pair);
}

/// Shows: a link to the witness is missed, and nothing else changes: neither who leads nor the term.
#[test]
fn the_links_to_the_witness_are_cut() {
    if !can_run() {
        return;
    }
    let pair = Pair::start();
    let mut load = Load::start(&pair, "link to the witness");
    let term = Pair::state(A)["term"].clone();
    for node in [A, B] {
        load.fault(&format!("{}-w is cut", NAMES[node]));
        pair.hosts.cut(node, W, Cut::Drops);
        pair.until("the witness is missed", || !Pair::hears_witness(node));
        load.goes_on(&pair);
        load.fault("healed");
        pair.hosts.heal();
        pair.until("the witness is heard", || Pair::hears_witness(node));
        pair.until_pair(A);
        load.goes_on(&pair);
    }
    assert_eq!(Pair::state(A)["term"], term);
    load.check(&pair);
}

/// Shows: a primary whose host was frozen for longer than its lease acknowledges nothing when it thaws, and follows.
#[test]
fn the_primarys_host_freezes() {
    if !can_run() {
        return;
    }
    let pair = Pair::start();
    let mut load = Load::start(&pair, "primary's host freezes");
    load.fault("everything at a is stopped");
    pair.hosts.signal(A, Signal::STOP);
    pair.until_primary(B);
    load.goes_on(&pair);
    load.fault("a thaws");
    pair.hosts.signal(A, Signal::CONT);
    pair.until_pair(B);
    load.goes_on(&pair);
    load.check(&pair);
}
