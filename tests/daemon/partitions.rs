//! Networks that are cut: in one direction, between two, around one.

use std::time::Duration;

use crate::child::{Part, now};
use crate::trio::{A, B, Choice, Trio, W};

const ONLY_A: &str = "only a has ever acknowledged";

/// Shows: the witness takes no part in health. Its loss and its return change nothing (case 1).
#[test]
fn a_dead_witness_leaves_the_leader_where_it_is_and_its_return_changes_nothing() {
    // Patient, so that a busy machine does not look like a silent peer.
    let choice = Choice { lease: Duration::from_secs(2), solo_after: Some(Duration::from_millis(1500)) };
    let mut trio = Trio::start(choice);
    let token = trio.see(|told| told.token(A));
    trio.kill(W);
    trio.until_sees(A, W, false);
    trio.until_leases_pass(A, 3);
    trio.run(W);
    trio.until_sees(A, W, true);
    trio.until_sees(B, W, true);
    trio.until_leases_pass(A, 1);
    trio.expect("nothing has changed", |told| told.acts(A, "paired") && told.token(A) == token);
    trio.expect(ONLY_A, |told| told.acks.iter().all(|ack| ack.node == A));
    trio.check(A);
}

/// Shows: a leader that hears nobody stops by itself before anybody else acts (case 2).
#[test]
fn a_leader_cut_from_both_stops_acting_and_the_standby_leads_after_it() {
    stops_acting_before_the_standby_leads(Trio::cut);
}

/// Shows: nor does it help to be told at once that nobody listens. A refusal is not an answer of a voter (case 2).
#[test]
fn a_leader_refused_by_both_stops_acting_and_the_standby_leads_after_it() {
    stops_acting_before_the_standby_leads(Trio::refuse);
}

fn stops_acting_before_the_standby_leads(part: fn(&Trio, usize, usize)) {
    let mut trio = Trio::start(Choice::default());
    part(&trio, A, B);
    part(&trio, A, W);
    trio.until("a stops", |told| told.role(A).filter(|role| role["acts"] == false).map(|_| ()));
    trio.until_solo(B);
    let acts_at = trio.see(|told| told.acks.iter().find(|ack| ack.node == B).map(|ack| ack.at));
    let stopped = trio.see(|told| told.role(A).and_then(|role| role["last_valid"].as_u64()));
    assert!(stopped < acts_at, "a had the right to act at {stopped:?}, and b acknowledged at {acts_at:?}");
    let quiet = now();
    trio.let_leases_pass(2, |told| !told.acknowledges_after(A, quiet));
    trio.heal();
    trio.until_paired(B);
    trio.check(B);
    trio.check(A);
}

/// Shows: when only the link between the replicas fails, the incumbent wins, and healing moves nothing (case 3).
#[test]
fn the_incumbent_goes_on_alone_when_the_link_between_the_replicas_is_cut_and_pairs_again_after() {
    let mut trio = Trio::start(Choice::default());
    let token = trio.see(|told| told.token(A));
    trio.cut(A, B);
    trio.until_solo(A);
    trio.until_leases_pass(A, 3);
    trio.expect("going solo takes no new term", |told| told.token(A) == token);
    trio.heal();
    trio.until_paired(A);
    trio.expect(ONLY_A, |told| told.acks.iter().all(|ack| ack.node == A));
    trio.check(A);
    trio.check(B);
}

/// Shows: what the witness confirmed outlives its process, so the side that was left behind stays out (case 5).
#[test]
fn a_killed_and_restarted_witness_still_refuses_the_side_that_was_left_behind() {
    let mut trio = Trio::start(Choice::default());
    trio.say(A, "resign");
    trio.until_paired(B);
    trio.cut(A, B);
    trio.until_solo(B);
    trio.until("a is refused", |told| told.logged(W, &["node=a", "refused"]).then_some(()));
    trio.kill(W);
    trio.run(W);
    trio.until("a is refused by the restarted witness", |told| {
        told.logged(W, &["node=a", "was confirmed to b"]).then_some(())
    });
    trio.until_leases_pass(B, 2);
    trio.expect("b leads alone", |told| told.acts(B, "solo") && !told.leads(A));
    trio.heal();
    trio.until_paired(B);
    trio.check(B);
}

