//! The rules of §4 to §6 at a replica. Each test also shows what happens without its rule.

use super::*;

const D: Duration = Duration::from_secs(2);
const CLUSTER: ClusterId = ClusterId(77);
const PEER: LinkId = LinkId(1);
const WITNESS: LinkId = LinkId(2);

fn voter(name: &str, life: u128) -> VoterId {
    VoterId { node: name.parse().expect("a valid name"), incarnation: Incarnation(life) }
}

fn a() -> VoterId {
    voter("a", 1)
}

fn b() -> VoterId {
    voter("b", 2)
}

fn w() -> VoterId {
    voter("w", 9)
}

fn at(millis: u64) -> Moment {
    Moment((100_000 + millis) * 1_000_000)
}

fn sender(voter: VoterId, term: u32) -> Sender {
    Sender { cluster: CLUSTER, voter, boot: Boot(1), term: Term(term) }
}

fn blank() -> ReplicaRecord {
    Replica::blank(a().node, "demo".parse().expect("a valid name"), Kind::Replicated, a().incarnation)
}

/// A member of term `term` that holds `holds`.
fn member(term: u32, holds: u32) -> ReplicaRecord {
    ReplicaRecord {
        cluster: CLUSTER,
        standing: Standing::Member,
        term: Term(term),
        holds: Term(holds),
        adoption: Adoption { term: Term(1), ordinal: 0, incarnation: w().incarnation },
        ..blank()
    }
}

fn sole(term: u32) -> ReplicaRecord {
    ReplicaRecord { sole: true, voted_for: Some(a()), ..member(term, term) }
}

fn hello(part: Part, standing: Standing) -> Hello {
    Hello {
        name: blank().name,
        kind: Kind::Replicated,
        part,
        standing,
        holds: Term(1),
        position: Position(0),
        sole: false,
        leads: false,
        adoption: Adoption::NONE,
        ratchet: Ratchet::default(),
        remembers: None,
        nonce: 0,
    }
}

fn start(record: ReplicaRecord, rules: Rules) -> Replica {
    Replica::start(at(0), record, Position(10), Settings::for_lease(D), rules).0
}

fn link_peer(
    replica: &mut Replica,
    now: Moment,
    id: LinkId,
    who: VoterId,
    standing: Standing,
    term: u32,
) -> Step {
    let request = Request::Hello(hello(Part::Replica, standing));
    replica.handle(now, Input::Asked { link: id, from: sender(who, term), request })
}

fn link_witness(replica: &mut Replica, now: Moment, who: VoterId) -> Step {
    let reply = Reply::Hello(hello(Part::Witness, Standing::Member));
    replica.handle(now, Input::Answered { link: WITNESS, part: Part::Witness, from: sender(who, 1), reply })
}

fn asked(replica: &mut Replica, now: Moment, term: u32, request: Request) -> Step {
    replica.handle(now, Input::Asked { link: PEER, from: sender(b(), term), request })
}

fn told(replica: &mut Replica, now: Moment, part: Part, reply: Reply) -> Step {
    let (link, who) = if part == Part::Replica { (PEER, b()) } else { (WITNESS, w()) };
    let term = replica.ballot().record().term.0;
    replica.handle(now, Input::Answered { link, part, from: sender(who, term), reply })
}

fn vote(term: u32, holds: u32, position: u64) -> Request {
    Request::Vote(Candidacy { term: Term(term), holds: Term(holds), position: Position(position) })
}

fn voted(step: &Step) -> bool {
    matches!(step.outputs.answer, Some(Reply::Voted { .. }))
}

fn renew(term: u32) -> Request {
    Request::Renew { term: Term(term), sequence: 1, lease: Millis::ceil(D) }
}

fn offer(term: u32, position: u64, admits: Option<Incarnation>) -> Request {
    let adoption = Adoption { term: Term(1), ordinal: 0, incarnation: w().incarnation };
    Request::Offer { term: Term(term), position: Position(position), adoption, admits }
}

fn asks_for(step: &Step, part: Part) -> Vec<Request> {
    step.outputs.asks.iter().filter(|ask| ask.part == part).map(|ask| ask.request).collect()
}

