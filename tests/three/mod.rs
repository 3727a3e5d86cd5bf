//! Three nodes in this process, over real sockets and real files: two replicas whose data layer has nothing in it, and
//! a witness.
#![allow(dead_code, unreachable_pub, reason = "shared by tests, each of which uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tiebreak::config::{
    ClusterConfig, OtherConfig, OwnConfig, ReplicaConfig, ReplicaKeys, WhenAlone, WitnessConfig,
};
use tiebreak::ids::Position;
use tiebreak::message::{Kind, Report, RoleName};
use tiebreak::{
    Cluster, Fingerprint, Identity, JoinError, LedgerError, Role, Start, WitnessError, WitnessNode,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const NODES: [&str; 3] = ["a", "b", "w"];
pub const A: usize = 0;
pub const B: usize = 1;
pub const W: usize = 2;

/// Keys, addresses, and where each node keeps its state.
pub struct Setup {
    directory: tempfile::TempDir,
    keys: Vec<Fingerprint>,
    addresses: Vec<SocketAddr>,
    pub strict_boot: bool,
}

impl Setup {
    pub fn new() -> Setup {
        let directory = tempfile::tempdir().expect("a directory");
        let key =
            |node: &str| Identity::create(&directory.path().join(format!("{node}.pem"))).expect("a key");
        let keys = NODES.iter().map(|node| key(node).fingerprint()).collect();
        let sockets: Vec<_> = NODES.iter().map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
        let addresses = sockets.iter().map(|socket| socket.local_addr().expect("bound")).collect();
        Setup { directory, keys, addresses, strict_boot: false }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn own(&self, i: usize) -> OwnConfig {
        OwnConfig {
            node: NODES[i].parse().expect("a name"),
            key: self.path(&format!("{}.pem", NODES[i])),
            state: self.path(NODES[i]),
            listen: vec![self.addresses[i]],
            keep_alive: Duration::from_secs(1),
        }
    }

    fn other(&self, i: usize) -> OtherConfig {
        OtherConfig {
            node: NODES[i].parse().expect("a name"),
            addresses: vec![self.addresses[i].to_string().parse().expect("an address")],
            keys: vec![self.keys[i]],
        }
    }

    pub fn replica(&self, i: usize) -> ReplicaConfig {
        ReplicaConfig {
            own: self.own(i),
            cluster: "orders".parse().expect("a name"),
            lease: Duration::from_secs(1),
            solo_after: Some(Duration::from_millis(500)),
            when_alone: WhenAlone::Continue,
            peer: self.other(1 - i),
            witness: self.other(2),
        }
    }

    pub fn witness(&self) -> WitnessConfig {
        let seat =
            |i: usize| ReplicaKeys { node: NODES[i].parse().expect("a name"), keys: vec![self.keys[i]] };
        let name = "orders".parse().expect("a name");
        WitnessConfig {
            own: self.own(2),
            strict_boot: self.strict_boot,
            clusters: vec![ClusterConfig { name, replicas: [seat(0), seat(1)] }],
        }
    }

    pub fn init(&self, kind: Kind) {
        tiebreak::init(&self.replica(A), Start::Found(kind)).expect("made");
        tiebreak::init(&self.replica(B), Start::Blank).expect("made");
        tiebreak::init_witness(&self.witness()).expect("made");
    }

    /// The configuration file of a node, as an operator would have it.
    pub fn file(&self, node: usize) -> PathBuf {
        let key = |i: usize| self.keys[i];
        let own = format!(
            "node = \"{0}\"\nkey = \"{0}.pem\"\nstate = \"{0}\"\nlisten = [\"{1}\"]\n",
            NODES[node], self.addresses[node]
        );
        let text = if node == W {
            format!(
                "{own}[[cluster]]\nname = \"orders\"\n[[cluster.replica]]\nnode = \"a\"\nkeys = [\"{}\"]\n\
                 [[cluster.replica]]\nnode = \"b\"\nkeys = [\"{}\"]\n",
                key(A),
                key(B)
            )
        } else {
            let other = |table: &str, i: usize| {
                format!(
                    "[{table}]\nnode = \"{}\"\naddresses = [\"{}\"]\nkeys = [\"{}\"]\n",
                    NODES[i],
                    self.addresses[i],
                    key(i)
                )
            };
            format!(
                "cluster = \"orders\"\nlease = \"1s\"\n{own}{}{}",
                other("peer", 1 - node),
                other("witness", W)
            )
        };
        let path = self.path(&format!("{}.toml", NODES[node]));
        std::fs::write(&path, text).expect("written");
        path
    }
}

/// What runs of the three.
pub struct Three {
    pub setup: Setup,
    replicas: [Option<(Arc<Cluster>, JoinHandle<()>)>; 2],
    witness: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Three {
    pub fn of(setup: Setup) -> Three {
        Three { setup, replicas: [None, None], witness: None }
    }

    /// A cluster of this kind, until A leads, and B and the witness are in.
    pub async fn start(setup: Setup, kind: Kind) -> Three {
        setup.init(kind);
        let mut three = Three::of(setup);
        for node in [W, A, B] {
            three.run(node).await;
        }
        three.until_paired(A).await;
        three
    }

    pub async fn run(&mut self, node: usize) {
        if node == W {
            let config = self.setup.witness();
            let open = || match WitnessNode::open(&config) {
                Err(WitnessError::Ledger(LedgerError::Locked { .. }) | WitnessError::Bind(_)) => None,
                opened => Some(opened.expect("opens")),
            };
            let witness = retried(async || open()).await;
            let (stop, stopped) = oneshot::channel();
            let task = tokio::spawn(async move {
                let stopped = async {
                    let _ = stopped.await;
                };
                witness.run(stopped).await.expect("goes on");
            });
            self.witness = Some((stop, task));
        } else {
            self.replicas[node] = Some(join(self.setup.replica(node)).await);
        }
    }

    /// A replica as in a crash; a witness in good order, which is the same to its votes.
    pub async fn kill(&mut self, node: usize) {
        if node == W {
            let (stop, task) = self.witness.take().expect("it runs");
            let _ = stop.send(());
            task.await.expect("no panic");
        } else {
            let (cluster, task) = self.replicas[node].take().expect("it runs");
            task.abort();
            let _ = task.await;
            drop(cluster);
        }
    }

    pub fn cluster(&self, node: usize) -> &Cluster {
        &self.replicas[node].as_ref().expect("it runs").0
    }

    pub async fn report(&self, node: usize) -> Report {
        self.cluster(node).report().await.expect("it runs")
    }

    /// Asks that replica until what it reports is as wanted, for a bounded time.
    pub async fn until(&self, node: usize, what: &str, holds: impl Fn(&Report) -> bool) -> Report {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let report = self.report(node).await;
            if holds(&report) {
                return report;
            }
            assert!(Instant::now() < deadline, "not before the deadline: {what}: {report:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn until_paired(&self, node: usize) -> Report {
        let paired = |report: &Report| report.role == RoleName::Paired && report.acts && both_linked(report);
        self.until(node, "it leads, and the other two are in", paired).await
    }

    pub async fn until_solo(&self, node: usize) -> Report {
        self.until(node, "it goes on alone", |report| report.role == RoleName::Solo && report.acts).await
    }
}

/// Whether it is linked to its peer and to the witness that it recognises.
pub fn both_linked(report: &Report) -> bool {
    let witness = report.others[1].is_some_and(|link| link.incarnation == report.adoption.incarnation);
    report.others[0].is_some() && witness
}

/// A replica that offers when it leads and joins when it follows.
pub async fn join(config: ReplicaConfig) -> (Arc<Cluster>, JoinHandle<()>) {
    let cluster = retried(async || match Cluster::join(config.clone(), Position(10)).await {
        // What ran before has not ended yet.
        Err(JoinError::Ledger(LedgerError::Locked { .. }) | JoinError::Bind(_)) => None,
        joined => Some(joined.expect("joins")),
    })
    .await;
    let cluster = Arc::new(cluster);
    let served = cluster.clone();
    let task = tokio::spawn(async move {
        let mut roles = served.roles();
        while let Some(role) = roles.next().await {
            match role {
                Role::Leader(leader) if leader.may_offer && leader.right != tiebreak::Right::Paired => {
                    let _ = served.offer(Position(10)).await;
                }
                Role::Standby(standby) => {
                    if let Some(offer) = standby.offer {
                        let _ = served.joined(&offer, offer.position).await;
                    }
                }
                _ => {}
            }
        }
    });
    (cluster, task)
}

/// Tries until there is something, for a bounded time.
async fn retried<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(done) = attempt().await {
            return done;
        }
        assert!(Instant::now() < deadline, "what ran before does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Copies a directory with the files in it.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// Runs the command, with this typed on its standard input.
pub async fn tiebreak(arguments: &[&str], file: &Path, typed: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.args(arguments).arg("--config").arg(file);
    let input = typed.to_owned();
    tokio::task::spawn_blocking(move || {
        use std::io::Write;
        use std::process::Stdio;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        // A command that reads nothing may be gone already.
        let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
        child.wait_with_output().expect("it ends")
    })
    .await
    .expect("no panic")
}

/// Asks for the status until it has all of these words, for a bounded time.
pub async fn until_status(file: &Path, words: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let said = told(&tiebreak(&["status"], file, "").await);
        if words.iter().all(|word| said.contains(word)) {
            return;
        }
        assert!(Instant::now() < deadline, "{words:?} is not in the status:\n{said}");
    }
}

pub fn told(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}
