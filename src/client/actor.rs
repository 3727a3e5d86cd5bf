//! Owns the voter and its ledger: one input at a time, the record synced, then the outputs released.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::edge::clock::Clock;
use crate::edge::ledger::{Ledger, LedgerError, Slot};
use crate::edge::quic::{CloseCode, Connection};
use crate::ids::{Incarnation, LinkId, NodeId, VoterId};
use crate::limits::{ASK_PATIENCE_MAX, ASK_PATIENCE_MIN, GOODBYE_TIMEOUT};
use crate::message::{Hello, NameReply, NameRequest, Part, Record, Refusal, Reply, Report, Request, Sender};
use crate::names::{NameRules, Table};
use crate::replica::{Input, Outputs, Replica, RoleView, Step, View};
use crate::time::Moment;

use super::lease::Authority;
use super::links::{self, Answering};
use super::measured::Measured;
use super::names::NameFault;
use super::{Failure, Leader, LinkStamp, NotTaken, Offer, Role, Standby};

/// What reaches the actor.
#[derive(Debug)]
pub(super) enum Event {
    /// A connection that this node dialled has said hello.
    Dialled { link: Linked, from: Sender, hello: Hello },
    /// A greeting of this node was refused.
    NotGreeted { life: Incarnation, part: Part, by: VoterId, refusal: Refusal },
    /// A request arrived. The connection is a link only after its hello.
    Asked { link: Linked, from: Sender, request: Request, answering: Answering },
    /// A reply arrived.
    Answered { link: LinkId, part: Part, from: Sender, reply: Reply },
    /// A connection is over.
    Down(LinkId),
    /// The data layer or the operator.
    Command(Input, oneshot::Sender<Result<(), NotTaken>>),
    /// Somebody wants to know.
    Report(oneshot::Sender<Report>),
    /// About a named lease.
    Named(NameRequest, oneshot::Sender<Result<NameReply, NameFault>>),
    /// The end, in good order.
    Shutdown(oneshot::Sender<()>),
}

/// A connection and its number.
#[derive(Clone, Debug)]
pub(super) struct Linked {
    pub(super) id: LinkId,
    pub(super) part: Part,
    pub(super) connection: Connection,
    /// How long others are waited for at the least.
    pub(super) lease: Duration,
}

/// What this node says first: the head of its messages, and its greeting of the peer and of the witness.
pub(super) type Words = (Sender, [Hello; 2]);

/// What the link tasks read of the voter.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// Head and greetings of this node as they are durable now.
    pub(super) words: watch::Receiver<Words>,
    /// The live links to peer and witness.
    pub(super) live: watch::Receiver<[Option<LinkId>; 2]>,
    /// Whether a hello of ours to the peer is on its way.
    pub(super) dialling: Arc<std::sync::atomic::AtomicBool>,
    /// Until then the peer is not asked for names: it has shown that it knows none.
    pub(super) old_peer_until: Arc<std::sync::atomic::AtomicU64>,
}

pub(super) struct Actor {
    voter: Replica,
    ledger: Option<Ledger>,
    slot: Slot,
    authority: Authority,
    /// Names that this node grants while it acts as leader.
    names: Table,
    queue: mpsc::Receiver<Event>,
    events: mpsc::WeakSender<Event>,
    links: HashMap<LinkId, (Linked, Moment)>,
    words: watch::Sender<Words>,
    live: watch::Sender<[Option<LinkId>; 2]>,
    roles: watch::Sender<Role>,
    failed: watch::Sender<Option<Failure>>,
    shared: Shared,
    measured: Measured,
    /// The link on which a lease was given back and that was not answered yet.
    releasing: Option<LinkId>,
}

impl Actor {
    pub(super) async fn start(
        voter: Replica,
        ledger: Ledger,
        slot: Slot,
        step: Step,
        queue: mpsc::Receiver<Event>,
        events: mpsc::WeakSender<Event>,
    ) -> Result<(Actor, watch::Receiver<Role>, watch::Receiver<Option<Failure>>), LedgerError> {
        let words = watch::Sender::new(words(&voter));
        let live = watch::Sender::new([None; 2]);
        let shared = Shared {
            words: words.subscribe(),
            live: live.subscribe(),
            dialling: Arc::default(),
            old_peer_until: Arc::default(),
        };
        let (roles, seen) = watch::channel(role(&step.outputs.view, None));
        let (failed, failure) = watch::channel(None);
        let authority = Authority::default();
        let ledger = Some(ledger);
        let links = HashMap::new();
        let mut actor = Actor {
            voter,
            ledger,
            slot,
            authority,
            names: Table::new(NameRules::KEPT),
            queue,
            events,
            links,
            words,
            live,
            roles,
            failed,
            shared,
            measured: Measured::default(),
            releasing: None,
        };
        // The start is counted durably before anybody hears of it.
        let outputs = actor.persist(step).await?;
        actor.release(outputs, None);
        Ok((actor, seen, failure))
    }

