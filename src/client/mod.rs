//! The replica as a library: join a cluster in a few lines, and be told what you may do.
//!
//! Data flows one way: bytes → `wire` → voter → `Step` → ledger → released outputs → `wire` → bytes. [`Cluster`] is
//! the handle, `actor.rs` owns the voter and its ledger, `links.rs` the connections, `lease.rs` what the embedding
//! program holds.

mod actor;
mod lease;
mod links;
mod measured;
mod names;
mod recover;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{OtherConfig, ReplicaConfig, WhenAlone};
use crate::edge::clock::{Clock, random_u128};
use crate::edge::disk::RealDisk;
use crate::edge::identity::{Fingerprint, Identity, IdentityError};
use crate::edge::ledger::{Ledger, LedgerError, Purpose, Slot};
use crate::edge::quic::{BindError, Endpoint, Pins, Timing};
use crate::ids::{ClusterId, ClusterName, Incarnation, NodeId, Position, Term, Token};
use crate::limits::REPLICA_QUEUE_MAX;
use crate::message::{Kind, Record, Refusal, ReplicaRecord, Report};
use crate::replica::{Alone, Input, Replica, Settings};
use crate::rules::Rules;
use crate::time::Moment;

use actor::{Actor, Event};
pub use lease::{Lease, PeerDurable, Remaining, Right};
pub use measured::Measures;
pub use names::{NamedLease, Names, NotAcquired};
pub use recover::{RecoverError, Recovery, replace};

/// Identifies one link between the two replicas, the same at both ends. The data layer stamps its own messages with
/// it: an answer that bears an earlier stamp counts for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct LinkStamp(pub u64);

/// What this replica is now.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Role {
    /// It follows, copies or waits.
    Standby(Standby),
    /// It leads.
    Leader(Leader),
}

/// A replica that does not lead.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Standby {
    /// Its highest term.
    pub term: Term,
    /// The leader, if one was heard.
    pub leader: Option<NodeId>,
    /// The term of that leader.
    pub leader_term: Term,
    /// The link to the peer.
    pub link: Option<LinkStamp>,
    /// What the leader offers: copy everything up to there, then call [`Cluster::joined`].
    pub offer: Option<Offer>,
    /// Whether it takes part in the leader's term: what arrives on `link` in that term is to be made durable and
    /// answered.
    pub joined: bool,
    /// Why the last candidacy failed, and whose refusal it was.
    pub refused: Option<(NodeId, Refusal)>,
}

/// A leader's offer to join its term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Offer {
    /// The term.
    pub term: Term,
    /// Everything up to here has to be durable first.
    pub position: Position,
    /// The link on which it came; it is void on another one.
    pub link: LinkStamp,
}

/// A replica that leads.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// Its term.
    pub term: Term,
    /// Its fencing token.
    pub token: Token,
    /// The right to act; `None` while there is none.
    pub lease: Option<Lease>,
    /// What it may acknowledge.
    pub right: Right,
    /// The link to the peer.
    pub link: Option<LinkStamp>,
    /// Whether [`Cluster::offer`] would be taken now.
    pub may_offer: bool,
    /// It hands over: stop the service, let the peer have everything, then call [`Cluster::stopped`].
    pub resigning: bool,
}

/// Why a replica cannot join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The durable state.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The sockets.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The state directory belongs to another node or cluster.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
}

/// The state directory belongs to another node or cluster.
#[derive(Debug, thiserror::Error)]
#[error(
    "the state in {directory} is of node {found_node} of cluster {found_cluster}, and the configuration is of node \
     {node} of cluster {cluster}; correct `state`, `node` or `cluster`"
)]
#[non_exhaustive]
pub struct Mismatch {
    /// The state directory.
    pub directory: PathBuf,
    /// In the state.
    pub found_node: NodeId,
    /// In the state.
    pub found_cluster: ClusterName,
    /// In the configuration.
    pub node: NodeId,
    /// In the configuration.
    pub cluster: ClusterName,
}

/// Why a running replica stopped for good. The process should end: after a failed sync nothing it remembers can be
/// trusted.
#[derive(Clone, Debug)]
pub struct Failure(Arc<str>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Why a command was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// The voter refuses.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The caller offers less than it has acknowledged to its clients.
    #[error(
        "the offer reaches to {offered}, and {acknowledged} was acknowledged: offer everything that is durable"
    )]
    OfferTooShort {
        /// What was offered.
        offered: Position,
        /// What was acknowledged.
        acknowledged: Position,
    },
    /// The replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// How a replica begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// It makes a new cluster of this kind, and leads it first: the data that it has is kept.
    Found(Kind),
    /// It is taken in by a leader, whose data it copies.
    Blank,
}

