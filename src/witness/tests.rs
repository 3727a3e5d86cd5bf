//! The rules of the witness, one by one. Each fails when its rule is broken, and the test shows that too.

use std::time::Duration;

use super::*;

const T0: Moment = Moment(1_000_000_000);
const CLUSTER: ClusterId = ClusterId(77);

fn voter(name: &str, life: u128) -> VoterId {
    VoterId { node: name.parse().expect("a name"), incarnation: Incarnation(life) }
}

fn a() -> VoterId {
    voter("a", 0xa)
}

fn b() -> VoterId {
    voter("b", 0xb)
}

fn from(voter: VoterId) -> Sender {
    Sender { cluster: CLUSTER, voter, boot: Boot(1), term: Term(1) }
}

fn blank(rules: Rules) -> Witness {
    let record =
        Witness::blank("w".parse().expect("a name"), "orders".parse().expect("a name"), Incarnation(0xe));
    Witness::start(T0, record, Settings::default(), rules).0
}

fn admit(term: u32, solo: bool) -> Request {
    Request::Admit {
        term: Term(term),
        kind: Kind::Replicated,
        adoption: Adoption { term: Term(term), ordinal: 0, incarnation: Incarnation(0xe) },
        solo,
        longest_lease: Millis(0),
    }
}

/// A witness that `a`, leading term 1 paired, has taken in: promised (1, a), confirmed (0, a).
fn member(rules: Rules) -> Witness {
    let mut witness = blank(rules);
    assert_eq!(say(&mut witness, a(), admit(1, false)), Reply::Admitted { term: Term(1) });
    witness
}

/// One request on the link of that replica, which is greeted first if it has none.
fn ask(witness: &mut Witness, now: Moment, from: Sender, request: Request) -> Step {
    let link = LinkId(u64::try_from(from.voter.incarnation.0).expect("a small number"));
    let fresh = 0x99_0000_0001;
    if witness.links.iter().flatten().all(|known| known.id != link) {
        let request = Request::Hello(hello(witness, from.voter));
        let _ = witness.handle(now, &Call { link, from, request, fresh });
    }
    witness.handle(now, &Call { link, from, request, fresh })
}

/// The greeting of a replica that remembers what the witness said last.
fn hello(witness: &Witness, of: VoterId) -> Hello {
    let known = witness.record.remembers.iter().flatten().find(|known| known.voter == of);
    let remembers = known.map(|known| Remembered {
        voter: witness.id(),
        boot: witness.record.boot,
        term: witness.record.promised.term,
        ..*known
    });
    Hello { part: Part::Replica, standing: Standing::Member, remembers, ..witness.hello(of) }
}

