//! The witness as a service: one voter per cluster, one ledger, one socket.
//!
//! Votes that wait together share a sync, and none waits for company: what has arrived is handled, synced once and
//! released; what arrives meanwhile makes the next round.

mod enrol;
#[cfg(feature = "cli")]
mod invite;
mod seats;
mod serve;
mod voters;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::config::WitnessConfig;
use crate::edge::clock::random_u128;
use crate::edge::disk::RealDisk;
use crate::edge::identity::{Identity, IdentityError};
use crate::edge::ledger::{Ledger, LedgerError, Purpose};
use crate::edge::quic::{BindError, Endpoint, Pins, Timing};
use crate::enrol::StoreError;
use crate::ids::{ClusterName, Incarnation, NodeId, Term};
use crate::limits::WITNESS_QUEUE_MAX;
use crate::message::Record;
use crate::witness::Witness;

use enrol::Desk;
#[cfg(feature = "cli")]
pub(crate) use invite::{clusters, invite};
use seats::Seats;
use serve::accept;
use voters::{Arrival, Voters, lock};

/// Why a witness cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WitnessError {
    /// The key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The durable votes. After a failed sync the process has to end: what the disk holds is not known any more.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The sockets.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The registrations.
    #[error(transparent)]
    Registrations(#[from] StoreError),
    /// It has nowhere to listen.
    #[error("a witness only listens, and `listen` names no address")]
    NoAddress,
    /// The state belongs to another node.
    #[error(
        "the votes in {directory} are of the witness {found}, and the configuration is of {node}; correct `state` or `node`"
    )]
    Mismatch {
        /// The state directory.
        directory: PathBuf,
        /// In the state.
        found: NodeId,
        /// In the configuration.
        node: NodeId,
    },
}

/// Makes the durable state of a witness: blank votes for the clusters of its configuration.
///
/// # Errors
/// If there is a state already (nothing is overwritten), or the disk fails.
pub fn init(config: &WitnessConfig) -> Result<(), WitnessError> {
    let records: Vec<Record> =
        config.clusters.iter().map(|cluster| blank(config.own.node, cluster.name)).collect();
    let incarnation = Incarnation(random_u128());
    Ledger::create(&RealDisk, &config.own.state, Purpose::Witness, incarnation, &records)?;
    Ok(())
}

/// Begins the votes of a witness again as blank: the earlier ones are moved aside, whatever is wrong with them, and
/// leaders take the witness in anew. Returns where the earlier ones are.
///
/// # Errors
/// If there are none, they are in use or are not tiebreak's, or the disk fails.
pub fn replace(config: &WitnessConfig) -> Result<PathBuf, WitnessError> {
    let directory = &config.own.state;
    match Ledger::open(&RealDisk, directory, Purpose::Witness) {
        Ok(_) => {}
        Err(error) if error.is_damage() => {}
        Err(error) => return Err(error.into()),
    }
    let records: Vec<Record> =
        config.clusters.iter().map(|cluster| blank(config.own.node, cluster.name)).collect();
    let incarnation = Incarnation(random_u128());
    Ok(Ledger::replace(&RealDisk, directory, Purpose::Witness, incarnation, &records)?)
}

fn blank(node: NodeId, name: ClusterName) -> Record {
    Record::Witness(Witness::blank(node, name, Incarnation(random_u128())))
}

/// What a witness has done since it started, for monitors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WitnessFigures {
    /// Syncs of the votes.
    pub syncs: u64,
    /// The time that they took.
    pub sync_total: Duration,
    /// The time that the last one took.
    pub sync_last: Duration,
    /// Requests that had to wait because their replica asked too often.
    pub held_back: u64,
    /// What has happened at the sockets, by its name: who got in, who did not and why.
    pub door: BTreeMap<&'static str, u64>,
    /// Each cluster that has asked for something.
    pub clusters: BTreeMap<ClusterName, ClusterFigures>,
}

