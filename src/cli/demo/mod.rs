//! `tiebreak demo`: a real cluster of three processes, broken in front of the user.
//!
//! - `node/`: what the replicas run, a small replicated key-value log on the public library alone. Whoever embeds
//!   the library can start from there.
//! - `stage/`: starts the three, writes without pause, breaks one thing after another, and counts.
//! - `messages.rs`: what they say to each other over TCP.
//! - `accounts.rs`: the resources of `tiebreak demo fencing`, as their writers reach them.

mod accounts;
mod messages;
mod node;
mod stage;

pub use node::DemoNode;
pub use stage::Demo;
