//! What the embedding program holds: the lease, and the right to acknowledge.
//!
//! The voter decides; this file only passes its word on, and it does so without waiting for the voter: whether a
//! lease still runs is a comparison with the clock, so a busy disk or a busy voter cannot keep it alive.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::edge::clock::Clock;
use crate::ids::{Position, Token};
use crate::replica::View;
use crate::time::Moment;

use super::LinkStamp;

/// What a leader may acknowledge to its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Right {
    /// Nothing: newly elected, or the peer was lost and nobody has confirmed yet.
    Blocked,
    /// What is durable on both replicas.
    Paired,
    /// What is durable on this replica.
    Solo,
}

impl From<crate::replica::Right> for Right {
    fn from(right: crate::replica::Right) -> Right {
        match right {
            crate::replica::Right::Blocked => Right::Blocked,
            crate::replica::Right::Paired => Right::Paired,
            crate::replica::Right::Solo => Right::Solo,
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Right::Blocked => "blocked",
            Right::Paired => "paired",
            Right::Solo => "solo",
        })
    }
}

/// What is left of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Remaining {
    /// It ends after this span unless it is renewed.
    Left(Duration),
    /// The leader is sole: it needs no lease, and no time ends its right.
    Sole,
    /// It has ended. An ended lease never comes back; a new one may.
    Ended,
}

/// How far the peer has made data durable, as its answer on one link says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerDurable {
    /// The link on which the peer said so. An answer from an earlier link counts for nothing.
    pub link: LinkStamp,
    /// Everything up to here.
    pub position: Position,
}

const ENDED: u64 = 0;

struct Shared {
    token: Token,
    /// Nanoseconds on the boot clock, [`ENDED`], or `u64::MAX` for a sole leader.
    until: AtomicU64,
    /// Changes when `until` does.
    changed: watch::Sender<()>,
    rights: Arc<Mutex<Rights>>,
}

/// The right to act as leader, for one stretch of time.
///
/// Cheap to clone; all clones end together. It ends when it is not renewed in time, when leadership is given up, or
/// when a new term begins, and then stays ended.
#[derive(Clone)]
pub struct Lease(Arc<Shared>);

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?}, {:?})", self.token(), self.remaining())
    }
}

impl PartialEq for Lease {
    fn eq(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Lease {
    fn new(token: Token, until: Moment, rights: Arc<Mutex<Rights>>) -> Lease {
        let until = AtomicU64::new(until.0);
        Lease(Arc::new(Shared { token, until, changed: watch::Sender::new(()), rights }))
    }

    /// The fencing token: it travels with every write to a protected resource. Later leaders have higher ones.
    pub fn token(&self) -> Token {
        self.0.token
    }

    /// Whether this node may act as leader at this moment. Costs a clock reading.
    ///
    /// A process can be paused right after it asked. Only the resource can refuse what such a process then does: see
    /// [`crate::fence`].
    pub fn is_valid(&self) -> bool {
        Clock.now().0 < self.0.until.load(Ordering::Acquire)
    }

    /// What is left of it.
    pub fn remaining(&self) -> Remaining {
        match self.0.until.load(Ordering::Acquire) {
            u64::MAX => Remaining::Sole,
            until => {
                let left = Moment(until).since(Clock.now());
                if left.is_zero() { Remaining::Ended } else { Remaining::Left(left) }
            }
        }
    }

    /// Resolves when the lease has ended.
    pub async fn ended(&self) {
        let mut changed = self.0.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let until = Moment(self.0.until.load(Ordering::Acquire));
            if Clock.now() >= until {
                return;
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = Clock.until(until) => {}
            }
        }
    }

    /// Runs `work` while the lease lasts: its result, or `None` when the lease ended first. The future is dropped
    /// then, which cancels it at its next await.
    pub async fn guard<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.ended() => None,
            done = work => Some(done),
        }
    }

    /// What this leader may acknowledge at present.
    pub fn right(&self) -> Right {
        let rights = lock(&self.0.rights);
        if rights.belongs_to(self) { rights.right() } else { Right::Blocked }
    }

    /// Up to where writes may be acknowledged to clients now, and the promise that whatever is offered to the peer
    /// later has to cover it. `None` when nothing may be acknowledged.
    ///
    /// Call this for each acknowledgement, after the data is durable: `local` is how far it is durable here, `peer`
    /// what the peer answered last.
    pub fn acknowledge(&self, local: Position, peer: Option<PeerDurable>) -> Option<Position> {
        let mut rights = lock(&self.0.rights);
        if !rights.belongs_to(self) {
            return None;
        }
        let upto = match rights.right() {
            Right::Blocked => return None,
            Right::Paired => {
                let peer = peer.filter(|peer| Some(peer.link) == rights.link)?;
                local.min(peer.position)
            }
            Right::Solo => local,
        };
        rights.acknowledged = rights.acknowledged.max(upto);
        Some(upto)
    }

    /// Extends it, unless it has ended meanwhile.
    fn extend(&self, until: Moment) -> bool {
        let now = Clock.now().0;
        let extended = self
            .0
            .until
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| (now < old).then_some(until.0));
        if extended.is_ok_and(|old| old != until.0) {
            self.0.changed.send_replace(());
        }
        extended.is_ok()
    }

    /// Ends it no later than then.
    fn shorten(&self, until: Moment) {
        if self.0.until.fetch_min(until.0, Ordering::AcqRel) > until.0 {
            self.0.changed.send_replace(());
        }
    }

    fn end(&self) {
        self.0.until.store(ENDED, Ordering::Release);
        self.0.changed.send_replace(());
    }
}

