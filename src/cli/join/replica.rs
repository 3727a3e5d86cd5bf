//! A replica's side of joining.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::files::{beside, replace, sync_parent, table, with_table};
use super::{Join, reached_at, replica_config};
use crate::cli::init::Protects;
use crate::client::{JoinError, Start, init};
use crate::config::{NodeConfig, OtherConfig, ReplicaConfig};
use crate::edge::clock::{Clock, random_u64};
use crate::edge::identity::{Fingerprint, Identity, IdentityError};
use crate::edge::ledger::LedgerError;
use crate::edge::quic::HostPort;
use crate::enrol::{AskError, Code, Denial, Request, Response, Second, Secret, ask, hash, seal_key};
use crate::ids::{ClusterName, NodeId};
use crate::message::Kind;

/// Between two looks whether the second replica has joined.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was done.
pub(super) struct Joined {
    pub(super) cluster: ClusterName,
    pub(super) node: NodeId,
    pub(super) config: PathBuf,
    /// The code for the second replica, of the first one.
    pub(super) second: Option<Code>,
}

/// Everything that is known before anything is done.
struct Plan {
    code: Code,
    node: NodeId,
    peer: NodeId,
    listen: std::net::SocketAddr,
    at: Vec<HostPort>,
    config: PathBuf,
    state: PathBuf,
    start: Start,
}

fn plan(of: Join) -> anyhow::Result<Plan> {
    let code = of.code;
    let (node, peer) = match &code.second {
        Some(second) => {
            if let Some(name) = of.name.filter(|name| *name != second.node) {
                bail!("the code is for a node called {}, not {name}; leave `--name` out", second.node);
            }
            (second.node, second.first)
        }
        None => {
            let node = of.name.context("give this node a name: --name a")?;
            let usual = if node.as_str() == "b" { "a" } else { "b" };
            (node, of.peer.unwrap_or(usual.parse()?))
        }
    };
    if node == peer || node == code.witness || peer == code.witness {
        bail!(
            "the three nodes of a cluster have three names: {node}, {peer}, and the witness {}",
            code.witness
        );
    }
    let start = match (&code.second, of.kind) {
        (Some(_), _) => Start::Blank,
        (None, Protects::Replicated) => Start::Found(Kind::Replicated),
        (None, Protects::Leadership) => Start::Found(Kind::Leadership),
    };
    let at = reached_at(&of.address, &[of.listen], code.witness_at.first())?;
    let config = of.config.unwrap_or_else(|| format!("/etc/tiebreak/{node}.toml").into());
    // The file's paths begin at its directory, the command's where it is run.
    let (config, state) = (std::path::absolute(config)?, std::path::absolute(of.state)?);
    Ok(Plan { code, node, peer, listen: of.listen, at, config, state, start })
}

/// Joins, or goes on with it.
pub(super) async fn join(of: Join) -> anyhow::Result<Joined> {
    let plan = plan(of)?;
    let before = existing(&plan)?;
    let marker = beside(&plan.config, ".joining");
    let resumes = before.is_some() || fs::read_to_string(&marker).is_ok_and(|of| of == mark(&plan.code));
    if !resumes && plan.state.join(crate::edge::ledger::FILE_NAME).exists() {
        bail!(
            "there is a state in {} already, of an earlier life; give another directory with --state, or move it away",
            plan.state.display()
        );
    }
    // A file that is there may name another one.
    let key = match NodeConfig::load(&plan.config) {
        Ok(config) => config.own().key.clone(),
        Err(_) => plan.config.with_extension("pem"),
    };
    let (identity, made) = match Identity::create(&key) {
        Ok(identity) => (identity, true),
        Err(IdentityError::Exists(_)) => (Identity::load(&key)?, false),
        Err(error) => return Err(error.into()),
    };
    let nonce = before.unwrap_or_else(|| format!("{:016x}", random_u64()));
    if let Err(error) = register(&plan, &identity, &nonce).await {
        if made && matches!(error, AskError::Denied(_)) {
            // Nobody knows it.
            let _ = fs::remove_file(&key);
        }
        return Err(error.into());
    }
    // No number: the second replica has joined before.
    let awaited = plan.code.second.is_none() && !nonce.is_empty();
    let second = awaited.then(|| second_code(&plan, &identity, &nonce));
    let (cluster, node) = (plan.code.cluster, plan.node);
    if !plan.config.exists() {
        replace(&marker, &mark(&plan.code)).with_context(|| format!("cannot write {}", marker.display()))?;
        let text = text(&plan, &nonce);
        let NodeConfig::Replica(config) = NodeConfig::parse(&text, &plan.config)? else {
            bail!("the configuration that was made is no replica's");
        };
        match init(&config, plan.start) {
            // It was made before the interruption.
            Ok(_) | Err(JoinError::Ledger(LedgerError::Exists { .. })) => {}
            Err(error) => return Err(error.into()),
        }
        replace(&plan.config, &text)
            .with_context(|| format!("cannot write {}; the same command goes on", plan.config.display()))?;
    }
    match fs::remove_file(&marker) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => sync_parent(&marker)?,
    }
    Ok(Joined { cluster, node, config: plan.config, second })
}

