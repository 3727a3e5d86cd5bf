//! The witness as a service: one voter per cluster, one ledger, one socket.
//!
//! Votes that wait together share a sync, and none waits for company: what has arrived is handled, synced once and
//! released; what arrives meanwhile makes the next round.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::config::WitnessConfig;
use crate::edge::clock::{Clock, random_u128};
use crate::edge::disk::RealDisk;
use crate::edge::identity::{Fingerprint, Identity, IdentityError};
use crate::edge::ledger::{Ledger, LedgerError, Purpose, Slot};
use crate::edge::quic::{BindError, CloseCode, Connection, Endpoint, Pins, Responder, Timing};
use crate::ids::{ClusterName, Incarnation, LinkId, NodeId, Term};
use crate::limits::WITNESS_QUEUE_MAX;
use crate::message::{Record, Refusal, Reply, Request, Sender};
use crate::rules::Rules;
use crate::wire;
use crate::witness::{Call, Settings, Step, Witness};

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
    seats: Arc<HashMap<Fingerprint, Seat>>,
    voters: Voters,
}

impl std::fmt::Debug for WitnessNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WitnessNode({:?}, {:?})", self.local_addresses(), self.voters)
    }
}

/// As what a key may speak.
#[derive(Clone, Copy, Debug)]
struct Seat {
    cluster: ClusterName,
    node: NodeId,
}

/// The voters and what makes them durable.
struct Voters {
    ledger: Ledger,
    of: HashMap<ClusterName, (Slot, Witness)>,
    /// The live link of each replica: a newer one replaces it.
    links: HashMap<(ClusterName, NodeId), Connection>,
    figures: Arc<Mutex<WitnessFigures>>,
}

impl std::fmt::Debug for Voters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.of.iter().map(|(name, (_, voter))| (name, voter.record()))).finish()
    }
}

/// What waits for a voter.
#[derive(Debug)]
enum Arrival {
    Asked(Box<Waiting>),
    /// A connection is over.
    Over {
        cluster: ClusterName,
        link: LinkId,
    },
}

/// A request that waits for its voter.
#[derive(Debug)]
struct Waiting {
    seat: Seat,
    connection: Connection,
    from: Sender,
    request: Request,
    responder: Responder,
    link: LinkId,
    /// Told whether the connection is now the link of its replica.
    linked: oneshot::Sender<bool>,
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
        let voters = Voters::open(config)?;
        let mut seats = HashMap::new();
        for cluster in &config.clusters {
            for replica in &cluster.replicas {
                let seat = Seat { cluster: cluster.name, node: replica.node };
                seats.extend(replica.keys.iter().map(|key| (*key, seat)));
            }
        }
        let pins = Pins::new(seats.keys().copied());
        let endpoint =
            Endpoint::bind(&identity, &config.own.listen, pins, Timing::of(config.own.keep_alive))?;
        Ok(WitnessNode { endpoint, seats: Arc::new(seats), voters })
    }

    /// Where it listens, with the ports that the system chose for port 0.
    pub fn local_addresses(&self) -> Vec<std::net::SocketAddr> {
        self.endpoint.local_addresses()
    }

    /// What it has done, as it is when the closure is called: also while it runs.
    pub fn figures(&self) -> impl Fn() -> WitnessFigures + Send + Sync + 'static {
        let figures = self.voters.figures.clone();
        move || lock(&figures).clone()
    }

    /// Serves until `stop` resolves.
    ///
    /// # Errors
    /// If a vote could not be made durable: the process has to end then.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), WitnessError> {
        let (queue, waiting) = mpsc::channel(WITNESS_QUEUE_MAX);
        let accepting = tokio::spawn(accept(self.endpoint.clone(), self.seats, queue));
        let outcome = tokio::select! {
            outcome = self.voters.run(waiting) => outcome,
            () = stop => Ok(()),
        };
        accepting.abort();
        self.endpoint.shutdown("the witness is stopped").await;
        outcome
    }
}

