//! As what each key may speak.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::ClusterConfig;
use crate::edge::identity::Fingerprint;
use crate::edge::meter::{Allowance, Meter};
use crate::ids::{ClusterName, NodeId};
use crate::limits::{REQUESTS_PER_REPLICA_A_SECOND, REQUESTS_PER_REPLICA_AT_ONCE};
use crate::time::Moment;

/// As what a key may speak.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Seat {
    pub(super) cluster: ClusterName,
    pub(super) node: NodeId,
}

/// How often one replica may ask. Each has its own share: one that has gone mad does not take its peer's, which may be
/// about to be elected.
const REQUESTS: Allowance =
    Allowance { at_once: REQUESTS_PER_REPLICA_AT_ONCE, a_second: REQUESTS_PER_REPLICA_A_SECOND };

/// The seats of all keys; they change while the witness runs.
#[derive(Clone, Default, Debug)]
pub(super) struct Seats(Arc<Mutex<State>>);

#[derive(Default, Debug)]
struct State {
    of: HashMap<Fingerprint, Seat>,
    /// How much each replica has asked lately.
    asked: HashMap<Seat, Meter>,
}

impl Seats {
    pub(super) fn of(&self, key: &Fingerprint) -> Option<Seat> {
        self.lock().of.get(key).copied()
    }

    pub(super) fn replace(&self, seats: HashMap<Fingerprint, Seat>) {
        let mut state = self.lock();
        let taken: HashSet<Seat> = seats.values().copied().collect();
        state.asked.retain(|seat, _| taken.contains(seat));
        state.of = seats;
    }

    /// A replica asks: for how long it has to wait first.
    pub(super) fn asks(&self, seat: Seat, now: Moment) -> Duration {
        self.lock().asked.entry(seat).or_default().queue(now, REQUESTS)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The seats of these clusters. A key that two of them list speaks for the earlier one.
pub(super) fn seats<'a>(clusters: impl IntoIterator<Item = &'a ClusterConfig>) -> HashMap<Fingerprint, Seat> {
    let mut seats = HashMap::new();
    for cluster in clusters {
        for replica in &cluster.replicas {
            for key in &replica.keys {
                seats.entry(*key).or_insert(Seat { cluster: cluster.name, node: replica.node });
            }
        }
    }
    seats
}
