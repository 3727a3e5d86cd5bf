//! The third vote for two-node clusters.
#![deny(unsafe_code)]
#![allow(unreachable_pub)]

pub mod ids;
pub mod limits;
pub mod message;
mod replica;
mod rules;
pub mod time;
mod witness;

/// The pure core and the rule switches, for this crate's own checkers.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::replica::{
        Alone, Ask, Ballot, Input, Link, OfferIn, OfferOut, Outputs, Replica, Right, Role, RoleView,
        Settings, Step, View, kept, relied_on,
    };
    pub use crate::rules::{Rule, Rules};
    pub use crate::witness::{Step as WitnessStep, Witness};
}
