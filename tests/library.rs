//! The library as the program that embeds it sees it: a witness and two replicas in one process, over real sockets.

#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tiebreak::config::{
    ClusterConfig, OtherConfig, OwnConfig, ReplicaConfig, ReplicaKeys, WhenAlone, WitnessConfig,
};
use tiebreak::ids::Position;
use tiebreak::message::Kind;
use tiebreak::{Cluster, Fingerprint, Identity, Leader, Right, Role, Start, WitnessNode};

use crate::relay::{Flow, Network, Relay};

#[allow(dead_code, unreachable_pub, reason = "other tests use more of it")]
mod relay;

const NODES: [&str; 3] = ["a", "b", "w"];
const DEADLINE: Duration = Duration::from_secs(60);

/// Keys, addresses and configurations of the three.
struct Trio {
    directory: TempDir,
    addresses: Vec<SocketAddr>,
    /// Where the two replicas dial one another.
    between: [SocketAddr; 2],
    /// What a says to b, and b to a, whoever has dialled.
    flows: [Arc<Flow>; 2],
    _relays: Vec<Relay>,
    _network: Network,
    keys: Vec<Fingerprint>,
    lease: Duration,
}

impl Trio {
    fn new(lease: Duration) -> Trio {
        let directory = TempDir::new().expect("a directory");
        let sockets = NODES.map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port"));
        let addresses: Vec<SocketAddr> =
            sockets.iter().map(|socket| socket.local_addr().expect("bound")).collect();
        let network = Network::start().expect("relays");
        let flows: [Arc<Flow>; 2] = Default::default();
        let relay = |to: usize| {
            let there = network.relay(addresses[to], flows[1 - to].clone(), flows[to].clone());
            there.expect("a relay")
        };
        let relays = vec![relay(0), relay(1)];
        let between = [relays[0].address(), relays[1].address()];
        let key =
            |node: &str| Identity::create(&directory.path().join(format!("{node}.pem"))).expect("a key");
        let keys = NODES.iter().map(|node| key(node).fingerprint()).collect();
        Trio { directory, addresses, between, flows, _relays: relays, _network: network, keys, lease }
    }

    fn own(&self, i: usize) -> OwnConfig {
        OwnConfig {
            node: NODES[i].parse().expect("a name"),
            key: self.directory.path().join(format!("{}.pem", NODES[i])),
            state: self.directory.path().join(NODES[i]),
            listen: vec![self.addresses[i]],
            keep_alive: Duration::from_secs(15),
        }
    }

    fn other(&self, i: usize) -> OtherConfig {
        let address = self.between.get(i).unwrap_or(&self.addresses[i]);
        OtherConfig {
            node: NODES[i].parse().expect("a name"),
            addresses: vec![address.to_string().parse().expect("an address")],
            keys: vec![self.keys[i]],
        }
    }

    fn replica(&self, i: usize) -> ReplicaConfig {
        ReplicaConfig {
            own: self.own(i),
            cluster: "orders".parse().expect("a name"),
            lease: self.lease,
            solo_after: Some(self.lease / 2),
            when_alone: WhenAlone::Continue,
            peer: self.other(1 - i),
            witness: self.other(2),
        }
    }

    fn witness(&self) -> WitnessConfig {
        let seat =
            |i: usize| ReplicaKeys { node: NODES[i].parse().expect("a name"), keys: vec![self.keys[i]] };
        let name = "orders".parse().expect("a name");
        WitnessConfig {
            own: self.own(2),
            strict_boot: false,
            clusters: vec![ClusterConfig { name, replicas: [seat(0), seat(1)] }],
        }
    }
}

/// Waits until the replica leads so; takes and makes every offer meanwhile, since there is nothing to copy.
async fn until_leads(cluster: &Cluster, fits: impl Fn(&Leader) -> bool) {
    let mut roles = cluster.roles();
    let wait = async {
        while let Some(role) = roles.next().await {
            match role {
                Role::Leader(leader) if fits(&leader) => return,
                Role::Leader(leader) if leader.may_offer => {
                    let _ = cluster.offer(Position(0)).await;
                }
                Role::Standby(standby) => {
                    if let Some(offer) = standby.offer {
                        let _ = cluster.joined(&offer, offer.position).await;
                    }
                }
                _ => {}
            }
        }
        panic!("the replica has stopped");
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("it leads in time");
}

/// Shows: a program that hands over and ends at once has given its lease back all the same: the other one need not wait for
/// its end.
#[tokio::test]
async fn a_lease_that_was_given_back_is_heard_of_although_the_program_ends_at_once() {
    let trio = Trio::new(Duration::from_secs(8));
    tiebreak::init(&trio.replica(0), Start::Found(Kind::Replicated)).expect("made");
    tiebreak::init(&trio.replica(1), Start::Blank).expect("made");
    tiebreak::init_witness(&trio.witness()).expect("made");
    let witness = WitnessNode::open(&trio.witness()).expect("it listens");
    tokio::spawn(witness.run(std::future::pending()));
    let a = Cluster::join(trio.replica(0), Position(0)).await.expect("it starts");
    let b = Cluster::join(trio.replica(1), Position(0)).await.expect("it starts");
    let second = tokio::spawn(async move {
        until_leads(&b, |_| true).await;
        Instant::now()
    });
    until_leads(&a, |leader| leader.right == Right::Paired && leader.lease.is_some()).await;
    // Whoever has just started may have promised a lease in an earlier life, and waits for its end.
    tokio::time::sleep(trio.lease + trio.lease / 10).await;
    a.resign().await.expect("paired");
    // The first words of it are lost on the way.
    trio.flows[0].cut(true);
    a.stopped().await.expect("it resigns");
    let given_back = Instant::now();
    let flow = trio.flows[0].clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        flow.heal();
    });
    a.shutdown().await;
    let leads = second.await.expect("no panic");
    // The promise would have run for nearly a whole lease.
    assert!(leads - given_back < trio.lease / 2, "it waited for the end of the lease");
}
