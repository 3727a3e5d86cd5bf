//! What the voter's own machinery measures, for monitors. Nothing is decided by it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What was measured since the replica joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Measures {
    /// Syncs of the durable state.
    pub syncs: u64,
    /// The time that they took.
    pub sync_total: Duration,
    /// The time that the last one took.
    pub sync_last: Duration,
    /// The round trips to the peer and to the witness, where there is a link.
    pub round_trips: [Option<Duration>; 2],
}

/// The side of the voter.
#[derive(Clone, Default, Debug)]
pub(super) struct Measured(Arc<Mutex<Measures>>);

impl Measured {
    pub(super) fn read(&self) -> Measures {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Measures)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
