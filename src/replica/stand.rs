//! Standing: when, against whom, and what to do after it failed.

use std::time::Duration;

use crate::ids::LinkId;
use crate::limits::CANDIDATE_BACKOFF_LEASES_MAX;
use crate::message::Part;
use crate::rules::Rule;
use crate::time::Moment;

use super::canvass::{Canvass, Verdict};
use super::{Ask, Replica, Role};

impl Replica {
    pub(super) fn may_stand_at(&self) -> Moment {
        if !self.stands {
            return Moment::FOREVER;
        }
        let mut at = self.stand_at.max(self.yield_until);
        if self.ballot.rules().keep(Rule::StandingIsGranting) {
            at = at.max(self.hold_off);
        }
        if self.ballot.rules().keep(Rule::PromiseBindsFollower) {
            at = at.max(self.promise.until());
        }
        at
    }

    /// The second replica in the order of names waits a little longer, so that two do not stand at once for ever.
    pub(super) fn stagger(&self) -> Duration {
        let second = self.ballot.peer().is_some_and(|peer| peer.who.node < self.ballot.me().node);
        if second { self.settings.lease / 4 } else { Duration::ZERO }
    }

    /// Whether the peer hears this replica and was heard a moment ago.
    pub(super) fn peer_is_near(&self, now: Moment) -> bool {
        self.ballot.peer().is_some() && now.since(self.peer_heard) < self.settings.lease / 2
    }

    pub(super) fn drive_candidate(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        if self.canvass.is_idle() {
            let sees_somebody = self.ballot.peer().is_some() || self.ballot.recognised_witness().is_some();
            let may_stand = self.doubted.is_none() && self.ballot.may_stand().is_ok();
            if now >= self.may_stand_at() && sees_somebody && may_stand {
                self.begin_canvass(now, asks);
            }
        } else if now >= self.canvass.until() {
            let verdict = self.canvass.timed_out(self.witness_link());
            self.judged(now, verdict, Part::Replica, asks);
        }
    }

    pub(super) fn witness_link(&self) -> Option<LinkId> {
        self.ballot.recognised_witness().map(|link| link.id)
    }

    pub(super) fn begin_canvass(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        let Some(term) = self.ballot.highest_term().next() else {
            return;
        };
        let peer = self.ballot.peer().map(|link| link.id);
        let witness = self.witness_link();
        // After a start the peer goes first, whenever it was heard: if this state is an image, the witness may not know.
        let ask_peer_alone = self.peer_is_near(now) || !self.took_part;
        let patience = now + self.settings.lease / 4;
        self.canvass =
            Canvass::pre_vote(term, peer, witness.filter(|_| !ask_peer_alone || peer.is_none()), patience);
        if self.ballot.rules().keep(Rule::PreVoteFirst) {
            self.canvass.ask(self.ballot.candidacy(term), asks);
        } else {
            self.stand(now, asks);
        }
    }

    /// The pre-vote was won: raise the term and ask for the vote itself.
    pub(super) fn stand(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        match self.ballot.stand(self.canvass.term()) {
            Ok(candidacy) => {
                self.canvass.stand(now + self.settings.lease / 4);
                self.canvass.ask(candidacy, asks);
            }
            Err(_) => self.candidacy_failed(now),
        }
    }

    pub(super) fn judged(&mut self, now: Moment, verdict: Verdict, part: Part, asks: &mut Vec<Ask>) {
        match verdict {
            Verdict::Wait => {}
            Verdict::Stand => self.stand(now, asks),
            Verdict::Won => {
                self.canvass = Canvass::default();
                if self.ballot.elected(part, self.ballot.record().term).is_ok() {
                    self.failed = 0;
                    self.took_part = true;
                    self.refused = None;
                    self.leadership_begins(now);
                } else {
                    self.candidacy_failed(now);
                }
            }
            Verdict::AskWitness => {
                if let Some(witness) = self.witness_link() {
                    let candidacy = self.ballot.candidacy(self.canvass.term());
                    self.canvass.also_ask(witness, Part::Witness, candidacy, asks);
                } else {
                    self.candidacy_failed(now);
                }
            }
            Verdict::Failed => self.candidacy_failed(now),
        }
    }

    pub(super) fn candidacy_failed(&mut self, now: Moment) {
        self.canvass = Canvass::default();
        if *self.ballot.role() == Role::Candidate {
            self.ballot.step_down();
        }
        let half_leases = 1_u32 << self.failed.min(8);
        let back_off =
            (self.settings.lease / 2 * half_leases).min(self.settings.lease * CANDIDATE_BACKOFF_LEASES_MAX);
        self.failed = self.failed.saturating_add(1);
        self.stand_at = now + back_off + self.stagger();
    }
}
