//! The only sockets: authenticated connections between nodes that carry bytes.
//!
//! Invariants:
//! 1. A [`Connection`] exists only for a key that was pinned at that moment; it is closed when the pin is removed.
//! 2. No byte of a stranger reaches the rest of the program.
//! 3. Every queue of a connection is bounded, by `limits.rs`.
//! 4. A connection that was made, by either side, proves nothing until something was answered on it.

mod address;
mod connection;
mod dial;
mod endpoint;
mod error;
mod pins;
#[cfg(test)]
mod tests;

pub use address::{HostPort, HostPortError};
pub use connection::{Connection, Request, Responder};
pub use endpoint::{BindError, Endpoint, Stranger, Timing};
pub use error::{Attempt, CloseCode, DialError, Fault, LinkError};
pub use pins::Pins;
