//! A replica's voter: when to stand, renew, go on alone, resume, hand over. Pure: it is told what happens and when,
//! and says what has to be durable and what to send.
//!
//! The layers, each knowing only those before it:
//! - `ballot.rs`: the safety rules. No time. Nothing that this file decides can break them.
//! - `lease.rs`: the arithmetic of leases and promises.
//! - `canvass.rs`: one candidacy, from the first pre-vote to its end.
//! - this file: timing and preference.
//!
//! Invariants of this file:
//! - it acts as leader only while a lease of its peer runs, or while it is sole;
//! - while a promise of its own runs it neither votes nor stands;
//! - whatever it says of itself is in the record that its [`Step`] wants synced first.

mod ballot;
mod canvass;
mod lease;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::ids::{Boot, ClusterId, ClusterName, Incarnation, LinkId, NodeId, Position, Term, Token, VoterId};
use crate::limits::{CANDIDATE_BACKOFF_LEASES_MAX, LEASE_DEFAULT};
use crate::message::{
    Adoption, Candidacy, Hello, Kind, OtherReport, Part, Ratchet, Refusal, ReplicaRecord, Reply, Report,
    Request, RoleName, Sender, Standing, Word,
};
use crate::rules::{Rule, Rules};
use crate::time::{Millis, Moment};

pub use ballot::{Ballot, Link, OfferIn, OfferOut, Right, Role};
pub use lease::{kept, relied_on};

use canvass::{Canvass, Verdict};
use lease::{Lease, Promise};

/// What the operator chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Settings {
    /// The span of a lease: `D`.
    pub lease: Duration,
    /// How long a peer may be silent before its leader goes on alone; `None` for never.
    pub solo_after: Option<Duration>,
    /// Whether a sole leader goes on when the witness is gone as well.
    pub alone: Alone,
}

impl Settings {
    /// The defaults for a lease of this span: alone after half of it, and on when the witness is gone too.
    pub fn for_lease(lease: Duration) -> Settings {
        Settings { lease, solo_after: Some(lease / 2), alone: Alone::Continue }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::for_lease(LEASE_DEFAULT)
    }
}

/// What a sole leader does when it reaches nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Alone {
    /// It goes on: it is a quorum of one.
    Continue,
    /// It stops acting until it reaches somebody.
    Stop,
}

/// Something that happened to the replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Time passed.
    Tick,
    /// A request of the peer arrived. A `Hello` brings the link up.
    Asked {
        /// On this link.
        link: LinkId,
        /// Of whom.
        from: Sender,
        /// The request.
        request: Request,
    },
    /// A reply arrived. A `Hello` brings the link up.
    Answered {
        /// On this link.
        link: LinkId,
        /// Of which other voter.
        part: Part,
        /// Of whom.
        from: Sender,
        /// The reply.
        reply: Reply,
    },
    /// A link is over.
    LinkDown(LinkId),
    /// The data layer made more durable (or, in a resync, less).
    Durable(Position),
    /// The data layer, leading, wants the peer to join: it holds this much, and acknowledged no more.
    Offer(Position),
    /// The data layer, following, holds durably what the leader of this term offered.
    Join(Term),
    /// The data layer, following, is about to destroy what it has in order to copy the leader.
    Resync,
    /// The data layer, leading, finds that the peer no longer makes data durable.
    Stalled,
    /// Hand over to the peer.
    Resign,
    /// After `Resign`: the service has stopped and the peer has everything.
    Stopped,
}

/// What a replica asks of another voter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ask {
    /// On this link.
    pub link: LinkId,
    /// The other end.
    pub part: Part,
    /// The request.
    pub request: Request,
}

/// What may be said and shown once the record is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outputs {
    /// The head of what is sent.
    pub sender: Sender,
    /// The answer to the request that was handled.
    pub answer: Option<Reply>,
    /// What is asked of others.
    pub asks: Vec<Ask>,
    /// What the replica is now.
    pub view: View,
    /// Whether the command was taken, and if not why.
    pub taken: Result<(), Refusal>,
}

