//! The side of the protected resource: what refuses the writes of a leader that does not know yet that it was
//! replaced (§8).
//!
//! A lease tells a leader when to stop. It cannot stop a process that was paused between its last look at the
//! lease and the write; only the resource can, by refusing a token lower than one that it has seen.

mod gate;
mod gates;
mod header;
#[cfg(feature = "object-store")]
mod object;
#[cfg(feature = "object-store")]
mod probe;

pub use self::gate::{Gate, GateError, StaleToken};
pub use self::gates::Gates;
pub use self::header::{HEADER, TokenError, token_of};
#[cfg(feature = "object-store")]
pub use self::object::{FencedStore, ObjectError};
#[cfg(feature = "object-store")]
pub use self::probe::{Probed, probe};
pub use crate::edge::ledger::LedgerError;
