//! One small TOML file per node.
//!
//! A file with `cluster = "…"` is a replica's, one with `[[cluster]]` is a witness's. What is read here is valid:
//! nobody checks it again. The `[agent]` table of a replica's file is read by `config/agent.rs`. Paths that are not absolute start at the directory of the file.

pub mod agent;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

pub use crate::config::{
    ClusterConfig, NodeConfig, OtherConfig, OwnConfig, ReplicaConfig, ReplicaKeys, WhenAlone, WitnessConfig,
};
use crate::edge::identity::Fingerprint;
use crate::ids::{ClusterName, NodeId};
use crate::limits::{
    ADDRESSES_PER_NODE_MAX, CLUSTERS_MAX, CONFIG_BYTES_MAX, KEEP_ALIVE_DEFAULT, KEEP_ALIVE_MAX,
    KEEP_ALIVE_MIN, KEYS_PER_NODE_MAX, LEASE_DEFAULT, LEASE_MAX, LEASE_MIN, RENEWALS_PER_LEASE,
};

/// What is wrong in a configuration file, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// Line and column, from 1, and the text of the line; `None` if it is about the whole file.
    pub place: Option<(usize, usize, String)>,
    /// What is wrong.
    pub what: String,
    /// What to do, if there is more to say.
    pub help: Option<String>,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some((line, column, _)) = &self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.what)?;
        if let Some((line, column, text)) = &self.place {
            let gutter = line.to_string().len();
            write!(f, "\n {line} | {text}\n {:gutter$} | {:>column$}", "", "^")?;
        }
        self.help.as_ref().map_or(Ok(()), |help| write!(f, "\n {help}"))
    }
}