/// Makes the durable state of a replica, once.
///
/// # Errors
/// If there is a state already (nothing is overwritten), or the disk fails.
pub fn init(config: &ReplicaConfig, start: Start) -> Result<ReplicaRecord, JoinError> {
    let incarnation = Incarnation(random_u128());
    let (node, name) = (config.own.node, config.cluster);
    let record = match start {
        // What the cluster protects it learns from whoever takes it in.
        Start::Blank => Replica::blank(node, name, Kind::Replicated, incarnation),
        Start::Found(kind) => Replica::init(node, name, kind, incarnation, ClusterId(random_u128())),
    };
    Ledger::create(&RealDisk, &config.own.state, Purpose::Replica, incarnation, &[Record::Replica(record)])?;
    Ok(record)
}

/// The durable state of a replica that does not run.
fn open_state(config: &ReplicaConfig) -> Result<(Ledger, Slot, ReplicaRecord), JoinError> {
    let (ledger, records) = Ledger::open(&RealDisk, &config.own.state, Purpose::Replica)?;
    let found = records.first().and_then(|(slot, record)| match record {
        Record::Replica(record) => Some((*slot, *record)),
        _ => None,
    });
    let Some((slot, found)) = found else {
        return Err(LedgerError::Missing { path: config.own.state.clone() }.into());
    };
    if found.node != config.own.node || found.name != config.cluster {
        return Err(JoinError::Mismatch(Box::new(Mismatch {
            directory: config.own.state.clone(),
            found_node: found.node,
            found_cluster: found.name,
            node: config.own.node,
            cluster: config.cluster,
        })));
    }
    Ok((ledger, slot, found))
}

/// The durable state of a replica, which does not run.
///
/// # Errors
/// If it runs, or its state is not usable.
#[cfg(feature = "cli")]
pub(crate) fn stopped_record(config: &ReplicaConfig) -> Result<ReplicaRecord, JoinError> {
    open_state(config).map(|(_, _, record)| record)
}

/// A replica's place in its cluster. Dropping it ends the replica as a crash would; see [`Cluster::shutdown`].
#[derive(Debug)]
pub struct Cluster {
    events: mpsc::Sender<Event>,
    roles: watch::Receiver<Role>,
    failed: watch::Receiver<Option<Failure>>,
    addresses: Vec<SocketAddr>,
    isolated: watch::Sender<Moment>,
    others: watch::Sender<[OtherConfig; 2]>,
    pins: Pins,
    endpoint: Endpoint,
    own_key: std::sync::Mutex<Fingerprint>,
    measured: measured::Measured,
    links: tokio::task::JoinHandle<()>,
}

impl Cluster {
    /// Starts the voter on the state that [`init`] made or an earlier run left, with data that reaches durably to
    /// `position`. Has to be called inside a Tokio runtime with time and I/O enabled.
    ///
    /// # Errors
    /// If key, state or addresses are not usable; each error says what to do.
    pub async fn join(config: ReplicaConfig, position: Position) -> Result<Cluster, JoinError> {
        let identity = Identity::load(&config.own.key)?;
        let (ledger, slot, found) = open_state(&config)?;
        let keys = config.peer.keys.iter().chain(&config.witness.keys).copied();
        let pins = Pins::new(keys.chain([identity.fingerprint()]));
        let timing = Timing::of(config.own.keep_alive).as_patient_as(config.lease);
        let endpoint = Endpoint::bind(&identity, &config.own.listen, pins.clone(), timing)?;
        let addresses = endpoint.local_addresses();
        let settings = Settings {
            lease: config.lease,
            solo_after: config.solo_after,
            alone: match config.when_alone {
                WhenAlone::Continue => Alone::Continue,
                WhenAlone::Stop => Alone::Stop,
            },
        };
        let (voter, step) =
            Replica::start(Clock.now(), found, position, settings, random_u128(), Rules::KEPT);
        let (events, queue) = mpsc::channel(REPLICA_QUEUE_MAX);
        let (actor, roles, failed) =
            Actor::start(voter, ledger, slot, step, queue, events.downgrade()).await?;
        let (isolated, cut) = watch::channel(Moment::default());
        let (others, known) = watch::channel([config.peer.clone(), config.witness.clone()]);
        let links = links::spawn(&config, endpoint.clone(), events.downgrade(), actor.shared(), cut, known);
        let measured = actor.measured();
        tokio::spawn(actor.run());
        let own_key = std::sync::Mutex::new(identity.fingerprint());
        Ok(Cluster {
            events,
            roles,
            failed,
            addresses,
            isolated,
            others,
            pins,
            endpoint,
            own_key,
            measured,
            links,
        })
    }