impl Voters {
    fn open(config: &WitnessConfig) -> Result<Voters, WitnessError> {
        let (mut ledger, records) = Ledger::open(&RealDisk, &config.own.state, Purpose::Witness)?;
        let settings = Settings { strict_boot: config.strict_boot };
        let mut of = HashMap::new();
        for (slot, record) in records {
            let Record::Witness(found) = record else { continue };
            if found.node != config.own.node {
                let directory = config.own.state.clone();
                return Err(WitnessError::Mismatch { directory, found: found.node, node: config.own.node });
            }
            if !config.clusters.iter().any(|cluster| cluster.name == found.name) {
                tracing::warn!(cluster = %found.name, "kept, and not served: it is not in the configuration");
                continue;
            }
            let (voter, record) = Witness::start(Clock.now(), found, settings, Rules::KEPT);
            let _sealed = ledger.seal(slot, Some(&Record::Witness(record)), ())?;
            of.insert(found.name, (slot, voter));
        }
        for cluster in &config.clusters {
            if let std::collections::hash_map::Entry::Vacant(place) = of.entry(cluster.name) {
                // New in the configuration: a vote of its own, blank until a leader takes it in.
                let record = Witness::blank(config.own.node, cluster.name, Incarnation(random_u128()));
                let (voter, record) = Witness::start(Clock.now(), record, settings, Rules::KEPT);
                let slot = ledger.allot(&Record::Witness(record))?;
                place.insert((slot, voter));
                tracing::info!(cluster = %cluster.name, "new cluster; its vote is blank until a leader takes it in");
            }
        }
        ledger.sync()?;
        Ok(Voters { ledger, of, links: HashMap::new(), figures: Arc::default() })
    }

    async fn run(mut self, mut waiting: mpsc::Receiver<Arrival>) -> Result<(), WitnessError> {
        while let Some(first) = waiting.recv().await {
            let mut sealed = Vec::new();
            let mut next = Some(first);
            while let Some(arrival) = next {
                match arrival {
                    Arrival::Asked(request) => sealed.push(self.handle(*request)?),
                    Arrival::Over { cluster, link } => {
                        if let Some((_, voter)) = self.of.get_mut(&cluster) {
                            voter.link_down(link);
                        }
                    }
                }
                next = waiting.try_recv().ok();
            }
            let proof = if self.ledger.waits() {
                let mut ledger = self.ledger;
                let began = Clock.now();
                let (back, proof) = tokio::task::spawn_blocking(move || {
                    let proof = ledger.sync();
                    (ledger, proof)
                })
                .await
                .expect("a sync does not panic");
                self.ledger = back;
                let took = Clock.now().since(began);
                let mut figures = lock(&self.figures);
                figures.syncs += 1;
                figures.sync_total += took;
                figures.sync_last = took;
                drop(figures);
                proof?
            } else {
                self.ledger.proof()?
            };
            for reply in sealed {
                reply.release(&proof).expect("the sync covers what was sealed before it").send();
            }
        }
        Ok(())
    }

    fn handle(&mut self, waiting: Waiting) -> Result<crate::edge::ledger::Sealed<Outgoing>, WitnessError> {
        let Waiting { seat, connection, link, from, request, responder, linked } = waiting;
        let (slot, voter) = self.of.get_mut(&seat.cluster).expect("every seat's cluster has a voter");
        let place = (seat.cluster, seat.node);
        let before = voter.id();
        let call = Call { link, from, request, fresh: random_u128() };
        let Step { record, sender, reply } = voter.handle(Clock.now(), &call);
        narrate(&seat, &call.request, &reply);
        let vote = voter.record();
        let mut figures = lock(&self.figures);
        let of = figures.clusters.entry(seat.cluster).or_default();
        (of.promised, of.confirmed) = (vote.promised.term, vote.confirmed.term);
        match &reply {
            Reply::Voted { .. } | Reply::Confirmed { .. } => of.granted += 1,
            Reply::Refused(_) => of.refused += 1,
            _ => {}
        }
        drop(figures);
        if sender.voter != before {
            tracing::error!(
                cluster = %seat.cluster,
                "the vote was restored from an image: it counts as lost, and is blank until a leader takes it in"
            );
            for (_, link) in self.links.extract_if(|(cluster, _), _| *cluster == seat.cluster) {
                link.close(CloseCode::DONE, "this witness begins again as blank");
            }
        }
        if let Reply::Hello(_) = &reply
            && let Some(old) = self.links.insert(place, connection.clone())
            && !old.is_same(&connection)
        {
            old.close(CloseCode::DONE, "a newer connection is used");
        }
        // A life that was given up is told so when it greets again.
        for (_, link) in
            self.links.extract_if(|(name, node), _| *name == seat.cluster && !voter.is_linked(*node))
        {
            link.close(CloseCode::DONE, "this link is over");
        }
        let outgoing = Outgoing { sender, reply, responder, linked };
        Ok(self.ledger.seal(*slot, record.map(Record::Witness).as_ref(), outgoing)?)
    }
}

