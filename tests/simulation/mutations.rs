//! A rule that no checker misses is not a rule: each is removed in turn, and a violation has to be found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tiebreak::ids::{Position, Term};
use tiebreak::message::{Reply, Request, Standing};
use tiebreak::testing::{Input, Right, RoleView, Rule, Rules};

use crate::shrink::{SHRINKING_RUNS_MAX, harm, kind, shrink};
use crate::storm::{Profile, Storm, run_as};
use crate::sweep::guard;
use crate::world::net::Packet;
use crate::world::{A, B, Birth, MS, Plan, V, W, World};

/// Something is lost, two lead, or two act: more than that nobody leads when somebody should.
fn harms_safety(why: &str) -> bool {
    kind(why) != "7"
}

/// The first seed at which storms of this kind find the broken rule, within so many seeds, and what they find.
fn first_violation(
    rule: Rule,
    profile: Profile,
    seeds: u64,
    wanted: fn(&str) -> bool,
) -> Option<(u64, String)> {
    let next = AtomicU64::new(0);
    let found: Mutex<Option<(u64, String)>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || found.lock().expect("no panic holds it").is_some() {
                        return;
                    }
                    if let Err(why) = guard(|| run_as(seed, profile, Rules::without(rule)))
                        && wanted(&why)
                    {
                        let mut found = found.lock().expect("no panic holds it");
                        if found.as_ref().is_none_or(|(first, _)| seed < *first) {
                            *found = Some((seed, why));
                        }
                    }
                }
            });
        }
    });
    found.into_inner().expect("no panic holds it")
}

/// Storms of this kind find that the rule's removal breaks safety.
fn storms_find(rule: Rule, profile: Profile) {
    let found = first_violation(rule, profile, 3000, harms_safety);
    let (seed, why) = found.unwrap_or_else(|| panic!("nothing missed {rule:?} in 3000 storms ({profile:?})"));
    let kept = guard(|| run_as(seed, profile, Rules::KEPT));
    assert!(kept.is_ok(), "storm {seed} does harm with every rule kept: {kept:?}");
    println!("{rule:?}: storm {seed}: {why}");
}

/// A script does no harm with all rules, and does without this one.
fn script_finds(rule: Rule, script: fn(Rules) -> World) {
    let kept = script(Rules::KEPT);
    assert_eq!(kept.violation, None, "with every rule kept");
    let broken = script(Rules::without(rule));
    if let Some(transcript) = &broken.transcript {
        println!("{}", transcript.lines.join("\n"));
    }
    let why = broken.violation.unwrap_or_else(|| panic!("nothing missed {rule:?}"));
    println!("{rule:?}: script, {} steps: {why}", broken.steps);
}

const LEASE: u64 = 1000 * MS;
/// A schedule that a person can take in.
const SMALL: usize = 12;

/// A leads term 2, paired with B, and has acknowledged something.
fn paired(rules: Rules, change: impl FnOnce(&mut Plan)) -> World {
    let mut plan = Plan::calm(Duration::from_millis(1000));
    plan.rules = rules;
    change(&mut plan);
    let mut world = World::new(7, plan, Birth::Mature);
    if std::env::var_os("TIEBREAK_TRACE").is_some() {
        world.transcript = Some(crate::world::talk::Transcript::default());
    }
    world.start(W);
    world.start(A);
    world.run_for(100 * MS);
    world.start(B);
    assert!(world.run_while(LEASE * 4, |w| w.right(A) != Some(Right::Paired)), "a leads, paired");
    for _ in 0..5 {
        world.write(A);
        world.run_for(20 * MS);
    }
    world
}

/// Nothing more may be asked of a world that has found its violation.
fn wait(world: &mut World, span: u64, not_yet: impl FnMut(&World) -> bool) -> bool {
    world.run_while(span, not_yet) && world.violation.is_none()
}

fn confirm(_: usize, _: usize, packet: &Packet) -> bool {
    matches!(packet, Packet::Ask { request: Request::Confirm { .. }, .. })
}

/// A stopped leader wakes up after its term was over, and asks the witness to go on alone.
fn late_confirmation(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.pause(A);
    world.cut_both(A, B);
    world.hold = Some(|from, to, packet| from == B && confirm(from, to, packet));
    assert!(wait(&mut world, LEASE * 6, |w| w.right(B).is_none()), "b is elected");
    world.resume(A);
    world.run_for(50 * MS);
    world.write(A);
    world.run_for(LEASE);
    world
}

