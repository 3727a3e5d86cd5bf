//! How long everything may take, and whether it all fits into a lease.
//!
//! The service has to be gone before the lease ends: asked to stop, then killed, and if even that fails, reset together
//! with the machine by the watchdog. So the stop begins while the lease still runs, and the sums are checked before
//! anything is started.

use std::fmt;
use std::time::Duration;

use crate::limits::{CLOCK_RATE_ERROR_PER_MILLE, RENEWALS_PER_LEASE};

/// The shares of a lease that are used unless configured.
const DEMOTE_SHARE: u32 = 4;
const KILL_SHARE: u32 = 10;
const MARGIN_SHARE: u32 = 20;
const MARGIN_MIN: Duration = Duration::from_millis(20);
const MARGIN_MAX: Duration = Duration::from_secs(1);

/// Every time of the agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Times {
    /// The lease of the cluster.
    pub lease: Duration,
    /// After which silence of the peer the leader asks to go on alone.
    pub solo_after: Option<Duration>,
    /// For `demote`, before everything is killed.
    pub demote: Duration,
    /// From the kill until nothing of the service is left.
    pub kill: Duration,
    /// For `promote`.
    pub promote: Duration,
    /// For `follow`.
    pub follow: Duration,
    /// For `solo`, `paired` and `fence` each.
    pub switch: Duration,
    /// For `check`.
    pub check: Duration,
    /// For `on_event`.
    pub on_event: Duration,
    /// From the end of one check to the next.
    pub check_every: Duration,
    /// Failed checks in a row after which the service counts as failed.
    pub check_failures: u32,
    /// Pause after the first failed promotion; it doubles with each.
    pub retry_min: Duration,
    /// The longest such pause.
    pub retry_max: Duration,
}

impl Times {
    /// What is taken unless configured.
    pub fn of(lease: Duration, solo_after: Option<Duration>) -> Times {
        Times {
            lease,
            solo_after,
            demote: lease / DEMOTE_SHARE,
            kill: lease / KILL_SHARE,
            promote: Duration::from_secs(60),
            follow: Duration::from_secs(60),
            switch: Duration::from_secs(10),
            check: Duration::from_secs(5),
            on_event: Duration::from_secs(10),
            check_every: Duration::from_secs(2),
            check_failures: 3,
            retry_min: Duration::from_secs(2),
            retry_max: Duration::from_secs(300),
        }
    }

    /// What is kept free for everything that takes time and has no name; also from one feeding of the watchdog to the
    /// next.
    pub fn margin(&self) -> Duration {
        (self.lease / MARGIN_SHARE).clamp(MARGIN_MIN, MARGIN_MAX)
    }

    /// How long before the end of the lease the stop begins.
    pub fn stop_before(&self) -> Duration {
        self.demote + self.kill + self.margin()
    }

    /// What the leader relies on, of one promise.
    fn relied_on(&self) -> Duration {
        self.lease * (1000 - CLOCK_RATE_ERROR_PER_MILLE) / 1000
    }

    /// What is left of the lease in health at the least, when one renewal was lost.
    fn left_in_health(&self) -> Duration {
        self.relied_on().saturating_sub(self.lease * 2 / RENEWALS_PER_LEASE)
    }

    /// The longest time-out of a watchdog that fires before the lease ends and is fed in health.
    pub fn watchdog_max(&self) -> Duration {
        self.left_in_health().saturating_sub(self.margin())
    }

