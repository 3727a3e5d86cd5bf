//! Exhaustive search over the shipped safety rules: every order of moves of two replicas and a witness, within stated
//! bounds.
//!
//! # What is searched
//!
//! The states are the shipped ones, `replica::Ballot` and `witness::Witness`, and every step of a voter is taken by
//! their code: the search only chooses which. In place of the data layer stands a list of writes. There is no time in
//! a `Ballot`: the search lets every move that is allowed at all happen at any moment, so it covers whatever timing the
//! layers above choose, and whatever clocks do. What needs time, the lease, is left to the simulation.
//!
//! Messages are lost, doubled, reordered and delayed without limit: whatever was sent stays in flight for ever, and may
//! arrive at any moment, again and again, or never. Crashes of replicas, new links between them (one end of which may
//! come up long before the other), steps down, renewals, copies that stop half-way and copies that wipe first happen as
//! often as you like. Bounded are the highest term, the writes, and, where a search has them at all: one lost disk of
//! the witness or of a replica; one witness that is replaced while the old one lives on and can be reached by both; one
//! restart of a witness with `strict_boot` on *any* earlier record of it, and one on its own; and how often one leader
//! proposes a new witness again. Every search prints its bounds, the number of its states, its depth and its rate.
//!
//! A crash between a sync and what follows is a move followed by the crash, with the messages never delivered. A crash
//! before the sync is the move not made: nothing of it has left. That this is so, invariant 5, the types see to; with
//! that rule broken the search lets what was said leave, and then the crash takes the record back.
//!
//! # What is checked
//!
//! Of the invariants of `src/protocol.md`, after every move: a term begins once and has one leader (1); a leader has
//! everything that was acknowledged in lower terms (2); what was acknowledged is a beginning of what is acknowledged
//! later, some replica has all of it unless a disk was lost, and never are two replicas sole (3); terms, promises,
//! confirmations, adoptions and `holds` never go back, votes and promises are not changed, and what is confirmed was
//! promised (4), told by the search itself beside the assertions of the shipped code.
//!
//! # What makes it small
//!
//! *Every state once.* States, messages and logs are numbered when they turn up, and what a voter does with an input is
//! computed once. A world is a few numbers. Worlds are remembered by 96 bits of a hash: at a hundred million states two
//! of them clash with a chance of about one in ten million million.
//!
//! *One name for two.* Each replica is kept as it sees itself, and a world in which the two have changed places is the
//! same world. Nothing in a `Ballot` or a `Witness` depends on the order of names.
//!
//! *Messages that can do nothing any more are dropped* (`normal.rs` says why for each kind): terms only rise, and what
//! was answered once has its answer in flight. `the_normal_form_hides_nothing` searches with and without and compares
//! everything that voters can come to.
//!
//! *What asks more of others is done at once.* A leader acknowledges as soon as it may, and hears at once how far its
//! follower is: that changes no voter, and adds to what later leaders must have. Whatever a voter may say at any time
//! it says at once: to be silent is to have it lost. The same for the first offer on a link: it restrains nothing,
//! because the next one takes its place.
//!
//! *More is allowed than can happen, where that is simpler.* A candidate, and a sole leader that opens or resumes, may
//! choose any term up to one above the highest that there is, whatever it has heard. On links to one start of the
//! witness nothing is ever void. If that breaks nothing, the narrower truth does not.
//!
//! *The nets of §7 are set aside* (`Ballot::plain`, `Witness::plain`): they refuse links, or find a state lost. A
//! refused link is one that never came up. A state that is found lost goes the way of a lost disk, which has its own
//! searches; that a state which is not lost is never found so is shown in `src/memory.rs`. An old image that nobody
//! who meets it remembers is harmful, and nobody can know (`an_image_that_nobody_remembers_is_harmful`).
//!
//! A link that one end has left for a newer one is only ever followed to the newest: the end that lags behind does not
//! stop at one in between.
//!
//! # Commands
//!
//! - `cargo test --test model -- --nocapture`: small bounds and every broken rule, in less than a minute.
//! - `TIEBREAK_MODEL=large cargo test --profile search --test model no_invariant -- --nocapture`: the large bounds, in
//!   minutes and some gigabytes. (The profile `search` is a release with assertions, quicker to build.)
//! - `TIEBREAK_MODEL="terms=3 writes=1 crashes=any lost_witness=1" cargo test --profile search --test model asked --
//!   --ignored --nocapture`: any others. `TIEBREAK_MODEL_TRACE=1` shows how far it is.
//!
//! # Counts
//!
//! What the large bounds exhaust. Crashes, new links and wiping copies are without limit unless the table says
//! otherwise.
//!
//! | fault | terms | writes | states | depth |
//! |---|---|---|---|---|
//! | none beside those | 4 | 2 | 36,000,479 | 34 |
//! | none beside those | 5 | 1 | 51,410,507 | 36 |
//! | the witness loses its disk | 3 | 1 | 10,665,099 | 39 |
//! | the witness is replaced, and the old one lives on | 2 | 1 | 5,078,281 | 35 |
//! | the same, with one crash, and no new links or unforced copies beside | 3 | 1 | 66,167,855 | 43 |
//! | a replica loses its disk | 3 | 2 | 3,427,541 | 29 |
//! | the same | 4 | 1 | 9,511,811 | 36 |
//! | the witness goes back to any earlier record, with `strict_boot` | 3 | 1 | 13,062,463 | 34 |
//! | the same, and it restarts once more | 2 | 1 | 2,266,271 | 31 |
//! | a leadership cluster | 5 | none | 10,418,997 | 32 |
//! | the same, the witness loses its disk | 3 | none | 1,435,267 | 35 |
//! | the same, a replica loses its disk | 4 | none | 2,768,886 | 32 |
//!
//! A witness that is replaced or lost is not taken to four terms: each witness more has its own words, links and
//! adoptions, and already from two terms to three these states grow more than twentyfold.

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
    exhaust_all("ordinary faults", &[bounds(3, 1, any)], &[bounds(4, 2, any), bounds(5, 1, any)]);
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
    let crash = Faults { crashes: 1, ..replaced };
    let large = [bounds(2, 1, ordinary), bounds(3, 1, crash)];
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
        Faults { rolled_witness: 1, resyncs: 1, ..Faults::NONE },
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

