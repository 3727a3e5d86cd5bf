//! Where those who dial are sorted out: who may try a handshake, and who gets in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::connection::{Connection, canonical};
use super::error::{CloseCode, LinkError};
use super::pins::{Pins, Unwelcome, not_pinned};
use super::sources::{PerSource, Sources, Verdict};
use super::tally::{Happened, Tally};
use crate::edge::clock::Clock;
use crate::edge::meter::Allowance;
use crate::edge::tls;
use crate::limits::{
    HANDSHAKE_TIMEOUT, HANDSHAKES_BEFORE_RETRY_MAX, HANDSHAKES_MAX, HANDSHAKES_PER_SOURCE_BEFORE_RETRY_MAX,
    HANDSHAKES_PER_SOURCE_MAX, JOINS_MAX, STRAYS_PER_SOURCE_A_SECOND, STRAYS_PER_SOURCE_AT_ONCE,
};

/// A connection of a key that asks to be pinned, and its place among the few that may be there at once.
pub type Stranger = (Connection, OwnedSemaphorePermit);

/// How many handshakes may be under way, of all sources and of one.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) before_retry_max: usize,
    pub(super) handshakes_max: usize,
    pub(super) per_source: PerSource,
}

impl Default for Load {
    fn default() -> Load {
        let strays = Allowance { at_once: STRAYS_PER_SOURCE_AT_ONCE, a_second: STRAYS_PER_SOURCE_A_SECOND };
        let per_source = PerSource {
            before_proof_max: HANDSHAKES_PER_SOURCE_BEFORE_RETRY_MAX,
            handshakes_max: HANDSHAKES_PER_SOURCE_MAX,
            strays,
        };
        Load { before_retry_max: HANDSHAKES_BEFORE_RETRY_MAX, handshakes_max: HANDSHAKES_MAX, per_source }
    }
}

/// What the sockets of a node share.
#[derive(Clone)]
pub(super) struct Door {
    pins: Pins,
    handshakes: Arc<Semaphore>,
    load: Load,
    sources: Arc<Mutex<Sources>>,
    tally: Arc<Tally>,
    give: mpsc::Sender<Connection>,
    joins: mpsc::Sender<Stranger>,
    places: Arc<Semaphore>,
}

impl Door {
    pub(super) fn new(
        load: Load,
        pins: Pins,
        tally: Arc<Tally>,
        give: mpsc::Sender<Connection>,
        joins: mpsc::Sender<Stranger>,
    ) -> Door {
        let sources = Arc::new(Mutex::new(Sources::new(load.per_source)));
        let handshakes = Arc::new(Semaphore::new(load.handshakes_max));
        Door {
            pins,
            handshakes,
            load,
            sources,
            tally,
            give,
            joins,
            places: Arc::new(Semaphore::new(JOINS_MAX)),
        }
    }

    pub(super) async fn watch(self, socket: quinn::Endpoint) {
        while let Some(incoming) = socket.accept().await {
            let (from, proved) = (canonical(incoming.remote_address()), incoming.remote_address_validated());
            let busy = self.load.handshakes_max - self.handshakes.available_permits();
            if busy >= self.load.before_retry_max && !proved {
                self.retry(incoming);
                continue;
            }
            let Ok(permit) = self.handshakes.clone().try_acquire_owned() else {
                self.tally.note(Happened::Refused);
                incoming.refuse();
                continue;
            };
            let (verdict, place) = self.sources().knock(Clock.now(), from.ip(), proved);
            match verdict {
                Verdict::Try => {}
                Verdict::Prove => {
                    self.retry(incoming);
                    continue;
                }
                Verdict::Later => {
                    self.tally.note(Happened::Refused);
                    incoming.refuse();
                    continue;
                }
                Verdict::Silence => {
                    self.tally.note(Happened::Ignored);
                    incoming.ignore();
                    continue;
                }
            }
            let door = self.clone();
            tokio::spawn(async move {
                let happened = door.admit(incoming).await;
                door.tally.note(happened);
                let strayed = match happened {
                    Happened::Admitted | Happened::Asking => false,
                    // Without a proof of the address, whoever has it need not be the one who knocked.
                    Happened::Failed => proved,
                    _ => true,
                };
                door.sources().done(Clock.now(), place, strayed);
                drop(permit);
            });
        }
    }

    /// Under load an address has to prove itself before it costs anything. It cannot fail: an address that is not
    /// validated may be asked to retry.
    fn retry(&self, incoming: quinn::Incoming) {
        self.tally.note(Happened::Retried);
        let _ = incoming.retry();
    }

    async fn admit(&self, incoming: quinn::Incoming) -> Happened {
        let from = canonical(incoming.remote_address());
        let made = timeout(HANDSHAKE_TIMEOUT, incoming.into_future()).await;
        let connection = match made {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                if let Some(unsaid) = self.tally.may_say() {
                    let error = LinkError::from(error);
                    tracing::info!(%from, %error, unsaid, "a handshake failed");
                }
                return Happened::Failed;
            }
            Err(_) => {
                if let Some(unsaid) = self.tally.may_say() {
                    tracing::info!(%from, unsaid, "a handshake was not finished in time");
                }
                return Happened::Failed;
            }
        };
        let Some(key) = tls::proven(&connection) else {
            connection.close(CloseCode::NOT_PINNED.wire(), b"no key was shown");
            return Happened::NotPinned;
        };
        if tls::joins(&connection) {
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                connection.close(CloseCode::CROWDED.wire(), b"too many are joining, try again");
                return Happened::Crowded;
            };
            // Not among the connections of the pins: the answer to whoever leaves goes over it.
            let connection = Connection::new(connection, key, self.pins.clone(), 0, self.tally.clone());
            let _ = self.joins.send((connection, place)).await;
            return if self.pins.contains(&key) { Happened::Asking } else { Happened::Joining };
        }
        let number = match self.pins.admit(key, &connection) {
            Ok(number) => number,
            Err(Unwelcome::NotPinned) => {
                if let Some(unsaid) = self.tally.may_say() {
                    tracing::warn!(%from, %key, unsaid, "refused: this key is not pinned here as a node of any cluster");
                }
                connection.close(CloseCode::NOT_PINNED.wire(), not_pinned(&key).as_bytes());
                return Happened::NotPinned;
            }
            Err(Unwelcome::TooOften) => {
                if let Some(unsaid) = self.tally.may_say() {
                    tracing::warn!(%from, %key, unsaid, "refused for now: this key dials too often");
                }
                connection.close(CloseCode::CROWDED.wire(), b"this key dials too often");
                return Happened::Crowded;
            }
        };
        let connection = Connection::new(connection, key, self.pins.clone(), number, self.tally.clone());
        // Fails only when nobody will accept any more: then the connection is dropped, and so closed.
        let _ = self.give.send(connection).await;
        Happened::Admitted
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        // Nothing in there is left half done by a panic.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
