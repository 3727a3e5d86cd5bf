//! What others say: requests of the peer, replies of peer and witness, links that come and go.

use crate::ids::{LinkId, Term, VoterId};
use crate::limits::LEASE_MAX;
use crate::message::{Candidacy, Hello, Part, Refusal, Reply, Request, Sender, Standing};
use crate::rules::Rule;
use crate::time::{Millis, Moment};

use super::canvass::Canvass;
use super::{ASKED_ON_AN_EARLIER_LINK, Ask, OfferIn, Replica, Right, Role};

use std::time::Duration;

impl Replica {
    /// A request of the peer.
    pub(super) fn asked(
        &mut self,
        now: Moment,
        link: LinkId,
        from: &Sender,
        request: &Request,
        asks: &mut Vec<Ask>,
    ) -> Result<Reply, Refusal> {
        match request {
            Request::Status => return Ok(Reply::Status(Box::new(self.report(now)))),
            Request::Hello(hello) => {
                if hello.part != Part::Replica {
                    return Err(Refusal::NotServed);
                }
                self.link_up(now, link, from, hello, false, asks)?;
                return Ok(Reply::Hello(self.ballot.hello(Part::Replica)));
            }
            _ => {}
        }
        self.ballot.heard(link, Part::Replica, from)?;
        match request {
            Request::Linked => Ok(Reply::Linked),
            Request::PreVote(candidacy) => {
                self.may_grant(now, from.voter, candidacy)?;
                Ok(Reply::PreVoted { term: candidacy.term })
            }
            Request::Vote(candidacy) => {
                self.may_grant(now, from.voter, candidacy)?;
                self.ballot.grant(from.voter, candidacy)?;
                self.leadership_over(now);
                self.canvass = Canvass::default();
                self.yield_until = now + self.settings.lease;
                Ok(Reply::Voted { term: candidacy.term })
            }
            Request::Renew { term, sequence, lease } => {
                self.renewed(now, from.voter, *term, *lease)?;
                Ok(Reply::Renewed { term: *term, sequence: *sequence })
            }
            Request::Offer { term, position, adoption, admits } => {
                let offer = OfferIn {
                    link,
                    leader: from.voter,
                    cluster: from.cluster,
                    term: *term,
                    position: *position,
                    adoption: *adoption,
                };
                self.ballot.hear_offer(offer, *admits)?;
                self.leadership_over(now);
                self.canvass = Canvass::default();
                self.peer_heard = now;
                if self.is_leadership() {
                    // There is nothing to copy.
                    self.join(now, *term, asks)?;
                }
                Ok(Reply::Offered { term: *term })
            }
            Request::Joined { term, position } => {
                self.ballot.joined(link, *term, *position)?;
                self.peer_heard = now;
                self.stalled = false;
                Ok(Reply::Settled { term: *term })
            }
            Request::Adopt { term, adoption } => {
                self.ballot.adopt(from.voter, *term, *adoption)?;
                Ok(Reply::Adopted { adoption: *adoption })
            }
            Request::Vouch { term, nonce } => {
                self.ballot.vouch(from.voter, *term)?;
                Ok(Reply::Vouched { term: *term, nonce: *nonce })
            }
            Request::Release { term, .. } => {
                self.promise.give_back(now, *term);
                self.peer_heard = now;
                if *term >= self.ballot.record().term {
                    self.stand_at = now;
                    self.yield_until = now;
                    self.failed = 0;
                }
                Ok(Reply::Released { term: *term })
            }
            _ => Err(Refusal::NotServed),
        }
    }

    /// A follower's answer to a renewal: the promise starts when the request is received.
    pub(super) fn renewed(
        &mut self,
        now: Moment,
        leader: VoterId,
        term: Term,
        lease: Millis,
    ) -> Result<(), Refusal> {
        if lease.span() > LEASE_MAX {
            return Err(Refusal::NotServed);
        }
        self.ballot.follow(leader, term)?;
        self.leadership_over(now);
        self.canvass = Canvass::default();
        self.ballot.note_lease(lease);
        self.promise.give(now, term, lease.span());
        self.took_part = true;
        self.peer_heard = now;
        self.failed = 0;
        Ok(())
    }

