//! The rules of §4 and §7 at the witness. Each test also shows what happens without its rule.

use super::*;

fn voter(name: &str, life: u128) -> VoterId {
    VoterId { node: name.parse().expect("a valid name"), incarnation: Incarnation(life) }
}

fn a() -> VoterId {
    voter("a", 1)
}

fn b() -> VoterId {
    voter("b", 2)
}

const CLUSTER: ClusterId = ClusterId(77);
const NOW: Moment = Moment(5_000_000_000);

fn blank() -> WitnessRecord {
    let name = "demo".parse().expect("a valid name");
    Witness::blank("w".parse().expect("a valid name"), name, Incarnation(9))
}

fn word(term: u32, to: VoterId) -> Word {
    Word { term: Term(term), to: Some(to) }
}

/// A member that promised and confirmed so.
fn member(promised: Word, confirmed: Word, rules: Rules) -> Witness {
    let record =
        WitnessRecord { cluster: CLUSTER, standing: Standing::Member, promised, confirmed, ..blank() };
    Witness::start(record, rules).0
}

fn sender(voter: VoterId) -> Sender {
    Sender { cluster: CLUSTER, voter, boot: Boot(1), term: Term(1) }
}

fn vote(term: u32, holds: u32) -> Request {
    Request::Vote(Candidacy { term: Term(term), holds: Term(holds), position: Position(0) })
}

fn pre_vote(term: u32, holds: u32) -> Request {
    Request::PreVote(Candidacy { term: Term(term), holds: Term(holds), position: Position(0) })
}

fn confirm(term: u32) -> Request {
    Request::Confirm { term: Term(term), lease: Millis(2000) }
}

fn ask(witness: &mut Witness, from: VoterId, request: Request) -> Step {
    witness.handle(NOW, &sender(from), &request)
}

fn refused(step: &Step) -> Option<Refusal> {
    match &step.reply {
        Reply::Refused(refusal) => Some(*refusal),
        _ => None,
    }
}

#[test]
fn a_term_is_promised_to_one_candidate_only() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::OnePromisePerTerm), true)] {
        let mut witness = member(word(5, a()), word(1, a()), rules);
        assert_eq!(refused(&ask(&mut witness, b(), vote(5, 3))).is_none(), granted);
    }
}

#[test]
fn another_life_of_the_same_replica_is_another_candidate() {
    let mut witness = member(word(5, a()), word(1, a()), Rules::KEPT);
    let step = ask(&mut witness, voter("a", 100), vote(5, 3));
    assert_eq!(refused(&step), Some(Refusal::TermSpent { term: Term(6) }));
}

#[test]
fn asking_again_for_the_same_promise_is_harmless() {
    let mut witness = member(word(5, a()), word(1, a()), Rules::KEPT);
    let step = ask(&mut witness, a(), vote(5, 3));
    assert_eq!((step.record, step.reply), (None, Reply::Voted { term: Term(5) }));
}

#[test]
fn a_promise_is_recorded_with_the_reply_that_it_justifies() {
    let mut witness = member(word(5, a()), word(1, a()), Rules::KEPT);
    let step = ask(&mut witness, b(), vote(6, 3));
    assert_eq!(step.reply, Reply::Voted { term: Term(6) });
    assert_eq!(step.record.map(|record| record.promised), Some(word(6, b())));
}

#[test]
fn a_pre_vote_promises_nothing() {
    let mut witness = member(word(5, a()), word(1, a()), Rules::KEPT);
    let step = ask(&mut witness, b(), pre_vote(6, 3));
    assert_eq!((step.record, step.reply), (None, Reply::PreVoted { term: Term(6) }));
}

#[test]
fn whoever_holds_less_than_the_confirmed_term_is_stale() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::HoldsAboveConfirmed), true)] {
        let mut witness = member(word(5, a()), word(5, a()), rules);
        let step = ask(&mut witness, b(), vote(6, 4));
        assert_eq!(refused(&step).is_none(), granted);
    }
}

#[test]
fn holding_the_confirmed_term_itself_is_not_enough() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::HoldsStrictlyAbove), true)] {
        let mut witness = member(word(5, a()), word(5, a()), rules);
        assert_eq!(refused(&ask(&mut witness, b(), vote(6, 5))).is_none(), granted);
        assert_eq!(refused(&ask(&mut witness, b(), vote(7, 6))), None, "joining a newer term lifts it");
    }
}

#[test]
fn the_confirmed_one_may_always_be_elected_but_only_in_the_same_life() {
    let mut witness = member(word(5, a()), word(5, a()), Rules::KEPT);
    let other_life = ask(&mut witness, voter("a", 100), vote(6, 5));
    assert!(matches!(refused(&other_life), Some(Refusal::Stale { .. })));
    assert_eq!(refused(&ask(&mut witness, a(), vote(6, 2))), None);
}

#[test]
fn whoever_holds_nothing_is_refused_even_by_a_witness_that_confirmed_nothing() {
    let mut witness = member(word(1, a()), Word::default(), Rules::KEPT);
    assert_eq!(refused(&ask(&mut witness, b(), vote(6, 0))), Some(Refusal::HoldsNothing));
}

