//! PostgreSQL under the shipped hook: real servers, real agents, three hosts that are network namespaces, and clients that
//! remember what was acknowledged.
//!
//! In every story two things are counted: acknowledged transactions that the last primary does not hold, and writes that a
//! server acknowledged after another one had begun to (by the timelines that they were made on). Both have to be none.
//! The times of interruption are printed, and not judged:
//! `TIEBREAK_STORIES=1 cargo test --test postgresql -- --nocapture`.
//!
//! Needs root, `ip netns` and PostgreSQL 15 (Debian: postgresql-15); skipped where they are not.

#![allow(unreachable_pub, reason = "modules of one program")]
#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

#[path = "postgresql/failures.rs"]
mod failures;
#[path = "postgresql/hosts.rs"]
mod hosts;
#[path = "postgresql/links.rs"]
mod links;
#[path = "postgresql/load.rs"]
mod load;
#[path = "postgresql/pair.rs"]
mod pair;
#[path = "postgresql/rounds.rs"]
mod rounds;
#[path = "postgresql/wire.rs"]
mod wire;