    /// Where it listens, with the ports that the system chose for port 0.
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Takes other keys and addresses of its peer and its witness while it runs. Connections of keys that are no longer
    /// listed are cut; where a key stays, the connection stays. The peer keeps its name; another witness is taken in by
    /// the leader like a blank one (protocol §7).
    pub fn reconfigure(&self, peer: OtherConfig, witness: OtherConfig) {
        let own = *self.own_key.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = peer.keys.iter().chain(&witness.keys).copied().chain([own]).collect::<Vec<_>>();
        self.others.send_replace([peer, witness]);
        self.pins.replace(keys);
    }

    /// Shows another key from now on. Links that exist stay until the others no longer list the earlier key; so the
    /// others have to list both before this call, and nothing is interrupted.
    ///
    /// # Errors
    /// If the key cannot be used; the earlier one stays.
    pub fn use_key(&self, identity: &Identity) -> Result<(), BindError> {
        let before = {
            let mut own = self.own_key.lock().unwrap_or_else(PoisonError::into_inner);
            if *own == identity.fingerprint() {
                return Ok(());
            }
            self.endpoint.set_identity(identity)?;
            std::mem::replace(&mut *own, identity.fingerprint())
        };
        tracing::info!(%before, now = %identity.fingerprint(), "another key is used from now on");
        let [peer, witness] = self.others.borrow().clone();
        self.reconfigure(peer, witness);
        Ok(())
    }

    /// What it is now.
    pub fn role(&self) -> Role {
        self.roles.borrow().clone()
    }

    /// The stream of what it becomes: the present role first, then each change. Whoever is slow sees the latest
    /// one, not each in between.
    pub fn roles(&self) -> Roles {
        let mut roles = self.roles.clone();
        roles.mark_changed();
        Roles(roles)
    }

    /// The data reaches durably to here.
    pub async fn durable(&self, position: Position) -> Result<(), NotTaken> {
        self.command(Input::Durable(position)).await
    }

    /// Leader: the peer has caught up to within one exchange, and is asked to join this term. `position` is
    /// everything that is durable here; nothing beyond it was acknowledged. A solo leader begins a new term by it,
    /// with a new token, and from the call on acknowledges nothing alone.
    ///
    /// # Errors
    /// If the peer may not be offered the term now, or more than `position` was acknowledged meanwhile.
    pub async fn offer(&self, position: Position) -> Result<(), NotTaken> {
        self.command(Input::Offer(position)).await
    }

    /// Standby: everything that `offer` asked for is durable here.
    ///
    /// # Errors
    /// If the offer is void: the link or the term is over.
    pub async fn joined(&self, offer: &Offer, position: Position) -> Result<(), NotTaken> {
        self.command(Input::Durable(position)).await?;
        self.command(Input::Join(offer.term)).await
    }

    /// Standby: data is about to be destroyed in order to copy the leader (anything but appending). It returns when
    /// the loss is on record; only then destroy.
    ///
    /// # Errors
    /// If there is no leader on the link, or this replica is sole: then nothing may be destroyed.
    pub async fn resync(&self) -> Result<(), NotTaken> {
        self.command(Input::Resync).await
    }

    /// Leader: the peer answers, but makes nothing durable any more. Writes go on after one confirmation by the witness:
    /// so they stall for as long as the caller was patient, and one round trip and two syncs more.
    pub async fn stalled(&self) -> Result<(), NotTaken> {
        self.command(Input::Stalled).await
    }

    /// Paired leader: hand over to the peer. If the peer is lost or stalls before [`stopped`](Cluster::stopped), the
    /// leader goes on. The right to act ends with this call; then stop the service, let the peer
    /// have everything, and call [`stopped`](Cluster::stopped).
    ///
    /// # Errors
    /// If it is not paired: a sole leader hands over to nobody.
    pub async fn resign(&self) -> Result<(), NotTaken> {
        self.command(Input::Resign).await
    }

