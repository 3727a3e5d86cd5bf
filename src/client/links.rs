//! The connections of a replica: dialling, greeting, carrying messages to the actor and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::config::{OtherConfig, ReplicaConfig};
use crate::edge::clock::Clock;
use crate::edge::identity::Fingerprint;
use crate::edge::quic::{CloseCode, Connection, DialError, Endpoint, Fault, LinkError, Responder};
use crate::ids::{LinkId, NodeId};
use crate::limits::{NAME_LEASE_MAX, OLD_PEER_PAUSE, REDIAL_MAX, REDIAL_MIN};
use crate::message::{Hello, NameReply, NameRequest, Part, Refusal, Reply, Request, Sender};
use crate::time::Moment;
use crate::wire;

use super::actor::{Event, Linked, Shared, patience};
use super::names::NameFault;

/// How an answer gets back.
#[derive(Debug)]
pub(super) enum Answering {
    /// On the stream of the request.
    Stream(Responder),
    /// As a datagram.
    Datagram(Connection),
}

impl Answering {
    pub(super) fn answer(self, sender: Sender, reply: Reply) {
        match self {
            Answering::Stream(responder) => {
                let bytes = wire::encode_reply(&sender, &reply);
                tokio::spawn(async move {
                    // A link that fails is seen by the task that watches it.
                    let _ = responder.answer(&bytes).await;
                });
            }
            Answering::Datagram(connection) => {
                let _ = connection.send_datagram(&wire::encode_datagram_reply(&sender, &reply));
            }
        }
    }
}

/// Why there is no link, and whose fault it is.
struct Unlinked {
    fault: Fault,
    words: String,
}

impl Unlinked {
    fn network(words: String) -> Unlinked {
        Unlinked { fault: Fault::Network, words }
    }

    fn wrong(words: String) -> Unlinked {
        Unlinked { fault: Fault::Operator, words }
    }
}

impl From<DialError> for Unlinked {
    fn from(error: DialError) -> Unlinked {
        let fault = error.fault();
        let words: Vec<String> = error.attempts.iter().map(ToString::to_string).collect();
        Unlinked { fault, words: words.join("; ") }
    }
}

impl From<LinkError> for Unlinked {
    fn from(error: LinkError) -> Unlinked {
        Unlinked { fault: error.fault(), words: error.to_string() }
    }
}

struct Links {
    endpoint: Endpoint,
    events: mpsc::WeakSender<Event>,
    shared: Shared,
    numbers: AtomicU64,
    greetings: AtomicU64,
    /// Peer and witness; they may change.
    others: watch::Receiver<[OtherConfig; 2]>,
    lease: Duration,
    /// Until then this node is cut off on purpose.
    isolated: watch::Receiver<Moment>,
}

/// Starts dialling and accepting. It ends when the handle of the replica is gone.
pub(super) fn spawn(
    config: &ReplicaConfig,
    endpoint: Endpoint,
    events: mpsc::WeakSender<Event>,
    shared: Shared,
    isolated: watch::Receiver<Moment>,
    others: watch::Receiver<[OtherConfig; 2]>,
) -> tokio::task::JoinHandle<()> {
    let links = Arc::new(Links {
        endpoint,
        events,
        shared,
        numbers: AtomicU64::new(1),
        greetings: AtomicU64::new(1),
        others,
        lease: config.lease,
        isolated,
    });
    tokio::spawn(links.clone().keep_dialled(Part::Replica));
    tokio::spawn(links.clone().keep_dialled(Part::Witness));
    tokio::spawn(links.accept())
}

