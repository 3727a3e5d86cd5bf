//! Three processes of the shipped binary, the paths between them, and what is needed to break each of them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tiebreak::Identity;
use tiebreak::testing::clock::Clock;
use tiebreak::time::Moment;

use crate::relay::{Flow, Network, Relay};
use crate::stream::Streams;

pub const A: usize = 0;
pub const B: usize = 1;
pub const W: usize = 2;
pub const NAMES: [&str; 3] = ["a", "b", "w"];

/// The lease of the cluster.
pub const LEASE: Duration = Duration::from_millis(800);
/// Where Debian and its descendants put the library that fakes a process's wall clock.
const FAKETIME: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];
/// Of the disk of each node, where it can be filled: room for the log of an hour.
const DISK_BYTES_MAX: u64 = 128 << 20;
/// What every path that carries QUIC carries.
const DATAGRAM_BYTES_MAX: usize = 1200;
/// The log of a process that ended says what it met last.
const LOG_TAIL_BYTES: usize = 8192;

/// What the nodes have told of themselves.
#[derive(Debug, Default)]
pub struct Told {
    status: [Option<Value>; 2],
    /// What cannot be: a term with two leaders.
    pub wrong: Vec<String>,
    led: std::collections::BTreeMap<u64, usize>,
}

impl Told {
    fn take(&mut self, node: usize, status: Value) {
        if status["leads"] == true
            && let Some(term) = status["term"].as_u64()
        {
            let other = *self.led.entry(term).or_insert(node);
            if other != node {
                self.wrong.push(format!("both replicas led term {term}"));
            }
        }
        self.status[node] = Some(status);
    }

    /// Who leads a pair that has all three parts.
    pub fn well(&self) -> Option<usize> {
        let [Some(a), Some(b)] = &self.status else { return None };
        let of = [a, b];
        let leader = [A, B].into_iter().find(|node| of[*node]["right"] == "paired")?;
        let (leads, follows) = (of[leader], of[1 - leader]);
        let linked = of.iter().all(|status| !status["witness"].is_null());
        (leads["lease"] == true && follows["joined"] == true && follows["term"] == leads["term"] && linked)
            .then_some(leader)
    }
}

struct Process {
    child: Child,
    paused: bool,
    /// Asked to end by itself.
    leaving: bool,
}

/// A node's own disk: a small file system that can be filled.
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

pub struct Cluster {
    processes: [Option<Process>; 3],
    told: Arc<(Mutex<Told>, Condvar)>,
    pub directory: PathBuf,
    commands: [Vec<String>; 3],
    pub clients: [SocketAddr; 2],
    flows: [[Arc<Flow>; 3]; 3],
    faketime: Option<PathBuf>,
    disks: Vec<SmallDisk>,
    /// Whose disk is full.
    full: [bool; 3],
    /// Whose disk was full in the present life of its process.
    was_full: [bool; 3],
    /// Whoever ends for a good reason is started again at once.
    pub heals: bool,
    relays: Vec<Relay>,
    _network: Network,
    _streams: Streams,
}

impl Cluster {
    /// Keys, states and relays, without any process yet. A has the data, B and the witness are blank.
    pub fn prepare(directory: &Path, resource: SocketAddr) -> Cluster {
        let network = Network::start().expect("relays");
        let streams = Streams::start().expect("relays");
        let flows: [[Arc<Flow>; 3]; 3] = Default::default();
        let places = NAMES.map(|name| directory.join(name));
        for place in &places {
            fs::create_dir(place).expect("a new directory");
        }
        let disks = small_disks(&places);
        let keys = places.each_ref().map(|place| {
            Identity::create(&place.join("key.pem")).expect("a new key").fingerprint().to_string()
        });
        let at = [(); 3].map(|()| own_address(7400));
        let (clients, data) = ([(); 2].map(|()| own_address(7401)), [(); 2].map(|()| own_address(7402)));
        let mut relays = Vec::new();
        let mut path = |from: usize, to: usize| {
            let (forth, back) = (flows[from][to].clone(), flows[to][from].clone());
            let relay = network.relay(at[to], forth, back).expect("a relay");
            let address = relay.address();
            relays.push(relay);
            address
        };
        let own = |node: usize| {
            format!(
                "node = \"{}\"\nkey = \"key.pem\"\nstate = \"state\"\nlisten = [\"{}\"]\nkeep_alive = \"1s\"\n",
                NAMES[node], at[node]
            )
        };
        let mut commands = [const { Vec::new() }; 3];
        for node in [A, B] {
            let peer = 1 - node;
            let mut other = |table: &str, to: usize| {
                let (name, address, key) = (NAMES[to], path(node, to), &keys[to]);
                format!("[{table}]\nnode = \"{name}\"\naddresses = [\"{address}\"]\nkeys = [\"{key}\"]\n")
            };
            let (peer_table, witness_table) = (other("peer", peer), other("witness", W));
            let lease = LEASE.as_millis();
            let text = format!(
                "cluster = \"storm\"\nlease = \"{lease}ms\"\n{}{peer_table}{witness_table}",
                own(node)
            );
            fs::write(places[node].join("node.toml"), text).expect("a configuration");
            let (forth, back) = (flows[node][peer].clone(), flows[peer][node].clone());
            let to_peer = streams.relay(data[peer], forth, back).expect("a relay");
            let place = places[node].display().to_string();
            commands[node] = [
                ["--data", &place],
                ["--clients", &clients[node].to_string()],
                ["--replication", &data[node].to_string()],
                ["--peer-replication", &to_peer.to_string()],
                ["--resource", &resource.to_string()],
            ]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect();
        }
        let replica = |node: usize| {
            format!("[[cluster.replica]]\nnode = \"{}\"\nkeys = [\"{}\"]\n", NAMES[node], keys[node])
        };
        let text = format!("{}[[cluster]]\nname = \"storm\"\n{}{}", own(W), replica(A), replica(B));
        fs::write(places[W].join("node.toml"), text).expect("a configuration");
        for node in [A, B, W] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
            command.args(["init", "--config"]).arg(places[node].join("node.toml"));
            if node != A {
                command.arg("--blank");
            }
            let made = command.output().expect("the binary runs");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        Cluster {
            processes: [None, None, None],
            told: Arc::default(),
            directory: directory.into(),
            commands,
            clients,
            flows,
            faketime: faketime(),
            disks,
            full: [false; 3],
            was_full: [false; 3],
            heals: false,
            relays,
            _network: network,
            _streams: streams,
        }
    }

