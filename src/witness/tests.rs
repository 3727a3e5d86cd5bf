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

// Restored, given up, not validated.

fn greet(witness: &mut Witness, from: Sender, change: impl FnOnce(&mut Hello)) -> Reply {
    let mut hello = hello(witness, from.voter);
    change(&mut hello);
    let call = Call { link: LinkId(99), from, request: Request::Hello(hello), fresh: 0x77_0000_0001 };
    witness.handle(T0, &call).reply
}

#[test]
fn a_witness_that_hears_that_it_said_more_than_it_knows_begins_again_as_blank() {
    for (rules, lost) in [(Rules::KEPT, true), (Rules::without(Rule::LivesAreRemembered), false)] {
        let mut witness = member(rules);
        say(&mut witness, a(), vote(5, 1));
        let reply = greet(&mut witness, from(a()), |hello| {
            hello.remembers.as_mut().expect("they know one another").term = Term(6);
        });
        assert_eq!(reply == Reply::Refused(Refusal::Blank), lost);
        assert_eq!(witness.record().standing == Standing::Blank, lost);
        assert_eq!(witness.id().incarnation != Incarnation(0xe), lost);
        assert_eq!(matches!(say(&mut witness, a(), vote(6, 1)), Reply::Voted { .. }), !lost);
    }
}

#[test]
fn a_replica_that_said_more_before_is_refused_and_told_how_much() {
    let mut witness = member(Rules::KEPT);
    let later = Sender { boot: Boot(4), term: Term(3), ..from(b()) };
    let _ = ask(&mut witness, T0, later, pre_vote(4, 1));
    // Something durable happens, with which what was said is kept.
    say(&mut witness, a(), vote(5, 1));
    let reply = greet(&mut witness, Sender { boot: Boot(3), ..later }, |_| {});
    // Its link is still up: it may just as well be a copy.
    let copied = Refusal::Copied { life: b().node, with: witness.id().node };
    assert_eq!(reply, Reply::Refused(copied));
    let (mut again, _) = Witness::start(T0, *witness.record(), Settings::default(), Rules::KEPT);
    let reply = greet(&mut again, Sender { boot: Boot(3), ..later }, |hello| {
        hello.remembers.as_mut().expect("they know one another").boot = Boot(1);
    });
    let Reply::Refused(Refusal::Restored { boot: Boot(4), .. }) = reply else { panic!("{reply:?}") };
}

#[test]
fn a_life_that_was_given_up_is_turned_away_and_its_link_is_over() {
    for (rules, refused) in [(Rules::KEPT, true), (Rules::without(Rule::BannedStops), false)] {
        let mut witness = member(rules);
        assert_eq!(say(&mut witness, b(), vote(2, 1)), voted(2));
        greet(&mut witness, from(a()), |hello| hello.banned[0] = b().incarnation);
        let call = Call { link: LinkId(0xb), from: from(b()), request: vote(3, 2), fresh: 0 };
        let reply = witness.handle(T0, &call).reply;
        assert_eq!(reply == Reply::Refused(Refusal::Void), refused, "the link is over");
        let reply = greet(&mut witness, from(b()), |_| {});
        assert_eq!(reply == Reply::Refused(Refusal::Banned { life: b().incarnation }), refused);
    }
}

fn strict(rules: Rules) -> Witness {
    let mut witness = member(rules);
    assert_eq!(say(&mut witness, a(), vote(2, 1)), voted(2));
    Witness::start(T0, *witness.record(), Settings { strict_boot: true }, rules).0
}

#[test]
fn with_strict_boot_nothing_is_granted_before_a_leader_has_validated_it_on_its_link() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::ValidatedFirst), true)] {
        for request in [pre_vote(4, 1), vote(4, 1), confirm(4)] {
            let reply = say(&mut strict(rules), a(), request);
            assert_eq!(reply != Reply::Refused(Refusal::Unvalidated), granted);
        }
    }
    let mut witness = strict(Rules::KEPT);
    say(&mut witness, a(), vote(4, 1));
    assert_eq!(witness.standing(), Standing::Unvalidated);
    let nonce = witness.hello(a()).nonce;
    let validate = |term, nonce| Request::Validate { term: Term(term), solo: false, nonce };
    assert_eq!(say(&mut witness, a(), validate(4, nonce + 1)), Reply::Refused(Refusal::Void));
    assert!(matches!(say(&mut witness, a(), validate(1, nonce)), Reply::Refused(Refusal::TermSpent { .. })));
    assert_eq!(say(&mut witness, a(), validate(4, nonce)), Reply::Validated { term: Term(4) });
    // It knows now what the witness of a leader of term 4 has said.
    assert_eq!(witness.record().promised, Word { term: Term(4), to: Some(a()) });
    assert_eq!(witness.record().confirmed, Word { term: Term(3), to: Some(a()) });
    assert_eq!(say(&mut witness, b(), vote(5, 4)), voted(5));
}

