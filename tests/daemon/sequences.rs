//! One failure after the other: deaths, pauses, restarts, hand-over.

use crate::child::now;
use crate::trio::{A, B, Choice, Trio, W};

/// Shows: the one that missed writes is kept out by what the witness remembers, and told why (case 4).
#[test]
fn a_stale_replica_is_refused_until_the_one_that_holds_everything_is_back() {
    let mut trio = Trio::start(Choice::default());
    trio.kill(A);
    trio.until_solo(B);
    trio.kill(B);
    trio.run(A);
    let why = trio.until("a is refused", |told| {
        told.refused(A).filter(|why| why.contains("Stale")).map(ToOwned::to_owned)
    });
    assert!(why.contains("confirmed to b"), "{why}");
    trio.let_leases_pass(2, |told| !told.leads(A));
    trio.run(B);
    trio.until_paired(B);
    trio.check(B);
    trio.check(A);
}

/// Shows: a vote is durable, a lost one is not replaced by a blank one in silence, and a blank witness abstains until
/// a leader that is alone takes it in (case 11).
#[test]
fn a_witness_votes_as_before_after_a_kill_and_abstains_after_a_wipe_until_it_is_taken_in() {
    let mut trio = Trio::start(Choice::default());
    trio.kill(B);
    trio.until_solo(A);
    trio.kill(W);
    trio.run(W);
    trio.kill(A);
    trio.run(B);
    let refused = |told: &crate::trio::History| {
        told.refused(B).filter(|why| why.contains("Stale") && why.contains("confirmed to a")).map(|_| ())
    };
    trio.until("b is refused by the restarted witness", refused);

    trio.kill(W);
    std::fs::remove_dir_all(trio.plan(W).state()).expect("the state is wiped");
    let why = trio.refuses_to_start(W);
    assert!(why.contains("there is no ledger") && why.contains("init --blank"), "{why}");
    let plan = trio.plan(W).witness();
    tiebreak::init_witness(&plan).expect("blank votes");
    trio.run(W);
    trio.until_sees(B, W, true);
    trio.let_leases_pass(2, |told| !told.leads(B));

    trio.run(A);
    trio.until("a takes the witness in", |told| told.logged(W, &["node=a", "taken in"]).then_some(()));
    trio.until_paired(A);
    trio.kill(A);
    trio.until_solo(B);
    trio.run(A);
    trio.until_paired(B);
    trio.check(B);
}

/// Shows: a standby that answers and makes nothing durable does not hold up writes for ever (case 18).
#[test]
fn writes_go_on_alone_when_the_data_layer_of_the_standby_stalls() {
    let mut trio = Trio::start(Choice::default());
    trio.say(B, "stall");
    trio.until_solo(A);
    let gap = trio.see(|told| {
        let at: Vec<u64> = told.acks.iter().map(|ack| ack.at).collect();
        at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    });
    println!("no acknowledgement for {} ms at most; lease {:?}", gap / 1_000_000, trio.lease());
    assert!(trio.sees(A, B), "the standby answers all the time");
    trio.say(B, "flow");
    trio.until_paired(A);
    trio.check(A);
    trio.check(B);
}

/// Shows: losing the peer, adapting, then losing the witness stops nothing, and neither does a restart alone. Its
/// tokens rise.
#[test]
fn the_last_one_standing_goes_on_and_resumes_alone_with_a_higher_token() {
    let mut trio = Trio::start(Choice::default());
    trio.kill(B);
    trio.until_solo(A);
    trio.kill(W);
    trio.until_leases_pass(A, 2);
    let token = trio.see(|told| told.token(A));
    trio.kill(A);
    trio.run(A);
    trio.until_solo(A);
    trio.expect("its tokens rise", |told| told.token(A) > token);
    trio.check(A);
    trio.run(W);
    trio.run(B);
    trio.until_paired(A);
    trio.check(B);
}

/// Shows: a leader that hands over is followed without waiting for a lease to end, and nothing is lost.
#[test]
fn a_leader_that_resigns_hands_over_to_its_peer() {
    let mut trio = Trio::start(Choice::default());
    let token = trio.see(|told| told.token(A));
    let said = now();
    trio.say(A, "resign");
    trio.until_paired(B);
    let first = trio.until_first_acknowledgement(B, said);
    println!("handed over in {first:?}");
    trio.expect("tokens rise", |told| told.token(B) > token);
    trio.expect("paired at once", |told| told.acks_since(B, said).next().is_some_and(|ack| !ack.solo));
    trio.check(B);
    trio.say(B, "resign");
    trio.until_paired(A);
    trio.check(A);
}

/// Shows: kill -9 of the leader loses nothing, and the dead one comes back as a follower.
#[test]
fn a_killed_leader_is_replaced_and_comes_back_as_a_follower() {
    let mut trio = Trio::start(Choice::default());
    trio.kill(A);
    trio.until_solo(B);
    trio.run(A);
    trio.until_paired(B);
    trio.check(B);
    trio.check(A);
}

/// Shows: a leader that was stopped past its lease does not act when it goes on.
#[test]
fn a_leader_that_was_paused_past_its_lease_acknowledges_nothing_more() {
    let mut trio = Trio::start(Choice::default());
    trio.pause(A);
    trio.until_solo(B);
    let resumed = now();
    trio.resume(A);
    trio.until("a no longer leads", |told| told.role(A).filter(|role| role["role"] == "standby").map(|_| ()));
    trio.until_paired(B);
    trio.expect("a is silent", |told| !told.acknowledges_after(A, resumed));
    trio.check(B);
}
