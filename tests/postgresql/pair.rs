//! Two servers, their agents and a witness, each on a host of its own, made by the shipped bootstrap.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tiebreak::Identity;

use crate::hosts::{A, B, C, Hosts, NAMES, W, address};
use crate::wire::{Client, Failed};

/// Far beyond anything that is waited for, even on a machine that is busy with something else.
const DEADLINE: Duration = Duration::from_secs(90);
const POSTGRESQL: &str = "/usr/lib/postgresql/15/bin";
/// Stories that are told at a time.
const AT_A_TIME: usize = 3;

pub const ACCOUNTS: usize = 50;
pub const BALANCE: i64 = 1000;

/// One of the places at the table; given back when dropped.
struct Place;

static TAKEN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Place {
    fn take() -> Place {
        let taken = TAKEN.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken =
            TAKEN.1.wait_while(taken, |taken| *taken >= AT_A_TIME).unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *TAKEN.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        TAKEN.1.notify_one();
    }
}

/// Whether there is everything that a story needs; says what is missing.
pub fn can_run() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let missing = if std::env::var_os("TIEBREAK_STORIES").is_none() {
            "TIEBREAK_STORIES=1 in the environment: they take minutes of an otherwise idle machine"
        } else if !rustix::process::geteuid().is_root() {
            "root"
        } else if !Path::new(POSTGRESQL).join("pg_rewind").exists() {
            "PostgreSQL 15 (Debian: postgresql-15)"
        } else if !Hosts::possible() {
            "network namespaces (`ip netns`; Debian: iproute2)"
        } else {
            return true;
        };
        eprintln!("skipped: the stories of PostgreSQL need {missing}");
        false
    })
}

pub struct Pair {
    directory: TempDir,
    agents: [Option<Child>; 3],
    pub hosts: Hosts,
    _place: Place,
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["a", "b", "w", "a-server", "b-server"] {
                let log = fs::read_to_string(self.place(&format!("{name}.log"))).unwrap_or_default();
                let from = log.char_indices().rev().nth(7000).map_or(0, |(at, _)| at);
                eprintln!("--- {name}\n{}", &log[from..]);
            }
        }
        for host in [A, B, W] {
            self.hosts.signal(host, Signal::KILL);
        }
        for child in self.agents.iter_mut().flatten() {
            let _ = child.wait();
        }
        let mark = self.directory.path().file_name().map(|name| name.to_string_lossy().replace('.', "-"));
        for place in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            for entry in fs::read_dir(place).into_iter().flatten().flatten() {
                if mark.as_ref().is_some_and(|mark| entry.file_name().to_string_lossy().contains(mark)) {
                    let _ = fs::write(entry.path().join("cgroup.kill"), "1");
                    let until = Instant::now() + Duration::from_secs(2);
                    while fs::remove_dir(entry.path()).is_err() && Instant::now() < until {
                        std::thread::yield_now();
                    }
                }
            }
        }
    }
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/postgresql").join(name)
}

#[track_caller]
fn good(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// Something of PostgreSQL, as the user that the server belongs to.
fn as_owner(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "postgres", "--regid", "postgres", "--init-groups", "--"]);
    command.arg(Path::new(POSTGRESQL).join(program)).current_dir("/");
    command
}

fn settings(directory: &Path, data: &Path, node: usize) -> String {
    format!(
        "BIN={POSTGRESQL}\nDATA={}\nSOCKET={}\nPEER_ADDRESS={}\nOWN_ADDRESS={}\nLOG={}/{}-server.log\n",
        data.display(),
        directory.join(format!("socket-{}", NAMES[node])).display(),
        address(1 - node, node),
        address(node, 1 - node),
        directory.display(),
        NAMES[node],
    )
}

/// The script with its settings beside it, and where the server's socket goes.
fn equip(directory: &Path, data: &Path, node: usize) {
    let place = directory.join(NAMES[node]);
    fs::create_dir_all(&place).expect("a directory");
    for name in ["hook", "bootstrap", "switchover"] {
        symlink(shipped(name), place.join(name)).expect("linked");
    }
    fs::write(place.join("postgresql.env"), settings(directory, data, node)).expect("written");
    let socket = directory.join(format!("socket-{}", NAMES[node]));
    fs::create_dir_all(&socket).expect("a directory");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).expect("open");
    let log = directory.join(format!("{}-server.log", NAMES[node]));
    fs::write(&log, "").expect("written");
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).expect("open");
}

