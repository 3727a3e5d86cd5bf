//! What voters say to one another and what they keep: plain types, no behaviour.
//!
//! Every request gets exactly one reply. Both are frozen by golden vectors (`tests/vectors.rs`): a change of any
//! byte is a new ALPN. Variants are numbered in the order in which they stand here.

use serde::{Deserialize, Serialize};

use crate::ids::{
    Boot, ClusterId, ClusterName, Incarnation, LinkId, LockName, NodeId, Position, ResourceName, Term, Token,
    VoterId,
};
use crate::time::Millis;

/// Lives that were given up and are remembered as such; with one more, the earliest is forgotten.
pub const BANNED_MAX: usize = 16;

/// Earlier lives of the peer that a replica keeps in mind: with the present one, and the one that it voted for, all of
/// them can be given up at once.
pub const LIVES_MET_MAX: usize = 2;

/// What a cluster protects; chosen when it is made and never changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Two copies of data: the whole of the vote applies.
    Replicated,
    /// No data: leadership alone, always under a lease.
    Leadership,
}

/// Which part a voter plays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Holds data and may lead.
    Replica,
    /// Votes, holds nothing.
    Witness,
}

/// What a voter's durable state is worth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// New or lost: grants nothing and cannot stand until it is taken in.
    Blank,
    /// A full voter.
    Member,
    /// A replica that is destroying what it had in order to copy the leader: it grants no vote except to that
    /// leader, and does not stand until it joins.
    Resyncing(Incarnation),
    /// A witness with `strict_boot` that has just started: a full voter that grants nothing until a current leader has
    /// said that its state is the one that it knows. Said in greetings, never kept.
    Unvalidated,
}

/// Which witness a replica recognises, and since when. Ordered by its stamp: an adoption never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Adoption {
    /// The term in which it was adopted.
    pub term: Term,
    /// Counts adoptions within that term.
    pub ordinal: u32,
    /// The witness's incarnation; [`Incarnation::NIL`] when no witness was taken in yet.
    pub incarnation: Incarnation,
}

impl Adoption {
    /// No witness yet.
    pub const NONE: Adoption = Adoption { term: Term::ZERO, ordinal: 0, incarnation: Incarnation::NIL };
}

/// A number that both ends of a link change together, so that an end restored to an old image no longer fits. The upper
/// half of each counts links, the lower half is drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Ratchet {
    /// Held by both ends.
    pub current: u64,
    /// Proposed, and kept beside the current one until the other end has shown that it has it; 0 when there is none.
    pub pending: u64,
}

/// What a voter durably said of itself, as another voter remembers it. (§7)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Remembered {
    /// Of whom.
    pub voter: VoterId,
    /// Its highest boot counter.
    pub boot: Boot,
    /// Its highest term.
    pub term: Term,
    /// The term in which it took part when it last stated how far its data reaches.
    pub took_part: Term,
    /// How far its data reached then, at most.
    pub position: Position,
    /// The number of the links between the two.
    pub ratchet: Ratchet,
}

/// A term and to whom it was given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Word {
    /// The term.
    pub term: Term,
    /// The replica that has it, if any.
    pub to: Option<VoterId>,
}

/// Who speaks: stands at the head of every message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Sender {
    /// The cluster; [`ClusterId::NIL`] from a voter that was not taken in yet.
    pub cluster: ClusterId,
    /// Which life of which node.
    pub voter: VoterId,
    /// Its boot counter.
    pub boot: Boot,
    /// Its highest durable term.
    pub term: Term,
}

/// What a candidate shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Candidacy {
    /// The term that it stands for.
    pub term: Term,
    /// The newest term of which it holds everything acknowledged below, and in which it takes part.
    pub holds: Term,
    /// How far its data reaches.
    pub position: Position,
}