    pub(super) fn measured(&self) -> Measured {
        self.measured.clone()
    }

    pub(super) fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Until the handle is dropped, the replica is shut down, or the ledger fails.
    pub(super) async fn run(mut self) {
        // Who is told that it is over, and until when that may wait for the other end to hear of a lease given back.
        let mut leaving: Option<(oneshot::Sender<()>, Moment)> = None;
        loop {
            let now = Clock.now();
            let may_leave = |(_, until): &mut (_, Moment)| self.releasing.is_none() || now >= *until;
            if let Some((done, _)) = leaving.take_if(may_leave) {
                return self.leave(done);
            }
            let until = leaving.as_ref().map_or(Moment::FOREVER, |(_, until)| *until);
            let wake = self.voter.wake_at(now).min(until);
            let event = tokio::select! {
                biased;
                event = self.queue.recv() => event,
                () = Clock.until(wake) => {
                    if let Err(error) = self.tick().await {
                        return self.fail(&error);
                    }
                    continue;
                }
            };
            let outcome = match event {
                None => break,
                Some(Event::Shutdown(done)) => {
                    leaving = Some((done, Clock.now() + GOODBYE_TIMEOUT));
                    let outcome = self.handle(Input::Stands(false), None).await;
                    self.authority.revoke();
                    outcome
                }
                Some(event) => self.take(event).await,
            };
            if let Err(error) = outcome {
                return self.fail(&error);
            }
        }
        self.authority.revoke();
    }

    fn leave(self, done: oneshot::Sender<()>) {
        for (link, _) in self.links.values() {
            link.connection.close(CloseCode::LEAVING, "the replica is shut down");
        }
        let _ = done.send(());
    }

    fn fail(self, error: &LedgerError) {
        self.authority.revoke();
        tracing::error!(%error, "the durable state failed; this replica stops");
        self.failed.send_replace(Some(Failure(error.to_string().into())));
    }

    async fn take(&mut self, event: Event) -> Result<(), LedgerError> {
        match event {
            Event::Dialled { link, from, hello } => {
                // Both ends settle on the connection that the first in the order of names has dialled.
                let first = self.voter.ballot().me().node < from.voter.node;
                if self.live_link(link.part).is_some() && !first {
                    link.connection.close(CloseCode::DONE, "another connection is used");
                    return self.tick().await;
                }
                self.links.insert(link.id, (link.clone(), Clock.now()));
                let reply = Reply::Hello(hello);
                let input = Input::Answered { link: link.id, part: link.part, from, reply };
                self.handle(input, None).await
            }
            Event::Asked { link, from, request, answering } => {
                self.asked(link, from, request, answering).await
            }
            Event::Answered { link, part, from, reply } => {
                self.hear(link);
                if matches!(reply, Reply::Released { .. }) {
                    self.releasing = None;
                }
                self.handle(Input::Answered { link, part, from, reply }, None).await
            }
            Event::NotGreeted { life, part, by, refusal } => {
                self.handle(Input::NotGreeted { life, part, by, refusal }, None).await
            }
            Event::Down(link) => {
                self.links.remove(&link);
                self.releasing = self.releasing.filter(|releasing| *releasing != link);
                self.handle(Input::LinkDown(link), None).await
            }
            Event::Command(input, to) => {
                if let Input::Offer(offered) = input
                    && let Err(acknowledged) = self.authority.suspend(offered)
                {
                    let _ = to.send(Err(NotTaken::OfferTooShort { offered, acknowledged }));
                    return self.tick().await;
                }
                let taken = self.handle_for(input, None).await?;
                let _ = to.send(taken.map_err(NotTaken::Refused));
                Ok(())
            }
            Event::Report(to) => {
                let _ = to.send(self.voter.report(Clock.now()));
                self.tick().await
            }
            Event::Named(request, to) => {
                self.tick().await?;
                self.named(request, to);
                Ok(())
            }
            Event::Shutdown(_) => Ok(()),
        }
    }

    /// Does what is due by now. Whatever is taken without the voter is followed by it: the alarm that was set for
    /// this moment may have passed meanwhile.
    async fn tick(&mut self) -> Result<(), LedgerError> {
        self.handle(Input::Tick, None).await
    }

