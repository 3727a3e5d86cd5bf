//! `tiebreak witness`: serve votes until told to stop.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::NodeConfig;
use crate::node::WitnessNode;

/// Run the witness
#[derive(Args, Debug)]
pub struct RunWitness {
    /// The witness's configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the file and stop
    #[arg(long)]
    pub check_config: bool,
}

impl RunWitness {
    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// If it cannot start, or a vote could not be made durable.
    pub fn run(self) -> anyhow::Result<()> {
        let NodeConfig::Witness(config) = NodeConfig::load(&self.config)? else {
            bail!(
                "{} is the configuration of a replica; a witness has [[cluster]] tables (see deploy/examples/witness.toml)",
                self.config.display()
            );
        };
        if self.check_config {
            println!("{}: good; a witness of {} cluster(s)", self.config.display(), config.clusters.len());
            return Ok(());
        }
        super::log_to_stderr();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
            let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
            let node = WitnessNode::open(&config)?;
            for address in node.local_addresses() {
                tracing::info!(%address, clusters = config.clusters.len(), "witness listens");
            }
            let stop = async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            node.run(stop).await?;
            tracing::info!("witness stopped");
            Ok(())
        })
    }
}