/// Elected by the witness to `term` (which follows the one it was in), with both linked.
fn leader(rules: Rules) -> (Replica, Moment) {
    let mut replica = start(member(4, 4), rules);
    let now = at(3000);
    let _ = link_peer(&mut replica, now, PEER, b(), Standing::Member, 4);
    let _ = link_witness(&mut replica, now, w());
    let _ = told(&mut replica, now, Part::Witness, Reply::PreVoted { term: Term(5) });
    let _ = told(&mut replica, now, Part::Witness, Reply::Voted { term: Term(5) });
    assert_eq!(replica.ballot().right(), Some(Right::Blocked));
    (replica, now)
}

fn paired(rules: Rules) -> (Replica, Moment) {
    let (mut replica, now) = leader(rules);
    let _ = replica.handle(now, Input::Offer(Position(11)));
    let joined = Request::Joined { term: Term(5), position: Position(11) };
    let step = asked(&mut replica, now, 5, joined);
    assert_eq!(step.outputs.answer, Some(Reply::Settled { term: Term(5) }));
    (replica, now)
}

/// Alone in term 5, its peer linked and near.
fn alone(rules: Rules) -> (Replica, Moment) {
    let (mut replica, now) = leader(rules);
    let now = now + D;
    let step = replica.handle(now, Input::Tick);
    assert_eq!(asks_for(&step, Part::Witness).len(), 1, "it asks for the confirmation");
    let _ = told(&mut replica, now, Part::Witness, Reply::Confirmed { term: Term(5) });
    assert_eq!(replica.ballot().right(), Some(Right::Solo));
    (replica, now)
}

#[test]
fn a_candidate_that_is_behind_gets_no_vote() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::PeerNotBehind), true)] {
        for (holds, position) in [(3, 99), (4, 9)] {
            let mut replica = start(member(4, 4), rules);
            let _ = link_peer(&mut replica, at(2500), PEER, b(), Standing::Member, 4);
            assert_eq!(voted(&asked(&mut replica, at(2500), 5, vote(5, holds, position))), granted);
        }
    }
}

#[test]
fn a_vote_is_recorded_with_the_reply_and_never_changed() {
    let mut replica = start(member(4, 4), Rules::KEPT);
    let _ = link_peer(&mut replica, at(2500), PEER, b(), Standing::Member, 4);
    let step = asked(&mut replica, at(2500), 5, vote(5, 4, 10));
    assert!(voted(&step));
    let record = step.record.expect("recorded");
    assert_eq!((record.term, record.voted_for, record.holds), (Term(5), Some(b()), Term(4)));
    assert!(voted(&asked(&mut replica, at(2500), 5, vote(5, 4, 10))), "asking again is harmless");
    assert!(!voted(&asked(&mut replica, at(2500), 5, vote(4, 4, 10))), "never in a lower term");
}

#[test]
fn while_its_promise_runs_a_follower_neither_votes_nor_stands() {
    for (rules, bound) in [(Rules::KEPT, true), (Rules::without(Rule::PromiseBindsFollower), false)] {
        let mut replica = start(member(4, 4), rules);
        let _ = link_witness(&mut replica, at(2500), w());
        let _ = link_peer(&mut replica, at(3000), PEER, b(), Standing::Member, 4);
        let step = asked(&mut replica, at(3000), 4, renew(4));
        assert!(matches!(step.outputs.answer, Some(Reply::Renewed { .. })));
        let voted_early = voted(&asked(&mut replica, at(3000) + D, 5, vote(5, 4, 10)));
        assert_eq!(voted_early, !bound);
        if bound {
            let stands = replica.handle(at(3000) + D, Input::Tick);
            assert!(stands.outputs.asks.is_empty());
            let over = at(3000) + kept(D);
            assert!(voted(&asked(&mut replica, over, 5, vote(5, 4, 10))), "and then it may");
        }
    }
}

#[test]
fn a_replica_that_restarted_waits_before_it_votes_or_stands() {
    for (rules, waits) in [(Rules::KEPT, true), (Rules::without(Rule::HoldOffAfterRestart), false)] {
        let mut replica = start(member(4, 4), rules);
        let step = link_witness(&mut replica, at(1000), w());
        assert_eq!(asks_for(&step, Part::Witness).is_empty(), waits, "stands");
        let mut replica = start(member(4, 4), rules);
        let _ = link_peer(&mut replica, at(1000), PEER, b(), Standing::Member, 4);
        assert_eq!(voted(&asked(&mut replica, at(1000), 5, vote(5, 4, 10))), !waits);
    }
}

