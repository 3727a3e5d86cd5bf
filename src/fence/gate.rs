//! The gate. Its invariants:
//!
//! 1. The highest token admitted never goes back, whatever crashes.
//! 2. A token is let through only when a token at least as high is durable.
//! 3. After a token was let through, no lower one is. With [`Gate::admit_and`] this holds for the writes as well.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::edge::clock::random_u128;
use crate::edge::disk::{Disk, RealDisk};
use crate::edge::ledger::{FILE_NAME, Ledger, LedgerError, Purpose, Slot};
use crate::ids::{Incarnation, ResourceName, Token};
use crate::limits::RESOURCES_MAX;
use crate::message::{GateRecord, Record};

/// The token belongs to a leader that has been replaced. Its writer has to stop; trying again does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "token {offered} is stale: a writer with token {highest} was here; whoever holds the lower one was replaced and \
     has to stop"
)]
pub struct StaleToken {
    /// What the writer showed.
    pub offered: Token,
    /// The highest that was admitted.
    pub highest: Token,
}

/// Why a gate does not let a write through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// A newer leader was here.
    #[error(transparent)]
    Stale(#[from] StaleToken),
    /// There is no room for another resource. Those that are known go on.
    #[error(
        "{resource} is new here, and {RESOURCES_MAX} resources are kept already, which is all there is room for: use \
         other gates for some of them"
    )]
    TooMany {
        /// Which one is new.
        resource: ResourceName,
    },
    /// The gate's own state cannot be used. After an error of the disk it lets nothing through until it is opened
    /// again.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Keeps the highest token that was admitted to one resource, durably, and refuses lower ones.
///
/// Each resource has a gate of its own, in a directory of its own, used by one process at a time: the one that
/// does the writes. A gate is made once with [`Gate::create`]. Opening one whose state is gone is an error, since
/// a gate that has forgotten what it saw would admit anybody.
///
/// A token that is not new costs a comparison; a new one (once per change of leader) costs one sync. Calls may
/// come from any number of threads and may block: from async code, call within `spawn_blocking`, the write included.
///
/// ```
/// use tiebreak::fence::{Gate, GateError};
/// use tiebreak::ids::{Term, Token};
///
/// # fn main() -> Result<(), GateError> {
/// # let state = tempfile::tempdir().unwrap();
/// let directory = state.path().join("orders");
/// Gate::create(&directory)?;
/// let gate = Gate::open(&directory)?;
///
/// let mut orders = Vec::new();
/// let (replaced, present) = (Token::of(Term(3)), Token::of(Term(4)));
/// gate.admit_and(replaced, || orders.push("from the leader of term 3"))?;
/// gate.admit_and(present, || orders.push("from the leader of term 4"))?;
///
/// // The leader of term 3 was only paused and goes on now.
/// match gate.admit_and(replaced, || orders.push("too late")) {
///     Err(GateError::Stale(stale)) => assert_eq!((stale.offered, stale.highest), (replaced, present)),
///     other => panic!("{other:?}"),
/// }
/// assert_eq!(orders.len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Gate {
    inner: Mutex<Inner>,
}

struct Inner {
    ledger: Ledger,
    slot: Slot,
    highest: Token,
}

impl Gate {
    /// Makes the state of a new gate that has seen no token, durable on return. The directory is made if need be.
    ///
    /// # Errors
    /// [`LedgerError::Exists`] if there is one already; it is left as it is. [`LedgerError::Locked`] and
    /// [`LedgerError::Io`].
    pub fn create(directory: &Path) -> Result<(), GateError> {
        Gate::create_on(&RealDisk, directory, Incarnation(random_u128()))
    }

    /// Opens a gate for this process alone.
    ///
    /// # Errors
    /// [`LedgerError::Missing`] if it was never created or has lost its state, [`LedgerError::Locked`] if another
    /// process has it, and the other errors of its file.
    pub fn open(directory: &Path) -> Result<Gate, GateError> {
        Gate::open_on(&RealDisk, directory)
    }

    fn create_on(disk: &dyn Disk, directory: &Path, incarnation: Incarnation) -> Result<(), GateError> {
        let first = Record::Gate(GateRecord { highest: Token::default() });
        Ok(Ledger::create(disk, directory, Purpose::Gate, incarnation, &[first])?)
    }

    fn open_on(disk: &dyn Disk, directory: &Path) -> Result<Gate, GateError> {
        let (ledger, records) = Ledger::open(disk, directory, Purpose::Gate)?;
        let [(slot, Record::Gate(record))] = records[..] else {
            let cause = format!("it holds {} records, and a gate keeps one", records.len());
            return Err(LedgerError::Lost { path: directory.join(FILE_NAME), slot: 0, cause }.into());
        };
        Ok(Gate { inner: Mutex::new(Inner { ledger, slot, highest: record.highest }) })
    }

    /// The highest token that was admitted; 0 before the first.
    pub fn highest(&self) -> Token {
        self.lock().highest
    }

    /// Lets a token through if no higher one was; durable before it returns. Between this and the write another
    /// token can be admitted: where that matters, and where the write happens in this process,
    /// [`admit_and`](Gate::admit_and) leaves no such gap.
    ///
    /// # Errors
    /// [`GateError::Stale`] if a higher token was admitted, [`GateError::Ledger`] if the disk fails.
    pub fn admit(&self, token: Token) -> Result<(), GateError> {
        self.lock().admit(token)
    }

