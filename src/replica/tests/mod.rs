//! The rules of a replica, one by one. Each fails when its rule is broken, and where that can be seen in one step the
//! test shows it; the storms in `tests/simulation` show the rest.

#![allow(unused_must_use, reason = "a test looks at the step that it is about")]

mod leadership;
mod lost;

use std::time::Duration;

use super::*;
use crate::message::{Candidacy, Hello, Ratchet, Remembered, Sender};
use crate::rules::Rule;
use crate::time::Moment;

const D: Duration = Duration::from_secs(2);
const PEER: LinkId = LinkId(1);
const WITNESS: LinkId = LinkId(2);
const CLUSTER: ClusterId = ClusterId(77);

fn voter(name: &str, life: u128) -> VoterId {
    VoterId { node: name.parse().expect("a name"), incarnation: Incarnation(life) }
}

const SEED: u128 = 1;

fn at(seconds: u64) -> Moment {
    Moment(seconds * 1_000_000_000)
}

/// A full member `a` that follows `b` in term 5 and recognises the witness.
fn member() -> ReplicaRecord {
    let name = "orders".parse().expect("a name");
    let me = voter("a", 0xa);
    ReplicaRecord {
        cluster: CLUSTER,
        standing: Standing::Member,
        term: Term(5),
        voted_for: Some(voter("b", 0xb)),
        holds: Term(5),
        adoption: Adoption { term: Term(1), ordinal: 0, incarnation: Incarnation(0xe) },
        ..Replica::blank(me.node, name, Kind::Replicated, me.incarnation)
    }
}

fn sole() -> ReplicaRecord {
    ReplicaRecord { sole: true, voted_for: Some(voter("a", 0xa)), ..member() }
}

struct World {
    replica: Replica,
    now: Moment,
}

impl World {
    fn new(record: ReplicaRecord, rules: Rules) -> World {
        let now = at(100);
        let (replica, step) = Replica::start(now, record, Position(10), Settings::for_lease(D), SEED, rules);
        assert_eq!(step.record.map(|record| record.boot), Some(Boot(1)), "each start is counted durably");
        World { replica, now }
    }

    /// Started long ago: no hold-off runs any more, and nobody has been linked yet.
    fn settled(record: ReplicaRecord, rules: Rules) -> World {
        let mut world = World::new(record, rules);
        world.pass(Duration::from_secs(10));
        world
    }

    fn pass(&mut self, span: Duration) -> Step {
        self.now = self.now + span;
        self.tell(Input::Tick)
    }

    fn tell(&mut self, input: Input) -> Step {
        self.replica.handle(self.now, input)
    }

    fn peer_says(&mut self, term: u32, request: Request) -> Reply {
        let from = Sender { cluster: CLUSTER, voter: voter("b", 0xb), boot: Boot(1), term: Term(term) };
        let step = self.tell(Input::Asked { link: PEER, from, request });
        step.outputs.answer.expect("every request is answered")
    }

    fn hears(&mut self, part: Part, term: u32, reply: Reply) -> Step {
        let (link, voter) = match part {
            Part::Replica => (PEER, voter("b", 0xb)),
            Part::Witness => (WITNESS, voter("w", 0xe)),
        };
        let from = Sender { cluster: CLUSTER, voter, boot: Boot(1), term: Term(term) };
        self.tell(Input::Answered { link, part, from, reply })
    }

    /// The answer to a greeting of the replica, by one that remembers of it what it said last.
    fn hello(&self, part: Part, standing: Standing) -> Hello {
        let own = self.replica.ballot().hello(part).remembers;
        let current = own.map_or(0, |known| known.ratchet.current);
        let sender = self.replica.ballot().sender();
        Hello {
            name: "orders".parse().expect("a name"),
            kind: Kind::Replicated,
            part,
            standing,
            holds: Term(5),
            position: Position(10),
            sole: false,
            leads: false,
            adoption: Adoption::NONE,
            remembers: Some(Remembered {
                voter: sender.voter,
                boot: sender.boot,
                term: sender.term,
                took_part: Term::ZERO,
                position: Position(0),
                ratchet: Ratchet { current, pending: current + (1 << 32) + 7 },
            }),
            nonce: current + 8,
            banned: [Incarnation::NIL; BANNED_MAX],
        }
    }

    fn link_peer(&mut self, term: u32, standing: Standing) -> Step {
        self.hears(Part::Replica, term, Reply::Hello(self.hello(Part::Replica, standing)))
    }

    fn link_witness(&mut self) -> Step {
        self.hears(Part::Witness, 5, Reply::Hello(self.hello(Part::Witness, Standing::Member)))
    }

    /// Leads term 6 by its peer's vote, blocked, with both linked.
    fn leader(rules: Rules) -> World {
        let mut world = World::settled(member(), rules);
        world.link_peer(5, Standing::Member);
        world.hears(Part::Replica, 5, Reply::PreVoted { term: Term(6) });
        world.hears(Part::Replica, 6, Reply::Voted { term: Term(6) });
        world.link_witness();
        assert!(world.replica.ballot().right().is_some(), "it leads");
        world
    }