#[test]
fn a_replica_that_restarted_waits_for_the_longest_lease_that_it_may_have_promised() {
    let record = ReplicaRecord { longest_lease: Millis(9000), ..member(4, 4) };
    let mut replica = start(record, Rules::KEPT);
    let _ = link_peer(&mut replica, at(8000), PEER, b(), Standing::Member, 4);
    assert!(!voted(&asked(&mut replica, at(8000), 5, vote(5, 4, 10))));
    assert!(voted(&asked(&mut replica, at(9200), 5, vote(5, 4, 10))));
}

#[test]
fn what_forbids_granting_forbids_standing() {
    for (rules, stands) in [(Rules::KEPT, false), (Rules::without(Rule::StandingIsGranting), true)] {
        let unfit = [
            blank(),
            member(4, 0),
            ReplicaRecord { standing: Standing::Resyncing(b().incarnation), ..member(4, 0) },
        ];
        for record in unfit {
            assert_eq!(start(record, rules).ballot().may_stand().is_ok(), stands, "{:?}", record.standing);
        }
    }
}

#[test]
fn a_pre_vote_comes_first_and_raises_nothing() {
    for (rules, raises) in [(Rules::KEPT, false), (Rules::without(Rule::PreVoteFirst), true)] {
        let mut replica = start(member(4, 4), rules);
        let step = link_witness(&mut replica, at(3000), w());
        let asks = asks_for(&step, Part::Witness);
        assert_eq!(matches!(asks[..], [Request::PreVote(_)]), !raises);
        assert_eq!(step.record.is_some(), raises);
    }
}

#[test]
fn holds_rises_by_joining_and_settling_and_never_by_standing() {
    for (rules, holds) in [(Rules::KEPT, Term(4)), (Rules::without(Rule::HoldsByJoiningOnly), Term(5))] {
        let (replica, _) = leader(rules);
        assert_eq!(replica.ballot().record().holds, holds);
    }
    let (replica, _) = paired(Rules::KEPT);
    assert_eq!(replica.ballot().record().holds, Term(5));
}

#[test]
fn sole_is_set_by_the_confirmation_and_not_by_the_election() {
    for (rules, early) in [(Rules::KEPT, false), (Rules::without(Rule::SoleAfterConfirmation), true)] {
        let mut replica = start(member(4, 4), rules);
        let _ = link_witness(&mut replica, at(3000), w());
        let _ = told(&mut replica, at(3000), Part::Witness, Reply::PreVoted { term: Term(5) });
        let _ = told(&mut replica, at(3000), Part::Witness, Reply::Voted { term: Term(5) });
        assert_eq!(replica.ballot().record().sole, early);
    }
    let (replica, _) = alone(Rules::KEPT);
    let record = replica.ballot().record();
    assert!(record.sole && record.holds == Term(5));
}

#[test]
fn a_confirmed_term_is_never_paired_again() {
    for (rules, right) in
        [(Rules::KEPT, Right::Solo), (Rules::without(Rule::ConfirmedNeverPaired), Right::Paired)]
    {
        let (mut replica, now) = leader(rules);
        let _ = replica.handle(now, Input::Offer(Position(11)));
        let now = now + D;
        let _ = replica.handle(now, Input::Tick);
        let _ = told(&mut replica, now, Part::Witness, Reply::Confirmed { term: Term(5) });
        let joined = Request::Joined { term: Term(5), position: Position(11) };
        let _ = asked(&mut replica, now, 5, joined);
        assert_eq!(replica.ballot().right(), Some(right));
    }
}

