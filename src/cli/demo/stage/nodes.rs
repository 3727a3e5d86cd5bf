//! The three processes: their keys, configurations, ports and lives.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::config::NodeConfig;
use crate::edge::clock::random_u64;
use crate::message::Kind;
use crate::{Identity, Start};

use super::clients::Server;
use super::tally::Tally;

pub(super) const A: &str = "a";
pub(super) const B: &str = "b";
pub(super) const WITNESS: &str = "w";

/// Ports below those that the system hands out by itself: a node has to find its own again when it returns.
const PORTS: std::ops::Range<u64> = 20_000..32_000;
const PORT_ATTEMPTS_MAX: usize = 1000;

/// A directory for one performance.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new() -> anyhow::Result<Directory> {
        let path = std::env::temp_dir().join(format!("tiebreak-demo-{:016x}", random_u64()));
        DirBuilder::new().mode(0o700).create(&path).with_context(|| path.display().to_string())?;
        Ok(Directory(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn remove(self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} could not be removed: {error}", self.0.display());
        }
    }
}

/// A replica's ports beside the cluster's own.
#[derive(Clone, Copy)]
struct Ports {
    clients: SocketAddr,
    replication: SocketAddr,
}

/// A child process, and who reads what it says.
struct Running {
    child: Child,
    reader: JoinHandle<()>,
}

pub(super) struct Nodes {
    directory: PathBuf,
    resource: SocketAddr,
    ports: BTreeMap<&'static str, Ports>,
    running: BTreeMap<&'static str, Running>,
    tally: Tally,
}

impl Nodes {
    /// Makes keys, configurations and first states: A has the data, B and the witness are blank.
    pub(super) fn prepare(
        directory: &Path,
        lease: Duration,
        resource: SocketAddr,
        tally: Tally,
    ) -> anyhow::Result<Nodes> {
        let mut taken = Vec::new();
        let mut port = || free_port(&mut taken);
        let quic = BTreeMap::from([(A, port()?), (B, port()?), (WITNESS, port()?)]);
        let mut ports = BTreeMap::new();
        for name in [A, B] {
            ports.insert(name, Ports { clients: port()?, replication: port()? });
        }
        let mut keys = BTreeMap::new();
        for name in [A, B, WITNESS] {
            let home = directory.join(name);
            DirBuilder::new().mode(0o700).create(&home)?;
            keys.insert(name, Identity::create(&home.join("key.pem"))?.fingerprint().to_string());
        }
        let own = |name: &str| {
            format!(
                "key = \"key.pem\"\nstate = \"state\"\nlisten = [\"{}\"]\nkeep_alive = \"1s\"\n",
                quic[name]
            )
        };
        let other = |table: &str, name: &str| {
            let (address, key) = (quic[name], &keys[name]);
            format!("[{table}]\nnode = \"{name}\"\naddresses = [\"{address}\"]\nkeys = [\"{key}\"]\n")
        };
        for (name, peer) in [(A, B), (B, A)] {
            let text = format!(
                "cluster = \"demo\"\nnode = \"{name}\"\nlease = \"{}\"\n{}{}{}",
                humantime::format_duration(lease),
                own(name),
                other("peer", peer),
                other("witness", WITNESS)
            );
            make(directory, name, &text, name == B)?;
        }
        let replica =
            |name: &str| format!("[[cluster.replica]]\nnode = \"{name}\"\nkeys = [\"{}\"]\n", keys[name]);
        let clusters = format!("[[cluster]]\nname = \"demo\"\n{}{}", replica(A), replica(B));
        make(directory, WITNESS, &format!("node = \"{WITNESS}\"\n{}{clusters}", own(WITNESS)), true)?;
        Ok(Nodes { directory: directory.into(), resource, ports, running: BTreeMap::new(), tally })
    }

    pub(super) fn servers(&self) -> [Server; 2] {
        [A, B].map(|name| (name, self.ports[name].clients))
    }

    pub(super) fn server(&self, name: &str) -> SocketAddr {
        self.ports[name].clients
    }

