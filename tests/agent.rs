//! The agent as operators see it: real processes of the shipped binary, real QUIC through a relay that can be cut, and a
//! small service that writes down each time it acts.
//!
//! Each line that the service writes bears its token, and all copies write to one file: so the file, read from the top,
//! is what a protected resource would have seen (`fence::Gate` reads it). Waits are for conditions, with a deadline.

#![allow(unreachable_pub, reason = "modules of one program")]
#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

#[path = "agent/failures.rs"]
mod failures;
#[path = "agent/leftovers.rs"]
mod leftovers;
#[path = "agent/locks.rs"]
mod locks;
#[path = "agent/operators.rs"]
mod operators;
#[path = "agent/recipes.rs"]
mod recipes;
#[allow(dead_code, reason = "other tests use more of it")]
mod relay;
#[path = "agent/stage.rs"]
mod stage;
#[path = "agent/takeover.rs"]
mod takeover;