    async fn asked(
        &mut self,
        link: Linked,
        from: Sender,
        request: Request,
        answering: Answering,
    ) -> Result<(), LedgerError> {
        let id = link.id;
        if let Request::Hello(_) = request {
            let me = self.voter.ballot().me().node;
            let crossing = self.shared.dialling.load(std::sync::atomic::Ordering::Acquire);
            if crossing && me < from.voter.node && self.live_link(Part::Replica).is_none() {
                // Both dialled at once: the connection of the first in the order of names is used.
                answering.answer(self.voter.ballot().sender(), Reply::Refused(Refusal::Crossing));
                return self.tick().await;
            }
            self.links.insert(id, (link, Clock.now()));
        }
        self.hear(id);
        if let Request::Name(request) = request {
            // What a term grants is said after the term is durable, and needs no record of its own.
            self.tick().await?;
            let peer = self.voter.ballot().peer();
            let reply = if peer.is_some_and(|link| link.id == id && link.who == from.voter) {
                Reply::Name(self.names.handle(Clock.now(), from.voter, &request))
            } else {
                Reply::Refused(Refusal::Void)
            };
            answering.answer(self.voter.ballot().sender(), reply);
            return Ok(());
        }
        self.handle(Input::Asked { link: id, from, request }, Some(answering)).await
    }

    /// Somebody on this node wants something of a name: it is answered here, or by the peer if that one leads.
    fn named(&mut self, request: NameRequest, to: oneshot::Sender<Result<NameReply, NameFault>>) {
        let now = Clock.now();
        if self.names.leads(now) {
            let _ = to.send(Ok(self.names.handle(now, self.voter.ballot().me(), &request)));
            return;
        }
        match self.live_link(Part::Replica).and_then(|id| self.links.get(&id)) {
            Some((link, _)) => {
                let sender = self.voter.ballot().sender();
                let old_peer = self.shared.old_peer_until.clone();
                links::ask_name(link.clone(), sender, request, old_peer, to);
            }
            None => {
                let _ = to.send(Err(NameFault::NoLeader));
            }
        }
    }

    fn hear(&mut self, id: LinkId) {
        if let Some((_, heard)) = self.links.get_mut(&id) {
            *heard = Clock.now();
        }
    }

    fn live_link(&self, part: Part) -> Option<LinkId> {
        let ballot = self.voter.ballot();
        let link = match part {
            Part::Replica => ballot.peer(),
            Part::Witness => ballot.witness(),
        };
        link.map(|link| link.id)
    }

    async fn handle(&mut self, input: Input, answering: Option<Answering>) -> Result<(), LedgerError> {
        self.handle_for(input, answering).await.map(|_| ())
    }

    async fn handle_for(
        &mut self,
        input: Input,
        answering: Option<Answering>,
    ) -> Result<Result<(), Refusal>, LedgerError> {
        let step = self.voter.handle(Clock.now(), input);
        // Whoever loses the right to act has lost it before the record is written.
        self.authority.restrict(&step.outputs.view);
        let outputs = self.persist(step).await?;
        let taken = outputs.taken;
        self.release(outputs, answering);
        Ok(taken)
    }

    /// The one way from a step to its outputs: over the ledger's proof.
    async fn persist(&mut self, step: Step) -> Result<Outputs, LedgerError> {
        let mut ledger = self.ledger.take().expect("the ledger is back after each sync");
        let record = step.record.map(Record::Replica);
        let sealed = ledger.seal(self.slot, record.as_ref(), step.outputs)?;
        let proof = if ledger.waits() {
            let (back, proof, took) = ledger.sync_aside().await;
            ledger = back;
            self.measured.change(|measures| {
                measures.syncs += 1;
                measures.sync_total += took;
                measures.sync_last = took;
            });
            proof?
        } else {
            ledger.proof()?
        };
        self.ledger = Some(ledger);
        Ok(sealed.release(&proof).expect("the sync covers what was sealed before it"))
    }

    fn release(&mut self, outputs: Outputs, answering: Option<Answering>) {
        let before = self.words.send_replace(words(&self.voter)).0.voter;
        if before != outputs.sender.voter {
            tracing::error!(
                was = %before.incarnation,
                "the state was restored from an image, or was given up by an operator: it counts as lost. This node is \
                 blank now, and is taken in by a leader as a new one"
            );
            for (link, _) in self.links.values() {
                link.connection.close(CloseCode::DONE, "this node begins again as blank");
            }
            self.links.clear();
        }
        self.drop_replaced_links();
        let live = [self.live_link(Part::Replica), self.live_link(Part::Witness)];
        let round_trips = live.map(|id| Some(self.links.get(&id?)?.0.connection.rtt()));
        self.measured.change(|measures| measures.round_trips = round_trips);
        self.live.send_if_modified(|old| std::mem::replace(old, live) != live);
        let stamp = outputs.view.peer.map(|peer| LinkStamp(peer.nonce));
        let lease = self.authority.publish(&outputs.view, stamp);
        let right = outputs.view.authority().and_then(|(token, _, until)| Some((token.term(), until?)));
        self.names.observe(Clock.now(), right);
        let now = role(&outputs.view, lease);
        self.roles.send_if_modified(|old| {
            let changed = *old != now;
            if changed {
                narrate(old, &now);
                *old = now;
            }
            changed
        });
        if let (Some(answering), Some(reply)) = (answering, outputs.answer) {
            answering.answer(outputs.sender, reply);
        }
        for ask in outputs.asks {
            let Some((link, heard)) = self.links.get(&ask.link) else { continue };
            if let Request::Renew { lease, .. } = ask.request
                && Clock.now().since(*heard) > ASK_PATIENCE_MIN.max(lease.span() * 2)
            {
                // The transport's own retries have slowed down by now: a new connection finds a healed path sooner.
                link.connection.close(CloseCode::DONE, "nothing was heard for too long");
                continue;
            }
            if matches!(ask.request, Request::Release { .. }) && link.part == Part::Replica {
                self.releasing = Some(ask.link);
            }
            links::ask(link.clone(), outputs.sender, ask.request, self.events.clone());
        }
    }

