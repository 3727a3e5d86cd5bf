//! What runs in the processes of the cluster: a witness, or a replica with its data layer. They take commands as lines
//! on standard input and tell what happens as JSON lines on standard output.

use std::io::BufRead;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tiebreak::config::{
    ClusterConfig, OtherConfig, OwnConfig, ReplicaConfig, ReplicaKeys, WhenAlone, WitnessConfig,
};
use tiebreak::testing::clock::Clock;
use tiebreak::{Cluster, WitnessNode};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};

use super::data::Data;
use super::log::Log;

/// In this variable of the environment a child finds what it is to be.
pub const VARIABLE: &str = "TIEBREAK_TEST_CHILD";
/// Every cluster of these tests has this name.
pub const CLUSTER: &str = "orders";

/// What a child is to be, and what its state is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub node: String,
    pub directory: PathBuf,
    pub listen: SocketAddr,
    pub lease_ms: u64,
    pub part: Part,
}

/// The part of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Part {
    Witness {
        /// Names and keys of the replicas.
        replicas: [(String, String); 2],
    },
    Replica {
        solo_after_ms: Option<u64>,
        /// Name, address and key of the peer.
        peer: (String, SocketAddr, String),
        /// The same of the witness.
        witness: (String, SocketAddr, String),
        /// Where its data layer listens.
        data: SocketAddr,
        /// Where the data layer of the peer is reached.
        peer_data: SocketAddr,
    },
}

impl Plan {
    pub fn key(&self) -> PathBuf {
        self.directory.join("key.pem")
    }

    pub fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    fn own(&self) -> OwnConfig {
        OwnConfig {
            node: self.node.parse().expect("a name"),
            key: self.key(),
            state: self.state(),
            listen: vec![self.listen],
            keep_alive: Duration::from_secs(2),
        }
    }

    pub fn replica(&self) -> ReplicaConfig {
        let Part::Replica { solo_after_ms, peer, witness, .. } = &self.part else {
            panic!("{} is no replica", self.node);
        };
        let other = |(node, address, key): &(String, SocketAddr, String)| OtherConfig {
            node: node.parse().expect("a name"),
            addresses: vec![address.to_string().parse().expect("an address")],
            keys: vec![key.parse().expect("a fingerprint")],
        };
        ReplicaConfig {
            own: self.own(),
            cluster: CLUSTER.parse().expect("a name"),
            lease: Duration::from_millis(self.lease_ms),
            solo_after: solo_after_ms.map(Duration::from_millis),
            when_alone: WhenAlone::Continue,
            peer: other(peer),
            witness: other(witness),
        }
    }

    pub fn witness(&self) -> WitnessConfig {
        let Part::Witness { replicas } = &self.part else {
            panic!("{} is no witness", self.node);
        };
        let keys = replicas.each_ref().map(|(node, key)| ReplicaKeys {
            node: node.parse().expect("a name"),
            keys: vec![key.parse().expect("a fingerprint")],
        });
        let cluster = ClusterConfig { name: CLUSTER.parse().expect("a name"), replicas: keys };
        WitnessConfig { own: self.own(), strict_boot: false, clusters: vec![cluster] }
    }
}

/// Nanoseconds on the clock that all processes of the machine share.
pub fn now() -> u64 {
    Clock.now().0
}

/// One line for the parent.
pub fn tell(event: serde_json::Value) {
    println!("{event}");
}

/// If this process is a child: runs until it is killed or cannot go on.
pub fn run_if_child() {
    let Ok(plan) = std::env::var(VARIABLE) else { return };
    // The test runner has begun a line of its own.
    println!();
    let plan: Plan = serde_json::from_str(&plan).expect("the parent writes plans");
    tracing::subscriber::set_global_default(Narrator).expect("the only subscriber");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let error = match plan.part {
        Part::Witness { .. } => runtime.block_on(witness(&plan)),
        Part::Replica { data, peer_data, .. } => runtime.block_on(replica(plan, data, peer_data)),
    };
    tell(json!({ "event": "error", "why": error }));
    std::process::exit(2);
}

/// Commands, until the parent is gone, and the process with it.
fn commands() -> mpsc::UnboundedReceiver<String> {
    let (to, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = to.send(line);
        }
        std::process::exit(0);
    });
    commands
}

async fn witness(plan: &Plan) -> String {
    let witness = match WitnessNode::open(&plan.witness()) {
        Ok(witness) => witness,
        Err(error) => return error.to_string(),
    };
    let _commands = commands();
    tell(json!({ "event": "ready" }));
    match witness.run(std::future::pending()).await {
        Ok(()) => "it ended by itself".into(),
        Err(error) => error.to_string(),
    }
}

async fn replica(plan: Plan, data: SocketAddr, peer_data: SocketAddr) -> String {
    let log = match Log::open(&plan.directory.join("log")) {
        Ok(log) => log,
        Err(error) => return error.to_string(),
    };
    // The voter has a thread of its own, so that the data layer's syncs do not hold it up.
    let (to, joined) = oneshot::channel();
    let (config, position) = (plan.replica(), tiebreak::ids::Position(log.position()));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let _ = to.send(Cluster::join(config, position).await);
            std::future::pending::<()>().await;
        });
    });
    let cluster = match joined.await.expect("joining does not panic") {
        Ok(cluster) => cluster,
        Err(error) => return error.to_string(),
    };
    let socket = match UdpSocket::bind(data).await {
        Ok(socket) => socket,
        Err(error) => return format!("{data}: {error}"),
    };
    tell(json!({ "event": "ready" }));
    let lease = Duration::from_millis(plan.lease_ms);
    Data::new(cluster, log, socket, peer_data, lease).run(commands()).await
}

/// What the library logs, as lines for the parent.
struct Narrator;

impl tracing::Subscriber for Narrator {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO && metadata.target().starts_with("tiebreak")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                use std::fmt::Write;
                let _ = write!(self.0, "{}={value:?} ", field.name());
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        tell(json!({ "event": "log", "at": now(), "text": text.0 }));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
