//! What is said in the search, and by what names.
//!
//! Every replica is kept as it sees itself: it is always "a", and its peer is always "b". Nothing in a `Ballot`
//! depends on the order of names, only on whether two are equal. So the two replicas share one table of states, and a
//! world in which they have changed places is the same world. On the way from one to the other a message has its
//! names turned round.

use tiebreak::ids::{Boot, ClusterId, ClusterName, Incarnation, LinkId, NodeId, Position, Term, VoterId};
use tiebreak::message::{
    Adoption, BANNED_MAX, Hello, Kind, Part, Ratchet, Remembered, Reply, Request, Sender, Standing,
};

pub(crate) const CLUSTER: ClusterId = ClusterId(1);
/// The live link to the peer, as its end numbers it.
pub(crate) const LINK: LinkId = LinkId(1);
/// A link to the peer that has just come up.
pub(crate) const NEW_LINK: LinkId = LinkId(2);
/// A link to the peer that is over. Only a broken rule lets anything in from it.
pub(crate) const EARLIER_LINK: LinkId = LinkId(9);
/// The link to the witness, at both ends.
pub(crate) const WITNESS_LINK: LinkId = LinkId(1_000);
/// A link to the witness that has just come up.
pub(crate) const NEW_WITNESS_LINK: LinkId = LinkId(1_001);

/// Which life of a replica: its first, or the one after it lost its disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Life {
    First,
    Second,
}

pub(crate) fn node(name: &str) -> NodeId {
    name.parse().expect("a name")
}

pub(crate) fn cluster_name() -> ClusterName {
    "c".parse().expect("a name")
}

/// A replica as it sees itself.
pub(crate) fn me(life: Life) -> VoterId {
    let incarnation = Incarnation(if life == Life::First { 1 } else { 5 });
    VoterId { node: node("a"), incarnation }
}

/// What is "a" for the one is "b" for the other.
pub(crate) fn turned(voter: VoterId) -> VoterId {
    let node = if voter.node == node("a") { node("b") } else { node("a") };
    VoterId { node, incarnation: turned_life(voter.incarnation) }
}

pub(crate) fn turned_life(life: Incarnation) -> Incarnation {
    match life {
        Incarnation(1) => Incarnation(2),
        Incarnation(2) => Incarnation(1),
        Incarnation(5) => Incarnation(6),
        Incarnation(6) => Incarnation(5),
        other => other,
    }
}

/// The two witnesses that there can be: the first, and the one that replaces it.
pub(crate) fn witness_life(slot: usize) -> Incarnation {
    Incarnation(3 + slot as u128)
}

pub(crate) fn witness_slot(life: Incarnation) -> usize {
    usize::from(life == witness_life(1))
}

/// The writes that a replica has, in their order.
pub(crate) type Log = Vec<u8>;

/// What goes from a replica to its peer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Body {
    /// An offer comes with the log that it offers.
    Request(Request, Log),
    Reply(Reply),
    /// A paired leader streams what it has.
    Append(Term, Log),
}

/// Something that was sent. It stays in flight for ever: so it may arrive late, twice, or never.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Message {
    /// To the peer, by the names of its sender.
    Peer { from: Sender, body: Body },
    /// To a witness in one of its starts, by the names of its sender.
    Ask { from: Sender, slot: usize, start: u64, request: Request },
    /// From a witness, by the names of its receiver.
    Told { life: Incarnation, from: Sender, start: u64, reply: Reply },
}

/// The head of a message without the hints in it. The count of starts is for the nets of §7, and the sender's term
/// tells the receiver only which terms are worth trying: the search lets it try any that exists.
pub(crate) fn bare(sender: Sender) -> Sender {
    Sender { boot: Boot(0), term: Term::ZERO, ..sender }
}

/// A replica's message in the names of its peer.
pub(crate) fn turned_body(from: &Sender, body: &Body) -> (Sender, Body) {
    let from = Sender { voter: turned(from.voter), ..*from };
    let body = match body {
        Body::Request(Request::Offer { term, position, adoption, admits }, log) => {
            let admits = admits.map(turned_life);
            let request = Request::Offer { term: *term, position: *position, adoption: *adoption, admits };
            Body::Request(request, log.clone())
        }
        other => other.clone(),
    };
    (from, body)
}

/// The greeting on a link: of all that is in it, the voter keeps what its sender's state is worth.
pub(crate) fn hello(part: Part, standing: Standing) -> Hello {
    Hello {
        name: cluster_name(),
        kind: Kind::Replicated,
        part,
        standing,
        holds: Term::ZERO,
        position: Position(0),
        sole: false,
        leads: false,
        adoption: Adoption::NONE,
        remembers: None,
        nonce: 0,
        banned: [Incarnation::NIL; BANNED_MAX],
    }
}

/// What a witness's answer to a greeting says: with the number of the link.
pub(crate) fn answer_of_witness(standing: Standing, to: VoterId, nonce: u64) -> Hello {
    let remembers = Remembered {
        voter: to,
        boot: Boot(0),
        term: Term::ZERO,
        took_part: Term::ZERO,
        position: Position(0),
        ratchet: Ratchet { current: 0, pending: 1 << 32 },
    };
    Hello { remembers: Some(remembers), nonce, ..hello(Part::Witness, standing) }
}
