//! `tiebreak init`: the durable state of a node, made once.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::NodeConfig;

/// Make the durable state of a node, once: it is never overwritten
#[derive(Args, Debug)]
pub struct Init {
    /// The node's configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// For a replica that has no data to keep: it is taken in by the one that has. A witness is always blank
    #[arg(long)]
    pub blank: bool,
    /// Check the file and stop
    #[arg(long)]
    pub check_config: bool,
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
                let record = crate::init(&config, self.blank)?;
                let state = config.own.state.display();
                if self.blank {
                    println!(
                        "Made the state of a blank replica in {state}. A leader takes it in when both run."
                    );
                } else {
                    println!("Made the cluster {} ({}) in {state}.", record.name, record.cluster);
                    println!(
                        "This replica's data is kept, and it leads first. On the other replica, and on the witness:"
                    );
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
