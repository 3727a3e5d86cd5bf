//! Leading: leases, going on alone, taking others in, resuming, handing over.

use std::time::Duration;

use crate::ids::Position;
use crate::message::{Part, Refusal, Request, Standing};
use crate::time::{Millis, Moment};

use super::{Ask, Replica, Right, Role};

// Commands of the data layer and the operator.
impl Replica {
    pub(super) fn may_offer(&self, now: Moment) -> Result<(), Refusal> {
        if self.resigning {
            return Err(Refusal::Void);
        }
        if self.ballot.right() != Some(Right::Solo) {
            return self.ballot.may_offer().map(|_| ());
        }
        let peer = self.ballot.peer().ok_or(Refusal::Void)?;
        let admitted = self.ballot.recognised_witness().is_some_and(|link| link.standing == Standing::Member);
        if peer.standing == Standing::Blank && !admitted {
            // Whoever opens is sole no longer. With a blank peer and no witness there would be nobody to elect it.
            return Err(Refusal::OtherWitness);
        }
        if now < self.open_at {
            return Err(Refusal::Busy { left: Millis::ceil(self.open_at.since(now)) });
        }
        // A lease that is left over from before the peer fell silent says nothing: it has to have answered since. And
        // a witness that is being taken in goes first: once the term is open it could not be any more.
        if !self.peer_is_near(now) || self.peer_heard <= self.went_solo || self.admitting.is_some() {
            return Err(Refusal::Busy { left: Millis(0) });
        }
        // The lease of the peer carries the right to act over the opening.
        if self.lease.runs(now) { Ok(()) } else { Err(Refusal::Busy { left: Millis(0) }) }
    }

    pub(super) fn offer(
        &mut self,
        now: Moment,
        position: Position,
        asks: &mut Vec<Ask>,
    ) -> Result<(), Refusal> {
        self.may_offer(now)?;
        self.ballot.durable(position.max(self.ballot.position()));
        if self.ballot.right() == Some(Right::Solo) {
            self.ballot.open()?;
            self.blocked_since = now;
            self.peer_heard = now;
            self.confirming = None;
            self.admitting = None;
            self.stalled = false;
            self.lease.renew_now();
        }
        let request = self.ballot.offer(position)?;
        self.to_peer(request, asks);
        Ok(())
    }

    pub(super) fn resign(&mut self) -> Result<(), Refusal> {
        match self.ballot.right() {
            None => Err(Refusal::NotLeader { term: self.ballot.record().term }),
            Some(Right::Solo) => Err(Refusal::Sole),
            // The witness may confirm at any moment, and would then bar the peer.
            Some(_) if self.confirming.is_some() => Err(Refusal::Busy { left: Millis(0) }),
            Some(Right::Blocked) => Err(Refusal::Void),
            Some(Right::Paired) => {
                self.resigning = true;
                Ok(())
            }
        }
    }

    pub(super) fn stopped(&mut self, now: Moment, asks: &mut Vec<Ask>) -> Result<(), Refusal> {
        let term = self.ballot.record().term;
        if !self.resigning || self.ballot.right().is_none() {
            return Err(Refusal::NotLeader { term });
        }
        let release = Request::Release { term, position: self.ballot.position() };
        self.to_peer(release, asks);
        if self.is_leadership() {
            self.to_witness(release, asks);
        }
        // The peer goes first; if it does not, this one stands again.
        self.step_down(now, Duration::ZERO);
        self.yield_until = now + self.settings.lease * 2;
        Ok(())
    }
}

// What is due by itself.
impl Replica {
    pub(super) fn drive_leader(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        let solo = self.ballot.right() == Some(Right::Solo);
        let mut term = self.ballot.record().term;
        if let Some(peer) = self.ballot.peer().copied() {
            if peer.term > term && !solo && !self.resigning {
                // A higher durable term was met: stand above it, unless its owner leads already.
                self.step_down(now, self.settings.lease / 2);
                return;
            }
            if peer.term > term && solo && self.ballot.resume().is_ok() {
                // A peer that is above this term follows nobody in it: without this the two never pair again.
                term = self.ballot.record().term;
                self.lease.renew_now();
            }
            let counts = peer.standing != Standing::Blank || self.ballot.may_offer().is_ok() || solo;
            if counts && now >= self.lease.renew_at() {
                let sequence = self.lease.sending(now, self.settings.lease);
                let lease = Millis::ceil(self.settings.lease);
                self.to_peer(Request::Renew { term, sequence, lease }, asks);
            }
        }
        if self.resigning && self.goes_alone(now) {
            // The peer does not take over: go on.
            self.resigning = false;
        }
        if self.is_leadership() {
            self.drive_leadership(now, asks);
        }
        self.take_witness_in(asks);
        self.validate_witness(asks);
        if solo {
            // It needs nobody's word.
        } else if !self.resigning && (self.confirming.is_some() || self.goes_alone(now)) {
            self.ask_confirmation(asks);
        }
    }

