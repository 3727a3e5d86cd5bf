//! `tiebreak invite`, `join`, `leave`, `clusters`, `replace-witness`: nodes come to know one another by codes.
//!
//! The configuration file is the last thing that `join` makes. Until then the same command run again goes on where it was
//! interrupted: the key stays, the witness knows it, and a marker beside the file says for which code the state was made.

mod files;
mod replica;
mod rotate;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use crate::config::{NodeConfig, ReplicaConfig, WitnessConfig};
use crate::edge::identity::Identity;
use crate::edge::quic::HostPort;
use crate::enrol::{Code, Request, ask};
use crate::ids::{ClusterName, NodeId};
use crate::limits::CODE_SECONDS;

use super::init::Protects;
pub(super) use replica::complete_in_background;
pub use rotate::Rotate;

/// Print a code with which a replica joins a cluster
///
/// On the witness: for the first replica of a new cluster. On a replica: for the other one. It is valid for ten minutes,
/// and for one node. Whoever reads it before that can take that node's place: do not send it where others read.
#[derive(Args, Debug)]
pub struct Invite {
    /// The new cluster's name; on the witness only
    pub cluster: Option<ClusterName>,
    /// The configuration file of the witness, or of a replica
    #[arg(long, short, value_name = "FILE", default_value = "/etc/tiebreak/witness.toml")]
    pub config: PathBuf,
    /// Where others reach this node, if not where it listens
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Vec<HostPort>,
}

impl Invite {
    /// Prints it.
    ///
    /// # Errors
    /// If the cluster exists, or the node cannot be asked.
    pub fn run(self) -> anyhow::Result<()> {
        match (NodeConfig::load(&self.config)?, self.cluster) {
            (NodeConfig::Witness(config), Some(cluster)) => {
                let at = reached_at(&self.address, &config.own.listen, None)?;
                let code = crate::node::invite(&config, cluster, at)?;
                say_code(&code, "the first replica", &format!("tiebreak join {code} --name a"))
            }
            (NodeConfig::Witness(_), None) => bail!("name the new cluster: tiebreak invite NAME"),
            (NodeConfig::Replica(config), cluster) => {
                if let Some(cluster) = cluster.filter(|cluster| *cluster != config.cluster) {
                    bail!("{} is a replica of {}, not of {cluster}", self.config.display(), config.cluster);
                }
                let at = reached_at(&self.address, &config.own.listen, config.witness.addresses.first())?;
                let code = block_on(replica::invite_again(&self.config, &config, at))?;
                say_code(&code, "the second replica", &format!("tiebreak join {code}"))
            }
        }
    }
}

fn say_code(code: &Code, whom: &str, command: &str) -> anyhow::Result<()> {
    eprintln!("Run this on {whom} of {} within {} minutes:", code.cluster, CODE_SECONDS / 60);
    eprintln!("  {command}");
    eprintln!("The code:");
    writeln!(io::stdout(), "{code}")?;
    Ok(())
}

/// Join a cluster with a code
///
/// Makes this node's key, registers it, makes its state and its configuration. The first replica founds the cluster and
/// prints the code for the second. Run again with the same code, it goes on where it was interrupted.
#[derive(Args, Debug)]
pub struct Join {
    /// What `tiebreak invite` or the first replica printed
    pub code: Code,
    /// This node's name; the second replica's is in its code
    #[arg(long)]
    pub name: Option<NodeId>,
    /// The second replica's name (b, unless this one is called b)
    #[arg(long)]
    pub peer: Option<NodeId>,
    /// Where this node listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:7400")]
    pub listen: SocketAddr,
    /// Where others reach this node, if not where it listens
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Vec<HostPort>,
    /// The configuration file to make [default: /etc/tiebreak/NAME.toml]; the key goes beside it
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The directory for the state
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/tiebreak")]
    pub state: PathBuf,
    /// What the new cluster protects; chosen once, by the first replica
    #[arg(long, value_enum, default_value_t = Protects::Replicated)]
    pub kind: Protects,
    /// On the first replica: wait until the second has joined
    #[arg(long)]
    pub wait: bool,
}

impl Join {
    /// Joins.
    ///
    /// # Errors
    /// If the code is not good, or the witness, the disk or an existing file does not let it.
    pub fn run(self) -> anyhow::Result<()> {
        let wait = self.wait;
        let joined = block_on(replica::join(self))?;
        let path = joined.config.display().to_string();
        eprintln!("Joined {} as {}. The configuration is {path}.", joined.cluster, joined.node);
        match &joined.second {
            Some(code) => {
                say_code(code, "the second replica", &format!("tiebreak join {code}"))?;
                if wait {
                    block_on(replica::wait_for_second(&joined.config))?;
                    eprintln!("The second replica has joined, and is in {path}.");
                } else {
                    eprintln!(
                        "`tiebreak agent` takes the second replica into {path} when it has joined; so does this"
                    );
                    eprintln!("command, run again with --wait.");
                }
            }
            None => eprintln!("Start it; the first replica takes it in by itself."),
        }
        Ok(())
    }
}

/// Take this node's key out of its cluster at the witness
///
/// The witness cuts it off. On the other replica, remove its key from the configuration, or invite another second
/// replica with `tiebreak invite`. When both have left, the name is free.
#[derive(Args, Debug)]
pub struct Leave {
    /// The configuration file of the replica
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Leave even if this replica alone may hold everything
    #[arg(long)]
    pub force: bool,
}

