//! One cluster: the shipped voters of both replicas. They reach the witness over QUIC, each with a key, a socket and an
//! address of its own, and each other within this process. Their records are kept in memory, as on a disk that takes no
//! time, and there is no data to copy.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tiebreak::ids::{ClusterId, ClusterName, Incarnation, LinkId, NodeId, Position, Term};
use tiebreak::limits::{ASK_PATIENCE_MIN, REDIAL_MAX, REDIAL_MIN};
use tiebreak::message::{Hello, Kind, Part, Refusal, Reply, Request, Sender};
use tiebreak::testing::clock::{Clock, random_u128};
use tiebreak::testing::quic::{CloseCode, Connection, Endpoint, HostPort, Pins, Timing};
use tiebreak::testing::{Input, Replica, Right, RoleView, Rules, Settings, Step, View, wire};
use tiebreak::time::Moment;
use tiebreak::{Fingerprint, Identity};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const NODES: [&str; 2] = ["a", "b"];
/// How far the data of every replica reaches: there is none.
const POSITION: Position = Position(1);

/// The one witness.
#[derive(Clone)]
pub struct Target {
    pub node: NodeId,
    pub address: HostPort,
    pub key: Fingerprint,
    pub timing: Timing,
    pub lease: Duration,
}

/// What a pair shows to whoever measures. Moments are nanoseconds of the clock since boot, 0 for not yet.
#[derive(Default)]
pub struct Seen {
    /// When each replica was greeted by the witness, if the link is up.
    pub linked: [AtomicU64; 2],
    /// When the first vote or pre-vote was asked of the witness since the last reset.
    pub asked: AtomicU64,
    /// When the witness voted.
    pub voted: AtomicU64,
    /// When a replica went on alone.
    pub alone: AtomicU64,
    pub paired: AtomicBool,
    /// The term of whoever acts, 0 if nobody does.
    pub acts: AtomicU64,
}

impl Seen {
    pub fn is_linked(&self) -> bool {
        self.linked.iter().all(|at| at.load(Relaxed) != 0)
    }
}

#[derive(Debug)]
pub enum Order {
    /// The replica that leads falls silent.
    LoseLeader,
    /// This replica's connection to the witness is closed; it dials again.
    Reconnect(usize),
}

enum Event {
    Ordered(Order),
    Connected { side: usize, connection: Connection },
    Greeted { side: usize, link: LinkId, connection: Connection, from: Sender, hello: Hello },
    NotGreeted { side: usize, life: Incarnation, by: tiebreak::ids::VoterId, refusal: Refusal },
    Answered { side: usize, link: LinkId, from: Sender, reply: Reply },
    Down { side: usize, connection: Connection },
}

/// One replica.
struct Side {
    voter: Replica,
    witness: Option<(LinkId, Connection)>,
    dialling: JoinHandle<()>,
    /// The term of the offer that was taken up last.
    joins: Term,
}

pub struct Pair {
    sides: [Option<Side>; 2],
    /// Fell silent: it keeps its connection and says nothing on it.
    silent: Option<Side>,
    queue: mpsc::UnboundedReceiver<Event>,
    events: mpsc::UnboundedSender<Event>,
    target: Target,
    seen: Arc<Seen>,
    links: u64,
}

/// How the program reaches a pair.
pub struct Handle {
    events: mpsc::UnboundedSender<Event>,
    pub seen: Arc<Seen>,
}

impl Handle {
    pub fn order(&self, order: Order) {
        let _ = self.events.send(Event::Ordered(order));
    }
}

/// Founds a cluster and runs it.
pub fn start(
    name: ClusterName,
    keys: &[Identity; 2],
    from: [SocketAddr; 2],
    target: &Target,
) -> Result<Handle, tiebreak::BindError> {
    let (events, queue) = mpsc::unbounded_channel();
    let seen = Arc::new(Seen::default());
    let mut sides = [None, None];
    for side in 0..2 {
        let node = NODES[side].parse().expect("a name");
        let life = Incarnation(random_u128());
        let record = if side == 0 {
            Replica::init(node, name, Kind::Replicated, life, ClusterId(random_u128()))
        } else {
            Replica::blank(node, name, Kind::Replicated, life)
        };
        let settings = Settings::for_lease(target.lease);
        let (voter, _) = Replica::start(Clock.now(), record, POSITION, settings, random_u128(), Rules::KEPT);
        let endpoint = Endpoint::bind(&keys[side], &[from[side]], Pins::default(), target.timing)?;
        let dialling = tokio::spawn(keep_dialled(endpoint, target.clone(), side, events.clone()));
        sides[side] = Some(Side { voter, witness: None, dialling, joins: Term::ZERO });
    }
    let pair = Pair {
        sides,
        silent: None,
        queue,
        events: events.clone(),
        target: target.clone(),
        seen: seen.clone(),
        links: 0,
    };
    tokio::spawn(pair.run());
    Ok(Handle { events, seen })
}

