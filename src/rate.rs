//! What the rate error between two clocks costs a lease. (§6)
//!
//! ρ bounds the error of a clock's rate. Whoever relies on a promise counts it shorter by ρ, whoever keeps it counts it
//! longer by ρ: so the first is over before the second, whatever the two clocks show.

use std::time::Duration;

use crate::limits::CLOCK_RATE_ERROR_PER_MILLE;

/// For how long a leader relies on a promise of `lease`.
pub fn relied_on(lease: Duration) -> Duration {
    lease * (1000 - CLOCK_RATE_ERROR_PER_MILLE) / 1000
}

/// For how long a promise of `lease` is kept.
pub fn kept(lease: Duration) -> Duration {
    lease * (1000 + CLOCK_RATE_ERROR_PER_MILLE) / 1000 + Duration::from_nanos(1)
}