/// What an input led to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step {
    /// To be synced before anything of `outputs` leaves.
    pub record: Option<ReplicaRecord>,
    /// What follows.
    pub outputs: Outputs,
}

/// What the replica is, for its data layer and its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Its highest term.
    pub term: Term,
    /// What its state is worth.
    pub standing: Standing,
    /// Whether it is sole.
    pub sole: bool,
    /// Its role.
    pub role: RoleView,
    /// The link to the peer.
    pub peer: Option<Link>,
    /// The link to the witness, and whether it is the recognised one.
    pub witness: Option<(Link, bool)>,
    /// The last refusal that it met, and whose it was.
    pub refused: Option<(NodeId, Refusal)>,
}

/// The role in a [`View`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoleView {
    /// Waits, follows or copies.
    Follower {
        /// The leader that was heard and its term.
        leader: Option<(VoterId, Term)>,
        /// The offer to join.
        offer: Option<OfferIn>,
        /// Whether it takes part in the leader's term.
        joined: bool,
    },
    /// Asks for votes.
    Candidate,
    /// Leads.
    Leader {
        /// The fencing token.
        token: Token,
        /// What it may acknowledge.
        right: Right,
        /// Until when it has the right to act: [`Moment::FOREVER`] when sole, `None` when it has none.
        acts_until: Option<Moment>,
        /// Whether an offer would be taken now.
        may_offer: bool,
        /// The offer that is out.
        offered: Option<OfferOut>,
        /// It hands over: the service has to stop, and then to say so.
        resigning: bool,
    },
}

impl View {
    /// The token, the right to acknowledge and the end of the right to act, of a leader.
    pub fn authority(&self) -> Option<(Token, Right, Option<Moment>)> {
        match self.role {
            RoleView::Leader { token, right, acts_until, .. } => Some((token, right, acts_until)),
            _ => None,
        }
    }
}

/// Stands for a link that is over: real ones are numbered from one.
const ASKED_ON_AN_EARLIER_LINK: LinkId = LinkId(0);

/// The voter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Replica {
    ballot: Ballot,
    settings: Settings,
    lease: Lease,
    promise: Promise,
    /// After a start, no vote and no candidacy before this.
    hold_off: Moment,
    /// No candidacy before this: the pause after one that failed.
    stand_at: Moment,
    /// No candidacy before this: somebody else was voted for, or was handed over to, and gets the time to lead.
    yield_until: Moment,
    /// Candidacies that failed in a row.
    failed: u32,
    canvass: Canvass,
    /// When the peer last showed that it hears this replica.
    peer_heard: Moment,
    /// Since when this leader has been blocked.
    blocked_since: Moment,
    /// The peer's data layer no longer makes data durable.
    stalled: bool,
    /// The confirmation of this term was asked for, last on this link. Once asked, it is asked until it is answered:
    /// the witness may have confirmed, and then bars the peer.
    confirming: Option<LinkId>,
    /// A blank witness was asked in on this link.
    admitting: Option<LinkId>,
    /// A sole leader opens no new term before this: a link that flaps must not make terms race.
    open_at: Moment,
    /// When this replica last went solo, and how often lately.
    went_solo: Moment,
    flaps: u32,
    /// A sole follower resumes now or when it has asked everybody.
    resume_at: Moment,
    resigning: bool,
    refused: Option<(NodeId, Refusal)>,
}

// Making one.
impl Replica {
    /// The record of a new, blank replica. It has to be durable before the voter is started on it.
    pub fn blank(node: NodeId, name: ClusterName, kind: Kind, incarnation: Incarnation) -> ReplicaRecord {
        ReplicaRecord {
            node,
            name,
            cluster: ClusterId::NIL,
            kind,
            incarnation,
            boot: Boot(0),
            standing: Standing::Blank,
            term: Term::ZERO,
            voted_for: None,
            holds: Term::ZERO,
            sole: false,
            adoption: Adoption::NONE,
            longest_lease: Millis(0),
            ratchets: [Ratchet::default(); 2],
            remembers: [None; 2],
            banned: [Incarnation::NIL; 2],
        }
    }

