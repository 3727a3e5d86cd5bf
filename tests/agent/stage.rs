//! A witness and two agents, each a process of the shipped binary, and what can be seen of them from outside.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tiebreak::Identity;

use crate::relay::{Flow, Network, Relay};

pub const A: usize = 0;
pub const B: usize = 1;
pub const W: usize = 2;
pub const NAMES: [&str; 3] = ["a", "b", "w"];

/// Far beyond anything that is waited for, even on a machine that is busy with something else.
const DEADLINE: Duration = Duration::from_secs(60);

/// Acts: writes a line with its token each few milliseconds, and so do its two children. `stubborn` beside it makes them
/// deaf to SIGTERM.
const SERVICE: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ -e "$here/stubborn" ] && trap '' TERM
if [ "$1" != grandchild ]; then
    "$0" grandchild &
    "$0" grandchild &
fi
while :; do
    echo "$TIEBREAK_NODE $TIEBREAK_TOKEN"
    sleep 0.03
done >> "$here/acts"
"#;

/// Writes down that it was called and how, refuses to overlap with another hook of its node, and does what the files
/// beside it say.
const HOOK: &str = r#"#!/bin/sh
here=$(dirname "$0")
node=$TIEBREAK_NODE
if ! mkdir "$here/busy-$node" 2>/dev/null; then
    # Whoever was killed has left it behind, and nobody may have waited for it yet.
    case $(cut -d' ' -f3 "/proc/$(cat "$here/pid-$node" 2>/dev/null)/stat" 2>/dev/null) in
    '' | Z | X) ;;
    *) echo "$node overlap $1" >> "$here/hooks.log" ;;
    esac
fi
echo $$ > "$here/pid-$node"
echo "$node $1 reason=$TIEBREAK_REASON token=$TIEBREAK_TOKEN acknowledge=$TIEBREAK_ACKNOWLEDGE event=$TIEBREAK_EVENT destroy=$TIEBREAK_MAY_DESTROY" >> "$here/hooks.log"
[ -e "$here/$1-$node.sh" ] && . "$here/$1-$node.sh"
case $1 in
promote)
    "$here/service" > /dev/null 2>&1 &
    echo $! > "$here/service-$node.pid"
    ;;
demote)
    pid=$(cat "$here/service-$node.pid" 2>/dev/null)
    if [ -n "$pid" ]; then
        # The process group of the promotion.
        group=$(awk '{print $5}' "/proc/$pid/stat" 2>/dev/null)
        [ -n "$group" ] && kill -TERM "-$group"
        while [ -n "$group" ] && kill -0 "-$group" 2>/dev/null; do sleep 0.05; done
        rm -f "$here/service-$node.pid"
    fi
    ;;
esac
rmdir "$here/busy-$node" 2>/dev/null
exit "${code:-0}"
"#;

/// How the agents are to be.
#[derive(Clone, Debug)]
pub struct Choice {
    pub lease: &'static str,
    /// `solo_after`, or half of the lease.
    pub solo_after: Option<&'static str>,
    /// Lines of `[agent]`.
    pub agent: String,
    /// Between two keep-alives.
    pub keep_alive: &'static str,
    /// More such lines, for B only.
    pub agent_of_b: String,
    /// What the cluster protects.
    pub kind: &'static str,
    /// Lines of `[agent.times]`.
    pub times: String,
    /// The hooks, or none for `tiebreak run`.
    pub hooks: &'static [&'static str],
}

impl Default for Choice {
    fn default() -> Choice {
        Choice {
            lease: "5s",
            solo_after: None,
            agent: String::new(),
            keep_alive: "1s",
            agent_of_b: String::new(),
            kind: "replicated",
            times: String::new(),
            hooks: &[],
        }
    }
}

impl Choice {
    pub fn hooks(hooks: &'static [&'static str]) -> Choice {
        Choice { hooks, ..Choice::default() }
    }
}

