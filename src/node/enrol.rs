//! Where keys get their seats: the configuration, and codes that were shown.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::config::{ClusterConfig, WitnessConfig};
use crate::edge::clock::{Clock, wall_seconds};
use crate::edge::identity::Fingerprint;
use crate::edge::quic::{CloseCode, Connection, Endpoint, Pins};
use crate::enrol::{Denial, Request, Response, Store, StoreError, decide};
use crate::ids::ClusterName;
use crate::limits::{JOIN_DENIED_AFTER, JOIN_TIMEOUT};
use crate::wire;

use super::seats::{Seats, seats};
use super::voters::{Arrival, lock};

/// Gives seats, and takes them.
#[derive(Debug)]
pub(super) struct Desk {
    store: Store,
    /// Of the configuration.
    fixed: Mutex<Vec<ClusterConfig>>,
    /// Whose votes are served: no key of any other cluster has a seat.
    served: Mutex<HashSet<ClusterName>>,
    seats: Seats,
    pins: Pins,
    own: Fingerprint,
    queue: mpsc::Sender<Arrival>,
    /// One request at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Desk {
    pub(super) fn new(
        config: &WitnessConfig,
        own: Fingerprint,
        pins: Pins,
        seats: Seats,
        queue: mpsc::Sender<Arrival>,
    ) -> Desk {
        let (store, fixed) = (Store::of(&config.own.state), Mutex::new(config.clusters.clone()));
        let (served, turn) = (Mutex::default(), tokio::sync::Mutex::default());
        Desk { store, fixed, served, seats, pins, own, queue, turn }
    }

    /// The clusters of the configuration and the registered ones.
    pub(super) fn clusters(&self) -> Result<Vec<ClusterConfig>, StoreError> {
        let mut all = lock(&self.fixed).clone();
        for found in self.store.clusters()? {
            if all.iter().any(|fixed| fixed.name == found.name) {
                tracing::warn!(cluster = %found.name, "registered, and in the configuration, which counts");
            } else {
                all.push(found);
            }
        }
        Ok(all)
    }

    /// Lets the keys of these clusters in, whose votes are served, and cuts off all others.
    pub(super) fn seat(&self, clusters: &[ClusterConfig]) {
        lock(&self.served).extend(clusters.iter().map(|cluster| cluster.name));
        let seats = seats(clusters);
        let keys: Vec<Fingerprint> = seats.keys().copied().collect();
        self.seats.replace(seats);
        self.pins.replace(keys);
    }

    /// Lets the keys in that have a seat now, once there is a vote for their cluster. Those for which there is none.
    async fn refresh(&self) -> Result<Vec<ClusterName>, StoreError> {
        let (mut served, mut unserved) = (Vec::new(), Vec::new());
        for cluster in self.clusters()? {
            let is_served = lock(&self.served).contains(&cluster.name);
            if is_served || self.serve(cluster.name, false).await {
                served.push(cluster);
            } else {
                unserved.push(cluster.name);
            }
        }
        self.seat(&served);
        Ok(unserved)
    }