/// The first exchange on a link, the same in both directions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The cluster's name, which tells a witness of many clusters what the link is about.
    pub name: ClusterName,
    /// What the sender believes that the cluster protects.
    pub kind: Kind,
    /// The sender's part.
    pub part: Part,
    /// What the sender's state is worth.
    pub standing: Standing,
    /// `holds` of a replica, the confirmed term of a witness.
    pub holds: Term,
    /// A replica's durable position.
    pub position: Position,
    /// A replica that is sole.
    pub sole: bool,
    /// A replica that leads its term.
    pub leads: bool,
    /// The witness that a replica recognises.
    pub adoption: Adoption,
    /// What the sender remembers of the receiver, or of an earlier life of it.
    pub remembers: Option<Remembered>,
    /// In a greeting: counts the greetings of this run to this node, so that one that was overtaken is void. In the
    /// answer: drawn for this link alone, it names the link from now on.
    pub nonce: u64,
    /// Lives that were given up by an operator.
    pub banned: [Incarnation; BANNED_MAX],
}

/// What one voter asks of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "a message lives for one exchange, and plain values are simpler"
)]
pub enum Request {
    /// Opens a link.
    Hello(Hello),
    /// "Would you vote for me?" Nothing is promised or raised. (§4)
    PreVote(Candidacy),
    /// "Vote for me." (§4)
    Vote(Candidacy),
    /// Leader to witness: "in this term I go on alone." (§4)
    Confirm {
        /// The term that the sender leads.
        term: Term,
        /// How long the sender's leases are: how long others shall be told that it was heard.
        lease: Millis,
    },
    /// Leader to peer: "join my term once you hold everything up to here." (§5)
    Offer {
        /// The term.
        term: Term,
        /// What the peer has to hold, the mark that begins the term included.
        position: Position,
        /// The witness that the leader recognises.
        adoption: Adoption,
        /// The blank life that the leader, being sole when it opened this term, takes in.
        admits: Option<Incarnation>,
    },
    /// Peer to leader: "I hold everything up to there, durably, and take part in your term." (§5)
    Joined {
        /// The term.
        term: Term,
        /// The position of the offer.
        position: Position,
    },
    /// Leader to follower: "promise not to stand or vote for this long." (§6)
    Renew {
        /// The term.
        term: Term,
        /// Names the answer.
        sequence: u64,
        /// The span of the promise.
        lease: Millis,
    },
    /// Leader to follower: "I have stopped; your promise of this term is given back." (§6)
    Release {
        /// The term.
        term: Term,
        /// How far the leader's data reaches.
        position: Position,
    },
    /// Paired leader to peer: "recognise this witness from now on." (§7)
    Adopt {
        /// The term.
        term: Term,
        /// The new adoption.
        adoption: Adoption,
    },
    /// Leader to a blank witness: "you are taken in." (§7)
    Admit {
        /// The term.
        term: Term,
        /// What the cluster protects.
        kind: Kind,
        /// The witness's incarnation, as the leader (and the peer of a paired one) adopted it.
        adoption: Adoption,
        /// Whether the leader is solo: then the term is confirmed as well.
        solo: bool,
        /// The longest lease that an earlier witness may have promised.
        longest_lease: Millis,
    },
    /// Leader to a witness with `strict_boot`: "your state is the one that I know." (§7)
    Validate {
        /// The term.
        term: Term,
        /// Whether the leader is solo: then nobody else had to vouch, and the term is confirmed as well.
        solo: bool,
        /// The nonce of the link.
        nonce: u64,
    },
    /// Paired leader to peer: "do you still take part in my term? The witness asks, by this nonce." (§7)
    Vouch {
        /// The term.
        term: Term,
        /// The nonce of the link between witness and leader.
        nonce: u64,
    },
    /// Whoever dialled, as its first words on the link: "I keep what the greeting changed." (§7)
    Linked,
    /// Anyone whose key is pinned: "how are you?"
    Status,
    /// Peer to leader: about a named lease. (§8)
    Name(NameRequest),
}

/// What a holder or an operator wants of the leader. (§8)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum NameRequest {
    /// "Let me hold this name."
    Acquire {
        /// Which.
        name: LockName,
        /// For how long, unless it is renewed.
        lease: Millis,
        /// Drawn for this attempt: asked again with the same one, it is the same attempt.
        nonce: u64,
    },
    /// "I hold it on."
    Renew {
        /// Which.
        name: LockName,
        /// Under which it is held.
        token: Token,
    },
    /// "I hold it no longer."
    Release {
        /// Which.
        name: LockName,
        /// Under which it was held.
        token: Token,
    },
    /// An operator: "whoever holds it shall let go."
    Revoke {
        /// Which.
        name: LockName,
    },
}

