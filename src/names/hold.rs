//! The holder's side of a named lease.

use std::time::Duration;

use crate::ids::Token;
use crate::limits::RENEWALS_PER_LEASE;
use crate::rate::relied_on;
use crate::time::Moment;

use super::rules::{NameRule, NameRules};

/// A name that is, or was, held.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Hold {
    #[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "the checkers look at it"))]
    token: Token,
    lease: Duration,
    until: Moment,
    renew_at: Moment,
    rules: NameRules,
}

impl Hold {
    /// The leader granted what was asked at `asked`. `None` when the answer took so long that nothing is left of it.
    pub fn granted(
        asked: Moment,
        now: Moment,
        token: Token,
        lease: Duration,
        rules: NameRules,
    ) -> Option<Hold> {
        let mut hold = Hold {
            token,
            lease,
            until: Moment::default(),
            renew_at: asked + lease / RENEWALS_PER_LEASE,
            rules,
        };
        hold.until = hold.end_of(asked, now);
        hold.is_valid(now).then_some(hold)
    }

    fn end_of(&self, asked: Moment, now: Moment) -> Moment {
        let from = if self.rules.keep(NameRule::HeldFromSending) { asked } else { now };
        let span =
            if self.rules.keep(NameRule::RateErrorCounts) { relied_on(self.lease) } else { self.lease };
        from + span
    }

    /// The token.
    #[cfg(feature = "testing")]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Its span when it is granted or renewed.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether the name is held.
    pub fn is_valid(&self, now: Moment) -> bool {
        now < self.until
    }

    /// When it ends, or ended, unless it is renewed.
    pub fn until(&self) -> Moment {
        self.until
    }

    /// When the next renewal is due.
    pub fn renew_at(&self) -> Moment {
        self.renew_at
    }

    /// A renewal leaves now.
    pub fn renewing(&mut self, now: Moment) {
        self.renew_at = now + self.lease / RENEWALS_PER_LEASE;
    }

    /// The leader renewed what was asked at `asked`. Whether it is held now: one that has ended stays so.
    pub fn renewed(&mut self, asked: Moment, now: Moment) -> bool {
        let held = self.is_valid(now);
        if held {
            self.until = self.until.max(self.end_of(asked, now));
        }
        held
    }

    /// It is over: given back, taken back or lost.
    pub fn end(&mut self, now: Moment) {
        self.until = self.until.min(now);
    }
}
