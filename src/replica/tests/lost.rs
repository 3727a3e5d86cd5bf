//! Lost, restored, copied and given up; and a witness that has to be validated. (§7)

use super::*;
use crate::limits::COPY_GREETS_WITHIN;

/// The peer, or the witness, remembers this of the replica.
fn remembering(world: &World, part: Part, change: impl FnOnce(&mut Remembered)) -> Reply {
    let mut hello = world.hello(part, Standing::Member);
    change(hello.remembers.as_mut().expect("an answer says what is remembered"));
    Reply::Hello(hello)
}

fn is_lost(world: &World) -> bool {
    let record = world.record();
    let lost = record.incarnation != Incarnation(0xa);
    assert_eq!(lost, record.standing == Standing::Blank);
    lost
}

#[test]
fn a_replica_that_hears_that_it_said_more_than_it_knows_begins_again_as_blank() {
    type Change = fn(&mut Remembered);
    let (later_boot, later_term): (Change, Change) = (|known| known.boot.0 += 1, |known| known.term.0 += 1);
    let more_links: Change = |known| known.ratchet.current = 9 << 32;
    let cases = [
        (later_boot, Rule::LivesAreRemembered),
        (later_term, Rule::LivesAreRemembered),
        (more_links, Rule::LinksRatchet),
    ];
    for (change, rule) in cases {
        for (rules, lost) in [(Rules::KEPT, true), (Rules::without(rule), false)] {
            for part in [Part::Replica, Part::Witness] {
                // Even the one that is sole: whoever led after it was restored would lead without what it lost.
                let mut world = World::settled(sole(), rules);
                let greeting = remembering(&world, part, change);
                world.hears(part, 5, greeting);
                assert_eq!(is_lost(&world), lost, "{rule:?} {part:?}");
                world.pass(D * 2);
                assert_eq!(world.replica.view(world.now).authority().is_some(), !lost);
            }
        }
    }
}

#[test]
fn data_that_is_older_than_what_was_stated_makes_a_replica_hold_nothing() {
    for (rules, expected) in
        [(Rules::KEPT, Term::ZERO), (Rules::without(Rule::PositionsAreRemembered), Term(5))]
    {
        let mut world = World::settled(member(), rules);
        let greeting = remembering(&world, Part::Replica, |known| {
            (known.took_part, known.position) = (Term(5), Position(11));
        });
        world.hears(Part::Replica, 5, greeting);
        assert_eq!(world.record().holds, expected);
        // In a term in which it did not take part since, nothing follows.
        let mut world = World::settled(member(), rules);
        let greeting = remembering(&world, Part::Replica, |known| {
            (known.took_part, known.position) = (Term(4), Position(11));
        });
        world.hears(Part::Replica, 5, greeting);
        assert_eq!(world.record().holds, Term(5));
    }
}

#[test]
fn a_leader_remembers_how_far_its_peer_joined() {
    let mut world = World::paired(Rules::KEPT);
    let known = world.record().remembers[0].expect("linked");
    assert_eq!((known.took_part, known.position), (Term(6), Position(10)));
    // It is said in the next greeting.
    world.tell(Input::LinkDown(PEER));
    assert_eq!(world.replica.ballot().hello(Part::Replica).remembers, Some(known));
}

#[test]
fn a_life_that_was_given_up_begins_again_as_blank_whoever_tells_it() {
    let me = Incarnation(0xa);
    for (rules, lost) in [(Rules::KEPT, true), (Rules::without(Rule::BannedStops), false)] {
        let mut world = World::settled(sole(), rules);
        let mut hello = world.hello(Part::Witness, Standing::Member);
        hello.banned[0] = me;
        world.hears(Part::Witness, 5, Reply::Hello(hello));
        assert_eq!(is_lost(&world), lost);

        let mut world = World::settled(sole(), rules);
        let refusal = Refusal::Banned { life: me };
        world.tell(Input::NotGreeted {
            life: Incarnation(0xa),
            part: Part::Replica,
            by: voter("b", 0xb),
            refusal,
        });
        assert_eq!(is_lost(&world), lost);
    }
    // A refusal that is about somebody else is nothing to it.
    let mut world = World::settled(sole(), Rules::KEPT);
    let refusal = Refusal::Banned { life: Incarnation(0xbb) };
    world.tell(Input::NotGreeted {
        life: Incarnation(0xa),
        part: Part::Replica,
        by: voter("b", 0xb),
        refusal,
    });
    assert!(!is_lost(&world));
}

#[test]
fn a_replica_believes_a_refusal_only_if_it_did_say_less() {
    for (boot, lost) in [(1, false), (2, true)] {
        let mut world = World::settled(member(), Rules::KEPT);
        let refusal = Refusal::Restored { boot: Boot(boot), term: Term(5), links: 0 };
        world.tell(Input::NotGreeted {
            life: Incarnation(0xa),
            part: Part::Witness,
            by: voter("w", 0xe),
            refusal,
        });
        assert_eq!(is_lost(&world), lost, "start {boot}");
    }
}