/// Shows: a promise without a leader bars nobody. The witness gave the term to B, who dies before A joins and before
/// it is confirmed; A misses nothing and is elected in a later one (case 17).
#[test]
fn a_promised_candidate_that_dies_before_its_peer_joins_bars_nobody() {
    let mut trio = Trio::prepare(Choice::default());
    let Part::Replica { solo_after_ms, .. } = &mut trio.plan(B).part else { panic!("a replica") };
    *solo_after_ms = None;
    for node in [W, A, B] {
        trio.run(node);
    }
    trio.until("the witness is taken in", |told| told.logged(W, &["taken in"]).then_some(()));
    trio.until_paired(A);
    trio.until_sees(B, W, true);
    let before = trio.see(|told| told.token(A));
    trio.cut(A, B);
    trio.cut(A, W);
    let promised = trio.until("b is promised a term", |told| told.leads(B).then(|| told.token(B)));
    assert!(promised > before);
    trio.kill(B);
    trio.heal();
    trio.until_solo(A);
    trio.expect("its term is higher", |told| told.token(A) > promised);
    trio.run(B);
    trio.until_paired(A);
    trio.check(A);
}

/// Cuts that one direction between the replicas: A goes on alone, nobody else acts, and B is taken back in the end.
fn a_stays_without(from: usize, to: usize) {
    let mut trio = Trio::start(Choice::default());
    trio.cut_from(from, to);
    trio.until_solo(A);
    trio.until_leases_pass(A, 4);
    trio.heal();
    trio.until_paired(A);
    trio.expect(ONLY_A, |told| told.acks.iter().all(|ack| ack.node == A));
    trio.check(A);
}

/// Shows: a standby that hears nothing of the leader cannot depose it while the leader reaches the witness (case 16).
#[test]
fn a_standby_that_is_deaf_to_the_leader_does_not_depose_it() {
    a_stays_without(A, B);
}

/// Shows: nor does one whom the leader does not hear.
#[test]
fn a_standby_that_is_not_heard_by_the_leader_does_not_depose_it() {
    a_stays_without(B, A);
}

/// Shows: lost and late datagrams cost time, not leadership.
#[test]
fn a_slow_and_lossy_network_loses_no_acknowledged_write() {
    let mut trio = Trio::start(Choice::default());
    for (from, to) in [(A, B), (B, A), (A, W), (W, A), (B, W), (W, B)] {
        trio.flow(from, to).lose(100);
        trio.flow(from, to).delay(Duration::from_millis(10));
    }
    let since = now();
    trio.until("both ways of the log go on", |told| {
        (told.acks.iter().filter(|ack| ack.at > since).count() > 100).then_some(())
    });
    trio.heal();
    let leader =
        trio.until("somebody leads, paired", |told| [A, B].into_iter().find(|n| told.acts(*n, "paired")));
    trio.until_paired(leader);
    trio.check(leader);
}

/// Shows: a key that the witness does not pin is refused with a reason that the refused node sees.
#[test]
fn a_key_that_is_not_pinned_is_refused_and_the_refused_node_says_why() {
    let mut trio = Trio::prepare(Choice::default());
    let stranger = tiebreak::Identity::generate().expect("a key").fingerprint().to_string();
    let Part::Witness { replicas } = &mut trio.plan(W).part else { panic!("the witness") };
    replicas[B].1 = stranger;
    for node in [W, A, B] {
        trio.run(node);
    }
    trio.until_paired(A);
    trio.until("b says that its key is not pinned", |told| {
        told.logged(B, &["no link", "not pinned"]).then_some(())
    });
    trio.check(A);
}