    /// Leader that resigns: the service has stopped and the peer has everything. The lease is given back.
    ///
    /// # Errors
    /// If it does not resign.
    pub async fn stopped(&self) -> Result<(), NotTaken> {
        self.command(Input::Stopped).await
    }

    /// Whether this replica may stand for election from now on: it may unless it is told otherwise. It votes all the
    /// same, and one that leads, or is sole, goes on.
    pub async fn stands(&self, stands: bool) -> Result<(), NotTaken> {
        self.command(Input::Stands(stands)).await
    }

    /// Holds `name` in the whole cluster: a lease with a token of its own, which nobody else has until it has ended. It
    /// renews itself, and is given back when it is dropped. Works on both replicas: the leader grants it, in memory, for
    /// [`NAME_LEASE_MAX`](crate::limits::NAME_LEASE_MAX) at a time (protocol §8).
    ///
    /// One attempt: see [`Names::wait`] for one that waits its turn, and [`Cluster::names`] for a handle that other
    /// tasks can use.
    ///
    /// When the leader changes, every name that it gave ends, and the next leader grants none for
    /// `NAME_LEASE_MAX`. What the holder protects has to check the token ([`crate::fence`]): a paused holder does not
    /// know that its lease has ended.
    ///
    /// # Errors
    /// If somebody holds it, or no leader can be asked, or the text is no name.
    ///
    /// ```no_run
    /// # async fn example(cluster: &tiebreak::Cluster) -> Result<(), tiebreak::NotAcquired> {
    /// let lease = cluster.acquire("shard-42").await?;
    /// println!("token {}", lease.token());
    /// if lease.guard(async { /* work on the shard */ }).await.is_none() {
    ///     println!("lost: {:?}", lease.lost());
    /// }
    /// lease.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(&self, name: &str) -> Result<NamedLease, NotAcquired> {
        self.names().acquire(name.parse()?, crate::limits::NAME_LEASE_MAX).await
    }

    /// The lock service, as a handle that may outlive this one (it is of no use then).
    pub fn names(&self) -> Names {
        Names::new(self.events.downgrade())
    }

    /// How it sees the cluster.
    ///
    /// # Errors
    /// If it has stopped.
    pub async fn report(&self) -> Result<Report, NotTaken> {
        let (to, report) = oneshot::channel();
        self.events.send(Event::Report(to)).await.map_err(|_| NotTaken::Stopped)?;
        report.await.map_err(|_| NotTaken::Stopped)
    }

    /// What was measured since it joined, for monitors.
    pub fn measures(&self) -> Measures {
        self.measured.read()
    }

    /// Cuts this node off for `span`, to show what happens then: its connections are closed, none is made and none is
    /// taken. It ends by itself.
    pub fn isolate(&self, span: Duration) {
        self.isolated.send_replace(Clock.now() + span);
    }

    /// Resolves when the replica cannot go on, with the cause. The process should end then.
    pub async fn failed(&self) -> Failure {
        let mut failed = self.failed.clone();
        match failed.wait_for(Option::is_some).await.map(|cause| cause.clone()) {
            Ok(Some(failure)) => failure,
            _ => Failure("the voter has ended: it was shut down, or its runtime is gone".into()),
        }
    }

    /// Ends the replica in good order: its right to act is over when this returns, and the others know that it left.
    /// A leader with a peer should [`resign`](Cluster::resign) first, so that nobody has to wait for its lease.
    pub async fn shutdown(self) {
        let (to, done) = oneshot::channel();
        if self.events.send(Event::Shutdown(to)).await.is_ok() {
            let _ = done.await;
        }
        drop(self.events);
        // The sockets say goodbye.
        let _ = self.links.await;
    }

    async fn command(&self, input: Input) -> Result<(), NotTaken> {
        let (to, taken) = oneshot::channel();
        self.events.send(Event::Command(input, to)).await.map_err(|_| NotTaken::Stopped)?;
        taken.await.map_err(|_| NotTaken::Stopped)?
    }
}

/// The stream of roles: see [`Cluster::roles`].
#[derive(Debug)]
pub struct Roles(watch::Receiver<Role>);

impl Roles {
    /// The next role; `None` when the replica has stopped. Cancel-safe.
    pub async fn next(&mut self) -> Option<Role> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }
}
