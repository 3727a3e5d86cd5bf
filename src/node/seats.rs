//! As what each key may speak.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::ClusterConfig;
use crate::edge::identity::Fingerprint;
use crate::ids::{ClusterName, NodeId};

/// As what a key may speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seat {
    pub(super) cluster: ClusterName,
    pub(super) node: NodeId,
}

/// The seats of all keys; they change while the witness runs.
#[derive(Clone, Default, Debug)]
pub(super) struct Seats(Arc<Mutex<HashMap<Fingerprint, Seat>>>);

impl Seats {
    pub(super) fn of(&self, key: &Fingerprint) -> Option<Seat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    pub(super) fn replace(&self, seats: HashMap<Fingerprint, Seat>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seats;
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