#[test]
fn what_is_said_of_an_earlier_life_is_nothing_to_the_present_one() {
    let mut world = World::settled(member(), Rules::KEPT);
    let refusal = Refusal::Restored { boot: Boot(7), term: Term(9), links: 3 };
    let by = voter("w", 0xe);
    // Of the life before this one, which both others found out: this answer comes late.
    world.tell(Input::NotGreeted { life: Incarnation(0xaa), part: Part::Witness, by, refusal });
    assert!(!is_lost(&world));
    world.tell(Input::NotGreeted { life: Incarnation(0xa), part: Part::Witness, by, refusal });
    assert!(is_lost(&world));
}

#[test]
fn one_that_is_linked_and_greets_no_more_was_taken_for_a_copy_by_mistake() {
    let refusal = Refusal::Copied { life: voter("a", 0xa).node, with: voter("b", 0xb).node };
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    let greeting = |by| Input::NotGreeted { life: Incarnation(0xa), part: Part::Replica, by, refusal };
    world.tell(greeting(voter("b", 0xb)));
    assert!(world.replica.report(world.now).refused.is_some(), "two machines may run with this state");
    world.pass(COPY_GREETS_WITHIN / 2);
    world.tell(greeting(voter("b", 0xb)));
    world.pass(COPY_GREETS_WITHIN);
    assert!(world.replica.report(world.now).refused.is_some(), "the other one greets on");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.replica.report(world.now).refused, None);
}

#[test]
fn a_replica_that_may_be_a_copy_neither_stands_nor_resumes_until_it_is_linked() {
    let refusal = Refusal::Copied { life: voter("a", 0xa).node, with: voter("b", 0xb).node };
    let mut world = World::settled(member(), Rules::KEPT);
    world.tell(Input::NotGreeted {
        life: Incarnation(0xa),
        part: Part::Replica,
        by: voter("b", 0xb),
        refusal,
    });
    assert_eq!(asked(&world.link_witness()), []);
    assert_eq!(asked(&world.pass(D * 10)), []);
    let step = world.link_peer(5, Standing::Member);
    assert!(matches!(asked(&step)[..], [Request::PreVote(_)]));

    let mut world = World::new(sole(), Rules::KEPT);
    world.tell(Input::NotGreeted {
        life: Incarnation(0xa),
        part: Part::Witness,
        by: voter("w", 0xe),
        refusal,
    });
    world.pass(D * 10);
    assert_eq!(world.right(), None);
    world.link_witness();
    assert_eq!(world.right(), Some(Right::Solo));
}