/// Whether the configuration was made before, by a join with the same code or another one of the same place; with the
/// number of its second code. One of another node is left as it is.
fn existing(plan: &Plan) -> anyhow::Result<Option<String>> {
    if !plan.config.exists() {
        return Ok(None);
    }
    let config = replica_config(&plan.config)?;
    let same = config.cluster == plan.code.cluster
        && config.own.node == plan.node
        && config.witness.keys.contains(&plan.code.witness_key)
        && plan.code.second.as_ref().is_none_or(|second| config.peer.keys.contains(&second.first_key));
    if !same {
        bail!(
            "{} is the configuration of {} of cluster {} already; give another file with --config",
            plan.config.display(),
            config.own.node,
            config.cluster
        );
    }
    Ok(Some(joining(&plan.config).unwrap_or_default()))
}

fn mark(code: &Code) -> String {
    Fingerprint(hash(&code.secret.shown())).to_string()
}

async fn register(plan: &Plan, identity: &Identity, nonce: &str) -> Result<(), AskError> {
    let code = &plan.code;
    let (cluster, node, shown) = (code.cluster, plan.node, code.secret.shown());
    let key = [code.witness_key];
    let Some(_) = &code.second else {
        let second_hash = hash(&second_secret(identity, cluster, nonce).shown());
        let second = plan.peer;
        let first = Request::First { cluster, shown, node, second, second_hash, second_key: None };
        ask(identity, &code.witness_at, &key, &first).await?;
        // After an interruption the code that is printed now is the one that counts.
        let again = Request::Again { cluster, second, second_hash };
        return match ask(identity, &code.witness_at, &key, &again).await {
            Ok(_) | Err(AskError::Denied(Denial::Used)) => Ok(()),
            Err(error) => Err(error),
        };
    };
    let at: Vec<String> = plan.at.iter().map(ToString::to_string).collect();
    let seal = seal_key(&code.secret, cluster, node, identity.fingerprint(), &at);
    let second = Request::Second { cluster, shown, node, at, seal };
    ask(identity, &code.witness_at, &key, &second).await.map(|_| ())
}

/// The secret of the second code is the first replica's own, and kept nowhere else.
fn second_secret(identity: &Identity, cluster: ClusterName, nonce: &str) -> Secret {
    Secret(identity.secret(&format!("second replica of {cluster}: {nonce}")))
}

fn second_code(plan: &Plan, identity: &Identity, nonce: &str) -> Code {
    let secret = second_secret(identity, plan.code.cluster, nonce);
    let second = Second {
        first: plan.node,
        first_key: identity.fingerprint(),
        first_at: plan.at.clone(),
        node: plan.peer,
    };
    Code { secret, second: Some(second), ..plan.code.clone() }
}

/// The configuration, as `join` makes it.
fn text(plan: &Plan, nonce: &str) -> String {
    let code = &plan.code;
    let witness =
        OtherConfig { node: code.witness, addresses: code.witness_at.clone(), keys: vec![code.witness_key] };
    let (peer, joining) = match &code.second {
        Some(second) => {
            let (addresses, keys) = (second.first_at.clone(), vec![second.first_key]);
            (OtherConfig { node: second.first, addresses, keys }, None)
        }
        None => (OtherConfig { node: plan.peer, addresses: Vec::new(), keys: Vec::new() }, Some(nonce)),
    };
    format!(
        "# Made by `tiebreak join`. Every line that there can be is in deploy/examples and deploy/agent.\n\
         cluster = \"{}\"\nnode = \"{}\"\nkey = {:?}\nstate = {:?}\nlisten = [\"{}\"]\n\n{}\n{}",
        code.cluster,
        plan.node,
        plan.config.with_extension("pem").display().to_string(),
        plan.state.display().to_string(),
        plan.listen,
        table("peer", &peer, joining),
        table("witness", &witness, None),
    )
}

/// The number of the code for the second replica, while that one has not joined.
fn joining(path: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct File {
        peer: Peer,
    }
    #[derive(Deserialize)]
    struct Peer {
        joining: Option<String>,
    }
    toml::from_str::<File>(&fs::read_to_string(path).ok()?).ok()?.peer.joining
}

/// Whether the second replica of the replica with this file is awaited.
fn is_joining(path: &Path) -> bool {
    joining(path).is_some()
}

