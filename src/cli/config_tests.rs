use super::*;

const REPLICA: &str = include_str!("../../deploy/examples/a.toml");
const WITNESS: &str = include_str!("../../deploy/examples/witness.toml");
const KEY_B: &str = "tb1:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d";
const KEY_W: &str = "tb1:50e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc326";

fn parse(text: &str) -> Result<NodeConfig, ConfigError> {
    NodeConfig::parse(text, Path::new("/etc/tiebreak/n.toml"))
}

/// The message after one change of a shipped example.
fn wrong(example: &str, from: &str, to: &str) -> String {
    assert!(example.contains(from), "{from}");
    let message = parse(&example.replacen(from, to, 1)).unwrap_err().to_string();
    assert!(message.starts_with("/etc/tiebreak/n.toml:"), "{message}");
    message
}

fn replica(text: &str) -> ReplicaConfig {
    match parse(text).unwrap() {
        NodeConfig::Replica(replica) => replica,
        NodeConfig::Witness(_) => panic!("a replica was expected"),
    }
}

#[test]
fn the_shipped_examples_are_valid_and_fit_together() {
    let load = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/examples").join(name);
        NodeConfig::load(&path).unwrap()
    };
    let (NodeConfig::Replica(a), NodeConfig::Replica(b), NodeConfig::Witness(w)) =
        (load("a.toml"), load("b.toml"), load("witness.toml"))
    else {
        panic!("two replicas and a witness were expected")
    };
    let [in_w_a, in_w_b] = &w.clusters[0].replicas;
    assert_eq!((&in_w_a.node, &in_w_a.keys), (&b.peer.node, &b.peer.keys));
    assert_eq!((&in_w_b.node, &in_w_b.keys), (&a.peer.node, &a.peer.keys));
    assert_eq!((a.own.node, b.own.node, w.own.node), (b.peer.node, a.peer.node, a.witness.node));
    assert_eq!((a.cluster, a.lease, &a.witness), (b.cluster, b.lease, &b.witness));
    assert_eq!(a.cluster, w.clusters[0].name);
}

#[test]
fn every_example_that_is_shipped_is_checked() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/examples");
    let mut checked = 0;
    for entry in std::fs::read_dir(examples).unwrap() {
        NodeConfig::load(&entry.unwrap().path()).unwrap();
        checked += 1;
    }
    assert!(checked >= 3);
}

#[test]
fn the_commented_defaults_are_the_defaults() {
    let short: String = REPLICA
        .lines()
        .filter(|line| {
            !["lease", "keep_alive", "solo_after", "when_alone"].iter().any(|key| line.starts_with(key))
        })
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(replica(&short), replica(REPLICA));
    assert_eq!(replica(&short).lease, Duration::from_secs(2));
}

#[test]
fn never_and_stop_are_understood() {
    let text = REPLICA.replace("\"1s\"", "\"never\"").replace("\"continue\"", "\"stop\"");
    assert_eq!((replica(&text).solo_after, replica(&text).when_alone), (None, WhenAlone::Stop));
}

#[test]
fn an_unknown_field_is_named_with_its_place_and_the_nearest_known_one() {
    let message = wrong(REPLICA, "lease =", "leese =");
    assert!(message.contains("n.toml:9:1: unknown field `leese`"), "{message}");
    assert!(message.contains("did you mean `lease`?") && message.contains(" 9 | leese = "), "{message}");
    let message = wrong(REPLICA, "[witness]\nnode =", "[witness]\nnodes =");
    assert!(message.contains("did you mean `node`?"), "{message}");
    let message = wrong(WITNESS, "name = \"orders\"", "name = \"orders\"\nreplicas = []");
    assert!(message.contains("did you mean `replica`?"), "{message}");
    let message = wrong(REPLICA, "lease =", "zzzzzzzzzzzzz =");
    assert!(message.contains("known here: cluster, node, key"), "{message}");
    let message = wrong(REPLICA, "\"continue\"", "\"contine\"");
    assert!(message.contains("did you mean `continue`?"), "{message}");
}

#[test]
fn a_file_of_neither_form_is_told_about_both() {
    for text in ["", "node = \"a\"", "cluster = 7"] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.contains("[peer] and [witness]") && message.contains("[[cluster]]"), "{message}");
    }
    let message = wrong(REPLICA, "node = \"a\"\n", "");
    assert!(message.contains("missing field `node`"), "{message}");
    let message = wrong(REPLICA, "node = \"a\"", "node = ");
    assert!(message.contains("n.toml:3:"), "{message}");
}

#[test]
fn durations_have_units_and_bounds() {
    let message = wrong(REPLICA, "lease = \"2s\"", "lease = \"2\"");
    assert!(message.contains("n.toml:9:9") && message.contains("with its unit"), "{message}");
    let message = wrong(REPLICA, "lease = \"2s\"", "lease = \"150ms\"");
    assert!(message.contains("150ms, outside of 200ms to 10m"), "{message}");
    assert!(wrong(REPLICA, "\"15s\"", "\"1h\"").contains("outside of 1s to 5m"));
}

