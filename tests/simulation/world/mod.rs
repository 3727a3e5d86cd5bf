//! A world in virtual time for the shipped voters: two replicas with a small data layer, one witness (and, for the
//! scenarios that replace it, a second one), disks, clocks and a network.
//!
//! Nothing in here reads a clock or draws randomness of its own: the same seed makes the same run. The world plays
//! the part of the shell: it opens links, syncs records before anything leaves, and shows views to the data layer.

pub(crate) mod data;
pub(crate) mod dice;
pub(crate) mod net;
pub(crate) mod oracle;
pub(crate) mod talk;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tiebreak::ids::{ClusterId, Incarnation, NodeId, Term, VoterId};
use tiebreak::message::{
    Adoption, Hello, Kind, Part, Record, ReplicaRecord, Reply, Request, Sender, Standing, WitnessRecord, Word,
};
use tiebreak::testing::{
    Ask, Call, Input, Replica, RoleView, Rule, Rules, Settings, View, Witness, WitnessSettings,
};
use tiebreak::time::Moment;

use data::{Act, Body, Data, Entry};
use dice::Dice;
use net::{Connection, Edge, Packet, link};
use oracle::{Oracle, Shown};

/// Nanoseconds in a millisecond: true time is counted in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// The first replica in the order of names; it dials the second.
pub(crate) const A: usize = 0;
/// The second replica.
pub(crate) const B: usize = 1;
/// The witness.
pub(crate) const W: usize = 2;
/// Another witness, blank, which some scenarios put in the place of the first.
pub(crate) const V: usize = 3;

const NAMES: [&str; 4] = ["a", "b", "w", "w"];

/// What of a world does not change while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) rules: Rules,
    pub(crate) edge: Edge,
    /// A sync of a vote takes up to this long.
    pub(crate) record_sync: (u64, u64),
    /// A sync of data takes up to this long.
    pub(crate) data_sync: (u64, u64),
    /// A lost stream packet is repeated after this.
    pub(crate) repeat_after: u64,
    /// A connection over a cut edge is given up after this.
    pub(crate) idle: u64,
    pub(crate) redial: (u64, u64),
    /// A message of a connection that is over arrives nevertheless.
    pub(crate) late_per_mille: u64,
    /// Data layers look around this often.
    pub(crate) beat: u64,
    /// Chance of a write, per replica and beat.
    pub(crate) write_per_mille: u64,
    /// The rate error of each clock, in parts per million.
    pub(crate) rates_ppm: [i64; 4],
}

impl Plan {
    /// A quiet network and quick disks.
    pub(crate) fn calm(lease: Duration) -> Plan {
        Plan {
            settings: Settings::for_lease(lease),
            rules: Rules::KEPT,
            edge: Edge { low: MS, high: MS, loss_per_mille: 0, twice_per_mille: 0, cut: false, cuts: 0 },
            record_sync: (MS, MS),
            data_sync: (MS, MS),
            repeat_after: 50 * MS,
            idle: 1500 * MS,
            redial: (100 * MS, 100 * MS),
            late_per_mille: 0,
            beat: 25 * MS,
            write_per_mille: 0,
            rates_ppm: [0; 4],
        }
    }
}

/// How the world begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Birth {
    /// `init` on A; B and the witness are blank.
    New,
    /// All three are members; neither replica leads.
    Mature,
}

/// What waits for a process.
#[derive(Clone, Debug)]
enum Work {
    Input(Input),
    Requested { connection: usize, sender: Sender, request: Request },
    Data { connection: usize, term: Term, body: Body },
    SayHello { connection: usize },
}

/// What leaves a process once its record is durable.
#[derive(Clone, Debug)]
struct Release {
    sender: Sender,
    answer: Option<(usize, Reply)>,
    asks: Vec<Ask>,
    hello: Option<(usize, Hello)>,
    view: Option<View>,
    command: Option<(Input, Result<(), tiebreak::message::Refusal>)>,
}

#[derive(Clone, Debug)]
enum Voter {
    Off,
    Replica(Box<Replica>),
    Witness(Box<Witness>),
}

/// One machine.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) disk: Record,
    origin: u64,
    rate_ppm: i64,
    pub(crate) run: u64,
    pub(crate) up: bool,
    pub(crate) paused: bool,
    voter: Voter,
    queue: VecDeque<Work>,
    syncing: Option<Record>,
    held: Vec<Release>,
    pub(crate) shown: Option<View>,
    pub(crate) data: Data,
    wake: u64,
    data_run: u64,
    /// Which witness this replica dials.
    pub(crate) witness: usize,
}

impl Node {
    /// What its own clock shows at a true time.
    pub(crate) fn clock(&self, at: u64) -> Moment {
        let drift = i128::from(at) * i128::from(self.rate_ppm) / 1_000_000;
        let shown = i128::from(at) + i128::from(self.origin) + drift;
        Moment(u64::try_from(shown).expect("clocks start above zero"))
    }

