//! The leases that a witness promises: in leadership clusters only. (§9)
//!
//! Invariants:
//! - while a promise runs, nobody else is voted for;
//! - the longest lease that may have been promised is durable before it is promised, and after a start, or after it was
//!   taken in, the witness votes for nobody until that long has passed.

use crate::ids::VoterId;
use crate::limits::LEASE_MAX;
use crate::message::{Kind, Refusal, WitnessRecord};
use crate::rate::kept;
use crate::rules::{Rule, Rules};
use crate::time::{Millis, Moment};

/// What was promised, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Leases {
    /// To whom, and until when.
    promised: Option<(VoterId, Moment)>,
    /// Before this, an earlier life may have a promise that runs.
    hold_off: Moment,
    /// When the last promise of the longest span ends.
    longest_until: Moment,
}

impl Leases {
    /// Nothing is known of what was promised before now, but how long it was at most.
    pub(super) fn started(now: Moment, record: &WitnessRecord, rules: Rules) -> Leases {
        let may_run = record.kind == Kind::Leadership && record.longest_lease > Millis(0);
        let hold_off = if may_run && rules.keep(Rule::WitnessHoldsOff) {
            now + kept(record.longest_lease.span())
        } else {
            now
        };
        Leases { promised: None, hold_off, longest_until: hold_off }
    }

    /// What forbids a vote for this candidate at this moment.
    pub(super) fn may_grant(&self, now: Moment, candidate: VoterId, rules: Rules) -> Result<(), Refusal> {
        if now < self.hold_off {
            return Err(Refusal::HoldOff { left: Millis::ceil(self.hold_off.since(now)) });
        }
        match self.promised {
            Some((leader, until))
                if leader != candidate && now < until && rules.keep(Rule::WitnessLeaseBinds) =>
            {
                Err(Refusal::LeaseRuns { left: Millis::ceil(until.since(now)) })
            }
            _ => Ok(()),
        }
    }

    /// Promises to the leader that it is for to ask; `longest` is on record.
    pub(super) fn renew(
        &mut self,
        now: Moment,
        leader: VoterId,
        lease: Millis,
        longest: &mut Millis,
    ) -> Result<(), Refusal> {
        if lease.span() > LEASE_MAX {
            return Err(Refusal::NotServed);
        }
        let until = now + kept(lease.span());
        if lease >= *longest || now >= self.longest_until {
            *longest = lease;
            self.longest_until = until;
        }
        let earlier = self.promised.filter(|(to, _)| *to == leader).map_or(now, |(_, until)| until);
        self.promised = Some((leader, until.max(earlier)));
        Ok(())
    }

    /// The leader gives its lease back.
    pub(super) fn release(&mut self, leader: VoterId) {
        self.promised = self.promised.filter(|(to, _)| *to != leader);
    }
}