    /// The record that makes a new cluster: its data is kept, and it is sole in term 1. (§7)
    pub fn init(
        node: NodeId,
        name: ClusterName,
        kind: Kind,
        incarnation: Incarnation,
        cluster: ClusterId,
    ) -> ReplicaRecord {
        ReplicaRecord {
            cluster,
            standing: Standing::Member,
            term: Term(1),
            voted_for: Some(VoterId { node, incarnation }),
            holds: Term(1),
            sole: true,
            ..Replica::blank(node, name, kind, incarnation)
        }
    }

    /// Starts on what was found on disk, with data that reaches durably to `position`. The step's record counts
    /// this start.
    pub fn start(
        now: Moment,
        found: ReplicaRecord,
        position: Position,
        settings: Settings,
        rules: Rules,
    ) -> (Replica, Step) {
        let promised = found.longest_lease.span().max(settings.lease);
        let held_off = if rules.keep(Rule::HoldOffAfterRestart) { now + kept(promised) } else { now };
        let mut replica = Replica {
            ballot: Ballot::start(found, position, rules),
            settings,
            lease: Lease::default(),
            promise: Promise::default(),
            hold_off: held_off,
            stand_at: now,
            yield_until: now,
            failed: 0,
            canvass: Canvass::default(),
            peer_heard: Moment::default(),
            blocked_since: now,
            stalled: false,
            confirming: None,
            admitting: None,
            open_at: now,
            went_solo: Moment::default(),
            flaps: 0,
            resume_at: now + settings.lease,
            resigning: false,
            refused: None,
        };
        // The longest lease that is promised from now on is the configured one, until a leader asks for more.
        replica.ballot.note_lease(Millis::ceil(settings.lease));
        let step = replica.step(now, &found, None, Vec::new(), Ok(()));
        (replica, step)
    }
}

// Getters.
impl Replica {
    /// The safety state.
    pub fn ballot(&self) -> &Ballot {
        &self.ballot
    }

    /// What it says when a link opens.
    pub fn hello(&self) -> Hello {
        let record = self.ballot.record();
        Hello {
            name: record.name,
            kind: record.kind,
            part: Part::Replica,
            standing: record.standing,
            holds: record.holds,
            position: self.ballot.position(),
            sole: record.sole,
            leads: self.ballot.right().is_some(),
            adoption: record.adoption,
            ratchet: Ratchet::default(),
            remembers: None,
            nonce: 0,
        }
    }

    /// Until when it has the right to act as leader.
    pub fn acts_until(&self, now: Moment) -> Option<Moment> {
        let right = self.ballot.right()?;
        if self.resigning {
            return None;
        }
        if right == Right::Solo {
            let alone = self.ballot.peer().is_none() && self.ballot.recognised_witness().is_none();
            let stops = alone && self.settings.alone == Alone::Stop;
            return (!stops).then_some(Moment::FOREVER);
        }
        self.lease.runs(now).then(|| self.lease.until())
    }

    /// What it is now.
    pub fn view(&self, now: Moment) -> View {
        let record = self.ballot.record();
        let role = match self.ballot.role() {
            Role::Follower { leader, offer } => RoleView::Follower {
                leader: *leader,
                offer: *offer,
                joined: leader.is_some_and(|(_, term)| record.holds == term && record.term == term),
            },
            Role::Candidate => RoleView::Candidate,
            Role::Leader { right, offer, .. } => RoleView::Leader {
                token: Token::of(record.term),
                right: *right,
                acts_until: self.acts_until(now),
                may_offer: self.may_offer(now).is_ok(),
                offered: *offer,
                resigning: self.resigning,
            },
        };
        View {
            term: record.term,
            standing: record.standing,
            sole: record.sole,
            role,
            peer: self.ballot.peer().copied(),
            witness: self.ballot.witness().map(|link| (*link, self.ballot.recognised_witness().is_some())),
            refused: self.refused,
        }
    }