    /// The true time at which its clock shows this.
    fn when(&self, moment: Moment) -> u64 {
        let span = i128::from(moment.0) - i128::from(self.origin);
        let at = span * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm)) + 1;
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    pub(crate) fn replica(&self) -> Option<&Replica> {
        match &self.voter {
            Voter::Replica(replica) => Some(replica),
            _ => None,
        }
    }

    pub(crate) fn id(&self) -> VoterId {
        match &self.disk {
            Record::Replica(r) => VoterId { node: r.node, incarnation: r.incarnation },
            Record::Witness(w) => VoterId { node: w.node, incarnation: w.incarnation },
            Record::Gate(_) => unreachable!("no gates here"),
        }
    }

    pub(crate) fn replica_record(&self) -> &ReplicaRecord {
        match &self.disk {
            Record::Replica(record) => record,
            _ => unreachable!("asked of a replica only"),
        }
    }

    pub(crate) fn witness_record(&self) -> &WitnessRecord {
        match &self.disk {
            Record::Witness(record) => record,
            _ => unreachable!("asked of a witness only"),
        }
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Arrive { connection: usize, to: usize, packet: usize },
    Repeat { connection: usize, from: usize, packet: usize },
    RecordSynced { node: usize, run: u64 },
    DataSynced { node: usize, run: u64, data_run: u64, upto: usize },
    Wake { node: usize, run: u64, at: u64 },
    Dial { from: usize, to: usize, run: u64 },
    Lost { node: usize, connection: usize },
    Idle { from: usize, to: usize, cuts: u64 },
    Beat,
}

/// Holds a packet back until it is let go.
pub(crate) type Hold = fn(from: usize, to: usize, packet: &Packet) -> bool;

/// The whole of it.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    pub(crate) dice: Dice,
    pub(crate) nodes: Vec<Node>,
    pub(crate) edges: [[Edge; 4]; 4],
    pub(crate) connections: Vec<Connection>,
    packets: Vec<Option<Packet>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    pub(crate) steps: u64,
    hasher: DefaultHasher,
    pub(crate) oracle: Oracle,
    pub(crate) violation: Option<String>,
    pub(crate) transcript: Option<talk::Transcript>,
    pub(crate) hold: Option<Hold>,
    pub(crate) held_back: Vec<(usize, usize, Packet)>,
    next_value: u32,
    /// Disks that were lost.
    pub(crate) lives: u32,
}

// Making one.
impl World {
    pub(crate) fn new(seed: u64, plan: Plan, birth: Birth) -> World {
        let mut dice = Dice::new(seed);
        let cluster = ClusterId(dice.wide());
        let lives: Vec<Incarnation> = (0..4).map(|_| Incarnation(dice.wide())).collect();
        let records = birth_records(birth, cluster, &lives, &plan);
        let nodes = records
            .into_iter()
            .enumerate()
            .map(|(index, disk)| Node {
                disk,
                origin: 1_000_000 * MS + dice.between(0, 1000) * 1_000_000 * MS,
                rate_ppm: plan.rates_ppm[index],
                run: 0,
                up: false,
                paused: false,
                voter: Voter::Off,
                queue: VecDeque::new(),
                syncing: None,
                held: Vec::new(),
                shown: None,
                data: birth_data(birth, index),
                wake: u64::MAX,
                data_run: 0,
                witness: W,
            })
            .collect();
        let nobody = VoterId { node: NAMES[A].parse().expect("a valid name"), incarnation: Incarnation::NIL };
        let mut world = World {
            edges: [[plan.edge; 4]; 4],
            plan,
            now: 0,
            dice,
            nodes,
            // Links are numbered from one.
            connections: vec![Connection {
                ends: [0; 2],
                runs: [u64::MAX; 2],
                lives: [nobody; 2],
                closed: [true; 2],
                broken: true,
                greeted: false,
                ungreeted: Vec::new(),
                sent: [0; 2],
                read: [0; 2],
                early: Default::default(),
            }],
            packets: Vec::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            steps: 0,
            hasher: DefaultHasher::new(),
            oracle: Oracle::default(),
            violation: None,
            transcript: None,
            hold: None,
            held_back: Vec::new(),
            next_value: 0,
            lives: 0,
        };
        world.at(world.plan.beat, Event::Beat);
        world
    }

    /// A number that stands for everything that has happened.
    pub(crate) fn trace(&self) -> u64 {
        self.hasher.finish()
    }
}

