//! `tiebreak keys rotate`: another key for a node, in three steps, none of which interrupts anything.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use super::block_on;
use super::files::{beside, sync_parent};
use crate::config::{NodeConfig, OtherConfig, ReplicaConfig};
use crate::edge::identity::Identity;
use crate::edge::quic::{Endpoint, Pins, Timing};
use crate::enrol::{AskError, Denial, Request, ask};

/// Give a node another key while it runs
///
/// Three steps: without an option, a new key is made and announced (the witness takes it by itself where the replica has
/// joined by a code; every other node lists it beside the old one in `keys`, and reads its configuration again). With
/// --finish, once all of them take it, this node changes to it. With --drop the old one counts no more at the witness.
#[derive(Args, Debug)]
pub struct Rotate {
    /// The node's configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Change to the new key, once the others take it
    #[arg(long, conflicts_with = "drop")]
    pub finish: bool,
    /// Let the old key count no more
    #[arg(long)]
    pub drop: bool,
}

impl Rotate {
    /// Does one step, and says what comes next.
    ///
    /// # Errors
    /// If another node does not take the new key yet, or cannot be asked.
    pub fn run(self) -> anyhow::Result<()> {
        let config = NodeConfig::load(&self.config)?;
        let key = config.own().key.clone();
        let (next, old) = (beside(&key, ".next"), beside(&key, ".old"));
        if self.drop {
            if next.exists() {
                bail!(
                    "this node has not changed to its new key yet, and the others would lose it: run --finish first, or \
                     remove {} if it is not to change",
                    next.display()
                );
            }
            if let NodeConfig::Replica(config) = &config {
                let only = Request::OnlyKey { cluster: config.cluster };
                at_witness(config, &Identity::load(&key)?, &only)?;
            }
            match fs::remove_file(&old) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => sync_parent(&old)?,
            }
            eprintln!(
                "The old key is gone. On the other nodes, remove it from `keys`, and let them read it (SIGHUP)."
            );
            return Ok(());
        }
        if self.finish {
            let identity =
                Identity::load(&next).context("there is no new key; run this without --finish first")?;
            if let NodeConfig::Replica(config) = &config {
                block_on(is_taken(config, &identity))?;
            }
            // A crash in between leaves the old key in both places, or the new one in its own: run it again.
            let _ = fs::remove_file(&old);
            fs::hard_link(&key, &old)?;
            fs::rename(&next, &key)?;
            sync_parent(&key)?;
            eprintln!(
                "Changed. Let this node read it (SIGHUP), then drop the old key: tiebreak keys rotate --drop"
            );
            return Ok(());
        }
        let identity = if next.exists() { Identity::load(&next)? } else { Identity::create(&next)? };
        if rustix::process::geteuid().is_root() {
            // Whoever runs the node has to be able to read it.
            let of = fs::metadata(&key)?;
            std::os::unix::fs::chown(&next, Some(of.uid()), Some(of.gid()))?;
        }
        if let NodeConfig::Replica(config) = &config {
            let announced = Request::NextKey { cluster: config.cluster, next: identity.fingerprint() };
            at_witness(config, &Identity::load(&key)?, &announced)?;
        }
        eprintln!("On every other node, list this key beside the old one, and let it read it (SIGHUP):");
        println!("{}", identity.fingerprint());
        eprintln!("Then: tiebreak keys rotate --finish --config {}", self.config.display());
        Ok(())
    }
}

/// Tells the witness. One that has the cluster in its configuration is changed there.
fn at_witness(config: &ReplicaConfig, identity: &Identity, request: &Request) -> anyhow::Result<()> {
    let asked = block_on(ask(identity, &config.witness.addresses, &config.witness.keys, request));
    match asked {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.downcast_ref(), Some(AskError::Denied(Denial::Wrong))) => {
            eprintln!(
                "No code has given this key a place at the witness: if that has {} in its configuration, change `keys` there.",
                config.cluster
            );
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Whether the new key may speak at the peer and at the witness.
async fn is_taken(config: &ReplicaConfig, identity: &Identity) -> anyhow::Result<()> {
    let pins = Pins::new(config.peer.keys.iter().chain(&config.witness.keys).copied());
    let endpoint = Endpoint::bind(identity, &[], pins, Timing::default())?;
    for other in [&config.peer, &config.witness] {
        speaks(&endpoint, config, other).await?;
    }
    endpoint.shutdown("asked").await;
    Ok(())
}

async fn speaks(endpoint: &Endpoint, config: &ReplicaConfig, other: &OtherConfig) -> anyhow::Result<()> {
    if other.addresses.is_empty() {
        eprintln!("{} cannot be asked from here; make sure that it lists the new key.", other.node);
        return Ok(());
    }
    let connection = endpoint.dial(&other.addresses, &other.keys).await?;
    if let Err(error) = crate::cli::status::exchange(&connection, config.own.node).await {
        bail!("{} does not take the new key yet, and the old one stays: {error}", other.node);
    }
    Ok(())
}
