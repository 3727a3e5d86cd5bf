//! What a node is told to be: plain types. The file that holds it is read by the binary.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::edge::identity::Fingerprint;
use crate::edge::quic::HostPort;
use crate::ids::{ClusterName, NodeId};

/// What a node is told to be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per process")]
pub enum NodeConfig {
    /// It holds data and may lead.
    Replica(ReplicaConfig),
    /// It votes only.
    Witness(WitnessConfig),
}

/// A replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaConfig {
    /// What it shares with a witness: name, key, state, addresses.
    pub own: OwnConfig,
    /// The cluster that it belongs to.
    pub cluster: ClusterName,
    /// How long its leadership, or its promise not to stand, lasts without renewal.
    pub lease: Duration,
    /// How long the peer may be silent before the leader asks to go on alone; `None` is never.
    pub solo_after: Option<Duration>,
    /// What a sole leader does when the witness is gone as well.
    pub when_alone: WhenAlone,
    /// The other replica. Without addresses, that one dials.
    pub peer: OtherConfig,
    /// The witness.
    pub witness: OtherConfig,
}

/// A witness.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WitnessConfig {
    /// What it shares with a replica: name, key, state, addresses.
    pub own: OwnConfig,
    /// After each start it grants nothing before a current leader has said that its state is the newest: for media that
    /// may lose what they have synced. If the leader is lost between the start and that word, which is normally one
    /// exchange, an operator has to decide.
    pub strict_boot: bool,
    /// The clusters that it serves.
    pub clusters: Vec<ClusterConfig>,
}

/// What every node says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnConfig {
    /// Its name.
    pub node: NodeId,
    /// The file with its private key.
    pub key: PathBuf,
    /// The directory of its durable state.
    pub state: PathBuf,
    /// Where it listens; with nothing it only dials.
    pub listen: Vec<SocketAddr>,
    /// Between two keep-alives on an idle connection.
    pub keep_alive: Duration,
}

/// Another node, as a replica knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherConfig {
    /// Its name.
    pub node: NodeId,
    /// Where it is dialled.
    pub addresses: Vec<HostPort>,
    /// Its keys; more than one while they are changed.
    pub keys: Vec<Fingerprint>,
}

/// A cluster, as its witness knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterConfig {
    /// Its name.
    pub name: ClusterName,
    /// Its two replicas.
    pub replicas: [ReplicaKeys; 2],
}

/// A replica, as its witness knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaKeys {
    /// Its name.
    pub node: NodeId,
    /// Its keys; more than one while they are changed.
    pub keys: Vec<Fingerprint>,
}

/// What a sole leader does when the witness is gone as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenAlone {
    /// It goes on: nobody else can be elected.
    #[default]
    Continue,
    /// It steps down, for operators who mean to force the other side by hand.
    Stop,
}