pub struct Stage {
    choice: Choice,
    directory: TempDir,
    processes: [Option<Child>; 3],
    http: [SocketAddr; 3],
    flows: [[Arc<Flow>; 3]; 3],
    _relays: Vec<Relay>,
    _network: Network,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // The cgroups of killed agents, and what their hooks left running.
        let mark = self.directory.path().file_name().map(|name| name.to_string_lossy().replace('.', "-"));
        for place in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            for entry in fs::read_dir(place).into_iter().flatten().flatten() {
                if mark.as_ref().is_some_and(|mark| entry.file_name().to_string_lossy().contains(mark)) {
                    let _ = fs::write(entry.path().join("cgroup.kill"), "1");
                    let deadline = Instant::now() + Duration::from_secs(2);
                    while fs::remove_dir(entry.path()).is_err() && Instant::now() < deadline {
                        std::thread::yield_now();
                    }
                }
            }
        }
        for node in [A, B] {
            if let Some(group) = self.service_group(node) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
        }
        if std::thread::panicking() {
            for name in NAMES {
                let log = fs::read_to_string(self.place(&format!("{name}.log"))).unwrap_or_default();
                let from = log.len().saturating_sub(6000);
                eprintln!("--- {name}\n{}", log.get(from..).unwrap_or(&log));
            }
            eprintln!("--- hooks\n{}", self.hooks_log());
        }
    }
}

fn free_udp() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port")
}

fn free_tcp() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port")
}

/// Makes an executable.
pub fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

impl Stage {
    /// Keys, files, state and relays, without any process yet.
    pub fn prepare(choice: Choice) -> Stage {
        let directory = TempDir::new().expect("a directory");
        let network = Network::start().expect("relays");
        let flows: [[Arc<Flow>; 3]; 3] = Default::default();
        let mut relays = Vec::new();
        let listen = [free_udp(), free_udp(), free_udp()];
        let http = [free_tcp(), free_tcp(), free_tcp()];
        let keys = NAMES.map(|name| {
            let key = directory.path().join(format!("{name}.pem"));
            Identity::create(&key).expect("a key").fingerprint().to_string()
        });
        let mut path = |from: usize, to: usize| {
            let relay =
                network.relay(listen[to], flows[from][to].clone(), flows[to][from].clone()).expect("a relay");
            let address = relay.address();
            relays.push(relay);
            address
        };
        script(&directory.path().join("service"), SERVICE);
        script(&directory.path().join("hook"), HOOK);
        for me in [A, B] {
            let (peer, name) = (1 - me, NAMES[me]);
            let hooks: Vec<String> = choice.hooks.iter().map(|hook| format!("{hook} = \"hook\"\n")).collect();
            let hooks =
                if hooks.is_empty() { String::new() } else { format!("[agent.hooks]\n{}", hooks.concat()) };
            let solo_after =
                choice.solo_after.map_or(String::new(), |span| format!("solo_after = \"{span}\"\n"));
            let text = format!(
                "cluster = \"orders\"\nnode = \"{name}\"\nkey = \"{name}.pem\"\nstate = \"{name}\"\n\
                 listen = [\"{}\"]\nlease = \"{}\"\n{solo_after}keep_alive = \"{}\"\n\
                 [peer]\nnode = \"{}\"\naddresses = [\"{}\"]\nkeys = [\"{}\"]\n\
                 [witness]\nnode = \"w\"\naddresses = [\"{}\"]\nkeys = [\"{}\"]\n\
                 [agent]\nhttp = \"{}\"\nruntime = \"run-{name}\"\n{}\n{hooks}[agent.times]\n{}\n",
                listen[me],
                choice.lease,
                choice.keep_alive,
                NAMES[peer],
                path(me, peer),
                keys[peer],
                path(me, W),
                keys[W],
                http[me],
                choice.agent.replace("NODE", name) + if me == B { &choice.agent_of_b } else { "" },
                choice.times,
            );
            fs::write(directory.path().join(format!("{name}.toml")), text).expect("written");
        }
        let witness = format!(
            "node = \"w\"\nkey = \"w.pem\"\nstate = \"w\"\nlisten = [\"{}\"]\nkeep_alive = \"{}\"\nhttp = \"{}\"\n[[cluster]]\n\
             name = \"orders\"\n[[cluster.replica]]\nnode = \"a\"\nkeys = [\"{}\"]\n[[cluster.replica]]\nnode = \"b\"\n\
             keys = [\"{}\"]\n",
            listen[W], choice.keep_alive, http[W], keys[A], keys[B]
        );
        fs::write(directory.path().join("w.toml"), witness).expect("written");
        let stage = Stage {
            choice,
            directory,
            processes: [None, None, None],
            http,
            flows,
            _relays: relays,
            _network: network,
        };
        for node in [A, B, W] {
            let how: &[&str] = if node == A { &["--kind", stage.choice.kind] } else { &["--blank"] };
            let output = stage.tiebreak(node, "init", how);
            assert!(output.status.success(), "{output:?}");
        }
        stage
    }

