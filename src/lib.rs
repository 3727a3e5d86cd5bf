//! The third vote for two-node clusters.
#![deny(unsafe_code)]
#![allow(unreachable_pub)]

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod edge;
pub mod fence;
pub mod ids;
pub mod limits;
pub mod message;
mod replica;
mod rules;
pub mod time;
mod wire;
mod witness;

/// Inner rooms, opened to this crate's own checkers. Not for production, and no promise is made about it.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::edge::{clock, disk, identity, ledger, quic};
    pub use crate::replica::{
        Alone, Ask, Ballot, Input, Link, OfferIn, OfferOut, Outputs, Replica, Right, Role, RoleView, Settings, Step,
        View, kept, relied_on,
    };
    pub use crate::rules::{Rule, Rules};
    pub use crate::witness::{Step as WitnessStep, Witness};
    /// The codec.
    pub mod wire {
        pub use crate::wire::*;
    }
}
