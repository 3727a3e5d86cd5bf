//! Reaching a node that has several names and addresses.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::address::HostPort;
use super::connection::{Connection, canonical};
use super::endpoint::Endpoint;
use super::error::{Attempt, DialError, LinkError};
use crate::edge::identity::Fingerprint;
use crate::edge::tls::{self, Expected};
use crate::limits::{ADDRESSES_PER_NODE_MAX, DIAL_ATTEMPTS_MAX, DIAL_STAGGER, DIAL_TIMEOUT};

/// What one attempt needs.
#[derive(Clone)]
struct Task {
    endpoint: Endpoint,
    pins: Arc<[Fingerprint]>,
    given: String,
    address: SocketAddr,
}

impl Endpoint {
    /// Connects to the node that has one of the keys `pins`, at one of its addresses. Names are resolved anew.
    /// Addresses are tried in order: each has a head start before the next one is tried beside it, so that a dead
    /// one costs little; the first that completes the handshake wins.
    ///
    /// In TLS 1.3 this returns before the other side has looked at this node's key: believe in the link when the
    /// first [`Connection::ask`] was answered.
    ///
    /// # Errors
    /// If no address led to the node; the error lists each with its cause.
    pub async fn dial(&self, addresses: &[HostPort], pins: &[Fingerprint]) -> Result<Connection, DialError> {
        let mut failed = DialError::default();
        let found = resolve(addresses, &mut failed).await;
        let pins: Arc<[Fingerprint]> = pins.into();
        let task = |(given, address): (String, SocketAddr)| Task {
            endpoint: self.clone(),
            pins: pins.clone(),
            given,
            address,
        };
        let mut waiting = found.into_iter().map(task);
        // What is left when this returns is aborted, and its connections are closed.
        let mut running = JoinSet::new();
        let mut more = true;
        loop {
            if more {
                match waiting.next() {
                    Some(task) => drop(running.spawn(attempt(task))),
                    None if running.is_empty() => return Err(failed),
                    None => {}
                }
            }
            // A failure makes room at once; silence does so after the head start.
            more = match timeout(DIAL_STAGGER, running.join_next()).await {
                Ok(Some(Ok(Ok(connection)))) => return Ok(connection),
                Ok(Some(Ok(Err(attempt)))) => {
                    failed.attempts.push(attempt);
                    true
                }
                Ok(Some(Err(_)) | None) | Err(_) => true,
            };
        }
    }

    async fn connect(&self, address: SocketAddr, pins: &[Fingerprint]) -> Result<Connection, LinkError> {
        let ours = |error: String| LinkError::Transport(error);
        let socket = self.socket_for(address).ok_or_else(|| {
            ours(format!("no socket here can send to {address}; `listen` names addresses of another kind"))
        })?;
        let expected = Expected::any_of(pins);
        let config = self.client_config(expected.clone()).map_err(ours)?;
        let connecting =
            socket.connect_with(config, address, tls::SERVER_NAME).map_err(|e| ours(e.to_string()))?;
        let made = timeout(self.timing().handshake, connecting).await.map_err(|_| LinkError::Silent)?;
        if let Some(got) = expected.stranger() {
            return Err(LinkError::WrongKey { expected: pins.to_vec(), got });
        }
        let connection = made?;
        // The verifier let only a pinned key through; this is the same key, read back for the books.
        let key = tls::proven(&connection).filter(|key| pins.contains(key));
        let key = key.ok_or_else(|| ours("the handshake ended without a pinned key".into()))?;
        let number = self.pins().note(key, &connection);
        Ok(Connection::new(connection, key, self.pins().clone(), number, self.tally().clone()))
    }
}

async fn attempt(task: Task) -> Result<Connection, Attempt> {
    let Task { endpoint, pins, given, address } = task;
    endpoint.connect(address, &pins).await.map_err(|error| Attempt {
        given,
        address: Some(canonical(address)),
        error,
    })
}

/// All addresses in the order of the list, without repetitions.
async fn resolve(addresses: &[HostPort], failed: &mut DialError) -> Vec<(String, SocketAddr)> {
    let mut found: Vec<(String, SocketAddr)> = Vec::new();
    for given in addresses.iter().take(ADDRESSES_PER_NODE_MAX) {
        let name = (given.host.as_str(), given.port);
        let error = match timeout(DIAL_TIMEOUT, tokio::net::lookup_host(name)).await {
            Ok(Ok(resolved)) => {
                for address in resolved {
                    if !found.iter().any(|(_, known)| *known == address) {
                        found.push((given.to_string(), address));
                    }
                }
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the name server does not answer".into(),
        };
        let error = LinkError::Transport(format!("the name cannot be resolved: {error}"));
        failed.attempts.push(Attempt { given: given.to_string(), address: None, error });
    }
    found.truncate(DIAL_ATTEMPTS_MAX);
    found
}