#[test]
fn a_validation_raises_the_confirmation_to_just_below_the_leaders_term() {
    // The image is from before a went on alone in term 3, and b, which missed that, holds term 2.
    for (rules, refused) in [(Rules::KEPT, true), (Rules::without(Rule::ValidationRaisesConfirmed), false)] {
        for (solo, confirmed) in [(true, 4), (false, 3)] {
            let mut witness = strict(rules);
            say(&mut witness, a(), pre_vote(4, 1));
            let nonce = witness.hello(a()).nonce;
            say(&mut witness, a(), Request::Validate { term: Term(4), solo, nonce });
            let stale = Refusal::Stale { holds: Term(2), confirmed: Term(confirmed), to: a().node };
            assert_eq!(say(&mut witness, b(), vote(5, 2)) == Reply::Refused(stale), refused);
        }
    }
}

// Leases, without data.

fn leadership(rules: Rules) -> Witness {
    let mut witness = blank(rules);
    let Request::Admit { term, adoption, .. } = admit(1, false) else { unreachable!("it is one") };
    let request =
        Request::Admit { term, kind: Kind::Leadership, adoption, solo: false, longest_lease: Millis(0) };
    assert_eq!(say(&mut witness, a(), request), Reply::Admitted { term: Term(1) });
    witness
}

fn renew(term: u32, lease: u32) -> Request {
    Request::Renew { term: Term(term), sequence: 7, lease: Millis(lease) }
}

#[test]
fn while_a_lease_that_it_promised_runs_a_witness_votes_for_nobody_else() {
    let renewed = |term| Reply::Renewed { term: Term(term), sequence: 7 };
    for (rules, binds) in [(Rules::KEPT, true), (Rules::without(Rule::WitnessLeaseBinds), false)] {
        let mut witness = leadership(rules);
        let step = ask(&mut witness, T0, from(a()), renew(2, 2000));
        assert_eq!((step.reply, step.record.map(|r| r.longest_lease)), (renewed(2), Some(Millis(2000))));
        let inside = T0 + Duration::from_millis(2019);
        for request in [pre_vote(3, 1), vote(3, 1)] {
            let reply = ask(&mut witness, inside, from(b()), request).reply;
            assert_eq!(matches!(reply, Reply::Refused(Refusal::LeaseRuns { .. })), binds, "{reply:?}");
        }
    }
    let mut witness = leadership(Rules::KEPT);
    say(&mut witness, a(), renew(2, 2000));
    assert_eq!(say(&mut witness, b(), renew(1, 2000)), Reply::Refused(Refusal::TermSpent { term: Term(3) }));
    let after = T0 + Duration::from_millis(2021);
    assert_eq!(ask(&mut witness, after, from(b()), vote(3, 1)).reply, voted(3));
    // Given back, it binds no longer.
    say(&mut witness, b(), renew(3, 2000));
    let release = Request::Release { term: Term(3), position: Position(0) };
    assert_eq!(say(&mut witness, b(), release), Reply::Released { term: Term(3) });
    assert_eq!(say(&mut witness, a(), vote(4, 1)), voted(4));
}

#[test]
fn a_witness_that_restarts_waits_for_the_longest_lease_that_it_may_have_promised() {
    for (rules, waits) in [(Rules::KEPT, true), (Rules::without(Rule::WitnessHoldsOff), false)] {
        let mut witness = leadership(rules);
        say(&mut witness, a(), renew(2, 5000));
        say(&mut witness, a(), renew(2, 1000));
        assert_eq!(witness.record().longest_lease, Millis(5000), "the longer one still runs");
        let (mut again, _) = Witness::start(T0, *witness.record(), Settings::default(), rules);
        let inside = T0 + Duration::from_millis(5049);
        let reply = ask(&mut again, inside, from(b()), vote(3, 1)).reply;
        assert_eq!(matches!(reply, Reply::Refused(Refusal::HoldOff { .. })), waits, "{reply:?}");
        // The leader may renew meanwhile.
        let reply = ask(&mut again, inside, from(a()), renew(if waits { 2 } else { 4 }, 1000)).reply;
        assert!(matches!(reply, Reply::Renewed { .. }), "{reply:?}");
    }
    let mut witness = leadership(Rules::KEPT);
    say(&mut witness, a(), renew(2, 5000));
    let later = T0 + Duration::from_secs(6);
    let _ = ask(&mut witness, later, from(a()), renew(2, 1000));
    assert_eq!(witness.record().longest_lease, Millis(1000), "nothing longer runs any more");
}

#[test]
fn a_witness_of_a_replicated_cluster_promises_no_leases() {
    let mut witness = member(Rules::KEPT);
    assert_eq!(say(&mut witness, a(), renew(2, 2000)), Reply::Refused(Refusal::NotServed));
}
