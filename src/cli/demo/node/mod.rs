//! The processes of the demo: two replicas and a witness.
//!
//! How a data layer uses the library, file by file:
//! - `log.rs`: the data, durable on one disk; knows nothing of clusters.
//! - `replica.rs`: one loop that follows the roles; the place to start reading.
//! - `leading.rs`: what a leader keeps: its connection to the follower, its offer, the writes that wait.
//! - `following.rs`: what a follower does with what arrives.
//! - `service.rs`: the TCP around it.

mod following;
mod leading;
mod log;
mod replica;
mod service;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::NodeConfig;
use crate::{Cluster, WitnessNode};

/// One process of the demo.
#[derive(Subcommand, Debug)]
pub enum DemoNode {
    /// A replica
    Replica(RunReplica),
    /// The witness
    Witness {
        /// Its configuration
        #[arg(long)]
        config: PathBuf,
    },
}

/// A replica of the demo's key-value log.
#[derive(clap::Args, Debug)]
pub struct RunReplica {
    /// Its configuration
    #[arg(long)]
    config: PathBuf,
    /// The directory of its log
    #[arg(long)]
    data: PathBuf,
    /// Where clients reach it
    #[arg(long)]
    clients: SocketAddr,
    /// Where the other replica reaches it
    #[arg(long)]
    replication: SocketAddr,
    /// Where it reaches the other replica
    #[arg(long)]
    peer_replication: SocketAddr,
    /// Where the protected resource is
    #[arg(long)]
    resource: SocketAddr,
}

/// Exit code for a failure of this process's own, as in sysexits.h: after a failed sync it must not go on.
const SOFTWARE_FAILURE: u8 = 70;

impl DemoNode {
    /// Runs until SIGTERM, or until whoever started it is gone.
    ///
    /// # Errors
    /// If it cannot start.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        // Also when it is stopped and its parent is killed.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        exit_with_standard_input();
        crate::cli::log_to_stderr();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
            match self {
                DemoNode::Witness { config } => {
                    let NodeConfig::Witness(config) = NodeConfig::load(&config)? else {
                        bail!("{} is not of a witness", config.display());
                    };
                    let stop = async {
                        terminate.recv().await;
                    };
                    WitnessNode::open(&config)?.run(stop).await?;
                    Ok(ExitCode::SUCCESS)
                }
                DemoNode::Replica(replica) => replica.run(terminate).await,
            }
        })
    }
}

impl RunReplica {
    async fn run(self, terminate: tokio::signal::unix::Signal) -> anyhow::Result<ExitCode> {
        let NodeConfig::Replica(config) = NodeConfig::load(&self.config)? else {
            bail!("{} is not of a replica", self.config.display());
        };
        let (node, lease) = (config.own.node, config.lease);
        // The data first: the cluster is joined with the position that it really reaches.
        let log = log::Log::open(&self.data.join("log")).context("the log")?;
        let cluster = Cluster::join(config, crate::ids::Position(log.length())).await?;
        let ports = service::Ports::open(self.clients, self.replication).await?;
        let replica = replica::Replica::new(
            node,
            lease,
            cluster,
            log,
            service::Remote { peer: self.peer_replication, resource: self.resource },
        );
        match replica.run(ports, terminate).await {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => {
                tracing::error!("{error:#}");
                Ok(ExitCode::from(SOFTWARE_FAILURE))
            }
        }
    }
}

/// The pipe from whoever started this process closes when that one ends, however it ends.
fn exit_with_standard_input() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}