/// The voter's word, as every thread of the embedding program may read it.
#[derive(Default)]
struct Rights {
    lease: Option<Lease>,
    token: Token,
    right: Option<Right>,
    link: Option<LinkStamp>,
    /// The highest position acknowledged under `token`.
    acknowledged: Position,
}

impl Rights {
    fn right(&self) -> Right {
        self.right.unwrap_or(Right::Blocked)
    }

    fn belongs_to(&self, lease: &Lease) -> bool {
        self.right.is_some() && self.token == lease.token()
    }
}

fn lock(rights: &Mutex<Rights>) -> MutexGuard<'_, Rights> {
    // Every change of the fields is whole before the lock is let go.
    rights.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The side of the voter: it sets what [`Lease`]s show.
#[derive(Clone, Default)]
pub(super) struct Authority(Arc<Mutex<Rights>>);

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// Takes back whatever `view` no longer gives. To be called before the record behind `view` is written: a leader
    /// has stopped before its vote for another is durable.
    ///
    /// A leader that begins another term by itself goes on acting meanwhile: its lease ends when that of the new term is
    /// handed on.
    pub(super) fn restrict(&self, view: &View) {
        let mut rights = lock(&self.0);
        match view.authority() {
            Some((token, _, Some(until))) if token > rights.token && rights.lease.is_some() => {
                rights.right = rights.right.map(|_| Right::Blocked);
                if let Some(lease) = &rights.lease {
                    lease.shorten(until);
                }
            }
            Some((token, right, until)) if token == rights.token => {
                let stops = until.is_none() && right == crate::replica::Right::Solo;
                if rights.right != Some(right.into()) || stops {
                    rights.right = rights.right.map(|_| Right::Blocked);
                }
                if until.is_none() {
                    rights.end_lease();
                }
            }
            _ => {
                rights.end_lease();
                rights.right = None;
            }
        }
    }

    /// Gives what `view` gives. To be called when the record behind `view` is durable. The lease, if there is one.
    pub(super) fn publish(&self, view: &View, link: Option<LinkStamp>) -> Option<Lease> {
        let mut rights = lock(&self.0);
        rights.link = link;
        let Some((token, right, until)) = view.authority() else {
            rights.end_lease();
            rights.right = None;
            return None;
        };
        if token != rights.token {
            rights.end_lease();
            rights.token = token;
        }
        // A sole leader that is to stop when it is alone acknowledges nothing then either.
        let stops = until.is_none() && right == crate::replica::Right::Solo;
        rights.right = Some(if stops { Right::Blocked } else { right.into() });
        match until {
            Some(until) => {
                if !rights.lease.as_ref().is_some_and(|lease| lease.extend(until)) {
                    rights.end_lease();
                    rights.lease = Some(Lease::new(token, until, self.0.clone()));
                }
            }
            None => rights.end_lease(),
        }
        rights.lease.clone()
    }

    /// Everything is over: the voter has failed or was shut down.
    pub(super) fn revoke(&self) {
        let mut rights = lock(&self.0);
        rights.end_lease();
        rights.right = None;
    }

    /// Before the voter hears of an offer: from here on, until the next [`publish`](Authority::publish), nothing is
    /// acknowledged, and everything acknowledged so far lies within `position`. The highest acknowledged position,
    /// if it does not; then nothing has changed.
    pub(super) fn suspend(&self, position: Position) -> Result<(), Position> {
        let mut rights = lock(&self.0);
        if position < rights.acknowledged {
            return Err(rights.acknowledged);
        }
        rights.right = rights.right.map(|_| Right::Blocked);
        Ok(())
    }
}

