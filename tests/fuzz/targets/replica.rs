//! A replica's voter, told anything by anybody in any order, killed before and after its records are durable.
//!
//! The oracle knows nothing of how the voter decides. It sees what was made durable and what was said afterwards:
//! - 4: terms, `holds`, adoptions, starts and tokens never go back, but for `holds := 0` when a destructive copy
//!   begins; a vote in a term is never changed, over all restarts;
//! - 5: what is said or shown is in the record that is durable then.

use std::collections::BTreeMap;
use std::time::Duration;

use tiebreak::ids::{LinkId, Position, Term, Token, VoterId};
use tiebreak::message::{Kind, Part, Ratchet, Remembered, ReplicaRecord, Reply, Request, Standing};
use tiebreak::testing::{Input, Outputs, Replica, Right, RoleView, Rules, Settings, Step};
use tiebreak::time::Moment;

use super::draw::{CLUSTER, Draw, LIFE, cluster_name, node};

struct Oracle {
    /// For whom it voted, itself included, as far as that was said.
    votes: BTreeMap<Term, VoterId>,
    token: Token,
    /// The highest token of earlier starts: a write of theirs may still be on its way.
    earlier_token: Token,
    /// To whom a lease was promised, and until when at least; a restart does not undo it.
    promised: Option<(VoterId, Moment)>,
    disk: ReplicaRecord,
}

impl Oracle {
    fn me(&self) -> VoterId {
        VoterId { node: self.disk.node, incarnation: self.disk.incarnation }
    }

    fn vote(&mut self, term: Term, to: VoterId) {
        let given = *self.votes.entry(term).or_insert(to);
        assert_eq!(given, to, "two votes in {term}");
    }

    fn durable(&mut self, new: ReplicaRecord) {
        let old = std::mem::replace(&mut self.disk, new);
        if old.incarnation != new.incarnation {
            self.votes.clear();
            (self.token, self.earlier_token) = (Token::default(), Token::default());
            return;
        }
        assert!(new.term >= old.term, "a term went back");
        let copies = matches!(new.standing, Standing::Resyncing(_)) && new.holds == Term::ZERO;
        assert!(new.holds >= old.holds || copies, "`holds` went back");
        assert!(new.holds <= new.term, "it holds a term that it has not reached");
        assert!(
            (new.adoption.term, new.adoption.ordinal) >= (old.adoption.term, old.adoption.ordinal),
            "an adoption went back"
        );
        assert!(new.boot >= old.boot, "the count of starts went back");
        let same = new.term == old.term && old.voted_for.is_some();
        assert!(!same || new.voted_for == old.voted_for, "a vote was changed");
    }