/// An existing server that was given to the agent by `bootstrap first`: made once, copied for each story.
fn existing_server() -> &'static Path {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    let directory = MADE.get_or_init(|| {
        let directory = TempDir::new().expect("a directory");
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), open).expect("open");
        let data = directory.path().join("data");
        equip(directory.path(), &data, A);
        let mut init = as_owner("initdb");
        init.args(["--no-sync", "--auth=peer", "--auth-host=scram-sha-256", "-E", "UTF8", "--locale=C", "-D"]);
        good(&init.arg(&data).output().expect("initdb runs"));
        let mut hba = File::options().append(true).open(data.join("pg_hba.conf")).expect("it is there");
        for subnet in 3..=4 {
            writeln!(hba, "host all all 10.77.{subnet}.0/24 trust").expect("written");
        }
        let mut conf = File::options().append(true).open(data.join("postgresql.conf")).expect("it is there");
        let socket = directory.path().join("socket-a");
        writeln!(
            conf,
            "listen_addresses = '*'\nshared_buffers = 16MB\nmax_connections = 40\nlog_line_prefix = '%m [%p] '\n\
             unix_socket_directories = '{}'\nautovacuum_naptime = 10min",
            socket.display()
        )
        .expect("written");
        let mut start = as_owner("pg_ctl");
        start.args(["-w", "-o", "-c listen_addresses=", "-D"]).arg(&data).arg("-l").arg(data.join("first.log"));
        good(&start.arg("start").stdin(Stdio::null()).stdout(Stdio::null()).output().expect("pg_ctl runs"));
        let mut tables = as_owner("psql");
        tables.args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-h"]).arg(&socket).arg("-c").arg(format!(
            "CREATE TABLE done (id bigint PRIMARY KEY); CREATE TABLE sampled (id bigint GENERATED ALWAYS AS IDENTITY); \
             CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL); \
             INSERT INTO accounts SELECT id, {BALANCE} FROM generate_series(1, {ACCOUNTS}) id"
        ));
        good(&tables.output().expect("psql runs"));
        good(&Command::new(directory.path().join("a/bootstrap")).arg("first").output().expect("it runs"));
        // Not by fast copying: the data has to outlive nothing.
        directory
    });
    directory.path()
}

fn copy(from: &Path, to: &Path) {
    good(&Command::new("cp").arg("-a").arg(from).arg(to).output().expect("cp runs"));
}