/// The leader that opened a term and lost its peer again is asked for its vote by that peer, which misses writes.
fn vote_for_one_behind(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.cut_both(A, B);
    assert!(wait(&mut world, LEASE * 3, |w| w.right(A) != Some(Right::Solo)), "a goes on alone");
    for _ in 0..5 {
        world.write(A);
        world.run_for(20 * MS);
    }
    world.nodes[B].data.stuck = true;
    world.nodes[A].data.shy = true;
    world.heal_both(A, B);
    assert!(wait(&mut world, LEASE * 5, |w| !may_offer(w, A)), "b is back");
    world.hold = Some(|_, _, packet| {
        matches!(packet, Packet::Ask { request: Request::Offer { .. }, .. }) || confirm(0, 0, packet)
    });
    let all = u64::try_from(world.nodes[A].data.durable).expect("small");
    world.command(A, Input::Offer(Position(all)));
    world.run_for(20 * MS);
    world.crash(W);
    world.crash(A);
    world.hold = Some(|from, _, packet| {
        from == A && matches!(packet, Packet::Ask { request: Request::PreVote(_), .. })
    });
    world.start(A);
    world.run_for(LEASE * 8);
    world
}

fn may_offer(world: &World, node: usize) -> bool {
    matches!(world.role(node), Some(RoleView::Leader { may_offer: true, .. }))
}

/// A sole leader is asked for its vote by a peer that had everything when it went away.
fn vote_of_a_sole_one(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.cut_both(A, B);
    assert!(wait(&mut world, LEASE * 3, |w| w.right(A) != Some(Right::Solo)), "a goes on alone");
    world.run_for(LEASE);
    world.hold = Some(|from, _, packet| from == A && packet.is_datagram());
    world.heal_both(A, B);
    world.run_for(LEASE * 2);
    // Nothing is lost: the leader goes on above the term that it gave away. But it must not be disturbed.
    if world.nodes[A].replica_record().term != Term(2) {
        world.fail(Err("7: a healthy sole leader had to change its term".into()));
    }
    world
}

/// A replica wipes its data to copy its leader's, and everybody dies before the copy is there.
fn wiped_half_way(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.hold = Some(confirm);
    // B leads term 3 for a moment and writes what nobody else has.
    world.crash(A);
    assert!(wait(&mut world, LEASE * 6, |w| w.right(B).is_none()), "b is elected");
    world.run_for(50 * MS);
    world.crash(B);
    world.start(A);
    assert!(wait(&mut world, LEASE * 6, |w| w.right(A).is_none()), "a is elected");
    world.nodes[B].data.wipes = true;
    world.start(B);
    let log = world.nodes[B].data.durable;
    let copies = wait(&mut world, LEASE * 6, |w| {
        let data = &w.nodes[B].data;
        data.durable == log
    });
    assert!(copies, "b begins to copy");
    world.crash(B);
    world.crash(A);
    world.start(B);
    world.run_for(LEASE * 8);
    world
}

/// The witness is replaced while the old one lives and only the standby still sees it.
fn two_witnesses(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.cut_both(A, B);
    assert!(wait(&mut world, LEASE * 3, |w| w.right(A) != Some(Right::Solo)), "a goes on alone");
    world.start(V);
    world.use_witness(A, V);
    world.run_for(LEASE);
    assert_eq!(world.nodes[V].witness_record().standing, Standing::Member, "a takes the new one in");
    world.heal_both(A, B);
    assert!(wait(&mut world, LEASE * 8, |w| w.right(A) != Some(Right::Paired)), "b is taken in again");
    world.write(A);
    world.run_for(100 * MS);
    world.cut_both(A, B);
    for _ in 0..20 {
        world.run_for(LEASE / 4);
        world.write(A);
    }
    world
}

/// A leader that was left behind meets its peer, which led a later term and has lost its disk since.
fn blank_peer(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.cut_both(A, B);
    world.cut_both(A, W);
    assert!(wait(&mut world, LEASE * 6, |w| w.right(B) != Some(Right::Solo)), "b goes on alone");
    for _ in 0..5 {
        world.write(B);
        world.run_for(20 * MS);
    }
    world.crash(B);
    world.lose_disk(B);
    world.start(B);
    world.heal_both(A, B);
    for _ in 0..40 {
        world.run_for(LEASE / 4);
        world.write(A);
    }
    world
}

