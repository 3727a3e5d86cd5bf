//! A world in virtual time for the shipped voters: two replicas with a small data layer, one witness (and, for the
//! scenarios that replace it, a second one), disks, clocks and a network.
//!
//! Nothing in here reads a clock or draws randomness of its own: the same seed makes the same run. The world plays
//! the part of the shell: it opens links, syncs records before anything leaves, and shows views to the data layer.
//!
//! - `plan.rs`: how one begins; `faults.rs`: what can happen to it; this file: its time.
//! - `node.rs`, `shell.rs`: a machine and its process; `clocks.rs`, `disks.rs`: its clock and its ledger.
//! - `net.rs`: connections and packets; `data.rs`: the replicated log on top.
//! - `oracle.rs`, `history.rs`: what must hold; `seen.rs`: what was exercised; `talk.rs`: a transcript.

mod clocks;
pub(crate) mod data;
pub(crate) mod dice;
pub(crate) mod disks;
mod faults;
pub(crate) mod history;
pub(crate) mod net;
mod node;
pub(crate) mod oracle;
mod plan;
pub(crate) mod seen;
mod shell;
pub(crate) mod talk;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use tiebreak::ids::{ClusterId, Incarnation, VoterId};
use tiebreak::message::Kind;
use tiebreak::testing::{Input, Right, RoleView};

use clocks::Clock;
use dice::Dice;
use disks::VoteDisk;
use faults::Image;
use history::{History, Reading};
use net::{Connection, Edge, Packet};
use node::{Node, Voter, Work};
use oracle::{Oracle, Shown};
use seen::Seen;

pub(crate) use plan::{Birth, Plan};

/// Nanoseconds in a millisecond: true time is counted in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// The first replica in the order of names.
pub(crate) const A: usize = 0;
/// The second replica.
pub(crate) const B: usize = 1;
/// The witness.
pub(crate) const W: usize = 2;
/// Another witness, blank, which some scenarios put in the place of the first.
pub(crate) const V: usize = 3;

const NAMES: [&str; 4] = ["a", "b", "w", "w"];

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
    Silent { node: usize, pauses: u64 },
    Command { node: usize, run: u64, command: usize },
    Read { node: usize, run: u64, reading: Reading },
    Beat,
}

/// Holds a packet back until it is let go.
pub(crate) type Hold = fn(from: usize, to: usize, packet: &Packet) -> bool;

/// The whole of it.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    pub(crate) dice: Dice,
    /// Chance on each way, so that what happens on one does not shift another.
    edge_dice: [[Dice; 4]; 4],
    pub(crate) nodes: Vec<Node>,
    pub(crate) edges: [[Edge; 4]; 4],
    pub(crate) connections: Vec<Connection>,
    packets: Vec<Option<Packet>>,
    free: Vec<usize>,
    /// Commands on their way from the data layer to its voter.
    commands: Vec<Option<Input>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    pub(crate) steps: u64,
    hasher: DefaultHasher,
    pub(crate) oracle: Oracle,
    pub(crate) history: History,
    pub(crate) seen: Seen,
    pub(crate) violation: Option<String>,
    pub(crate) transcript: Option<talk::Transcript>,
    pub(crate) hold: Option<Hold>,
    pub(crate) held_back: Vec<(usize, usize, Packet)>,
    next_value: u32,
    /// Disks that were lost.
    pub(crate) lives: u32,
    /// What is kept of each machine.
    images: [Option<Image>; 4],
    /// The longest delay that any way ever had.
    pub(crate) slowest: u64,
}

// Making one.
impl World {
    pub(crate) fn new(seed: u64, plan: Plan, birth: Birth) -> World {
        let mut dice = Dice::new(seed);
        let cluster = ClusterId(dice.wide());
        let lives: Vec<Incarnation> = (0..4).map(|_| Incarnation(dice.wide())).collect();
        let records = plan::birth_records(birth, cluster, &lives, &plan);
        let nodes = records
            .into_iter()
            .enumerate()
            .map(|(index, disk)| Node {
                votes: VoteDisk::new(&disk),
                disk,
                clock: Clock::new(
                    1_000_000 * MS + dice.between(0, 1000) * 1_000_000 * MS,
                    plan.rates_ppm[index],
                ),
                dice: Dice::new(dice.roll()),
                run: 0,
                up: false,
                paused: false,
                asleep: false,
                pauses: 0,
                voter: Voter::Off,
                queue: VecDeque::new(),
                syncing: None,
                synced_meanwhile: false,
                held: Vec::new(),
                shown: None,
                data: plan::birth_data(birth, index, &plan),
                wake: u64::MAX,
                data_run: 0,
                witness: W,
                link: None,
                dialling: None,
            })
            .collect();
        let edge_dice = std::array::from_fn(|_| std::array::from_fn(|_| Dice::new(dice.roll())));
        let nobody = VoterId { node: NAMES[A].parse().expect("a valid name"), incarnation: Incarnation::NIL };
        let mut world = World {
            edges: [[plan.edge; 4]; 4],
            plan,
            now: 0,
            dice,
            edge_dice,
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
            free: Vec::new(),
            commands: Vec::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            steps: 0,
            hasher: DefaultHasher::new(),
            oracle: Oracle::default(),
            history: History::default(),
            seen: Seen::default(),
            violation: None,
            transcript: None,
            hold: None,
            held_back: Vec::new(),
            next_value: 0,
            lives: 0,
            images: [None, None, None, None],
            slowest: 0,
        };
        world.slowest = world.plan.edge.high;
        world.at(world.plan.beat, Event::Beat);
        world
    }

    /// A number that stands for everything that has happened.
    pub(crate) fn trace(&self) -> u64 {
        self.hasher.finish()
    }

    fn mark(&mut self, what: &impl Hash) {
        what.hash(&mut self.hasher);
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
                let packet = self.taken_packet(packet);
                self.arrive(connection, to, packet);
            }
            Event::Repeat { connection, from, packet } => {
                let packet = self.taken_packet(packet);
                self.send(connection, from, packet);
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
            Event::Silent { node, pauses } => self.silent(node, pauses),
            Event::Command { node, run, command } => {
                if let (Some(input), true) = (self.commands[command].take(), self.nodes[node].run == run) {
                    self.command(node, input);
                }
            }
            Event::Read { node, run, reading } => {
                if self.nodes[node].run == run {
                    self.nodes[node].queue.push_back(Work::Read(reading));
                    self.work(node);
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
            if self.dice.per_mille(self.plan.read_per_mille) {
                self.read(node);
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

// What a test asks about.
impl World {
    /// The replica that acts now.
    pub(crate) fn actor(&self) -> Option<usize> {
        [A, B].into_iter().find(|node| self.shown(*node).is_some_and(|shown| shown.acts.is_some()))
    }

    /// The replica that acts, has everything and may acknowledge; without data, the one that acts.
    pub(crate) fn serves(&self) -> Option<usize> {
        let node = self.actor()?;
        if self.plan.kind == Kind::Leadership {
            return Some(node);
        }
        self.shown(node)?.reads.map(|_| node)
    }

    pub(crate) fn role(&self, node: usize) -> Option<RoleView> {
        self.nodes[node].shown.map(|view| view.role)
    }

    pub(crate) fn right(&self, node: usize) -> Option<Right> {
        self.nodes[node].shown?.authority().map(|(_, right, _)| right)
    }

    pub(crate) fn connection(&self, one: usize, other: usize) -> Option<usize> {
        let fits = |c: &Connection| c.ends.contains(&one) && c.ends.contains(&other);
        self.connections.iter().rposition(fits)
    }
}
