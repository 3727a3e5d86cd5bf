//! Which keys may speak here, and the live connections of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::CloseCode;
use crate::edge::identity::Fingerprint;
use crate::limits::CONNECTIONS_PER_KEY_MAX;

/// The pinned keys: a handle that all who need them share. Replacing the keys closes the live connections of
/// those that were removed.
#[derive(Clone, Default)]
pub struct Pins(Arc<Mutex<State>>);

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(&self.lock().pinned).finish()
    }
}

#[derive(Default)]
struct State {
    pinned: BTreeSet<Fingerprint>,
    /// By age: numbers only rise.
    live: BTreeMap<u64, (Fingerprint, quinn::Connection)>,
    next: u64,
}

impl Pins {
    /// The given keys.
    pub fn new(keys: impl IntoIterator<Item = Fingerprint>) -> Pins {
        let pins = Pins::default();
        pins.lock().pinned = keys.into_iter().collect();
        pins
    }

    /// Whether a key may speak here.
    pub fn contains(&self, key: &Fingerprint) -> bool {
        self.lock().pinned.contains(key)
    }

    /// Takes other keys from now on, and closes every connection, dialled or accepted, of a key that was pinned
    /// and is no longer.
    pub fn replace(&self, keys: impl IntoIterator<Item = Fingerprint>) {
        let mut state = self.lock();
        let keys = keys.into_iter().collect();
        let before = std::mem::replace(&mut state.pinned, keys);
        for (key, connection) in state.live.values() {
            if before.contains(key) && !state.pinned.contains(key) {
                connection.close(CloseCode::NOT_PINNED.wire(), not_pinned(key).as_bytes());
            }
        }
    }

    /// Notes a connection of a key that was accepted; `None` if that key may not speak here. The look at the pins
    /// and the note are one step, so that no connection slips past a [`Pins::replace`].
    pub(super) fn admit(&self, key: Fingerprint, connection: &quinn::Connection) -> Option<u64> {
        let mut state = self.lock();
        state.pinned.contains(&key).then(|| state.note(key, connection))
    }

    /// Notes a connection that was dialled with pins of its own.
    pub(super) fn note(&self, key: Fingerprint, connection: &quinn::Connection) -> u64 {
        self.lock().note(key, connection)
    }

    pub(super) fn forget(&self, number: u64) {
        self.lock().live.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, key: Fingerprint, connection: &quinn::Connection) -> u64 {
        let same =
            |entry: &&(Fingerprint, quinn::Connection)| entry.0 == key && entry.1.close_reason().is_none();
        if self.live.values().filter(same).count() >= CONNECTIONS_PER_KEY_MAX
            && let Some((_, oldest)) = self.live.values().find(same)
        {
            oldest.close(CloseCode::CROWDED.wire(), b"the same key has too many connections here");
        }
        self.next += 1;
        self.live.insert(self.next, (key, connection.clone()));
        self.next
    }
}

/// What a stranger is told.
pub(super) fn not_pinned(key: &Fingerprint) -> String {
    format!(
        "the key {key} is not pinned here as a node of any cluster; add it to `keys` of that node in the \
         configuration of the node that refuses it"
    )
}