#[test]
fn a_sole_leader_opens_a_new_term_and_gives_sole_up_in_one_record() {
    for (rules, opened) in [(Rules::KEPT, true), (Rules::without(Rule::OpeningIsAtomic), false)] {
        let (mut replica, now) = alone(rules);
        let now = now + D / 4;
        let _ = replica.handle(now, Input::Tick);
        let lease = replica.lease.sending(now, D);
        let _ = told(&mut replica, now, Part::Replica, Reply::Renewed { term: Term(5), sequence: lease });
        let step = replica.handle(now, Input::Offer(Position(20)));
        assert_eq!(step.outputs.taken, Ok(()));
        let record = replica.ballot().record();
        assert_eq!((record.term == Term(6), record.sole), (opened, !opened));
        let offers = asks_for(&step, Part::Replica);
        assert!(offers.iter().any(|request| matches!(request, Request::Offer { .. })));
        assert_eq!(step.record.is_some(), opened, "the record is synced before the offer leaves");
    }
}

#[test]
fn no_term_is_opened_for_a_peer_that_has_been_silent() {
    let (mut replica, now) = alone(Rules::KEPT);
    let lease = replica.lease.sending(now, D);
    replica.lease.answered(now, lease, D, Rules::KEPT);
    let step = replica.handle(now, Input::Offer(Position(20)));
    assert!(step.outputs.taken.is_err() && replica.ballot().record().sole);
}

#[test]
fn a_sole_replica_votes_for_nobody_and_raises_nothing() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::SoleRefusesVotes), true)] {
        let mut replica = start(sole(4), rules);
        let _ = link_peer(&mut replica, at(2500), PEER, b(), Standing::Member, 3);
        let before = replica.ballot().record().term;
        let step = asked(&mut replica, at(2500), 9, vote(before.0 + 1, before.0, 99));
        assert_eq!(voted(&step), granted);
    }
}

#[test]
fn a_sole_replica_resumes_in_a_new_term_after_it_has_asked_for_a_while() {
    for (rules, term) in [(Rules::KEPT, Term(5)), (Rules::without(Rule::ResumeInNewTerm), Term(4))] {
        let mut replica = start(sole(4), rules);
        let _ = replica.handle(at(1000), Input::Tick);
        assert_eq!(replica.ballot().right(), None, "somebody might tell it that it was left behind");
        let _ = replica.handle(at(0) + D, Input::Tick);
        assert_eq!((replica.ballot().right(), replica.ballot().record().term), (Some(Right::Solo), term));
    }
}

#[test]
fn a_sole_leader_rises_above_a_peer_that_has_reached_a_higher_term() {
    let (mut replica, now) = alone(Rules::KEPT);
    let _ = link_peer(&mut replica, now, PEER, b(), Standing::Member, 8);
    let record = replica.ballot().record();
    assert_eq!((record.term, record.holds, record.sole), (Term(9), Term(9), true));
    assert_eq!(replica.ballot().right(), Some(Right::Solo));
}

#[test]
fn a_destructive_resync_gives_up_holds_first() {
    for (rules, holds) in [(Rules::KEPT, Term(0)), (Rules::without(Rule::ResyncClearsHolds), Term(4))] {
        let mut replica = start(member(4, 4), rules);
        let _ = link_peer(&mut replica, at(2500), PEER, b(), Standing::Member, 5);
        let _ = asked(&mut replica, at(2500), 5, renew(5));
        let step = replica.handle(at(2500), Input::Resync);
        assert_eq!((step.outputs.taken, replica.ballot().record().holds), (Ok(()), holds));
    }
}

#[test]
fn a_resync_needs_the_live_link_of_a_leader() {
    let mut replica = start(member(4, 4), Rules::KEPT);
    assert!(replica.handle(at(2500), Input::Resync).outputs.taken.is_err());
    let _ = link_peer(&mut replica, at(2500), PEER, b(), Standing::Member, 5);
    let _ = asked(&mut replica, at(2500), 5, renew(5));
    let _ = replica.handle(at(2500), Input::LinkDown(PEER));
    assert!(replica.handle(at(2500), Input::Resync).outputs.taken.is_err());
    assert_eq!(replica.ballot().record().holds, Term(4));
}

