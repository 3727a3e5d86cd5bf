//! The third vote for two-node clusters.
#![deny(unsafe_code)]
#![allow(unreachable_pub)]

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
// What the shells do not use yet is used by the tests.
#[cfg_attr(not(feature = "testing"), allow(dead_code, unused_imports))]
mod edge;
pub mod ids;
pub mod limits;
pub mod message;
pub mod time;

/// Inner rooms, opened to this crate's own tests. Not for production, and no promise is made about it.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::edge::{clock, identity, quic};
}
