//! Leadership without data. (§9)

use super::*;

fn leadership(record: ReplicaRecord) -> ReplicaRecord {
    ReplicaRecord { kind: Kind::Leadership, ..record }
}

#[test]
fn without_data_a_lease_of_the_witness_does_as_well_as_one_of_the_peer() {
    let mut world = World::settled(leadership(member()), Rules::KEPT);
    let step = world.link_witness();
    assert!(matches!(asked(&step)[..], [Request::PreVote(_)]));
    world.hears(Part::Witness, 5, Reply::PreVoted { term: Term(6) });
    let step = world.hears(Part::Witness, 6, Reply::Voted { term: Term(6) });
    let [Request::Renew { sequence, .. }] = asked(&step)[..] else { panic!("{step:?}") };
    assert_eq!(world.replica.acts_until(world.now), None, "not before it is promised");
    let sent = world.now;
    world.now = world.now + D / 10;
    world.hears(Part::Witness, 6, Reply::Renewed { term: Term(6), sequence });
    assert_eq!(world.replica.acts_until(world.now), Some(sent + crate::rate::relied_on(D)));
    // It never goes on alone, however long the peer is silent.
    for _ in 0..20 {
        let step = world.pass(D / 4);
        assert!(!asked(&step).iter().any(|request| matches!(request, Request::Confirm { .. })), "{step:?}");
    }
    assert_eq!(world.replica.acts_until(world.now), None, "the lease was not renewed");
}

#[test]
fn without_data_whoever_is_offered_a_term_joins_it_at_once() {
    let mut world = World::settled(leadership(member()), Rules::KEPT);
    world.link_peer(7, Standing::Member);
    let from = Sender { cluster: CLUSTER, voter: voter("b", 0xb), boot: Boot(1), term: Term(7) };
    let request =
        Request::Offer { term: Term(7), position: Position(0), adoption: Adoption::NONE, admits: None };
    let step = world.tell(Input::Asked { link: PEER, from, request });
    assert_eq!(step.outputs.answer, Some(Reply::Offered { term: Term(7) }));
    assert_eq!(asked(&step), [Request::Joined { term: Term(7), position: Position(0) }]);
    assert_eq!(world.record().holds, Term(7));
}

#[test]
fn without_data_a_new_life_of_the_peer_is_taken_in_once_the_witness_has_confirmed() {
    let mut world = World::settled(leadership(member()), Rules::KEPT);
    world.link_witness();
    world.hears(Part::Witness, 5, Reply::PreVoted { term: Term(6) });
    world.hears(Part::Witness, 6, Reply::Voted { term: Term(6) });
    let from = Sender { cluster: ClusterId::NIL, voter: voter("b", 0xbb), boot: Boot(1), term: Term(0) };
    let mut hello = world.hello(Part::Replica, Standing::Blank);
    hello.holds = Term::ZERO;
    let reply = Reply::Hello(hello);
    let step = world.tell(Input::Answered { link: PEER, part: Part::Replica, from, reply });
    assert!(asked(&step).iter().any(|request| matches!(request, Request::Confirm { term: Term(6), .. })));
    let step = world.hears(Part::Witness, 6, Reply::Confirmed { term: Term(6) });
    assert_eq!(world.right(), Some(Right::Solo));
    let mut renewals = asked(&step).into_iter().filter_map(|request| match request {
        Request::Renew { sequence, .. } => Some(sequence),
        _ => None,
    });
    let sequence = renewals.next_back().expect("the peer is asked for a promise");
    world.now = world.now + D / 100;
    let reply = Reply::Renewed { term: Term(6), sequence };
    let step = world.tell(Input::Answered { link: PEER, part: Part::Replica, from, reply });
    let admits = asked(&step).into_iter().find_map(|request| match request {
        Request::Offer { term, admits, .. } => Some((term, admits)),
        _ => None,
    });
    assert_eq!(admits, Some((Term(7), Some(Incarnation(0xbb)))), "{step:?}");
}

#[test]
fn a_lease_of_a_witness_that_may_have_forgotten_it_is_given_up() {
    for (standing, acts) in [(Standing::Member, true), (Standing::Unvalidated, false)] {
        let mut world = World::settled(leadership(member()), Rules::KEPT);
        world.link_witness();
        world.hears(Part::Witness, 5, Reply::PreVoted { term: Term(6) });
        let step = world.hears(Part::Witness, 6, Reply::Voted { term: Term(6) });
        let [Request::Renew { sequence, .. }] = asked(&step)[..] else { panic!("{step:?}") };
        world.hears(Part::Witness, 6, Reply::Renewed { term: Term(6), sequence });
        assert!(world.replica.acts_until(world.now).is_some());
        // It has restarted: with `strict_boot` nobody relies on what its disk holds.
        let hello = world.hello(Part::Witness, standing);
        let from = Sender { cluster: CLUSTER, voter: voter("w", 0xe), boot: Boot(2), term: Term(6) };
        let reply = Reply::Hello(hello);
        world.tell(Input::Answered { link: LinkId(9), part: Part::Witness, from, reply });
        assert_eq!(world.replica.acts_until(world.now).is_some(), acts, "{standing:?}");
    }
}
