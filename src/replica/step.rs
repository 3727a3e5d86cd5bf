//! What goes into the voter and what comes out of it.

use std::time::Duration;

use crate::ids::{Incarnation, LinkId, Position, Term, VoterId};
use crate::limits::LEASE_DEFAULT;
use crate::message::{Part, Refusal, ReplicaRecord, Reply, Request, Sender};

use super::view::View;

/// What the operator chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Settings {
    /// The span of a lease: `D`.
    pub lease: Duration,
    /// How long a peer may be silent before its leader goes on alone; `None` for never.
    pub solo_after: Option<Duration>,
    /// Whether a sole leader goes on when the witness is gone as well.
    pub alone: Alone,
}

impl Settings {
    /// The defaults for a lease of this span: alone after half of it, and on when the witness is gone too.
    pub fn for_lease(lease: Duration) -> Settings {
        Settings { lease, solo_after: Some(lease / 2), alone: Alone::Continue }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::for_lease(LEASE_DEFAULT)
    }
}

/// What a sole leader does when it reaches nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Alone {
    /// It goes on: it is a quorum of one.
    Continue,
    /// It stops acting until it reaches somebody.
    Stop,
}

/// Something that happened to the replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Time passed.
    Tick,
    /// A request of the peer arrived. A `Hello` brings the link up.
    Asked {
        /// On this link.
        link: LinkId,
        /// Of whom.
        from: Sender,
        /// The request.
        request: Request,
    },
    /// A reply arrived. A `Hello` brings the link up.
    Answered {
        /// On this link.
        link: LinkId,
        /// Of which other voter.
        part: Part,
        /// Of whom.
        from: Sender,
        /// The reply.
        reply: Reply,
    },
    /// A greeting of this replica was refused: there is no link.
    NotGreeted {
        /// Which life of this replica the greeting was of: an answer may come when another one has begun.
        life: Incarnation,
        /// Which other voter it is.
        part: Part,
        /// Who it is.
        by: VoterId,
        /// Why.
        refusal: Refusal,
    },
    /// A link is over.
    LinkDown(LinkId),
    /// Whether this replica may stand from now on. Until it is told, it may.
    Stands(bool),
    /// The data layer made more durable (or, in a resync, less).
    Durable(Position),
    /// The data layer, leading, wants the peer to join: it holds this much, and acknowledged no more.
    Offer(Position),
    /// The data layer, following, holds durably what the leader of this term offered.
    Join(Term),
    /// The data layer, following, is about to destroy what it has in order to copy the leader.
    Resync,
    /// The data layer, leading, finds that the peer no longer makes data durable.
    Stalled,
    /// Hand over to the peer.
    Resign,
    /// After `Resign`: the service has stopped and the peer has everything.
    Stopped,
}

/// What a replica asks of another voter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ask {
    /// On this link.
    pub link: LinkId,
    /// The other end.
    pub part: Part,
    /// The request.
    pub request: Request,
}

/// What may be said and shown once the record is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outputs {
    /// The head of what is sent.
    pub sender: Sender,
    /// The answer to the request that was handled.
    pub answer: Option<Reply>,
    /// What is asked of others.
    pub asks: Vec<Ask>,
    /// What the replica is now.
    pub view: View,
    /// Whether the command was taken, and if not why.
    pub taken: Result<(), Refusal>,
}

/// What an input led to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step {
    /// To be synced before anything of `outputs` leaves.
    pub record: Option<ReplicaRecord>,
    /// What follows.
    pub outputs: Outputs,
}
