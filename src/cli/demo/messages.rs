//! What travels over the demo's own TCP connections: a length of four bytes, then JSON.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::LinkStamp;
use crate::ids::{LinkId, Term, Token};

/// Longest frame: room for the ids of a whole log.
const FRAME_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// One entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Entry {
    /// Begins a term: what follows was written by its leader.
    Mark { term: Term },
    /// A client's write.
    Put { id: u64, key: String, value: String },
}

/// Entries of one term in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) term: Term,
    /// Entries before it.
    pub(super) from: u64,
}

/// Every message between the replicas says on which link and in which term it was meant. What bears another stamp
/// than the present one counts for nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Stamped<T> {
    pub(super) link: LinkStamp,
    pub(super) term: Term,
    pub(super) body: T,
}

/// Leader to follower.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Copy {
    /// What the leader's log looks like, so that the follower finds where the two part.
    Begin { runs: Vec<Run>, length: u64 },
    /// Entries that follow the first `after` ones.
    Append { after: u64, entries: Vec<Entry> },
}

/// Follower to leader: this many entries are durable here, and are the leader's.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Copied {
    pub(super) position: u64,
}

/// Client to replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Write.
    Put { id: u64, key: String, value: String },
    /// Read one key.
    Get { key: String },
    /// The ids of all writes.
    Ids,
    /// Check the lease now, and write to the protected resource only later: the gap in which a process can be paused.
    TouchAfter { millis: u64 },
    /// Check the lease now, read these balances and add to each; nothing is written before `Finish`.
    Begin { accounts: Vec<Account>, add: i64 },
    /// Write what was begun, with the token of the lease as it was then, and without another look at it.
    Finish,
    /// Hand over to the other replica.
    HandOver,
}

/// Replica to client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The write is durable wherever it has to be.
    Acknowledged { term: Term },
    /// It does not lead, or cannot serve at the moment. What became of a write is not known.
    Elsewhere,
    /// The value, if there is one.
    Value(Option<String>),
    /// The ids.
    Ids(Vec<u64>),
    /// The lease was valid, and the write to the resource will bear this token.
    Checked { token: Token },
    /// The lease was valid, and the balances are read.
    Begun { token: Token },
    /// What became of each write.
    Finished { written: Vec<Written> },
    /// What went wrong.
    Failed { why: String },
    /// It hands over.
    HandingOver,
}

/// Replica to protected resource.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Touch {
    pub(super) token: Token,
    pub(super) by: String,
}

/// Protected resource to replica.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Touched {
    /// Done, for the so-manieth time.
    Written { count: u64 },
    /// A leader with a higher token was here.
    Refused { offered: Token, highest: Token },
}

/// A balance outside of the cluster, and how it is reached. What can refuse a write gets the writer's token with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Account {
    /// In a plain file, which refuses nothing.
    File { path: PathBuf },
    /// In a file behind a server with a gate.
    Gated { server: SocketAddr },
    /// In the only row of a table of PostgreSQL, which has the trigger of `fence.sql` or has not.
    Table { psql: PathBuf, socket: PathBuf, table: String },
    /// In an object, written with the token and on condition, or simply put there.
    #[cfg(feature = "object-store")]
    Object { url: String, fenced: bool },
}

/// Writer to gate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum ToGate {
    Read,
    Write { token: Token, balance: i64 },
}

/// Gate to writer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromGate {
    Balance(i64),
    Written(Written),
}

/// What became of a write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Written {
    Landed,
    /// In the resource's own words.
    Refused(String),
}

/// What a replica tells of itself on its standard output, one line each.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) node: String,
    /// Whether it leads.
    pub(super) leads: bool,
    /// Its term when it leads, the leader's when it follows.
    pub(super) term: Term,
    /// With a valid lease.
    pub(super) lease: bool,
    pub(super) token: Option<Token>,
    /// What it may acknowledge: "blocked", "paired", "solo"; empty unless it leads.
    pub(super) right: String,
    /// Whom it follows.
    pub(super) follows: Option<String>,
    /// Whether it takes part in the leader's term.
    pub(super) joined: bool,
    pub(super) peer: bool,
    /// The number of its link to the witness.
    pub(super) witness: Option<LinkId>,
    pub(super) position: u64,
    /// Who refused it as stale, and the words.
    pub(super) stale: Option<(String, String)>,
}

/// Writes one message.
pub(super) async fn send<T: Serialize>(to: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= FRAME_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("the message is longer than a frame may be"))?;
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend(body);
    to.write_all(&frame).await
}

/// Reads one message.
pub(super) async fn receive<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = from.read_u32().await?;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("the frame is too long"));
    }
    let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}