    /// What forbids a vote at this moment, and then what forbids it always.
    pub(super) fn may_grant(
        &self,
        now: Moment,
        candidate: VoterId,
        candidacy: &Candidacy,
    ) -> Result<(), Refusal> {
        let rules = self.ballot.rules();
        let until = self.lease_until();
        if self.ballot.right().is_some_and(|right| right != Right::Solo)
            && now < until
            && rules.keep(Rule::ActingLeaderRefusesVotes)
        {
            return Err(Refusal::LeaseRuns { left: Millis::ceil(until.since(now)) });
        }
        if self.promise.until() > now && rules.keep(Rule::PromiseBindsFollower) {
            return Err(Refusal::LeaseRuns { left: Millis::ceil(self.promise.until().since(now)) });
        }
        if self.hold_off > now && self.ballot.record().standing != Standing::Blank {
            return Err(Refusal::HoldOff { left: Millis::ceil(self.hold_off.since(now)) });
        }
        if matches!(self.ballot.role(), Role::Follower { leader, .. } if *leader == Some((candidate, candidacy.term)))
        {
            // It was elected meanwhile and has been heard to lead: to vote now would forget what it offered.
            return Err(Refusal::Void);
        }
        self.ballot.may_grant(candidate, candidacy)
    }

    /// A reply of the peer or the witness.
    pub(super) fn answered(
        &mut self,
        now: Moment,
        link: LinkId,
        part: Part,
        from: &Sender,
        reply: &Reply,
        asks: &mut Vec<Ask>,
    ) -> Result<(), Refusal> {
        if let Reply::Hello(hello) = reply {
            if hello.part != part {
                return Err(Refusal::NotServed);
            }
            return self.link_up(now, link, from, hello, true, asks);
        }
        self.ballot.heard(link, part, from)?;
        if part == Part::Replica {
            self.peer_heard = now;
        }
        match reply {
            Reply::PreVoted { term } | Reply::Voted { term } => {
                if part == Part::Witness {
                    // Whoever votes was taken in, whatever it said when the link came up.
                    self.ballot.witness_is_member();
                }
                let durable = matches!(reply, Reply::Voted { .. });
                let verdict = self.canvass.granted(link, *term, durable);
                self.judged(now, verdict, part, asks);
            }
            Reply::Refused(refusal) => self.met_refusal(now, link, part, from, *refusal, asks),
            Reply::Confirmed { term } => {
                self.ballot.witness_is_member();
                self.ballot.confirmed(*term)?;
                self.is_solo(now);
            }
            Reply::Renewed { sequence, .. } => {
                let lease = match part {
                    Part::Replica => &mut self.lease,
                    Part::Witness if self.ballot.recognised_witness().is_none() => {
                        return Err(Refusal::OtherWitness);
                    }
                    Part::Witness => &mut self.witness_lease,
                };
                lease.answered(now, *sequence, self.settings.lease, self.ballot.rules());
            }
            Reply::Vouched { term, nonce } => {
                let request = self.ballot.vouched(*term, *nonce)?;
                self.to_witness(request, asks);
            }
            Reply::Validated { .. } => {
                self.validating = None;
                self.ballot.witness_is_member();
                self.confirm_again(link);
            }
            Reply::Adopted { adoption } => {
                let request = self.ballot.adopted(*adoption)?;
                // What the earlier witness promised is given up before it is replaced.
                self.witness_lease.clear();
                self.to_witness(request, asks);
            }
            Reply::Admitted { .. } => {
                self.ballot.witness_is_member();
                self.admitting = None;
                self.confirm_again(link);
            }
            _ => {}
        }
        Ok(())
    }

    /// While the witness was blank, or not validated, it could not confirm.
    fn confirm_again(&mut self, link: LinkId) {
        if self.confirming == Some(link) {
            self.confirming = Some(ASKED_ON_AN_EARLIER_LINK);
        }
    }