fn say(witness: &mut Witness, who: VoterId, request: Request) -> Reply {
    ask(witness, T0, from(who), request).reply
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

fn voted(term: u32) -> Reply {
    Reply::Voted { term: Term(term) }
}

#[test]
fn a_term_is_promised_to_one_candidate_only_and_to_that_one_as_often_as_it_asks() {
    let mut witness = member(Rules::KEPT);
    assert_eq!(say(&mut witness, a(), vote(2, 1)), voted(2));
    assert_eq!(say(&mut witness, a(), vote(2, 1)), voted(2));
    let refused = Reply::Refused(Refusal::TermSpent { term: Term(3) });
    assert_eq!(say(&mut witness, b(), vote(2, 1)), refused);
    assert_eq!(say(&mut witness, b(), vote(1, 1)), refused);

    let mut broken = member(Rules::without(Rule::OnePromisePerTerm));
    assert_eq!(say(&mut broken, a(), vote(2, 1)), voted(2));
    assert_eq!(say(&mut broken, b(), vote(2, 1)), voted(2), "two votes in one term");
}

#[test]
fn another_life_of_the_same_node_is_another_candidate() {
    let mut witness = member(Rules::KEPT);
    assert_eq!(say(&mut witness, a(), vote(2, 1)), voted(2));
    assert!(matches!(
        say(&mut witness, voter("a", 0xaa), vote(2, 1)),
        Reply::Refused(Refusal::TermSpent { .. })
    ));
}

#[test]
fn a_promise_whose_term_never_had_a_leader_bars_nobody() {
    let mut witness = member(Rules::KEPT);
    assert_eq!(say(&mut witness, a(), vote(2, 1)), voted(2));
    assert_eq!(say(&mut witness, b(), vote(3, 1)), voted(3));
}

#[test]
fn whoever_does_not_hold_more_than_the_confirmed_term_is_refused_with_the_reason() {
    let mut witness = member(Rules::KEPT);
    assert_eq!(say(&mut witness, a(), confirm(1)), Reply::Confirmed { term: Term(1) });
    let stale = Refusal::Stale { holds: Term(1), confirmed: Term(1), to: a().node };
    assert_eq!(say(&mut witness, b(), vote(2, 1)), Reply::Refused(stale));
    assert_eq!(say(&mut witness, b(), pre_vote(2, 1)), Reply::Refused(Refusal::Busy { left: Millis(2000) }));
    assert_eq!(say(&mut witness, a(), vote(2, 1)), voted(2), "the confirmed one may");
    assert_eq!(say(&mut witness, b(), vote(3, 2)), voted(3), "and whoever joined a later term");

    let mut ge = member(Rules::without(Rule::HoldsStrictlyAbove));
    say(&mut ge, a(), confirm(1));
    assert_eq!(say(&mut ge, b(), vote(2, 1)), voted(2), "a stale replica is elected");
    let mut blind = member(Rules::without(Rule::HoldsAboveConfirmed));
    say(&mut blind, a(), confirm(3));
    assert_eq!(say(&mut blind, b(), vote(4, 1)), voted(4), "a stale replica is elected");
}

#[test]
fn another_life_of_the_confirmed_node_is_not_the_confirmed_one() {
    let mut witness = member(Rules::KEPT);
    say(&mut witness, a(), confirm(1));
    let reply = say(&mut witness, voter("a", 0xaa), vote(2, 1));
    assert!(matches!(reply, Reply::Refused(Refusal::Stale { .. })), "{reply:?}");
}

#[test]
fn a_later_promise_leaves_the_confirmation_alone() {
    let mut witness = member(Rules::KEPT);
    say(&mut witness, a(), confirm(1));
    say(&mut witness, a(), vote(2, 1));
    assert_eq!(witness.record().confirmed, Word { term: Term(1), to: Some(a()) });
    assert!(matches!(say(&mut witness, b(), vote(3, 1)), Reply::Refused(Refusal::Stale { .. })));

    let mut broken = member(Rules::without(Rule::ConfirmationOutlivesPromises));
    say(&mut broken, a(), confirm(1));
    say(&mut broken, a(), vote(2, 1));
    assert_eq!(say(&mut broken, b(), vote(3, 1)), voted(3), "a stale replica is elected");
}

#[test]
fn nothing_is_confirmed_below_a_promise_to_somebody_else() {
    let mut witness = member(Rules::KEPT);
    say(&mut witness, b(), vote(2, 1));
    let refused = Reply::Refused(Refusal::TermSpent { term: Term(3) });
    assert_eq!(say(&mut witness, a(), confirm(1)), refused);
    assert_eq!(say(&mut witness, a(), confirm(2)), refused);
    assert_eq!(say(&mut witness, b(), confirm(2)), Reply::Confirmed { term: Term(2) });
    assert_eq!(
        say(&mut witness, b(), confirm(2)),
        Reply::Confirmed { term: Term(2) },
        "asking again is harmless"
    );

    let mut broken = member(Rules::without(Rule::ConfirmNotBelowPromise));
    say(&mut broken, b(), vote(2, 1));
    assert_eq!(say(&mut broken, a(), confirm(1)), Reply::Confirmed { term: Term(1) });
}

#[test]
fn a_leader_elected_by_its_peer_is_confirmed_although_the_witness_never_promised() {
    let mut witness = member(Rules::KEPT);
    assert_eq!(say(&mut witness, b(), confirm(5)), Reply::Confirmed { term: Term(5) });
    assert_eq!(witness.record().promised, Word { term: Term(5), to: Some(b()) });
}

#[test]
fn a_pre_vote_promises_nothing() {
    let mut witness = member(Rules::KEPT);
    say(&mut witness, b(), pre_vote(8, 1));
    let step = ask(&mut witness, T0, from(b()), pre_vote(9, 1));
    assert_eq!(step.reply, Reply::PreVoted { term: Term(9) });
    assert_eq!(step.record, None);
}

#[test]
fn busy_is_a_courtesy_that_passes_and_never_refuses_a_vote() {
    let mut witness = member(Rules::KEPT);
    say(&mut witness, a(), confirm(1));
    assert!(matches!(say(&mut witness, b(), pre_vote(3, 2)), Reply::Refused(Refusal::Busy { .. })));
    assert_eq!(say(&mut witness, a(), pre_vote(3, 1)), Reply::PreVoted { term: Term(3) });
    let later = T0 + Duration::from_secs(3);
    let reply = ask(&mut witness, later, from(b()), pre_vote(3, 2)).reply;
    assert_eq!(reply, Reply::PreVoted { term: Term(3) });
    assert_eq!(say(&mut witness, b(), vote(3, 2)), voted(3));
}

#[test]
fn every_granted_word_comes_with_the_record_that_has_to_be_durable_first() {
    let mut witness = member(Rules::KEPT);
    let step = ask(&mut witness, T0, from(b()), vote(2, 1));
    assert_eq!(step.record.map(|record| record.promised), Some(Word { term: Term(2), to: Some(b()) }));
    let step = ask(&mut witness, T0, from(b()), confirm(2));
    assert_eq!(step.record.map(|record| record.confirmed), Some(Word { term: Term(2), to: Some(b()) }));
    // Said again: nothing new to sync.
    assert_eq!(ask(&mut witness, T0, from(b()), confirm(2)).record, None);
}

#[test]
fn a_refusal_changes_nothing() {
    let mut witness = member(Rules::KEPT);
    say(&mut witness, a(), confirm(4));
    for request in [vote(3, 9), vote(5, 1), confirm(3), pre_vote(2, 1), vote(9, 0), admit(9, true)] {
        let step = ask(&mut witness, T0, from(b()), request);
        assert!(matches!(step.reply, Reply::Refused(_)), "{request:?}: {:?}", step.reply);
        assert_eq!(step.record, None, "{request:?}");
    }
}

#[test]
fn a_restart_forgets_nothing_and_counts_itself() {
    let mut witness = member(Rules::KEPT);
    say(&mut witness, a(), confirm(1));
    let (mut again, record) = Witness::start(T0, *witness.record(), Settings::default(), Rules::KEPT);
    assert_eq!(record.boot, Boot(2));
    assert!(matches!(say(&mut again, b(), vote(2, 1)), Reply::Refused(Refusal::Stale { .. })));
    assert_eq!(say(&mut again, a(), vote(2, 1)), voted(2));
}

#[test]
fn a_blank_witness_grants_nothing_until_a_leader_takes_it_in_and_only_once() {
    let mut witness = blank(Rules::KEPT);
    for request in [vote(2, 1), pre_vote(2, 1), confirm(2)] {
        assert_eq!(say(&mut witness, a(), request), Reply::Refused(Refusal::Blank));
    }
    assert_eq!(say(&mut witness, a(), admit(3, true)), Reply::Admitted { term: Term(3) });
    assert_eq!(witness.record().confirmed, Word { term: Term(3), to: Some(a()) });
    assert_eq!(say(&mut witness, b(), admit(9, true)), Reply::Refused(Refusal::Void), "a second one");
    assert_eq!(witness.record().promised, Word { term: Term(3), to: Some(a()) });

    let mut broken = blank(Rules::without(Rule::BlankGrantsNothing));
    let nobody = Sender { cluster: ClusterId::NIL, ..from(a()) };
    assert_eq!(ask(&mut broken, T0, nobody, vote(2, 1)).reply, voted(2));
}

#[test]
fn a_paired_leader_admits_with_its_own_term_unconfirmed() {
    let witness = member(Rules::KEPT);
    assert_eq!(witness.record().promised, Word { term: Term(1), to: Some(a()) });
    assert_eq!(witness.record().confirmed, Word { term: Term(0), to: Some(a()) });
}

#[test]
fn an_admission_meant_for_another_incarnation_is_refused() {
    let mut witness = blank(Rules::KEPT);
    let mut request = admit(3, true);
    if let Request::Admit { adoption, .. } = &mut request {
        adoption.incarnation = Incarnation(0xf);
    }
    assert_eq!(say(&mut witness, a(), request), Reply::Refused(Refusal::OtherWitness));
    assert_eq!(witness.record().standing, Standing::Blank);
}

#[test]
fn a_replica_of_another_cluster_is_told_so() {
    let mut witness = member(Rules::KEPT);
    let stranger = Sender { cluster: ClusterId(78), ..from(a()) };
    assert_eq!(ask(&mut witness, T0, stranger, vote(2, 1)).reply, Reply::Refused(Refusal::OtherCluster));
}

#[test]
fn leases_and_offers_are_none_of_its_business() {
    let mut witness = member(Rules::KEPT);
    for request in [
        Request::Renew { term: Term(1), sequence: 1, lease: Millis(2000) },
        Request::Joined { term: Term(1), position: Position(0) },
        Request::Release { term: Term(1), position: Position(0) },
    ] {
        assert_eq!(say(&mut witness, a(), request), Reply::Refused(Refusal::NotServed));
    }
}