impl Pair {
    /// Keys, votes, data and settings, with nothing running.
    pub fn prepare(lease: &str, solo_after: &str) -> Pair {
        let place = Place::take();
        let existing = existing_server();
        let directory = TempDir::new().expect("a directory");
        let top = directory.path();
        fs::set_permissions(top, fs::Permissions::from_mode(0o777)).expect("open");
        let keys = ["a", "b", "w"].map(|name| {
            Identity::create(&top.join(format!("{name}.pem"))).expect("a key").fingerprint().to_string()
        });
        for me in [A, B] {
            let (peer, name) = (1 - me, NAMES[me]);
            equip(top, &top.join(format!("data-{name}")), me);
            let hooks = ["check", "promote", "demote", "follow", "solo", "paired"]
                .map(|hook| format!("{hook} = \"{name}/hook\"\n"))
                .concat();
            let text = format!(
                "cluster = \"orders\"\nnode = \"{name}\"\nkey = \"{name}.pem\"\nstate = \"votes-{name}\"\n\
                 listen = [\"0.0.0.0:7400\"]\nlease = \"{lease}\"\nsolo_after = \"{solo_after}\"\nkeep_alive = \"1s\"\n\
                 [peer]\nnode = \"{}\"\naddresses = [\"{}:7400\"]\nkeys = [\"{}\"]\n\
                 [witness]\nnode = \"w\"\naddresses = [\"{}:7400\"]\nkeys = [\"{}\"]\n\
                 [agent]\nhttp = \"0.0.0.0:8008\"\nruntime = \"run-{name}\"\ncheck_failures = 2\n[agent.hooks]\n{hooks}\
                 [agent.times]\ndemote = \"700ms\"\nkill = \"200ms\"\ncheck_every = \"500ms\"\nretry_min = \"500ms\"\n\
                 retry_max = \"5s\"\npromote = \"10m\"\nfollow = \"24h\"\n",
                NAMES[peer],
                address(peer, me),
                keys[peer],
                address(W, me),
                keys[W],
            );
            fs::write(top.join(format!("{name}.toml")), text).expect("written");
        }
        let witness = format!(
            "node = \"w\"\nkey = \"w.pem\"\nstate = \"votes-w\"\nlisten = [\"0.0.0.0:7400\"]\nkeep_alive = \"1s\"\n\
             [[cluster]]\nname = \"orders\"\n[[cluster.replica]]\nnode = \"a\"\nkeys = [\"{}\"]\n\
             [[cluster.replica]]\nnode = \"b\"\nkeys = [\"{}\"]\n",
            keys[A], keys[B]
        );
        fs::write(top.join("w.toml"), witness).expect("written");
        copy(&existing.join("data"), &top.join("data-a"));
        copy(&existing.join("data.tiebreak"), &top.join("data-a.tiebreak"));
        fs::create_dir(top.join("data-b.tiebreak")).expect("a directory");
        copy(&existing.join("data.tiebreak/passfile"), &top.join("data-b.tiebreak/passfile"));
        good(
            &Command::new("chown")
                .arg("postgres:")
                .arg(top.join("data-b.tiebreak"))
                .output()
                .expect("chown runs"),
        );
        good(&Command::new(top.join("b/bootstrap")).arg("second").output().expect("it runs"));
        let pair = Pair { directory, agents: [None, None, None], hosts: Hosts::new(), _place: place };
        for node in [A, B, W] {
            let how: &[&str] = if node == A { &[] } else { &["--blank"] };
            good(&pair.tiebreak(node, "init", how));
        }
        // The story's own thread is where the clients are.
        pair.hosts.enter(C);
        pair
    }

    /// All three, until B holds everything.
    pub fn start() -> Pair {
        let mut pair = Pair::prepare("2s", "800ms");
        for node in [W, A, B] {
            pair.run(node);
        }
        pair.until_pair(A);
        pair
    }

    pub fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn data(&self, node: usize) -> PathBuf {
        self.place(&format!("data-{}", NAMES[node]))
    }

    pub fn config(&self, node: usize) -> PathBuf {
        self.place(&format!("{}.toml", NAMES[node]))
    }

    /// One run of the binary to its end, on that host.
    pub fn tiebreak(&self, node: usize, command: &str, arguments: &[&str]) -> Output {
        let mut run = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        run.arg(command).arg("--config").arg(self.config(node)).args(arguments);
        self.hosts.run(node, run)
    }

    /// By the shipped script.
    fn switchover(&self, node: usize) -> Output {
        let mut run = Command::new(self.place(NAMES[node]).join("switchover"));
        run.env("TIEBREAK", env!("CARGO_BIN_EXE_tiebreak")).arg(self.config(node)).arg("test");
        self.hosts.run(node, run)
    }

    /// Asks until it is taken: on a busy machine the standby may lag for a moment, and then it is refused, as it has to be.
    pub fn until_switched(&self, from: usize, to: usize) {
        self.until("a switchover is taken", || {
            Pair::code(to, "/primary") == Some(200) || self.switchover(from).status.success()
        });
    }