/// What the leader answers about a named lease. (§8)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum NameReply {
    /// To `Acquire`.
    Granted {
        /// Higher than any that this name had.
        token: Token,
    },
    /// To `Renew`.
    Renewed {
        /// Of the request.
        token: Token,
    },
    /// To `Release`: it is not held under this token.
    Released {
        /// Of the request.
        token: Token,
    },
    /// To `Revoke`: it is not renewed any more.
    Revoked {
        /// The node of its holder.
        from: NodeId,
        /// Under which it is held.
        token: Token,
        /// When it is free at the latest.
        left: Millis,
    },
    /// No, and why.
    Refused(NameRefusal),
}

/// Why a name is not granted or renewed.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, thiserror::Error,
)]
#[serde(rename_all = "snake_case")]
pub enum NameRefusal {
    /// The one asked has no right to act as leader.
    #[error("the node asked does not lead at present")]
    NotLeader,
    /// An earlier leader may have granted it.
    #[error(
        "a new leader grants no name before those of its predecessor have ended; that is in {left:?} at most"
    )]
    HoldOff {
        /// How long.
        left: Millis,
    },
    /// Somebody holds it.
    #[error("it is held on {by} under token {token}, for {left:?} at least unless it is given back")]
    Held {
        /// On which node.
        by: NodeId,
        /// Under which token.
        token: Token,
        /// How long, unless it is renewed.
        left: Millis,
    },
    /// It is not held, or under another token.
    #[error("it is not held under this token: it ended or was given back, or the leader has changed")]
    Lost,
    /// An operator has taken it back.
    #[error("an operator has taken it back")]
    Revoked,
    /// There is no room.
    #[error("as many names are held as one cluster may have")]
    Full,
    /// The span is out of bounds.
    #[error("the span of the lease is out of bounds")]
    BadLease,
    /// The numbers of this term are used up.
    #[error(
        "the leader has granted as often as a term has numbers for; lifted by another term, as by `tiebreak resign`"
    )]
    Spent,
}

/// What the other one answers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "a message lives for one exchange, and plain values are simpler"
)]
pub enum Reply {
    /// To `Hello`.
    Hello(Hello),
    /// To `PreVote`: would grant.
    PreVoted {
        /// The term asked for.
        term: Term,
    },
    /// To `Vote`: granted, durably.
    Voted {
        /// The term granted.
        term: Term,
    },
    /// To `Confirm`: done, durably.
    Confirmed {
        /// The term confirmed.
        term: Term,
    },
    /// To `Offer`: heard. `Joined` follows as a request when the data is there.
    Offered {
        /// The term offered.
        term: Term,
    },
    /// To `Joined`: the leader has settled.
    Settled {
        /// The term.
        term: Term,
    },
    /// To `Renew`: promised.
    Renewed {
        /// The term.
        term: Term,
        /// Of the request.
        sequence: u64,
    },
    /// To `Release`.
    Released {
        /// The term.
        term: Term,
    },
    /// To `Adopt`: done, durably.
    Adopted {
        /// The adoption that the peer now has.
        adoption: Adoption,
    },
    /// To `Admit`: done, durably.
    Admitted {
        /// The term.
        term: Term,
    },
    /// To `Validate`: done.
    Validated {
        /// The term.
        term: Term,
    },
    /// To `Vouch`: yes.
    Vouched {
        /// The term.
        term: Term,
        /// Of the request.
        nonce: u64,
    },
    /// To `Linked`: so do I.
    Linked,
    /// To `Status`.
    Status(Box<Report>),
    /// No, and why. A refusal changes nothing.
    Refused(Refusal),
    /// The version of the message is not spoken here.
    Versions {
        /// The lowest version spoken.
        lowest: u16,
        /// The highest version spoken.
        highest: u16,
    },
    /// To `Name`.
    Name(NameReply),
}