    /// All three, until A's service acts and B follows it.
    pub fn start(choice: Choice) -> Stage {
        let mut stage = Stage::prepare(choice);
        for node in [W, A, B] {
            stage.run(node);
        }
        stage.until_pair(A);
        stage.until("the witness is up", |stage| stage.metric(A, "tiebreak_votes_reachable") == Some(3.0));
        stage
    }

    pub fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn config(&self, node: usize) -> PathBuf {
        self.place(&format!("{}.toml", NAMES[node]))
    }

    /// What the hook does from now on, besides: `sh` that is read into it.
    pub fn on(&self, hook: &str, node: usize, text: &str) {
        let place = self.place(&format!("{hook}-{}.sh", NAMES[node]));
        let new = place.with_extension("new");
        fs::write(&new, format!("{text}\n")).and_then(|()| fs::rename(&new, &place)).expect("written");
    }

    /// One run of the binary to its end.
    pub fn tiebreak(&self, node: usize, command: &str, arguments: &[&str]) -> Output {
        let mut run = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        run.arg(command).arg("--config").arg(self.config(node)).args(arguments);
        run.output().expect("the binary runs")
    }

    fn command(&self, node: usize) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        let log = File::options().create(true).append(true).open(self.place(&format!("{}.log", NAMES[node])));
        let log = log.expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let verb = match node {
            W => "witness",
            _ if self.choice.hooks.is_empty() => "run",
            _ => "agent",
        };
        command.arg(verb).arg("--config").arg(self.config(node));
        if verb == "run" {
            command.arg("--").arg(self.place("service"));
        }
        command
    }

    pub fn run(&mut self, node: usize) {
        assert!(self.processes[node].is_none(), "{} runs", NAMES[node]);
        self.processes[node] = Some(self.command(node).spawn().expect("the binary runs"));
    }

    pub fn signal(&self, node: usize, signal: Signal) {
        let child = self.processes[node].as_ref().expect("it runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id")).expect("not zero");
        kill_process(pid, signal).expect("it was not waited for");
    }

    /// The process of this node.
    pub fn pid(&self, node: usize) -> i32 {
        i32::try_from(self.processes[node].as_ref().expect("it runs").id()).expect("a process id")
    }

    pub fn kill(&mut self, node: usize) {
        let mut child = self.processes[node].take().expect("it runs");
        child.kill().expect("it was not waited for");
        child.wait().expect("it ends");
    }

    /// Waits for the end of a process, and returns its exit code.
    pub fn ended(&mut self, node: usize) -> Option<i32> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let child = self.processes[node].as_mut().expect("it ran");
            if let Some(status) = child.try_wait().expect("a child") {
                self.processes[node] = None;
                return status.code();
            }
            assert!(Instant::now() < deadline, "{} does not end", NAMES[node]);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends an agent in good order.
    pub fn stop(&mut self, node: usize) {
        self.signal(node, Signal::TERM);
        assert_eq!(self.ended(node), Some(0));
    }

    /// How one direction is, to be changed.
    pub fn flow(&self, from: usize, to: usize) -> &Flow {
        &self.flows[from][to]
    }

    /// The process group of the service that the hooks of a node have started.
    pub fn service_group(&self, node: usize) -> Option<Pid> {
        let pid = fs::read_to_string(self.place(&format!("service-{}.pid", NAMES[node]))).ok()?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
        Pid::from_raw(stat.split(' ').nth(4)?.parse().ok()?)
    }

    pub fn cut(&self, one: usize, other: usize) {
        self.flows[one][other].cut(true);
        self.flows[other][one].cut(true);
    }

    pub fn heal(&self) {
        self.flows.iter().flatten().for_each(|flow| flow.heal());
    }

    /// An answer over HTTP: code and body.
    pub fn get(&self, node: usize, path: &str) -> Option<(u16, String)> {
        self.request(node, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
    }

    pub fn request(&self, node: usize, request: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.http[node], Duration::from_secs(2)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let code = answer.split(' ').nth(1)?.parse().ok()?;
        let body = answer.split_once("\r\n\r\n")?.1.to_owned();
        Some((code, body))
    }

    pub fn code(&self, node: usize, path: &str) -> Option<u16> {
        self.get(node, path).map(|(code, _)| code)
    }

    pub fn state(&self, node: usize) -> Value {
        let body = self.get(node, "/status").map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str(&body).unwrap_or(Value::Null)
    }

    pub fn metric(&self, node: usize, name: &str) -> Option<f64> {
        let (_, page) = self.get(node, "/metrics")?;
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Which node each line of the service came from, and its token.
    pub fn acts(&self) -> Vec<(usize, u64)> {
        let text = fs::read_to_string(self.place("acts")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let act = |line: &str| {
            let (node, token) = line.split_once(' ')?;
            Some((NAMES.iter().position(|name| *name == node)?, token.parse().ok()?))
        };
        whole
            .lines()
            .map(|line| act(line).unwrap_or_else(|| panic!("a line of the service: {line:?}")))
            .collect()
    }

    /// Whether the service of this node writes at present: waits for another line, or for none.
    pub fn until_acts(&self, node: usize) {
        let before = self.acts().len();
        self.until(&format!("the service acts on {}", NAMES[node]), |stage| {
            stage.acts()[before..].iter().any(|(at, _)| *at == node)
        });
    }

    pub fn hooks_log(&self) -> String {
        fs::read_to_string(self.place("hooks.log")).unwrap_or_default()
    }

    /// The runs of one hook of one node.
    pub fn hook_runs(&self, node: usize, hook: &str) -> Vec<String> {
        let start = format!("{} {hook} ", NAMES[node]);
        self.hooks_log().lines().filter(|line| line.starts_with(&start)).map(str::to_owned).collect()
    }

    #[track_caller]
    pub fn until(&self, what: &str, holds: impl Fn(&Stage) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self) {
            assert!(
                Instant::now() < deadline,
                "not before the deadline: {what}\n{}\n{}",
                self.state(A),
                self.state(B)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Until the service acts on `node` under a paired leader, and the other one follows.
    #[track_caller]
    pub fn until_pair(&self, node: usize) {
        self.until(&format!("{} leads, paired, and the other one follows", NAMES[node]), |stage| {
            stage.code(node, "/primary") == Some(200)
                && stage.code(1 - node, "/replica") == Some(200)
                && stage.state(node)["right"] == "paired"
        });
    }

    #[track_caller]
    pub fn until_primary(&self, node: usize) {
        self.until(&format!("the service acts on {}", NAMES[node]), |stage| {
            stage.code(node, "/primary") == Some(200)
        });
    }

    /// What has to be true of every history: a resource that keeps the highest token would have refused nothing, and no
    /// hook overlapped with another one of its node.
    #[track_caller]
    pub fn check(&self) {
        assert_eq!(self.refused(), 0, "a write came after one with a higher token");
        assert!(!self.hooks_log().contains("overlap"), "hooks overlapped");
        assert!(!self.acts().is_empty());
    }

    /// How many writes a gate at the resource refuses.
    pub fn refused(&self) -> usize {
        let directory = TempDir::new().expect("a directory");
        let place = directory.path().join("gate");
        tiebreak::fence::Gate::create(&place).expect("a gate");
        // A process that another test is just starting holds the lock of the creation until it has begun.
        let deadline = Instant::now() + DEADLINE;
        let gate = loop {
            match tiebreak::fence::Gate::open(&place) {
                Ok(gate) => break gate,
                Err(error) => assert!(Instant::now() < deadline, "a gate: {error}"),
            }
        };
        let mut writes = self.acts();
        // The gate syncs each token that is new to it; a run of equal ones is one of them.
        let mut refused = 0;
        let mut admitted = None;
        for (_, token) in writes.drain(..) {
            if admitted == Some(token) {
                continue;
            }
            match gate.admit(tiebreak::ids::Token(token)) {
                Ok(()) => admitted = Some(token),
                Err(_) => refused += 1,
            }
        }
        refused
    }
}
