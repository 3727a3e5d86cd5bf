//! `tiebreak recover` and `tiebreak replace`: an operator's work on a node that does not run.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use crate::config::NodeConfig;
use crate::message::ReplicaRecord;
use crate::{Recovery, replace, replace_witness};

/// Go on, on the surviving replica, without what the lost one acknowledged
///
/// For when the only replica that held everything is gone for good, and the other one is refused because of it. Never
/// automatic, and it can lose acknowledged writes. Make sure that the lost machine is off before you go on.
#[derive(Args, Debug)]
pub struct Recover {
    /// The configuration file of the surviving replica, which must not run
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Required: what the lost replica acknowledged, and this one does not hold, is lost
    #[arg(long, required = true)]
    pub accept_data_loss: bool,
}

impl Recover {
    /// Shows what would be lost, asks for the cluster's name, and makes the survivor the one that holds everything.
    ///
    /// # Errors
    /// If there is nothing to recover, the name is not the cluster's, or the disk fails.
    pub fn run(self) -> anyhow::Result<()> {
        let NodeConfig::Replica(config) = NodeConfig::load(&self.config)? else {
            bail!(
                "{} is the configuration of a witness, which holds no data to recover from; recover a replica, and if the \
                 witness is lost, run `tiebreak replace` on it",
                self.config.display()
            );
        };
        let recovery = Recovery::open(&config)?;
        let mut out = io::stdout().lock();
        describe(&mut out, &recovery)?;
        write!(out, "\nType the cluster's name to go on, anything else to leave it as it is: ")?;
        out.flush()?;
        let mut typed = String::new();
        io::stdin().lock().read_line(&mut typed)?;
        if typed.trim() != config.cluster.as_str() {
            bail!("nothing was changed: {:?} is not the cluster's name", typed.trim());
        }
        let term = recovery.accept_data_loss()?.term;
        writeln!(out, "\nDone: {} goes on alone, above term {term}. Start it.", config.own.node)?;
        writeln!(
            out,
            "When the lost machine comes back it begins again as blank, and copies this one's data over its own: save that \
             first if you want to look at it."
        )?;
        Ok(())
    }
}

fn describe(out: &mut impl Write, recovery: &Recovery) -> io::Result<()> {
    let found: &ReplicaRecord = recovery.found();
    writeln!(out, "Replica {} of cluster {}:", found.node, found.name)?;
    writeln!(
        out,
        "- it holds everything that was acknowledged before term {}, and what reached it while it took part in term {};",
        found.holds, found.holds
    )?;
    writeln!(
        out,
        "- IT DOES NOT HOLD what its peer acknowledged alone after that, in term {} or later: that is lost if you go on;",
        found.holds
    )?;
    writeln!(out, "- the highest term that it reached itself is {}.", found.term)?;
    for (part, known) in ["peer", "witness"].into_iter().zip(found.remembers) {
        if let Some(known) = known {
            writeln!(
                out,
                "- The {part} {} ({}) last said that it had reached term {}.",
                known.voter.node, known.voter.incarnation, known.term
            )?;
        }
    }
    for life in recovery.lost_lives() {
        writeln!(out, "- The life {life} of the peer is given up: wherever it is met, it stops.")?;
    }
    writeln!(
        out,
        "\nMAKE SURE THAT THE LOST MACHINE IS OFF. As long as it runs and reaches nobody, it may go on acknowledging; what \
         it writes to a protected resource is refused by its lower token."
    )
}

/// Begin a node again as blank, and let a leader take it in
///
/// For a state that is damaged, was restored from an image, or was copied to two machines. The earlier state is moved
/// aside and kept. A replica copies its data anew; a witness counts again as soon as each cluster's leader has met it.
#[derive(Args, Debug)]
pub struct Replace {
    /// The node's configuration file; the node must not run
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
}

impl Replace {
    /// Moves the state aside and makes a blank one.
    ///
    /// # Errors
    /// If the replica is the only one that holds everything, the state is in use or missing, or the disk fails.
    pub fn run(self) -> anyhow::Result<()> {
        let (aside, what) = match NodeConfig::load(&self.config)? {
            NodeConfig::Replica(config) => (
                replace(&config)?,
                "This replica is blank. A leader that goes on alone takes it in, and it copies the data anew; until then it \
                 votes for nobody.",
            ),
            NodeConfig::Witness(config) => (
                replace_witness(&config)?,
                "This witness is blank. It counts for a cluster again when its leader has met it; until then that cluster \
                 needs both replicas, or the one that went on alone.",
            ),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "The earlier state is in {}.", aside.display())?;
        writeln!(out, "{what} Start it.")?;
        Ok(())
    }
}
