//! Who acts, and that nobody else does: elections, deaths, partitions, clean ends.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::stage::{A, B, Choice, Stage, W};

/// Shows: a command runs on exactly one node, dies with its agent, and an old primary that comes back does not act
/// (case 10, with a command).
#[test]
fn a_command_runs_on_one_node_only_and_dies_with_its_agent() {
    let mut stage = Stage::start(Choice::default());
    stage.until_acts(A);
    assert!(stage.acts().iter().all(|(node, _)| *node == A));
    assert_eq!((stage.code(B, "/primary"), stage.code(A, "/replica")), (Some(503), Some(503)));
    stage.kill(A);
    stage.until_primary(B);
    stage.until_acts(B);
    stage.run(A);
    stage.until_pair(B);
    stage.until_acts(B);
    assert_eq!(stage.code(A, "/primary"), Some(503));
    stage.check();
}

/// Shows: everything boots at once, and exactly one acts: one that holds everything (case 10). The order of the hooks is
/// the contract's: demote first, always.
#[test]
fn after_a_cold_boot_of_everything_one_node_acts_and_each_hook_comes_in_its_order() {
    let mut stage = Stage::start(Choice::hooks(&[
        "promote", "demote", "follow", "solo", "paired", "check", "on_event", "fence",
    ]));
    assert!(stage.hook_runs(A, "demote")[0].contains("reason=start"), "{}", stage.hooks_log());
    assert!(stage.hook_runs(A, "fence")[0].contains("reason=elected"));
    assert_eq!(stage.hook_runs(B, "promote").len(), 0);
    assert!(!stage.hook_runs(B, "follow").is_empty());
    for node in [A, B, W] {
        stage.kill(node);
    }
    // A machine that loses power stops the service as well.
    let group = stage.service_group(A).expect("it ran");
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    let token = stage.acts().last().expect("it acted").1;
    for node in [W, A, B] {
        stage.run(node);
    }
    stage.until("one node acts again, the other one follows", |stage| {
        let codes = [A, B].map(|node| (stage.code(node, "/primary"), stage.code(node, "/replica")));
        let (leads, follows) = ((Some(200), Some(503)), (Some(503), Some(200)));
        codes == [leads, follows] || codes == [follows, leads]
    });
    stage.until("with a higher token", |stage| stage.acts().last().is_some_and(|(_, new)| *new > token));
    stage.check();
}

/// Shows: a leader that hears nobody stops its service before its lease ends; only then does the other one act (case 2,
/// with a service).
#[test]
fn a_leader_cut_off_stops_its_service_before_the_other_one_acts() {
    let stage = Stage::start(Choice::hooks(&["promote", "demote", "on_event"]));
    stage.until_acts(A);
    stage.cut(A, B);
    stage.cut(A, W);
    stage.until_primary(B);
    stage.until_acts(B);
    let last = stage.hook_runs(A, "demote").pop().expect("it was demoted");
    // A starved machine may come to it only when the lease has ended: then everything is killed at once.
    assert!(last.contains("reason=lease ends") || last.contains("reason=not leading"), "{last}");
    assert_eq!(stage.code(A, "/primary"), Some(503));
    stage.until("the loss of redundancy is told", |stage| {
        stage.hook_runs(B, "on_event").iter().any(|run| run.contains("event=redundancy_lost"))
    });
    assert_eq!(stage.metric(B, "tiebreak_redundancy_lost"), Some(1.0));
    stage.heal();
    stage.until_pair(B);
    stage.until("its return is told", |stage| {
        stage.hook_runs(B, "on_event").iter().any(|run| run.contains("event=redundancy_restored"))
    });
    stage.check();
}

/// Shows: SIGTERM to the acting agent ends the service, then gives the lease back: the other one acts while that lease would
/// still run (case 9).
#[test]
fn a_clean_end_gives_the_lease_back_and_the_other_node_acts_at_once() {
    let lease = Duration::from_secs(12);
    let began = Instant::now();
    let choice = Choice { lease: "12s", ..Choice::default() };
    let mut stage = Stage::start(choice);
    stage.until_acts(A);
    // Whoever has just started may have promised a lease in an earlier life, and waits for its end.
    stage.until("b may stand", |_| began.elapsed() > lease + lease / 20);
    let left = stage.state(A)["lease_left_ms"].as_u64().map(Duration::from_millis).expect("it has a lease");
    let ends = Instant::now() + left;
    stage.stop(A);
    let last = stage.acts().len();
    stage.until_primary(B);
    assert!(Instant::now() < ends, "it waited for the end of the lease");
    stage.until_acts(B);
    assert!(
        stage.acts()[last..].iter().all(|(node, _)| *node == B),
        "nothing acts after the agent has ended"
    );
    // And the whole cluster stops and starts cleanly.
    stage.stop(B);
    stage.stop(W);
    let token = stage.acts().last().expect("it acted").1;
    for node in [W, B, A] {
        stage.run(node);
    }
    stage.until("it acts again, with a higher token", |stage| {
        stage.acts().last().is_some_and(|(_, new)| *new > token)
    });
    stage.check();
}