/// A follower whose clock runs faster than the bound asks a leader whose lease still runs for its vote. (No two act
/// even then, but the leader must not go.)
fn hasty_follower(rules: Rules) -> World {
    let mut world = paired(rules, |plan| {
        plan.settings.solo_after = None;
        plan.rates_ppm[B] = 100_000;
    });
    // Renewals get lost, their answers do not, and the link stays up.
    world.hold = Some(|from, _, packet| from == A && packet.is_datagram());
    let promise = world.now;
    world.run_until(promise + 830 * MS);
    world.hold = Some(|_, _, packet| packet.is_datagram());
    world.run_for(130 * MS);
    if world.right(A).is_none() {
        world.fail(Err("7: a leader with a running lease was deposed".into()));
    }
    world.hold = None;
    world.run_for(LEASE);
    world
}

/// A standby that sees the witness only, for a minute.
fn hopeless_candidate(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.cut_both(A, B);
    world.run_for(60 * LEASE);
    let term = world.nodes[B].replica_record().term;
    if term > Term(2) {
        world.fail(Err(format!("7: b cannot win and has raised its term to {term}")));
    }
    world
}

/// The confirmation of a witness that was replaced meanwhile arrives after the pair has adopted another one, which
/// knows nothing of it and lets the peer be elected.
fn word_of_a_replaced_witness(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    let is_word = |packet: &Packet| matches!(packet, Packet::Answer { reply: Reply::Confirmed { .. }, .. });
    world.hold = Some(|from, to, packet| {
        let word = matches!(packet, Packet::Answer { reply: Reply::Confirmed { .. }, .. });
        (from == W && word) || (to == V && confirm(from, to, packet))
    });
    world.cut_both(A, B);
    assert!(wait(&mut world, LEASE * 2, |w| w.held_back.is_empty()), "the witness confirms");
    world.heal_both(A, B);
    assert!(
        wait(&mut world, LEASE * 2, |w| w.right(A) != Some(Right::Paired)),
        "they pair again in the term"
    );
    world.start(V);
    world.use_witness(A, V);
    world.use_witness(B, V);
    let admitted = |w: &World| w.nodes[V].witness_record().standing == Standing::Member;
    assert!(wait(&mut world, LEASE * 2, |w| !admitted(w)), "both adopt the new one");
    world.run_for(20 * MS);
    let place = world.held_back.iter().position(|(.., packet)| is_word(packet)).expect("it was held back");
    let (connection, to, packet) = world.held_back.remove(place);
    world.forge(connection, to, packet);
    // Nothing of what A writes now reaches B.
    world.cut_both(A, B);
    for _ in 0..3 {
        world.write(A);
        world.run_for(20 * MS);
    }
    world.cut_both(A, V);
    world.run_for(LEASE * 6);
    world
}

/// A sole leader restarts, leads on in a term of its own, which no witness has confirmed, and offers that very term:
/// its peer joins it and may be elected while the leader goes on alone.
fn offer_of_a_resumed_term(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.cut_both(A, B);
    assert!(wait(&mut world, LEASE * 3, |w| w.right(A) != Some(Right::Solo)), "a goes on alone");
    world.crash(A);
    world.start(A);
    assert!(wait(&mut world, LEASE * 3, |w| w.right(A) != Some(Right::Solo)), "a resumes");
    world.heal_both(A, B);
    let joined = |w: &World| {
        let (a, b) = (w.nodes[A].replica_record(), w.nodes[B].replica_record());
        b.holds == a.term
    };
    assert!(wait(&mut world, LEASE * 40, |w| !joined(w)), "b joins");
    world.cut_both(A, B);
    for _ in 0..20 {
        world.write(A);
        world.run_for(LEASE / 10);
    }
    world.crash(A);
    world.run_for(LEASE * 8);
    world
}

/// A strict witness comes back from an image of the same start and links, which knows nothing of the confirmation since;
/// the one that was left behind meets it first.
fn witness_restored_within_a_start(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.plan.strict_boot = true;
    world.take_image(W);
    world.cut_both(A, B);
    assert!(wait(&mut world, LEASE * 3, |w| w.right(A) != Some(Right::Solo)), "a goes on alone");
    for _ in 0..5 {
        world.write(A);
        world.run_for(20 * MS);
    }
    world.cut_both(A, W);
    world.put_back(W);
    world.run_for(LEASE * 8);
    world
}

