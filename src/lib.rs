//! The third vote for two-node clusters.
#![deny(unsafe_code)]
#![allow(unreachable_pub)]

pub mod ids;
pub mod limits;
pub mod message;
pub mod time;