/// A connection to the witness whenever there is none, with growing pauses.
async fn keep_dialled(endpoint: Endpoint, target: Target, side: usize, events: mpsc::UnboundedSender<Event>) {
    let mut pause = REDIAL_MIN;
    loop {
        let began = Clock.now();
        if let Ok(connection) = endpoint.dial(std::slice::from_ref(&target.address), &[target.key]).await {
            let _ = events.send(Event::Connected { side, connection: connection.clone() });
            connection.closed().await;
            if events.send(Event::Down { side, connection }).is_err() {
                return;
            }
        }
        if Clock.now().since(began) > REDIAL_MAX {
            pause = REDIAL_MIN;
        }
        Clock.after(pause).await;
        pause = (pause * 2).min(REDIAL_MAX);
    }
}

impl Pair {
    async fn run(mut self) {
        self.greet_peer();
        loop {
            let now = Clock.now();
            let wakes = self.sides.iter().flatten().map(|side| side.voter.wake_at(now));
            let wake = wakes.min().unwrap_or(Moment::FOREVER);
            tokio::select! {
                biased;
                event = self.queue.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = Clock.until(wake) => {
                    self.give(0, Input::Tick);
                    self.give(1, Input::Tick);
                }
            }
        }
    }

    fn link(&mut self) -> LinkId {
        self.links += 1;
        LinkId(self.links)
    }

