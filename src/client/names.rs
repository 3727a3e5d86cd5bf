//! Named leases for the embedding program: asked of the leader wherever it is, renewed until they are dropped.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::edge::clock::{Clock, random_u64};
use crate::ids::{LockName, NameError, NodeId, Token};
use crate::limits::{NAME_LEASE_MAX, NAME_LEASE_MIN, NAME_RETRY};
use crate::message::{NameRefusal, NameReply, NameRequest};
use crate::names::{Hold, NameRules};
use crate::time::{Millis, Moment};

use super::actor::Event;

/// Why a request about a name has no answer.
#[derive(Clone, Debug)]
pub(super) enum NameFault {
    /// This node does not lead, and reaches nobody who could.
    NoLeader,
    /// The peer runs a release that knows no names.
    OldPeer,
    /// Something else.
    Unanswered(String),
    /// This replica has stopped.
    Stopped,
}

/// Why a name is not held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAcquired {
    /// The text is no name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The lease is too short or too long.
    #[error("a named lease lasts {NAME_LEASE_MIN:?} to {NAME_LEASE_MAX:?}, not {0:?}")]
    Span(Duration),
    /// The leader refuses.
    #[error("{0}")]
    Refused(NameRefusal),
    /// This node does not lead, and reaches no node that could.
    #[error("no leader can be reached from this node; see `tiebreak status`")]
    NoLeader,
    /// The peer runs a release that knows no names.
    #[error("the peer runs a release without named leases; bring both nodes to the same release")]
    OldPeer,
    /// The leader did not answer. It may have granted the name: then it is free again when its lease has ended.
    #[error("the leader did not answer: {0}")]
    Unanswered(String),
    /// The answer took longer than the lease lasts.
    #[error(
        "the leader's answer took longer than the lease lasts: the path to it is too slow for this lease"
    )]
    TooLate,
    /// This replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

impl NotAcquired {
    /// Whether another attempt, a moment later, may succeed without anybody doing anything.
    pub fn may_pass(&self) -> bool {
        match self {
            NotAcquired::Refused(refusal) => !matches!(refusal, NameRefusal::BadLease),
            NotAcquired::NoLeader | NotAcquired::Unanswered(_) | NotAcquired::TooLate => true,
            NotAcquired::Name(_) | NotAcquired::Span(_) | NotAcquired::OldPeer | NotAcquired::Stopped => {
                false
            }
        }
    }
}

impl From<NameFault> for NotAcquired {
    fn from(fault: NameFault) -> NotAcquired {
        match fault {
            NameFault::NoLeader => NotAcquired::NoLeader,
            NameFault::OldPeer => NotAcquired::OldPeer,
            NameFault::Unanswered(why) => NotAcquired::Unanswered(why),
            NameFault::Stopped => NotAcquired::Stopped,
        }
    }
}

/// The lock service of a cluster, from this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Names(mpsc::WeakSender<Event>);

impl Names {
    pub(super) fn new(events: mpsc::WeakSender<Event>) -> Names {
        Names(events)
    }

    async fn ask(&self, request: NameRequest) -> Result<NameReply, NameFault> {
        let (to, answer) = oneshot::channel();
        let events = self.0.upgrade().ok_or(NameFault::Stopped)?;
        events.send(Event::Named(request, to)).await.map_err(|_| NameFault::Stopped)?;
        drop(events);
        answer.await.map_err(|_| NameFault::Stopped)?
    }

    /// One attempt to hold `name`. `lease` is how long the name stays taken when this node, or the leader, is gone at
    /// once; while both are there it is renewed.
    ///
    /// # Errors
    /// If it is not held: see [`NotAcquired`].
    pub async fn acquire(&self, name: LockName, lease: Duration) -> Result<NamedLease, NotAcquired> {
        if !(NAME_LEASE_MIN..=NAME_LEASE_MAX).contains(&lease) {
            return Err(NotAcquired::Span(lease));
        }
        // What goes over the wire is whole milliseconds: the holder counts no more than that.
        let millis = Millis(u32::try_from(lease.as_millis()).unwrap_or(u32::MAX));
        let asked = Clock.now();
        let request = NameRequest::Acquire { name, lease: millis, nonce: random_u64() };
        let reply = self.ask(request).await?;
        let token = match reply {
            NameReply::Granted { token } => token,
            NameReply::Refused(refusal) => return Err(NotAcquired::Refused(refusal)),
            other => return Err(NotAcquired::Unanswered(format!("it answers with {other:?}"))),
        };
        let Some(hold) = Hold::granted(asked, Clock.now(), token, millis.span(), NameRules::KEPT) else {
            let names = self.clone();
            tokio::spawn(async move { names.ask(NameRequest::Release { name, token }).await });
            return Err(NotAcquired::TooLate);
        };
        let state = State { hold, lost: None };
        let shared =
            Arc::new(Held { name, token, state: Mutex::new(state), changed: watch::Sender::new(()) });
        tokio::spawn(keep(Arc::downgrade(&shared), self.clone()));
        Ok(NamedLease { held: shared, names: self.clone(), released: false })
    }

    /// Tries until `name` is held. `told` hears each time why it is not yet. Whoever waits is served in no order.
    /// Cancel-safe: dropped, it holds nothing for longer than one lease.
    ///
    /// # Errors
    /// What no waiting can change.
    pub async fn wait(
        &self,
        name: LockName,
        lease: Duration,
        mut told: impl FnMut(&NotAcquired),
    ) -> Result<NamedLease, NotAcquired> {
        loop {
            match self.acquire(name, lease).await {
                Err(why) if why.may_pass() => told(&why),
                done => return done,
            }
            tokio::time::sleep(NAME_RETRY).await;
        }
    }