    fn paired(rules: Rules) -> World {
        let mut world = World::leader(rules);
        world.tell(Input::Offer(Position(10)));
        let joined = Request::Joined { term: Term(6), position: Position(10) };
        assert_eq!(world.peer_says(6, joined), Reply::Settled { term: Term(6) });
        world
    }

    fn right(&self) -> Option<Right> {
        self.replica.ballot().right()
    }

    fn record(&self) -> &ReplicaRecord {
        self.replica.ballot().record()
    }
}

fn vote(term: u32, holds: u32, position: u64) -> Request {
    Request::Vote(Candidacy { term: Term(term), holds: Term(holds), position: Position(position) })
}

fn renew(term: u32) -> Request {
    Request::Renew { term: Term(term), sequence: 1, lease: Millis(2000) }
}

/// What it asks, beside the words with which a link begins.
fn asked(step: &Step) -> Vec<Request> {
    let requests = step.outputs.asks.iter().map(|ask| ask.request);
    requests.filter(|request| *request != Request::Linked).collect()
}

#[test]
fn whoever_dialled_says_at_once_that_it_keeps_what_the_greeting_changed() {
    let mut world = World::settled(member(), Rules::KEPT);
    let step = world.link_witness();
    assert_eq!(step.outputs.asks[0].request, Request::Linked);
    assert!(step.record.is_some_and(|record| record.remembers[1].is_some()), "it is durable before");
    assert_eq!(world.peer_says(5, Request::Linked), Reply::Refused(Refusal::Void), "not without a greeting");
}

#[test]
fn a_vote_goes_to_whoever_is_not_behind_in_holds_and_then_in_position() {
    let behind = Reply::Refused(Refusal::Behind { holds: Term(5), position: Position(10) });
    for (holds, position, granted) in [(4, 99, false), (5, 9, false), (5, 10, true), (6, 0, true)] {
        let mut world = World::settled(member(), Rules::KEPT);
        world.link_peer(5, Standing::Member);
        let reply = world.peer_says(5, vote(7, holds, position));
        let expected = if granted { Reply::Voted { term: Term(7) } } else { behind.clone() };
        assert_eq!(reply, expected, "holds {holds} position {position}");
    }
    let mut broken = World::settled(member(), Rules::without(Rule::PeerNotBehind));
    broken.link_peer(5, Standing::Member);
    assert_eq!(broken.peer_says(5, vote(7, 4, 0)), Reply::Voted { term: Term(7) });
}

#[test]
fn a_vote_is_never_changed_and_may_be_said_again() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    assert_eq!(world.peer_says(5, vote(7, 5, 10)), Reply::Voted { term: Term(7) });
    assert_eq!(world.peer_says(7, vote(7, 5, 10)), Reply::Voted { term: Term(7) });
    assert_eq!(world.peer_says(7, vote(6, 5, 10)), Reply::Refused(Refusal::TermSpent { term: Term(8) }));
}

#[test]
fn while_its_promise_runs_a_follower_neither_votes_nor_stands() {
    for rules in [Rules::KEPT, Rules::without(Rule::PromiseBindsFollower)] {
        let mut world = World::settled(member(), rules);
        world.link_peer(5, Standing::Member);
        world.peer_says(5, renew(5));
        let kept = rules == Rules::KEPT;
        let refused = matches!(world.peer_says(5, vote(7, 5, 10)), Reply::Refused(Refusal::LeaseRuns { .. }));
        assert_eq!(refused, kept);
    }
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    world.link_witness();
    world.peer_says(5, renew(5));
    let step = world.pass(kept(D) - Duration::from_millis(1));
    assert!(asked(&step).is_empty(), "one millisecond early: {:?}", step.outputs.asks);
    let step = world.pass(Duration::from_millis(1));
    assert!(asked(&step).iter().any(|request| matches!(request, Request::PreVote(_))));
}

#[test]
fn after_a_start_it_neither_votes_nor_stands_for_a_lease() {
    for rules in [Rules::KEPT, Rules::without(Rule::HoldOffAfterRestart)] {
        let mut world = World::new(member(), rules);
        world.link_peer(5, Standing::Member);
        let refused = matches!(world.peer_says(5, vote(7, 5, 10)), Reply::Refused(Refusal::HoldOff { .. }));
        assert_eq!(refused, rules == Rules::KEPT);
    }
    let mut world = World::new(member(), Rules::KEPT);
    assert!(asked(&world.link_witness()).is_empty());
    assert!(!asked(&world.pass(kept(D))).is_empty());
}