    /// What leaves, with this on disk.
    fn said(&mut self, now: Moment, asked: Option<(VoterId, &Request)>, outputs: &Outputs) {
        let disk = self.disk;
        let promised = self.promised.filter(|(_, until)| now < *until).map(|(leader, _)| leader);
        assert_eq!(outputs.sender.term, disk.term, "a term was stated that is not durable");
        assert_eq!(outputs.sender.voter, self.me());
        assert_eq!(outputs.answer.is_some(), asked.is_some(), "one answer to each request");
        if let (Some((from, request)), Some(answer)) = (asked, &outputs.answer) {
            match (request, answer) {
                (Request::Vote(candidacy), Reply::Voted { term }) => {
                    assert_eq!(*term, candidacy.term);
                    assert!(!disk.sole && disk.standing != Standing::Blank, "it may not vote");
                    // Answering may be followed by something else in the same step, but never below the vote.
                    assert!(disk.term >= *term, "said, not kept");
                    assert!(disk.term > *term || disk.voted_for == Some(from), "said, not kept");
                    self.vote(*term, from);
                }
                (Request::Renew { lease, .. }, Reply::Renewed { .. }) => {
                    assert!(disk.longest_lease >= *lease, "a lease was promised that a restart forgets");
                    let until = now + lease.span();
                    self.promised =
                        Some((from, self.promised.map_or(until, |(_, before)| before.max(until))));
                }
                (Request::Release { .. }, Reply::Released { .. }) if promised == Some(from) => {
                    self.promised = None;
                }
                (Request::Adopt { adoption, .. }, Reply::Adopted { adoption: mine }) => {
                    assert!(*mine == disk.adoption && disk.adoption >= *adoption, "said, not kept");
                }
                (Request::Joined { .. }, Reply::Settled { term }) => {
                    assert!(disk.holds >= *term, "said, not kept");
                }
                (
                    _,
                    Reply::Voted { .. }
                    | Reply::Renewed { .. }
                    | Reply::Adopted { .. }
                    | Reply::Settled { .. },
                ) => {
                    panic!("{answer:?} to {request:?}");
                }
                _ => {}
            }
        }
        for ask in &outputs.asks {
            match ask.request {
                Request::Vote(candidacy) => {
                    assert_eq!(
                        (candidacy.term, disk.voted_for),
                        (disk.term, Some(self.me())),
                        "said, not kept"
                    );
                    assert!(disk.holds > Term::ZERO && !disk.sole, "it may not stand");
                    assert_eq!(candidacy.holds, disk.holds, "it shows what it does not hold");
                    assert_eq!(promised, None, "it stands while a lease runs that it promised");
                    self.vote(candidacy.term, self.me());
                }
                Request::PreVote(candidacy) => assert_eq!(candidacy.holds, disk.holds),
                Request::Joined { term, .. } => {
                    assert_eq!((term, disk.term), (disk.holds, disk.holds), "not kept");
                }
                Request::Offer { term, .. } => {
                    assert!(term == disk.term && !disk.sole, "a term was offered that is not open on disk");
                }
                Request::Confirm { term, .. } => {
                    assert_eq!((term, disk.voted_for), (disk.term, Some(self.me())));
                }
                Request::Admit { adoption, .. } => {
                    assert_eq!(
                        adoption.incarnation, disk.adoption.incarnation,
                        "admitted before it is adopted"
                    );
                }
                _ => {}
            }
        }
        if let RoleView::Leader { token, right, .. } = outputs.view.role {
            assert_eq!(
                (token.term(), disk.voted_for),
                (disk.term, Some(self.me())),
                "it leads, and has not said so"
            );
            assert!(token >= self.token, "a token went back");
            assert!(token > self.earlier_token, "a token of an earlier start");
            self.token = token;
            match right {
                Right::Solo => assert!(disk.sole, "alone without a record of it"),
                Right::Paired => assert!(disk.holds == disk.term && !disk.sole, "paired and not settled"),
                Right::Blocked => assert!(!disk.sole),
            }
        }
    }
}

pub fn run(bytes: &[u8]) {
    run_with(bytes, Rules::KEPT);
}

/// The same for a voter that breaks a rule: the oracle has to notice.
pub fn run_with(bytes: &[u8], rules: Rules) {
    let mut draw = Draw::new(bytes);
    let first = match draw.below(3) {
        0 => Replica::blank(node("a"), cluster_name(), Kind::Replicated, LIFE),
        1 => Replica::init(node("a"), cluster_name(), Kind::Replicated, LIFE, CLUSTER),
        _ => ReplicaRecord {
            sole: false,
            ..Replica::init(node("a"), cluster_name(), Kind::Replicated, LIFE, CLUSTER)
        },
    };
    let mut oracle = Oracle {
        votes: BTreeMap::new(),
        token: Token::default(),
        earlier_token: Token::default(),
        promised: None,
        disk: first,
    };
    let mut now = Moment(0);
    let settings = Settings::for_lease(Duration::from_secs(1));
    loop {
        let position = draw.position();
        let seed = u128::from(draw.byte());
        let before = oracle.disk;
        let (mut replica, step) = Replica::start(now, before, position, settings, seed, rules);
        let counted = step.record.expect("a start is counted");
        assert!(counted.boot > before.boot, "a start that is not counted");
        oracle.durable(counted);
        oracle.earlier_token = oracle.token;
        oracle.said(now, None, &step.outputs);
        if live(&mut draw, &mut replica, &mut oracle, &mut now) {
            return;
        }
    }
}