fn birth_records(birth: Birth, cluster: ClusterId, lives: &[Incarnation], plan: &Plan) -> Vec<Record> {
    let name = "demo".parse().expect("a valid name");
    let kind = Kind::Replicated;
    let node = |index: usize| -> NodeId { NAMES[index].parse().expect("a valid name") };
    let blank_witness = |index: usize| Witness::blank(node(index), name, lives[index]);
    let blank = |index: usize| Replica::blank(node(index), name, kind, lives[index]);
    let (a, b, w) = match birth {
        Birth::New => (Replica::init(node(A), name, kind, lives[A], cluster), blank(B), blank_witness(W)),
        Birth::Mature => {
            // As after a first term that both have joined.
            let first = Term(1);
            let leader = VoterId { node: node(A), incarnation: lives[A] };
            let member = |index: usize| ReplicaRecord {
                cluster,
                standing: Standing::Member,
                term: first,
                voted_for: Some(leader),
                holds: first,
                adoption: Adoption { term: first, ordinal: 0, incarnation: lives[W] },
                longest_lease: tiebreak::time::Millis::ceil(plan.settings.lease),
                ..blank(index)
            };
            let witness = WitnessRecord {
                cluster,
                standing: Standing::Member,
                promised: Word { term: first, to: Some(leader) },
                confirmed: Word { term: Term(0), to: Some(leader) },
                ..blank_witness(W)
            };
            (member(A), member(B), witness)
        }
    };
    vec![Record::Replica(a), Record::Replica(b), Record::Witness(w), Record::Witness(blank_witness(V))]
}

fn birth_data(birth: Birth, index: usize) -> Data {
    let mut data = Data::default();
    if birth == Birth::New && index == A {
        data.log = vec![Entry { term: Term(1), value: 0 }];
        data.durable = 1;
    }
    data.after_crash()
}

// Faults and commands.
impl World {
    pub(crate) fn start(&mut self, node: usize) {
        if self.nodes[node].up {
            return;
        }
        let plan_settings = self.plan.settings;
        let rules = self.plan.rules;
        let now = self.now;
        let n = &mut self.nodes[node];
        n.up = true;
        n.paused = false;
        n.run += 1;
        n.wake = u64::MAX;
        let local = n.clock(now);
        self.note(node, "starts");
        let seed = self.dice.wide();
        let n = &mut self.nodes[node];
        match n.disk {
            Record::Replica(found) => {
                let (replica, step) =
                    Replica::start(local, found, n.data.position(), plan_settings, seed, rules);
                n.voter = Voter::Replica(Box::new(replica));
                let release = Release {
                    sender: step.outputs.sender,
                    answer: None,
                    asks: step.outputs.asks,
                    hello: None,
                    view: Some(step.outputs.view),
                    command: None,
                };
                self.settle(node, step.record.map(Record::Replica), vec![release]);
            }
            Record::Witness(found) => {
                let (witness, record) = Witness::start(local, found, WitnessSettings::default(), rules);
                n.voter = Voter::Witness(Box::new(witness));
                self.settle(node, Some(Record::Witness(record)), Vec::new());
            }
            Record::Gate(_) => {}
        }
        let run = self.nodes[node].run;
        if node == A {
            self.at(MS, Event::Dial { from: A, to: B, run });
        }
        if node == A || node == B {
            let to = self.nodes[node].witness;
            self.at(MS, Event::Dial { from: node, to, run });
        }
    }

    pub(crate) fn crash(&mut self, node: usize) {
        if !self.nodes[node].up {
            return;
        }
        // A sync that was under way may have reached the disk.
        let reached = self.dice.per_mille(500);
        let n = &mut self.nodes[node];
        if let (Some(record), true) = (n.syncing.take(), reached) {
            self.write_disk(node, record);
        }
        self.note(node, "dies");
        let n = &mut self.nodes[node];
        n.up = false;
        n.paused = false;
        n.run += 1;
        n.voter = Voter::Off;
        n.queue.clear();
        n.held.clear();
        n.syncing = None;
        n.shown = None;
        n.data = n.data.after_crash();
        n.data_run += 1;
        for connection in 0..self.connections.len() {
            let c = &self.connections[connection];
            if c.ends.contains(&node) && !c.broken {
                self.break_connection(connection);
            }
        }
    }

    pub(crate) fn pause(&mut self, node: usize) {
        if self.nodes[node].up && !self.nodes[node].paused {
            self.note(node, "is stopped (its clock goes on)");
            self.nodes[node].paused = true;
        }
    }

    pub(crate) fn resume(&mut self, node: usize) {
        if self.nodes[node].up && self.nodes[node].paused {
            self.note(node, "continues");
            self.nodes[node].paused = false;
            self.nodes[node].queue.push_back(Work::Input(Input::Tick));
            self.work(node);
        }
    }

