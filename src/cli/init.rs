//! `tiebreak init`: the durable state of a node, made once.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, ValueEnum};

use crate::Start;
use crate::config::NodeConfig;
use crate::message::Kind;

/// Make the durable state of a node, once: it is never overwritten
#[derive(Args, Debug)]
pub struct Init {
    /// The node's configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// For a replica that has no data to keep: it is taken in by the one that has. A witness is always blank
    #[arg(long)]
    pub blank: bool,
    /// What the new cluster protects; chosen once
    #[arg(long, value_enum, default_value_t = Protects::Replicated, conflicts_with = "blank")]
    pub kind: Protects,
    /// Check the file and stop
    #[arg(long)]
    pub check_config: bool,
}

/// What a cluster protects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Protects {
    /// Data that both replicas hold: nothing acknowledged is lost
    Replicated,
    /// No data: an address, a job, a lock. Leadership alone, always under a lease
    Leadership,
}

impl Init {
    /// Makes it, and says what comes next.
    ///
    /// # Errors
    /// If there is a state already, or the disk fails.
    pub fn run(self) -> anyhow::Result<()> {
        let config = NodeConfig::load(&self.config)?;
        if self.check_config {
            println!("{}: good", self.config.display());
            return Ok(());
        }
        match config {
            NodeConfig::Witness(_) if self.kind == Protects::Leadership => bail!(
                "{} is the configuration of a witness, which learns from a leader what a cluster protects; give `--kind` where \
                 the cluster is made",
                self.config.display()
            ),
            NodeConfig::Witness(config) => {
                crate::init_witness(&config)?;
                println!(
                    "Made blank votes for {} cluster(s) in {}.",
                    config.clusters.len(),
                    config.own.state.display()
                );
                println!(
                    "They count once a leader takes the witness in. Start it: tiebreak witness --config {}",
                    shown(&self.config)
                );
            }
            NodeConfig::Replica(config) => {
                let start = match (self.blank, self.kind) {
                    (true, _) => Start::Blank,
                    (false, Protects::Replicated) => Start::Found(Kind::Replicated),
                    (false, Protects::Leadership) => Start::Found(Kind::Leadership),
                };
                let record = crate::init(&config, start)?;
                let state = config.own.state.display();
                if self.blank {
                    println!(
                        "Made the state of a blank replica in {state}. A leader takes it in when both run."
                    );
                } else {
                    let what = match self.kind {
                        Protects::Replicated => "replicated",
                        Protects::Leadership => "leadership",
                    };
                    println!("Made the {what} cluster {} ({}) in {state}.", record.name, record.cluster);
                    let keeps = match self.kind {
                        Protects::Replicated => "This replica's data is kept, and it leads first.",
                        Protects::Leadership => "This replica leads first.",
                    };
                    println!("{keeps} On the other replica, and on the witness:");
                    println!("  tiebreak init --blank --config FILE");
                }
            }
        }
        Ok(())
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