/// Without `strict_boot` a witness that starts on an old record, and first meets a replica that does not remember more
/// than that, promises again what it had promised.
#[test]
fn an_image_that_nobody_remembers_is_harmful() {
    let rolled = Faults { rolled_witness: 1, ..Faults::NONE };
    let bounds = Bounds { strict_boot: false, ..bounds(2, 1, rolled) };
    let found = search(&mut Model::new(bounds, Rules::KEPT), usize::MAX, |_| {});
    assert!(matches!(found.ended, Ended::Violated { .. }), "the limit that the protocol states is real");
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
        const SEARCHED: &[Rule] = &[$(Rule::$rule),*];
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

/// Rules that a search without time cannot miss, and why.
const LEFT_TO_OTHERS: &[Rule] = &[
    // A copy that begins when the leader is gone harms if the leader has lost its disk, too: then this search counts what
    // was only there as lost with it. `src/replica/tests.rs`.
    Rule::ResyncOnLiveLinkOnly,
    // Leases and patience: `tests/simulation`.
    Rule::PromiseBindsFollower,
    Rule::LeaseFromSending,
    Rule::HoldOffAfterRestart,
    Rule::ActingLeaderRefusesVotes,
    Rule::WitnessLeaseBinds,
    Rule::WitnessHoldsOff,
    Rule::PreVoteFirst,
    // Without time nothing is left of it: whoever may not stand holds nothing, and who holds nothing is voted for by
    // nobody. With time it keeps a promise from being broken: `tests/simulation`.
    Rule::StandingIsGranting,
    // The nets, which are set aside here: `src/memory.rs`, and the tests of both voters.
    Rule::LinksRatchet,
    Rule::LivesAreRemembered,
    Rule::PositionsAreRemembered,
    Rule::BannedStops,
];

#[test]
fn every_rule_is_broken_here_or_left_to_another_checker() {
    for rule in Rule::ALL {
        let places = SEARCHED.iter().chain(LEFT_TO_OTHERS).filter(|known| **known == rule).count();
        assert_eq!(places, 1, "{rule:?}");
    }
}
