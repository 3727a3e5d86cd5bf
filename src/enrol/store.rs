//! The registrations of a witness: one small file for each cluster, replaced whole, beside the votes and never in them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::config::{ClusterConfig, ReplicaKeys};
use crate::ids::ClusterName;
use crate::limits::REGISTRATION_BYTES_MAX;
use crate::wire;

use super::rules::Registration;

const CHECKSUM_BYTES: usize = 4;

/// What is wrong with the registrations, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk.
    #[error("cannot {what} {path}: {error}; check the disk, and that this user may write there", path = .path.display())]
    Io {
        /// What was to be done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Not what was written.
    #[error("the registration {0} is damaged; remove the file, and let the replicas join again")]
    Damaged(PathBuf),
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |error| StoreError::Io { what, path, error }
}

/// Where they are.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

/// Nobody else changes them while it lives.
#[derive(Debug)]
pub struct Locked {
    store: Store,
    _lock: File,
}

impl Store {
    /// Those of the witness with this state directory.
    pub fn of(state: &Path) -> Store {
        Store(state.join("registrations"))
    }

    /// Whether anything was ever registered.
    pub fn exists(&self) -> bool {
        self.0.is_dir()
    }

    /// Takes them for this process, waiting for whoever has them.
    ///
    /// # Errors
    /// If the directory cannot be made or opened.
    pub fn lock(&self) -> Result<Locked, StoreError> {
        match fs::DirBuilder::new().mode(0o700).create(&self.0) {
            Ok(()) => {
                if let Some(state) = self.0.parent() {
                    own_like(&self.0, state).map_err(failed("make", &self.0))?;
                    sync_directory(state).map_err(failed("sync", state))?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("make", &self.0)(error)),
        }
        let lock = File::open(&self.0).map_err(failed("open", &self.0))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed("lock", &self.0)(error.into()))?;
        Ok(Locked { store: self.clone(), _lock: lock })
    }

    /// All that can be read, and what is wrong with the rest.
    ///
    /// # Errors
    /// If the directory cannot be read. That there is none is no error.
    pub fn all(&self) -> Result<(Vec<Registration>, Vec<StoreError>), StoreError> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
            Err(error) => return Err(failed("read", &self.0)(error)),
        };
        let (mut found, mut wrong) = (Vec::new(), Vec::new());
        for entry in entries {
            let path = entry.map_err(failed("read", &self.0))?.path();
            if path.extension().is_none_or(|ending| ending != "cluster") {
                continue;
            }
            match read(&path) {
                Ok(Some(registration)) if path == self.path(registration.cluster) => found.push(registration),
                Ok(None) => {}
                Ok(Some(_)) => wrong.push(StoreError::Damaged(path)),
                Err(error) => wrong.push(error),
            }
        }
        found.sort_by_key(|registration| registration.cluster);
        Ok((found, wrong))
    }

    /// Those whose first replica has joined, as configured clusters.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn clusters(&self) -> Result<Vec<ClusterConfig>, StoreError> {
        let (found, wrong) = self.all()?;
        for error in wrong {
            tracing::error!("{error}; this cluster is not served");
        }
        Ok(found.iter().filter_map(Registration::cluster_config).collect())
    }

    fn path(&self, cluster: ClusterName) -> PathBuf {
        self.0.join(format!("{cluster}.cluster"))
    }
}

impl Registration {
    /// As a configured cluster, once somebody has joined.
    pub fn cluster_config(&self) -> Option<ClusterConfig> {
        let [first, second] = self.seats.as_slice() else { return None };
        let keys = |seat: &super::Seat| ReplicaKeys {
            node: seat.node,
            keys: seat.key.into_iter().chain(seat.next).collect(),
        };
        Some(ClusterConfig { name: self.cluster, replicas: [keys(first), keys(second)] })
    }
}

impl Locked {
    /// The registration of a cluster.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn load(&self, cluster: ClusterName) -> Result<Option<Registration>, StoreError> {
        read(&self.store.path(cluster))
    }

    /// Replaces it whole; durable on return.
    ///
    /// # Errors
    /// If the disk fails. Then it is as it was before, or, if the last sync failed, as it is to be.
    pub fn save(&self, registration: &Registration) -> Result<(), StoreError> {
        let mut bytes = wire::encode_plain(registration);
        bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
        let path = self.store.path(registration.cluster);
        let draft = path.with_extension("draft");
        let written = (|| {
            let _ = fs::remove_file(&draft);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(&bytes)?;
            own_like(&draft, &self.store.0)?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            sync_directory(&self.store.0)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written.map_err(failed("write", &path))
    }

    /// Forgets it; durable on return.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn remove(&self, cluster: ClusterName) -> Result<(), StoreError> {
        let path = self.store.path(cluster);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &path)(error));
            }
            _ => {}
        }
        sync_directory(&self.store.0).map_err(failed("sync", &self.store.0))
    }
}

fn read(path: &Path) -> Result<Option<Registration>, StoreError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(REGISTRATION_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    }
    let damaged = || StoreError::Damaged(path.to_owned());
    let (body, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(damaged)?;
    if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
        return Err(damaged());
    }
    wire::decode_plain(body).map(Some).map_err(|_| damaged())
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// What an operator makes as root has to be readable for the user that the witness runs as.
fn own_like(path: &Path, other: &Path) -> io::Result<()> {
    let (now, wanted) = (fs::metadata(path)?, fs::metadata(other)?);
    if (now.uid(), now.gid()) == (wanted.uid(), wanted.gid()) {
        return Ok(());
    }
    std::os::unix::fs::chown(path, Some(wanted.uid()), Some(wanted.gid()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enrol::{Secret, Ticket};

    #[test]
    fn a_registration_is_read_as_it_was_written_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::of(dir.path());
        let cluster: ClusterName = "orders".parse().unwrap();
        let kept = Registration::invited(cluster, Ticket::of(&Secret::draw().shown(), 5));
        let locked = store.lock().unwrap();
        assert_eq!(locked.load(cluster).unwrap(), None);
        locked.save(&kept).unwrap();
        assert_eq!(locked.load(cluster).unwrap(), Some(kept.clone()));
        assert_eq!(store.all().unwrap().0, vec![kept]);
        let path = store.path(cluster);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut torn = whole.clone();
            torn[at] ^= 1;
            fs::write(&path, &torn).unwrap();
            assert!(matches!(locked.load(cluster), Err(StoreError::Damaged(_))), "{at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(matches!(locked.load(cluster), Err(StoreError::Damaged(_))), "{at}");
        }
        assert_eq!(store.all().unwrap().1.len(), 1);
        locked.remove(cluster).unwrap();
        assert_eq!(locked.load(cluster).unwrap(), None);
    }
}
