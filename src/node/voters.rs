//! The voters of all clusters: what has arrived is handled, synced once and released.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::config::WitnessConfig;
use crate::edge::clock::{Clock, random_u128};
use crate::edge::disk::RealDisk;
use crate::edge::ledger::{Ledger, Purpose, Sealed, Slot};
use crate::edge::quic::{CloseCode, Connection, Responder};
use crate::ids::{ClusterName, Incarnation, LinkId, NodeId};
use crate::message::{Record, Refusal, Reply, Request, Sender};
use crate::rules::Rules;
use crate::wire;
use crate::witness::{Call, Settings, Step, Witness};

use super::seats::Seat;
use super::{WitnessError, WitnessFigures};

/// The voters and what makes them durable.
pub(super) struct Voters {
    ledger: Ledger,
    of: HashMap<ClusterName, (Slot, Witness)>,
    /// The live link of each replica: a newer one replaces it.
    links: HashMap<(ClusterName, NodeId), Connection>,
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
    pub(super) fn open(config: &WitnessConfig) -> Result<Voters, WitnessError> {
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

    pub(super) async fn run(mut self, mut waiting: mpsc::Receiver<Arrival>) -> Result<(), WitnessError> {
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

    fn handle(&mut self, waiting: Waiting) -> Result<Sealed<Outgoing>, WitnessError> {
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

pub(super) fn lock(figures: &Mutex<WitnessFigures>) -> MutexGuard<'_, WitnessFigures> {
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