#[test]
fn the_hold_off_is_as_long_as_the_longest_lease_that_an_earlier_life_may_have_promised() {
    let record = ReplicaRecord { longest_lease: Millis(60_000), ..member() };
    let mut world = World::new(record, Rules::KEPT);
    world.link_witness();
    assert!(asked(&world.pass(Duration::from_secs(60))).is_empty());
    assert!(!asked(&world.pass(Duration::from_secs(1))).is_empty());
}

#[test]
fn a_longer_lease_is_on_record_before_it_is_promised() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    let from = Sender { cluster: CLUSTER, voter: voter("b", 0xb), boot: Boot(1), term: Term(5) };
    let request = Request::Renew { term: Term(5), sequence: 1, lease: Millis(9000) };
    let step = world.tell(Input::Asked { link: PEER, from, request });
    assert_eq!(step.record.map(|record| record.longest_lease), Some(Millis(9000)));
}

#[test]
fn a_pre_vote_goes_first_and_raises_no_term() {
    let mut world = World::settled(member(), Rules::KEPT);
    let step = world.link_witness();
    assert!(matches!(asked(&step)[..], [Request::PreVote(Candidacy { term: Term(6), .. })]), "{step:?}");
    assert_eq!(world.record().term, Term(5));
    let step = world.hears(Part::Witness, 5, Reply::PreVoted { term: Term(6) });
    assert!(matches!(asked(&step)[..], [Request::Vote(Candidacy { term: Term(6), holds: Term(5), .. })]));
    assert_eq!(step.record.map(|record| record.term), Some(Term(6)), "durable before the question leaves");

    let mut broken = World::settled(member(), Rules::without(Rule::PreVoteFirst));
    broken.link_witness();
    assert_eq!(broken.record().term, Term(6));
}

#[test]
fn a_candidate_that_is_refused_pauses_for_longer_and_longer() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_witness();
    let stale = Refusal::Stale { holds: Term(5), confirmed: Term(5), to: voter("b", 0xb).node };
    let mut last = Duration::ZERO;
    for _ in 0..4 {
        world.hears(Part::Witness, 5, Reply::Refused(stale));
        let mut waited = Duration::ZERO;
        while asked(&world.pass(Duration::from_millis(250))).is_empty() {
            waited += Duration::from_millis(250);
        }
        assert!(waited > last, "{waited:?} after {last:?}");
        last = waited;
    }
    assert_eq!(world.record().term, Term(5), "and its term has not risen");
}

#[test]
fn neither_voting_nor_leading_changes_what_it_holds() {
    let world = World::leader(Rules::KEPT);
    assert_eq!((world.record().term, world.record().holds), (Term(6), Term(5)));
    let world = World::paired(Rules::KEPT);
    assert_eq!(world.record().holds, Term(6), "settling does");
    let world = World::leader(Rules::without(Rule::HoldsByJoiningOnly));
    assert_eq!(world.record().holds, Term(6));
}

#[test]
fn a_blank_replica_grants_nothing_and_does_not_stand() {
    let me = voter("a", 0xa);
    let record = Replica::blank(me.node, "orders".parse().expect("a name"), Kind::Replicated, me.incarnation);
    for rules in [Rules::KEPT, Rules::without(Rule::BlankGrantsNothing)] {
        let mut world = World::settled(record, rules);
        world.link_peer(5, Standing::Member);
        let refused = matches!(world.peer_says(5, vote(7, 5, 10)), Reply::Refused(Refusal::Blank));
        assert_eq!(refused, rules == Rules::KEPT);
    }
    let mut world = World::settled(record, Rules::KEPT);
    world.link_witness();
    assert!(asked(&world.pass(D * 20)).is_empty());
    let known = Adoption { term: Term(1), ordinal: 0, incarnation: Incarnation(0xe) };
    let record = ReplicaRecord { adoption: known, ..record };
    let mut broken = World::settled(record, Rules::without(Rule::StandingIsGranting));
    assert!(!asked(&broken.link_witness()).is_empty());
}

#[test]
fn a_blank_replica_joins_only_a_term_that_was_opened_for_it() {
    let me = voter("a", 0xa);
    let record = Replica::blank(me.node, "orders".parse().expect("a name"), Kind::Replicated, me.incarnation);
    let mut world = World::settled(record, Rules::KEPT);
    world.link_peer(7, Standing::Member);
    let offer =
        |admits| Request::Offer { term: Term(7), position: Position(10), adoption: Adoption::NONE, admits };
    for admits in [None, Some(Incarnation(0xaa))] {
        assert_eq!(world.peer_says(7, offer(admits)), Reply::Refused(Refusal::Blank));
    }
    assert_eq!(world.peer_says(7, offer(Some(me.incarnation))), Reply::Offered { term: Term(7) });
    let step = world.tell(Input::Join(Term(7)));
    assert_eq!(step.outputs.taken, Ok(()));
    assert_eq!((world.record().holds, world.record().cluster), (Term(7), CLUSTER));

    // The leader's side: only the life that it knew when, sole, it opened the term.
    let new_life = |world: &mut World| {
        let from = Sender { cluster: ClusterId::NIL, voter: voter("b", 0xbb), boot: Boot(1), term: Term(0) };
        let reply = Reply::Hello(world.hello(Part::Replica, Standing::Blank));
        world.tell(Input::Answered { link: LinkId(9), part: Part::Replica, from, reply })
    };
    let mut leader = World::leader(Rules::KEPT);
    new_life(&mut leader);
    assert_eq!(leader.tell(Input::Offer(Position(10))).outputs.taken, Err(Refusal::Blank));
    let mut broken = World::leader(Rules::without(Rule::BlankJoinsSoleOnly));
    new_life(&mut broken);
    assert_eq!(broken.tell(Input::Offer(Position(10))).outputs.taken, Ok(()));
}

