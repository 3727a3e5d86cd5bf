//! The lease of a leader and the promise of its follower. (§6)
//!
//! The leader's lease ends at (its clock when it **sent** the renewal) + D·(1−ρ), the follower's promise at (its
//! clock when it **received** it) + D·(1+ρ). Clocks need not agree; ρ bounds the error of their rates. So the lease
//! is over before the promise is, however long the messages took.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::Term;
use crate::limits::{RENEWALS_OUTSTANDING_MAX, RENEWALS_PER_LEASE, UNANSWERED_RENEWALS_PER_LEASE};
use crate::rate::{kept, relied_on};
use crate::rules::{Rule, Rules};
use crate::time::Moment;

/// The leader's side.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lease {
    sequence: u64,
    sent: VecDeque<(u64, Moment)>,
    until: Moment,
    renew_at: Moment,
}

impl Lease {
    /// When it ends, or ended.
    pub fn until(&self) -> Moment {
        self.until
    }

    /// Whether it runs.
    pub fn runs(&self, now: Moment) -> bool {
        now < self.until
    }

    /// When the next renewal is due.
    pub fn renew_at(&self) -> Moment {
        self.renew_at
    }

    /// A renewal leaves now; the answer will carry the number that comes back from here.
    pub fn sending(&mut self, now: Moment, lease: Duration) -> u64 {
        self.sequence += 1;
        if self.sent.len() == RENEWALS_OUTSTANDING_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.sequence, now));
        // Sooner than usual, until it is answered.
        self.renew_at = now + lease / UNANSWERED_RENEWALS_PER_LEASE;
        self.sequence
    }

    /// The answer to a renewal arrived. Whether it was one of ours that had not been answered yet.
    pub fn answered(&mut self, now: Moment, sequence: u64, lease: Duration, rules: Rules) -> bool {
        let Some(place) = self.sent.iter().position(|(number, _)| *number == sequence) else {
            return false;
        };
        let (_, sent) = self.sent[place];
        self.sent.drain(..=place);
        if self.sent.is_empty() {
            self.renew_at = self.renew_at.max(sent + lease / RENEWALS_PER_LEASE);
        }
        let from = if rules.keep(Rule::LeaseFromSending) { sent } else { now };
        self.until = self.until.max(from + relied_on(lease));
        true
    }

    /// Gives the lease up, and ignores answers that are still on the way.
    pub fn clear(&mut self) {
        self.sent.clear();
        self.until = Moment::default();
        self.renew_at = Moment::default();
    }

    /// The next renewal is due at once.
    pub fn renew_now(&mut self) {
        self.renew_at = Moment::default();
    }
}

/// The follower's side: until then it neither stands nor votes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Promise {
    until: Moment,
    term: Term,
}

impl Promise {
    /// When it ends, or ended.
    pub fn until(&self) -> Moment {
        self.until
    }

    /// Promises to the leader of `term`.
    pub fn give(&mut self, now: Moment, term: Term, lease: Duration) {
        self.until = self.until.max(now + kept(lease));
        self.term = self.term.max(term);
    }

    /// The leader of `term` gives its lease back. A leader of a later term may have been promised since.
    pub fn give_back(&mut self, now: Moment, term: Term) {
        if term >= self.term {
            self.until = self.until.min(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CLOCK_RATE_ERROR_PER_MILLE;

    const D: Duration = Duration::from_secs(2);

    #[test]
    fn the_lease_counts_from_when_the_renewal_was_sent() {
        let mut lease = Lease::default();
        let number = lease.sending(Moment(1_000), D);
        assert!(lease.answered(Moment(900_000_000), number, D, Rules::KEPT));
        assert_eq!(lease.until(), Moment(1_000) + relied_on(D));
    }

    #[test]
    fn what_is_not_answered_is_asked_again_sooner_and_an_answer_brings_back_the_usual_pace() {
        let mut lease = Lease::default();
        let number = lease.sending(Moment(0), D);
        assert_eq!(lease.renew_at(), Moment(0) + D / UNANSWERED_RENEWALS_PER_LEASE);
        let second = lease.sending(lease.renew_at(), D);
        let sent = Moment(0) + D / UNANSWERED_RENEWALS_PER_LEASE;
        assert!(lease.answered(sent, number, D, Rules::KEPT));
        assert_eq!(lease.renew_at(), sent + D / UNANSWERED_RENEWALS_PER_LEASE, "one is still on its way");
        assert!(lease.answered(sent, second, D, Rules::KEPT));
        assert_eq!(lease.renew_at(), sent + D / RENEWALS_PER_LEASE);
    }

    #[test]
    fn an_answer_counts_once_and_only_if_it_was_asked_for() {
        let mut lease = Lease::default();
        assert!(!lease.answered(Moment(5), 1, D, Rules::KEPT));
        let number = lease.sending(Moment(5), D);
        assert!(lease.answered(Moment(6), number, D, Rules::KEPT));
        assert!(!lease.answered(Moment(7), number, D, Rules::KEPT));
        let number = lease.sending(Moment(8), D);
        lease.clear();
        assert!(!lease.answered(Moment(9), number, D, Rules::KEPT));
        assert!(!lease.runs(Moment(9)));
    }

    #[test]
    fn the_lease_ends_before_the_promise_even_when_both_clocks_err_by_the_bound() {
        // The leader's clock is slow by rho and the follower's is fast by rho: in true time the lease lasts longer
        // and the promise shorter.
        let rho = f64::from(CLOCK_RATE_ERROR_PER_MILLE) / 1000.0;
        for d in [D, Duration::from_millis(200), Duration::from_secs(600)] {
            let lease_true = relied_on(d).as_secs_f64() / (1.0 - rho);
            let promise_true = kept(d).as_secs_f64() / (1.0 + rho);
            assert!(lease_true <= promise_true, "{d:?}");
        }
    }

    #[test]
    fn a_late_release_of_an_earlier_term_takes_nothing_back() {
        let mut promise = Promise::default();
        promise.give(Moment(0), Term(3), D);
        promise.give_back(Moment(1), Term(2));
        assert_eq!(promise.until(), Moment(0) + kept(D));
        promise.give_back(Moment(1), Term(3));
        assert_eq!(promise.until(), Moment(1));
    }
}