#[test]
fn after_a_start_the_peer_is_asked_before_the_witness_however_long_it_was_silent() {
    let mut world = World::new(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    world.link_witness();
    let step = world.pass(D * 2);
    let links: Vec<LinkId> = step.outputs.asks.iter().map(|ask| ask.link).collect();
    assert_eq!(links, [PEER]);
    // It does not answer: then the witness.
    let step = world.pass(D / 4);
    assert!(step.outputs.asks.iter().any(|ask| ask.link == WITNESS), "{step:?}");
}

#[test]
fn a_new_life_promises_nothing_and_remembers_that_the_earlier_one_may_have() {
    let mut world = World::settled(member(), Rules::KEPT);
    let greeting = remembering(&world, Part::Replica, |known| known.term.0 += 1);
    world.hears(Part::Replica, 5, greeting);
    assert!(is_lost(&world) && world.record().longest_lease == Millis(2000));
    let vote = Request::Vote(Candidacy { term: Term(9), holds: Term(9), position: Position(10) });
    let from = Sender { cluster: CLUSTER, voter: voter("b", 0xb), boot: Boot(1), term: Term(9) };
    let hello = Hello { remembers: None, ..world.hello(Part::Replica, Standing::Member) };
    world.tell(Input::Asked { link: PEER, from, request: Request::Hello(hello) });
    let step = world.tell(Input::Asked { link: PEER, from, request: vote });
    assert_eq!(step.outputs.answer, Some(Reply::Refused(Refusal::Blank)));
}

// A witness that has to be validated.

#[test]
fn a_paired_leader_validates_the_witness_after_its_peer_has_vouched_and_a_sole_one_alone() {
    let mut world = World::paired(Rules::KEPT);
    let hello = world.hello(Part::Witness, Standing::Unvalidated);
    let nonce = hello.nonce;
    let from = Sender { cluster: CLUSTER, voter: voter("w", 0xe), boot: Boot(2), term: Term(6) };
    let reply = Reply::Hello(hello);
    let step = world.tell(Input::Answered { link: LinkId(9), part: Part::Witness, from, reply });
    assert!(asked(&step).contains(&Request::Vouch { term: Term(6), nonce }));
    assert!(!asked(&step).iter().any(|request| matches!(request, Request::Validate { .. })));
    let step = world.hears(Part::Replica, 6, Reply::Vouched { term: Term(6), nonce: nonce + 1 });
    assert_eq!(asked(&step), [], "not about this link");
    let step = world.hears(Part::Replica, 6, Reply::Vouched { term: Term(6), nonce });
    assert_eq!(asked(&step), [Request::Validate { term: Term(6), solo: false, nonce }]);

    let mut world = World::settled(sole(), Rules::KEPT);
    let hello = world.hello(Part::Witness, Standing::Unvalidated);
    let nonce = hello.nonce;
    world.pass(D * 2);
    let term = world.record().term;
    let step = world.hears(Part::Witness, 5, Reply::Hello(hello));
    assert!(asked(&step).contains(&Request::Validate { term, solo: true, nonce }));
}

#[test]
fn a_witness_that_was_validated_in_an_earlier_term_has_not_reached_the_one_that_it_was_asked_about() {
    let mut world = World::paired(Rules::KEPT);
    let hello = world.hello(Part::Witness, Standing::Unvalidated);
    let nonce = hello.nonce;
    let from = Sender { cluster: CLUSTER, voter: voter("w", 0xe), boot: Boot(2), term: Term(5) };
    let link = LinkId(9);
    world.tell(Input::Answered { link, part: Part::Witness, from, reply: Reply::Hello(hello) });
    world.hears(Part::Replica, 6, Reply::Vouched { term: Term(6), nonce });
    // The leader of term 5 has validated it meanwhile: it says yes to this one, and its own term is 5.
    let reply = Reply::Validated { term: Term(6) };
    world.tell(Input::Answered { link, part: Part::Witness, from, reply });
    world.tell(Input::LinkDown(PEER));
    world.link_peer(6, Standing::Member);
    let known = world.replica.ballot().hello(Part::Witness).remembers.expect("linked");
    assert_eq!(known.term, Term(5), "a witness that is told more than that believes that it is an old image");
}

#[test]
fn a_follower_vouches_for_the_leader_whose_term_it_takes_part_in() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    world.peer_says(5, Request::Renew { term: Term(5), sequence: 1, lease: Millis(2000) });
    let vouch = |term| Request::Vouch { term: Term(term), nonce: 3 };
    assert_eq!(world.peer_says(5, vouch(5)), Reply::Vouched { term: Term(5), nonce: 3 });
    assert_eq!(world.peer_says(6, vouch(6)), Reply::Refused(Refusal::Void));
}

#[test]
fn a_candidate_whose_data_turns_out_to_be_an_old_image_asks_nobody_any_more() {
    let mut world = World::settled(member(), Rules::KEPT);
    let step = world.link_witness();
    assert!(matches!(asked(&step)[..], [Request::PreVote(_)]));
    let mut hello = world.hello(Part::Replica, Standing::Member);
    let known = hello.remembers.as_mut().expect("they know one another");
    (known.took_part, known.position) = (Term(5), Position(99));
    let step = world.hears(Part::Replica, 5, Reply::Hello(hello));
    assert!(matches!(world.record().standing, Standing::Resyncing(_)));
    assert_eq!(asked(&step), []);
}

#[test]
fn a_blank_replica_vouches_for_nobody_not_even_in_term_0() {
    let me = voter("a", 0xa);
    let blank = Replica::blank(me.node, member().name, Kind::Replicated, me.incarnation);
    let mut world = World::settled(blank, Rules::KEPT);
    world.link_peer(0, Standing::Member);
    world.peer_says(0, Request::Renew { term: Term(0), sequence: 1, lease: Millis(2000) });
    let vouch = Request::Vouch { term: Term(0), nonce: 3 };
    assert_eq!(world.peer_says(0, vouch), Reply::Refused(Refusal::Void));
}

#[test]
fn a_vote_that_comes_after_the_candidate_was_elected_forgets_nothing_that_it_offered() {
    let mut world = World::settled(member(), Rules::KEPT);
    world.link_peer(5, Standing::Member);
    let (term, position) = (Term(6), Position(10));
    let offer = Request::Offer { term, position, adoption: Adoption::NONE, admits: None };
    assert_eq!(world.peer_says(6, offer), Reply::Offered { term });
    let vote = Request::Vote(Candidacy { term, holds: Term(5), position });
    assert_eq!(world.peer_says(6, vote), Reply::Refused(Refusal::Void));
    assert_eq!(world.tell(Input::Join(term)).outputs.taken, Ok(()));
}

#[test]
fn a_sole_replica_that_started_before_gives_the_others_time_to_notice() {
    let started = ReplicaRecord { boot: Boot(1), ..sole() };
    let settings = Settings::for_lease(D);
    let (mut replica, _) = Replica::start(at(100), started, Position(10), settings, SEED, Rules::KEPT);
    let step = replica.handle(at(104), Input::Tick);
    assert_eq!(step.outputs.view.authority(), None);
    let step = replica.handle(at(105), Input::Tick);
    assert!(step.outputs.view.authority().is_some());
}