#[test]
fn a_leader_is_blocked_until_its_peer_has_joined_with_the_position_of_the_offer() {
    let mut world = World::leader(Rules::KEPT);
    assert_eq!(world.right(), Some(Right::Blocked));
    world.tell(Input::Offer(Position(10)));
    for (term, position) in [(5, 10), (6, 9), (6, 11)] {
        let reply = world.peer_says(6, Request::Joined { term: Term(term), position: Position(position) });
        assert_eq!(reply, Reply::Refused(Refusal::Void), "term {term} position {position}");
    }
    world.peer_says(6, Request::Joined { term: Term(6), position: Position(10) });
    assert_eq!(world.right(), Some(Right::Paired));
}

#[test]
fn a_follower_joins_only_when_everything_offered_is_durable() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(7, Standing::Member);
    let adoption = Adoption::NONE;
    world.peer_says(7, Request::Offer { term: Term(7), position: Position(12), adoption, admits: None });
    assert_eq!(world.tell(Input::Join(Term(7))).outputs.taken, Err(Refusal::Void), "it reaches to 10 only");
    world.tell(Input::Durable(Position(12)));
    let step = world.tell(Input::Join(Term(7)));
    assert_eq!(asked(&step), [Request::Joined { term: Term(7), position: Position(12) }]);
    let record = step.record.expect("durable before it is said");
    assert_eq!((record.term, record.holds), (Term(7), Term(7)));
    assert_eq!(record.adoption.incarnation, Incarnation(0xe), "an older adoption takes nothing back");
}

#[test]
fn an_offer_is_void_on_a_later_link() {
    for rules in [Rules::KEPT, Rules::without(Rule::EarlierLinksAreVoid)] {
        let mut world = World::settled(member(), rules);
        world.link_peer(7, Standing::Member);
        let adoption = Adoption::NONE;
        let request = Request::Offer { term: Term(7), position: Position(10), adoption, admits: None };
        world.peer_says(7, request);
        let from = Sender { cluster: CLUSTER, voter: voter("b", 0xb), boot: Boot(2), term: Term(7) };
        let reply = Reply::Hello(world.hello(Part::Replica, Standing::Member));
        world.tell(Input::Answered { link: LinkId(9), part: Part::Replica, from, reply });
        assert_eq!(world.tell(Input::Join(Term(7))).outputs.taken, Err(Refusal::Void), "{rules:?}");
        // What still arrives on the earlier link is void too.
        let late = world.peer_says(7, request);
        assert_eq!(matches!(late, Reply::Refused(Refusal::Void)), rules == Rules::KEPT, "{late:?}");
    }
}

#[test]
fn losing_the_link_unpairs() {
    let mut world = World::paired(Rules::KEPT);
    world.tell(Input::LinkDown(PEER));
    assert_eq!(world.right(), Some(Right::Blocked));
}

#[test]
fn it_is_sole_after_the_confirmation_and_not_before() {
    let mut world = World::paired(Rules::KEPT);
    let step = world.pass(D / 2);
    assert_eq!(asked(&step).len(), 2, "a renewal, and: {step:?}");
    assert!(asked(&step).iter().any(|request| matches!(request, Request::Confirm { term: Term(6), .. })));
    assert!(!world.record().sole);
    let step = world.hears(Part::Witness, 6, Reply::Confirmed { term: Term(6) });
    let record = step.record.expect("durable before it is shown");
    assert!(record.sole && record.holds == Term(6));
    assert_eq!(world.right(), Some(Right::Solo));

    let broken = World::leader(Rules::without(Rule::SoleAfterConfirmation));
    assert!(broken.record().sole);
}

#[test]
fn a_confirmed_term_is_never_paired_again() {
    let joined = Request::Joined { term: Term(6), position: Position(10) };
    for rules in [Rules::KEPT, Rules::without(Rule::ConfirmedNeverPaired)] {
        let mut world = World::leader(rules);
        world.tell(Input::Offer(Position(10)));
        world.pass(D / 2);
        world.hears(Part::Witness, 6, Reply::Confirmed { term: Term(6) });
        assert_eq!(world.right(), Some(Right::Solo));
        let void = world.peer_says(6, joined) == Reply::Refused(Refusal::Void);
        assert_eq!(void, rules == Rules::KEPT);
    }
}

