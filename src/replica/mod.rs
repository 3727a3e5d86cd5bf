//! A replica's voter: when to stand, renew, go on alone, resume, hand over. Pure: it is told what happens and when,
//! and says what has to be durable and what to send.
//!
//! The layers, each knowing only those before it:
//! - `ballot.rs`: the safety rules. No time. Nothing that this file decides can break them.
//! - `lease.rs`: the arithmetic of leases and promises.
//! - `canvass.rs`: one candidacy, from the first pre-vote to its end.
//! - timing and preference: `stand.rs` and `lead.rs` do what is due, `talk.rs` hears others; this file has the state
//!   and the one entrance.
//! - `step.rs` and `view.rs`: what goes in, what comes out, what is shown.
//!
//! Invariants of this file:
//! - it acts as leader only while a lease of its peer runs, or while it is sole;
//! - while a promise of its own runs it neither votes nor stands;
//! - whatever it says of itself is in the record that its [`Step`] wants synced first.

mod ballot;
mod canvass;
mod lead;
mod lease;
mod recover;
mod stand;
mod step;
mod talk;
#[cfg(test)]
mod tests;
mod view;

use crate::ids::{Boot, ClusterId, ClusterName, Incarnation, LinkId, NodeId, Position, Term, VoterId};
use crate::message::{
    Adoption, BANNED_MAX, Kind, LIVES_MET_MAX, Part, Refusal, ReplicaRecord, Reply, Request, Standing,
};
use crate::rules::{Rule, Rules};
use crate::time::{Millis, Moment};

pub use ballot::{Ballot, Link, OfferIn, OfferOut, Right, Role};
pub use recover::{NotRecoverable, lost_lives, recovered};
pub use step::{Alone, Ask, Input, Outputs, Settings, Step};
pub use view::{RoleView, View};

use crate::limits::RESUME_PATIENCE;
use crate::rate::kept;
use canvass::Canvass;
use lease::{Lease, Promise};

/// Stands for a link that is over: real ones are numbered from one.
const ASKED_ON_AN_EARLIER_LINK: LinkId = LinkId(0);

/// The voter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Replica {
    ballot: Ballot,
    settings: Settings,
    /// Promised by the peer.
    lease: Lease,
    /// Promised by the witness, of a leadership cluster only. (§9)
    witness_lease: Lease,
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
    /// A blank witness is being taken in on this link.
    admitting: Option<LinkId>,
    /// The witness on this link refused to be taken in.
    not_admitted: Option<LinkId>,
    /// The witness on this link is being validated.
    validating: Option<LinkId>,
    /// Adoptions that were proposed to the peer in this term.
    proposed: u32,
    /// A sole leader opens no new term before this: a link that flaps must not make terms race.
    open_at: Moment,
    /// When this replica last went solo, and how often lately.
    went_solo: Moment,
    flaps: u32,
    /// A sole follower resumes now or when it has asked everybody.
    resume_at: Moment,
    resigning: bool,
    /// Whether the operator lets it stand.
    stands: bool,
    refused: Option<(NodeId, Refusal)>,
    /// When the last greeting was refused, here or there.
    not_greeted_at: Moment,
    /// This voter said that another machine runs with the same state: until it takes a link, this one neither stands nor
    /// resumes, because it may be the older of the two.
    doubted: Option<Part>,
    /// It has followed, or led, since it started: until then its state may be an image.
    took_part: bool,
    draws: Draws,
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
            remembers: [None; 2],
            met: [Incarnation::NIL; LIVES_MET_MAX],
            banned: [Incarnation::NIL; BANNED_MAX],
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
    /// this start. `seed` is random, and another one at each start.
    pub fn start(
        now: Moment,
        found: ReplicaRecord,
        position: Position,
        settings: Settings,
        seed: u128,
        rules: Rules,
    ) -> (Replica, Step) {
        let promised = found.longest_lease.span().max(settings.lease);
        let held_off = if rules.keep(Rule::HoldOffAfterRestart) { now + kept(promised) } else { now };
        // Of a first start there is no image yet.
        let first = found.boot == Boot(0);
        let mut replica = Replica {
            ballot: Ballot::start(found, position, rules),
            settings,
            lease: Lease::default(),
            witness_lease: Lease::default(),
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
            not_admitted: None,
            validating: None,
            proposed: 0,
            open_at: now,
            went_solo: Moment::default(),
            flaps: 0,
            resume_at: now + if first { settings.lease } else { settings.lease.max(RESUME_PATIENCE) },
            resigning: false,
            stands: true,
            refused: None,
            not_greeted_at: now,
            doubted: None,
            took_part: false,
            draws: Draws(seed),
        };
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
                if self.is_leadership() && self.ballot.recognised_witness().is_some() {
                    at(self.witness_lease.renew_at());
                }
                at(self.lease.until());
                at(self.witness_lease.until());
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
            // What was said of an earlier life is nothing to this one, which has begun to count anew.
            Input::NotGreeted { life, .. } if life != before.incarnation => {}
            Input::NotGreeted { part, by, refusal, .. } => {
                self.refused = Some((by.node, refusal));
                self.not_greeted_at = now;
                let linked = match part {
                    Part::Replica => self.ballot.peer().is_some(),
                    Part::Witness => self.ballot.witness().is_some(),
                };
                // On a live link the two have agreed: the refusal is of a greeting from before that.
                if matches!(refusal, Refusal::Copied { .. }) && !linked {
                    self.doubted = Some(part);
                }
                self.ballot.not_greeted(part, by, &refusal, self.draws.next());
            }
            Input::LinkDown(link) => self.link_down(now, link, &mut asks),
            Input::Stands(stands) => self.stands = stands,
            Input::Durable(position) => self.ballot.durable(position),
            Input::Offer(position) => taken = self.offer(now, position, &mut asks),
            Input::Join(term) => taken = self.join(now, term, &mut asks),
            Input::Resync => {
                taken = self.ballot.resync();
                if taken.is_ok() {
                    self.canvass = Canvass::default();
                }
            }
            Input::Stalled => self.stalled = self.ballot.right() == Some(Right::Paired),
            Input::Resign => taken = self.resign(),
            Input::Stopped => taken = self.stopped(now, &mut asks),
        }
        if was_paired && self.ballot.right() == Some(Right::Blocked) {
            self.blocked_since = now;
            // There is nobody to hand over to.
            self.resigning = false;
            self.admitting = None;
            self.validating = None;
        }
        if self.ballot.record().incarnation != before.incarnation {
            self.begin_again(now);
        }
        self.drive(now, &mut asks);
        self.step(now, &before, answer, asks, taken)
    }

    fn step(
        &mut self,
        now: Moment,
        before: &ReplicaRecord,
        answer: Option<Reply>,
        asks: Vec<Ask>,
        taken: Result<(), Refusal>,
    ) -> Step {
        self.ballot.remember_terms(before);
        self.ballot.check(before);
        let record = *self.ballot.record();
        let outputs = Outputs { sender: self.ballot.sender(), answer, asks, view: self.view(now), taken };
        Step { record: (record != *before).then_some(record), outputs }
    }
}