fn lock(figures: &Mutex<WitnessFigures>) -> MutexGuard<'_, WitnessFigures> {
    // Each number is whole whenever the lock is let go.
    figures.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reply on its way, once it is released.
#[derive(Debug)]
struct Outgoing {
    sender: Sender,
    reply: Reply,
    responder: Responder,
    linked: oneshot::Sender<bool>,
}

impl Outgoing {
    fn send(self) {
        let _ = self.linked.send(matches!(self.reply, Reply::Hello(_)));
        let bytes = wire::encode_reply(&self.sender, &self.reply);
        tokio::spawn(async move {
            // A link that fails is seen by the task that serves it.
            let _ = self.responder.answer(&bytes).await;
        });
    }
}

async fn accept(endpoint: Endpoint, seats: Arc<HashMap<Fingerprint, Seat>>, queue: mpsc::Sender<Arrival>) {
    let mut links = 0;
    while let Some(connection) = endpoint.accept().await {
        links += 1;
        let link = LinkId(links);
        let Some(seat) = seats.get(&connection.fingerprint()).copied() else {
            connection.close(CloseCode::NOT_PINNED, "this key is no longer pinned here");
            continue;
        };
        let queue = queue.clone();
        tokio::spawn(async move {
            let why = serve(&connection, link, seat, &queue).await;
            connection.close(CloseCode::MISBEHAVED, &why);
            // If the queue is gone, so is the voter.
            let _ = queue.send(Arrival::Over { cluster: seat.cluster, link }).await;
        });
    }
}

/// Requests of one connection, one after the other. What ended it.
async fn serve(connection: &Connection, link: LinkId, seat: Seat, queue: &mpsc::Sender<Arrival>) -> String {
    let mut is_link = false;
    loop {
        let (bytes, responder) = match connection.next_request().await {
            Ok(request) => request,
            Err(error) => return error.to_string(),
        };
        let (from, request) = match wire::decode_request(&bytes) {
            Ok(decoded) => decoded,
            Err(wire::WireError::Version { got }) => {
                let nobody = Sender {
                    cluster: crate::ids::ClusterId::NIL,
                    voter: crate::ids::VoterId { node: seat.node, incarnation: Incarnation::NIL },
                    boot: crate::ids::Boot(0),
                    term: crate::ids::Term::ZERO,
                };
                tracing::warn!(cluster = %seat.cluster, node = %seat.node, version = got, "speaks another version");
                let _ = responder.answer(&wire::encode_reply(&nobody, &wire::versions())).await;
                continue;
            }
            Err(error) => return error.to_string(),
        };
        if request != Request::Status && from.voter.node != seat.node {
            return format!(
                "this key speaks as {} of {} here, not as {}",
                seat.node, seat.cluster, from.voter.node
            );
        }
        let needs_link = !matches!(request, Request::Status | Request::Hello(_));
        if needs_link && !is_link {
            return "a connection begins with a greeting".into();
        }
        if let Request::Hello(hello) = &request
            && hello.name != seat.cluster
        {
            return format!("this key speaks for cluster {} here, not for {}", seat.cluster, hello.name);
        }
        let (linked, told) = oneshot::channel();
        let connection = connection.clone();
        let waiting = Waiting { seat, connection, link, from, request, responder, linked };
        if queue.send(Arrival::Asked(Box::new(waiting))).await.is_err() {
            return "the witness is stopped".into();
        }
        match told.await {
            Ok(greeted) => is_link |= greeted,
            Err(_) => return "the witness is stopped".into(),
        }
    }
}

fn narrate(seat: &Seat, request: &Request, reply: &Reply) {
    let (cluster, node) = (seat.cluster, seat.node);
    match reply {
        Reply::Voted { term } => tracing::info!(%cluster, %node, %term, "voted"),
        Reply::Confirmed { term } => tracing::info!(%cluster, %node, %term, "confirmed: it goes on alone"),
        Reply::Admitted { term } => tracing::info!(%cluster, %node, %term, "taken in"),
        Reply::Refused(Refusal::Busy { .. }) => {}
        Reply::Refused(refusal) => {
            let asked = match request {
                Request::PreVote(_) => "pre-vote",
                Request::Vote(_) => "vote",
                Request::Confirm { .. } => "confirmation",
                Request::Admit { .. } => "admission",
                Request::Hello(_) => "greeting",
                _ => "request",
            };
            tracing::info!(%cluster, %node, asked, "refused: {refusal}");
        }
        _ => {}
    }
}