/// Why not. Each says what would lift it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, thiserror::Error,
)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The witness confirmed another leader, and the candidate does not hold what that one acknowledged since.
    #[error(
        "it holds everything of term {holds} only, and term {confirmed} was confirmed to {to}, which went on alone: \
         it may miss acknowledged writes; lifted when {to} is back and takes it in"
    )]
    Stale {
        /// What the candidate holds.
        holds: Term,
        /// The confirmed term.
        confirmed: Term,
        /// To whom it was confirmed.
        to: NodeId,
    },
    /// The term was given to somebody else, or is over.
    #[error("term {term} is the lowest that was not given away yet; lifted by asking for a higher one")]
    TermSpent {
        /// The lowest term that could still be granted.
        term: Term,
    },
    /// The replica that was asked holds more than the candidate.
    #[error(
        "the one asked holds more (term {holds}, position {position}); lifted when the candidate has joined a newer term"
    )]
    Behind {
        /// What the one asked holds.
        holds: Term,
        /// How far its data reaches.
        position: Position,
    },
    /// A promise to another leader runs, or the one asked leads.
    #[error("a lease of the present leader runs; lifted when it has ended, in {left:?} at most")]
    LeaseRuns {
        /// How long at most.
        left: Millis,
    },
    /// The one asked is sole: nobody can be elected without it, and it votes for nobody.
    #[error(
        "it went on alone and may be the only one that holds everything; lifted when it takes the peer in"
    )]
    Sole,
    /// The witness heard another leader a moment ago.
    #[error("another leader was heard a moment ago; lifted in {left:?} unless it is heard again")]
    Busy {
        /// How long.
        left: Millis,
    },
    /// The one asked has just started, and an earlier life of it may have promised a lease.
    #[error("it has just started and may have promised a lease before; lifted in {left:?}")]
    HoldOff {
        /// How long.
        left: Millis,
    },
    /// The one asked is new, or lost its state.
    #[error("it is blank: new, or its state was lost; lifted when a leader takes it in")]
    Blank,
    /// The one asked is copying from a leader and may vote for that one only.
    #[error("it is copying from its leader; lifted when it has joined")]
    Resyncing,
    /// The candidate holds nothing complete.
    #[error("the candidate holds nothing complete; lifted when it has joined a leader's term")]
    HoldsNothing,
    /// The one asked recognises another witness, or the witness was replaced.
    #[error("this witness is not the one that the cluster recognises; lifted when a leader takes it in")]
    OtherWitness,
    /// The request names a cluster that the one asked does not belong to.
    #[error("it belongs to another cluster; compare the cluster ids that `tiebreak status` shows")]
    OtherCluster,
    /// The request belongs to an earlier link, term, offer or nonce.
    #[error("it came too late: the link, the term or the offer that it belongs to is over")]
    Void,
    /// The one asked does not lead, so it cannot answer that.
    #[error("it does not lead term {term}")]
    NotLeader {
        /// The term of the request.
        term: Term,
    },
    /// Both nodes dialled at the same time, and the other connection is the one to use.
    #[error("both nodes dialled at once; the other connection is used")]
    Crossing,
    /// This voter answers such a request never, or never in this kind of cluster.
    #[error("it does not answer such a request")]
    NotServed,
    /// The one that asks has said more of itself before than its state knows: its state is an old image.
    #[error(
        "the state of the one that asks is older than what it said before (start {boot}, term {term}, link {links}): \
         it was restored from an image. It counts as lost; lifted when a leader takes it in as a blank node"
    )]
    Restored {
        /// The count of starts that it stated.
        boot: Boot,
        /// The highest term that it stated.
        term: Term,
        /// How many links the two have had.
        links: u32,
    },
    /// Two machines speak with one key and one state.
    #[error(
        "two copies of {life} run, with one key and one state, or {with} was copied. Stop one of them. If the one that is \
         kept is turned away, run `tiebreak replace` on it, or, if it went on alone, on {with}"
    )]
    Copied {
        /// The one that asks.
        life: NodeId,
        /// The one asked.
        with: NodeId,
    },
    /// An operator gave this life up (`tiebreak recover`).
    #[error(
        "this life was given up by an operator when another replica was recovered; it starts again as blank"
    )]
    Banned {
        /// Which life.
        life: Incarnation,
    },
    /// A witness with `strict_boot` has restarted, and nobody has told it yet that its state is the newest.
    #[error(
        "it has restarted, and with `strict_boot` it grants nothing before a leader tells it that its state is the \
         newest: a paired leader with its peer, or a sole one. If there is none for good, see `tiebreak recover`"
    )]
    Unvalidated,
}

/// The role of a replica, for people.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleName {
    /// Votes only.
    Witness,
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Leads, and may not acknowledge.
    Blocked,
    /// Leads, and acknowledges what is durable on both.
    Paired,
    /// Leads alone.
    Solo,
}