#[test]
fn a_confirmation_that_was_asked_for_is_asked_for_until_it_is_known_whether_it_was_given() {
    for (confirmed, asks_again) in [(6, true), (5, false)] {
        let mut world = World::paired(Rules::KEPT);
        world.pass(D / 2);
        // The peer is back before the answer, and the witness's link breaks.
        world.peer_says(6, Request::Joined { term: Term(6), position: Position(10) });
        world.tell(Input::LinkDown(WITNESS));
        let hello = Hello { holds: Term(confirmed), ..world.hello(Part::Witness, Standing::Member) };
        let step = world.hears(Part::Witness, 6, Reply::Hello(hello));
        let asked = asked(&step).iter().any(|request| matches!(request, Request::Confirm { .. }));
        assert_eq!(asked, asks_again, "confirmed {confirmed}");
    }
}

#[test]
fn confirmations_and_votes_of_another_witness_do_not_count() {
    let stranger = Sender { cluster: CLUSTER, voter: voter("w", 0xf), boot: Boot(1), term: Term(6) };
    for rules in [Rules::KEPT, Rules::without(Rule::OneWitnessIncarnation)] {
        let mut world = World::paired(rules);
        let reply = Reply::Hello(world.hello(Part::Witness, Standing::Member));
        world.tell(Input::Answered { link: LinkId(9), part: Part::Witness, from: stranger, reply });
        world.pass(D / 2);
        let reply = Reply::Confirmed { term: Term(6) };
        world.tell(Input::Answered { link: LinkId(9), part: Part::Witness, from: stranger, reply });
        assert_eq!(world.right() == Some(Right::Solo), rules != Rules::KEPT);
    }
}

#[test]
fn opening_gives_up_sole_and_takes_a_new_term_in_one_record_before_the_offer_leaves() {
    let mut world = World::settled(sole(), Rules::KEPT);
    world.link_peer(8, Standing::Member);
    assert_eq!(world.right(), Some(Right::Solo));
    assert!(world.record().term > Term(8), "above its peer: {:?}", world.record().term);
    let before = world.record().term;
    assert!(world.tell(Input::Offer(Position(10))).outputs.taken.is_err(), "no lease carries it over yet");
    let renewed = Reply::Renewed { term: before, sequence: 1 };
    world.pass(Duration::from_millis(1));
    world.hears(Part::Replica, 8, renewed);
    let step = world.tell(Input::Offer(Position(10)));
    assert_eq!(step.outputs.taken, Ok(()));
    let record = step.record.expect("one record");
    assert!(!record.sole && record.term > before && record.holds == before);
    assert!(
        asked(&step)
            .iter()
            .any(|request| matches!(request, Request::Offer { term, .. } if *term == record.term))
    );
    assert_eq!(world.right(), Some(Right::Blocked));
    assert!(world.replica.acts_until(world.now).is_some(), "its peer's lease carries it over");

    let mut broken = World::settled(sole(), Rules::without(Rule::OpeningIsAtomic));
    broken.link_peer(5, Standing::Member);
    let term = broken.record().term;
    broken.pass(Duration::from_millis(1));
    broken.hears(Part::Replica, 5, Reply::Renewed { term, sequence: 1 });
    broken.tell(Input::Offer(Position(10)));
    assert!(broken.record().sole, "offered while sole");
}

#[test]
fn a_sole_replica_votes_for_nobody_follows_nobody_and_never_stands() {
    for rules in [Rules::KEPT, Rules::without(Rule::SoleRefusesVotes)] {
        let mut world = World::settled(sole(), rules);
        world.link_peer(5, Standing::Member);
        let refused = world.peer_says(5, vote(9, 9, 99)) == Reply::Refused(Refusal::Sole);
        assert_eq!(refused, rules == Rules::KEPT);
    }
    let mut world = World::new(sole(), Rules::KEPT);
    world.link_peer(9, Standing::Member);
    assert_eq!(world.peer_says(9, renew(9)), Reply::Refused(Refusal::Sole));
    assert!(world.replica.ballot().may_stand().is_err());
    assert_eq!(world.tell(Input::Resign).outputs.taken, Err(Refusal::NotLeader { term: Term(5) }));
}