    /// Cuts one direction.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        let edge = &mut self.edges[from][to];
        if !edge.cut {
            edge.cut = true;
            edge.cuts += 1;
            let cuts = edge.cuts;
            let patience = self.dice.between(self.plan.idle / 2, self.plan.idle);
            self.at(patience, Event::Idle { from, to, cuts });
        }
    }

    pub(crate) fn cut_both(&mut self, one: usize, other: usize) {
        self.cut(one, other);
        self.cut(other, one);
    }

    pub(crate) fn heal(&mut self, from: usize, to: usize) {
        self.edges[from][to].cut = false;
    }

    pub(crate) fn heal_both(&mut self, one: usize, other: usize) {
        self.heal(one, other);
        self.heal(other, one);
    }

    /// The disk of a node that is down is replaced by an empty one.
    pub(crate) fn lose_disk(&mut self, node: usize) {
        assert!(!self.nodes[node].up, "only a dead node loses its disk");
        let life = Incarnation(self.dice.wide());
        let n = &mut self.nodes[node];
        n.disk = match &n.disk {
            Record::Replica(r) => Record::Replica(Replica::blank(r.node, r.name, r.kind, life)),
            Record::Witness(w) => Record::Witness(Witness::blank(w.node, w.name, life)),
            Record::Gate(gate) => Record::Gate(*gate),
        };
        n.data = Data::default();
        self.lives += 1;
        self.note(node, "lost its disk");
    }

    /// A replica dials another witness from now on.
    pub(crate) fn use_witness(&mut self, node: usize, witness: usize) {
        self.nodes[node].witness = witness;
        for connection in 0..self.connections.len() {
            let c = &self.connections[connection];
            if c.ends[0] == node && c.ends[1] >= W && !c.broken {
                self.break_connection(connection);
            }
        }
    }

    pub(crate) fn command(&mut self, node: usize, input: Input) {
        if self.nodes[node].up {
            self.nodes[node].queue.push_back(Work::Input(input));
            self.work(node);
        }
    }

    /// A client writes; whether it was accepted.
    pub(crate) fn write(&mut self, node: usize) -> bool {
        let now = self.now;
        let n = &mut self.nodes[node];
        let (true, false, Some(view)) = (n.up, n.paused, n.shown) else {
            return false;
        };
        self.next_value += 1;
        let accepted = n.data.write(&view, n.clock(now), self.next_value);
        self.drain(node);
        self.work(node);
        accepted
    }

    pub(crate) fn break_link(&mut self, one: usize, other: usize) {
        for connection in 0..self.connections.len() {
            let c = &self.connections[connection];
            if !c.broken && c.ends.contains(&one) && c.ends.contains(&other) {
                self.break_connection(connection);
            }
        }
    }

    fn break_connection(&mut self, connection: usize) {
        self.connections[connection].broken = true;
        for node in self.connections[connection].ends {
            let delay = self.dice.between(MS, self.plan.redial.1);
            self.at(delay, Event::Lost { node, connection });
        }
    }

    /// Lets what was held back arrive now.
    pub(crate) fn let_go(&mut self) {
        for (connection, to, packet) in std::mem::take(&mut self.held_back) {
            self.arrive(connection, to, packet);
        }
    }
}

// Time.
impl World {
    fn at(&mut self, delay: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((self.now + delay, self.scheduled, event)));
    }

    pub(crate) fn run_for(&mut self, span: u64) {
        self.run_until(self.now + span);
    }

    pub(crate) fn run_until(&mut self, end: u64) {
        while self.violation.is_none() {
            match self.events.peek() {
                Some(Reverse((at, _, _))) if *at <= end => self.step(),
                _ => break,
            }
        }
        self.now = self.now.max(end);
    }

    /// Runs until the condition holds; whether it did within the span.
    pub(crate) fn run_while(&mut self, span: u64, mut not_yet: impl FnMut(&World) -> bool) -> bool {
        let end = self.now + span;
        while not_yet(self) {
            match self.events.peek() {
                Some(Reverse((at, _, _))) if *at <= end && self.violation.is_none() => self.step(),
                _ => {
                    self.now = self.now.max(end);
                    return false;
                }
            }
        }
        true
    }

    fn step(&mut self) {
        let Some(Reverse((at, _, event))) = self.events.pop() else {
            return;
        };
        self.now = at;
        self.steps += 1;
        at.hash(&mut self.hasher);
        match event {
            Event::Arrive { connection, to, packet } => {
                if let Some(packet) = self.packets[packet].take() {
                    self.arrive(connection, to, packet);
                }
            }
            Event::Repeat { connection, from, packet } => {
                if let Some(packet) = self.packets[packet].take() {
                    self.send(connection, from, packet);
                }
            }
            Event::RecordSynced { node, run } => {
                if self.nodes[node].run == run {
                    self.record_synced(node);
                }
            }
            Event::DataSynced { node, run, data_run, upto } => {
                let n = &mut self.nodes[node];
                if n.run == run && n.data_run == data_run {
                    let input = n.data.synced(upto);
                    n.queue.push_back(Work::Input(input));
                    self.work(node);
                }
            }
            Event::Wake { node, run, at } => {
                let n = &mut self.nodes[node];
                if n.run == run && n.wake == at {
                    n.wake = u64::MAX;
                    n.queue.push_back(Work::Input(Input::Tick));
                    self.work(node);
                }
            }
            Event::Dial { from, to, run } => self.dial(from, to, run),
            Event::Lost { node, connection } => self.lost(node, connection),
            Event::Idle { from, to, cuts } => {
                let edge = self.edges[from][to];
                if edge.cut && edge.cuts == cuts {
                    self.break_link(from, to);
                    let patience = self.plan.idle;
                    self.at(patience, Event::Idle { from, to, cuts });
                }
            }
            Event::Beat => self.beat(),
        }
        self.look();
    }

    fn beat(&mut self) {
        for node in [A, B] {
            let chance = self.plan.write_per_mille;
            if self.dice.per_mille(chance) {
                self.write(node);
            } else {
                self.drain(node);
            }
            if !self.nodes[node].queue.is_empty() {
                self.work(node);
            }
        }
        let beat = self.plan.beat;
        self.at(beat, Event::Beat);
    }

    pub(crate) fn fail(&mut self, verdict: Result<(), String>) {
        if let (Err(why), None) = (verdict, &self.violation) {
            let seconds = self.now as f64 / 1e9;
            self.violation = Some(format!("at {seconds:.3}s: {why}"));
        }
    }

    fn look(&mut self) {
        let mut oracle = std::mem::take(&mut self.oracle);
        let shown: Vec<Shown<'_>> = [A, B].into_iter().filter_map(|node| self.shown(node)).collect();
        let verdict = oracle.look(&shown);
        drop(shown);
        self.oracle = oracle;
        self.fail(verdict);
    }

    /// What a replica may do at this instant, as the world outside sees it.
    pub(crate) fn shown(&self, node: usize) -> Option<Shown<'_>> {
        let n = &self.nodes[node];
        let view = n.shown.as_ref().filter(|_| n.up)?;
        let mut acts = None;
        let mut reads = None;
        if let Some((token, _, Some(until))) = view.authority()
            && n.clock(self.now) < until
        {
            acts = Some(token);
            reads = n.data.reads(token.term()).then_some(n.data.commit);
        }
        Some(Shown {
            name: NAMES[node],
            node,
            run: n.run,
            view,
            log: &n.data.log[..n.data.durable],
            reads,
            frozen: n.data.frozen,
            acts,
        })
    }
}