    /// Runs the write if no higher token was admitted, and admits no other token until it has returned.
    ///
    /// # Errors
    /// As [`admit`](Gate::admit); then the write did not run. The write must not come back to this gate: it would wait for
    /// itself.
    pub fn admit_and<T>(&self, token: Token, write: impl FnOnce() -> T) -> Result<T, GateError> {
        let mut inner = self.lock();
        inner.admit(token)?;
        Ok(write())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A write that panicked while it held the gate left the gate itself whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn admit(&mut self, token: Token) -> Result<(), GateError> {
        // Fails once the disk has failed.
        let mut proof = self.ledger.proof()?;
        if token < self.highest {
            return Err(StaleToken { offered: token, highest: self.highest }.into());
        }
        let record = (token > self.highest).then_some(Record::Gate(GateRecord { highest: token }));
        let admitted = self.ledger.seal(self.slot, record.as_ref(), token)?;
        if record.is_some() {
            proof = self.ledger.sync()?;
        }
        self.highest =
            admitted.release(&proof).expect("whatever was put into a gate's ledger is synced at once");
        Ok(())
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("highest", &self.highest()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::edge::disk::faulty::{Crash, FaultyDisk};

    fn directory() -> &'static Path {
        Path::new("/gate")
    }

    fn gate() -> (FaultyDisk, Gate) {
        let disk = FaultyDisk::new();
        Gate::create_on(&disk, directory(), Incarnation(1)).unwrap();
        let gate = Gate::open_on(&disk, directory()).unwrap();
        (disk, gate)
    }

    fn refusal(result: Result<(), GateError>) -> StaleToken {
        match result {
            Err(GateError::Stale(stale)) => stale,
            other => panic!("expected a refusal, not {other:?}"),
        }
    }

    #[test]
    fn a_lower_token_is_refused_with_both_numbers_and_an_equal_one_is_admitted() {
        let (_disk, gate) = gate();
        gate.admit(Token(5)).unwrap();
        gate.admit(Token(5)).unwrap();
        let stale = refusal(gate.admit(Token(4)));
        assert_eq!(stale, StaleToken { offered: Token(4), highest: Token(5) });
        assert!(stale.to_string().contains("token 4") && stale.to_string().contains("token 5"));
        gate.admit(Token(6)).unwrap();
    }

    #[test]
    fn a_new_token_costs_one_sync_and_any_other_costs_none() {
        let (disk, gate) = gate();
        let before = disk.syncs();
        gate.admit(Token(5)).unwrap();
        assert_eq!(disk.syncs(), before + 1);
        let operations = disk.operations();
        gate.admit(Token(5)).unwrap();
        refusal(gate.admit(Token(1)));
        assert_eq!(disk.operations(), operations);
    }

    #[test]
    fn whatever_was_admitted_is_still_refused_below_after_a_power_cut() {
        for seed in 0..200 {
            let (disk, gate) = gate();
            gate.admit(Token(5)).unwrap();
            disk.cut_power_after(seed % 2);
            gate.admit(Token(9)).unwrap_err();
            drop(gate);
            disk.crash(Crash::Seed(seed));
            let gate = Gate::open_on(&disk, directory()).unwrap();
            assert!([Token(5), Token(9)].contains(&gate.highest()), "seed {seed}: {:?}", gate.highest());
            refusal(gate.admit(Token(4)));
        }
    }

    #[test]
    fn the_write_does_not_run_when_the_sync_fails_nor_does_any_other_after_it() {
        let (disk, gate) = gate();
        gate.admit(Token(5)).unwrap();
        disk.fail_next_sync(Crash::Nothing);
        let result = gate.admit_and(Token(6), || panic!("the write ran"));
        assert!(matches!(result, Err(GateError::Ledger(LedgerError::Io { .. }))));
        let result = gate.admit_and(Token(5), || panic!("the write ran"));
        assert!(matches!(result, Err(GateError::Ledger(LedgerError::Poisoned { .. }))));
    }

    #[test]
    fn a_gate_that_lost_its_state_does_not_open() {
        let disk = FaultyDisk::new();
        let error = Gate::open_on(&disk, directory()).unwrap_err();
        assert!(matches!(error, GateError::Ledger(LedgerError::Missing { .. })));
    }

    #[test]
    fn among_concurrent_writers_no_write_follows_one_with_a_higher_token() {
        let (_disk, gate) = gate();
        let last = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (gate, last) = (&gate, &last);
                scope.spawn(move || {
                    for step in 0..200 {
                        let token = Token(step * 4 + writer);
                        // Errors are refusals here: another writer was faster.
                        let _ = gate.admit_and(token, || {
                            let before = last.swap(token.0, Ordering::SeqCst);
                            assert!(before <= token.0, "{before} came before {token}");
                        });
                    }
                });
            }
        });
        assert_eq!(gate.highest(), Token(last.into_inner()));
    }

    #[test]
    fn nobody_else_is_admitted_while_a_write_runs() {
        let (_disk, gate) = gate();
        gate.admit_and(Token(5), || assert!(gate.inner.try_lock().is_err(), "another could come in"))
            .unwrap();
    }

    #[test]
    fn a_write_that_panics_leaves_the_gate_usable() {
        let (_disk, gate) = gate();
        let write = || gate.admit_and(Token(5), || panic!("the write failed")).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(write)).is_err());
        refusal(gate.admit(Token(4)));
    }
}
