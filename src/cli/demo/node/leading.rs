//! What a leader keeps for the time of one term.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::cli::demo::messages::{Answer, Copied, Copy, Stamped};
use crate::ids::{Position, Term};
use crate::{Leader, LinkStamp, PeerDurable, Right};

use super::log::Log;
use super::service::ToFollower;

/// Entries in one message to the follower: one exchange.
pub(super) const BATCH_ENTRIES_MAX: usize = 256;
/// Entries that are sent and not yet answered.
const WINDOW_ENTRIES_MAX: u64 = 4096;
/// Writes that wait to be acknowledged.
const WAITING_MAX: usize = 1024;

/// A write that is in the log and not acknowledged yet.
struct Waiting {
    /// Acknowledged once everything up to here is.
    position: u64,
    answer: oneshot::Sender<Answer>,
}

/// The follower on one link, in one term.
pub(super) struct Follower {
    pub(super) link: LinkStamp,
    wire: ToFollower,
    /// How far it is durable there, once it said so.
    durable: Option<u64>,
    sent: u64,
    /// For how long it has owed an answer.
    owes_for: Duration,
    /// Up to where the term was offered on this link.
    pub(super) offered: Option<u64>,
}

pub(super) struct Leading {
    pub(super) term: Term,
    /// Entries up to the mark of this term, the mark included.
    pub(super) mark: u64,
    pub(super) follower: Option<Follower>,
    waiting: VecDeque<Waiting>,
    /// Everything up to here was acknowledged in this term.
    pub(super) acknowledged: u64,
    pub(super) told_stalled: bool,
}

impl Leading {
    pub(super) fn new(term: Term, mark: u64) -> Leading {
        Leading { term, mark, follower: None, waiting: VecDeque::new(), acknowledged: 0, told_stalled: false }
    }

    /// The leader opened a new term on the same data: what waits goes on waiting.
    pub(super) fn next(self, term: Term, mark: u64) -> Leading {
        Leading { waiting: self.waiting, ..Leading::new(term, mark) }
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    pub(super) fn nobody_waits(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn wait(&mut self, position: u64, answer: oneshot::Sender<Answer>) {
        self.waiting.push_back(Waiting { position, answer });
    }

    /// A connection to the follower is there; it is asked what it has.
    pub(super) fn connected(&mut self, link: LinkStamp, wire: ToFollower, log: &Log) {
        let body = Copy::Begin { runs: log.runs().to_vec(), length: log.length() };
        // A new connection has room for a first message.
        let _ = wire.to.try_send(Stamped { link, term: self.term, body });
        let owes_for = Duration::ZERO;
        self.follower = Some(Follower { link, wire, durable: None, sent: 0, owes_for, offered: None });
    }

    /// Acknowledges to clients whatever the cluster lets this leader acknowledge now.
    pub(super) fn acknowledge(&mut self, leader: &Leader, log: &Log) {
        let Some(lease) = &leader.lease else { return };
        let peer = self.follower.as_ref().and_then(|follower| {
            let position = Position(follower.durable?);
            Some(PeerDurable { link: follower.link, position })
        });
        let Some(Position(upto)) = lease.acknowledge(Position(log.length()), peer) else { return };
        self.acknowledged = self.acknowledged.max(upto);
        while let Some(first) = self.waiting.front() {
            if first.position > upto {
                break;
            }
            if let Some(first) = self.waiting.pop_front() {
                let _ = first.answer.send(Answer::Acknowledged { term: self.term });
            }
        }
    }

    /// Sends the follower what it lacks, as far as it keeps up.
    pub(super) fn stream(&mut self, log: &Log) {
        let term = self.term;
        let Some(follower) = &mut self.follower else { return };
        let Some(durable) = follower.durable else { return };
        while follower.sent < log.length() && follower.sent - durable < WINDOW_ENTRIES_MAX {
            let entries = log.entries(follower.sent, BATCH_ENTRIES_MAX).to_vec();
            let (after, more) = (follower.sent, entries.len() as u64);
            let body = Copy::Append { after, entries };
            let message = Stamped { link: follower.link, term, body };
            if follower.wire.to.try_send(message).is_err() {
                // Full, or closed; the first passes, the second is noticed where answers are read.
                return;
            }
            follower.sent = after + more;
        }
    }

    /// The offer to make now, if any: everything that is durable here, to a follower that lacks one exchange at
    /// most. It is made again when it did not cover the mark of this term yet.
    pub(super) fn due_offer(&self, leader: &Leader, log: &Log) -> Option<Position> {
        let follower = self.follower.as_ref().filter(|follower| leader.link == Some(follower.link))?;
        let near = log.length() - follower.durable? <= BATCH_ENTRIES_MAX as u64;
        // A solo leader offers anew, whatever it offered while it was paired: that begins a new term.
        let offered =
            leader.right != Right::Solo && follower.offered.is_some_and(|position| position >= self.mark);
        let due = leader.may_offer && leader.right != Right::Paired && near && !offered;
        due.then_some(Position(log.length()))
    }

    /// Whether the follower has all of the log.
    pub(super) fn follower_has_all(&self, log: &Log) -> bool {
        self.follower.as_ref().is_some_and(|follower| follower.durable == Some(log.length()))
    }

    /// Time passed. For how long the follower has now owed an answer: measured by the loop's own beat, so that a
    /// pause of this process is not held against the follower.
    pub(super) fn beat(&mut self, span: Duration) -> Duration {
        let Some(follower) = &mut self.follower else { return Duration::ZERO };
        let owes = follower.durable.is_none_or(|durable| durable < follower.sent);
        follower.owes_for = if owes { follower.owes_for + span } else { Duration::ZERO };
        follower.owes_for
    }

    /// The follower's answer.
    pub(super) fn copied(&mut self, answer: &Stamped<Copied>, log: &Log) {
        let term = self.term;
        let Some(follower) = &mut self.follower else { return };
        if (answer.link, answer.term) != (follower.link, term) || answer.body.position > log.length() {
            return;
        }
        if follower.durable.is_none() {
            follower.sent = answer.body.position;
        }
        follower.durable = Some(answer.body.position);
        follower.owes_for = Duration::ZERO;
    }

    /// The next answer of the follower; `None` when the connection is over. Never, without one.
    pub(super) async fn answer(leading: &mut Option<Leading>) -> Option<Stamped<Copied>> {
        match leading.as_mut().and_then(|leading| leading.follower.as_mut()) {
            Some(follower) => receive(&mut follower.wire.from).await,
            None => std::future::pending().await,
        }
    }
}

async fn receive<T>(from: &mut mpsc::Receiver<T>) -> Option<T> {
    from.recv().await
}
