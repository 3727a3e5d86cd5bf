//! A cluster of three processes on loopback, with a relay on each path, and what they have told so far.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;
use tiebreak::message::Kind;
use tiebreak::testing::clock::Clock;
use tiebreak::{Identity, Start};

use super::child::{Part, Plan, VARIABLE, now};
use crate::relay::{Flow, Network, Relay};

/// The replicas and the witness.
pub const A: usize = 0;
pub const B: usize = 1;
pub const W: usize = 2;
const NAMES: [&str; 3] = ["a", "b", "w"];

/// Far beyond anything that is waited for, even on a machine that is busy with something else.
const DEADLINE: Duration = Duration::from_secs(60);

/// What every path that carries QUIC carries: no datagram of this project is larger.
const DATAGRAM_BYTES_MAX: usize = 1200;

/// What is chosen for a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub lease: Duration,
    pub solo_after: Option<Duration>,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice { lease: Duration::from_millis(800), solo_after: Some(Duration::from_millis(400)) }
    }
}

/// A write that was acknowledged to the client.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ack {
    pub node: usize,
    pub value: u64,
    pub token: u64,
    pub at: u64,
    pub solo: bool,
}

/// One thing that a node told.
#[derive(Clone, Debug)]
pub struct Told {
    pub node: usize,
    /// The how manieth process of this node it was.
    pub life: usize,
    pub event: Value,
}

/// Everything that was told.
#[derive(Debug, Default)]
pub struct History {
    pub all: Vec<Told>,
    pub acks: Vec<Ack>,
    lives: [usize; 3],
    roles: [Option<Value>; 3],
}

impl History {
    /// What the living process of a node last said of its role.
    pub fn role(&self, node: usize) -> Option<&Value> {
        self.roles[node].as_ref()
    }

    pub fn leads(&self, node: usize) -> bool {
        self.role(node).is_some_and(|role| role["role"] == "leader")
    }

    /// Whether it leads, acts, and may acknowledge in this way.
    pub fn acts(&self, node: usize, right: &str) -> bool {
        self.role(node).is_some_and(|role| role["right"] == right && role["acts"] == true)
    }

    pub fn token(&self, node: usize) -> u64 {
        self.role(node).and_then(|role| role["token"].as_u64()).unwrap_or(0)
    }

    /// Whether the living process of the node told something for which `fits` holds.
    pub fn told(&self, node: usize, fits: impl Fn(&Value) -> bool) -> bool {
        self.find(node, fits).is_some()
    }

    /// The last such thing.
    pub fn find(&self, node: usize, fits: impl Fn(&Value) -> bool) -> Option<&Value> {
        let of_life = |told: &&Told| told.node == node && told.life == self.lives[node];
        self.all.iter().rev().filter(of_life).map(|told| &told.event).find(|event| fits(event))
    }

    /// Whether the living process of the node has logged a line with all of these parts.
    pub fn logged(&self, node: usize, parts: &[&str]) -> bool {
        self.told(node, |event| {
            event["event"] == "log"
                && event["text"].as_str().is_some_and(|text| parts.iter().all(|part| text.contains(part)))
        })
    }

    /// The last refusal that the living process of a replica met.
    pub fn refused(&self, node: usize) -> Option<&str> {
        self.role(node).and_then(|role| role["refused"].as_str())
    }

    /// Acknowledgements of one node since a moment.
    pub fn acks_since(&self, node: usize, at: u64) -> impl Iterator<Item = &Ack> {
        self.acks.iter().filter(move |ack| ack.node == node && ack.at > at)
    }

    /// Whether the node acknowledged something later than `at`.
    pub fn acknowledges_after(&self, node: usize, at: u64) -> bool {
        self.acks_since(node, at).next().is_some()
    }

    fn take(&mut self, node: usize, life: usize, event: Value) {
        match event["event"].as_str() {
            Some("ack") => {
                let number = |name: &str| event[name].as_u64().expect("a number");
                self.acks.push(Ack {
                    node,
                    value: number("value"),
                    token: number("token"),
                    at: number("at"),
                    solo: event["right"] == "solo",
                });
                return;
            }
            Some("role") if life == self.lives[node] => self.roles[node] = Some(event.clone()),
            _ => {}
        }
        self.all.push(Told { node, life, event });
    }

    fn tail(&self) -> String {
        let told: Vec<&Told> = self.all.iter().filter(|told| told.event["event"] != "report").collect();
        let from = told.len().saturating_sub(80);
        let lines: Vec<String> = told[from..]
            .iter()
            .map(|told| format!("  {}{} {}", NAMES[told.node], told.life, told.event))
            .collect();
        let last = [A, B].map(|node| self.acks.iter().rfind(|ack| ack.node == node));
        format!("{}\n  last acknowledgements: {last:?}", lines.join("\n"))
    }
}

