//! The third vote for two-node clusters: a dataless witness, leases, fencing tokens that only rise.
//!
//! Two full replicas and a *witness* vote; any two are a majority. This library is the replica's side: it tells the
//! program that holds the data when it leads, for how long, and what it may acknowledge to its clients.
//!
//! - [`Cluster::join`] starts the voter; [`Cluster::roles`] is the stream of what it becomes.
//! - A [`Lease`] is the right to act: [`Lease::is_valid`], [`Lease::ended`], [`Lease::guard`], and
//!   [`Lease::token`] for the protected resource, which a [`fence::Gate`] guards.
//! - [`Lease::acknowledge`] says up to where writes may be acknowledged ([`Right`]: blocked, paired or solo).
//! - [`Cluster::acquire`] holds a name in the whole cluster, from either replica: a [`NamedLease`] with a token of its own.
//! - The data layer says what it did: [`Cluster::offer`], [`Cluster::joined`], [`Cluster::resync`],
//!   [`Cluster::stalled`], [`Cluster::resign`]. Its own messages bear the [`LinkStamp`].
//!
//! What a lease cannot do: a process that is paused between the check and the act can act after its lease has ended.
//! Only the resource can refuse that, by the token.
//!
//! | resource | can it refuse a stale writer? | how |
//! |---|---|---|
//! | a service of your own | yes | [`fence::Gate`], [`fence::Gates`], [`fence::token_of`] |
//! | PostgreSQL that others write into | yes | `deploy/postgresql/fence.sql` |
//! | object stores with conditional writes | yes, each object by itself | `fence::FencedStore` (feature `object-store`) |
//! | plain files, block devices, stores without conditions, legacy services | no | |
//!
//! Where the resource cannot refuse, no lock is safe. Redesign: one writer per partition, or new names for new data and one
//! conditional write that says which count. Or take the machine away: STONITH for shared disks and for whatever cannot be
//! undone, a watchdog where nothing reaches the power switch (`deploy/fencing/README.md` has more).
//!
//! # A whole cluster in one program
//!
//! A witness and two replicas that protect a single number, without any copying of data. Real ones run on three
//! machines, and read their configuration from files.
//!
//! ```
//! use std::time::Duration;
//! use tiebreak::config::{ClusterConfig, OtherConfig, OwnConfig, ReplicaConfig, ReplicaKeys, WhenAlone, WitnessConfig};
//! use tiebreak::{Cluster, Identity, PeerDurable, Right, Role, Start, WitnessNode};
//! use tiebreak::ids::Position;
//! use tiebreak::message::Kind;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let name = "orders".parse()?;
//! // Three ports that are free at present.
//! let sockets: Vec<_> = (0..3).map(|_| std::net::UdpSocket::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
//! let addresses: Vec<_> = sockets.iter().map(|s| s.local_addr()).collect::<Result<_, _>>()?;
//! drop(sockets);
//!
//! let nodes = ["a", "b", "w"];
//! let mut keys = Vec::new();
//! for node in nodes {
//!     keys.push(Identity::create(&dir.path().join(format!("{node}.pem")))?.fingerprint());
//! }
//! let own = |i: usize| OwnConfig {
//!     node: nodes[i].parse().unwrap(),
//!     key: dir.path().join(format!("{}.pem", nodes[i])),
//!     state: dir.path().join(nodes[i]),
//!     listen: vec![addresses[i]],
//!     keep_alive: Duration::from_secs(15),
//! };
//! let other = |i: usize| OtherConfig {
//!     node: nodes[i].parse().unwrap(),
//!     addresses: vec![addresses[i].to_string().parse().unwrap()],
//!     keys: vec![keys[i]],
//! };
//! let replica = |i: usize| ReplicaConfig {
//!     own: own(i),
//!     cluster: name,
//!     lease: Duration::from_secs(1),
//!     solo_after: Some(Duration::from_millis(500)),
//!     when_alone: WhenAlone::Continue,
//!     peer: other(1 - i),
//!     witness: other(2),
//! };
//! let seat = |i: usize| ReplicaKeys { node: nodes[i].parse().unwrap(), keys: vec![keys[i]] };
//! let witness = WitnessConfig { own: own(2), strict_boot: false, clusters: vec![ClusterConfig { name, replicas: [seat(0), seat(1)] }] };
//!
//! // Once in the life of each node: its durable state. The first replica has the data, the others are blank.
//! tiebreak::init(&replica(0), Start::Found(Kind::Replicated))?;
//! tiebreak::init(&replica(1), Start::Blank)?;
//! tiebreak::init_witness(&witness)?;
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! runtime.block_on(async {
//!     let witness = WitnessNode::open(&witness)?;
//!     tokio::spawn(witness.run(std::future::pending()));
//!     let a = Cluster::join(replica(0), Position(0)).await?;
//!     let b = Cluster::join(replica(1), Position(0)).await?;
//!
//!     // The standby: takes every offer, since there is nothing to copy.
//!     tokio::spawn(async move {
//!         let mut roles = b.roles();
//!         while let Some(role) = roles.next().await {
//!             if let Role::Standby(standby) = role {
//!                 if let Some(offer) = standby.offer {
//!                     let _ = b.joined(&offer, offer.position).await;
//!                 }
//!             }
//!         }
//!     });
//!
//!     // The leader: offers whenever it may, until the two are paired.
//!     let mut roles = a.roles();
//!     while let Some(role) = roles.next().await {
//!         let Role::Leader(leader) = role else { continue };
//!         let Some(lease) = &leader.lease else { continue };
//!         match leader.right {
//!             Right::Paired => {
//!                 let link = leader.link.expect("paired over a link");
//!                 let peer = PeerDurable { link, position: Position(1) };
//!                 // Durable here up to 2 and at the peer up to 1: so much may be acknowledged.
//!                 assert_eq!(lease.acknowledge(Position(2), Some(peer)), Some(Position(1)));
//!                 assert!(lease.is_valid());
//!                 return Ok(());
//!             }
//!             _ if leader.may_offer => a.offer(Position(0)).await?,
//!             _ => {}
//!         }
//!     }
//!     Err("the replica has stopped".into())
//! })
//! # }
//! ```
#![deny(unsafe_code)]
#![allow(unreachable_pub)]

#[cfg(feature = "cli")]
mod agent;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod client;
pub mod config;
#[cfg_attr(
    not(feature = "testing"),
    allow(dead_code, unused_imports, reason = "parts are there for the checkers")
)]
mod edge;
#[cfg_attr(
    not(feature = "cli"),
    allow(dead_code, unused_imports, reason = "the commands carry codes and ask")
)]
mod enrol;
pub mod fence;
pub mod ids;
pub mod limits;
mod memory;
pub mod message;
mod names;
mod node;
#[doc = include_str!("protocol.md")]
pub mod protocol {}
#[doc = include_str!("evidence.md")]
pub mod evidence {}
mod rate;
mod replica;
mod rules;
pub mod time;
mod wire;
mod witness;

