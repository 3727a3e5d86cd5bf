//! The stories.

use tiebreak::message::{Refusal, Request};
use tiebreak::testing::{Input, Right};

use crate::tell;
use crate::world::net::Packet;
use crate::world::{A, B, Birth, MS, W, World};

const SECOND: u64 = 1000 * MS;

/// A starts first and leads term 2, paired with B.
fn pair(world: &mut World) {
    world.heading("the three start");
    world.start(W);
    world.start(A);
    world.run_for(SECOND / 10);
    world.start(B);
    until(world, |w| w.right(A) == Some(Right::Paired));
    writes(world, A, 1);
    world.run_for(SECOND / 4);
}

fn until(world: &mut World, reached: impl Fn(&World) -> bool) {
    assert!(world.run_while(40 * SECOND, |w| !reached(w)), "the story stops at {} ms", world.now / MS);
}

fn writes(world: &mut World, node: usize, count: usize) {
    for _ in 0..count {
        assert!(world.write(node), "a write is accepted");
        world.run_for(10 * MS);
    }
}

fn acknowledged(world: &World) -> usize {
    world.oracle.acknowledged.len()
}

fn alone(world: &mut World) {
    world.heading("the link between the replicas is cut; the witness confirms a's term and a goes on alone");
    world.cut_both(A, B);
    until(world, |w| w.right(A) == Some(Right::Solo));
    writes(world, A, 2);
}

#[test]
fn init_takes_in_the_witness_and_the_peer() {
    let prose = "A new cluster. `init` made a sole in term 1; it needs nobody to lead, and takes the blank witness \
                 and the blank peer in by itself.";
    tell("init", Birth::New, prose, |w| {
        w.heading("a starts: nobody answers, so it waits for one lease and leads alone");
        w.start(A);
        until(w, |w| w.right(A) == Some(Right::Solo));
        writes(w, A, 1);
        w.heading("a blank witness starts and is taken in");
        w.start(W);
        w.run_for(3 * SECOND);
        w.heading("a blank replica starts, copies, and joins the term that a opens for it");
        w.start(B);
        until(w, |w| w.right(A) == Some(Right::Paired));
        writes(w, A, 1);
        w.run_for(SECOND);
        assert_eq!(w.nodes[W].witness_record().promised.term.0, 2);
    });
}

#[test]
fn two_members_pair() {
    let prose = "Two members that know each other boot with their witness. Each waits for one lease, since an \
                 earlier life may have promised one. Then one stands, the other joins.";
    tell("pairing", Birth::Mature, prose, |w| {
        pair(w);
        w.run_for(SECOND);
    });
}

#[test]
fn the_follower_leads_after_the_leader_died() {
    let prose = "Failover. a leads and dies. b waits for the lease that it promised to end, is elected by the \
                 witness, asks to go on alone, and takes a in when that comes back.";
    tell("failover", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("a dies");
        w.crash(A);
        until(w, |w| w.right(B) == Some(Right::Solo));
        writes(w, B, 1);
        w.heading("a comes back, copies and joins");
        w.start(A);
        until(w, |w| w.right(B) == Some(Right::Paired));
        writes(w, B, 1);
        w.run_for(SECOND / 2);
    });
}

#[test]
fn a_leader_cut_from_both_stops_acting_first() {
    let prose = "The leader is cut from both others. It stops acting when its lease ends, by itself; only then the \
                 promise of b ends, and b is elected.";
    tell("leader_isolated", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("a is cut from both");
        w.cut_both(A, B);
        w.cut_both(A, W);
        until(w, |w| w.actor().is_none());
        until(w, |w| w.actor() == Some(B));
        writes(w, B, 1);
        w.heading("healed: a follows");
        w.heal_both(A, B);
        w.heal_both(A, W);
        until(w, |w| w.right(B) == Some(Right::Paired));
        w.run_for(SECOND / 2);
    });
}

#[test]
fn the_incumbent_stays_when_the_replicas_lose_each_other() {
    let prose = "Only the link between the replicas is cut; both see the witness. The incumbent is confirmed and \
                 stays. b asks in vain and disturbs nobody. Healing costs one new term of the same leader.";
    tell("replica_link_cut", Birth::Mature, prose, |w| {
        pair(w);
        alone(w);
        w.heading("b wants to be elected, and is refused");
        w.run_for(4 * SECOND);
        w.heading("healed");
        w.heal_both(A, B);
        until(w, |w| w.right(A) == Some(Right::Paired));
        w.run_for(SECOND / 2);
        assert_eq!(w.actor(), Some(A));
    });
}