    /// Starts the agent, or the witness.
    pub fn run(&mut self, node: usize) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        let log = File::options().create(true).append(true).open(self.place(&format!("{}.log", NAMES[node])));
        let log = log.expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        command.arg(if node == W { "witness" } else { "agent" }).arg("--config").arg(self.config(node));
        self.agents[node] = Some(self.hosts.spawn(node, command));
    }

    /// HAProxy where the clients are, by the shipped file.
    pub fn proxy(&self) -> Child {
        let mut text = fs::read_to_string(shipped("haproxy.cfg")).expect("shipped");
        for node in [A, B] {
            text = text.replace(&format!("{}.example", NAMES[node]), &address(node, C));
        }
        fs::write(self.place("haproxy.cfg"), text).expect("written");
        let mut command = Command::new("/usr/sbin/haproxy");
        command.arg("-db").arg("-f").arg(self.place("haproxy.cfg"));
        let log = File::create(self.place("haproxy.log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.hosts.spawn(C, command)
    }

    /// SIGKILL to the agent, or the witness, alone.
    pub fn kill_agent(&mut self, node: usize) {
        let mut child = self.agents[node].take().expect("it runs");
        child.kill().expect("it was not waited for");
        child.wait().expect("it ends");
    }

    /// SIGKILL to the postmaster.
    pub fn kill_postmaster(&self, node: usize) {
        let text = fs::read_to_string(self.data(node).join("postmaster.pid")).expect("it runs");
        let pid = text.lines().next().and_then(|line| line.parse().ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), Signal::KILL).expect("it runs");
    }

    /// The power goes: nobody hears a last word, and everything is gone.
    pub fn power_off(&mut self, node: usize) {
        self.hosts.isolate(node);
        self.hosts.signal(node, Signal::KILL);
        if let Some(mut child) = self.agents[node].take() {
            child.wait().expect("it ends");
        }
    }

    /// The power is back, and what starts at boot is started.
    pub fn power_on(&mut self, node: usize) {
        let _ = fs::remove_dir_all(self.place(&format!("run-{}", NAMES[node])));
        self.hosts.heal();
        self.run(node);
    }

    pub fn server(node: usize) -> SocketAddr {
        format!("{}:5432", address(node, C)).parse().expect("an address")
    }

    /// An answer of the agent over HTTP: code and body.
    pub fn get(node: usize, path: &str) -> Option<(u16, String)> {
        let to: SocketAddr = format!("{}:8008", address(node, C)).parse().expect("an address");
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_millis(300)).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let code = answer.split(' ').nth(1)?.parse().ok()?;
        Some((code, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    pub fn code(node: usize, path: &str) -> Option<u16> {
        Pair::get(node, path).map(|(code, _)| code)
    }

    pub fn state(node: usize) -> Value {
        let body = Pair::get(node, "/status").map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str(&body).unwrap_or(Value::Null)
    }

    /// Whether that node's votes have a link to the witness.
    pub fn hears_witness(node: usize) -> bool {
        let state = Pair::state(node);
        let others = state["voter"]["others"].as_array().into_iter().flatten();
        others.into_iter().any(|other| other["node"] == "w")
    }

    /// What that server says, at present.
    pub fn sql(node: usize, sql: &str) -> Result<Vec<Vec<String>>, Failed> {
        let patience = Duration::from_secs(5);
        Client::connect(Pair::server(node), patience)?.ask(sql, patience)
    }

    #[track_caller]
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds() {
            let late = Instant::now() >= deadline;
            assert!(!late, "not before the deadline: {what}\n{}\n{}", Pair::state(A), Pair::state(B));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Until `node` is primary, paired with the witness at hand, and the other one holds everything.
    #[track_caller]
    pub fn until_pair(&self, node: usize) {
        self.until(&format!("{} leads, paired, and the other one follows", NAMES[node]), || {
            Pair::code(node, "/primary") == Some(200)
                && Pair::code(1 - node, "/replica") == Some(200)
                && Pair::state(node)["right"] == "paired"
                && Pair::state(node)["redundant"] == true
        });
    }

    #[track_caller]
    pub fn until_any_pair(&self) -> usize {
        let mut leader = A;
        self.until("one leads, paired, and the other one follows", || {
            leader = if Pair::code(A, "/primary") == Some(200) { A } else { B };
            Pair::code(leader, "/primary") == Some(200)
                && Pair::code(1 - leader, "/replica") == Some(200)
                && Pair::state(leader)["redundant"] == true
        });
        leader
    }

    #[track_caller]
    pub fn until_primary(&self, node: usize) {
        self.until(&format!("{} is primary", NAMES[node]), || Pair::code(node, "/primary") == Some(200));
    }

    /// Until `node` acknowledges alone.
    #[track_caller]
    pub fn until_solo(&self, node: usize) {
        self.until(&format!("{} goes on alone", NAMES[node]), || {
            Pair::code(node, "/primary") == Some(200) && Pair::state(node)["right"] == "solo"
        });
    }
}
