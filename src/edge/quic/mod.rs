//! The only sockets: authenticated connections between nodes that carry bytes.
//!
//! Invariants:
//! 1. A [`Connection`] exists only for a key that was pinned at that moment; it is closed when the pin is removed.
//! 2. No byte of a stranger reaches the rest of the program.
//! 3. Every queue of a connection is bounded, by `limits.rs`.
//! 4. Nobody keeps others out: what one source and one key may cost is bounded, in `door.rs` and `sources.rs`.
//! 5. A connection that was made, by either side, proves nothing until something was answered on it.

mod address;
mod connection;
mod dial;
mod door;
mod endpoint;
mod error;
mod ids;
mod pins;
mod sources;
mod tally;
#[cfg(test)]
mod tests;

pub use address::{HostPort, HostPortError};
pub use connection::{Connection, Request, Responder};
pub use door::Stranger;
pub use endpoint::{BindError, Endpoint, Timing};
pub use error::{Attempt, CloseCode, DialError, Fault, LinkError};
pub use pins::Pins;
pub use tally::Tally;
