//! Exhaustive search.

mod model;
mod moves;
mod node;
mod normal;
mod search;
mod sight;
mod table;
mod talk;
mod world;

use std::collections::HashSet;

use model::Model;
use search::{Ended, search};
use tiebreak::testing::{Rule, Rules};
use world::{ANY, Bounds, Faults, Flight};

fn bounds(terms: u8, writes: u8, faults: Faults) -> Bounds {
    Bounds { terms, writes, faults, strict_boot: faults.rolled_witness > 0, leadership: false, ordinals: 1 }
}

fn is_large() -> bool {
    std::env::var("TIEBREAK_MODEL").is_ok_and(|size| size == "large")
}

fn exhaust(name: &str, bounds: Bounds) {
    let mut model = Model::new(bounds, Rules::KEPT);
    let found = search(&mut model, usize::MAX, |_| {});
    let rate = found.states as f64 / found.seconds;
    println!(
        "{name}: {} states to depth {} in {:.1} s, {rate:.0} a second; {} writes acknowledged; {}; {bounds:?}",
        found.states,
        found.depth,
        found.seconds,
        found.acknowledged,
        model.sizes(),
    );
    match found.ended {
        Ended::Exhausted => {}
        Ended::Violated { what, path } => panic!("{name}: {what}\n  {}", path.join("\n  ")),
        Ended::Cut => panic!("{name}: cut"),
    }
    assert_eq!(found.acknowledged, usize::from(bounds.writes), "what is never acknowledged is never lost");
}

/// The small bounds, or with `TIEBREAK_MODEL=large` the large ones.
fn exhaust_all(name: &str, small: &[Bounds], large: &[Bounds]) {
    for bounds in if is_large() { large } else { small } {
        exhaust(name, *bounds);
    }
}

#[test]
fn crashes_links_and_resyncs_break_no_invariant() {
    let any = Faults::ORDINARY;
    exhaust_all("ordinary faults", &[bounds(3, 1, any)], &[bounds(3, 2, any), bounds(4, 2, any)]);
}

#[test]
fn a_lost_witness_breaks_no_invariant() {
    let lost = Faults { lost_witness: 1, ..Faults::ORDINARY };
    exhaust_all("a lost witness", &[bounds(2, 1, lost)], &[bounds(3, 1, lost)]);
}

#[test]
fn a_replaced_witness_that_lives_on_breaks_no_invariant() {
    let replaced = Faults { replaced_witness: 1, ..Faults::NONE };
    let ordinary = Faults { replaced_witness: 1, ..Faults::ORDINARY };
    let large = [bounds(2, 1, ordinary), bounds(3, 1, replaced)];
    exhaust_all("a replaced witness", &[bounds(2, 1, replaced)], &large);
}

#[test]
fn a_lost_replica_breaks_no_invariant() {
    let lost = Faults { lost_replica: 1, ..Faults::ORDINARY };
    exhaust_all("a lost replica", &[bounds(3, 1, lost)], &[bounds(3, 2, lost), bounds(4, 1, lost)]);
}

/// Whatever a witness has forgotten that was restored to any earlier record: with `strict_boot` it grants nothing
/// before a current leader has set it right.
#[test]
fn a_rolled_back_witness_with_strict_boot_breaks_no_invariant() {
    let rolled = Faults { rolled_witness: 1, ..Faults::NONE };
    let ordinary = Faults { rolled_witness: 1, ..Faults::ORDINARY };
    let twice = Faults { restarts: 1, ..ordinary };
    exhaust_all(
        "a rolled-back witness",
        &[bounds(3, 1, rolled)],
        &[bounds(2, 1, twice), bounds(3, 1, ordinary)],
    );
}

#[test]
fn leadership_without_data_breaks_no_invariant() {
    let leadership = |terms, faults| Bounds { leadership: true, ..bounds(terms, 0, faults) };
    let lost_witness = Faults { lost_witness: 1, ..Faults::ORDINARY };
    let lost_replica = Faults { lost_replica: 1, ..Faults::ORDINARY };
    exhaust_all(
        "leadership",
        &[leadership(3, Faults::ORDINARY), leadership(2, lost_witness), leadership(2, lost_replica)],
        &[leadership(5, Faults::ORDINARY), leadership(3, lost_witness), leadership(4, lost_replica)],
    );
}

/// A search for people: `TIEBREAK_MODEL="terms=4 writes=1 crashes=any lost_witness=1" cargo test ... -- --ignored`.
#[test]
#[ignore = "only on demand: give its bounds in TIEBREAK_MODEL"]
fn the_bounds_that_were_asked_for() {
    let asked = std::env::var("TIEBREAK_MODEL").expect("bounds, as in: terms=3 writes=1 crashes=any");
    let mut bounds = bounds(3, 1, Faults::NONE);
    for word in asked.split_whitespace() {
        let (name, value) = word.split_once('=').expect("name=number");
        let value = if value == "any" { ANY } else { value.parse().expect("a number, or any") };
        let faults = &mut bounds.faults;
        let (mut strict_boot, mut leadership) = (0, 0);
        *match name {
            "terms" => &mut bounds.terms,
            "writes" => &mut bounds.writes,
            "ordinals" => &mut bounds.ordinals,
            "crashes" => &mut faults.crashes,
            "links" => &mut faults.links,
            "resyncs" => &mut faults.resyncs,
            "lost_witness" => &mut faults.lost_witness,
            "replaced_witness" => &mut faults.replaced_witness,
            "lost_replica" => &mut faults.lost_replica,
            "restarts" => &mut faults.restarts,
            "rolled_witness" => &mut faults.rolled_witness,
            "strict_boot" => &mut strict_boot,
            "leadership" => &mut leadership,
            other => panic!("there is no bound named {other}"),
        } = value;
        bounds.strict_boot |= strict_boot > 0;
        bounds.leadership |= leadership > 0;
    }
    exhaust("as asked", bounds);
}