/// The same, of one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClusterFigures {
    /// The promised term.
    pub promised: Term,
    /// The confirmed term.
    pub confirmed: Term,
    /// Votes and confirmations that were given.
    pub granted: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// A witness that listens. [`WitnessNode::run`] serves until it fails or is told to stop.
pub struct WitnessNode {
    endpoint: Endpoint,
    seats: Seats,
    voters: Voters,
    desk: Arc<Desk>,
    waiting: mpsc::Receiver<Arrival>,
    queue: mpsc::Sender<Arrival>,
}

impl std::fmt::Debug for WitnessNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WitnessNode({:?}, {:?})", self.local_addresses(), self.voters)
    }
}

impl WitnessNode {
    /// Opens the votes, counts this start durably, and listens. Has to be called inside a Tokio runtime.
    ///
    /// # Errors
    /// If key, votes or addresses are not usable; each error says what to do.
    pub fn open(config: &WitnessConfig) -> Result<WitnessNode, WitnessError> {
        if config.own.listen.is_empty() {
            return Err(WitnessError::NoAddress);
        }
        let identity = Identity::load(&config.own.key)?;
        let pins = Pins::default();
        let seats = Seats::default();
        let (queue, waiting) = mpsc::channel(WITNESS_QUEUE_MAX);
        let desk = Desk::new(config, identity.fingerprint(), pins.clone(), seats.clone(), queue.clone());
        let clusters = desk.clusters()?;
        let voters = Voters::open(config, &clusters)?;
        desk.seat(&clusters);
        let timing = Timing::of(config.own.keep_alive);
        let endpoint = Endpoint::bind_open(&identity, &config.own.listen, pins, timing)?;
        Ok(WitnessNode { endpoint, seats, voters, desk: Arc::new(desk), waiting, queue })
    }

    /// Takes other clusters and keys while it runs: see [`WitnessKeys::reload`].
    pub fn keys(&self) -> WitnessKeys {
        WitnessKeys { desk: self.desk.clone(), endpoint: self.endpoint.clone() }
    }

    /// Where it listens, with the ports that the system chose for port 0.
    pub fn local_addresses(&self) -> Vec<std::net::SocketAddr> {
        self.endpoint.local_addresses()
    }

    /// What it has done, as it is when the closure is called: also while it runs.
    pub fn figures(&self) -> impl Fn() -> WitnessFigures + Send + Sync + 'static {
        let (figures, tally) = (self.voters.figures.clone(), self.endpoint.tally().clone());
        move || WitnessFigures { door: tally.counts().collect(), ..lock(&figures).clone() }
    }

    /// Serves until `stop` resolves.
    ///
    /// # Errors
    /// If a vote could not be made durable: the process has to end then.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), WitnessError> {
        let figures = self.voters.figures.clone();
        let accepting = tokio::spawn(accept(self.endpoint.clone(), self.seats, self.queue, figures));
        let joining = tokio::spawn(enrol::admit(self.endpoint.clone(), self.desk));
        let outcome = tokio::select! {
            outcome = self.voters.run(self.waiting) => outcome,
            () = stop => Ok(()),
        };
        accepting.abort();
        joining.abort();
        self.endpoint.shutdown("the witness is stopped").await;
        outcome
    }
}

/// The keys and clusters of a witness that runs.
#[derive(Clone)]
pub struct WitnessKeys {
    desk: Arc<Desk>,
    endpoint: Endpoint,
}

impl std::fmt::Debug for WitnessKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WitnessKeys({:?})", self.desk)
    }
}

impl WitnessKeys {
    /// Takes the clusters and keys of `config` from now on, and those that are registered: connections of keys that are
    /// no longer listed are cut, and new clusters are served. The key in the key file is shown on each new connection. Nothing
    /// else of `config` is looked at.
    ///
    /// # Errors
    /// If the registrations cannot be read, or there is no room for a vote; what was before goes on.
    pub async fn reload(&self, config: &WitnessConfig) -> Result<(), String> {
        let identity = Identity::load(&config.own.key).map_err(|error| error.to_string())?;
        self.desk.reload(config).await?;
        self.endpoint.set_identity(&identity).map_err(|error| error.to_string())
    }
}
