//! The voters of all clusters: what has arrived is handled, synced once and released.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::config::{ClusterConfig, WitnessConfig};
use crate::edge::clock::{Clock, random_u128};
use crate::edge::disk::RealDisk;
use crate::edge::ledger::{Ledger, LedgerError, Purpose, Sealed, Slot};
use crate::edge::meter::{Allowance, Meter};
use crate::edge::quic::{CloseCode, Connection, Responder};
use crate::ids::{ClusterName, Incarnation, LinkId, NodeId};
use crate::limits::{LINES_A_SECOND, LINES_AT_ONCE};
use crate::message::{Record, Refusal, Reply, Request, Sender, WitnessRecord};
use crate::rules::Rules;
use crate::wire;
use crate::witness::{Call, Settings, Step, Witness};

use super::seats::Seat;
use super::{WitnessError, WitnessFigures};

const LINES: Allowance = Allowance { at_once: LINES_AT_ONCE, a_second: LINES_A_SECOND };

/// The voters and what makes them durable.
pub(super) struct Voters {
    ledger: Ledger,
    of: HashMap<ClusterName, (Slot, Witness)>,
    /// Votes of clusters that are not served.
    kept: HashMap<ClusterName, (Slot, WitnessRecord)>,
    node: NodeId,
    settings: Settings,
    /// The live links of each cluster's replicas: a newer one of a replica replaces it.
    links: HashMap<ClusterName, Vec<(NodeId, Connection)>>,
    /// How often the log told of refusals in each cluster.
    said: HashMap<ClusterName, Meter>,
    pub(super) figures: Arc<Mutex<WitnessFigures>>,
}

impl std::fmt::Debug for Voters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.of.iter().map(|(name, (_, voter))| (name, voter.record()))).finish()
    }
}

/// What waits for a voter.
#[derive(Debug)]
pub(super) enum Arrival {
    Asked(Box<Waiting>),
    /// A connection is over.
    Over {
        cluster: ClusterName,
        link: LinkId,
    },
    /// A cluster is served from now on.
    Serve {
        cluster: ClusterName,
        /// It is a new one: an earlier vote of a cluster of that name is given up.
        blank: bool,
        /// Told when the vote is durable; dropped if it cannot be kept.
        done: oneshot::Sender<()>,
    },
}

/// A request that waits for its voter.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) seat: Seat,
    pub(super) connection: Connection,
    pub(super) from: Sender,
    pub(super) request: Request,
    pub(super) responder: Responder,
    pub(super) link: LinkId,
    /// Told whether the connection is now the link of its replica.
    pub(super) linked: oneshot::Sender<bool>,
}