    pub(super) fn met_refusal(
        &mut self,
        now: Moment,
        link: LinkId,
        part: Part,
        from: &Sender,
        refusal: Refusal,
        asks: &mut Vec<Ask>,
    ) {
        self.refused = Some((from.voter.node, refusal));
        if part == Part::Witness && self.admitting == Some(link) {
            self.admitting = None;
            self.not_admitted = Some(link);
        }
        if part == Part::Replica && self.ballot.right() == Some(Right::Paired) {
            // It may be the adoption that was refused: on the next link to the witness it is proposed again.
            self.not_admitted = self.admitting.take().or(self.not_admitted);
        }
        if self.canvass.is_idle() {
            let confirming = part == Part::Witness && self.confirming == Some(link);
            if confirming && matches!(refusal, Refusal::TermSpent { .. } | Refusal::OtherCluster) {
                // The witness gave a higher term away: stand above it, or follow whoever has it.
                self.step_down(now, Duration::ZERO);
            }
            return;
        }
        let verdict = self.canvass.refused(link, part, refusal);
        self.judged(now, verdict, part, asks);
        if let Refusal::LeaseRuns { left } | Refusal::Busy { left } = refusal
            && self.canvass.is_idle()
        {
            // It is known when that ends: later than that would be wasted.
            let until = now + left.span() + self.stagger();
            self.stand_at = self.stand_at.min(until).max(now);
        }
    }

    pub(super) fn link_up(
        &mut self,
        now: Moment,
        link: LinkId,
        from: &Sender,
        hello: &Hello,
        dialled: bool,
        asks: &mut Vec<Ask>,
    ) -> Result<(), Refusal> {
        let part = hello.part;
        let earlier = match part {
            Part::Replica => self.ballot.peer(),
            Part::Witness => self.ballot.witness(),
        };
        let earlier = earlier.map(|link| link.id);
        let fresh = self.draws.next();
        if let Err(refusal) = self.ballot.link_up(link, from, hello, dialled, fresh) {
            self.refused = Some((from.voter.node, refusal));
            self.not_greeted_at = now;
            return Err(refusal);
        }
        self.refused = self.refused.filter(|(node, _)| *node != from.voter.node);
        self.doubted = self.doubted.filter(|by| *by != part);
        if matches!(self.ballot.record().standing, Standing::Resyncing(_)) {
            // The link may have shown that its data is an old image: then it asks for nothing more.
            self.canvass = Canvass::default();
        }
        if dialled {
            // An idle link, too, leaves no doubt about what its two ends have agreed.
            asks.push(Ask { link, part, request: Request::Linked });
        }
        if let Some(earlier) = earlier {
            self.link_over(now, earlier, asks);
        }
        match part {
            Part::Replica => {
                self.lease.renew_now();
                self.peer_heard = now;
            }
            Part::Witness => {
                if hello.standing == Standing::Unvalidated {
                    // It may have forgotten what it promised, and how long that was at most.
                    self.witness_lease.clear();
                }
                self.witness_lease.renew_now();
                let term = self.ballot.record().term;
                let asked = self.confirming == Some(ASKED_ON_AN_EARLIER_LINK);
                if asked && self.ballot.recognised_witness().is_some() && hello.holds < term {
                    // It was not confirmed, and on the earlier link it cannot be any more.
                    self.confirming = None;
                }
            }
        }
        if self.canvass.is_idle() {
            // Somebody new to ask: no need to wait any longer.
            self.failed = 0;
            self.stand_at = now;
        } else {
            self.canvass.also_ask(link, part, self.ballot.candidacy(self.canvass.term()), asks);
        }
        Ok(())
    }

    pub(super) fn link_down(&mut self, now: Moment, link: LinkId, asks: &mut Vec<Ask>) {
        self.ballot.link_down(link);
        self.link_over(now, link, asks);
    }

    /// Forgets what was asked on a link that is over.
    pub(super) fn link_over(&mut self, now: Moment, link: LinkId, asks: &mut Vec<Ask>) {
        if self.confirming == Some(link) {
            // Whether it was confirmed is not known: it has to be asked again on the next link.
            self.confirming = Some(ASKED_ON_AN_EARLIER_LINK);
        }
        if self.admitting == Some(link) {
            self.admitting = None;
        }
        if self.validating == Some(link) {
            self.validating = None;
        }
        let verdict = self.canvass.link_down(link);
        self.judged(now, verdict, Part::Replica, asks);
    }
}