    /// Takes the clusters of another configuration from now on.
    pub(super) async fn reload(&self, config: &WitnessConfig) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let before = std::mem::replace(&mut *lock(&self.fixed), config.clusters.clone());
        let refused = match self.refresh().await {
            Ok(unserved) => match unserved.first() {
                None => return Ok(()),
                Some(cluster) => format!("the votes of cluster {cluster} cannot be kept"),
            },
            Err(error) => error.to_string(),
        };
        *lock(&self.fixed) = before;
        // What could be read a moment ago is put back as it was.
        let _ = self.refresh().await;
        Err(refused)
    }

    /// Has the vote of a cluster served, blank if there is none, or if it is a new cluster of that name.
    async fn serve(&self, cluster: ClusterName, blank: bool) -> bool {
        let (done, told) = oneshot::channel();
        let served =
            self.queue.send(Arrival::Serve { cluster, blank, done }).await.is_ok() && told.await.is_ok();
        if served {
            lock(&self.served).insert(cluster);
        }
        served
    }

    fn is_fixed(&self, cluster: ClusterName) -> bool {
        lock(&self.fixed).iter().any(|fixed| fixed.name == cluster)
    }

    async fn answer(self: &Arc<Self>, request: Request, key: Fingerprint) -> Response {
        let cluster = request.cluster();
        if self.is_fixed(cluster) {
            return Response::Denied(Denial::Wrong);
        }
        let _turn = self.turn.lock().await;
        if let Request::First { .. } = request {
            // The vote is blank and durable before anybody has a seat: a crash in between leaves an invitation.
            match self.attempt(&request, key, false).await {
                Ok((Response::Done, Outcome::Founded)) => {
                    if !self.serve(cluster, true).await {
                        return Response::Denied(Denial::Disk);
                    }
                }
                Ok((Response::Denied(denial), Outcome::Same)) => return Response::Denied(denial),
                Ok(_) => {}
                Err(response) => return response,
            }
        }
        match self.attempt(&request, key, true).await {
            Ok((response, outcome)) => {
                if outcome != Outcome::Same {
                    tracing::info!(%cluster, %key, "the registration has changed");
                }
                // Also if nothing has: a first attempt may not have come so far.
                let asks = matches!(request, Request::Other { .. });
                if (outcome != Outcome::Same || !asks && !matches!(response, Response::Denied(_)))
                    && let Err(error) = self.refresh().await
                {
                    tracing::error!("the keys that may speak stay as they were: {error}");
                    return Response::Denied(Denial::Disk);
                }
                response
            }
            Err(response) => response,
        }
    }

    /// Decides, and keeps what was decided if asked to.
    async fn attempt(
        self: &Arc<Self>,
        request: &Request,
        key: Fingerprint,
        keep: bool,
    ) -> Result<(Response, Outcome), Response> {
        let (desk, request) = (self.clone(), request.clone());
        let done = tokio::task::spawn_blocking(move || desk.attempt_now(&request, key, keep)).await;
        match done {
            Ok(Ok(decided)) => Ok(decided),
            Ok(Err(error)) => {
                tracing::error!("the registration is not kept: {error}");
                Err(Response::Denied(Denial::Disk))
            }
            Err(_) => Err(Response::Denied(Denial::Disk)),
        }
    }

    fn attempt_now(
        &self,
        request: &Request,
        key: Fingerprint,
        keep: bool,
    ) -> Result<(Response, Outcome), StoreError> {
        let cluster = request.cluster();
        let wrong = (Response::Denied(Denial::Wrong), Outcome::Same);
        if !self.store.exists() {
            return Ok(wrong);
        }
        let locked = self.store.lock()?;
        let Some(mut registration) = locked.load(cluster)? else { return Ok(wrong) };
        let before = registration.clone();
        let taken = |key: Fingerprint| key == self.own || self.seats.of(&key).is_some();
        let response = decide(&mut registration, request, key, wall_seconds(), taken);
        let outcome = match (registration == before, before.seats.is_empty()) {
            (true, _) => Outcome::Same,
            (false, true) => Outcome::Founded,
            (false, false) => Outcome::Changed,
        };
        if keep && outcome != Outcome::Same {
            if registration.seats.is_empty() && registration.invitation.is_none() {
                locked.remove(cluster)?;
            } else {
                locked.save(&registration)?;
            }
        }
        Ok((response, outcome))
    }
}

/// What a request has done to a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Same,
    Changed,
    /// The first replica has joined.
    Founded,
}

/// Answers whoever asks to join, until it is dropped.
pub(super) async fn admit(endpoint: Endpoint, desk: Arc<Desk>) {
    while let Some((connection, place)) = endpoint.accept_stranger().await {
        let desk = desk.clone();
        tokio::spawn(async move {
            if timeout(JOIN_TIMEOUT, exchange(&connection, &desk)).await.is_err() {
                connection.close(CloseCode::TOO_SLOW, "joining has to go faster");
            }
            drop(place);
        });
    }
}

async fn exchange(connection: &Connection, desk: &Arc<Desk>) {
    let Ok((bytes, responder)) = connection.next_request().await else { return };
    let response = match wire::decode_plain::<Request>(&bytes) {
        Ok(request) => {
            // In a task of its own: what is begun is done, also when the one who asked is not waited for any longer.
            let (desk, key) = (desk.clone(), connection.fingerprint());
            let answer = tokio::spawn(async move { desk.answer(request, key).await });
            answer.await.unwrap_or(Response::Denied(Denial::Disk))
        }
        Err(_) => Response::Denied(Denial::Unknown),
    };
    if let Response::Denied(denial) = response {
        tracing::warn!(from = %connection.remote_address(), key = %connection.fingerprint(), "turned away: {denial}");
        // Whoever guesses waits.
        Clock.after(JOIN_DENIED_AFTER).await;
    }
    if responder.answer(&wire::encode_plain(&response)).await.is_ok() {
        // The one who asked closes.
        connection.closed().await;
    }
}