#[test]
fn a_sole_replica_asks_for_a_bounded_time_and_then_leads_alone_in_a_new_term() {
    let mut world = World::new(sole(), Rules::KEPT);
    assert_eq!(world.right(), None);
    world.pass(D - Duration::from_millis(1));
    assert_eq!(world.right(), None, "it waits for whom it might reach");
    let step = world.pass(Duration::from_millis(1));
    assert_eq!(world.right(), Some(Right::Solo));
    assert_eq!(step.record.map(|record| (record.term, record.holds)), Some((Term(6), Term(6))));
    assert_eq!(world.replica.acts_until(world.now), Some(Moment::FOREVER));

    let mut world = World::new(sole(), Rules::KEPT);
    world.link_witness();
    world.link_peer(5, Standing::Member);
    assert_eq!(world.right(), Some(Right::Solo), "it has asked everybody");

    let mut broken = World::new(sole(), Rules::without(Rule::ResumeInNewTerm));
    broken.pass(D);
    assert_eq!(broken.record().term, Term(5), "its old token again");
}

#[test]
fn a_leader_whose_lease_ends_stops_acting_by_itself_and_may_act_again() {
    let mut world = World::paired(Rules::KEPT);
    world.hears(Part::Replica, 6, Reply::Renewed { term: Term(6), sequence: 1 });
    let until = world.replica.acts_until(world.now).expect("it acts");
    assert!(until < world.now + D);
    world.now = until;
    world.tell(Input::Tick);
    assert_eq!(world.replica.acts_until(world.now), None);
    world.hears(Part::Witness, 6, Reply::Confirmed { term: Term(6) });
    assert_eq!(world.replica.acts_until(world.now), Some(Moment::FOREVER));
}

#[test]
fn a_leader_that_acts_votes_for_nobody() {
    for rules in [Rules::KEPT, Rules::without(Rule::ActingLeaderRefusesVotes)] {
        let mut world = World::paired(rules);
        world.hears(Part::Replica, 6, Reply::Renewed { term: Term(6), sequence: 1 });
        let reply = world.peer_says(6, vote(9, 6, 10));
        let refused = matches!(reply, Reply::Refused(Refusal::LeaseRuns { .. }));
        assert_eq!(refused, rules == Rules::KEPT, "{reply:?}");
    }
}

#[test]
fn a_resync_gives_up_what_is_held_first_and_only_on_the_link_of_a_leader() {
    let mut world = World::settled(member(), Rules::KEPT);
    assert!(world.tell(Input::Resync).outputs.taken.is_err(), "no link");
    world.link_peer(7, Standing::Member);
    assert!(world.tell(Input::Resync).outputs.taken.is_err(), "no leader");
    world.peer_says(7, renew(7));
    let step = world.tell(Input::Resync);
    assert_eq!(step.outputs.taken, Ok(()));
    let record = step.record.expect("durable before anything is destroyed");
    assert_eq!((record.holds, record.standing), (Term::ZERO, Standing::Resyncing(Incarnation(0xb))));
    assert!(world.replica.ballot().may_stand().is_err());

    // The leader may have lost everything by the time that this one destroys what it has.
    for (rules, refused) in [(Rules::KEPT, true), (Rules::without(Rule::ResyncOnLiveLinkOnly), false)] {
        let mut world = World::settled(member(), rules);
        world.link_peer(7, Standing::Member);
        world.peer_says(7, renew(7));
        world.tell(Input::LinkDown(PEER));
        assert_eq!(world.tell(Input::Resync).outputs.taken.is_err(), refused);
    }

    let mut broken = World::settled(member(), Rules::without(Rule::ResyncClearsHolds));
    broken.link_peer(7, Standing::Member);
    broken.peer_says(7, renew(7));
    broken.tell(Input::Resync);
    assert_eq!(broken.record().holds, Term(5));
}

#[test]
fn while_it_copies_it_votes_for_its_leader_only() {
    let record =
        ReplicaRecord { standing: Standing::Resyncing(Incarnation(0xbb)), holds: Term::ZERO, ..member() };
    let mut world = World::settled(record, Rules::KEPT);
    world.link_peer(7, Standing::Member);
    assert_eq!(world.peer_says(7, vote(8, 7, 10)), Reply::Refused(Refusal::Resyncing));
}

#[test]
fn a_vote_that_was_given_before_it_copied_another_is_not_repeated() {
    let voted = |rules| {
        let mut world = World::settled(member(), rules);
        world.link_peer(7, Standing::Member);
        assert_eq!(world.peer_says(7, vote(8, 7, 10)), Reply::Voted { term: Term(8) });
        // The candidate's life is over, and another one leads; this one begins to copy it.
        let copying = ReplicaRecord {
            standing: Standing::Resyncing(Incarnation(0xbb)),
            holds: Term::ZERO,
            boot: Boot(0),
            ..*world.replica.ballot().record()
        };
        let mut world = World::settled(copying, rules);
        world.link_peer(8, Standing::Member);
        world.peer_says(8, vote(8, 7, 10))
    };
    assert_eq!(voted(Rules::KEPT), Reply::Refused(Refusal::Resyncing));
    assert_eq!(voted(Rules::without(Rule::ResyncClearsHolds)), Reply::Voted { term: Term(8) });
}

