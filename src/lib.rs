//! The third vote for two-node clusters.
#![deny(unsafe_code)]
#![allow(unreachable_pub)]

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod client;
pub mod config;
mod edge;
pub mod fence;
pub mod ids;
pub mod limits;
pub mod message;
mod node;
mod replica;
mod rules;
pub mod time;
mod wire;
mod witness;

pub use client::{
    Cluster, Failure, JoinError, Leader, Lease, LinkStamp, NotTaken, Offer, PeerDurable, Remaining, Right,
    Role, Roles, Standby, init,
};
pub use edge::identity::{Fingerprint, FingerprintError, Identity, IdentityError};
pub use edge::ledger::LedgerError;
pub use edge::quic::{BindError, HostPort, HostPortError};
pub use node::{WitnessError, WitnessNode, init as init_witness};

/// Inner rooms, opened to this crate's own checkers. Not for production, and no promise is made about it.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::edge::{clock, disk, identity, ledger, quic};
    pub use crate::replica::{
        Alone, Ask, Ballot, Input, Link, OfferIn, OfferOut, Outputs, Replica, Right, Role, RoleView,
        Settings, Step, View, kept, relied_on,
    };
    pub use crate::rules::{Rule, Rules};
    pub use crate::witness::{Step as WitnessStep, Witness};
    /// The codec.
    pub mod wire {
        pub use crate::wire::*;
    }
}