/// How a node sees its cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The cluster's name.
    pub name: ClusterName,
    /// What it protects.
    pub kind: Kind,
    /// The node's role.
    pub role: RoleName,
    /// What its state is worth.
    pub standing: Standing,
    /// A replica that is sole.
    pub sole: bool,
    /// A replica that has the right to act now.
    pub acts: bool,
    /// What is left of the lease; `None` when the leader needs none or the node does not lead.
    pub lease_left: Option<Millis>,
    /// The fencing token of the leader, when the node leads.
    pub token: Option<Token>,
    /// Whom it follows, or itself.
    pub leader: Option<NodeId>,
    /// A replica's `holds`.
    pub holds: Term,
    /// A replica's durable position.
    pub position: Position,
    /// The witness's promise, or a replica's vote.
    pub promised: Word,
    /// The witness's confirmation.
    pub confirmed: Word,
    /// The witness that a replica recognises.
    pub adoption: Adoption,
    /// The other voters and whether they are linked.
    pub others: [Option<OtherReport>; 2],
    /// The last refusal that the node met or gave, and whose it was.
    pub refused: Option<(NodeId, Refusal)>,
}

/// How a node sees another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OtherReport {
    /// Its name.
    pub node: NodeId,
    /// Its part.
    pub part: Part,
    /// The link, if there is one.
    pub link: Option<LinkId>,
    /// Which life of it is linked.
    pub incarnation: Incarnation,
    /// How long ago it was heard, where that is known.
    pub silent_for: Option<Millis>,
}

/// What a witness keeps of one cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct WitnessRecord {
    /// Its own name.
    pub node: NodeId,
    /// The cluster's name.
    pub name: ClusterName,
    /// The cluster; nil until admitted.
    pub cluster: ClusterId,
    /// What it protects.
    pub kind: Kind,
    /// This life of the vote.
    pub incarnation: Incarnation,
    /// How often it started.
    pub boot: Boot,
    /// Blank until a leader takes it in.
    pub standing: Standing,
    /// The vote.
    pub promised: Word,
    /// Who goes on alone.
    pub confirmed: Word,
    /// The longest lease that may have been promised.
    pub longest_lease: Millis,
    /// What each replica said of itself.
    pub remembers: [Option<Remembered>; 2],
    /// Lives that were given up by an operator and must not come back.
    pub banned: [Incarnation; BANNED_MAX],
}

/// What a replica keeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// Its own name.
    pub node: NodeId,
    /// The cluster's name.
    pub name: ClusterName,
    /// The cluster; nil until it joined.
    pub cluster: ClusterId,
    /// What it protects.
    pub kind: Kind,
    /// This life of the replica.
    pub incarnation: Incarnation,
    /// How often it started.
    pub boot: Boot,
    /// What the state is worth.
    pub standing: Standing,
    /// The highest term.
    pub term: Term,
    /// For whom it voted in that term.
    pub voted_for: Option<VoterId>,
    /// The newest term of which it holds everything acknowledged below, and in which it takes part.
    pub holds: Term,
    /// "Nobody can be elected without me."
    pub sole: bool,
    /// The witness that it recognises.
    pub adoption: Adoption,
    /// The longest lease that it may have promised.
    pub longest_lease: Millis,
    /// What peer and witness said of themselves.
    pub remembers: [Option<Remembered>; 2],
    /// Earlier lives of the peer that took part, the newest last: one of them may be the one that an operator gives up.
    pub met: [Incarnation; LIVES_MET_MAX],
    /// Lives that were given up by an operator and must not come back.
    pub banned: [Incarnation; BANNED_MAX],
}

/// What the gate of a single resource keeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct GateRecord {
    /// The highest token admitted.
    pub highest: Token,
}

/// What the gates of many resources keep of one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ResourceRecord {
    /// Which one.
    pub resource: ResourceName,
    /// The highest token admitted.
    pub highest: Token,
}

/// Any record of the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Record {
    /// Of a witness.
    Witness(WitnessRecord),
    /// Of a replica.
    Replica(ReplicaRecord),
    /// Of a gate.
    Gate(GateRecord),
    /// Of one of many gates.
    Resource(ResourceRecord),
}