    /// How it sees its cluster.
    pub fn report(&self, now: Moment) -> Report {
        let record = self.ballot.record();
        let acts = self.acts_until(now);
        let (role, leader) = match self.ballot.role() {
            Role::Follower { leader, .. } => (RoleName::Follower, leader.map(|(voter, _)| voter.node)),
            Role::Candidate => (RoleName::Candidate, None),
            Role::Leader { right, .. } => {
                let name = match right {
                    Right::Blocked => RoleName::Blocked,
                    Right::Paired => RoleName::Paired,
                    Right::Solo => RoleName::Solo,
                };
                (name, Some(record.node))
            }
        };
        let other = |link: &Link, part, silent_for| OtherReport {
            node: link.who.node,
            part,
            link: Some(link.id),
            incarnation: link.who.incarnation,
            silent_for,
        };
        let heard = Millis::ceil(now.since(self.peer_heard));
        Report {
            name: record.name,
            kind: record.kind,
            role,
            standing: record.standing,
            sole: record.sole,
            acts: acts.is_some(),
            lease_left: acts.filter(|end| *end != Moment::FOREVER).map(|end| Millis::ceil(end.since(now))),
            token: self.ballot.right().map(|_| Token::of(record.term)),
            leader,
            holds: record.holds,
            position: self.ballot.position(),
            promised: Word { term: record.term, to: record.voted_for },
            confirmed: Word::default(),
            adoption: record.adoption,
            others: [
                self.ballot.peer().map(|link| other(link, Part::Replica, Some(heard))),
                self.ballot.witness().map(|link| other(link, Part::Witness, None)),
            ],
            refused: self.refused,
        }
    }

    /// When it wants to be woken by a `Tick` at the latest.
    pub fn wake_at(&self, now: Moment) -> Moment {
        let mut wake = self.canvass.until();
        let mut at = |moment: Moment| {
            if moment > now {
                wake = wake.min(moment);
            }
        };
        match self.ballot.role() {
            Role::Leader { right, .. } => {
                if self.ballot.peer().is_some() {
                    at(self.lease.renew_at());
                    at(self.open_at);
                }
                at(self.lease.until());
                if let (Some(solo_after), false) = (self.settings.solo_after, *right == Right::Solo) {
                    at(self.peer_heard + solo_after);
                    at(self.blocked_since + solo_after);
                }
            }
            _ if self.ballot.record().sole => at(self.resume_at),
            _ => at(self.may_stand_at()),
        }
        wake
    }

    fn may_stand_at(&self) -> Moment {
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
    fn stagger(&self) -> Duration {
        let second = self.ballot.peer().is_some_and(|peer| peer.who.node < self.ballot.me().node);
        if second { self.settings.lease / 4 } else { Duration::ZERO }
    }

    /// Whether the peer hears this replica and was heard a moment ago.
    fn peer_is_near(&self, now: Moment) -> bool {
        self.ballot.peer().is_some() && now.since(self.peer_heard) < self.settings.lease / 2
    }

    fn may_offer(&self, now: Moment) -> Result<(), Refusal> {
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
        // A lease that is left over from before the peer fell silent says nothing: it has to have answered since.
        if !self.peer_is_near(now) || self.peer_heard <= self.went_solo || self.admitting.is_some() {
            return Err(Refusal::Busy { left: Millis(0) });
        }
        // The lease of the peer carries the right to act over the opening.
        if self.lease.runs(now) { Ok(()) } else { Err(Refusal::Busy { left: Millis(0) }) }
    }
}

// What happens to it.
impl Replica {
    /// One thing happened at `now`. The moments of successive calls must not go back.
    pub fn handle(&mut self, now: Moment, input: Input) -> Step {
        let before = *self.ballot.record();
        let was_paired = self.ballot.right() == Some(Right::Paired);
        let mut asks = Vec::new();
        let mut answer = None;
        let mut taken = Ok(());
        match input {
            Input::Tick => {}
            Input::Asked { link, from, request } => {
                answer = Some(match self.asked(now, link, &from, &request, &mut asks) {
                    Ok(reply) => reply,
                    Err(refusal) => Reply::Refused(refusal),
                });
            }
            Input::Answered { link, part, from, reply } => {
                taken = self.answered(now, link, part, &from, &reply, &mut asks);
            }
            Input::LinkDown(link) => self.link_down(now, link),
            Input::Durable(position) => self.ballot.durable(position),
            Input::Offer(position) => taken = self.offer(now, position, &mut asks),
            Input::Join(term) => taken = self.join(now, term, &mut asks),
            Input::Resync => taken = self.ballot.resync(),
            Input::Stalled => self.stalled = self.ballot.right() == Some(Right::Paired),
            Input::Resign => taken = self.resign(),
            Input::Stopped => taken = self.stopped(now, &mut asks),
        }
        if was_paired && self.ballot.right() == Some(Right::Blocked) {
            self.blocked_since = now;
        }
        self.drive(now, &mut asks);
        self.step(now, &before, answer, asks, taken)
    }

