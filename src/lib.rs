//! The third vote for two-node clusters.
#![deny(unsafe_code)]
#![allow(unreachable_pub)]

#[cfg_attr(not(feature = "testing"), allow(dead_code, unused_imports, reason = "the nodes are built on it"))]
mod edge;
pub mod fence;
pub mod ids;
pub mod limits;
pub mod message;
mod replica;
mod rules;
pub mod time;
#[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "the nodes are built on it"))]
mod wire;
mod witness;

/// The pure core and the rule switches, for this crate's own checkers.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::edge::{disk, ledger};
    pub use crate::replica::{
        Alone, Ask, Ballot, Input, Link, OfferIn, OfferOut, Outputs, Replica, Right, Role, RoleView,
        Settings, Step, View, kept, relied_on,
    };
    pub use crate::rules::{Rule, Rules};
    pub use crate::witness::{Step as WitnessStep, Witness};
    pub mod wire {
        pub use crate::wire::*;
    }
}