/// Shows: a leader whose peer dies goes on alone without a stop, tells the service, and pairs again later.
#[test]
fn the_death_of_the_standby_does_not_interrupt_the_service_and_the_hooks_say_who_acknowledges() {
    let mut choice = Choice::hooks(&["promote", "demote", "follow", "solo", "paired", "check"]);
    // A starved machine has seconds, from the silence of the peer to the word of the witness.
    (choice.lease, choice.solo_after) = ("10s", Some("4s"));
    choice.times = "demote = \"1s\"\nkill = \"500ms\"".into();
    let mut stage = Stage::start(choice);
    stage.until_acts(A);
    // A demote or a promotion would be seen.
    let before = (stage.hook_runs(A, "demote").len(), stage.hook_runs(A, "promote").len());
    stage.on("check", A, "code=1");
    stage.kill(B);
    stage.until("it is told that it acknowledges alone", |stage| {
        stage.hook_runs(A, "solo").iter().any(|run| run.contains("acknowledge=alone"))
    });
    stage.until_acts(A);
    stage.run(B);
    stage.on("check", A, "code=0");
    stage.until_pair(A);
    let hooks = stage.hooks_log();
    let (solo, paired) = (hooks.rfind("a solo").expect("told"), hooks.rfind("a paired").expect("told"));
    assert!(solo < paired, "{hooks}");
    assert_eq!(before, (stage.hook_runs(A, "demote").len(), stage.hook_runs(A, "promote").len()));
    stage.check();
}

/// Shows: with five seconds to the witness and back and a lease longer than that, the leader stays, and goes on alone when
/// its peer dies: there is no hidden shorter time-out (case 13).
#[test]
fn a_witness_that_is_far_away_is_waited_for_as_long_as_the_lease_lasts() {
    let mut choice = Choice::hooks(&["promote", "demote"]);
    (choice.lease, choice.solo_after) = ("20s", Some("8s"));
    // Rare, so that nobody has measured the long way when it counts.
    choice.keep_alive = "60s";
    choice.times = "demote = \"500ms\"\nkill = \"500ms\"".into();
    let mut stage = Stage::start(choice);
    stage.until_acts(A);
    for (from, to) in [(A, W), (W, A), (B, W), (W, B)] {
        stage.flow(from, to).delay(Duration::from_millis(2500));
    }
    let demotes = stage.hook_runs(A, "demote").len();
    stage.kill(B);
    stage.until("it goes on alone", |stage| stage.state(A)["right"] == "solo");
    stage.until_acts(A);
    assert_eq!(stage.hook_runs(A, "demote").len(), demotes, "the service was not interrupted");
    stage.check();
}

/// Shows: a cluster that protects no data works the same, and always under a lease: the death of the standby changes
/// nothing, a leader that is cut off stops first.
#[test]
fn a_cluster_without_data_acts_on_one_node_under_a_lease_of_either_other_voter() {
    let mut stage = Stage::start(Choice { kind: "leadership", ..Choice::default() });
    stage.until_acts(A);
    stage.kill(B);
    stage.until("b is gone", |stage| stage.metric(A, "tiebreak_votes_reachable") == Some(2.0));
    stage.until_acts(A);
    assert_eq!((stage.code(A, "/primary"), stage.metric(A, "tiebreak_sole")), (Some(200), Some(0.0)));
    stage.run(B);
    stage.until_pair(A);
    stage.cut(A, B);
    stage.cut(A, W);
    stage.until_primary(B);
    stage.until_acts(B);
    stage.heal();
    stage.until_pair(B);
    stage.check();
}

/// Shows: a standby that has joined is taken in again when the link between the two was replaced, although nobody may go on
/// alone and the term stays.
#[test]
fn a_standby_that_has_joined_is_taken_in_again_on_a_new_link() {
    let mut choice = Choice::hooks(&["promote", "demote", "follow", "solo", "paired", "check"]);
    (choice.lease, choice.solo_after) = ("20s", Some("never"));
    choice.times = "demote = \"1s\"\nkill = \"500ms\"".into();
    let stage = Stage::start(choice);
    let term = stage.state(A)["term"].as_u64();
    stage.cut(A, B);
    stage.until("the link is over", |stage| stage.metric(A, "tiebreak_votes_reachable") == Some(2.0));
    stage.heal();
    stage.until_pair(A);
    assert_eq!(stage.state(A)["term"].as_u64(), term, "nobody was elected");
    stage.check();
}

/// Shows: a node whose `demote` finds no data (exit code 66) is not elected, although its votes would allow it; once it has
/// copied the other one, it is.
#[test]
fn a_node_without_usable_data_is_not_elected_before_it_has_copied_a_leader() {
    let lease = Duration::from_secs(5);
    let mut choice = Choice::hooks(&["promote", "demote", "follow", "solo", "paired", "check"]);
    choice.times = "demote = \"500ms\"\nkill = \"500ms\"".into();
    let mut stage = Stage::start(choice);
    stage.until_acts(A);
    // Both lose power at once, and B comes back with an empty disk beside its votes.
    for node in [A, B] {
        stage.kill(node);
    }
    let group = stage.service_group(A).expect("it ran");
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    stage.on("demote", B, "code=66");
    stage.run(B);
    stage.until("b says that it has no data", |stage| stage.state(B)["data"] == "missing");
    assert_eq!(stage.metric(B, "tiebreak_data_missing"), Some(1.0));
    // After its hold-off the witness would elect it.
    let began = Instant::now();
    stage.until("its hold-off is over", |_| began.elapsed() > lease * 2);
    assert_ne!(stage.state(B)["leader"], "b");
    stage.run(A);
    stage.until_pair(A);
    assert_eq!(stage.hook_runs(B, "promote").len(), 0);
    stage.until("it has copied the leader", |stage| stage.state(B)["data"] == "usable");
    stage.on("demote", B, "code=0");
    let group = stage.service_group(A).expect("it runs");
    stage.kill(A);
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    stage.until_primary(B);
    stage.check();
}
