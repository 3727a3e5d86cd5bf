//! One witness under abuse: what it refuses is counted, and the other clusters are served all the while. Nothing here
//! looks at speed: each rule is seen by its counter, and by answers that come although somebody does their worst.
#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use tiebreak::config::{ClusterConfig, OwnConfig, ReplicaKeys, WitnessConfig};
use tiebreak::ids::{Boot, ClusterId, Incarnation, Term, VoterId};
use tiebreak::limits::*;
use tiebreak::message::{Reply, Request, Sender};
use tiebreak::testing::quic::{CloseCode, Connection, Endpoint, LinkError, Pins, Timing};
use tiebreak::testing::wire;
use tiebreak::{Fingerprint, Identity, WitnessFigures, WitnessNode};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);
/// Clusters of the witness: one is hostile, one is not.
const CLUSTERS: [&str; 2] = ["mad", "calm"];
const MAD: usize = 0;
const CALM: usize = 1;

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(DEADLINE, what).await.expect("it has to happen before the deadline")
}

/// A witness in this process, and a key of each cluster.
struct Stage {
    at: SocketAddr,
    witness: Fingerprint,
    keys: [Identity; 2],
    figures: Box<dyn Fn() -> WitnessFigures>,
    _directory: tempfile::TempDir,
}

impl Stage {
    fn start() -> Stage {
        let directory = tempfile::tempdir().expect("a directory");
        let keys = [(); 2].map(|()| Identity::generate().expect("a key"));
        let config = config(directory.path(), &keys);
        let witness = Identity::create(&config.own.key).expect("a key").fingerprint();
        tiebreak::init_witness(&config).expect("made");
        let node = WitnessNode::open(&config).expect("opens");
        let (at, figures) = (node.local_addresses()[0], Box::new(node.figures()));
        tokio::spawn(node.run(std::future::pending()));
        Stage { at, witness, keys, figures, _directory: directory }
    }

    /// A socket with that key, on one of the addresses of this host: so that one source is not the other.
    fn endpoint(&self, key: &Identity, host: u8) -> Endpoint {
        let from = SocketAddr::from(([127, 0, 0, host], 0));
        Endpoint::bind(key, &[from], Pins::default(), Timing::default()).expect("a socket")
    }

    async fn dial(&self, endpoint: &Endpoint) -> Result<Connection, LinkError> {
        let to = [self.at.to_string().parse().expect("an address")];
        let dialled = soon(endpoint.dial(&to, &[self.witness])).await;
        dialled.map_err(|mut failed| failed.attempts.remove(0).error)
    }

    fn door(&self, outcome: &str) -> u64 {
        (self.figures)().door[outcome]
    }

    async fn until_door(&self, outcome: &str, count: u64) {
        let met = async {
            while self.door(outcome) < count {
                tokio::task::yield_now().await;
            }
        };
        soon(met).await;
    }
}

fn config(directory: &Path, keys: &[Identity; 2]) -> WitnessConfig {
    let seat = |node: &str, key| ReplicaKeys { node: node.parse().expect("a name"), keys: vec![key] };
    let cluster = |(name, key): (&str, &Identity)| ClusterConfig {
        name: name.parse().expect("a name"),
        replicas: [
            seat("a", key.fingerprint()),
            seat("b", Identity::generate().expect("a key").fingerprint()),
        ],
    };
    WitnessConfig {
        own: OwnConfig {
            node: "w".parse().expect("a name"),
            key: directory.join("w.pem"),
            state: directory.join("state"),
            listen: vec!["127.0.0.1:0".parse().expect("an address")],
            keep_alive: Duration::from_secs(15),
        },
        strict_boot: false,
        clusters: CLUSTERS.into_iter().zip(keys).map(cluster).collect(),
    }
}

/// A question that any pinned key may ask at any time.
fn question() -> Vec<u8> {
    let voter = VoterId { node: "a".parse().expect("a name"), incarnation: Incarnation(1) };
    let from = Sender { cluster: ClusterId::NIL, voter, boot: Boot(1), term: Term::ZERO };
    wire::encode_request(&from, &Request::Status)
}

async fn is_served(connection: &Connection) {
    let answer = soon(connection.ask(&question())).await.expect("an answer");
    assert!(matches!(wire::decode_reply(&answer), Ok((_, Reply::Status(_)))));
}