    /// Whether all this can be met.
    ///
    /// # Errors
    /// If not, with the sums.
    pub fn check(&self, watchdog: Option<Duration>) -> Result<(), TimesError> {
        let stop = format!(
            "demote {:?} + kill {:?} + margin {:?} = {:?}",
            self.demote,
            self.kill,
            self.margin(),
            self.stop_before()
        );
        if self.stop_before() > self.left_in_health() {
            return Err(TimesError(format!(
                "the service cannot be stopped before the lease ends: {stop}, and of a lease of {:?} no more than {:?} \
                 is left when one renewal is lost; set `lease` to {:?} or more, or shorten `demote` and `kill`",
                self.lease,
                self.left_in_health(),
                self.lease_for(self.stop_before(), Duration::ZERO),
            )));
        }
        if let Some(solo_after) = self.solo_after
            && solo_after + self.stop_before() >= self.relied_on()
        {
            return Err(TimesError(format!(
                "the leader would stop before the witness can tell it to go on alone: solo_after {solo_after:?} + \
                 {stop} makes {:?}, and the lease lasts {:?}; set `lease` to {:?} or more, or shorten `solo_after`, \
                 `demote` or `kill`",
                solo_after + self.stop_before(),
                self.relied_on(),
                self.lease_for(Duration::ZERO, solo_after + self.stop_before()),
            )));
        }
        let Some(watchdog) = watchdog else { return Ok(()) };
        if watchdog > self.watchdog_max() {
            return Err(TimesError(format!(
                "the watchdog would fire after the lease has ended: its time-out is {watchdog:?}, and of a lease of \
                 {:?} there is {:?} left when one renewal is lost, less a margin of {:?}: at most {:?}; set `lease` \
                 to {:?} or more, or `watchdog_timeout` to less",
                self.lease,
                self.left_in_health(),
                self.margin(),
                self.watchdog_max(),
                self.lease_for(watchdog + self.margin(), Duration::ZERO),
            )));
        }
        if watchdog < self.margin() * 2 {
            return Err(TimesError(format!(
                "the watchdog would fire between two feedings: its time-out is {watchdog:?}, and it is fed every {:?}",
                self.margin()
            )));
        }
        Ok(())
    }

    /// A lease, in whole seconds, that is long enough.
    fn lease_for(&self, in_health: Duration, in_all: Duration) -> Duration {
        let health = in_health.as_secs_f64() / (0.99 - 2.0 / f64::from(RENEWALS_PER_LEASE));
        let all = in_all.as_secs_f64() / 0.99;
        Duration::from_secs_f64((health.max(all) * 1.1).ceil())
    }
}

/// Times that cannot be met, with the sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimesError(String);

impl std::error::Error for TimesError {}

impl fmt::Display for TimesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_taken_unless_configured_fits_into_every_lease() {
        for lease in [crate::limits::LEASE_MIN, 2 * S, 30 * S, crate::limits::LEASE_MAX] {
            for solo_after in [None, Some(lease / 2)] {
                let times = Times::of(lease, solo_after);
                assert_eq!(times.check(None), Ok(()), "{lease:?}");
                assert_eq!(times.check(Some(times.watchdog_max())), Ok(()), "{lease:?}");
            }
        }
    }

    #[test]
    fn times_that_cannot_be_met_are_refused_with_the_sums() {
        let times = Times { demote: 5 * S, kill: S, ..Times::of(10 * S, Some(5 * S)) };
        let told = times.check(None).unwrap_err().to_string();
        assert!(told.contains("demote 5s + kill 1s + margin 500ms = 6.5s"), "{told}");
        let times = Times { demote: 4 * S, kill: S, ..Times::of(10 * S, Some(5 * S)) };
        let told = times.check(None).unwrap_err().to_string();
        assert!(told.contains("solo_after 5s + demote 4s") && told.contains("10.5s"), "{told}");
        let times = Times::of(10 * S, Some(4 * S));
        let told = times.check(Some(6 * S)).unwrap_err().to_string();
        assert!(told.contains("its time-out is 6s") && told.contains("at most 5.4s"), "{told}");
        assert!(times.check(Some(Duration::from_millis(700))).is_err(), "fed every 500 ms");
        assert_eq!(times.check(Some(5 * S)), Ok(()));
    }

    #[test]
    fn the_lease_that_is_advised_is_long_enough() {
        let times = Times { demote: 20 * S, kill: 5 * S, ..Times::of(10 * S, Some(8 * S)) };
        let told = times.check(None).unwrap_err().to_string();
        let advised = told.split("set `lease` to ").nth(1).and_then(|rest| rest.split('s').next());
        let lease = Duration::from_secs(advised.and_then(|text| text.parse().ok()).expect("seconds"));
        assert_eq!(Times { lease, ..times }.check(None), Ok(()), "{told}");
    }
}