pub use client::{
    Cluster, Failure, JoinError, Leader, Lease, LinkStamp, Measures, Mismatch, NamedLease, Names,
    NotAcquired, NotTaken, Offer, PeerDurable, RecoverError, Recovery, Remaining, Right, Role, Roles,
    Standby, Start, init, replace,
};
pub use edge::identity::{Fingerprint, FingerprintError, Identity, IdentityError};
pub use edge::ledger::LedgerError;
pub use edge::quic::{BindError, HostPort, HostPortError};
pub use node::{
    ClusterFigures, WitnessError, WitnessFigures, WitnessKeys, WitnessNode, init as init_witness,
    replace as replace_witness,
};
pub use replica::NotRecoverable;

/// Inner rooms, opened to this crate's own checkers. Not for production, and no promise is made about it.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::edge::{clock, disk, identity, ledger, quic};
    pub use crate::names::{Hold, NameRule, NameRules, Table};
    pub use crate::rate::{kept, relied_on};
    pub use crate::replica::{
        Alone, Ask, Ballot, Input, Link, OfferIn, OfferOut, Outputs, Replica, Right, Role, RoleView,
        Settings, Step, View,
    };
    pub use crate::rules::{Rule, Rules};
    pub use crate::witness::{Call, Settings as WitnessSettings, Step as WitnessStep, Witness};
    /// The codec.
    pub mod wire {
        pub use crate::wire::*;
    }
}

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