    fn step(
        &self,
        now: Moment,
        before: &ReplicaRecord,
        answer: Option<Reply>,
        asks: Vec<Ask>,
        taken: Result<(), Refusal>,
    ) -> Step {
        self.ballot.check(before);
        let record = *self.ballot.record();
        let outputs = Outputs { sender: self.ballot.sender(), answer, asks, view: self.view(now), taken };
        Step { record: (record != *before).then_some(record), outputs }
    }

    /// A request of the peer.
    fn asked(
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
                self.link_up(now, link, from, hello, asks)?;
                return Ok(Reply::Hello(self.hello()));
            }
            _ => {}
        }
        self.ballot.heard(link, Part::Replica, from)?;
        match request {
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
                Ok(Reply::Offered { term: *term })
            }
            Request::Joined { term, position } => {
                self.ballot.joined(link, *term, *position)?;
                self.peer_heard = now;
                self.stalled = false;
                Ok(Reply::Settled { term: *term })
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
    fn renewed(&mut self, now: Moment, leader: VoterId, term: Term, lease: Millis) -> Result<(), Refusal> {
        self.ballot.follow(leader, term)?;
        self.leadership_over(now);
        self.canvass = Canvass::default();
        self.ballot.note_lease(lease);
        self.promise.give(now, term, lease.span());
        self.peer_heard = now;
        self.failed = 0;
        Ok(())
    }

    /// What forbids a vote at this moment, and then what forbids it always.
    fn may_grant(&self, now: Moment, candidate: VoterId, candidacy: &Candidacy) -> Result<(), Refusal> {
        let rules = self.ballot.rules();
        if self.ballot.right().is_some_and(|right| right != Right::Solo)
            && self.lease.runs(now)
            && rules.keep(Rule::ActingLeaderRefusesVotes)
        {
            return Err(Refusal::LeaseRuns { left: Millis::ceil(self.lease.until().since(now)) });
        }
        if self.promise.until() > now && rules.keep(Rule::PromiseBindsFollower) {
            return Err(Refusal::LeaseRuns { left: Millis::ceil(self.promise.until().since(now)) });
        }
        if self.hold_off > now && self.ballot.record().standing != Standing::Blank {
            return Err(Refusal::HoldOff { left: Millis::ceil(self.hold_off.since(now)) });
        }
        self.ballot.may_grant(candidate, candidacy)
    }

    /// A reply of the peer or the witness.
    fn answered(
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
            return self.link_up(now, link, from, hello, asks);
        }
        self.ballot.heard(link, part, from)?;
        if part == Part::Replica {
            self.peer_heard = now;
        }
        match reply {
            Reply::PreVoted { term } | Reply::Voted { term } => {
                let durable = matches!(reply, Reply::Voted { .. });
                let verdict = self.canvass.granted(link, *term, durable);
                self.judged(now, verdict, part, asks);
            }
            Reply::Refused(refusal) => self.met_refusal(now, link, part, from, *refusal, asks),
            Reply::Confirmed { term } => {
                self.ballot.confirmed(*term)?;
                self.is_solo(now);
            }
            Reply::Renewed { sequence, .. } => {
                self.lease.answered(now, *sequence, self.settings.lease, self.ballot.rules());
            }
            Reply::Admitted { term } => {
                self.ballot.witness_is_member(*term);
                self.admitting = None;
            }
            _ => {}
        }
        Ok(())
    }

