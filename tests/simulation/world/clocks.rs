//! The clock of one machine. It counts the time in which the machine sleeps or a process is stopped, starts anywhere,
//! and runs too fast or too slow.

use tiebreak::time::Moment;

/// A clock whose rate errs by so many parts per million.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: i128,
    rate_ppm: i64,
}

impl Clock {
    pub(crate) fn new(origin: u64, rate_ppm: i64) -> Clock {
        Clock { origin: i128::from(origin), rate_ppm }
    }

    /// What it shows at a true time.
    pub(crate) fn shows(&self, at: u64) -> Moment {
        let drift = i128::from(at) * i128::from(self.rate_ppm) / 1_000_000;
        let shown = i128::from(at) + self.origin + drift;
        Moment(u64::try_from(shown).expect("clocks start above zero"))
    }

    /// The true time at which it shows this.
    pub(crate) fn when(&self, moment: Moment) -> u64 {
        let span = i128::from(moment.0) - self.origin;
        let at = span * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm)) + 1;
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    /// From now on it runs at another rate. What it shows does not jump.
    pub(crate) fn change_rate(&mut self, at: u64, rate_ppm: i64) {
        let shown = i128::from(self.shows(at).0);
        self.rate_ppm = rate_ppm;
        self.origin = 0;
        let without = i128::from(at) + i128::from(at) * i128::from(rate_ppm) / 1_000_000;
        // Rounded up: a clock never goes back.
        self.origin = shown - without + 1;
    }
}
