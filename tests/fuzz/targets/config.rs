//! Any text as a configuration: it is read or refused, never with a panic. A refusal says where: the line and its text,
//! or, where a line is missing, the key. What is read keeps the bounds.

use std::collections::BTreeSet;
use std::path::Path;

use tiebreak::config::{NodeConfig, ReplicaConfig, WitnessConfig};
use tiebreak::limits::{
    ADDRESSES_PER_NODE_MAX, KEEP_ALIVE_MAX, KEEP_ALIVE_MIN, KEYS_PER_NODE_MAX, LEASE_MAX, LEASE_MIN,
};

const FILE: &str = "/etc/tiebreak/n.toml";

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match NodeConfig::parse(text, Path::new(FILE)) {
        Ok(config) => {
            let own = config.own();
            assert!((KEEP_ALIVE_MIN..=KEEP_ALIVE_MAX).contains(&own.keep_alive));
            assert!(own.listen.len() <= ADDRESSES_PER_NODE_MAX);
            assert!(own.key.is_absolute() && own.state.is_absolute(), "paths begin at the file");
            let pins = config.pins();
            assert_eq!(pins.iter().collect::<BTreeSet<_>>().len(), pins.len(), "a key of two nodes");
            match &config {
                NodeConfig::Replica(replica) => check_replica(replica),
                NodeConfig::Witness(witness) => check_witness(witness),
            }
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(!error.what.is_empty() && shown.starts_with(FILE), "{shown}");
            match &error.place {
                Some((line, column, words)) => {
                    assert!(shown.contains(&format!("{FILE}:{line}:{column}: ")), "{shown}");
                    let lines: Vec<&str> = text.split('\n').collect();
                    let at = lines.get(line - 1).expect("a line of the file");
                    assert!(at.starts_with(words.as_str()), "another line: {shown}");
                    assert!((1..=at.chars().count() + 1).contains(column), "a column of the line: {shown}");
                }
                // Something is missing or too many: there is no line to show, but a name.
                None => assert!(error.what.contains('`') || error.what.contains("clusters"), "{shown}"),
            }
        }
    }
}

fn check_replica(config: &ReplicaConfig) {
    assert!((LEASE_MIN..=LEASE_MAX).contains(&config.lease));
    assert!(config.solo_after.is_none_or(|span| !span.is_zero() && span < config.lease));
    let names = BTreeSet::from([config.own.node, config.peer.node, config.witness.node]);
    assert_eq!(names.len(), 3, "three nodes have three names");
    for other in [&config.peer, &config.witness] {
        assert!((1..=KEYS_PER_NODE_MAX).contains(&other.keys.len()));
        assert!(other.addresses.len() <= ADDRESSES_PER_NODE_MAX);
    }
    assert!(!config.witness.addresses.is_empty(), "a witness is dialled");
    assert!(!config.peer.addresses.is_empty() || !config.own.listen.is_empty(), "the replicas can meet");
}

fn check_witness(config: &WitnessConfig) {
    assert!(!config.own.listen.is_empty() && !config.clusters.is_empty());
    let names: BTreeSet<_> = config.clusters.iter().map(|cluster| cluster.name).collect();
    assert_eq!(names.len(), config.clusters.len(), "a cluster's name is its own");
    for cluster in &config.clusters {
        let [a, b] = &cluster.replicas;
        assert!(a.node != b.node && a.node != config.own.node && b.node != config.own.node);
        assert!([a, b].iter().all(|replica| (1..=KEYS_PER_NODE_MAX).contains(&replica.keys.len())));
    }
}