impl Rights {
    fn end_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Term;
    use crate::message::Standing;
    use crate::replica::{Right as Voters, RoleView};

    const LINK: Option<LinkStamp> = Some(LinkStamp(7));

    fn view(term: u32, right: Voters, acts_until: Option<Moment>) -> View {
        let role = RoleView::Leader {
            token: Token::of(Term(term)),
            right,
            acts_until,
            may_offer: false,
            offered: None,
            resigning: false,
        };
        View {
            term: Term(term),
            standing: Standing::Member,
            sole: right == Voters::Solo,
            role,
            peer: None,
            witness: None,
            refused: None,
        }
    }

    fn follower(term: u32) -> View {
        let role = RoleView::Follower { leader: None, offer: None, joined: false };
        View { role, sole: false, ..view(term, Voters::Blocked, None) }
    }

    fn soon() -> Option<Moment> {
        Some(Clock.now() + Duration::from_secs(60))
    }

    fn peer_at(position: u64) -> Option<PeerDurable> {
        Some(PeerDurable { link: LinkStamp(7), position: Position(position) })
    }

    #[test]
    fn an_ended_lease_never_comes_back() {
        let authority = Authority::default();
        let first = authority.publish(&view(1, Voters::Paired, soon()), LINK).expect("acts");
        assert!(first.is_valid());
        authority.publish(&view(1, Voters::Paired, None), LINK);
        assert!(!first.is_valid());
        let second = authority.publish(&view(1, Voters::Paired, soon()), LINK).expect("acts again");
        assert!(second.is_valid() && !first.is_valid());
        assert_eq!(first.remaining(), Remaining::Ended);
    }

    #[test]
    fn a_lease_that_ran_out_is_not_extended_but_replaced() {
        let authority = Authority::default();
        let past = Some(Moment(1));
        let first = authority.publish(&view(1, Voters::Paired, past), LINK).expect("a lease");
        assert!(!first.is_valid());
        let second = authority.publish(&view(1, Voters::Paired, soon()), LINK).expect("a lease");
        assert!(first != second && !first.is_valid() && second.is_valid());
    }

    #[test]
    fn a_renewal_extends_the_same_lease() {
        let authority = Authority::default();
        let first = authority.publish(&view(1, Voters::Paired, soon()), LINK).expect("acts");
        let second = authority.publish(&view(1, Voters::Solo, Some(Moment::FOREVER)), LINK).expect("acts");
        assert_eq!(first, second);
        assert_eq!(first.remaining(), Remaining::Sole);
    }