    fn met_refusal(
        &mut self,
        now: Moment,
        link: LinkId,
        part: Part,
        from: &Sender,
        refusal: Refusal,
        asks: &mut Vec<Ask>,
    ) {
        self.refused = Some((from.voter.node, refusal));
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
    }

    fn link_up(
        &mut self,
        now: Moment,
        link: LinkId,
        from: &Sender,
        hello: &Hello,
        asks: &mut Vec<Ask>,
    ) -> Result<(), Refusal> {
        let part = hello.part;
        let earlier = match part {
            Part::Replica => self.ballot.peer(),
            Part::Witness => self.ballot.witness(),
        };
        let earlier = earlier.map(|link| link.id);
        if let Err(refusal) = self.ballot.link_up(link, from, hello) {
            self.refused = Some((from.voter.node, refusal));
            return Err(refusal);
        }
        if let Some(earlier) = earlier {
            self.link_over(now, earlier);
        }
        if part == Part::Replica {
            self.lease.renew_now();
            self.peer_heard = now;
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

    fn link_down(&mut self, now: Moment, link: LinkId) {
        self.ballot.link_down(link);
        self.link_over(now, link);
    }

    /// Forgets what was asked on a link that is over.
    fn link_over(&mut self, now: Moment, link: LinkId) {
        if self.confirming == Some(link) {
            // Whether it was confirmed is not known: it has to be asked again on the next link.
            self.confirming = Some(ASKED_ON_AN_EARLIER_LINK);
        }
        if self.admitting == Some(link) {
            self.admitting = None;
        }
        if let Verdict::Failed = self.canvass.link_down(link) {
            self.candidacy_failed(now);
        }
    }
}

// Commands of the data layer and the operator.
impl Replica {
    fn offer(&mut self, now: Moment, position: Position, asks: &mut Vec<Ask>) -> Result<(), Refusal> {
        self.may_offer(now)?;
        self.ballot.durable(position);
        if self.ballot.right() == Some(Right::Solo) {
            self.ballot.open()?;
            self.blocked_since = now;
            self.peer_heard = now;
            self.confirming = None;
            self.stalled = false;
            self.lease.renew_now();
        }
        let request = self.ballot.offer(position)?;
        self.to_peer(request, asks);
        Ok(())
    }

    fn join(&mut self, now: Moment, term: Term, asks: &mut Vec<Ask>) -> Result<(), Refusal> {
        let request = self.ballot.join(term)?;
        self.yield_until = now + self.settings.lease;
        self.refused = None;
        self.to_peer(request, asks);
        Ok(())
    }

    fn resign(&mut self) -> Result<(), Refusal> {
        match self.ballot.right() {
            None => Err(Refusal::NotLeader { term: self.ballot.record().term }),
            Some(Right::Solo) => Err(Refusal::Sole),
            Some(Right::Blocked | Right::Paired) => {
                self.resigning = true;
                Ok(())
            }
        }
    }

    fn stopped(&mut self, now: Moment, asks: &mut Vec<Ask>) -> Result<(), Refusal> {
        let term = self.ballot.record().term;
        if !self.resigning || self.ballot.right().is_none() {
            return Err(Refusal::NotLeader { term });
        }
        self.to_peer(Request::Release { term, position: self.ballot.position() }, asks);
        // The peer goes first; if it does not, this one stands again.
        self.step_down(now, Duration::ZERO);
        self.yield_until = now + self.settings.lease * 2;
        Ok(())
    }
}

// What is due by itself.
impl Replica {
    fn drive(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        if self.ballot.right().is_some() {
            self.drive_leader(now, asks);
        } else if self.ballot.record().sole {
            self.drive_sole(now, asks);
        } else {
            self.drive_candidate(now, asks);
        }
    }

    fn drive_leader(&mut self, now: Moment, asks: &mut Vec<Ask>) {
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
        if solo {
            self.admit_blank_witness(asks);
        } else if !self.resigning && (self.confirming.is_some() || self.goes_alone(now)) {
            self.ask_confirmation(asks);
        }
    }

    /// Whether the peer has been silent, or useless, for long enough to go on without it.
    fn goes_alone(&self, now: Moment) -> bool {
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

    fn ask_confirmation(&mut self, asks: &mut Vec<Ask>) {
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

    fn admit_blank_witness(&mut self, asks: &mut Vec<Ask>) {
        let Some(witness) = self.ballot.witness().filter(|link| link.standing == Standing::Blank) else {
            return;
        };
        let link = witness.id;
        if self.admitting == Some(link) {
            return;
        }
        if let Ok(request) = self.ballot.admit_witness() {
            self.admitting = Some(link);
            asks.push(Ask { link, part: Part::Witness, request });
        }
    }

    /// A sole replica that does not lead asks whom it can reach, for a bounded time, and leads again.
    fn drive_sole(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        let asked = self.ballot.peer().is_some() && self.ballot.witness().is_some();
        if (asked || now >= self.resume_at) && self.ballot.resume().is_ok() {
            self.leadership_begins(now);
            self.is_solo(now);
            self.drive_leader(now, asks);
        }
    }

    fn drive_candidate(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        if self.canvass.is_idle() {
            let sees_somebody = self.ballot.peer().is_some() || self.ballot.recognised_witness().is_some();
            if now >= self.may_stand_at() && sees_somebody && self.ballot.may_stand().is_ok() {
                self.begin_canvass(now, asks);
            }
        } else if now >= self.canvass.until() {
            let verdict = self.canvass.timed_out(self.witness_link());
            self.judged(now, verdict, Part::Replica, asks);
        }
    }

    fn witness_link(&self) -> Option<LinkId> {
        self.ballot.recognised_witness().map(|link| link.id)
    }

    fn begin_canvass(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        let Some(term) = self.ballot.highest_term().next() else {
            return;
        };
        let peer = self.ballot.peer().map(|link| link.id);
        let witness = self.witness_link();
        let ask_peer_alone = self.peer_is_near(now);
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
    fn stand(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        match self.ballot.stand(self.canvass.term()) {
            Ok(candidacy) => {
                self.canvass.stand(now + self.settings.lease / 4);
                self.canvass.ask(candidacy, asks);
            }
            Err(_) => self.candidacy_failed(now),
        }
    }

    fn judged(&mut self, now: Moment, verdict: Verdict, part: Part, asks: &mut Vec<Ask>) {
        match verdict {
            Verdict::Wait => {}
            Verdict::Stand => self.stand(now, asks),
            Verdict::Won => {
                self.canvass = Canvass::default();
                if self.ballot.elected(part, self.ballot.record().term).is_ok() {
                    self.failed = 0;
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

    fn candidacy_failed(&mut self, now: Moment) {
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

    fn is_solo(&mut self, now: Moment) {
        self.confirming = None;
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
    fn leadership_begins(&mut self, now: Moment) {
        self.lease.clear();
        self.confirming = None;
        self.admitting = None;
        self.resigning = false;
        self.stalled = false;
        self.blocked_since = now;
    }

    /// If this replica does not lead, nothing of a leadership is left.
    fn leadership_over(&mut self, now: Moment) {
        if self.ballot.right().is_none() {
            self.leadership_begins(now);
        }
    }

    fn step_down(&mut self, now: Moment, pause: Duration) {
        self.ballot.step_down();
        self.leadership_over(now);
        self.stand_at = now + pause + self.stagger();
    }

    fn to_peer(&self, request: Request, asks: &mut Vec<Ask>) {
        if let Some(peer) = self.ballot.peer() {
            asks.push(Ask { link: peer.id, part: Part::Replica, request });
        }
    }
}
