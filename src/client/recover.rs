//! Operators' work on a replica that does not run: to go on without what is lost, and to begin again as blank.

use std::path::PathBuf;

use crate::config::ReplicaConfig;
use crate::edge::clock::random_u128;
use crate::edge::disk::RealDisk;
use crate::edge::ledger::{Ledger, LedgerError, Purpose, Slot};
use crate::ids::Incarnation;
use crate::message::{Kind, Record, ReplicaRecord, Standing};
use crate::replica::{NotRecoverable, Replica, lost_lives, recovered};

use super::{JoinError, open_state};

/// Why a replica is not recovered or replaced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The state cannot be used.
    #[error(transparent)]
    State(#[from] JoinError),
    /// There is nothing to recover, or nothing to recover from.
    #[error(transparent)]
    Not(#[from] NotRecoverable),
    /// It is the only one that holds everything.
    #[error(
        "this replica went on alone, and is the only one that holds everything: to begin it again as blank would lose \
         what it acknowledged; start it, and let it take its peer in first. If its data is lost anyway, run \
         `tiebreak recover` on the other replica"
    )]
    IsSole,
}

impl From<LedgerError> for RecoverError {
    fn from(error: LedgerError) -> RecoverError {
        RecoverError::State(error.into())
    }
}

/// A survivor that may go on without what the lost replica acknowledged; nothing has changed yet.
#[derive(Debug)]
pub struct Recovery {
    ledger: Ledger,
    slot: Slot,
    found: ReplicaRecord,
    becomes: ReplicaRecord,
}

impl Recovery {
    /// Opens the state of a replica that does not run.
    ///
    /// # Errors
    /// If the state cannot be opened, is in use, or has nothing to recover.
    pub fn open(config: &ReplicaConfig) -> Result<Recovery, RecoverError> {
        let (ledger, slot, found) = open_state(config)?;
        let becomes = recovered(&found)?;
        Ok(Recovery { ledger, slot, found, becomes })
    }

    /// What the survivor has: everything acknowledged below the term that it `holds`, and nothing is known of what was
    /// acknowledged in that term and later after it was left behind.
    pub fn found(&self) -> &ReplicaRecord {
        &self.found
    }

    /// With what it goes on.
    pub fn becomes(&self) -> &ReplicaRecord {
        &self.becomes
    }

    /// Lives of the peer that are given up, for good.
    pub fn lost_lives(&self) -> Vec<Incarnation> {
        lost_lives(&self.found)
    }

    /// Goes on without what is lost. Before this the operator has to make sure that the lost replica is off.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn accept_data_loss(mut self) -> Result<ReplicaRecord, RecoverError> {
        let sealed = self.ledger.seal(self.slot, Some(&Record::Replica(self.becomes)), self.becomes)?;
        let proof = self.ledger.sync()?;
        Ok(sealed.release(&proof).expect("the sync covers what was sealed before it"))
    }
}

/// Begins a replica again as blank: its earlier state is moved aside, whatever is wrong with it, and a leader takes it
/// in as a new life. Returns where the earlier state is.
///
/// # Errors
/// If it is sole (its data would be lost), its state is in use or is not one of tiebreak's, or the disk fails.
pub fn replace(config: &ReplicaConfig) -> Result<PathBuf, RecoverError> {
    match open_state(config) {
        Ok((_, _, found)) if found.sole && found.standing == Standing::Member => {
            return Err(RecoverError::IsSole);
        }
        Ok(_) => {}
        Err(JoinError::Ledger(error)) if error.is_damage() => {}
        Err(error) => return Err(error.into()),
    }
    let incarnation = Incarnation(random_u128());
    let record = Replica::blank(config.own.node, config.cluster, Kind::Replicated, incarnation);
    let records = [Record::Replica(record)];
    Ok(Ledger::replace(&RealDisk, &config.own.state, Purpose::Replica, incarnation, &records)?)
}