#[test]
fn an_isolated_follower_disturbs_nobody() {
    let prose =
        "The follower is cut from both others. It asks nobody, raises no term, and is taken in again.";
    tell("follower_isolated", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("b is cut from both");
        w.cut_both(A, B);
        w.cut_both(B, W);
        until(w, |w| w.right(A) == Some(Right::Solo));
        writes(w, A, 1);
        w.run_for(10 * SECOND);
        w.heading("healed");
        w.heal_both(A, B);
        w.heal_both(B, W);
        until(w, |w| w.right(A) == Some(Right::Paired));
        w.run_for(SECOND / 2);
    });
}

#[test]
fn a_stale_replica_is_refused() {
    let prose = "a leads and dies; b goes on alone, acknowledges, and dies; the stale a boots with the witness. It \
                 is refused and told why. b's return elects b, and nothing is missing.";
    tell("stale_replica", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("a dies, b goes on alone");
        w.crash(A);
        until(w, |w| w.right(B) == Some(Right::Solo));
        writes(w, B, 2);
        w.heading("b dies, a boots");
        w.crash(B);
        w.start(A);
        w.run_for(8 * SECOND);
        assert_eq!(w.actor(), None);
        let refused = w.nodes[A].shown.and_then(|view| view.refused);
        assert!(matches!(refused, Some((_, Refusal::Stale { .. }))), "it knows why: {refused:?}");
        w.heading("b comes back");
        w.start(B);
        until(w, |w| w.right(B) == Some(Right::Paired));
        writes(w, B, 1);
        w.run_for(SECOND / 2);
    });
}

#[test]
fn a_witness_that_restarts_changes_nothing() {
    let prose = "The witness dies while the pair is healthy, and comes back. Nothing else happens.";
    tell("witness_restarts", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("the witness dies");
        w.crash(W);
        w.run_for(10 * SECOND);
        writes(w, A, 1);
        w.heading("and comes back");
        w.start(W);
        w.run_for(3 * SECOND);
        assert_eq!(w.right(A), Some(Right::Paired));
    });
}

#[test]
fn a_witness_killed_while_a_leader_is_alone_remembers() {
    let prose = "b leads alone behind a partition; the witness is killed and restarted. Its word is on its disk: \
                 a is refused before and after.";
    tell("witness_restarts_in_partition", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("a is cut from both; b goes on alone");
        w.cut_both(A, B);
        w.cut_both(A, W);
        until(w, |w| w.right(B) == Some(Right::Solo));
        writes(w, B, 1);
        w.heading("the witness is killed; then it restarts and a sees it (and not b)");
        w.crash(W);
        w.run_for(SECOND);
        w.heal_both(A, W);
        w.start(W);
        w.run_for(6 * SECOND);
        assert_eq!((w.actor(), w.right(A)), (Some(B), None));
    });
}

#[test]
fn a_follower_that_restarts_joins_again() {
    let prose = "The follower restarts quickly: the same term is offered again on the new link.";
    tell("follower_restarts", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("b dies and comes back");
        w.crash(B);
        w.run_for(SECOND / 4);
        w.start(B);
        until(w, |w| w.right(A) == Some(Right::Paired));
        w.run_for(SECOND);
    });
}

#[test]
fn a_leader_that_restarts_quickly_stands_again() {
    let prose = "The leader restarts within its lease. Both wait for what may have been promised; whoever is elected \
                 holds everything.";
    tell("leader_restarts", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("a dies and comes back");
        w.crash(A);
        w.run_for(SECOND / 4);
        w.start(A);
        until(w, |w| w.actor().is_some());
        until(w, |w| [A, B].iter().any(|node| w.right(*node) == Some(Right::Paired)));
        w.run_for(SECOND / 2);
    });
}

#[test]
fn a_sole_replica_resumes_alone() {
    let prose = "a is sole; everything loses power. a boots and reaches nobody: it waits for one lease in which it \
                 could be told otherwise, and leads again, in a new term.";
    tell("sole_resumption", Birth::Mature, prose, |w| {
        pair(w);
        alone(w);
        w.heading("power cut; only a boots");
        for node in [A, B, W] {
            w.crash(node);
        }
        w.run_for(SECOND);
        w.start(A);
        until(w, |w| w.right(A) == Some(Right::Solo));
        writes(w, A, 1);
        w.run_for(SECOND);
    });
}