    /// An operator's word: whoever holds `name` shall let go. It is renewed no more, its holder hears of it, and it is
    /// free when that one has let go, or when its lease has ended. Returns the holder's node and token, and how long that
    /// is at most.
    ///
    /// # Errors
    /// If nobody holds it, or no leader can be asked.
    pub async fn revoke(&self, name: LockName) -> Result<(NodeId, Token, Duration), NotAcquired> {
        match self.ask(NameRequest::Revoke { name }).await? {
            NameReply::Revoked { from, token, left } => Ok((from, token, left.span())),
            NameReply::Refused(refusal) => Err(NotAcquired::Refused(refusal)),
            other => Err(NotAcquired::Unanswered(format!("it answers with {other:?}"))),
        }
    }
}

struct State {
    hold: Hold,
    lost: Option<NameRefusal>,
}

struct Held {
    name: LockName,
    token: Token,
    state: Mutex<State>,
    /// Changes with the state.
    changed: watch::Sender<()>,
}

impl Held {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the fields is whole before the lock is let go.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let done = change(&mut self.state());
        self.changed.send_replace(());
        done
    }
}

/// A name that is held: see [`Cluster::acquire`](crate::Cluster::acquire). It renews itself. When it is dropped it ends and
/// is given back; whoever does not know whether its work has stopped calls [`forget`](NamedLease::forget) instead.
pub struct NamedLease {
    held: Arc<Held>,
    names: Names,
    released: bool,
}

impl fmt::Debug for NamedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamedLease({}, {:?}, {:?})", self.held.name, self.held.token, self.remaining())
    }
}

impl NamedLease {
    /// What is held.
    pub fn name(&self) -> LockName {
        self.held.name
    }

    /// The fencing token of this grant: higher than that of any earlier holder of this name.
    pub fn token(&self) -> Token {
        self.held.token
    }

    /// Whether the name is held at this moment.
    pub fn is_valid(&self) -> bool {
        let state = self.held.state();
        state.lost.is_none() && state.hold.is_valid(Clock.now())
    }

    /// What is left unless it is renewed; zero when it has ended.
    pub fn remaining(&self) -> Duration {
        if self.held.state().lost.is_some() { Duration::ZERO } else { self.until().since(Clock.now()) }
    }

    /// By then nobody else has the name: it may be used for stopping what was done under a lease that was taken back.
    pub fn until(&self) -> Moment {
        self.held.state().hold.until()
    }

    /// Why it ended before its time, if the leader said so.
    pub fn lost(&self) -> Option<NameRefusal> {
        self.held.state().lost
    }

    /// Resolves when it has ended. An ended one never comes back.
    pub async fn ended(&self) {
        while self.is_valid() {
            self.changed().await;
        }
    }

    /// Resolves when it was renewed, taken back, or has ended.
    pub async fn changed(&self) {
        let mut changed = self.held.changed.subscribe();
        let until = {
            let state = self.held.state();
            if state.lost.is_some() {
                return;
            }
            state.hold.until()
        };
        tokio::select! {
            _ = changed.changed() => {}
            () = Clock.until(until) => {}
        }
    }

    /// Runs `work` while the name is held: its result, or `None` when the lease ended first. The future is dropped then,
    /// which cancels it at its next await.
    pub async fn guard<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.ended() => None,
            done = work => Some(done),
        }
    }

    /// Ends it and gives the name back; returns when the leader has heard, or cannot be asked.
    pub async fn release(mut self) {
        let (names, request) = self.end();
        let _ = names.ask(request).await;
    }

    /// Renews it no more, and does not give it back: the name is taken until the lease has ended by itself. For a holder
    /// that does not know whether its work has stopped.
    pub fn forget(mut self) {
        self.released = true;
    }

    fn end(&mut self) -> (Names, NameRequest) {
        self.released = true;
        self.held.change(|state| state.hold.end(Clock.now()));
        (self.names.clone(), NameRequest::Release { name: self.held.name, token: self.held.token })
    }
}

impl Drop for NamedLease {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let (names, request) = self.end();
        // What is not sent is not missed for longer than a lease.
        if let Some(events) = names.0.upgrade() {
            let _ = events.try_send(Event::Named(request, oneshot::channel().0));
        }
    }
}

/// Renews while somebody has the lease and it runs.
async fn keep(held: std::sync::Weak<Held>, names: Names) {
    loop {
        let Some(shared) = held.upgrade() else { return };
        let (renew_at, until, lease, over) = {
            let state = shared.state();
            (state.hold.renew_at(), state.hold.until(), state.hold.lease(), state.lost.is_some())
        };
        let (name, token) = (shared.name, shared.token);
        drop(shared);
        if over || Clock.now() >= until {
            return;
        }
        Clock.until(renew_at.min(until)).await;
        let Some(shared) = held.upgrade() else { return };
        let asked = Clock.now();
        shared.state().hold.renewing(asked);
        drop(shared);
        let answer = tokio::time::timeout(lease / 2, names.ask(NameRequest::Renew { name, token })).await;
        let Some(shared) = held.upgrade() else { return };
        match answer {
            Ok(Ok(NameReply::Renewed { token: of })) if of == token => {
                shared.change(|state| state.hold.renewed(asked, Clock.now()));
            }
            Ok(Ok(NameReply::Refused(why @ (NameRefusal::Lost | NameRefusal::Revoked)))) => {
                shared.change(|state| state.lost = Some(why));
            }
            // Nobody to ask at present: again when the next renewal is due.
            _ => {}
        }
    }
}