#[tokio::test]
async fn a_flood_of_garbage_is_nothing_to_anybody() {
    let stage = Stage::start();
    let calm = stage.endpoint(&stage.keys[CALM], 2);
    let connection = stage.dial(&calm).await.expect("it gets in");
    let flood = UdpSocket::bind("127.0.0.3:0").expect("a port");
    flood.set_nonblocking(true).expect("it can");
    let mut answered = 0;
    let mut number: u32 = 0;
    for _ in 0..200 {
        for _ in 0..20 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Both kinds of head, and every length.
            let mut packet = vec![0u8; usize::try_from(number >> 8).expect("fits") % 1400 + 1];
            packet.iter_mut().zip(number.to_le_bytes().iter().cycle()).for_each(|(to, from)| *to = *from);
            packet[0] = if number.is_multiple_of(2) { 0x40 } else { 0xc3 } | (packet[0] & 0x0f);
            let _ = flood.send_to(&packet, stage.at);
        }
        is_served(&connection).await;
        // Never more than QUIC allows: nothing that is not a first packet of a connection is answered but by the offer of
        // a version, which is shorter than what it answers.
        let mut buffer = [0; 2048];
        while let Ok(length) = flood.recv(&mut buffer) {
            answered += length;
        }
    }
    assert!(answered < 4000 * 1200 / 10, "{answered} bytes in answer to garbage");
    assert_eq!(stage.door("admitted"), 1);
}

#[tokio::test]
async fn a_source_of_unknown_keys_is_heard_no_more_and_others_are() {
    let stage = Stage::start();
    let calm = stage.endpoint(&stage.keys[CALM], 2);
    let connection = stage.dial(&calm).await.expect("it gets in");
    let stranger = stage.endpoint(&Identity::generate().expect("a key"), 3);
    // It goes on until it is ignored: after its allowance, and long before the deadline.
    let mut tried = 0;
    while stage.door("ignored") == 0 {
        tried += 1;
        assert!(tried < 20 * STRAYS_PER_SOURCE_AT_ONCE, "nobody ignores it");
        let dial = async {
            if let Ok(connection) = stage.dial(&stranger).await {
                connection.closed().await;
            }
        };
        tokio::select! {
            () = dial => {}
            () = stage.until_door("ignored", 1) => {}
        }
        if tried.is_multiple_of(10) {
            is_served(&connection).await;
        }
    }
    assert!(stage.door("not_pinned") >= u64::from(STRAYS_PER_SOURCE_AT_ONCE));
    assert!(stage.door("line_left_out") > 0, "each has a line in the log");
    is_served(&connection).await;
    // Another source still gets in.
    let other = stage.endpoint(&stage.keys[MAD], 4);
    is_served(&stage.dial(&other).await.expect("it gets in")).await;
    assert_eq!(stage.door("admitted"), 2);
}

#[tokio::test]
async fn a_replica_that_asks_too_often_waits_and_others_do_not() {
    let stage = Stage::start();
    let [mad, calm] = [(MAD, 3), (CALM, 2)].map(|(who, host)| stage.endpoint(&stage.keys[who], host));
    let mut flood = tokio::task::JoinSet::new();
    let questions = 2 * REQUESTS_PER_REPLICA_AT_ONCE;
    // Over several connections: the allowance is the replica's.
    for _ in 0..4 {
        let connection = stage.dial(&mad).await.expect("it gets in");
        for _ in 0..questions / 4 {
            let connection = connection.clone();
            flood.spawn(async move { connection.ask(&question()).await });
        }
    }
    let connection = stage.dial(&calm).await.expect("it gets in");
    let held_back = || (stage.figures)().held_back;
    while held_back() == 0 {
        assert!(!flood.is_empty(), "nobody holds it back");
        if let Ok(Some(answer)) = timeout(Duration::ZERO, flood.join_next()).await {
            answer.expect("no panic").expect("an answer");
        }
        tokio::task::yield_now().await;
    }
    // The mad one waits for its turn now, and the calm one for nobody.
    is_served(&connection).await;
    // Nothing is lost: all of it is answered in the end.
    while let Some(answer) = soon(flood.join_next()).await {
        answer.expect("no panic").expect("an answer");
    }
}

#[tokio::test]
async fn a_key_that_dials_too_often_is_turned_away_and_others_are_not() {
    let stage = Stage::start();
    let [mad, calm] = [(MAD, 3), (CALM, 2)].map(|(who, host)| stage.endpoint(&stage.keys[who], host));
    let connection = stage.dial(&calm).await.expect("it gets in");
    let mut dials = 0;
    while stage.door("crowded") == 0 {
        dials += 1;
        assert!(dials < 20 * DIALS_PER_KEY_AT_ONCE, "nobody turns it away");
        if let Ok(connection) = stage.dial(&mad).await {
            // Whether it was let in is known only now.
            let _ = soon(connection.ask(&question())).await;
            connection.close(CloseCode::DONE, "and again");
        }
    }
    assert!(stage.door("admitted") > u64::from(DIALS_PER_KEY_AT_ONCE));
    is_served(&connection).await;
}
