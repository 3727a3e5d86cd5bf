//! One thing fails, under load.

use std::path::Path;

use crate::hosts::{A, B, NAMES, W};
use crate::load::Load;
use crate::pair::{Pair, can_run};

/// Shows: a primary whose host loses its power is replaced; when it is back it follows, without what it had more.
#[test]
fn the_primarys_host_dies() {
    if !can_run() {
        return;
    }
    let mut pair = Pair::start();
    let mut load = Load::start(&pair, "primary's host dies");
    load.fault("power off at a");
    pair.power_off(A);
    pair.until_primary(B);
    load.goes_on(&pair);
    load.fault("a comes back");
    pair.power_on(A);
    pair.until_pair(B);
    load.goes_on(&pair);
    load.check(&pair);
}

/// Shows: a postmaster that is killed is noticed, and the service goes on here or there without a loss.
#[test]
fn the_primarys_postmaster_dies() {
    if !can_run() {
        return;
    }
    let pair = Pair::start();
    let mut load = Load::start(&pair, "primary's postmaster dies");
    load.fault("kill -9 of the postmaster at a");
    pair.kill_postmaster(A);
    load.goes_on(&pair);
    let leader = pair.until_any_pair();
    load.goes_on(&pair);
    assert!([A, B].contains(&leader));
    load.check(&pair);
}

/// Shows: an agent that is killed loses its lease, and its server acknowledges nothing more that the next primary lacks;
/// started again, it follows.
#[test]
fn the_primarys_agent_dies() {
    if !can_run() {
        return;
    }
    let mut pair = Pair::start();
    let mut load = Load::start(&pair, "primary's agent dies");
    load.fault("kill -9 of the agent at a");
    pair.kill_agent(A);
    pair.until_primary(B);
    load.goes_on(&pair);
    load.fault("the agent at a is started again");
    pair.run(A);
    pair.until_pair(B);
    load.goes_on(&pair);
    load.check(&pair);
}

/// Shows: the standby's host dies: writes go on alone after the witness's word, and it is taken in again under load.
#[test]
fn the_standbys_host_dies() {
    if !can_run() {
        return;
    }
    let mut pair = Pair::start();
    let mut load = Load::start(&pair, "standby's host dies");
    load.fault("power off at b");
    pair.power_off(B);
    pair.until_solo(A);
    load.goes_on(&pair);
    load.fault("b comes back");
    pair.power_on(B);
    pair.until_pair(A);
    load.goes_on(&pair);
    load.check(&pair);
}

/// Shows: without the witness a healthy pair goes on, and its return changes nothing.
#[test]
fn the_witness_dies() {
    if !can_run() {
        return;
    }
    let mut pair = Pair::start();
    let mut load = Load::start(&pair, "witness dies");
    load.fault("power off at the witness");
    pair.power_off(W);
    pair.until("it is missed", || Pair::state(A)["redundant"] == false);
    load.goes_on(&pair);
    load.fault("the witness comes back");
    pair.power_on(W);
    pair.until_pair(A);
    load.goes_on(&pair);
    load.check(&pair);
}

/// Shows: a switchover under load, there and back.
#[test]
fn a_switchover_under_load() {
    if !can_run() {
        return;
    }
    let pair = Pair::start();
    let mut load = Load::start(&pair, "switchover");
    for (from, to) in [(A, B), (B, A)] {
        load.fault("switchover");
        pair.until_switched(from, to);
        pair.until_pair(to);
        load.goes_on(&pair);
    }
    load.check(&pair);
}

/// Shows: the one that missed writes is refused by the witness although it is the only one left, and says so; the return of
/// the other one brings everything back (case 4).
fn both_die(first: usize) {
    if !can_run() {
        return;
    }
    let last = 1 - first;
    let mut pair = Pair::start();
    let mut load = Load::start(&pair, "both die, the stale one boots first");
    load.fault(&format!("power off at {}", NAMES[first]));
    pair.power_off(first);
    pair.until_solo(last);
    load.goes_on(&pair);
    load.fault(&format!("power off at {}, {} comes back", NAMES[last], NAMES[first]));
    pair.power_off(last);
    pair.power_on(first);
    pair.until("it is refused, and says why", || {
        Pair::state(first)["refused"].as_str().is_some_and(|why| why.contains("confirmed"))
            && Pair::code(first, "/primary") == Some(503)
    });
    load.fault(&format!("{} comes back", NAMES[last]));
    pair.power_on(last);
    pair.until_pair(last);
    load.goes_on(&pair);
    load.check(&pair);
}

#[test]
fn the_stale_one_is_refused_after_both_have_died_the_primary_first() {
    both_die(A);
}

#[test]
fn the_stale_one_is_refused_after_both_have_died_the_standby_first() {
    both_die(B);
}

/// Shows: the two servers agree on a switchover without the witness.
#[test]
fn a_switchover_while_the_witness_is_down() {
    if !can_run() {
        return;
    }
    let mut pair = Pair::start();
    let mut load = Load::start(&pair, "switchover without the witness");
    pair.power_off(W);
    pair.until("it is missed", || Pair::state(A)["redundant"] == false);
    load.fault("switchover");
    pair.until_switched(A, B);
    pair.until_primary(B);
    load.goes_on(&pair);
    load.fault("the witness comes back");
    pair.power_on(W);
    pair.until_pair(B);
    load.goes_on(&pair);
    load.check(&pair);
}

/// Shows: clients behind the shipped HAProxy keep one address through a failover.
#[test]
fn haproxy_follows_the_primary() {
    if !can_run() {
        return;
    }
    if !Path::new("/usr/sbin/haproxy").exists() {
        eprintln!("skipped: this story needs haproxy (Debian: haproxy)");
        return;
    }
    let mut pair = Pair::start();
    let mut proxy = pair.proxy();
    let mut load = Load::through(&pair, "behind HAProxy", ([127, 0, 0, 1], 5000).into());
    load.fault("power off at a");
    pair.power_off(A);
    pair.until_primary(B);
    load.goes_on(&pair);
    load.fault("a comes back");
    pair.power_on(A);
    pair.until_pair(B);
    load.goes_on(&pair);
    load.check(&pair);
    proxy.kill().expect("it runs");
    proxy.wait().expect("it ends");
}
