//! How often something may happen: so many at once, and so many a second after that.

use std::time::Duration;

use crate::time::Moment;

/// What a [`Meter`] lets through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// As many as this at once.
    pub at_once: u32,
    /// And as many as this a second in the long run; at least one.
    pub a_second: u32,
}

impl Allowance {
    /// What one costs.
    fn each(self) -> Duration {
        Duration::from_secs(1) / self.a_second.max(1)
    }

    fn all(self) -> Duration {
        self.each() * self.at_once
    }
}

/// How much of an allowance is used up: the moment at which nothing of it is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Meter(Moment);

impl Meter {
    /// Whether one more may happen now.
    pub fn has(self, now: Moment, of: Allowance) -> bool {
        self.0.since(now) + of.each() <= of.all()
    }

    /// Takes one, if it may happen.
    pub fn take(&mut self, now: Moment, of: Allowance) -> bool {
        let has = self.has(now, of);
        if has {
            self.0 = self.0.max(now) + of.each();
        }
        has
    }

    /// One has happened, whether it might or not. No more is owed than the whole allowance.
    pub fn charge(&mut self, now: Moment, of: Allowance) {
        self.0 = (self.0.max(now) + of.each()).min(now + of.all());
    }

    /// Takes one in any case; how long its turn is away.
    pub fn queue(&mut self, now: Moment, of: Allowance) -> Duration {
        self.0 = self.0.max(now) + of.each();
        self.0.since(now).saturating_sub(of.all())
    }

    /// Whether nothing is used up: then it is as good as a new one.
    pub fn is_new(self, now: Moment) -> bool {
        self.0 <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Allowance = Allowance { at_once: 3, a_second: 10 };
    const NOW: Moment = Moment(7_000_000_000);

    #[test]
    fn so_many_at_once_and_then_one_for_each_share_of_a_second() {
        let mut meter = Meter::default();
        let taken = (0..10).filter(|_| meter.take(NOW, OF)).count();
        assert_eq!(taken, 3);
        assert!(!meter.take(NOW + Duration::from_millis(99), OF));
        assert!(meter.take(NOW + Duration::from_millis(100), OF));
        assert!(!meter.take(NOW + Duration::from_millis(100), OF));
        let later = NOW + Duration::from_secs(60);
        assert!(meter.is_new(later));
        assert_eq!((0..10).filter(|_| meter.take(later, OF)).count(), 3);
    }

    #[test]
    fn who_queues_is_served_in_turn() {
        let mut meter = Meter::default();
        let waits: Vec<u128> = (0..6).map(|_| meter.queue(NOW, OF).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
    }

    #[test]
    fn a_charge_is_never_more_than_the_allowance() {
        let mut meter = Meter::default();
        for _ in 0..1000 {
            meter.charge(NOW, OF);
        }
        assert!(!meter.has(NOW, OF));
        assert!(meter.has(NOW + Duration::from_millis(100), OF));
        assert!(meter.is_new(NOW + Duration::from_millis(300)));
    }
}