#[test]
fn a_later_promise_leaves_the_confirmation_alone() {
    let rule = Rule::ConfirmationOutlivesPromises;
    for (rules, stale) in [(Rules::KEPT, true), (Rules::without(rule), false)] {
        let mut witness = member(word(5, a()), word(5, a()), rules);
        assert_eq!(refused(&ask(&mut witness, a(), vote(6, 5))), None);
        assert_eq!(refused(&ask(&mut witness, b(), vote(7, 4))).is_some(), stale);
    }
}

#[test]
fn a_promise_whose_term_never_had_a_leader_bars_nobody() {
    let mut witness = member(word(1, a()), word(0, a()), Rules::KEPT);
    assert_eq!(refused(&ask(&mut witness, a(), vote(2, 1))), None);
    assert_eq!(refused(&ask(&mut witness, b(), vote(3, 1))), None);
}

#[test]
fn nothing_is_confirmed_below_a_promise_to_somebody_else() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::ConfirmNotBelowPromise), true)] {
        let mut witness = member(word(6, b()), word(1, a()), rules);
        assert_eq!(refused(&ask(&mut witness, a(), confirm(5))).is_none(), granted);
    }
}

#[test]
fn a_confirmation_is_given_in_a_promised_term_or_above_and_says_both_words() {
    let mut witness = member(word(6, b()), word(1, a()), Rules::KEPT);
    assert!(refused(&ask(&mut witness, a(), confirm(6))).is_some(), "the term is b's");
    let step = ask(&mut witness, b(), confirm(6));
    let record = step.record.expect("both words are recorded");
    assert_eq!((record.promised, record.confirmed), (word(6, b()), word(6, b())));
    let again = ask(&mut witness, b(), confirm(6));
    assert_eq!((again.record, again.reply), (None, Reply::Confirmed { term: Term(6) }));
    assert_eq!(refused(&ask(&mut witness, a(), confirm(9))), None);
}

#[test]
fn a_blank_witness_grants_nothing() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::BlankGrantsNothing), true)] {
        for request in [vote(2, 1), confirm(2)] {
            let mut witness = Witness::start(WitnessRecord { cluster: CLUSTER, ..blank() }, rules).0;
            assert_eq!(refused(&ask(&mut witness, a(), request)).is_none(), granted);
        }
    }
}

fn admit(term: u32, incarnation: u128, solo: bool) -> Request {
    let adoption = Adoption { term: Term(term), ordinal: 0, incarnation: Incarnation(incarnation) };
    let kind = Kind::Replicated;
    Request::Admit { term: Term(term), kind, adoption, solo, longest_lease: Millis(0), nonce: 0 }
}

#[test]
fn a_blank_witness_is_admitted_once_and_by_its_own_name() {
    let mut witness = Witness::start(blank(), Rules::KEPT).0;
    assert_eq!(refused(&ask(&mut witness, a(), admit(4, 8, true))), Some(Refusal::OtherWitness));
    let record = ask(&mut witness, a(), admit(4, 9, true)).record.expect("recorded");
    assert_eq!((record.promised, record.confirmed), (word(4, a()), word(4, a())));
    let later = ask(&mut witness, b(), admit(6, 9, true));
    assert_eq!((later.record, refused(&later)), (None, Some(Refusal::Void)));
}

#[test]
fn a_witness_admitted_by_a_paired_leader_has_confirmed_only_the_term_before() {
    let mut witness = Witness::start(blank(), Rules::KEPT).0;
    let record = ask(&mut witness, a(), admit(4, 9, false)).record.expect("recorded");
    assert_eq!((record.promised, record.confirmed), (word(4, a()), word(3, a())));
}

#[test]
fn another_cluster_is_refused() {
    let mut witness = member(word(5, a()), word(1, a()), Rules::KEPT);
    let from = Sender { cluster: ClusterId(1), ..sender(a()) };
    let step = witness.handle(NOW, &from, &vote(6, 3));
    assert_eq!((step.record, refused(&step)), (None, Some(Refusal::OtherCluster)));
}

#[test]
fn busy_is_said_to_pre_votes_of_others_for_a_while_and_binds_nobody() {
    let mut witness = member(word(6, b()), word(1, a()), Rules::KEPT);
    assert_eq!(refused(&ask(&mut witness, b(), confirm(6))), None);
    assert!(matches!(refused(&ask(&mut witness, a(), pre_vote(7, 7))), Some(Refusal::Busy { .. })));
    assert_eq!(refused(&ask(&mut witness, a(), vote(7, 7))), None, "a vote is not a matter of time");
}

#[test]
fn a_restart_counts_and_forgets_nothing_durable() {
    let before = *member(word(5, a()), word(3, a()), Rules::KEPT).record();
    let (_, after) = Witness::start(before, Rules::KEPT);
    assert_eq!(after, WitnessRecord { boot: Boot(before.boot.0 + 1), ..before });
}