    /// The first replica dials the second.
    fn greet_peer(&mut self) {
        let link = self.link();
        let Some(dials) = &self.sides[0] else { return };
        let ballot = dials.voter.ballot();
        let hello = Hello { nonce: link.0, ..ballot.hello(Part::Replica) };
        let (from, request) = (ballot.sender(), Request::Hello(hello));
        self.give(1, Input::Asked { link, from, request });
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Ordered(Order::LoseLeader) => self.lose_leader(),
            Event::Ordered(Order::Reconnect(side)) => {
                if let Some(Side { witness: Some((_, connection)), .. }) = &self.sides[side] {
                    connection.close(CloseCode::DONE, "dials again");
                }
            }
            Event::Connected { side, connection } => self.greet_witness(side, connection),
            Event::Greeted { side, link, connection, from, hello } => {
                if let Some(known) = &mut self.sides[side] {
                    known.witness = Some((link, connection));
                    self.seen.linked[side].store(Clock.now().0, Relaxed);
                    let reply = Reply::Hello(hello);
                    self.give(side, Input::Answered { link, part: Part::Witness, from, reply });
                }
            }
            Event::NotGreeted { side, life, by, refusal } => {
                self.give(side, Input::NotGreeted { life, part: Part::Witness, by, refusal });
            }
            Event::Answered { side, link, from, reply } => {
                if matches!(reply, Reply::Voted { .. }) {
                    first(&self.seen.voted);
                }
                self.give(side, Input::Answered { link, part: Part::Witness, from, reply });
            }
            Event::Down { side, connection } => {
                let Some(known) = &mut self.sides[side] else { return };
                if let Some((link, _)) = known.witness.take_if(|(_, live)| live.is_same(&connection)) {
                    self.seen.linked[side].store(0, Relaxed);
                    self.give(side, Input::LinkDown(link));
                }
            }
        }
    }

    fn lose_leader(&mut self) {
        let leads = |side: &Option<Side>| {
            side.as_ref()
                .is_some_and(|side| matches!(side.voter.view(Clock.now()).role, RoleView::Leader { .. }))
        };
        let Some(leader) = self.sides.iter().position(leads) else { return };
        self.silent = self.sides[leader].take();
        if let Some(silent) = &self.silent {
            silent.dialling.abort();
        }
        let heir = 1 - leader;
        let link = self.sides[heir].as_ref().and_then(|heir| heir.voter.ballot().peer().map(|link| link.id));
        if let Some(link) = link {
            self.give(heir, Input::LinkDown(link));
        }
    }

    fn greet_witness(&mut self, side: usize, connection: Connection) {
        let link = self.link();
        let Some(known) = &self.sides[side] else { return };
        let ballot = known.voter.ballot();
        let (sender, events, expected) = (ballot.sender(), self.events.clone(), self.target.node);
        let hello = Hello { nonce: link.0, ..ballot.hello(Part::Witness) };
        let bytes = wire::encode_request(&sender, &Request::Hello(hello));
        tokio::spawn(async move {
            let answer = timeout(ASK_PATIENCE_MIN, connection.ask(&bytes)).await;
            let decoded = answer.ok().and_then(Result::ok).and_then(|bytes| wire::decode_reply(&bytes).ok());
            let event = match decoded {
                Some((from, Reply::Hello(hello))) if from.voter.node == expected => {
                    Event::Greeted { side, link, connection, from, hello }
                }
                Some((from, Reply::Refused(refusal))) => {
                    let (life, by) = (sender.voter.incarnation, from.voter);
                    connection.close(CloseCode::DONE, "refused");
                    Event::NotGreeted { side, life, by, refusal }
                }
                _ => return connection.close(CloseCode::DONE, "it does not answer the greeting"),
            };
            let _ = events.send(event);
        });
    }

    /// Hands a voter an input, and everything that follows from it within the pair.
    fn give(&mut self, side: usize, input: Input) {
        let mut waiting = VecDeque::from([(side, input)]);
        while let Some((side, input)) = waiting.pop_front() {
            let Some(known) = self.sides[side].as_mut() else { continue };
            let asked_on = if let Input::Asked { link, .. } = &input { Some(*link) } else { None };
            let Step { outputs, .. } = known.voter.handle(Clock.now(), input);
            let (from, peer) = (outputs.sender, 1 - side);
            if let (Some(link), Some(reply)) = (asked_on, outputs.answer) {
                waiting.push_back((peer, Input::Answered { link, part: Part::Replica, from, reply }));
            }
            for ask in outputs.asks {
                let (link, request) = (ask.link, ask.request);
                match ask.part {
                    Part::Replica => waiting.push_back((peer, Input::Asked { link, from, request })),
                    Part::Witness => self.ask_witness(side, link, from, request),
                }
            }
            waiting.extend(self.data(side, &outputs.view).into_iter().map(|input| (side, input)));
            self.show(&outputs.view);
        }
    }

    fn ask_witness(&self, side: usize, link: LinkId, sender: Sender, request: Request) {
        let Some(Side { witness: Some((live, connection)), .. }) = &self.sides[side] else { return };
        if *live != link {
            return;
        }
        if matches!(request, Request::PreVote(_) | Request::Vote(_)) {
            first(&self.seen.asked);
        }
        let (connection, events) = (connection.clone(), self.events.clone());
        tokio::spawn(async move {
            let bytes = wire::encode_request(&sender, &request);
            let answer = timeout(ASK_PATIENCE_MIN, connection.ask(&bytes)).await;
            match answer.ok().and_then(Result::ok).and_then(|bytes| wire::decode_reply(&bytes).ok()) {
                Some((from, reply)) => drop(events.send(Event::Answered { side, link, from, reply })),
                None => connection.close(CloseCode::DONE, "no answer"),
            }
        });
    }

    /// A data layer without data offers and joins at once.
    fn data(&mut self, side: usize, view: &View) -> Option<Input> {
        match view.role {
            RoleView::Leader { right, may_offer: true, offered: None, .. } if right != Right::Paired => {
                Some(Input::Offer(POSITION))
            }
            RoleView::Follower { offer: Some(offer), joined: false, .. } => {
                let known = self.sides[side].as_mut()?;
                let is_new = std::mem::replace(&mut known.joins, offer.term) != offer.term;
                is_new.then_some(Input::Join(offer.term))
            }
            _ => None,
        }
    }

    fn show(&self, view: &View) {
        let Some((token, right, acts)) = view.authority() else { return };
        self.seen.paired.store(right == Right::Paired, Relaxed);
        self.seen.acts.store(if acts.is_some() { u64::from(token.term().0) } else { 0 }, Relaxed);
        if right == Right::Solo {
            first(&self.seen.alone);
        }
    }
}

/// Notes that it happened now, if it is the first time.
fn first(at: &AtomicU64) {
    let _ = at.compare_exchange(0, Clock.now().0, Relaxed, Relaxed);
}