impl NodeConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// If it cannot be read, or something in it is wrong.
    pub fn load(path: &Path) -> Result<NodeConfig, ConfigError> {
        let failed = |what: String, help: &str| ConfigError {
            path: path.into(),
            place: None,
            what,
            help: Some(help.into()),
        };
        let about = std::fs::metadata(path).map_err(|error| {
            failed(format!("cannot be read: {error}"), "give the node's configuration with `--config FILE`")
        })?;
        if about.len() > CONFIG_BYTES_MAX {
            let what = format!("has {} bytes, more than {CONFIG_BYTES_MAX}", about.len());
            return Err(failed(what, "it has to be the TOML file of one node"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| {
            failed(format!("cannot be read: {error}"), "it has to be a text file that this user may read")
        })?;
        NodeConfig::parse(&text, path)
    }

    /// Checks the text of a file. `path` is for messages, and for paths inside that are not absolute.
    ///
    /// # Errors
    /// If something in it is wrong.
    pub fn parse(text: &str, path: &Path) -> Result<NodeConfig, ConfigError> {
        let source = Source { text, path };
        let kind: Kind = toml::from_str(text).map_err(|error| source.toml(&error))?;
        match kind.cluster.as_ref().map(Spanned::get_ref) {
            Some(toml::Value::String(_)) => {
                source.replica(toml::from_str(text).map_err(|e| source.toml(&e))?)
            }
            Some(toml::Value::Array(_)) => source.witness(toml::from_str(text).map_err(|e| source.toml(&e))?),
            Some(_) => {
                let span = kind.cluster.as_ref().map(Spanned::span);
                Err(source.error(span, "`cluster` is neither a name nor a list", Some(KINDS.into())))
            }
            None => Err(source.error(None, "`cluster` is missing", Some(KINDS.into()))),
        }
    }

    /// What the node says of itself.
    pub fn own(&self) -> &OwnConfig {
        match self {
            NodeConfig::Replica(replica) => &replica.own,
            NodeConfig::Witness(witness) => &witness.own,
        }
    }

    /// All keys that may speak to this node.
    pub fn pins(&self) -> Vec<Fingerprint> {
        match self {
            NodeConfig::Replica(replica) => [&replica.peer.keys[..], &replica.witness.keys[..]].concat(),
            NodeConfig::Witness(witness) => {
                let replicas = witness.clusters.iter().flat_map(|cluster| &cluster.replicas);
                replicas.flat_map(|replica| replica.keys.iter().copied()).collect()
            }
        }
    }
}

const KINDS: &str = "a replica's file has `cluster = \"NAME\"` with [peer] and [witness]; \
                     a witness's file has one [[cluster]] for each cluster that it serves, or `cluster = []` where all of \
                     them join by `tiebreak invite`";

/// Enough of a file to tell which form it has.
#[derive(Deserialize)]
struct Kind {
    cluster: Option<Spanned<toml::Value>>,
}

type Text = Spanned<String>;
type Texts = Spanned<Vec<Text>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReplica {
    cluster: Text,
    node: Text,
    key: PathBuf,
    state: PathBuf,
    listen: Option<Texts>,
    keep_alive: Option<Text>,
    lease: Option<Text>,
    solo_after: Option<Text>,
    #[serde(default)]
    when_alone: WhenAlone,
    peer: Spanned<RawOther>,
    witness: Spanned<RawOther>,
    #[serde(rename = "agent")]
    _agent: Option<agent::RawAgent>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOther {
    node: Text,
    addresses: Option<Texts>,
    keys: Texts,
    /// It has not joined yet: `tiebreak join` and the agent fill in its key and addresses.
    joining: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWitness {
    node: Text,
    key: PathBuf,
    state: PathBuf,
    listen: Option<Texts>,
    keep_alive: Option<Text>,
    http: Option<Text>,
    #[serde(default)]
    strict_boot: bool,
    cluster: Vec<Spanned<RawCluster>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    name: Text,
    #[serde(default)]
    replica: Vec<RawReplicaKeys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReplicaKeys {
    node: Text,
    keys: Texts,
}

/// A text and where it came from; turns what serde read into what is valid.
struct Source<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Source<'_> {
    fn replica(&self, raw: RawReplica) -> Result<NodeConfig, ConfigError> {
        let own = self.own(&raw.node, raw.key, raw.state, raw.listen.as_ref(), raw.keep_alive.as_ref())?;
        let cluster = self.value(&raw.cluster)?;
        let lease = self.span_within(raw.lease.as_ref(), "lease", LEASE_DEFAULT, LEASE_MIN, LEASE_MAX)?;
        let solo_after = self.solo_after(raw.solo_after.as_ref(), lease)?;
        let mut names = BTreeMap::from([(own.node, "this node")]);
        let mut keys = BTreeMap::new();
        let peer = self.other(raw.peer.get_ref(), "the peer", &mut names, &mut keys)?;
        let witness = self.other(raw.witness.get_ref(), "the witness", &mut names, &mut keys)?;
        if witness.addresses.is_empty() {
            let what = "the witness has no `addresses`";
            let help = "a replica always dials its witness: addresses = [\"w.example:7400\"]";
            return Err(self.error(Some(raw.witness.span()), what, Some(help.into())));
        }
        if peer.addresses.is_empty() && own.listen.is_empty() {
            let what =
                "the replicas cannot meet: the peer has no `addresses` and this node does not `listen`";
            let help = "one of them may sit behind NAT, not both: give one of the two";
            return Err(self.error(Some(raw.peer.span()), what, Some(help.into())));
        }
        let when_alone = raw.when_alone;
        Ok(NodeConfig::Replica(ReplicaConfig { own, cluster, lease, solo_after, when_alone, peer, witness }))
    }

    fn witness(&self, raw: RawWitness) -> Result<NodeConfig, ConfigError> {
        let own = self.own(&raw.node, raw.key, raw.state, raw.listen.as_ref(), raw.keep_alive.as_ref())?;
        if own.listen.is_empty() {
            let help = "a witness only listens, it dials nobody: listen = [\"[::]:7400\"]";
            return Err(self.error(None, "`listen` is missing", Some(help.into())));
        }
        if let Some(http) = &raw.http {
            self.value::<std::net::SocketAddr>(http)?;
        }
        if raw.cluster.len() > CLUSTERS_MAX {
            let what =
                format!("a witness serves up to {CLUSTERS_MAX} clusters, this one has {}", raw.cluster.len());
            return Err(self.error(None, what, Some(KINDS.into())));
        }
        let (mut seen, mut keys) = (BTreeMap::new(), BTreeMap::new());
        let mut clusters = Vec::new();
        for cluster in &raw.cluster {
            let parsed = self.cluster(cluster, own.node, &mut keys)?;
            if seen.insert(parsed.name, ()).is_some() {
                let what = format!("there are two clusters `{}`", parsed.name);
                return Err(self.error(
                    Some(cluster.get_ref().name.span()),
                    what,
                    Some("each cluster of a witness has a name of its own".into()),
                ));
            }
            clusters.push(parsed);
        }
        Ok(NodeConfig::Witness(WitnessConfig { own, strict_boot: raw.strict_boot, clusters }))
    }

    fn cluster(
        &self,
        raw: &Spanned<RawCluster>,
        witness: NodeId,
        keys: &mut BTreeMap<Fingerprint, String>,
    ) -> Result<ClusterConfig, ConfigError> {
        let (span, raw) = (raw.span(), raw.get_ref());
        let name: ClusterName = self.value(&raw.name)?;
        let [first, second] = raw.replica.as_slice() else {
            let what = format!("cluster `{name}` lists {} of its two replicas", raw.replica.len());
            let help = "write [[cluster.replica]] with `node` and `keys` once for each of the two";
            return Err(self.error(Some(span), what, Some(help.into())));
        };
        let mut names = BTreeMap::from([(witness, "the witness")]);
        let mut replica = |raw: &RawReplicaKeys| {
            let node = self.name(&raw.node, "the other replica", &mut names)?;
            let of = format!("node `{node}` of cluster `{name}`");
            Ok(ReplicaKeys { node, keys: self.keys(&raw.keys, &of, keys)? })
        };
        Ok(ClusterConfig { name, replicas: [replica(first)?, replica(second)?] })
    }

    fn own(
        &self,
        node: &Text,
        key: PathBuf,
        state: PathBuf,
        listen: Option<&Texts>,
        keep_alive: Option<&Text>,
    ) -> Result<OwnConfig, ConfigError> {
        let beside = self.path.parent().unwrap_or(Path::new(""));
        Ok(OwnConfig {
            node: self.value(node)?,
            // An absolute path stays as it is.
            key: beside.join(key),
            state: beside.join(state),
            listen: self.list(listen, "listen", ADDRESSES_PER_NODE_MAX, |text| {
                text.parse().map_err(|_| {
                    format!(
                        "{text:?} is not an IP address with a port, like \"[::]:7400\" or \"10.0.0.1:7400\""
                    )
                })
            })?,
            keep_alive: self.span_within(
                keep_alive,
                "keep_alive",
                KEEP_ALIVE_DEFAULT,
                KEEP_ALIVE_MIN,
                KEEP_ALIVE_MAX,
            )?,
        })
    }

    fn other(
        &self,
        raw: &RawOther,
        who: &'static str,
        names: &mut BTreeMap<NodeId, &'static str>,
        keys: &mut BTreeMap<Fingerprint, String>,
    ) -> Result<OtherConfig, ConfigError> {
        let awaited = raw.joining.is_some() && who == "the peer" && raw.keys.get_ref().is_empty();
        Ok(OtherConfig {
            node: self.name(&raw.node, who, names)?,
            addresses: self.list(raw.addresses.as_ref(), "addresses", ADDRESSES_PER_NODE_MAX, |text| {
                text.parse().map_err(|error| format!("{text:?}: {error}"))
            })?,
            keys: if awaited { Vec::new() } else { self.keys(&raw.keys, who, keys)? },
        })
    }

    /// A name that nobody else in the cluster has.
    fn name(
        &self,
        raw: &Text,
        who: &'static str,
        names: &mut BTreeMap<NodeId, &'static str>,
    ) -> Result<NodeId, ConfigError> {
        let name = self.value(raw)?;
        match names.insert(name, who) {
            None => Ok(name),
            Some(other) => {
                let what = format!("{other} is called `{name}` as well");
                let help = "the three nodes of a cluster have three names";
                Err(self.error(Some(raw.span()), what, Some(help.into())))
            }
        }
    }

    /// At least one key, none of which speaks for somebody else.
    fn keys(
        &self,
        raw: &Texts,
        of: &str,
        owners: &mut BTreeMap<Fingerprint, String>,
    ) -> Result<Vec<Fingerprint>, ConfigError> {
        let keys: Vec<Fingerprint> = self.list(Some(raw), "keys", KEYS_PER_NODE_MAX, |text| {
            text.parse().map_err(|error| format!("{text:?} is not a key: {error}"))
        })?;
        if keys.is_empty() {
            let help = "run `tiebreak keys show FILE` on that node and list here what it prints";
            return Err(self.error(Some(raw.span()), "a node has at least one key", Some(help.into())));
        }
        for (key, text) in keys.iter().zip(raw.get_ref()) {
            if let Some(owner) = owners.insert(*key, of.into()) {
                let help = "each node has a key pair of its own; one key speaks for one node of one cluster";
                let what = format!("this key is already the key of {owner}");
                return Err(self.error(Some(text.span()), what, Some(help.into())));
            }
        }
        Ok(keys)
    }

    fn solo_after(&self, raw: Option<&Text>, lease: Duration) -> Result<Option<Duration>, ConfigError> {
        let Some(raw) = raw else { return Ok(Some(lease / 2)) };
        if raw.get_ref() == "never" {
            return Ok(None);
        }
        let solo_after = self.span(raw, " or \"never\"")?;
        let two_renewals = lease * 2 / RENEWALS_PER_LEASE;
        if !solo_after.is_zero() && solo_after < two_renewals {
            let show = humantime::format_duration;
            let what = format!(
                "solo_after = {} is too short for lease = {}: a healthy peer is heard every {} only, and would be taken \
                 for silent",
                show(solo_after),
                show(lease),
                show(lease / RENEWALS_PER_LEASE),
            );
            let help = format!("{} or more; without this line it is {}", show(two_renewals), show(lease / 2));
            return Err(self.error(Some(raw.span()), what, Some(help)));
        }
        if !solo_after.is_zero() && solo_after < lease {
            return Ok(Some(solo_after));
        }
        let show = humantime::format_duration;
        let what = if solo_after.is_zero() {
            "solo_after = 0s gives the peer no time to answer at all".into()
        } else {
            format!(
                "solo_after = {} is not shorter than lease = {}: the leader would ask to go on alone {} after \
                 its lease has ended",
                show(solo_after),
                show(lease),
                show(solo_after - lease),
            )
        };
        let help = format!(
            "it asks while its lease still runs; {} leaves {} for the answer; or \"never\" to have two copies always",
            show(lease / 2),
            show(lease - lease / 2),
        );
        Err(self.error(Some(raw.span()), what, Some(help)))
    }

    fn span_within(
        &self,
        raw: Option<&Text>,
        field: &str,
        default: Duration,
        min: Duration,
        max: Duration,
    ) -> Result<Duration, ConfigError> {
        let Some(raw) = raw else { return Ok(default) };
        let span = self.span(raw, "")?;
        if (min..=max).contains(&span) {
            return Ok(span);
        }
        let show = humantime::format_duration;
        let what = format!("`{field}` is {}, outside of {} to {}", show(span), show(min), show(max));
        let help = format!("without this line it is {}", show(default));
        Err(self.error(Some(raw.span()), what, Some(help)))
    }

    fn span(&self, raw: &Text, or: &str) -> Result<Duration, ConfigError> {
        humantime::parse_duration(raw.get_ref()).map_err(|error| {
            let what = format!("{:?} is not a duration: {error}", raw.get_ref());
            let help = format!("write it with its unit, like \"2s\" or \"200ms\"{or}");
            self.error(Some(raw.span()), what, Some(help))
        })
    }

    fn value<T: FromStr<Err: fmt::Display>>(&self, raw: &Text) -> Result<T, ConfigError> {
        let wrong = |error: T::Err| self.error(Some(raw.span()), error.to_string(), None);
        raw.get_ref().parse().map_err(wrong)
    }

    fn list<T>(
        &self,
        raw: Option<&Texts>,
        field: &str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, ConfigError> {
        let Some(raw) = raw else { return Ok(Vec::new()) };
        let items = raw.get_ref();
        if items.len() > max {
            let what = format!("`{field}` has {} entries, at most {max} are taken", items.len());
            return Err(self.error(Some(raw.span()), what, None));
        }
        let read =
            |item: &Text| parse(item.get_ref()).map_err(|what| self.error(Some(item.span()), what, None));
        items.iter().map(read).collect()
    }

    fn error(
        &self,
        span: Option<Range<usize>>,
        what: impl Into<String>,
        help: Option<String>,
    ) -> ConfigError {
        ConfigError {
            path: self.path.into(),
            place: span.map(|span| self.place(&span)),
            what: what.into(),
            help,
        }
    }

    fn place(&self, span: &Range<usize>) -> (usize, usize, String) {
        // A span at the very end of the file, or inside of a character, is moved to one that can be shown.
        let mut at = span.start.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[..at];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[start..].lines().next().unwrap_or("");
        (before.matches('\n').count() + 1, before[start..].chars().count() + 1, line.into())
    }

    /// What the TOML reader or serde found wrong. An unknown field is answered with the nearest known one.
    fn toml(&self, error: &toml::de::Error) -> ConfigError {
        let what = error.message().trim();
        let quoted: Vec<&str> = what.split('`').skip(1).step_by(2).collect();
        let help = match quoted.split_first() {
            Some((unknown, known)) if what.starts_with("unknown ") => match nearest(unknown, known) {
                Some(near) => Some(format!("did you mean `{near}`?")),
                None => Some(format!("known here: {}", known.join(", "))),
            },
            Some((missing, _)) if what.starts_with("missing field") => {
                Some(format!("every line that a node needs is in deploy/examples; add `{missing}` here"))
            }
            _ => None,
        };
        // The list of all that is known is long, and the nearest one is what people want.
        let what = what.split(", expected").next().filter(|_| what.starts_with("unknown ")).unwrap_or(what);
        self.error(error.span(), what, help)
    }
}

fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let far = |candidate: &&str| strsim::damerau_levenshtein(word, candidate);
    let near = known.iter().copied().min_by_key(far)?;
    (far(&near) <= word.chars().count().max(near.chars().count()).div_ceil(2)).then_some(near)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