// The network.
impl World {
    fn dial(&mut self, from: usize, to: usize, run: u64) {
        let n = &self.nodes[from];
        let wanted = to == B || n.witness == to;
        if n.run != run || !wanted {
            return;
        }
        let open = self.edges[from][to].cut || self.edges[to][from].cut || !self.nodes[to].up;
        if open || n.paused {
            let pause = self.dice.between(self.plan.redial.0, self.plan.redial.1);
            self.at(pause, Event::Dial { from, to, run });
            return;
        }
        let connection = self.connections.len();
        self.connections.push(Connection {
            ends: [from, to],
            runs: [run, self.nodes[to].run],
            lives: [self.nodes[from].id(), self.nodes[to].id()],
            closed: [false; 2],
            broken: false,
            greeted: false,
            ungreeted: Vec::new(),
            sent: [0; 2],
            read: [0; 2],
            early: Default::default(),
        });
        self.nodes[from].queue.push_back(Work::SayHello { connection });
        self.work(from);
    }

    fn lost(&mut self, node: usize, connection: usize) {
        let c = &mut self.connections[connection];
        let end = c.end(node);
        let (run, dialled, to) = (c.runs[end], end == 0, c.ends[1]);
        if c.closed[end] || self.nodes[node].run != run {
            return;
        }
        c.closed[end] = true;
        if node < W {
            self.nodes[node].queue.push_back(Work::Input(Input::LinkDown(link(connection))));
            self.work(node);
        }
        if dialled {
            let to = if to >= W { self.nodes[node].witness } else { to };
            let pause = self.dice.between(self.plan.redial.0, self.plan.redial.1);
            self.at(pause, Event::Dial { from: node, to, run });
        }
    }

    fn send(&mut self, connection: usize, from: usize, packet: Packet) {
        let c = &self.connections[connection];
        let to = c.other(from);
        if c.broken || c.closed[c.end(from)] || c.runs[c.end(from)] != self.nodes[from].run {
            return;
        }
        if self.hold.is_some_and(|hold| hold(from, to, &packet)) {
            self.held_back.push((connection, to, packet));
            return;
        }
        let edge = self.edges[from][to];
        let place = self.packets.len();
        if edge.cut || self.dice.per_mille(edge.loss_per_mille) {
            if !packet.is_datagram() {
                self.packets.push(Some(packet));
                let after = self.plan.repeat_after;
                self.at(after, Event::Repeat { connection, from, packet: place });
            }
            return;
        }
        let delay = self.dice.between(edge.low, edge.high);
        if self.dice.per_mille(edge.twice_per_mille) {
            let again = self.dice.between(edge.low, edge.high * 4);
            self.packets.push(Some(packet.clone()));
            self.at(again, Event::Arrive { connection, to, packet: place });
        }
        let place = self.packets.len();
        self.packets.push(Some(packet));
        self.at(delay, Event::Arrive { connection, to, packet: place });
    }