#[derive(Debug, Default)]
struct Board {
    told: Mutex<History>,
    news: Condvar,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, History> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process of a node. It is killed when this is dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    stdin: ChildStdin,
}

impl Process {
    fn pid(&self) -> Pid {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process was not waited for yet");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The cluster.
#[derive(Debug)]
pub struct Trio {
    processes: [Option<Process>; 3],
    board: Arc<Board>,
    plans: [Plan; 3],
    choice: Choice,
    /// From the first to the second.
    flows: [[Arc<Flow>; 3]; 3],
    /// Each between the two that it joins.
    relays: Vec<((usize, usize), Relay)>,
    /// Those of them that carry votes and leases, not data.
    votes: Vec<usize>,
    _network: Network,
    directory: TempDir,
}

/// An address on loopback that no other node of these tests has.
fn own_address(port: u16) -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let part = |shift: u32| u8::try_from((pid >> shift) % 253 + 1).expect("less than 254");
    let host = [127, part(8), part(0), NEXT.fetch_add(1, Ordering::Relaxed)];
    SocketAddr::from((host, port))
}

impl Trio {
    /// Keys, state and relays, without any process yet. A has the data, B and the witness are blank.
    pub fn prepare(choice: Choice) -> Trio {
        let directory = TempDir::new().expect("a temporary directory");
        let network = Network::start().expect("relays");
        let flows: [[Arc<Flow>; 3]; 3] = Default::default();
        let place = NAMES.map(|name| directory.path().join(name));
        let keys = place.each_ref().map(|place| {
            fs::create_dir(place).expect("a new directory");
            Identity::create(&place.join("key.pem")).expect("a new key").fingerprint().to_string()
        });
        let (at, data) = ([(); 3].map(|()| own_address(7400)), [(); 2].map(|()| own_address(7401)));
        let mut relays = Vec::new();
        let mut relay = |target: SocketAddr, from: usize, to: usize| {
            let relay =
                network.relay(target, flows[from][to].clone(), flows[to][from].clone()).expect("a relay");
            let address = relay.address();
            relays.push(((from, to), relay));
            address
        };
        let mut replica = |me: usize| {
            let peer = 1 - me;
            Plan {
                node: NAMES[me].into(),
                directory: place[me].clone(),
                listen: at[me],
                lease_ms: u64::try_from(choice.lease.as_millis()).expect("short"),
                part: Part::Replica {
                    solo_after_ms: choice
                        .solo_after
                        .map(|span| u64::try_from(span.as_millis()).expect("short")),
                    peer: (NAMES[peer].into(), relay(at[peer], me, peer), keys[peer].clone()),
                    witness: (NAMES[W].into(), relay(at[W], me, W), keys[W].clone()),
                    data: data[me],
                    peer_data: relay(data[peer], me, peer),
                },
            }
        };
        let (a, b) = (replica(A), replica(B));
        // Each replica has made one to its peer, one to the witness, and one for its data.
        let votes = vec![0, 1, 3, 4];
        let witness = Plan {
            node: NAMES[W].into(),
            directory: place[W].clone(),
            listen: at[W],
            lease_ms: a.lease_ms,
            part: Part::Witness { replicas: [A, B].map(|node| (NAMES[node].to_owned(), keys[node].clone())) },
        };
        tiebreak::init(&a.replica(), Start::Found(Kind::Replicated)).expect("new state");
        tiebreak::init(&b.replica(), Start::Blank).expect("new state");
        tiebreak::init_witness(&witness.witness()).expect("new state");
        Trio {
            processes: [None, None, None],
            board: Arc::default(),
            plans: [a, b, witness],
            choice,
            flows,
            relays,
            votes,
            _network: network,
            directory,
        }
    }

    /// All three, until A leads, paired with B, and the witness has been taken in.
    pub fn start(choice: Choice) -> Trio {
        let mut trio = Trio::prepare(choice);
        for node in [W, A, B] {
            trio.run(node);
        }
        trio.until("the witness is taken in", |told| told.logged(W, &["taken in"]).then_some(()));
        trio.until_paired(A);
        trio
    }

