//! What is said over `tiebreak-join/1`: one request and one reply on a connection, both bounded like every message.

use serde::{Deserialize, Serialize};

use crate::edge::identity::Fingerprint;
use crate::ids::{ClusterName, NodeId};

/// What somebody asks of a witness. The key is that of the connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Request {
    /// With the first code: this key is the first replica.
    First {
        /// The cluster.
        cluster: ClusterName,
        /// What the code's secret gives to show.
        shown: [u8; 32],
        /// The name of the one who asks.
        node: NodeId,
        /// The name of the second replica.
        second: NodeId,
        /// Hash of what the second code will show; of no use once the second has joined.
        second_hash: [u8; 32],
        /// The second replica's key, where it is known: a pair that changes its witness.
        second_key: Option<Fingerprint>,
    },
    /// With the second code: this key is the second replica.
    Second {
        /// The cluster.
        cluster: ClusterName,
        /// What the code's secret gives to show.
        shown: [u8; 32],
        /// The name of the one who asks.
        node: NodeId,
        /// Where it is.
        at: Vec<String>,
        /// Its key and addresses, signed for the first replica.
        seal: [u8; 32],
    },
    /// Of the first replica: who is the second?
    Other {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Of a replica: the code for the second one counts anew.
    Again {
        /// The cluster.
        cluster: ClusterName,
        /// The name of the second replica.
        second: NodeId,
        /// Hash of what the second code will show.
        second_hash: [u8; 32],
    },
    /// Of a replica: this key is no longer one of the cluster.
    Leave {
        /// The cluster.
        cluster: ClusterName,
    },
    /// Of a replica: this key speaks for it as well.
    NextKey {
        /// The cluster.
        cluster: ClusterName,
        /// The new key.
        next: Fingerprint,
    },
    /// Of a replica: the key of this connection is its only one from now on.
    OnlyKey {
        /// The cluster.
        cluster: ClusterName,
    },
}

impl Request {
    /// The cluster that it is about.
    pub fn cluster(&self) -> ClusterName {
        match self {
            Request::First { cluster, .. }
            | Request::Second { cluster, .. }
            | Request::Other { cluster }
            | Request::Again { cluster, .. }
            | Request::Leave { cluster }
            | Request::NextKey { cluster, .. }
            | Request::OnlyKey { cluster } => *cluster,
        }
    }
}

/// The witness's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Response {
    /// Done, or done before.
    Done,
    /// The second replica has not joined yet.
    NotYet,
    /// The second replica.
    Other {
        /// Its name.
        node: NodeId,
        /// Its key.
        key: Fingerprint,
        /// Where it is.
        at: Vec<String>,
        /// Its signature for the first replica.
        seal: [u8; 32],
    },
    /// No.
    Denied(Denial),
}

/// Why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Denial {
    /// The secret is not one that this witness gave, or not for this cluster, or this key is none of that cluster.
    #[error(
        "the witness knows no such code, or no such key in that cluster; print a new code with `tiebreak invite`"
    )]
    Wrong,
    /// It was used by another key.
    #[error(
        "the code was used by another node already; if that was not you, somebody has read it: run `tiebreak leave` there, \
         and print a new one with `tiebreak invite`"
    )]
    Used,
    /// It is too old.
    #[error("the code has expired; print a new one with `tiebreak invite`")]
    Expired,
    /// The key has a place already.
    #[error(
        "this key already belongs to another node or cluster of this witness; make another one for this node"
    )]
    KeyInUse,
    /// The name is another one than was agreed.
    #[error("the code is for a node of another name")]
    Name,
    /// The witness cannot keep it.
    #[error("the witness cannot keep the registration (its log says why); nothing was changed, so try again")]
    Disk,
    /// The request says something that this witness does not know.
    #[error("the witness does not understand the request; use the same release of tiebreak on all nodes")]
    Unknown,
}