/// Looks whether the second replica has joined, and puts it into the configuration. Whether it is there now.
async fn complete(path: &Path) -> anyhow::Result<bool> {
    let Some(nonce) = joining(path) else { return Ok(true) };
    let config = replica_config(path)?;
    let identity = Identity::load(&config.own.key)?;
    let request = Request::Other { cluster: config.cluster };
    let response = ask(&identity, &config.witness.addresses, &config.witness.keys, &request).await?;
    let Response::Other { node, key, at, seal } = response else { return Ok(false) };
    let secret = second_secret(&identity, config.cluster, &nonce);
    if node != config.peer.node || seal_key(&secret, config.cluster, node, key, &at) != seal {
        bail!(
            "the witness names {node} with the key {key} as the second replica, and that one has not had the code which was \
             printed here: DO NOT go on with this witness before you know why. `tiebreak invite --config {}` makes a new \
             code once that key is gone",
            path.display()
        );
    }
    let addresses = at.iter().map(|text| text.parse()).collect::<Result<Vec<HostPort>, _>>()?;
    let peer = OtherConfig { node, addresses, keys: vec![key] };
    amend(path, "peer", &table("peer", &peer, None))?;
    Ok(true)
}

fn amend(path: &Path, name: &str, table: &str) -> anyhow::Result<()> {
    let text = with_table(&fs::read_to_string(path)?, name, table);
    NodeConfig::parse(&text, path).context("the file cannot be amended; it was left as it is")?;
    replace(path, &text).with_context(|| format!("cannot write {}", path.display()))
}

/// Waits until the second replica is in the configuration.
pub(super) async fn wait_for_second(path: &Path) -> anyhow::Result<()> {
    loop {
        match complete(path).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if matches!(error.downcast_ref(), Some(AskError::Unreached(_))) => {
                eprintln!("tiebreak: {error:#}; trying again");
            }
            Err(error) => return Err(error),
        }
        Clock.after(LOOK_EVERY).await;
    }
}

/// The same beside a running agent, which reads the file again then; whenever a second replica is awaited.
pub(in crate::cli) async fn complete_in_background(path: PathBuf) {
    let mut said = String::new();
    loop {
        if is_joining(&path) {
            match complete(&path).await {
                Ok(true) => read_again(),
                Ok(false) => {}
                Err(error) => {
                    let words = format!("{error:#}");
                    if words != said {
                        tracing::warn!("the second replica is awaited: {words}");
                        said = words;
                    }
                }
            }
        }
        Clock.after(LOOK_EVERY).await;
    }
}

fn read_again() {
    tracing::info!("the second replica has joined");
    let own = rustix::process::getpid();
    if let Err(error) = rustix::process::kill_process(own, rustix::process::Signal::HUP) {
        tracing::error!("send SIGHUP to this agent, so that it reads its configuration again: {error}");
    }
}

/// A new code for the second replica, once the earlier one has left or its code has expired.
pub(super) async fn invite_again(
    path: &Path,
    config: &ReplicaConfig,
    at: Vec<HostPort>,
) -> anyhow::Result<Code> {
    let identity = Identity::load(&config.own.key)?;
    let nonce = format!("{:016x}", random_u64());
    let secret = second_secret(&identity, config.cluster, &nonce);
    let (cluster, second) = (config.cluster, config.peer.node);
    let again = Request::Again { cluster, second, second_hash: hash(&secret.shown()) };
    match ask(&identity, &config.witness.addresses, &config.witness.keys, &again).await {
        Err(AskError::Denied(Denial::Used)) => {
            bail!("{second} has joined; run `tiebreak leave` there before another one takes its place")
        }
        asked => asked?,
    };
    let awaited = OtherConfig { node: second, addresses: Vec::new(), keys: Vec::new() };
    amend(path, "peer", &table("peer", &awaited, Some(&nonce)))?;
    let Some(witness_key) = config.witness.keys.first().copied() else {
        bail!("the configuration lists no key of the witness")
    };
    Ok(Code {
        cluster,
        witness: config.witness.node,
        witness_key,
        witness_at: config.witness.addresses.clone(),
        secret,
        second: Some(Second {
            first: config.own.node,
            first_key: identity.fingerprint(),
            first_at: at,
            node: second,
        }),
    })
}

/// Registers the pair at another witness, and names it in the configuration.
pub(super) async fn replace_witness(path: &Path, config: &ReplicaConfig, code: &Code) -> anyhow::Result<()> {
    let Some(peer_key) = config.peer.keys.first().copied() else {
        bail!("the second replica has not joined yet; it has to, before the witness changes")
    };
    let identity = Identity::load(&config.own.key)?;
    let request = Request::First {
        cluster: config.cluster,
        shown: code.secret.shown(),
        node: config.own.node,
        second: config.peer.node,
        second_hash: [0; 32],
        second_key: Some(peer_key),
    };
    ask(&identity, &code.witness_at, &[code.witness_key], &request).await?;
    let witness =
        OtherConfig { node: code.witness, addresses: code.witness_at.clone(), keys: vec![code.witness_key] };
    amend(path, "witness", &table("witness", &witness, None))
}