impl Links {
    fn number(&self) -> LinkId {
        LinkId(self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    fn is_isolated(&self) -> bool {
        Clock.now() < *self.isolated.borrow()
    }

    fn other(&self, part: Part) -> OtherConfig {
        self.others.borrow()[usize::from(part == Part::Witness)].clone()
    }

    fn is_peer(&self, key: Fingerprint) -> bool {
        self.others.borrow()[0].keys.contains(&key)
    }

    /// Dials whenever there is no live link, with growing pauses.
    async fn keep_dialled(self: Arc<Self>, part: Part) {
        let mut live = self.shared.live.clone();
        let mut pause = REDIAL_MIN;
        let mut said: Option<String> = None;
        loop {
            let place = usize::from(part == Part::Witness);
            if live.wait_for(|live| live[place].is_none()).await.is_err() {
                return;
            }
            let mut others = self.others.clone();
            let dialled = others.wait_for(|others| !others[place].addresses.is_empty());
            tokio::select! {
                known = dialled => if known.is_err() { return },
                // The other side has dialled.
                linked = live.wait_for(|live| live[place].is_some()) => {
                    if linked.is_err() { return }
                    continue;
                }
            }
            match self.dial(part).await {
                Ok(()) => {
                    pause = REDIAL_MIN;
                    said = None;
                    // Until the actor has taken the link or turned it down.
                    let _ = timeout(REDIAL_MAX, live.wait_for(|live| live[place].is_some())).await;
                }
                Err(why) => {
                    let node = self.other(part).node;
                    if said.as_ref() != Some(&why.words) {
                        if why.fault == Fault::Network {
                            tracing::info!(%node, "no link: {}", why.words);
                        } else {
                            tracing::warn!(%node, "no link: {}", why.words);
                        }
                        said = Some(why.words);
                    }
                    // A link that the other side makes ends the pause.
                    let linked = live.wait_for(|live| live[place].is_some());
                    if timeout(pause, linked).await.is_err() {
                        pause = (pause * 2).min(REDIAL_MAX);
                    }
                }
            }
            if self.events.upgrade().is_none() {
                return;
            }
        }
    }

    async fn dial(self: &Arc<Self>, part: Part) -> Result<(), Unlinked> {
        if self.is_isolated() {
            return Err(Unlinked::network("this node is cut off on purpose".into()));
        }
        let other = self.other(part);
        let connection = self.endpoint.dial(&other.addresses, &other.keys).await.map_err(Unlinked::from)?;
        if self.shared.live.borrow()[usize::from(part == Part::Witness)].is_some() {
            // The other end's connection came first.
            return Ok(());
        }
        if part == Part::Replica {
            self.shared.dialling.store(true, Ordering::Release);
        }
        let greeted = self.greet(part, connection).await;
        if part == Part::Replica {
            self.shared.dialling.store(false, Ordering::Release);
        }
        greeted
    }

    /// The first exchange: only its answer makes a connection a link.
    async fn greet(self: &Arc<Self>, part: Part, connection: Connection) -> Result<(), Unlinked> {
        let (sender, hellos) = *self.shared.words.borrow();
        let nonce = self.greetings.fetch_add(1, Ordering::Relaxed);
        let hello = Hello { nonce, ..hellos[usize::from(part == Part::Witness)] };
        let request = wire::encode_request(&sender, &Request::Hello(hello));
        let answer = timeout(patience(connection.rtt(), self.lease), connection.ask(&request)).await;
        let bytes = match answer {
            Ok(bytes) => bytes.map_err(Unlinked::from)?,
            Err(_) => return Err(Unlinked::network("it does not answer the greeting".into())),
        };
        let (from, reply) = wire::decode_reply(&bytes).map_err(|error| Unlinked::wrong(error.to_string()))?;
        let expected = self.other(part).node;
        if from.voter.node != expected {
            let name = from.voter.node;
            return Err(Unlinked::wrong(format!(
                "it calls itself {name} and is configured here as {expected}"
            )));
        }
        match reply {
            Reply::Hello(hello) => {
                let link = Linked { id: self.number(), part, connection, lease: self.lease };
                // In this order: what the other end says on the link counts after its greeting.
                self.send(Event::Dialled { link: link.clone(), from, hello }).await;
                self.watch(link);
                Ok(())
            }
            Reply::Refused(Refusal::Crossing) => Ok(()),
            Reply::Refused(refusal) => {
                let life = sender.voter.incarnation;
                self.send(Event::NotGreeted { life, part, by: from.voter, refusal }).await;
                Err(Unlinked::wrong(refusal.to_string()))
            }
            Reply::Versions { lowest, highest } => {
                let ours = wire::VERSION;
                Err(Unlinked::wrong(format!("it speaks versions {lowest} to {highest} and this node {ours}")))
            }
            other => Err(Unlinked::wrong(format!("it answers a greeting with {other:?}"))),
        }
    }

    async fn send(&self, event: Event) {
        if let Some(events) = self.events.upgrade() {
            let _ = events.send(event).await;
        }
    }

    async fn accept(self: Arc<Self>) {
        let mut live = self.shared.live.clone();
        loop {
            let connection = tokio::select! {
                connection = self.endpoint.accept() => connection,
                // The actor is gone.
                _ = async { while live.changed().await.is_ok() {} } => break,
            };
            let Some(connection) = connection else {
                // It listens nowhere, and only dials.
                while live.changed().await.is_ok() {}
                break;
            };
            if self.is_isolated() {
                connection.close(CloseCode::LEAVING, "this node is cut off on purpose");
                continue;
            }
            let part = if self.is_peer(connection.fingerprint()) {
                Part::Replica
            } else {
                // Own key or the witness's: it may ask for the status.
                Part::Witness
            };
            self.watch(Linked { id: self.number(), part, connection, lease: self.lease });
        }
        self.endpoint.shutdown("the replica has stopped").await;
    }

    /// Carries everything that arrives on a connection to the actor, until it is over.
    fn watch(self: &Arc<Self>, link: Linked) {
        let this = self.clone();
        let mut isolated = self.isolated.clone();
        tokio::spawn(async move {
            tokio::select! {
                Ok(_) = isolated.wait_for(|until| Clock.now() < *until) => {
                    link.connection.close(CloseCode::LEAVING, "this node is cut off on purpose");
                }
                error = this.serve(&link) => link.connection.close(CloseCode::MISBEHAVED, &error),
                () = this.hear(&link) => {}
                cause = link.connection.closed() => {
                    tracing::debug!(link = %link.id, "link is over: {cause}");
                }
            }
            this.send(Event::Down(link.id)).await;
        });
    }

    /// Requests on streams. What is wrong with the one that ends it.
    async fn serve(&self, link: &Linked) -> String {
        loop {
            let (bytes, responder) = match link.connection.next_request().await {
                Ok(request) => request,
                Err(error) => return error.to_string(),
            };
            let (from, request) = match wire::decode_request(&bytes) {
                Ok(decoded) => decoded,
                Err(wire::WireError::Version { .. }) => {
                    let (sender, _) = *self.shared.words.borrow();
                    let _ = responder.answer(&wire::encode_reply(&sender, &wire::versions())).await;
                    continue;
                }
                Err(error) => return error.to_string(),
            };
            if !self.may_speak(link.connection.fingerprint(), from.voter.node, &request) {
                return format!("this key does not speak as {} here", from.voter.node);
            }
            let answering = Answering::Stream(responder);
            self.send(Event::Asked { link: link.clone(), from, request, answering }).await;
        }
    }

    /// The peer's keys speak as the peer, and any pinned key may ask for the status.
    fn may_speak(&self, key: Fingerprint, node: NodeId, request: &Request) -> bool {
        *request == Request::Status || (node == self.other(Part::Replica).node && self.is_peer(key))
    }

    /// Datagrams: renewals and their answers.
    async fn hear(&self, link: &Linked) {
        loop {
            let bytes = match link.connection.next_datagram().await {
                Ok(bytes) => bytes,
                Err(LinkError::TooLongTheirs) => continue,
                Err(_) => return,
            };
            let event = match wire::decode_datagram(&bytes) {
                Ok(wire::Datagram::Request(from, request)) => {
                    if !self.may_speak(link.connection.fingerprint(), from.voter.node, &request) {
                        continue;
                    }
                    let answering = Answering::Datagram(link.connection.clone());
                    Event::Asked { link: link.clone(), from, request, answering }
                }
                Ok(wire::Datagram::Reply(from, reply)) => {
                    Event::Answered { link: link.id, part: link.part, from, reply }
                }
                Err(error) => {
                    tracing::debug!(link = %link.id, "a datagram was dropped: {error}");
                    continue;
                }
            };
            self.send(event).await;
        }
    }
}

/// Asks on a live link: renewals of the peer as datagrams, everything else on a stream of its own. A request that is not
/// answered in time ends the connection, so that another one is made.
pub(super) fn ask(link: Linked, sender: Sender, request: Request, events: mpsc::WeakSender<Event>) {
    if let (Request::Renew { .. }, Part::Replica) = (request, link.part) {
        let _ = link.connection.send_datagram(&wire::encode_datagram_request(&sender, &request));
        return;
    }
    tokio::spawn(async move {
        let connection = &link.connection;
        let asked = Clock.now();
        let bytes = wire::encode_request(&sender, &request);
        let reply = match timeout(patience(connection.rtt(), link.lease), connection.ask(&bytes)).await {
            Ok(Ok(bytes)) => wire::decode_reply(&bytes).map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer for {:?}", Clock.now().since(asked))),
        };
        match reply {
            Ok((from, reply)) => {
                if let Some(events) = events.upgrade() {
                    let event = Event::Answered { link: link.id, part: link.part, from, reply };
                    let _ = events.send(event).await;
                }
            }
            Err(why) => {
                tracing::debug!(link = %link.id, "request failed: {why}");
                connection.close(CloseCode::DONE, &why);
            }
        }
    });
}

/// Asks the peer about a name. What goes wrong with it is told to whoever asked, and says nothing about the link: but a
/// peer of a release that knows no names ends the link, and is left alone for a while.
pub(super) fn ask_name(
    link: Linked,
    sender: Sender,
    request: NameRequest,
    old_peer_until: Arc<AtomicU64>,
    to: oneshot::Sender<Result<NameReply, NameFault>>,
) {
    if Clock.now() < Moment(old_peer_until.load(Ordering::Acquire)) {
        let _ = to.send(Err(NameFault::OldPeer));
        return;
    }
    tokio::spawn(async move {
        let bytes = wire::encode_request(&sender, &Request::Name(request));
        // An answer that comes later than a lease lasts grants nothing.
        let answer = match timeout(NAME_LEASE_MAX, link.connection.ask(&bytes)).await {
            Err(_) => Err(NameFault::Unanswered("the leader does not answer in time".into())),
            Ok(Err(LinkError::Closed { code: CloseCode::MISBEHAVED, .. })) => {
                old_peer_until.store((Clock.now() + OLD_PEER_PAUSE).0, Ordering::Release);
                Err(NameFault::OldPeer)
            }
            Ok(Err(error)) => Err(NameFault::Unanswered(error.to_string())),
            Ok(Ok(bytes)) => match wire::decode_reply(&bytes) {
                Ok((_, Reply::Name(reply))) => Ok(reply),
                Ok((_, Reply::Refused(Refusal::NotServed) | Reply::Versions { .. })) => {
                    Err(NameFault::OldPeer)
                }
                Ok((_, Reply::Refused(refusal))) => Err(NameFault::Unanswered(refusal.to_string())),
                Ok((_, other)) => Err(NameFault::Unanswered(format!("it answers with {other:?}"))),
                Err(error) => Err(NameFault::Unanswered(error.to_string())),
            },
        };
        let _ = to.send(answer);
    });
}
