//! What an operator does on the machine of a witness, whether it runs or not.

use crate::config::{ClusterConfig, WitnessConfig};
use crate::edge::clock::wall_seconds;
use crate::edge::identity::{Identity, IdentityError};
use crate::edge::quic::HostPort;
use crate::enrol::{Code, Registration, Secret, Store, StoreError, Ticket};
use crate::ids::ClusterName;
use crate::limits::CLUSTERS_MAX;

/// Why nobody is invited.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InviteError {
    /// The configuration lists it.
    #[error(
        "cluster {0} is in the witness's configuration, with its keys; give the new one another name, or remove that entry"
    )]
    Configured(ClusterName),
    /// It has replicas.
    #[error(
        "cluster {0} has replicas; `tiebreak invite --config FILE` on one of them prints a code for the other, and `tiebreak \
         leave` on both frees the name"
    )]
    Registered(ClusterName),
    /// No more clusters.
    #[error("this witness has as many clusters as it may have; use another one")]
    Full,
    /// The key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The disk.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes the code with which the first replica of a new cluster joins; an earlier one that was not used is void. The
/// witness may run meanwhile. `at` is where replicas reach it.
///
/// # Errors
/// If the cluster exists, or the disk fails.
pub fn invite(config: &WitnessConfig, cluster: ClusterName, at: Vec<HostPort>) -> Result<Code, InviteError> {
    let witness_key = Identity::load(&config.own.key)?.fingerprint();
    let secret = Secret::draw();
    let ticket = Ticket::of(&secret.shown(), wall_seconds());
    let store = Store::of(&config.own.state);
    keep(&store, config, &Registration::invited(cluster, ticket))?;
    Ok(Code { cluster, witness: config.own.node, witness_key, witness_at: at, secret, second: None })
}

/// The clusters of a witness: those of its configuration and the registered ones.
///
/// # Errors
/// If the registrations cannot be read.
pub fn clusters(config: &WitnessConfig) -> Result<Vec<ClusterConfig>, StoreError> {
    let mut all = config.clusters.clone();
    all.extend(Store::of(&config.own.state).clusters()?);
    Ok(all)
}

/// Keeps the code, unless the cluster exists.
fn keep(store: &Store, config: &WitnessConfig, invited: &Registration) -> Result<(), InviteError> {
    if config.clusters.iter().any(|cluster| cluster.name == invited.cluster) {
        return Err(InviteError::Configured(invited.cluster));
    }
    let locked = store.lock()?;
    if locked.load(invited.cluster)?.is_some_and(|found| !found.seats.is_empty()) {
        return Err(InviteError::Registered(invited.cluster));
    }
    if store.all()?.0.len() >= CLUSTERS_MAX {
        return Err(InviteError::Full);
    }
    Ok(locked.save(invited)?)
}