#[test]
fn the_last_one_standing_goes_on() {
    let prose = "The peer dies, the leader adapts; the witness dies; the leader, being sole, goes on and needs \
                 nobody.";
    tell("last_one_standing", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("b dies");
        w.crash(B);
        until(w, |w| w.right(A) == Some(Right::Solo));
        writes(w, A, 1);
        w.heading("the witness dies");
        w.crash(W);
        w.run_for(5 * SECOND);
        let before = acknowledged(w);
        writes(w, A, 1);
        assert_eq!(acknowledged(w), before + 1);
        w.heading("b comes back");
        w.start(B);
        until(w, |w| w.right(A) == Some(Right::Paired));
        w.run_for(SECOND / 2);
    });
}

#[test]
fn in_the_other_order_the_survivor_blocks() {
    let prose = "The witness dies first; then, while the leader is paired, its peer. The survivor may not go on: \
                 nobody can tell it that the peer does not. It stops acting when its lease ends.";
    tell("survivor_blocks", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("the witness dies, then b");
        w.crash(W);
        w.run_for(SECOND);
        w.crash(B);
        w.run_for(5 * SECOND);
        assert_eq!((w.actor(), w.right(A)), (None, Some(Right::Blocked)));
        w.heading("the witness comes back");
        w.start(W);
        until(w, |w| w.right(A) == Some(Right::Solo));
        writes(w, A, 1);
        w.run_for(SECOND / 2);
    });
}

#[test]
fn a_leader_hands_over() {
    let prose = "A planned hand-over: a stops, gives the lease of its term back, and b stands at once.";
    tell("resignation", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("a resigns");
        w.command(A, Input::Resign);
        until(w, |w| w.right(B) == Some(Right::Paired));
        writes(w, B, 1);
        w.run_for(SECOND / 2);
    });
}

#[test]
fn a_peer_whose_data_layer_stalls_is_left_behind() {
    let prose = "b answers, but makes nothing durable any more. The data layer of a reports the stall, a goes on \
                 alone, and takes b in again when it has caught up.";
    tell("stall", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("b's disk takes no more data");
        w.nodes[B].data.stuck = true;
        let before = acknowledged(w);
        writes(w, A, 1);
        assert_eq!(acknowledged(w), before, "nothing is acknowledged that b does not have");
        until(w, |w| w.right(A) == Some(Right::Solo));
        assert_eq!(acknowledged(w), before + 1);
        w.run_for(SECOND);
        w.heading("and again it does");
        w.nodes[B].data.stuck = false;
        until(w, |w| w.right(A) == Some(Right::Paired));
        w.run_for(SECOND / 2);
    });
}

#[test]
fn a_candidate_that_dies_with_a_promise_bars_nobody() {
    let prose = "A healthy pair; a stands for a new term, the witness promises it, and a dies before it hears of \
                 that. b misses nothing and is elected: a promise alone bars nobody.";
    tell("promised_candidate_dies", Birth::Mature, prose, |w| {
        pair(w);
        w.heading("b has to stop for a moment, and a restarts and stands; b's votes are not heard");
        w.crash(B);
        w.crash(A);
        w.start(A);
        w.hold = Some(|from, to, packet| {
            (from, to) == (W, A)
                && matches!(packet, Packet::Answer { reply: tiebreak::message::Reply::Voted { .. }, .. })
        });
        until(w, |w| !w.held_back.is_empty());
        w.heading("the witness has promised; its word is on its way when a dies");
        w.crash(A);
        w.hold = None;
        w.held_back.clear();
        w.start(B);
        until(w, |w| w.right(B) == Some(Right::Solo));
        writes(w, B, 1);
        w.run_for(SECOND / 2);
    });
}

#[test]
fn a_late_word_of_an_earlier_link_is_void() {
    let prose = "b joins, but its word is still on its way when the link breaks. On the next link it is void; the \
                 term is offered again.";
    tell("late_word", Birth::Mature, prose, |w| {
        w.plan.late_per_mille = 1000;
        w.hold = Some(|from, _, packet| {
            from == B && matches!(packet, Packet::Ask { request: Request::Joined { .. }, .. })
        });
        w.heading("the three start");
        w.start(W);
        w.start(A);
        w.run_for(SECOND / 10);
        w.start(B);
        until(w, |w| !w.held_back.is_empty());
        w.heading("the link breaks; b's word arrives after the next one is up");
        let first = w.connection(A, B);
        w.break_link(A, B);
        w.hold = None;
        until(w, |w| w.connection(A, B) > first);
        w.let_go();
        until(w, |w| w.right(A) == Some(Right::Paired));
        w.run_for(SECOND / 2);
    });
}