impl Leave {
    /// Leaves.
    ///
    /// # Errors
    /// If the witness cannot be asked, or this replica is needed.
    pub fn run(self) -> anyhow::Result<()> {
        let config = replica_config(&self.config)?;
        if !self.force {
            let state = crate::client::stopped_record(&config)
                .context("leaving takes a replica that does not run; stop it, or give --force")?;
            if state.sole && !config.peer.keys.is_empty() {
                bail!(
                    "{} may be the only one that holds everything: nobody can be elected without it. Let {} join first, \
                     or give --force",
                    config.own.node,
                    config.peer.node
                );
            }
        }
        let identity = Identity::load(&config.own.key)?;
        let request = Request::Leave { cluster: config.cluster };
        block_on(ask(&identity, &config.witness.addresses, &config.witness.keys, &request))?;
        eprintln!(
            "{} has left {}. Its key, configuration and state are left as they are, and of no use at the witness.",
            config.own.node, config.cluster
        );
        eprintln!("On {}: `tiebreak invite` lets another second replica join.", config.peer.node);
        Ok(())
    }
}

/// Show the clusters of this witness
#[derive(Args, Debug)]
pub struct Clusters {
    /// The configuration file of the witness
    #[arg(long, short, value_name = "FILE", default_value = "/etc/tiebreak/witness.toml")]
    pub config: PathBuf,
    /// One JSON object for each
    #[arg(long)]
    pub json: bool,
}

impl Clusters {
    /// Prints them.
    ///
    /// # Errors
    /// If the registrations cannot be read.
    pub fn run(self) -> anyhow::Result<()> {
        let config = witness_config(&self.config)?;
        let mut out = io::stdout().lock();
        for cluster in crate::node::clusters(&config)? {
            let fixed = config.clusters.iter().any(|fixed| fixed.name == cluster.name);
            let from = if fixed { "configuration" } else { "joined" };
            if self.json {
                let of = |replica: &crate::config::ReplicaKeys| serde_json::json!({ "node": replica.node, "keys": replica.keys });
                let replicas: Vec<_> = cluster.replicas.iter().map(of).collect();
                let line = serde_json::json!({ "cluster": cluster.name, "from": from, "replicas": replicas });
                writeln!(out, "{line}")?;
                continue;
            }
            writeln!(out, "{} ({from})", cluster.name)?;
            for replica in &cluster.replicas {
                let keys: Vec<String> = replica.keys.iter().map(ToString::to_string).collect();
                let keys = if keys.is_empty() { "has not joined".into() } else { keys.join(" ") };
                writeln!(out, "  {}  {keys}", replica.node)?;
            }
        }
        Ok(())
    }
}

/// Let another witness serve this cluster, while it runs
///
/// Print a code on the new witness with `tiebreak invite`, and run this with it on both replicas, the leading one first.
/// A running agent takes the new witness in; send SIGHUP to anything else that reads the file.
#[derive(Args, Debug)]
pub struct ReplaceWitness {
    /// What `tiebreak invite` printed on the new witness
    pub code: Code,
    /// The configuration file of this replica
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
}

impl ReplaceWitness {
    /// Registers the pair at the new witness and changes the configuration.
    ///
    /// # Errors
    /// If the code is not good, or the new witness or the disk does not let it.
    pub fn run(self) -> anyhow::Result<()> {
        let config = replica_config(&self.config)?;
        if config.cluster != self.code.cluster || self.code.second.is_some() {
            bail!("the code is not one for a new witness of {}", config.cluster);
        }
        block_on(replica::replace_witness(&self.config, &config, &self.code))?;
        eprintln!(
            "{} now names the witness {}. Let the node read it (SIGHUP to a running agent), and run the same on {}.",
            self.config.display(),
            self.code.witness,
            config.peer.node
        );
        Ok(())
    }
}

/// Where others reach this node: as given, or where it listens.
fn reached_at(
    given: &[HostPort],
    listen: &[SocketAddr],
    towards: Option<&HostPort>,
) -> anyhow::Result<Vec<HostPort>> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let port = |address: &SocketAddr| address.port();
    let here = || -> anyhow::Result<IpAddr> {
        // A UDP socket that is connected sends nothing, and knows which of this machine's addresses is used.
        let far = towards.map_or(("192.0.2.1", 7400), |at| (at.host.as_str(), at.port));
        let own = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.connect(far)?;
            socket.local_addr()
        });
        Ok(own.context("this machine's address cannot be found out; give --address HOST:PORT")?.ip())
    };
    let mut all = Vec::new();
    for address in listen {
        let ip = if address.ip().is_unspecified() { here()? } else { address.ip() };
        all.push(HostPort { host: ip.to_string(), port: port(address) });
    }
    if all.is_empty() {
        bail!("this node listens nowhere; give --address HOST:PORT");
    }
    Ok(all)
}

fn replica_config(path: &std::path::Path) -> anyhow::Result<ReplicaConfig> {
    match NodeConfig::load(path)? {
        NodeConfig::Replica(config) => Ok(config),
        NodeConfig::Witness(_) => bail!("{} is a witness's; this is a command for a replica", path.display()),
    }
}

fn witness_config(path: &std::path::Path) -> anyhow::Result<WitnessConfig> {
    match NodeConfig::load(path)? {
        NodeConfig::Witness(config) => Ok(config),
        NodeConfig::Replica(_) => {
            bail!("{} is a replica's; this is a command for the witness", path.display())
        }
    }
}

fn block_on<T, E: Into<anyhow::Error>>(work: impl Future<Output = Result<T, E>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work).map_err(Into::into)
}