/// What voters can come to, whatever is in flight, is the same whether messages are dropped or kept.
#[test]
fn the_normal_form_hides_nothing() {
    for faults in [
        Faults { crashes: 1, links: 1, resyncs: 1, ..Faults::NONE },
        Faults { lost_replica: 1, ..Faults::NONE },
        Faults { lost_witness: 1, ..Faults::NONE },
    ] {
        let bounds = bounds(2, 1, faults);
        let mut model = Model::new(bounds, Rules::KEPT);
        let [tidied, kept] = [true, false].map(|tidies| {
            model.tidies(tidies);
            let mut voters = HashSet::new();
            let found = search(&mut model, usize::MAX, |world| {
                let mut bare = *world;
                bare.flight = [Flight::EMPTY; 2];
                let mut words = Vec::new();
                bare.write(&mut words);
                voters.insert(words);
            });
            assert!(matches!(found.ended, Ended::Exhausted));
            (voters, found.states)
        });
        println!("{} states tidied, {} kept, {} of the voters: {bounds:?}", tidied.1, kept.1, kept.0.len());
        assert!(tidied.1 < kept.1, "the normal form drops something");
        // Of two replicas in equal states, which is the first is settled by what is in flight.
        assert_eq!(tidied.0, kept.0);
    }
}

/// The rule broken, and the search has to find what goes wrong.
fn is_missed(rule: Rule, bounds: Bounds) {
    let found = search(&mut Model::new(bounds, Rules::without(rule)), 8_000_000, |_| {});
    match found.ended {
        Ended::Violated { what, path } => println!(
            "{rule:?}: {what}, in {} steps, {} states\n  {}",
            path.len(),
            found.states,
            path.join("\n  ")
        ),
        _ => panic!("{rule:?} is missed by nobody in {} states of {bounds:?}", found.states),
    }
}

macro_rules! missed {
    ($($name:ident: $rule:ident, $terms:literal, $writes:literal, $faults:expr;)*) => {
        $(#[test] fn $name() { is_missed(Rule::$rule, Bounds { ordinals: 0, ..bounds($terms, $writes, $faults) }); })*
    };
}

const CRASH: Faults = Faults { crashes: 1, ..Faults::NONE };
const ROLLED: Faults = Faults { rolled_witness: 1, crashes: 1, ..Faults::NONE };

missed! {
    one_promise_per_term_is_missed: OnePromisePerTerm, 3, 1, CRASH;
    holds_above_confirmed_is_missed: HoldsAboveConfirmed, 3, 1, CRASH;
    holds_strictly_above_is_missed: HoldsStrictlyAbove, 3, 1, CRASH;
    confirmation_outlives_promises_is_missed: ConfirmationOutlivesPromises, 3, 1, CRASH;
    confirm_not_below_promise_is_missed: ConfirmNotBelowPromise, 3, 1, CRASH;
    peer_not_behind_is_missed: PeerNotBehind, 4, 1, CRASH;
    holds_by_joining_only_is_missed: HoldsByJoiningOnly, 3, 1, CRASH;
    confirmed_never_paired_is_missed:
        ConfirmedNeverPaired, 3, 1, Faults { lost_witness: 1, ..Faults::NONE };
    opening_is_atomic_is_missed: OpeningIsAtomic, 4, 1, CRASH;
    sole_refuses_votes_is_missed: SoleRefusesVotes, 4, 1, CRASH;
    resume_in_new_term_is_missed: ResumeInNewTerm, 3, 1, CRASH;
    sole_after_confirmation_is_missed: SoleAfterConfirmation, 3, 1, CRASH;
    resync_clears_holds_is_missed: ResyncClearsHolds, 3, 1, Faults { resyncs: 1, ..Faults::NONE };
    earlier_links_are_void_is_missed: EarlierLinksAreVoid, 3, 1, Faults { links: 1, resyncs: 1, ..Faults::NONE };
    one_witness_incarnation_is_missed:
        OneWitnessIncarnation, 3, 1, Faults { replaced_witness: 1, ..Faults::NONE };
    blank_joins_sole_only_is_missed: BlankJoinsSoleOnly, 4, 1, Faults { lost_replica: 1, ..Faults::NONE };
    blank_grants_nothing_is_missed: BlankGrantsNothing, 4, 1, Faults { lost_replica: 1, ..Faults::NONE };
    sync_before_reply_is_missed: SyncBeforeReply, 3, 1, Faults::NONE;
    peer_adopts_first_is_missed: PeerAdoptsFirst, 3, 1, Faults { replaced_witness: 1, ..Faults::NONE };
    adoption_never_goes_back_is_missed:
        AdoptionNeverGoesBack, 3, 1, Faults { replaced_witness: 1, ..Faults::NONE };
    admitted_once_is_missed: AdmittedOnce, 3, 1, Faults { lost_witness: 1, ..Faults::NONE };
    validated_first_is_missed: ValidatedFirst, 3, 1, ROLLED;
    vouched_by_peer_is_missed: VouchedByPeer, 3, 1, ROLLED;
    validation_raises_confirmed_is_missed: ValidationRaisesConfirmed, 3, 1, ROLLED;
}