    /// Without data there is nothing to go on alone for: a lease of the witness does as well as one of the peer, and
    /// whoever is linked is taken in at once. (§9)
    fn drive_leadership(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        let solo = self.ballot.right() == Some(Right::Solo);
        let promises = self.ballot.recognised_witness().is_some_and(|link| link.standing == Standing::Member);
        if promises && !solo && !self.resigning && now >= self.witness_lease.renew_at() {
            let sequence = self.witness_lease.sending(now, self.settings.lease);
            let lease = Millis::ceil(self.settings.lease);
            self.to_witness(Request::Renew { term: self.ballot.record().term, sequence, lease }, asks);
        }
        let offered = matches!(self.ballot.role(), Role::Leader { offer: Some(_), .. });
        if !offered && self.ballot.right() != Some(Right::Paired) && self.may_offer(now).is_ok() {
            let _ = self.offer(now, self.ballot.position(), asks);
        }
    }

    /// Whether the peer has been silent, or useless, for long enough to go on without it.
    pub(super) fn goes_alone(&self, now: Moment) -> bool {
        if self.is_leadership() {
            // Only to take a new life of the peer in, which nobody else may do.
            let blank = self.ballot.peer().is_some_and(|peer| peer.standing == Standing::Blank);
            return blank && self.ballot.may_offer().is_err();
        }
        let Some(solo_after) = self.settings.solo_after else {
            return false;
        };
        let silent = now.since(self.peer_heard) >= solo_after;
        match self.ballot.right() {
            Some(Right::Paired) => silent || self.stalled,
            Some(Right::Blocked) => silent || self.stalled || now.since(self.blocked_since) >= solo_after,
            _ => false,
        }
    }

    pub(super) fn ask_confirmation(&mut self, asks: &mut Vec<Ask>) {
        let Some(witness) = self.ballot.recognised_witness() else {
            return;
        };
        if self.confirming == Some(witness.id) {
            return;
        }
        let link = witness.id;
        self.confirming = Some(link);
        let lease = Millis::ceil(self.settings.lease);
        let request = Request::Confirm { term: self.ballot.record().term, lease };
        asks.push(Ask { link, part: Part::Witness, request });
    }

    /// A sole leader takes a blank witness in alone, a paired one after its peer has adopted it.
    pub(super) fn take_witness_in(&mut self, asks: &mut Vec<Ask>) {
        let Some(witness) = self.ballot.witness().filter(|link| link.standing == Standing::Blank) else {
            return;
        };
        let link = witness.id;
        if self.admitting == Some(link) || self.not_admitted == Some(link) {
            return;
        }
        #[cfg(feature = "testing")]
        if let Ok(request) = self.ballot.admit_without_peer(self.proposed) {
            self.admitting = Some(link);
            self.to_witness(request, asks);
            return;
        }
        if let Ok(request) = self.ballot.admit_witness(self.proposed) {
            self.admitting = Some(link);
            self.to_witness(request, asks);
        } else if let Ok(request) = self.ballot.propose_witness(self.proposed) {
            self.admitting = Some(link);
            self.proposed = self.proposed.saturating_add(1);
            self.to_peer(request, asks);
        }
    }

    /// A witness with `strict_boot` has restarted: a sole leader validates it alone, a paired one after its peer has
    /// vouched.
    pub(super) fn validate_witness(&mut self, asks: &mut Vec<Ask>) {
        let Some(link) = self.ballot.witness().map(|link| link.id) else { return };
        if self.validating == Some(link) {
            return;
        }
        if let Ok(request) = self.ballot.validate_alone() {
            self.validating = Some(link);
            self.to_witness(request, asks);
        } else if let Ok(request) = self.ballot.ask_to_vouch() {
            self.validating = Some(link);
            self.to_peer(request, asks);
        }
    }

    /// A sole replica that does not lead asks whom it can reach, for a bounded time, and leads again.
    pub(super) fn drive_sole(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        let asked = self.ballot.peer().is_some() && self.ballot.witness().is_some();
        let due = (asked || now >= self.resume_at) && self.doubted.is_none();
        if due && self.ballot.resume().is_ok() {
            self.leadership_begins(now);
            self.is_solo(now);
            self.drive_leader(now, asks);
        }
    }

    pub(super) fn is_solo(&mut self, now: Moment) {
        self.confirming = None;
        self.admitting = None;
        self.stalled = false;
        // A peer that comes and goes is taken in after ever longer pauses.
        let calm = now.since(self.went_solo) > self.settings.lease * 64;
        self.flaps =
            if calm || self.went_solo == Moment::default() { 0 } else { self.flaps.saturating_add(1) };
        self.went_solo = now;
        let pause = if self.flaps == 0 {
            Duration::ZERO
        } else {
            self.settings.lease / 4 * (1_u32 << self.flaps.min(7))
        };
        self.open_at = now + pause;
    }

    /// Leadership begins with nothing of an earlier one.
    pub(super) fn leadership_begins(&mut self, now: Moment) {
        self.lease.clear();
        self.witness_lease.clear();
        self.confirming = None;
        self.admitting = None;
        self.validating = None;
        self.proposed = 0;
        self.resigning = false;
        self.stalled = false;
        self.blocked_since = now;
    }

    /// If this replica does not lead, nothing of a leadership is left.
    pub(super) fn leadership_over(&mut self, now: Moment) {
        if self.ballot.right().is_none() {
            self.leadership_begins(now);
        }
    }

    pub(super) fn step_down(&mut self, now: Moment, pause: Duration) {
        self.ballot.step_down();
        self.leadership_over(now);
        self.stand_at = now + pause + self.stagger();
    }
}