    pub fn lease(&self) -> Duration {
        self.choice.lease
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn plan(&mut self, node: usize) -> &mut Plan {
        &mut self.plans[node]
    }

    pub fn ledger(&self, node: usize) -> PathBuf {
        self.plans[node].state().join("ledger")
    }

    /// A process for the node.
    pub fn run(&mut self, node: usize) {
        self.run_as(node, |_| {});
    }

    /// The same, with something changed about how it is started.
    pub fn run_as(&mut self, node: usize, change: impl FnOnce(&mut Command)) {
        assert!(self.processes[node].is_none(), "{} runs", NAMES[node]);
        let life = {
            let mut told = self.board.lock();
            told.lives[node] += 1;
            told.roles[node] = None;
            told.lives[node]
        };
        let mut command = command(&self.plans[node], &std::env::current_exe().expect("this test"));
        change(&mut command);
        let mut child = command.spawn().expect("this test runs again");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        self.processes[node] = Some(Process { child, stdin });
        let board = self.board.clone();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let Ok(event @ Value::Object(_)) = serde_json::from_str(&line) else { continue };
                board.lock().take(node, life, event);
                board.news.notify_all();
            }
        });
    }

    /// Ends the process with SIGKILL.
    pub fn kill(&mut self, node: usize) {
        drop(self.processes[node].take().expect("it runs"));
        self.board.lock().roles[node] = None;
    }

    /// From now on, every write of the process to a file fails, as on a disk that is broken.
    pub fn break_disk(&self, node: usize) {
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(Some(self.processes[node].as_ref().expect("it runs").pid()), Resource::Fsize, none)
            .expect("a process of this user");
    }

    pub fn pause(&self, node: usize) {
        self.processes[node].as_ref().expect("it runs").signal(Signal::STOP);
    }

    pub fn resume(&self, node: usize) {
        self.processes[node].as_ref().expect("it runs").signal(Signal::CONT);
    }

    pub fn say(&mut self, node: usize, command: &str) {
        let process = self.processes[node].as_mut().expect("it runs");
        writeln!(process.stdin, "{command}").expect("it listens");
    }

    /// Starts a node that cannot start, and returns what it says.
    pub fn refuses_to_start(&mut self, node: usize) -> String {
        self.run(node);
        self.failed(node)
    }

    /// What ended the process of a node.
    pub fn failed(&mut self, node: usize) -> String {
        let why = self.until("it says why it ends", |told| {
            told.find(node, |event| event["event"] == "error").map(|event| event["why"].to_string())
        });
        let mut process = self.processes[node].take().expect("it ran");
        let status = process.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(2));
        why
    }

    /// Drops what goes from the first to the second.
    pub fn cut_from(&self, from: usize, to: usize) {
        self.flows[from][to].cut(true);
    }

    /// Drops what goes between the two.
    pub fn cut(&self, one: usize, other: usize) {
        self.cut_from(one, other);
        self.cut_from(other, one);
    }

    /// Answers with a refusal whatever goes between the two.
    pub fn refuse(&self, one: usize, other: usize) {
        for ((from, to), relay) in &self.relays {
            if (*from, *to) == (one, other) || (*from, *to) == (other, one) {
                relay.refuse(true);
            }
        }
    }

    /// How one direction is now, to be changed.
    pub fn flow(&self, from: usize, to: usize) -> &Flow {
        &self.flows[from][to]
    }

    /// From now on swallows every datagram of votes and leases with more payload than that.
    pub fn narrow(&self, bytes_max: usize) {
        for place in &self.votes {
            self.relays[*place].1.narrow(bytes_max);
        }
    }

    /// The largest datagram of votes and leases so far, in bytes of payload.
    pub fn largest_datagram_bytes(&self) -> usize {
        self.votes.iter().map(|place| self.relays[*place].1.largest_bytes()).max().unwrap_or(0)
    }

    pub fn heal(&self) {
        for flow in self.flows.iter().flatten() {
            flow.heal();
        }
        for (_, relay) in &self.relays {
            relay.refuse(false);
        }
    }

    /// Waits until `found` finds what it looks for.
    pub fn until<T>(&self, what: &str, found: impl Fn(&History) -> Option<T>) -> T {
        let end = Clock.now() + DEADLINE;
        let mut told = self.board.lock();
        loop {
            if let Some(found) = found(&told) {
                return found;
            }
            let left = end.since(Clock.now());
            assert!(!left.is_zero(), "not before the deadline: {what}; what was told last:\n{}", told.tail());
            told = self.board.news.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What is known at this moment.
    pub fn see<T>(&self, look: impl Fn(&History) -> T) -> T {
        look(&self.board.lock())
    }

    /// What has to hold at this moment.
    pub fn expect(&self, what: &str, holds: impl Fn(&History) -> bool) {
        let told = self.board.lock();
        assert!(holds(&told), "{what}: does not hold; what was told last:\n{}", told.tail());
    }

    /// Until the node leads with this right and acknowledges by it.
    pub fn until_acts(&self, node: usize, right: &str) {
        let since = now();
        self.until(&format!("{} leads, {right}, and acknowledges", NAMES[node]), |told| {
            (told.acts(node, right) && told.acknowledges_after(node, since)).then_some(())
        });
    }

    /// How long after `since` the node acknowledged for the first time.
    pub fn until_first_acknowledgement(&self, node: usize, since: u64) -> Duration {
        self.until("the first acknowledgement", |told| {
            told.acks_since(node, since).next().map(|ack| Duration::from_nanos(ack.at - since))
        })
    }

    pub fn until_paired(&self, node: usize) {
        self.until_acts(node, "paired");
    }

    pub fn until_solo(&self, node: usize) {
        self.until_acts(node, "solo");
    }

    /// Until the node has gone on acknowledging for this many leases.
    pub fn until_leases_pass(&self, node: usize, leases: u32) {
        let span = u64::try_from((self.choice.lease * leases).as_nanos()).expect("short");
        let end = now() + span;
        self.until(&format!("{} goes on acknowledging", NAMES[node]), |told| {
            told.acknowledges_after(node, end).then_some(())
        });
    }

    /// Lets time pass where time is what is tested: that nothing happens in it.
    pub fn let_leases_pass(&self, leases: u32, nothing: impl Fn(&History) -> bool) {
        let end = Clock.now() + self.choice.lease * leases;
        let mut told = self.board.lock();
        loop {
            assert!(nothing(&told), "this must not happen; what was told last:\n{}", told.tail());
            let left = end.since(Clock.now());
            if left.is_zero() {
                return;
            }
            told = self.board.news.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A replica's own report, asked now.
    pub fn report(&mut self, node: usize) -> Value {
        let before = self.see(|told| told.all.len());
        self.say(node, "report");
        self.until("it reports", |told| {
            let mut new = told.all[before..].iter().filter(|told| told.node == node);
            new.find(|told| told.event["event"] == "report").map(|told| told.event["report"].clone())
        })
    }

    /// Whether a replica has a link to the other node of this name.
    pub fn sees(&mut self, node: usize, other: usize) -> bool {
        let report = self.report(node);
        let others = report["others"].as_array().expect("the other two");
        others.iter().any(|seen| seen["node"] == NAMES[other] && !seen["link"].is_null())
    }

    pub fn until_sees(&mut self, node: usize, other: usize, sees: bool) {
        let end = Clock.now() + DEADLINE;
        while self.sees(node, other) != sees {
            assert!(Clock.now() < end, "{} sees {}: not before the deadline", NAMES[node], NAMES[other]);
            std::thread::yield_now();
        }
    }

    /// What has to be true of every history, asked of a replica that leads: each acknowledged write is there, one
    /// node acknowledged per token, tokens rise with time, the stretches of time in which each acknowledged are
    /// disjoint, and no datagram was larger than any path carries.
    pub fn check(&mut self, leader: usize) {
        let largest = self.largest_datagram_bytes();
        assert!(largest <= DATAGRAM_BYTES_MAX, "a datagram had {largest} bytes of payload");
        let acks = self.see(|told| {
            let bugs: Vec<&Told> = told.all.iter().filter(|told| told.event["event"] == "bug").collect();
            assert!(bugs.is_empty(), "{bugs:?}");
            told.acks.clone()
        });
        assert!(!acks.is_empty());
        let before = self.see(|told| told.all.len());
        self.say(leader, "dump");
        let values: std::collections::BTreeSet<u64> = self.until("the leader shows its data", |told| {
            let mut new = told.all[before..].iter().filter(|told| told.node == leader);
            let dump = new.find(|told| told.event["event"] == "dump")?;
            Some(dump.event["values"].as_array()?.iter().filter_map(Value::as_u64).collect())
        });
        let lost: Vec<&Ack> = acks.iter().filter(|ack| !values.contains(&ack.value)).collect();
        assert!(
            lost.is_empty(),
            "{} acknowledged writes are missing: {:?}",
            lost.len(),
            &lost[..lost.len().min(9)]
        );
        let mut stretches: std::collections::BTreeMap<u64, (usize, u64, u64)> = Default::default();
        for ack in &acks {
            let stretch = stretches.entry(ack.token).or_insert((ack.node, ack.at, ack.at));
            assert_eq!(stretch.0, ack.node, "two leaders acknowledged with token {}", ack.token);
            stretch.1 = stretch.1.min(ack.at);
            stretch.2 = stretch.2.max(ack.at);
        }
        let stretches: Vec<_> = stretches.into_iter().collect();
        for pair in stretches.windows(2) {
            let ((low, (_, _, end)), (high, (_, start, _))) = (pair[0], pair[1]);
            assert!(end < start, "token {low} was acknowledged with until {end}, token {high} from {start}");
        }
    }
}

/// This test once more, as a node.
fn command(plan: &Plan, program: &Path) -> Command {
    let mut command = Command::new(program);
    let plan = serde_json::to_string(plan).expect("plain data");
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(VARIABLE, plan);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}