#[test]
fn a_resigning_leader_stops_acting_at_once_and_gives_the_lease_back_when_it_has_stopped() {
    let mut world = World::paired(Rules::KEPT);
    world.hears(Part::Replica, 6, Reply::Renewed { term: Term(6), sequence: 1 });
    world.tell(Input::Resign);
    assert_eq!(world.replica.acts_until(world.now), None);
    assert!(
        matches!(world.peer_says(6, vote(7, 6, 10)), Reply::Refused(Refusal::LeaseRuns { .. })),
        "not yet"
    );
    let step = world.tell(Input::Stopped);
    assert!(matches!(asked(&step)[..], [Request::Release { term: Term(6), .. }]));
    assert_eq!(world.peer_says(6, vote(7, 6, 10)), Reply::Voted { term: Term(7) });
}

#[test]
fn a_release_lets_the_follower_stand_at_once() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    world.peer_says(5, renew(5));
    let from = Sender { cluster: CLUSTER, voter: voter("b", 0xb), boot: Boot(1), term: Term(5) };
    let request = Request::Release { term: Term(5), position: Position(10) };
    let step = world.tell(Input::Asked { link: PEER, from, request });
    assert!(matches!(asked(&step)[..], [Request::PreVote(_)]), "{step:?}");
}

#[test]
fn a_stalled_peer_counts_as_silent() {
    let mut world = World::paired(Rules::KEPT);
    let step = world.tell(Input::Stalled);
    assert!(asked(&step).iter().any(|request| matches!(request, Request::Confirm { .. })));
}

#[test]
fn without_solo_it_never_asks_to_go_on_alone() {
    let settings = Settings { solo_after: None, ..Settings::for_lease(D) };
    let (replica, _) = Replica::start(at(100), member(), Position(10), settings, SEED, Rules::KEPT);
    let mut world = World { replica, now: at(200) };
    world.link_witness();
    world.hears(Part::Witness, 5, Reply::PreVoted { term: Term(6) });
    world.hears(Part::Witness, 6, Reply::Voted { term: Term(6) });
    for _ in 0..40 {
        let step = world.pass(D / 4);
        assert!(!asked(&step).iter().any(|request| matches!(request, Request::Confirm { .. })));
    }
}

#[test]
fn a_sole_leader_takes_a_blank_witness_in_after_its_own_adoption_is_durable() {
    let mut world = World::settled(ReplicaRecord { adoption: Adoption::NONE, ..sole() }, Rules::KEPT);
    let step = world.hears(Part::Witness, 0, Reply::Hello(world.hello(Part::Witness, Standing::Blank)));
    let adopted = step.record.expect("durable first").adoption;
    assert_eq!(adopted.incarnation, Incarnation(0xe));
    assert!(asked(&step).iter().any(
        |request| matches!(request, Request::Admit { solo: true, adoption, .. } if *adoption == adopted)
    ));
}

#[test]
fn a_paired_leader_takes_a_blank_witness_in_after_its_peer_has_adopted_it() {
    let mut world = World::paired(Rules::KEPT);
    let other = Sender { cluster: ClusterId::NIL, voter: voter("w", 0xf), boot: Boot(1), term: Term(0) };
    let reply = Reply::Hello(world.hello(Part::Witness, Standing::Blank));
    let step = world.tell(Input::Answered { link: LinkId(9), part: Part::Witness, from: other, reply });
    let proposed = asked(&step).into_iter().find_map(|request| match request {
        Request::Adopt { adoption, .. } => Some(adoption),
        _ => None,
    });
    let proposed = proposed.expect("proposed to the peer");
    assert_ne!(world.record().adoption, proposed, "not adopted before the peer has");
    let step = world.hears(Part::Replica, 6, Reply::Adopted { adoption: proposed });
    assert_eq!(step.record.map(|record| record.adoption), Some(proposed));
    assert!(asked(&step).iter().any(|request| matches!(request, Request::Admit { solo: false, .. })));
}

#[test]
fn an_adoption_is_taken_from_the_joined_leader_only_and_never_goes_back() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    let adopt = |term: u32, ordinal, life| Request::Adopt {
        term: Term(term),
        adoption: Adoption { term: Term(term), ordinal, incarnation: Incarnation(life) },
    };
    assert_eq!(world.peer_says(5, adopt(5, 0, 0xf)), Reply::Refused(Refusal::Void), "no leader was heard");
    world.peer_says(5, renew(5));
    assert!(matches!(world.peer_says(5, adopt(5, 1, 0xf)), Reply::Adopted { .. }));
    assert_eq!(world.peer_says(5, adopt(5, 0, 0xe)), Reply::Refused(Refusal::Void), "an earlier one");
    assert_eq!(world.peer_says(5, adopt(4, 9, 0xe)), Reply::Refused(Refusal::Void), "of an earlier term");
    assert_eq!(world.record().adoption.incarnation, Incarnation(0xf));
}