    fn arrive(&mut self, connection: usize, to: usize, packet: Packet) {
        let c = &self.connections[connection];
        if c.runs[c.end(to)] != self.nodes[to].run || !self.nodes[to].up {
            return;
        }
        if c.broken && !self.dice.per_mille(self.plan.late_per_mille) {
            return;
        }
        // A link that is over is not opened again by a late greeting: that much the shell sees to.
        let greets = matches!(
            packet,
            Packet::Ask { request: Request::Hello(_), .. } | Packet::Answer { reply: Reply::Hello(_), .. }
        );
        if greets && c.closed[c.end(to)] {
            return;
        }
        if c.end(to) == 0 && !c.greeted && !c.broken {
            let c = &mut self.connections[connection];
            if !matches!(packet, Packet::Answer { reply: Reply::Hello(_) | Reply::Refused(_), .. }) {
                c.ungreeted.push(packet);
                return;
            }
            c.greeted = true;
            let early = std::mem::take(&mut c.ungreeted);
            if let Packet::Answer { sender, reply: Reply::Refused(refusal) } = packet {
                let by =
                    if self.connections[connection].other(to) >= W { Part::Witness } else { Part::Replica };
                let input = Input::NotGreeted { by, node: sender.voter.node, refusal };
                self.nodes[to].queue.push_back(Work::Input(input));
            } else {
                self.enqueue(connection, to, packet);
            }
            for packet in early {
                self.arrive(connection, to, packet);
            }
            self.work(to);
            return;
        }
        if let Packet::Data { number, .. } = &packet
            && !c.broken
        {
            let c = &mut self.connections[connection];
            let end = 1 - c.end(to);
            if *number < c.read[end] {
                return;
            }
            c.early[end].insert(*number, packet);
            while let Some(packet) = self.next_data(connection, end) {
                self.enqueue(connection, to, packet);
            }
        } else {
            self.enqueue(connection, to, packet);
        }
        self.work(to);
    }

    fn next_data(&mut self, connection: usize, end: usize) -> Option<Packet> {
        let c = &mut self.connections[connection];
        let packet = c.early[end].remove(&c.read[end])?;
        c.read[end] += 1;
        Some(packet)
    }

    fn enqueue(&mut self, connection: usize, to: usize, packet: Packet) {
        let c = &self.connections[connection];
        (to, &packet).hash(&mut self.hasher);
        let part = if c.other(to) >= W { Part::Witness } else { Part::Replica };
        let work = match packet {
            Packet::Ask { sender, request } if to >= W => Work::Requested { connection, sender, request },
            Packet::Ask { sender, request } => {
                Work::Input(Input::Asked { link: link(connection), from: sender, request })
            }
            Packet::Answer { sender, reply } => {
                Work::Input(Input::Answered { link: link(connection), part, from: sender, reply })
            }
            Packet::Data { term, body, .. } => Work::Data { connection, term, body },
        };
        self.nodes[to].queue.push_back(work);
    }

    /// For directed scripts: a message that nobody sent just now.
    pub(crate) fn forge(&mut self, connection: usize, to: usize, packet: Packet) {
        let (broken, late) = (self.connections[connection].broken, self.plan.late_per_mille);
        self.plan.late_per_mille = if broken { 1000 } else { late };
        self.arrive(connection, to, packet);
        self.plan.late_per_mille = late;
    }
}

// The shell of one process.
impl World {
    /// Handles what is queued, unless a sync is under way: that is waited for, and then everything that came
    /// meanwhile shares the next one.
    fn work(&mut self, node: usize) {
        let may_run = |n: &Node| n.up && !n.paused && n.syncing.is_none();
        while may_run(&self.nodes[node]) && !self.nodes[node].queue.is_empty() && self.violation.is_none() {
            let mut record = None;
            let mut releases = Vec::new();
            while let Some(work) = self.nodes[node].queue.pop_front() {
                let (changed, release) = self.handle(node, work);
                record = changed.or(record);
                releases.extend(release);
            }
            self.settle(node, record, releases);
        }
        self.schedule_wake(node);
    }