    /// Starts one of them on the state that it has.
    pub(super) fn start(&mut self, name: &'static str) -> anyhow::Result<()> {
        let home = self.directory.join(name);
        let log =
            File::options().create(true).append(true).open(self.directory.join(format!("{name}.log")))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-node").arg(if name == WITNESS { "witness" } else { "replica" });
        command.arg("--config").arg(config_of(&home));
        if let Some(own) = self.ports.get(name) {
            let peer = self.ports[other(name)];
            command.arg("--data").arg(&home);
            command.arg("--clients").arg(own.clients.to_string());
            command.arg("--replication").arg(own.replication.to_string());
            command.arg("--peer-replication").arg(peer.replication.to_string());
            command.arg("--resource").arg(self.resource.to_string());
        }
        // A group of its own: Ctrl-C is for the demo, which ends its children itself.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        self.tally.started(name);
        let output = child.stdout.take().context("its output is a pipe")?;
        let tally = self.tally.clone();
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(status) = serde_json::from_str(&line) {
                    tally.told(name, status);
                }
            }
        });
        self.running.insert(name, Running { child, reader });
        Ok(())
    }

    /// `kill -9`.
    pub(super) async fn kill(&mut self, name: &'static str) -> anyhow::Result<()> {
        let Some(mut running) = self.running.remove(name) else { bail!("{name} does not run") };
        running.child.start_kill()?;
        self.tally.ended(name);
        running.child.wait().await?;
        // What it said before it died may still be on the way.
        Ok(running.reader.await?)
    }

    /// Stops it where it stands, like a machine that hangs.
    pub(super) fn pause(&self, name: &'static str) -> anyhow::Result<()> {
        kill_process(self.pid(name)?, Signal::STOP)?;
        self.tally.seen().paused.insert(name);
        Ok(())
    }

    /// Lets it go on, as if nothing had been.
    pub(super) fn go_on(&self, name: &'static str) -> anyhow::Result<()> {
        self.tally.seen().paused.remove(name);
        Ok(kill_process(self.pid(name)?, Signal::CONT)?)
    }

    fn pid(&self, name: &str) -> anyhow::Result<Pid> {
        let pid = self
            .running
            .get(name)
            .and_then(|running| running.child.id())
            .and_then(|id| i32::try_from(id).ok());
        pid.and_then(Pid::from_raw).with_context(|| format!("{name} does not run"))
    }

    /// The first that ended although nobody ended it.
    pub(super) fn fallen(&mut self) -> Option<String> {
        self.running.iter_mut().find_map(|(name, running)| {
            let status = running.child.try_wait().ok().flatten()?;
            Some(format!("{name} ended by itself: {status}"))
        })
    }

    /// Ends all of them.
    pub(super) async fn end(&mut self) {
        for (_, mut running) in std::mem::take(&mut self.running) {
            let _ = running.child.kill().await;
        }
    }
}

pub(super) fn other(name: &str) -> &'static str {
    if name == A { B } else { A }
}

fn config_of(home: &Path) -> PathBuf {
    home.join("node.toml")
}

fn make(directory: &Path, name: &str, text: &str, blank: bool) -> anyhow::Result<()> {
    let file = config_of(&directory.join(name));
    fs::write(&file, text)?;
    match NodeConfig::load(&file)? {
        NodeConfig::Replica(config) => {
            let start = if blank { Start::Blank } else { Start::Found(Kind::Replicated) };
            crate::init(&config, start)?;
        }
        NodeConfig::Witness(config) => crate::init_witness(&config)?,
    }
    Ok(())
}

fn free_port(taken: &mut Vec<u16>) -> anyhow::Result<SocketAddr> {
    for _ in 0..PORT_ATTEMPTS_MAX {
        let drawn = PORTS.start + random_u64() % (PORTS.end - PORTS.start);
        let port = u16::try_from(drawn)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let is_free = UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok();
        if is_free && !taken.contains(&port) {
            taken.push(port);
            return Ok(address);
        }
    }
    bail!("no free port between {} and {} on 127.0.0.1", PORTS.start, PORTS.end)
}
