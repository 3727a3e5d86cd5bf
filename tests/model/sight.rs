//! What the search has to know of states and messages in order to see what may happen to them: read from the shipped
//! types once, when they turn up.

use tiebreak::ids::{Position, Term};
use tiebreak::message::{Adoption, Reply, Request, Standing, Word};
use tiebreak::testing::{Right, Role, Witness};

use crate::node::{Greeting, Node, Witnessed, is_second};
use crate::talk::{Body, Message, node, witness_slot};
use crate::world::leader_mark;

/// What a replica is, for the search to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stance {
    Follower,
    Candidate,
    Leader(Right),
}

/// What the search has to know of a replica's state.
#[derive(Clone, Copy)]
pub(crate) struct Sight {
    pub(crate) term: u8,
    pub(crate) stance: Stance,
    pub(crate) sole: bool,
    pub(crate) may_stand: bool,
    /// It follows in the term that it has reached.
    pub(crate) takes_part: bool,
    /// How many writes it has.
    pub(crate) length: u8,
    pub(crate) log: u16,
    /// How far the offer that is out reaches.
    pub(crate) offer: Option<u8>,
    /// How far the offer that is heard reaches, and whether it begins with what is here.
    pub(crate) heard: Option<(u8, bool)>,
    pub(crate) knows_leader: bool,
    pub(crate) greeting: Greeting,
    pub(crate) met: Option<Witnessed>,
    pub(crate) adoption: Adoption,
}

/// What the search has to know of a witness.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    pub(crate) promised: u8,
    pub(crate) promised_to: u8,
    pub(crate) confirmed: u8,
    pub(crate) confirmed_to: u8,
    pub(crate) blank: bool,
    pub(crate) validated: bool,
    pub(crate) start: u8,
}

/// What the search has to know of a message.
#[derive(Clone, Copy)]
pub(crate) struct Gist {
    pub(crate) kind: Sort,
    pub(crate) term: u8,
    /// How far a log or a position reaches, or the start of a witness that is asked for.
    pub(crate) length: u8,
    pub(crate) slot: u8,
    /// In which start of the witness.
    pub(crate) start: u8,
    pub(crate) second_life: bool,
    pub(crate) adoption: Adoption,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sort {
    PeerVote,
    PeerVoted,
    Offer,
    Joined,
    Append,
    Adopt,
    Adopted,
    Vouch,
    Vouched,
    Renew,
    AskVote,
    AskConfirm,
    AskAdmit,
    AskValidate,
    AskRenew,
    ToldVoted,
    ToldConfirmed,
    ToldAdmitted,
    ToldValidated,
}

impl Sort {
    pub(crate) fn is_to_witness(self) -> bool {
        matches!(self, Sort::AskVote | Sort::AskConfirm | Sort::AskAdmit | Sort::AskValidate | Sort::AskRenew)
    }