    fn handle(&mut self, node: usize, work: Work) -> (Option<Record>, Option<Release>) {
        let now = self.nodes[node].clock(self.now);
        let fresh = self.dice.wide();
        let n = &mut self.nodes[node];
        match (&mut n.voter, work) {
            (Voter::Witness(witness), Work::Requested { connection, sender, request }) => {
                let call = Call { link: link(connection), from: sender, request, fresh };
                let step = witness.handle(now, &call);
                let release = Release {
                    sender: step.sender,
                    answer: Some((connection, step.reply)),
                    asks: Vec::new(),
                    hello: None,
                    view: None,
                    command: None,
                };
                (step.record.map(Record::Witness), Some(release))
            }
            (Voter::Replica(replica), Work::SayHello { connection }) => {
                let part =
                    if self.connections[connection].other(node) >= W { Part::Witness } else { Part::Replica };
                let release = Release {
                    sender: replica.ballot().sender(),
                    answer: None,
                    asks: Vec::new(),
                    hello: Some((
                        connection,
                        Hello { nonce: connection as u64, ..replica.ballot().hello(part) },
                    )),
                    view: None,
                    command: None,
                };
                (None, Some(release))
            }
            (Voter::Replica(replica), Work::Input(input)) => {
                let asked_on = match &input {
                    Input::Asked { link, .. } => usize::try_from(link.0).ok(),
                    _ => None,
                };
                let command = is_command(&input).then(|| input.clone());
                let durable = if let Input::Durable(position) = &input { Some(*position) } else { None };
                let step = replica.handle(now, input);
                if let Some(position) = durable {
                    n.data.told_durable(position);
                }
                let view = step.outputs.view;
                if view.authority().is_none() && n.shown.is_some_and(|shown| shown.authority().is_some()) {
                    // A right that is lost is lost at once, before the record is written.
                    n.shown = Some(view);
                    self.drain(node);
                }
                let release = Release {
                    sender: step.outputs.sender,
                    answer: asked_on.zip(step.outputs.answer),
                    asks: step.outputs.asks,
                    hello: None,
                    view: Some(view),
                    command: command.map(|command| (command, step.outputs.taken)),
                };
                (step.record.map(Record::Replica), Some(release))
            }
            (Voter::Replica(_), Work::Data { connection, term, body }) => {
                if let Some(view) = n.shown {
                    let before = n.data.log.len();
                    n.data.hear(link(connection), term, &body, now, &view);
                    debug_assert!(n.data.log.len() >= before, "nothing is destroyed by a message");
                }
                self.drain(node);
                (None, None)
            }
            _ => (None, None),
        }
    }

    /// Syncs the record, if there is one, and then lets go of what it justifies.
    fn settle(&mut self, node: usize, record: Option<Record>, releases: Vec<Release>) {
        let Some(record) = record else {
            self.release(node, releases);
            return;
        };
        let n = &mut self.nodes[node];
        n.syncing = Some(record);
        let run = n.run;
        let delay = self.dice.between(self.plan.record_sync.0, self.plan.record_sync.1);
        self.at(delay, Event::RecordSynced { node, run });
        if self.plan.rules.keep(Rule::SyncBeforeReply) {
            self.nodes[node].held.extend(releases);
        } else {
            self.release(node, releases);
        }
    }

    fn write_disk(&mut self, node: usize, record: Record) {
        let verdict = Oracle::recorded(&self.nodes[node].disk, &record);
        self.nodes[node].disk = record;
        self.fail(verdict);
    }

    fn record_synced(&mut self, node: usize) {
        let Some(record) = self.nodes[node].syncing.take() else {
            return;
        };
        self.write_disk(node, record);
        let releases = std::mem::take(&mut self.nodes[node].held);
        self.release(node, releases);
        self.work(node);
    }

    fn release(&mut self, node: usize, releases: Vec<Release>) {
        let synced = self.plan.rules.keep(Rule::SyncBeforeReply);
        let mut show = None;
        for release in releases {
            show = release.view.or(show);
            let sender = release.sender;
            let life_at = |world: &World, connection: usize| {
                world.connections.get(connection).map(|c| c.lives[1 - c.end(node)])
            };
            if let Some((connection, reply)) = release.answer {
                let to = life_at(self, connection);
                if synced {
                    let verdict = Oracle::said(&self.nodes[node].disk, &sender, to, None, Some(&reply));
                    self.fail(verdict);
                }
                self.say(connection, node, Packet::Answer { sender, reply });
            }
            if let Some((connection, hello)) = release.hello {
                self.say(connection, node, Packet::Ask { sender, request: Request::Hello(hello) });
            }
            for ask in release.asks {
                let connection = usize::try_from(ask.link.0).expect("links are connections");
                if synced {
                    let to = life_at(self, connection);
                    let verdict = Oracle::said(&self.nodes[node].disk, &sender, to, Some(&ask.request), None);
                    self.fail(verdict);
                }
                self.say(connection, node, Packet::Ask { sender, request: ask.request });
            }
            if let Some((command, taken)) = release.command {
                self.answer_command(node, &command, taken);
            }
        }
        if let Some(view) = show {
            if synced {
                let verdict = Oracle::showed(NAMES[node], self.nodes[node].replica_record(), &view);
                self.fail(verdict);
            }
            self.show(node, view);
        }
    }

    fn say(&mut self, connection: usize, from: usize, packet: Packet) {
        if let Some(c) = self.connections.get(connection) {
            let to = c.other(from);
            let lost = self.edges[from][to].cut || c.broken || !self.nodes[to].up;
            if let Some(transcript) = &mut self.transcript {
                transcript.said(self.now, from, to, &packet, lost);
            }
            self.send(connection, from, packet);
        }
    }