#[test]
fn what_comes_from_an_earlier_link_is_void() {
    for (rules, counts) in [(Rules::KEPT, false), (Rules::without(Rule::EarlierLinksAreVoid), true)] {
        let (mut replica, now) = leader(rules);
        let _ = replica.handle(now, Input::Offer(Position(11)));
        let _ = link_peer(&mut replica, now, LinkId(7), b(), Standing::Member, 4);
        let joined = Request::Joined { term: Term(5), position: Position(11) };
        let _ = asked(&mut replica, now, 5, joined);
        assert_eq!(replica.ballot().right() == Some(Right::Paired), counts);
    }
}

#[test]
fn the_words_of_another_life_of_the_witness_do_not_count() {
    for (rules, elected) in [(Rules::KEPT, false), (Rules::without(Rule::OneWitnessIncarnation), true)] {
        let mut replica = start(member(4, 4), rules);
        let other = voter("w", 99);
        let _ = link_witness(&mut replica, at(3000), other);
        for reply in [Reply::PreVoted { term: Term(5) }, Reply::Voted { term: Term(5) }] {
            let from = sender(other, 4);
            let input = Input::Answered { link: WITNESS, part: Part::Witness, from, reply };
            let _ = replica.handle(at(3000), input);
        }
        assert_eq!(replica.ballot().right().is_some(), elected);
    }
}

#[test]
fn a_blank_peer_is_taken_in_only_by_a_leader_that_was_sole_when_it_opened_the_term() {
    for (rules, offers) in [(Rules::KEPT, false), (Rules::without(Rule::BlankJoinsSoleOnly), true)] {
        let (mut replica, now) = leader(rules);
        let _ = link_peer(&mut replica, now, LinkId(7), voter("b", 33), Standing::Blank, 0);
        assert_eq!(replica.handle(now, Input::Offer(Position(11))).outputs.taken.is_ok(), offers);
    }
}

#[test]
fn a_blank_replica_joins_only_what_was_opened_for_its_own_life() {
    let mut replica = start(blank(), Rules::KEPT);
    let _ = link_peer(&mut replica, at(100), PEER, b(), Standing::Member, 5);
    for admits in [None, Some(Incarnation(55))] {
        let step = asked(&mut replica, at(100), 5, offer(5, 3, admits));
        assert_eq!(step.outputs.answer, Some(Reply::Refused(Refusal::Blank)));
    }
    let _ = asked(&mut replica, at(100), 5, offer(5, 3, Some(a().incarnation)));
    let record = replica.handle(at(100), Input::Join(Term(5))).record.expect("joining is recorded");
    assert_eq!((record.standing, record.term, record.holds), (Standing::Member, Term(5), Term(5)));
    assert_eq!((record.cluster, record.adoption.incarnation), (CLUSTER, w().incarnation));
}

#[test]
fn a_blank_replica_grants_nothing() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::BlankGrantsNothing), true)] {
        let mut replica = start(ReplicaRecord { cluster: CLUSTER, ..blank() }, rules);
        let _ = link_peer(&mut replica, at(2500), PEER, b(), Standing::Member, 4);
        assert_eq!(voted(&asked(&mut replica, at(2500), 5, vote(5, 4, 99))), granted);
    }
}

#[test]
fn nobody_joins_before_everything_that_was_offered_is_durable() {
    let mut replica = start(member(4, 4), Rules::KEPT);
    let _ = link_peer(&mut replica, at(2500), PEER, b(), Standing::Member, 5);
    let _ = asked(&mut replica, at(2500), 5, offer(5, 12, None));
    assert!(replica.handle(at(2500), Input::Join(Term(5))).outputs.taken.is_err());
    let _ = replica.handle(at(2500), Input::Durable(Position(12)));
    let step = replica.handle(at(2500), Input::Join(Term(5)));
    assert_eq!(asks_for(&step, Part::Replica), [Request::Joined { term: Term(5), position: Position(12) }]);
}

#[test]
fn an_offer_that_was_overtaken_changes_nothing() {
    let mut replica = start(member(4, 4), Rules::KEPT);
    let _ = link_peer(&mut replica, at(2500), PEER, b(), Standing::Member, 5);
    let _ = asked(&mut replica, at(2500), 5, offer(5, 12, None));
    let _ = asked(&mut replica, at(2500), 5, offer(5, 11, None));
    let Role::Follower { offer: Some(offer), .. } = replica.ballot().role() else {
        panic!("it was offered something");
    };
    assert_eq!(offer.position, Position(12));
}