/// Until the process dies; whether it is over.
fn live(draw: &mut Draw<'_>, replica: &mut Replica, oracle: &mut Oracle, now: &mut Moment) -> bool {
    while !draw.is_over() {
        let fate = draw.byte();
        // Up to about a lease at once.
        *now = Moment(now.0.saturating_add(u64::from(fate & 7) << 27));
        if fate >= 250 {
            return false;
        }
        draw.near = oracle.disk.term;
        let input = input(draw, replica);
        let asked = match &input {
            Input::Asked { from, request, .. } => Some((from.voter, *request)),
            _ => None,
        };
        let Step { record, outputs } = replica.handle(*now, input);
        if fate >= 244 {
            // It dies before anything is durable, and nothing was said.
            return false;
        }
        if let Some(record) = record {
            oracle.durable(record);
        }
        if fate >= 238 {
            // It dies with the record on disk, and nothing was said.
            return false;
        }
        assert_eq!(*replica.ballot().record(), oracle.disk, "what it goes on with is not what is durable");
        oracle.said(*now, asked.as_ref().map(|(from, request)| (*from, request)), &outputs);
        assert!(replica.wake_at(*now) > *now, "it would spin");
    }
    true
}

fn input(draw: &mut Draw<'_>, replica: &Replica) -> Input {
    let link = LinkId(u64::from(draw.below(3)) + 1);
    draw.fitting = fitting(draw, replica, Part::Replica);
    match draw.below(17) {
        16 => {
            let (part, name) = if draw.flag() { (Part::Witness, "w") } else { (Part::Replica, "b") };
            Input::NotGreeted { part, by: draw.sender(&[name]).voter, refusal: draw.refusal() }
        }
        0 | 1 => Input::Tick,
        2..=5 => {
            let from = draw.sender(&["b"]);
            Input::Asked { link, from, request: draw.request() }
        }
        6..=9 => {
            let (part, name) = if draw.flag() { (Part::Witness, "w") } else { (Part::Replica, "b") };
            // Witness and peer are never on one link.
            let link = if part == Part::Witness { LinkId(link.0 + 10) } else { link };
            let from = draw.sender(&[name]);
            draw.fitting = fitting(draw, replica, part);
            let mut reply = draw.reply();
            if let Reply::Hello(hello) = &mut reply {
                hello.part = part;
            }
            Input::Answered { link, part, from, reply }
        }
        10 => Input::LinkDown(if draw.flag() { link } else { LinkId(link.0 + 10) }),
        11 => {
            Input::Durable(Position(replica.ballot().position().0.saturating_add(u64::from(draw.below(4)))))
        }
        12 => Input::Offer(draw.position()),
        13 => Input::Join(draw.term()),
        14 => match draw.below(3) {
            0 => Input::Resync,
            1 => Input::Durable(draw.position()),
            _ => Input::Stalled,
        },
        _ => {
            if draw.flag() {
                Input::Resign
            } else {
                Input::Stopped
            }
        }
    }
}

/// What an honest node remembers of this replica, and proposes.
fn fitting(draw: &mut Draw<'_>, replica: &Replica, part: Part) -> Option<Remembered> {
    let ballot = replica.ballot();
    let own = ballot.record().remembers[usize::from(part == Part::Witness)];
    let ratchet = own.map(|known| known.ratchet).unwrap_or_default();
    let pending = ((ratchet.current >> 32) + 1) << 32 | u64::from(draw.byte());
    Some(Remembered {
        voter: ballot.me(),
        boot: ballot.record().boot,
        term: ballot.record().term,
        took_part: Term::ZERO,
        position: Position(0),
        ratchet: Ratchet { current: ratchet.current, pending },
    })
}