#[test]
fn a_healthy_peer_is_not_taken_for_silent_between_two_renewals() {
    let message = wrong(REPLICA, "\"1s\"", "\"300ms\"");
    assert!(message.contains("a healthy peer is heard every 400ms"), "{message}");
}

#[test]
fn going_alone_comes_before_the_end_of_the_lease() {
    let message = wrong(REPLICA, "\"1s\"", "\"2s\"");
    assert!(message.contains("solo_after = 2s is not shorter than lease = 2s"), "{message}");
    assert!(message.contains("1s leaves 1s for the answer"), "{message}");
    let message = wrong(REPLICA, "\"1s\"", "\"2500ms\"");
    assert!(message.contains("500ms after its lease has ended"), "{message}");
    assert!(wrong(REPLICA, "\"1s\"", "\"0s\"").contains("no time"));
    // The default follows the lease.
    let text = REPLICA.replace("lease = \"2s\"", "lease = \"200ms\"").replace("solo_after = \"1s\"", "");
    assert_eq!(replica(&text).solo_after, Some(Duration::from_millis(100)));
}

#[test]
fn three_nodes_have_three_names_and_three_keys() {
    assert!(wrong(REPLICA, "node = \"b\"", "node = \"a\"").contains("this node is called `a` as well"));
    assert!(wrong(REPLICA, "node = \"w\"", "node = \"b\"").contains("the peer is called `b` as well"));
    assert!(wrong(REPLICA, KEY_W, KEY_B).contains("already the key of the peer"));
    assert!(wrong(WITNESS, "node = \"b\"", "node = \"a\"").contains("called `a` as well"));
    assert!(wrong(WITNESS, "node = \"b\"", "node = \"w\"").contains("the witness is called `w` as well"));
    assert!(wrong(REPLICA, "node = \"a\"", "node = \"a b\"").contains("letters, digits"));
}

#[test]
fn a_key_speaks_for_one_node_of_one_cluster_at_a_witness() {
    let second = WITNESS[WITNESS.find("[[cluster]]").unwrap()..].replace("orders", "stock");
    let message = parse(&format!("{WITNESS}\n{second}")).unwrap_err().to_string();
    assert!(message.contains("already the key of node `a` of cluster `orders`"), "{message}");
    let again = second.replace("stock", "orders").replace("ca97", "0000").replace("3e23", "0000");
    assert!(parse(&format!("{WITNESS}\n{again}")).unwrap_err().to_string().contains("two clusters `orders`"));
    let fine = second.replace("ca97", "0000").replace("3e23", "0000");
    assert!(parse(&format!("{WITNESS}\n{fine}")).is_ok());
}

#[test]
fn keys_and_addresses_are_checked_where_they_stand() {
    let message = wrong(REPLICA, &KEY_B[KEY_B.len() - 8..], "");
    assert!(message.contains("n.toml:17:9") && message.contains("64 hexadecimal digits"), "{message}");
    assert!(wrong(REPLICA, &format!("\"{KEY_B}\""), "").contains("at least one key"));
    assert!(wrong(REPLICA, "b.example:7400", "b.example").contains("the port is missing"));
    assert!(wrong(REPLICA, "\"[::]:7400\"", "\"example:7400\"").contains("not an IP address"));
}

#[test]
fn nodes_can_always_meet() {
    let no_peer = "addresses = [\"b.example:7400\"]";
    assert!(replica(&REPLICA.replace(no_peer, "")).peer.addresses.is_empty());
    assert!(replica(&REPLICA.replace("listen = [\"[::]:7400\"]", "")).own.listen.is_empty());
    let neither = REPLICA.replace(no_peer, "").replace("listen = [\"[::]:7400\"]", "");
    assert!(parse(&neither).unwrap_err().to_string().contains("behind NAT, not both"));
    let message = wrong(REPLICA, "addresses = [\"w.example:7400\", \"[2001:db8::7]:7400\"]", "");
    assert!(message.contains("always dials its witness"), "{message}");
    assert!(wrong(WITNESS, "listen = [\"[::]:7400\"]", "").contains("only listens"));
}

#[test]
fn a_cluster_has_two_replicas() {
    let cut = &WITNESS[..WITNESS.rfind("[[cluster.replica]]").unwrap()];
    assert!(parse(cut).unwrap_err().to_string().contains("cluster `orders` lists 1 of its two replicas"));
    // A witness whose clusters all join by codes.
    let NodeConfig::Witness(none) =
        parse("node='w'\nkey='k'\nstate='s'\nlisten=['[::]:1']\ncluster=[]").unwrap()
    else {
        panic!("a witness")
    };
    assert!(none.clusters.is_empty());
}

#[test]
fn paths_start_at_the_file() {
    let own = replica(&REPLICA.replace("/etc/tiebreak/a.pem", "a.pem")).own;
    assert_eq!((own.key, own.state), ("/etc/tiebreak/a.pem".into(), "/var/lib/tiebreak".into()));
}
