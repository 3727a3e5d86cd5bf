//! The only reader of time and of entropy.

#![allow(clippy::disallowed_methods, reason = "everybody else reads clock and entropy through this file")]

use std::io;
use std::time::Duration;

use rustix::rand::GetRandomFlags;
use rustix::time::ClockId;

use crate::time::Moment;

/// Longest sleep before the clock is read again. Tokio's timers stand still while the machine is suspended and
/// this clock does not: so an alarm that passed during a suspension is late by this much at most.
const NAP_MAX: Duration = Duration::from_secs(1);

/// The machine's clock since boot, suspension included (`CLOCK_BOOTTIME`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// Now.
    pub fn now(self) -> Moment {
        let read = rustix::time::clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(read.tv_sec).expect("time since boot is not negative");
        let nanos = u64::try_from(read.tv_nsec).expect("a timespec's nanoseconds are not negative");
        Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// Returns when `moment` has come, and never before it. [`Moment::FOREVER`] never comes.
    pub async fn until(self, moment: Moment) {
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(NAP_MAX)).await;
        }
    }

    /// Returns after `span` of this clock.
    pub async fn after(self, span: Duration) {
        self.until(self.now() + span).await;
    }
}

/// The machine's oscillator since boot, not steered by anybody and standing still in suspension: what the rate of
/// [`Clock`] is compared with.
pub fn unsteered() -> Moment {
    let read = rustix::time::clock_gettime(ClockId::MonotonicRaw);
    let seconds = u64::try_from(read.tv_sec).expect("time since boot is not negative");
    let nanos = u64::try_from(read.tv_nsec).expect("a timespec's nanoseconds are not negative");
    Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Seconds since 1970 on the machine's wall clock, which anybody may set: for people to read, never to decide by.
pub fn wall_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// 64 random bits.
pub fn random_u64() -> u64 {
    u64::from_ne_bytes(random_bytes())
}

/// 128 random bits; never 0, which stands for "none yet" where such numbers are kept.
pub fn random_u128() -> u128 {
    loop {
        let drawn = u128::from_ne_bytes(random_bytes());
        if drawn != 0 {
            return drawn;
        }
    }
}

/// Waits for the kernel's pool after an early boot: identities must not be drawn from an empty one.
fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("every supported kernel has getrandom(2), this one says: {error}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back_and_counts_from_boot() {
        let first = Clock.now();
        assert!(first > Moment(0));
        assert!(Clock.now() >= first);
    }

    #[tokio::test]
    async fn an_alarm_never_rings_early() {
        let alarm = Clock.now() + Duration::from_millis(3);
        Clock.until(alarm).await;
        assert!(Clock.now() >= alarm);
    }

    #[tokio::test]
    async fn forever_never_comes() {
        let forever = tokio::time::timeout(Duration::from_millis(1), Clock.until(Moment::FOREVER));
        assert!(forever.await.is_err());
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random_u64(), random_u64());
        assert_ne!(random_u128(), random_u128());
    }
}