/// Numbers that nobody has had before, out of one seed (splitmix64).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Draws(u128);

impl Draws {
    #[allow(clippy::cast_possible_truncation, reason = "the halves are meant")]
    fn next(&mut self) -> u128 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let mixed = |mut half: u64| {
            half = (half ^ (half >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            half = (half ^ (half >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            half ^ (half >> 31)
        };
        let (high, low) = ((self.0 >> 64) as u64, self.0 as u64);
        u128::from(mixed(high)) << 64 | u128::from(mixed(low ^ high))
    }
}

// Commands of the data layer and the operator.
impl Replica {
    fn join(&mut self, now: Moment, term: Term, asks: &mut Vec<Ask>) -> Result<(), Refusal> {
        let request = self.ballot.join(term)?;
        self.yield_until = now + self.settings.lease;
        self.refused = None;
        self.to_peer(request, asks);
        Ok(())
    }
}

impl Replica {
    /// Whether the cluster protects no data: then leadership is always under a lease, from either other voter. (§9)
    fn is_leadership(&self) -> bool {
        self.ballot.record().kind == Kind::Leadership
    }

    /// The state was lost, and this is a new, blank life: nothing of the earlier one is left but that it may have
    /// promised a lease.
    fn begin_again(&mut self, now: Moment) {
        self.leadership_begins(now);
        self.canvass = Canvass::default();
        self.not_admitted = None;
        self.doubted = None;
        self.hold_off = self.hold_off.max(now + kept(self.ballot.record().longest_lease.span()));
        self.promise = Promise::default();
    }

    fn drive(&mut self, now: Moment, asks: &mut Vec<Ask>) {
        if self.ballot.right().is_some() {
            self.drive_leader(now, asks);
        } else if self.ballot.record().sole {
            self.drive_sole(now, asks);
        } else {
            let configured = Millis::ceil(self.settings.lease);
            let runs = now < self.hold_off.max(self.promise.until());
            if !runs && self.ballot.record().longest_lease > configured {
                self.ballot.forget_leases(configured);
            }
            self.drive_candidate(now, asks);
        }
    }

    fn to_witness(&self, request: Request, asks: &mut Vec<Ask>) {
        if let Some(witness) = self.ballot.witness() {
            asks.push(Ask { link: witness.id, part: Part::Witness, request });
        }
    }

    fn to_peer(&self, request: Request, asks: &mut Vec<Ask>) {
        if let Some(peer) = self.ballot.peer() {
            asks.push(Ask { link: peer.id, part: Part::Replica, request });
        }
    }
}