    /// Closes the link that a newer one has replaced, and forgets one that the voter refused: its other end has the
    /// answer and closes it.
    fn drop_replaced_links(&mut self) {
        let live = [self.live_link(Part::Replica), self.live_link(Part::Witness)];
        self.links.retain(|id, (link, _)| {
            let keep = live.contains(&Some(*id));
            let replaced = live[usize::from(link.part == Part::Witness)].is_some();
            if !keep && replaced {
                link.connection.close(CloseCode::DONE, "a newer connection is used");
            }
            keep
        });
    }
}

fn words(voter: &Replica) -> Words {
    let ballot = voter.ballot();
    (ballot.sender(), [ballot.hello(Part::Replica), ballot.hello(Part::Witness)])
}

/// However the voter ends, nothing that it gave outlives it.
impl Drop for Actor {
    fn drop(&mut self) {
        self.authority.revoke();
    }
}

/// What the view means to the embedding program.
fn role(view: &View, lease: Option<super::Lease>) -> Role {
    let stamp = |id: LinkId| view.peer.filter(|peer| peer.id == id).map(|peer| LinkStamp(peer.nonce));
    let link = view.peer.map(|peer| LinkStamp(peer.nonce));
    match view.role {
        RoleView::Leader { token, right, may_offer, resigning, .. } => Role::Leader(Leader {
            term: view.term,
            token,
            lease,
            right: right.into(),
            link,
            may_offer,
            resigning,
        }),
        RoleView::Follower { leader, offer, joined } => Role::Standby(Standby {
            term: view.term,
            leader: leader.map(|(voter, _)| voter.node),
            leader_term: leader.map(|(_, term)| term).unwrap_or_default(),
            link,
            offer: offer.and_then(|offer| {
                Some(Offer { term: offer.term, position: offer.position, link: stamp(offer.link)? })
            }),
            joined,
            refused: view.refused,
        }),
        RoleView::Candidate => Role::Standby(Standby {
            term: view.term,
            leader: None,
            leader_term: crate::ids::Term::ZERO,
            link,
            offer: None,
            joined: false,
            refused: view.refused,
        }),
    }
}

fn narrate(old: &Role, new: &Role) {
    match (old, new) {
        (_, Role::Leader(leader)) => {
            let before = match old {
                Role::Leader(before) => Some((before.term, before.right, before.lease.is_some())),
                Role::Standby(_) => None,
            };
            if before != Some((leader.term, leader.right, leader.lease.is_some())) {
                let acts = leader.lease.is_some();
                tracing::info!(term = %leader.term, right = %leader.right, acts, "leads");
            }
        }
        (Role::Leader(before), Role::Standby(standby)) => {
            tracing::info!(was = %before.term, term = %standby.term, "no longer leads");
        }
        (Role::Standby(before), Role::Standby(standby)) => {
            if (before.leader, before.joined) != (standby.leader, standby.joined) {
                let leader = standby.leader.as_ref().map_or("nobody", NodeId::as_str);
                tracing::info!(leader, term = %standby.leader_term, joined = standby.joined, "follows");
            }
            if before.refused != standby.refused
                && let Some((by, refusal)) = standby.refused
            {
                tracing::warn!(%by, "refused: {refusal}");
            }
        }
    }
}

/// How long a request may go unanswered on a connection with this round trip. A lease that lasts longer than that is
/// waited for: what has not been measured yet may be far away.
pub(super) fn patience(round_trip: Duration, lease: Duration) -> Duration {
    let least = lease.clamp(ASK_PATIENCE_MIN, ASK_PATIENCE_MAX);
    (round_trip * crate::limits::ASK_PATIENCE_ROUND_TRIPS).clamp(least, ASK_PATIENCE_MAX)
}
