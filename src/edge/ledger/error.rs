//! What can be wrong with a ledger. Each error names the file, the cause and the remedy.

use std::io;
use std::path::PathBuf;

use super::Purpose;

/// Why a ledger cannot be used. None of them is ever answered by starting from nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// There is none.
    #[error(
        "{path}: there is no ledger: this node was never initialised, or its state was wiped; if it is new or its \
         state is lost for good, run `tiebreak init --blank`, and a leader will take it in"
    )]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// There is one already, so none is made.
    #[error("{path}: there is a ledger already, and it is never overwritten; use it, or move it away")]
    Exists {
        /// Where it is.
        path: PathBuf,
    },
    /// Another process uses it.
    #[error(
        "{directory}: another process uses this state directory; stop that one, or use another directory"
    )]
    Locked {
        /// The state directory.
        directory: PathBuf,
    },
    /// The file was made by something else.
    #[error(
        "{path}: this is not a ledger of tiebreak; set the state directory to the right one, or move it away"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was made by a later release.
    #[error(
        "{path}: the ledger has format {found}, and this release reads {known}; install the later release"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u16,
        /// The format read here.
        known: u16,
    },
    /// The file ends too early.
    #[error(
        "{path}: the ledger has {found} bytes and should have at least {expected}: it was cut off; run \
         `tiebreak replace`, and a leader will take this node in"
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Bytes that it has.
        found: u64,
        /// Bytes that it should have.
        expected: u64,
    },
    /// The ledger belongs to something else of tiebreak's.
    #[error(
        "{path}: this is the ledger of a {found} and was opened for a {expected}; correct the state directory"
    )]
    WrongPart {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: Purpose,
        /// Whose it should be.
        expected: Purpose,
    },
    /// Neither copy of the header can be read, or they differ.
    #[error(
        "{path}: the header of the ledger is damaged in both copies; check the disk and run \
         `tiebreak replace`, and a leader will take this node in"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A vote cannot be read.
    #[error(
        "{path}: the vote in slot {slot} is lost: {cause}; check the disk and run \
         `tiebreak replace`, and a leader will take this node in"
    )]
    Lost {
        /// The file.
        path: PathBuf,
        /// Which slot; 0 counts the others.
        slot: u32,
        /// In which way.
        cause: String,
    },
    /// There is no room for another record. Nothing has changed.
    #[error("{path}: there is no room for another record: {cause}")]
    Full {
        /// The file.
        path: PathBuf,
        /// What is full, and what to do.
        cause: &'static str,
    },
    /// The disk failed.
    #[error("{path}: cannot {operation}: {source}; {}", remedy(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A write failed before, so that nothing is known of what is on disk.
    #[error(
        "{path}: an earlier write failed ({cause}), so nothing is known of what is on disk; the process has to stop \
         and to read it again"
    )]
    Poisoned {
        /// The file.
        path: PathBuf,
        /// The first failure.
        cause: String,
    },
}

impl LedgerError {
    /// Whether there is a ledger that cannot be read any more.
    pub fn is_damage(&self) -> bool {
        matches!(self, LedgerError::Short { .. } | LedgerError::Damaged { .. } | LedgerError::Lost { .. })
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => "remount the file system writable, then start again",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space on its disk, then start again"
        }
        io::ErrorKind::PermissionDenied => "give the file to the user that runs tiebreak, then start again",
        _ => "check the disk and the kernel's log, then start again",
    }
}
