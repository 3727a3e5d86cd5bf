//! Time as the core sees it: a number that the caller hands in. Nothing here can read a clock.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on the caller's own clock, in nanoseconds since an origin that the caller chose. The clock must
/// never go back and must count the time that the machine is suspended (`CLOCK_BOOTTIME` on Linux).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Moment(pub u64);

impl Moment {
    /// Later than anything that happens.
    pub const FOREVER: Moment = Moment(u64::MAX);

    /// The span from `earlier` to this moment; zero when `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    /// Saturates at [`Moment::FOREVER`].
    fn add(self, span: Duration) -> Moment {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Moment::FOREVER { f.write_str("never") } else { write!(f, "{:.3}s", self.0 as f64 / 1e9) }
    }
}

/// A span in whole milliseconds, as it stands on disk and on the wire. At most about 49 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Millis(pub u32);

impl Millis {
    /// The same span for arithmetic.
    pub fn span(self) -> Duration {
        Duration::from_millis(u64::from(self.0))
    }

    /// Rounded up, so that a span which was promised is never shortened; saturates.
    pub fn ceil(span: Duration) -> Millis {
        Millis(u32::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_and_never_go_below_zero() {
        assert_eq!(Moment::FOREVER + Duration::from_secs(1), Moment::FOREVER);
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
    }

    #[test]
    fn a_promised_span_is_rounded_up() {
        assert_eq!(Millis::ceil(Duration::from_micros(1500)), Millis(2));
    }
}