    pub(crate) fn is_to_peer(self) -> bool {
        matches!(
            self,
            Sort::PeerVote
                | Sort::PeerVoted
                | Sort::Offer
                | Sort::Joined
                | Sort::Append
                | Sort::Adopt
                | Sort::Adopted
                | Sort::Vouch
                | Sort::Vouched
                | Sort::Renew
        )
    }
}

pub(crate) fn small(count: usize) -> u8 {
    u8::try_from(count).expect("few of everything within the bounds")
}

fn small_position(position: Position) -> u8 {
    u8::try_from(position.0).expect("few writes within the bounds")
}

/// The number of a link to a witness is that of the witness's start.
fn nonce_of(number: u64) -> u8 {
    u8::try_from(number).expect("few starts within the bounds")
}

pub(crate) fn term8(term: Term) -> u8 {
    u8::try_from(term.0).expect("few terms within the bounds")
}

pub(crate) fn sight(node: &Node, log: u16) -> Sight {
    let record = node.ballot.record();
    let (stance, offer) = match node.ballot.role() {
        Role::Follower { .. } => (Stance::Follower, None),
        Role::Candidate => (Stance::Candidate, None),
        Role::Leader { right, offer, .. } => {
            (Stance::Leader(*right), offer.map(|offer| small_position(offer.position)))
        }
    };
    let heard = match node.ballot.role() {
        Role::Follower { offer: Some(_), .. } => {
            node.offered.as_ref().map(|log| (small(log.len()), node.fits()))
        }
        _ => None,
    };
    Sight {
        term: term8(record.term),
        stance,
        sole: record.sole,
        may_stand: node.ballot.may_stand().is_ok(),
        takes_part: stance == Stance::Follower && record.holds == record.term,
        length: small(node.log.len()),
        log,
        offer,
        heard,
        knows_leader: matches!(node.ballot.role(), Role::Follower { leader: Some(_), .. }),
        greeting: node.greeting(),
        met: node.ballot.witness().map(|link| Witnessed {
            slot: small(witness_slot(link.who.incarnation)),
            standing: link.standing,
            start: u8::try_from(link.nonce).expect("few starts within the bounds"),
        }),
        adoption: record.adoption,
    }
}

pub(crate) fn words(witness: &Witness) -> Words {
    let record = witness.record();
    let mark = |word: &Word| {
        word.to.map_or(0, |voter| {
            leader_mark(usize::from(voter.node == node("b")), is_second(voter.incarnation))
        })
    };
    Words {
        promised: term8(record.promised.term),
        promised_to: mark(&record.promised),
        confirmed: term8(record.confirmed.term),
        confirmed_to: mark(&record.confirmed),
        blank: record.standing == Standing::Blank,
        validated: witness.standing() != Standing::Unvalidated,
        start: u8::try_from(record.boot.0).expect("few starts within the bounds"),
    }
}

pub(crate) fn gist(message: &Message) -> Gist {
    let mut gist = Gist {
        kind: Sort::PeerVote,
        term: 0,
        length: 0,
        slot: 0,
        start: 0,
        second_life: false,
        adoption: Adoption::NONE,
    };
    let (kind, term) = match message {
        Message::Peer { from, body } => {
            gist.second_life = is_second(from.voter.incarnation);
            match body {
                Body::Request(Request::Vote(candidacy), _) => (Sort::PeerVote, candidacy.term),
                Body::Request(Request::Offer { term, .. }, log) => {
                    gist.length = small(log.len());
                    (Sort::Offer, *term)
                }
                Body::Request(Request::Joined { term, position }, _) => {
                    gist.length = small_position(*position);
                    (Sort::Joined, *term)
                }
                Body::Request(Request::Adopt { term, adoption }, _) => {
                    gist.adoption = *adoption;
                    (Sort::Adopt, *term)
                }
                Body::Request(Request::Renew { term, .. }, _) => (Sort::Renew, *term),
                Body::Request(Request::Vouch { term, nonce }, _) => {
                    gist.length = nonce_of(*nonce);
                    (Sort::Vouch, *term)
                }
                Body::Reply(Reply::Vouched { term, nonce }) => {
                    gist.length = nonce_of(*nonce);
                    (Sort::Vouched, *term)
                }
                Body::Reply(Reply::Voted { term }) => (Sort::PeerVoted, *term),
                Body::Reply(Reply::Adopted { adoption }) => {
                    gist.adoption = *adoption;
                    (Sort::Adopted, adoption.term)
                }
                Body::Append(term, log) => {
                    gist.length = small(log.len());
                    (Sort::Append, *term)
                }
                other => unreachable!("nobody says {other:?}"),
            }
        }
        Message::Ask { from, slot, start, request } => {
            gist.start = nonce_of(*start);
            gist.second_life = is_second(from.voter.incarnation);
            gist.slot = small(*slot);
            match request {
                Request::Vote(candidacy) => (Sort::AskVote, candidacy.term),
                Request::Confirm { term, .. } => (Sort::AskConfirm, *term),
                Request::Admit { term, adoption, .. } => {
                    gist.adoption = *adoption;
                    (Sort::AskAdmit, *term)
                }
                Request::Validate { term, nonce, .. } => {
                    gist.length = nonce_of(*nonce);
                    (Sort::AskValidate, *term)
                }
                Request::Renew { term, .. } => (Sort::AskRenew, *term),
                other => unreachable!("nobody asks {other:?}"),
            }
        }
        Message::Told { life, from, start, reply } => {
            gist.start = nonce_of(*start);
            gist.second_life = is_second(*life);
            gist.slot = small(witness_slot(from.voter.incarnation));
            match reply {
                Reply::Voted { term } => (Sort::ToldVoted, *term),
                Reply::Confirmed { term } => (Sort::ToldConfirmed, *term),
                Reply::Admitted { term } => (Sort::ToldAdmitted, *term),
                Reply::Validated { term } => (Sort::ToldValidated, *term),
                other => unreachable!("no witness says {other:?}"),
            }
        }
    };
    Gist { kind, term: term8(term), ..gist }
}