/// A strict witness comes back from an image of before a new leader was elected, and meets the old one first, which does
/// not know yet that it was deposed and has nobody to vouch for it.
fn witness_restored_for_a_deposed_leader(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.plan.strict_boot = true;
    world.take_image(W);
    world.cut_both(A, B);
    world.cut_both(A, W);
    assert!(wait(&mut world, LEASE * 6, |w| w.right(B) != Some(Right::Solo)), "b goes on alone");
    for _ in 0..5 {
        world.write(B);
        world.run_for(20 * MS);
    }
    world.cut_both(B, W);
    world.put_back(W);
    world.heal_both(A, W);
    for _ in 0..20 {
        world.write(A);
        world.run_for(LEASE / 4);
    }
    world
}

/// An admission arrives once more, after the leader that sent it went on alone.
fn admission_that_comes_twice(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    world.hold = Some(|_, _, packet| matches!(packet, Packet::Ask { request: Request::Admit { .. }, .. }));
    world.start(V);
    world.use_witness(A, V);
    world.use_witness(B, V);
    assert!(wait(&mut world, LEASE * 3, |w| w.held_back.is_empty()), "both adopt the new one");
    world.hold = None;
    let (connection, to, packet) = world.held_back.remove(0);
    world.forge(connection, to, packet.clone());
    world.run_for(50 * MS);
    world.cut_both(A, B);
    assert!(wait(&mut world, LEASE * 3, |w| w.right(A) != Some(Right::Solo)), "a goes on alone");
    for _ in 0..5 {
        world.write(A);
        world.run_for(20 * MS);
    }
    world.forge(connection, to, packet);
    world.cut_both(A, V);
    world.run_for(LEASE * 6);
    world
}

/// The data of the follower, and only that, come out of a backup; its leader remembers how far they reached, and dies
/// before they are copied again.
fn data_restored_alone(rules: Rules) -> World {
    let mut world = paired(rules, |_| {});
    // A new link: the follower states how far its data reach.
    world.break_link(A, B);
    assert!(wait(&mut world, LEASE, |w| w.right(A) == Some(Right::Paired)), "the link is over");
    assert!(wait(&mut world, LEASE * 3, |w| w.right(A) != Some(Right::Paired)), "they pair again");
    world.run_for(50 * MS);
    world.crash(B);
    let data = &mut world.nodes[B].data;
    data.log.truncate(2);
    data.durable = 2;
    *data = data.after_crash();
    world.hold =
        Some(|from, _, packet| (from == A && matches!(packet, Packet::Data { .. })) || confirm(0, 0, packet));
    world.start(B);
    assert!(wait(&mut world, LEASE * 3, |w| w.shown(B).is_none_or(|b| b.view.peer.is_none())), "they meet");
    world.crash(A);
    world.run_for(LEASE * 8);
    world
}