#[test]
fn a_leader_whose_lease_runs_votes_for_nobody() {
    for (rules, granted) in [(Rules::KEPT, false), (Rules::without(Rule::ActingLeaderRefusesVotes), true)] {
        let (mut replica, now) = paired(rules);
        let sequence = replica.lease.sending(now, D);
        let _ = told(&mut replica, now, Part::Replica, Reply::Renewed { term: Term(5), sequence });
        let step = asked(&mut replica, now, 5, vote(6, 5, 99));
        assert_eq!(voted(&step), granted);
    }
}

#[test]
fn the_lease_counts_from_the_sending_of_the_renewal() {
    for (rules, acts) in [(Rules::KEPT, false), (Rules::without(Rule::LeaseFromSending), true)] {
        let (mut replica, now) = paired(rules);
        let sequence = replica.lease.sending(now, D);
        let _ = told(&mut replica, now + D / 2, Part::Replica, Reply::Renewed { term: Term(5), sequence });
        assert!(replica.acts_until(now + D / 2).is_some());
        assert_eq!(replica.acts_until(now + D).is_some(), acts);
    }
}

#[test]
fn losing_the_link_blocks_a_paired_leader() {
    let (mut replica, now) = paired(Rules::KEPT);
    let step = replica.handle(now, Input::LinkDown(PEER));
    assert_eq!(step.outputs.view.authority().map(|(_, right, _)| right), Some(Right::Blocked));
}

#[test]
fn a_leader_that_resigns_stops_acting_and_gives_its_lease_back() {
    let (mut replica, now) = paired(Rules::KEPT);
    let sequence = replica.lease.sending(now, D);
    let _ = told(&mut replica, now, Part::Replica, Reply::Renewed { term: Term(5), sequence });
    let step = replica.handle(now, Input::Resign);
    assert_eq!(step.outputs.view.authority().and_then(|(_, _, acts)| acts), None);
    let step = replica.handle(now, Input::Stopped);
    assert_eq!(asks_for(&step, Part::Replica), [Request::Release { term: Term(5), position: Position(11) }]);
    assert!(voted(&asked(&mut replica, now, 6, vote(6, 5, 99))), "and the peer is elected at once");
}

#[test]
fn a_sole_leader_hands_over_to_nobody() {
    let (mut replica, now) = alone(Rules::KEPT);
    assert_eq!(replica.handle(now, Input::Resign).outputs.taken, Err(Refusal::Sole));
}

#[test]
fn a_stall_is_answered_by_going_on_alone() {
    let (mut replica, now) = paired(Rules::KEPT);
    let step = replica.handle(now, Input::Stalled);
    assert!(matches!(asks_for(&step, Part::Witness)[..], [Request::Confirm { term: Term(5), .. }]));
}

#[test]
fn a_confirmation_that_was_asked_for_is_asked_for_again_on_the_next_link() {
    let (mut replica, now) = paired(Rules::KEPT);
    let _ = replica.handle(now, Input::Stalled);
    let _ = replica.handle(now, Input::LinkDown(WITNESS));
    let step = link_witness(&mut replica, now, w());
    assert!(matches!(asks_for(&step, Part::Witness)[..], [Request::Confirm { .. }]));
}

#[test]
fn a_blank_peer_is_taken_in_only_with_the_witness_at_hand() {
    let (mut replica, now) = alone(Rules::KEPT);
    let _ = link_peer(&mut replica, now, LinkId(7), voter("b", 33), Standing::Blank, 0);
    let now = now + D / 8;
    let sequence = replica.lease.sending(now, D);
    let from = sender(voter("b", 33), 0);
    let reply = Reply::Renewed { term: Term(5), sequence };
    let _ = replica.handle(now, Input::Answered { link: LinkId(7), part: Part::Replica, from, reply });
    let mut without = replica.clone();
    let _ = without.handle(now, Input::LinkDown(WITNESS));
    let step = without.handle(now, Input::Offer(Position(11)));
    assert_eq!(step.outputs.taken, Err(Refusal::OtherWitness));
    assert_eq!(replica.handle(now, Input::Offer(Position(11))).outputs.taken, Ok(()));
}