    fn answer_command(
        &mut self,
        node: usize,
        command: &Input,
        taken: Result<(), tiebreak::message::Refusal>,
    ) {
        if let Some(transcript) = &mut self.transcript {
            transcript.commanded(self.now, node, command, taken);
        }
        let now = self.nodes[node].clock(self.now);
        let n = &mut self.nodes[node];
        if let Some(input) = n.data.taken(command, taken.is_ok(), now) {
            // Data was destroyed.
            n.data_run += 1;
            n.queue.push_back(Work::Input(input));
            let (keeps, other) = (&self.nodes[node].data, &self.nodes[1 - node].data);
            let verdict =
                self.oracle.truncated(NAMES[node], &keeps.log[..keeps.durable], &other.log[..other.durable]);
            self.fail(verdict);
        }
    }

    fn show(&mut self, node: usize, view: View) {
        if let Some(transcript) = &mut self.transcript {
            transcript.showed(self.now, node, &view);
        }
        self.nodes[node].shown = Some(view);
        self.drain(node);
    }

    /// Lets the data layer do everything that it has to do now.
    fn drain(&mut self, node: usize) {
        for _ in 0..100 {
            let now = self.nodes[node].clock(self.now);
            let n = &mut self.nodes[node];
            let (true, false, Some(view)) = (n.up, n.paused, n.shown) else {
                return;
            };
            let acts = n.data.poll(&view, now);
            if acts.is_empty() {
                return;
            }
            for act in acts {
                self.act(node, act);
            }
        }
        self.fail(Err(format!("the data layer of {} never comes to rest", NAMES[node])));
    }

    fn act(&mut self, node: usize, act: Act) {
        match act {
            Act::Say { link, term, body } => {
                let connection = usize::try_from(link.0).expect("links are connections");
                let c = &mut self.connections[connection];
                let end = c.end(node);
                let number = c.sent[end];
                c.sent[end] += 1;
                self.say(connection, node, Packet::Data { number, term, body });
            }
            Act::Command(input) => {
                // Whoever called this works the queue off, or the next beat does.
                self.nodes[node].queue.push_back(Work::Input(*input));
            }
            Act::Sync(upto) => {
                let n = &self.nodes[node];
                let (run, data_run) = (n.run, n.data_run);
                let delay = self.dice.between(self.plan.data_sync.0, self.plan.data_sync.1);
                self.at(delay, Event::DataSynced { node, run, data_run, upto });
            }
            Act::Acknowledge { term, upto } => {
                let mut oracle = std::mem::take(&mut self.oracle);
                let others: Vec<Shown<'_>> = self.shown(1 - node).into_iter().collect();
                let log = &self.nodes[node].data.log[..upto];
                let verdict = oracle.acknowledge(NAMES[node], term, log, &others);
                drop(others);
                self.oracle = oracle;
                self.fail(verdict);
            }
        }
    }

    fn schedule_wake(&mut self, node: usize) {
        let n = &self.nodes[node];
        let (true, Some(replica)) = (n.up && !n.paused && n.syncing.is_none(), n.replica()) else {
            return;
        };
        let local = n.clock(self.now);
        let wake = replica.wake_at(local);
        if wake == Moment::FOREVER {
            return;
        }
        let at = n.when(wake).max(self.now + MS / 100);
        if at != n.wake {
            let run = n.run;
            self.nodes[node].wake = at;
            let delay = at - self.now;
            self.at(delay, Event::Wake { node, run, at });
        }
    }

    pub(crate) fn heading(&mut self, text: &str) {
        if let Some(transcript) = &mut self.transcript {
            transcript.heading(text);
        }
    }

    fn note(&mut self, node: usize, what: &str) {
        (node, what).hash(&mut self.hasher);
        if let Some(transcript) = &mut self.transcript {
            transcript.note(self.now, node, what);
        }
    }
}

fn is_command(input: &Input) -> bool {
    matches!(
        input,
        Input::Offer(_) | Input::Join(_) | Input::Resync | Input::Stalled | Input::Resign | Input::Stopped
    )
}

// What a test asks about.
impl World {
    /// The replica that acts now.
    pub(crate) fn actor(&self) -> Option<usize> {
        [A, B].into_iter().find(|node| self.shown(*node).is_some_and(|shown| shown.acts.is_some()))
    }

    /// The replica that acts, has everything and may acknowledge.
    pub(crate) fn serves(&self) -> Option<usize> {
        let node = self.actor()?;
        self.shown(node)?.reads.map(|_| node)
    }

    pub(crate) fn role(&self, node: usize) -> Option<RoleView> {
        self.nodes[node].shown.map(|view| view.role)
    }

    pub(crate) fn right(&self, node: usize) -> Option<tiebreak::testing::Right> {
        self.nodes[node].shown?.authority().map(|(_, right, _)| right)
    }

    pub(crate) fn connection(&self, one: usize, other: usize) -> Option<usize> {
        let fits = |c: &Connection| c.ends.contains(&one) && c.ends.contains(&other);
        self.connections.iter().rposition(fits)
    }
}