macro_rules! found_by_storms {
    ($($name:ident: $rule:ident, $profile:ident;)*) => {
        $(#[test] fn $name() { storms_find(Rule::$rule, Profile::$profile); })*
    };
}

macro_rules! found_by_script {
    ($($name:ident: $rule:ident, $script:ident;)*) => {
        $(#[test] fn $name() { script_finds(Rule::$rule, $script); })*
    };
}

found_by_storms! {
    one_promise_per_term_is_missed: OnePromisePerTerm, Lossy;
    holds_above_confirmed_is_missed: HoldsAboveConfirmed, OneWay;
    holds_strictly_above_is_missed: HoldsStrictlyAbove, OneWay;
    confirmation_outlives_promises_is_missed: ConfirmationOutlivesPromises, OneWay;
    promise_binds_follower_is_missed: PromiseBindsFollower, OneWay;
    standing_is_granting_is_missed: StandingIsGranting, OneWay;
    holds_by_joining_only_is_missed: HoldsByJoiningOnly, SlowWitness;
    confirmed_never_paired_is_missed: ConfirmedNeverPaired, Lossy;
    confirm_not_below_promise_is_missed: ConfirmNotBelowPromise, Everything;
    opening_is_atomic_is_missed: OpeningIsAtomic, Crashy;
    resume_in_new_term_is_missed: ResumeInNewTerm, Everything;
    sole_after_confirmation_is_missed: SoleAfterConfirmation, OneWay;
    blank_grants_nothing_is_missed: BlankGrantsNothing, LostDisk;
    lease_from_sending_is_missed: LeaseFromSending, Everything;
    hold_off_after_restart_is_missed: HoldOffAfterRestart, OneWay;
    sync_before_reply_is_missed: SyncBeforeReply, SlowDisk;
    peer_adopts_first_is_missed: PeerAdoptsFirst, Replaced;
    links_ratchet_is_missed: LinksRatchet, Restored;
    lives_are_remembered_is_missed: LivesAreRemembered, Restored;
    witness_lease_binds_is_missed: WitnessLeaseBinds, Leadership;
    witness_holds_off_is_missed: WitnessHoldsOff, Leadership;
}

found_by_script! {
    late_confirmation_is_refused: ConfirmNotBelowPromise, late_confirmation;
    earlier_links_are_void_is_missed: EarlierLinksAreVoid, word_of_a_replaced_witness;
    two_lives_of_a_term_are_missed: OpeningIsAtomic, offer_of_a_resumed_term;
    peer_not_behind_is_missed: PeerNotBehind, vote_for_one_behind;
    sole_refuses_votes_is_missed: SoleRefusesVotes, vote_of_a_sole_one;
    resync_clears_holds_is_missed: ResyncClearsHolds, wiped_half_way;
    one_witness_incarnation_is_missed: OneWitnessIncarnation, two_witnesses;
    blank_joins_sole_only_is_missed: BlankJoinsSoleOnly, blank_peer;
    acting_leader_refuses_votes_is_missed: ActingLeaderRefusesVotes, hasty_follower;
    validated_first_is_missed: ValidatedFirst, witness_restored_within_a_start;
    admitted_once_is_missed: AdmittedOnce, admission_that_comes_twice;
    vouched_by_peer_is_missed: VouchedByPeer, witness_restored_for_a_deposed_leader;
    positions_are_remembered_is_missed: PositionsAreRemembered, data_restored_alone;
    pre_vote_first_is_missed: PreVoteFirst, hopeless_candidate;
}

/// What does harm in a storm is found again in a small part of it.
#[test]
fn a_storm_that_does_harm_is_shrunk_to_the_few_faults_that_do_it() {
    for (rule, profile) in [
        (Rule::HoldsAboveConfirmed, Profile::Lossy),
        (Rule::PromiseBindsFollower, Profile::Paused),
        (Rule::HoldOffAfterRestart, Profile::Crashy),
        (Rule::ResumeInNewTerm, Profile::Everything),
    ] {
        let (seed, _) = first_violation(rule, profile, 3000, harms_safety).expect("the rule is missed");
        let storm = Storm::of(seed, profile, Rules::without(rule));
        let shrunk = shrink(&storm, SHRINKING_RUNS_MAX).expect("the storm does harm again");
        println!("{rule:?}:\n{}\n", shrunk.lines(&storm, Some(rule)).join("\n"));
        assert!(shrunk.kept.len() <= storm.schedule.len());
        assert!(shrunk.kept.len() <= SMALL, "{rule:?}: {} faults are left", shrunk.kept.len());
        let again = harm(&storm, &shrunk.kept).expect("what is left does harm");
        assert_eq!((kind(&again), &again), (kind(&shrunk.why), &shrunk.why), "{rule:?}");
        // With the rule kept, the same faults do none.
        let kept = Storm::of(seed, profile, Rules::KEPT);
        assert_eq!(harm(&kept, &shrunk.kept), None, "{rule:?}");
    }
}

#[test]
#[ignore = "a survey: cargo test --test simulation survey -- --ignored --nocapture"]
fn survey() {
    let seeds = crate::number("TIEBREAK_SEEDS").unwrap_or(300);
    let only = std::env::var("TIEBREAK_RULE").ok();
    for rule in Rule::ALL {
        if only.as_ref().is_some_and(|only| !only.split(',').any(|name| name == format!("{rule:?}"))) {
            continue;
        }
        let mut line = format!("{rule:?}:");
        for profile in Profile::ALL {
            if let Some((seed, why)) = first_violation(rule, profile, seeds, harms_safety) {
                let number = why.split(": ").nth(2).unwrap_or("?").to_owned();
                line += &format!(" {profile:?}@{seed}/{number}");
            }
        }
        println!("{line}");
    }
}