impl Voters {
    /// Opens the votes of these clusters.
    pub(super) fn open(config: &WitnessConfig, clusters: &[ClusterConfig]) -> Result<Voters, WitnessError> {
        let (mut ledger, records) = Ledger::open(&RealDisk, &config.own.state, Purpose::Witness)?;
        let settings = Settings { strict_boot: config.strict_boot };
        let (mut of, mut kept) = (HashMap::new(), HashMap::new());
        for (slot, record) in records {
            let Record::Witness(found) = record else { continue };
            if found.node != config.own.node {
                let directory = config.own.state.clone();
                return Err(WitnessError::Mismatch { directory, found: found.node, node: config.own.node });
            }
            if !clusters.iter().any(|cluster| cluster.name == found.name) {
                tracing::warn!(cluster = %found.name, "kept, and not served: it is neither in the configuration nor registered");
                kept.insert(found.name, (slot, found));
                continue;
            }
            let (voter, record) = Witness::start(Clock.now(), found, settings, Rules::KEPT);
            let _sealed = ledger.seal(slot, Some(&Record::Witness(record)), ())?;
            of.insert(found.name, (slot, voter));
        }
        for cluster in clusters {
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
        let (links, said, figures) = (HashMap::new(), HashMap::new(), Arc::default());
        Ok(Voters { ledger, of, kept, node: config.own.node, settings, links, said, figures })
    }

    pub(super) async fn run(mut self, mut waiting: mpsc::Receiver<Arrival>) -> Result<(), WitnessError> {
        while let Some(first) = waiting.recv().await {
            let (mut sealed, mut served) = (Vec::new(), Vec::new());
            let mut next = Some(first);
            while let Some(arrival) = next {
                match arrival {
                    Arrival::Asked(request) => sealed.push(self.handle(*request)?),
                    Arrival::Serve { cluster, blank, done } => {
                        if self.serve(cluster, blank)? {
                            served.push(done);
                        }
                    }
                    Arrival::Over { cluster, link } => {
                        if let Some((_, voter)) = self.of.get_mut(&cluster) {
                            voter.link_down(link);
                        }
                        if let Some(links) = self.links.get_mut(&cluster) {
                            links.retain(|(_, link)| link.close_reason().is_none());
                        }
                    }
                }
                next = waiting.try_recv().ok();
            }
            let proof = if self.ledger.waits() {
                let (ledger, proof, took) = self.ledger.sync_aside().await;
                self.ledger = ledger;
                let mut figures = lock(&self.figures);
                figures.syncs += 1;
                figures.sync_total += took;
                figures.sync_last = took;
                drop(figures);
                proof?
            } else {
                self.ledger.proof()?
            };
            for done in served {
                let _ = done.send(());
            }
            for reply in sealed {
                reply.release(&proof).expect("the sync covers what was sealed before it").send();
            }
        }
        Ok(())
    }

    /// Puts the vote of a cluster where it is asked. Whether there was room for it.
    fn serve(&mut self, cluster: ClusterName, blank: bool) -> Result<bool, WitnessError> {
        if !blank && self.of.contains_key(&cluster) {
            return Ok(true);
        }
        let served = self.of.remove(&cluster).map(|(slot, voter)| (slot, *voter.record()));
        let found = served.or_else(|| self.kept.remove(&cluster));
        for (_, link) in self.links.remove(&cluster).into_iter().flatten() {
            link.close(CloseCode::DONE, "another cluster of this name begins");
        }
        let record = match found {
            Some((_, record)) if !blank => record,
            _ => Witness::blank(self.node, cluster, Incarnation(random_u128())),
        };
        let (voter, record) = Witness::start(Clock.now(), record, self.settings, Rules::KEPT);
        let record = Record::Witness(record);
        let slot = match found {
            Some((slot, _)) => {
                let _sealed = self.ledger.seal(slot, Some(&record), ())?;
                slot
            }
            None => match self.ledger.allot(&record) {
                Ok(slot) => slot,
                Err(error @ LedgerError::Full { .. }) => {
                    tracing::error!(%cluster, "this cluster gets no vote here: {error}");
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            },
        };
        self.of.insert(cluster, (slot, voter));
        Ok(true)
    }

    fn handle(&mut self, waiting: Waiting) -> Result<Sealed<Outgoing>, WitnessError> {
        let Waiting { seat, connection, link, from, request, responder, linked } = waiting;
        let (slot, voter) = self.of.get_mut(&seat.cluster).expect("every seat's cluster has a voter");
        let before = voter.id();
        let call = Call { link, from, request, fresh: random_u128() };
        let Step { record, sender, reply } = voter.handle(Clock.now(), &call);
        let said = self.said.entry(seat.cluster).or_default();
        narrate(&seat, &call.request, &reply, said);
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
            for (_, link) in self.links.remove(&seat.cluster).into_iter().flatten() {
                link.close(CloseCode::DONE, "this witness begins again as blank");
            }
        }
        let links = self.links.entry(seat.cluster).or_default();
        if let Reply::Hello(_) = &reply
            && !links.iter().any(|(_, link)| link.is_same(&connection))
        {
            for (_, old) in links.extract_if(.., |(node, _)| *node == seat.node) {
                old.close(CloseCode::DONE, "a newer connection is used");
            }
            links.push((seat.node, connection));
        }
        // A life that was given up is told so when it greets again.
        for (_, link) in links.extract_if(.., |(node, _)| !voter.is_linked(*node)) {
            link.close(CloseCode::DONE, "this link is over");
        }
        let outgoing = Outgoing { sender, reply, responder, linked };
        Ok(self.ledger.seal(*slot, record.map(Record::Witness).as_ref(), outgoing)?)
    }
}

pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    // Figures and what the desk keeps are whole whenever the lock is let go.
    what.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Tells of what matters. A candidate that is refused asks again and again: of that so much, and then less.
fn narrate(seat: &Seat, request: &Request, reply: &Reply, said: &mut Meter) {
    let (cluster, node) = (seat.cluster, seat.node);
    match reply {
        Reply::Voted { term } => tracing::info!(%cluster, %node, %term, "voted"),
        Reply::Confirmed { term } => tracing::info!(%cluster, %node, %term, "confirmed: it goes on alone"),
        Reply::Admitted { term } => tracing::info!(%cluster, %node, %term, "taken in"),
        Reply::Refused(Refusal::Busy { .. }) => {}
        Reply::Refused(_) if !said.take(Clock.now(), LINES) => {}
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