    #[test]
    fn each_right_covers_what_it_says() {
        let authority = Authority::default();
        let lease = authority.publish(&view(1, Voters::Blocked, soon()), LINK).expect("acts");
        assert_eq!(lease.acknowledge(Position(5), peer_at(5)), None);
        authority.publish(&view(1, Voters::Paired, soon()), LINK);
        assert_eq!(lease.acknowledge(Position(5), peer_at(3)), Some(Position(3)));
        assert_eq!(lease.acknowledge(Position(5), None), None);
        let earlier = PeerDurable { link: LinkStamp(6), position: Position(5) };
        assert_eq!(lease.acknowledge(Position(5), Some(earlier)), None, "an earlier link counts for nothing");
        authority.publish(&view(1, Voters::Solo, Some(Moment::FOREVER)), LINK);
        assert_eq!(lease.acknowledge(Position(9), None), Some(Position(9)));
    }

    #[test]
    fn an_offer_covers_everything_acknowledged_and_stops_acknowledging_alone() {
        let authority = Authority::default();
        let lease = authority.publish(&view(1, Voters::Solo, Some(Moment::FOREVER)), LINK).expect("acts");
        assert_eq!(lease.acknowledge(Position(9), None), Some(Position(9)));
        assert_eq!(authority.suspend(Position(8)), Err(Position(9)));
        assert_eq!(
            lease.acknowledge(Position(9), None),
            Some(Position(9)),
            "the refused offer changed nothing"
        );
        assert_eq!(authority.suspend(Position(9)), Ok(()));
        assert_eq!(lease.acknowledge(Position(10), None), None);
        authority.publish(&view(1, Voters::Solo, Some(Moment::FOREVER)), LINK);
        assert_eq!(
            lease.acknowledge(Position(10), None),
            Some(Position(10)),
            "the voter did not take the offer"
        );
    }

    #[test]
    fn what_a_step_takes_away_is_gone_before_its_record_is_written() {
        let authority = Authority::default();
        let lease = authority.publish(&view(1, Voters::Solo, Some(Moment::FOREVER)), LINK).expect("acts");
        authority.restrict(&view(2, Voters::Blocked, None));
        assert!(!lease.is_valid());
        assert_eq!(lease.acknowledge(Position(1), None), None);
        let next = authority.publish(&view(2, Voters::Blocked, soon()), LINK).expect("acts");
        authority.restrict(&follower(3));
        assert!(!next.is_valid());
    }

    #[test]
    fn a_leader_that_begins_another_term_acts_without_a_break_and_acknowledges_nothing_meanwhile() {
        let authority = Authority::default();
        let lease = authority.publish(&view(1, Voters::Solo, Some(Moment::FOREVER)), LINK).expect("acts");
        authority.restrict(&view(2, Voters::Blocked, soon()));
        assert!(lease.is_valid());
        assert!(matches!(lease.remaining(), Remaining::Left(_)), "no longer than the new term's");
        assert_eq!(lease.acknowledge(Position(1), None), None);
        let next = authority.publish(&view(2, Voters::Blocked, soon()), LINK).expect("acts");
        assert!(next.is_valid() && !lease.is_valid());
        assert!(next.token() > lease.token());
    }

    #[test]
    fn restricting_gives_nothing() {
        let authority = Authority::default();
        let lease = authority.publish(&view(1, Voters::Blocked, soon()), LINK).expect("acts");
        authority.restrict(&view(1, Voters::Solo, Some(Moment::FOREVER)));
        assert_eq!(lease.acknowledge(Position(1), None), None, "solo counts once sole is durable");
    }

    #[tokio::test]
    async fn ended_resolves_and_a_guarded_task_is_cancelled() {
        let authority = Authority::default();
        let lease = authority.publish(&view(1, Voters::Paired, soon()), LINK).expect("acts");
        let guarded = tokio::spawn({
            let lease = lease.clone();
            async move { lease.guard(std::future::pending::<()>()).await }
        });
        authority.restrict(&follower(2));
        assert_eq!(guarded.await.expect("no panic"), None);
        lease.ended().await;
        assert_eq!(lease.guard(async { 5 }).await, None, "nothing begins under an ended lease");
    }
}
