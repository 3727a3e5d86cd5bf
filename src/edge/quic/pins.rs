//! Which keys may speak here, and the live connections of each.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::CloseCode;
use crate::edge::clock::Clock;
use crate::edge::identity::Fingerprint;
use crate::edge::meter::{Allowance, Meter};
use crate::limits::{CONNECTIONS_PER_KEY_MAX, DIALS_PER_KEY_A_SECOND, DIALS_PER_KEY_AT_ONCE};

/// How often one key may come.
const DIALS_PER_KEY: Allowance =
    Allowance { at_once: DIALS_PER_KEY_AT_ONCE, a_second: DIALS_PER_KEY_A_SECOND };

/// The pinned keys: a handle that all who need them share. Replacing the keys closes the live connections of
/// those that were removed.
#[derive(Clone, Default)]
pub struct Pins(Arc<Mutex<State>>);

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.lock().pinned.keys()).finish()
    }
}

#[derive(Default)]
struct State {
    /// With how often each dials.
    pinned: BTreeMap<Fingerprint, Meter>,
    /// Of each key by age: numbers only rise. One key's connections are few, and those of all keys are many.
    live: BTreeMap<Fingerprint, BTreeMap<u64, quinn::Connection>>,
    next: u64,
}

impl Pins {
    /// The given keys.
    pub fn new(keys: impl IntoIterator<Item = Fingerprint>) -> Pins {
        let pins = Pins::default();
        pins.lock().pinned = keys.into_iter().map(|key| (key, Meter::default())).collect();
        pins
    }

    /// Whether a key may speak here.
    pub fn contains(&self, key: &Fingerprint) -> bool {
        self.lock().pinned.contains_key(key)
    }

    /// Takes other keys from now on, and closes every connection, dialled or accepted, of a key that was pinned
    /// and is no longer.
    pub fn replace(&self, keys: impl IntoIterator<Item = Fingerprint>) {
        let mut state = self.lock();
        let before = std::mem::take(&mut state.pinned);
        let kept = |key: Fingerprint| (key, before.get(&key).copied().unwrap_or_default());
        state.pinned = keys.into_iter().map(kept).collect();
        for (key, connections) in &state.live {
            if before.contains_key(key) && !state.pinned.contains_key(key) {
                for connection in connections.values() {
                    connection.close(CloseCode::NOT_PINNED.wire(), not_pinned(key).as_bytes());
                }
            }
        }
    }

    /// Notes a connection of a key that was accepted, unless that key may not speak here or comes too often. The look
    /// at the pins and the note are one step, so that no connection slips past a [`Pins::replace`].
    pub(super) fn admit(&self, key: Fingerprint, connection: &quinn::Connection) -> Result<u64, Unwelcome> {
        let mut state = self.lock();
        let dials = state.pinned.get_mut(&key).ok_or(Unwelcome::NotPinned)?;
        if !dials.take(Clock.now(), DIALS_PER_KEY) {
            return Err(Unwelcome::TooOften);
        }
        Ok(state.note(key, connection))
    }

    /// Notes a connection that was dialled with pins of its own.
    pub(super) fn note(&self, key: Fingerprint, connection: &quinn::Connection) -> u64 {
        self.lock().note(key, connection)
    }

    pub(super) fn forget(&self, key: Fingerprint, number: u64) {
        if let Entry::Occupied(mut of_key) = self.lock().live.entry(key) {
            of_key.get_mut().remove(&number);
            if of_key.get().is_empty() {
                of_key.remove();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, key: Fingerprint, connection: &quinn::Connection) -> u64 {
        let of_key = self.live.entry(key).or_default();
        let mut open = of_key.values().filter(|connection| connection.close_reason().is_none());
        if let Some(oldest) = open.next()
            && open.count() + 1 >= CONNECTIONS_PER_KEY_MAX
        {
            oldest.close(CloseCode::CROWDED.wire(), b"the same key has too many connections here");
        }
        self.next += 1;
        of_key.insert(self.next, connection.clone());
        self.next
    }
}

/// Why an accepted connection is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unwelcome {
    NotPinned,
    TooOften,
}

/// What a stranger is told.
pub(super) fn not_pinned(key: &Fingerprint) -> String {
    format!(
        "the key {key} is not pinned here as a node of any cluster; add it to `keys` of that node in the \
         configuration of the node that refuses it"
    )
}
