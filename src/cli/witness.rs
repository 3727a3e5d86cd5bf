//! `tiebreak witness`: serve votes until told to stop.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::http::{Pages, Reply};
use crate::agent::metrics::Page;
use crate::agent::systemd::{self, Pulse};
use crate::config::NodeConfig;
use crate::node::{ClusterFigures, WitnessFigures, WitnessNode};

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
    /// Serves until SIGTERM or SIGINT. SIGHUP reads clusters and keys again.
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
            if let Some(address) = super::config::agent::witness_http(&self.config) {
                let address = crate::agent::http::serve(address, WitnessPages(node.figures()))
                    .with_context(|| format!("cannot answer HTTP on {address}"))?;
                tracing::info!(%address, "answers HTTP");
            }
            let stop = async {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
            let (keys, path) = (node.keys(), self.config.clone());
            tokio::spawn(async move {
                while hangup.recv().await.is_some() {
                    let outcome = match NodeConfig::load(&path) {
                        Ok(NodeConfig::Witness(new)) => keys.reload(&new).await,
                        Ok(NodeConfig::Replica(_)) => Err("it is a replica's now".into()),
                        Err(error) => Err(error.to_string()),
                    };
                    match outcome {
                        Ok(()) => tracing::info!("clusters and keys were read again"),
                        Err(error) => tracing::error!("the old configuration stays in force: {error}"),
                    }
                }
            });
            systemd::ready();
            tokio::select! {
                served = node.run(stop) => served?,
                () = Pulse::new().run() => {}
            }
            systemd::stopping();
            tracing::info!("witness stopped");
            Ok(())
        })
    }
}

/// Clusters that are shown one by one.
const CLUSTERS_SHOWN_MAX: usize = 1000;

/// What monitors are told.
struct WitnessPages<F>(F);

impl<F: Fn() -> WitnessFigures + Send + Sync + 'static> Pages for WitnessPages<F> {
    fn page(&self, path: &str) -> Option<Reply> {
        match path {
            "/liveness" | "/health" => Some(Reply::verdict(true, "{}\n".into())),
            "/metrics" => Some(Reply::metrics(metrics(&(self.0)()))),
            _ => None,
        }
    }
}

fn metrics(figures: &WitnessFigures) -> String {
    let mut page = Page::default();
    page.gauge("witness_clusters", "Clusters that have asked since the start.", figures.clusters.len());
    let sum = |of: fn(&ClusterFigures) -> u64| figures.clusters.values().map(of).sum::<u64>();
    page.head("witness_granted_total", "counter", "Votes and confirmations that were given.");
    page.line("witness_granted_total", &[], sum(|of| of.granted));
    page.head("witness_refused_total", "counter", "Requests that were refused.");
    page.line("witness_refused_total", &[], sum(|of| of.refused));
    page.head("witness_held_back_total", "counter", "Requests that waited: their replica asked too often.");
    page.line("witness_held_back_total", &[], figures.held_back);
    page.head(
        "witness_door_total",
        "counter",
        "Who dialled, by what became of it, and what was turned away.",
    );
    for (outcome, count) in &figures.door {
        page.line("witness_door_total", &[("outcome", outcome)], *count);
    }
    page.syncs(figures.syncs, figures.sync_total, figures.sync_last);
    if figures.clusters.len() <= CLUSTERS_SHOWN_MAX {
        page.head("witness_promised_term", "gauge", "The term that was promised.");
        for (cluster, of) in &figures.clusters {
            page.line("witness_promised_term", &[("cluster", cluster.as_str())], of.promised);
        }
        page.head(
            "witness_confirmed_term",
            "gauge",
            "The term that was confirmed: its leader went on alone.",
        );
        for (cluster, of) in &figures.clusters {
            page.line("witness_confirmed_term", &[("cluster", cluster.as_str())], of.confirmed);
        }
    }
    page.text()
}