    pub fn can_step_clocks(&self) -> bool {
        self.faketime.is_some()
    }

    pub fn can_fill_disks(&self) -> bool {
        !self.disks.is_empty()
    }

    fn place(&self, node: usize) -> PathBuf {
        self.directory.join(NAMES[node])
    }

    fn log(&self, node: usize) -> PathBuf {
        self.directory.join(format!("{}.log", NAMES[node]))
    }

    fn offset(&self, node: usize) -> PathBuf {
        self.directory.join(format!("{}.wall-clock", NAMES[node]))
    }

    pub fn runs(&self, node: usize) -> bool {
        self.processes[node].is_some()
    }

    /// Whether it runs, undisturbed as far as its process is concerned.
    pub fn is_free(&self, node: usize) -> bool {
        self.processes[node].as_ref().is_some_and(|process| !process.paused && !process.leaving)
    }

    /// A process for the node, on the state that it has.
    pub fn run(&mut self, node: usize) {
        assert!(self.processes[node].is_none(), "{} runs", NAMES[node]);
        self.was_full[node] = self.full[node];
        let log = File::options().create(true).append(true).open(self.log(node)).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.args(["demo-node", if node == W { "witness" } else { "replica" }, "--config"]);
        command.arg(self.place(node).join("node.toml")).args(&self.commands[node]);
        if let Some(library) = &self.faketime {
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", self.offset(node));
            command.env("FAKETIME_CACHE_DURATION", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command.process_group(0).env("TIEBREAK_LOG", "debug");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        self.processes[node] = Some(Process { child, paused: false, leaving: false });
        let told = self.told.clone();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let Ok(status @ Value::Object(_)) = serde_json::from_str(&line) else { continue };
                lock(&told.0).take(node, status);
                told.1.notify_all();
            }
        });
    }

    fn signal(&self, node: usize, signal: Signal) {
        let process = self.processes[node].as_ref().expect("it runs");
        let pid = i32::try_from(process.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("the process was not waited for yet");
    }

    /// Ends the process with SIGKILL, if there is one.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut process) = self.processes[node].take() {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        if node != W {
            lock(&self.told.0).status[node] = None;
        }
    }

    /// Asks the process to end in good order.
    pub fn terminate(&mut self, node: usize) {
        self.signal(node, Signal::TERM);
        self.processes[node].as_mut().expect("it runs").leaving = true;
    }

    pub fn pause(&mut self, node: usize) {
        self.signal(node, Signal::STOP);
        self.processes[node].as_mut().expect("it runs").paused = true;
    }

    pub fn resume(&mut self, node: usize) {
        if self.processes[node].as_ref().is_some_and(|process| process.paused) {
            self.signal(node, Signal::CONT);
            self.processes[node].as_mut().expect("it runs").paused = false;
        }
    }

    /// How one direction is now, to be changed.
    pub fn flow(&self, from: usize, to: usize) -> &Flow {
        &self.flows[from][to]
    }

    /// Moves the wall clock of a node to this far from the true one.
    pub fn step_clock(&self, node: usize, seconds: i64) {
        fs::write(self.offset(node), format!("{seconds:+}\n")).expect("a small file");
    }

    /// Leaves no room on a node's disk.
    pub fn fill_disk(&mut self, node: usize) {
        (self.full[node], self.was_full[node]) = (true, true);
        let filler = File::create(self.place(node).join("filler"));
        let Ok(filler) = filler else { return };
        let mut bytes = DISK_BYTES_MAX;
        let mut at = 0;
        // As much as there is, in ever smaller pieces.
        while bytes >= 4096 {
            match rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), at, bytes) {
                Ok(()) => at += bytes,
                Err(_) => bytes /= 2,
            }
        }
    }

    pub fn free_disk(&mut self, node: usize) {
        self.full[node] = false;
        let _ = fs::remove_file(self.place(node).join("filler"));
    }

    /// Ends all processes, and copies what they leave from disks that are about to go.
    pub fn keep(&mut self) {
        for node in [A, B, W] {
            self.kill(node);
            if self.can_fill_disks() {
                self.free_disk(node);
                let copy = self.directory.join(format!("{}.kept", NAMES[node]));
                let _ = Command::new("cp").arg("-r").arg(self.place(node)).arg(copy).output();
            }
        }
    }

    /// Notices processes that have ended by themselves. What is wrong about it, if they had no reason to.
    pub fn fallen(&mut self) -> Option<String> {
        for node in [A, B, W] {
            let Some(process) = &mut self.processes[node] else { continue };
            let Ok(Some(status)) = process.child.try_wait() else { continue };
            // Before it has begun to listen for the signal, the signal simply ends it.
            let ended = status.success() || status.signal() == Some(Signal::TERM.as_raw());
            let left = process.leaving && ended;
            let full = self.was_full[node] && self.met_a_full_disk(node, status);
            self.kill(node);
            if !left && !full {
                return Some(format!("{} ended by itself: {status}", NAMES[node]));
            }
            if self.heals {
                self.run(node);
            }
        }
        None
    }

    /// No datagram is larger than what every path that carries QUIC carries.
    fn too_large(&self) -> Option<String> {
        let largest = self.relays.iter().map(Relay::largest_bytes).max().unwrap_or(0);
        (largest > DATAGRAM_BYTES_MAX).then(|| format!("a datagram had {largest} bytes of payload"))
    }

    fn met_a_full_disk(&self, node: usize, status: ExitStatus) -> bool {
        let log = fs::read(self.log(node)).unwrap_or_default();
        let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned();
        status.code().is_some() && tail.contains("No space left on device")
    }

    /// Lets the storm go on until `until`, or until something is wrong.
    pub fn wait(&mut self, until: Moment) -> Result<(), String> {
        loop {
            if let Some(wrong) = self.wrong() {
                return Err(wrong);
            }
            let left = until.since(Clock.now());
            if left.is_zero() {
                return Ok(());
            }
            self.news(left);
        }
    }

    /// Waits until `found` finds what it looks for in what was told.
    pub fn until<T>(
        &mut self,
        what: &str,
        patience: Duration,
        found: impl Fn(&Told) -> Option<T>,
    ) -> Result<T, String> {
        let end = Clock.now() + patience;
        loop {
            if let Some(wrong) = self.wrong() {
                return Err(wrong);
            }
            if let Some(found) = found(&lock(&self.told.0)) {
                return Ok(found);
            }
            let left = end.since(Clock.now());
            if left.is_zero() {
                let told = lock(&self.told.0);
                return Err(format!("not within {patience:?}: {what}; last told: {:?}", told.status));
            }
            self.news(left);
        }
    }

    fn wrong(&mut self) -> Option<String> {
        self.fallen().or_else(|| self.too_large()).or_else(|| lock(&self.told.0).wrong.first().cloned())
    }

    /// Something was told, or a moment has passed in which a process may have ended.
    fn news(&self, left: Duration) {
        let told = lock(&self.told.0);
        let _ = self.told.1.wait_timeout(told, left.min(Duration::from_millis(20)));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in [A, B, W] {
            self.kill(node);
        }
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An address on loopback that no other node of any test has.
fn own_address(port: u16) -> SocketAddr {
    use std::sync::atomic::{AtomicU8, Ordering};
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let part = |shift: u32| u8::try_from((pid >> shift) % 253 + 1).expect("less than 254");
    SocketAddr::from(([127, part(8), part(0), NEXT.fetch_add(1, Ordering::Relaxed)], port))
}

/// The library that fakes the wall clock, if it is there and works.
fn faketime() -> Option<PathBuf> {
    let library = FAKETIME.iter().map(PathBuf::from).find(|path| path.exists())?;
    let year = Command::new("date")
        .arg("+%Y")
        .env("LD_PRELOAD", &library)
        .env("FAKETIME", "-9000d")
        .output()
        .ok()?;
    let year: u32 = String::from_utf8(year.stdout).ok()?.trim().parse().ok()?;
    (year < 2020).then_some(library)
}

/// A small file system at each place; none at all unless this may mount.
fn small_disks(places: &[PathBuf; 3]) -> Vec<SmallDisk> {
    let mut disks = Vec::new();
    for place in places {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={DISK_BYTES_MAX},mode=0700"), "storm"])
            .arg(place)
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            return Vec::new();
        }
        disks.push(SmallDisk(place.clone()));
    }
    disks
}