#[test]
fn init_makes_a_sole_member_of_term_one() {
    let me = voter("a", 0xa);
    let name = "orders".parse().expect("a name");
    let record = Replica::init(me.node, name, Kind::Replicated, me.incarnation, CLUSTER);
    let mut world = World::new(record, Rules::KEPT);
    world.pass(D);
    assert_eq!(world.right(), Some(Right::Solo));
    assert_eq!(world.record().term, Term(2));
}

#[test]
fn no_term_is_opened_for_a_blank_peer_before_the_witness_is_in() {
    let mut world = World::settled(sole(), Rules::KEPT);
    world.link_peer(0, Standing::Blank);
    world.pass(Duration::from_millis(1));
    let term = world.record().term;
    world.hears(Part::Replica, 0, Reply::Renewed { term, sequence: 1 });
    assert_eq!(world.tell(Input::Offer(Position(10))).outputs.taken, Err(Refusal::OtherWitness));
    world.link_witness();
    assert_eq!(world.tell(Input::Offer(Position(10))).outputs.taken, Ok(()));
}

#[test]
fn a_leader_that_may_have_been_confirmed_hands_over_to_nobody() {
    let mut world = World::paired(Rules::KEPT);
    world.pass(D / 2);
    world.peer_says(6, Request::Joined { term: Term(6), position: Position(10) });
    assert!(matches!(world.tell(Input::Resign).outputs.taken, Err(Refusal::Busy { .. })));
}

#[test]
fn a_peer_that_comes_and_goes_is_taken_in_after_longer_and_longer_pauses() {
    let mut world = World::settled(sole(), Rules::KEPT);
    world.link_witness();
    let mut last = Duration::ZERO;
    for round in 0..4 {
        world.link_peer(0, Standing::Member);
        let mut waited = Duration::ZERO;
        loop {
            world.pass(Duration::from_millis(100));
            waited += Duration::from_millis(100);
            for sequence in 0..10_000 {
                world.hears(Part::Replica, 0, Reply::Renewed { term: world.record().term, sequence });
            }
            if world.tell(Input::Offer(Position(10))).outputs.taken.is_ok() {
                break;
            }
        }
        assert!(round == 0 || waited > last, "round {round}: {waited:?} after {last:?}");
        last = waited;
        world.tell(Input::LinkDown(PEER));
        world.pass(D);
        let term = world.record().term;
        world.hears(Part::Witness, term.0, Reply::Confirmed { term });
        assert_eq!(world.right(), Some(Right::Solo));
    }
}

#[test]
fn whoever_wiped_to_copy_joins_again_only_with_as_much_as_it_had_stated() {
    // Found by the exhaustive search: an offer heard twice, a write stated in between, and a copy from the old offer.
    for rules in [Rules::KEPT, Rules::without(Rule::EarlierLinksAreVoid)] {
        let mut world = World::settled(member(), rules);
        world.link_peer(7, Standing::Member);
        let adoption = Adoption::NONE;
        let offer = Request::Offer { term: Term(7), position: Position(10), adoption, admits: None };
        world.peer_says(7, offer);
        assert_eq!(world.tell(Input::Join(Term(7))).outputs.taken, Ok(()));
        world.peer_says(7, offer);
        world.tell(Input::Durable(Position(11)));
        world.tell(Input::Resync);
        world.tell(Input::Durable(Position(10)));
        let again = world.tell(Input::Join(Term(7))).outputs.taken;
        assert_eq!(again.is_err(), rules == Rules::KEPT, "the leader may have counted on 11");
    }
}

#[test]
fn a_resigning_leader_goes_on_when_its_peer_is_lost() {
    let mut world = World::paired(Rules::KEPT);
    assert_eq!(world.tell(Input::Resign).outputs.taken, Ok(()));
    world.tell(Input::LinkDown(PEER));
    world.pass(D / 2);
    world.hears(Part::Witness, 6, Reply::Confirmed { term: Term(6) });
    assert_eq!(world.replica.acts_until(world.now), Some(Moment::FOREVER));
    assert!(world.tell(Input::Resign).outputs.taken.is_err(), "and there is nobody to hand over to");
}

#[test]
fn the_peer_cannot_take_the_witness_s_seat() {
    let mut world = World::settled(sole(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    let claim = Request::Hello(world.hello(Part::Witness, Standing::Blank));
    assert_eq!(world.peer_says(5, claim), Reply::Refused(Refusal::NotServed));
    assert!(world.replica.ballot().witness().is_none());
}

#[test]
fn an_adoption_from_the_future_is_refused() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(7, Standing::Member);
    let adoption = Adoption { term: Term(99), ordinal: 0, incarnation: Incarnation(0xf) };
    let request = Request::Offer { term: Term(7), position: Position(10), adoption, admits: None };
    assert_eq!(world.peer_says(7, request), Reply::Refused(Refusal::Void));
}
