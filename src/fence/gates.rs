//! Gates of many resources in one directory. Its invariants, of each resource:
//!
//! 1. The highest token admitted never goes back, whatever crashes.
//! 2. A token is let through only when a token at least as high is durable.
//! 3. After a token was let through, no lower one is; with [`Gates::admit_and`] this holds for the writes as well.
//!
//! Callers of one resource wait for one another. Callers of different ones share syncs: whoever comes while one is under
//! way is part of the next.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::edge::clock::random_u128;
use crate::edge::disk::{Disk, RealDisk};
use crate::edge::ledger::{FILE_NAME, Ledger, LedgerError, Purpose, Slot};
use crate::ids::{Incarnation, ResourceName, Token};
use crate::limits::RESOURCES_MAX;
use crate::message::{Record, ResourceRecord};

use super::gate::{GateError, StaleToken};

/// Keeps, of each resource by its name, the highest token that was admitted, durably, and refuses lower ones.
///
/// The names need not be known before: a resource that was never seen has admitted token 0. At most
/// [`RESOURCES_MAX`] of them are kept, and none is ever forgotten, since a gate that forgets would admit anybody.
///
/// The directory is used by one process at a time: the one that does the writes. It is made once with
/// [`Gates::create`]; opening one whose state is gone is an error. A token that is not new costs a comparison, a new
/// one a sync, which callers of other resources share. Calls may come from any number of threads and may block:
/// from async code, call within `spawn_blocking`, the write included.
///
/// ```
/// use tiebreak::fence::{GateError, Gates};
/// use tiebreak::ids::{Term, Token};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let state = tempfile::tempdir()?;
/// let directory = state.path().join("gates");
/// Gates::create(&directory)?;
/// let gates = Gates::open(&directory)?;
/// let (orders, bills) = ("orders".parse()?, "bills".parse()?);
///
/// gates.admit_and(orders, Token::of(Term(4)), || println!("written"))?;
/// // Another resource has a history of its own.
/// gates.admit(bills, Token::of(Term(3)))?;
/// assert!(matches!(gates.admit(orders, Token::of(Term(3))), Err(GateError::Stale(_))));
/// # Ok(())
/// # }
/// ```
pub struct Gates {
    resources: Mutex<HashMap<ResourceName, Arc<Mutex<Resource>>>>,
    commits: Commits,
}

/// One of them.
#[derive(Debug, Default)]
struct Resource {
    /// Its place in the ledger, once it has one.
    slot: Option<Slot>,
    highest: Token,
}

impl Gates {
    /// Makes the state of gates that have seen no token, durable on return. The directory is made if need be.
    ///
    /// # Errors
    /// [`LedgerError::Exists`] if there is one already; it is left as it is. [`LedgerError::Locked`] and
    /// [`LedgerError::Io`].
    pub fn create(directory: &Path) -> Result<(), GateError> {
        Gates::create_on(&RealDisk, directory, Incarnation(random_u128()))
    }

    /// Opens them for this process alone.
    ///
    /// # Errors
    /// [`LedgerError::Missing`] if they were never created or have lost their state, [`LedgerError::Locked`] if another
    /// process has them, and the other errors of the file.
    pub fn open(directory: &Path) -> Result<Gates, GateError> {
        Gates::open_on(&RealDisk, directory)
    }

    fn create_on(disk: &dyn Disk, directory: &Path, incarnation: Incarnation) -> Result<(), GateError> {
        Ok(Ledger::create(disk, directory, Purpose::Gates, incarnation, &[])?)
    }

    fn open_on(disk: &dyn Disk, directory: &Path) -> Result<Gates, GateError> {
        let (ledger, records) = Ledger::open(disk, directory, Purpose::Gates)?;
        let mut resources = HashMap::new();
        for (number, (slot, record)) in (1_u32..).zip(records) {
            let Record::Resource(record) = record else { continue };
            let resource = Resource { slot: Some(slot), highest: record.highest };
            if resources.insert(record.resource, Arc::new(Mutex::new(resource))).is_some() {
                let cause = format!("the resource {} is kept twice", record.resource);
                return Err(LedgerError::Lost { path: directory.join(FILE_NAME), slot: number, cause }.into());
            }
        }
        Ok(Gates { resources: Mutex::new(resources), commits: Commits::of(ledger) })
    }

    /// The highest token that was admitted to a resource; 0 before the first.
    pub fn highest(&self, resource: ResourceName) -> Token {
        let known = lock(&self.resources).get(&resource).cloned();
        known.map_or(Token::default(), |resource| lock(&resource).highest)
    }

    /// Lets a token through if no higher one was; durable before it returns. Between this and the write another token
    /// can be admitted: where that matters, and where the write happens in this process,
    /// [`admit_and`](Gates::admit_and) leaves no such gap.
    ///
    /// # Errors
    /// [`GateError::Stale`] if a higher token was admitted, [`GateError::TooMany`] if the resource is new and there is
    /// no room for it, [`GateError::Ledger`] if the disk fails.
    pub fn admit(&self, resource: ResourceName, token: Token) -> Result<(), GateError> {
        self.admit_and(resource, token, || ())
    }

    /// Runs the write if no higher token was admitted to the resource, and admits no other token to it until the write
    /// has returned. Other resources do not wait.
    ///
    /// # Errors
    /// As [`admit`](Gates::admit); then the write did not run. The write must not come back here for the same resource:
    /// it would wait for itself.
    pub fn admit_and<T>(
        &self,
        resource: ResourceName,
        token: Token,
        write: impl FnOnce() -> T,
    ) -> Result<T, GateError> {
        let place = self.place(resource)?;
        let mut place = lock(&place);
        if token < place.highest {
            return Err(StaleToken { offered: token, highest: place.highest }.into());
        }
        let is_new = token > place.highest || place.slot.is_none();
        if is_new {
            let record = ResourceRecord { resource, highest: token };
            place.slot = Some(self.commits.commit(place.slot, record)?);
            place.highest = token;
        } else {
            // Fails once the disk has failed.
            self.commits.check()?;
        }
        Ok(write())
    }

    fn place(&self, resource: ResourceName) -> Result<Arc<Mutex<Resource>>, GateError> {
        let mut resources = lock(&self.resources);
        if !resources.contains_key(&resource) && resources.len() >= RESOURCES_MAX {
            return Err(GateError::TooMany { resource });
        }
        Ok(resources.entry(resource).or_default().clone())
    }
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gates").field("resources", &lock(&self.resources).len()).finish_non_exhaustive()
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    // A write that panicked while it held its resource left the resource itself whole.
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes records durable, those of callers who wait together with one sync. Whoever finds nobody at work does it for all.
struct Commits {
    queue: Mutex<Queue>,
    done: Condvar,
}

struct Queue {
    /// Absent while somebody syncs with it.
    ledger: Option<Ledger>,
    /// What the next sync makes durable, in the order of its tickets.
    waiting: Vec<(Option<Slot>, ResourceRecord)>,
    /// Tickets that were given, and those whose sync is over.
    given: u64,
    over: u64,
    /// How it ended, by ticket, until that is fetched.
    ended: HashMap<u64, Result<Slot, LedgerError>>,
}

impl Commits {
    fn of(ledger: Ledger) -> Commits {
        let queue =
            Queue { ledger: Some(ledger), waiting: Vec::new(), given: 0, over: 0, ended: HashMap::new() };
        Commits { queue: Mutex::new(queue), done: Condvar::new() }
    }

    /// Whether the disk has not failed.
    fn check(&self) -> Result<(), LedgerError> {
        let queue = lock(&self.queue);
        match &queue.ledger {
            Some(ledger) => ledger.proof().map(|_| ()),
            None => Ok(()),
        }
    }

    /// Returns when the record is durable, with its slot.
    fn commit(&self, slot: Option<Slot>, record: ResourceRecord) -> Result<Slot, LedgerError> {
        let mut queue = lock(&self.queue);
        queue.waiting.push((slot, record));
        queue.given += 1;
        let ticket = queue.given;
        loop {
            if let Some(ended) = queue.ended.remove(&ticket) {
                return ended;
            }
            let Some(ledger) = queue.ledger.take() else {
                queue = self.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let batch = std::mem::take(&mut queue.waiting);
            let first = queue.over + 1;
            drop(queue);
            let (ledger, ended) = write(ledger, &batch);
            queue = lock(&self.queue);
            queue.ended.extend((first..).zip(ended));
            queue.over = first + batch.len() as u64 - 1;
            queue.ledger = Some(ledger);
            self.done.notify_all();
        }
    }
}

/// One sync for all of them; of each the slot in which it is durable now.
fn write(
    mut ledger: Ledger,
    batch: &[(Option<Slot>, ResourceRecord)],
) -> (Ledger, Vec<Result<Slot, LedgerError>>) {
    let mut sealed = Vec::new();
    for (slot, record) in batch {
        let record = Record::Resource(*record);
        sealed.push(match slot {
            Some(slot) => ledger.seal(*slot, Some(&record), *slot),
            None => ledger.allot(&record).and_then(|slot| ledger.seal(slot, None, slot)),
        });
    }
    let mut synced = ledger.sync();
    let ended = sealed.into_iter().map(|sealed| {
        let sealed = sealed?;
        // The first one is told what the disk said, and the others that it has failed.
        let proof = std::mem::replace(&mut synced, ledger.proof())?;
        synced = Ok(proof.clone());
        Ok(sealed.release(&proof).expect("the sync covers what was sealed before it"))
    });
    let ended = ended.collect();
    (ledger, ended)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::edge::disk::faulty::{Crash, FaultyDisk};

    fn directory() -> &'static Path {
        Path::new("/gates")
    }

    fn gates() -> (FaultyDisk, Gates) {
        let disk = FaultyDisk::new();
        Gates::create_on(&disk, directory(), Incarnation(1)).unwrap();
        let gates = Gates::open_on(&disk, directory()).unwrap();
        (disk, gates)
    }

    fn name(number: u64) -> ResourceName {
        format!("resource-{number}").parse().unwrap()
    }

    #[test]
    fn each_resource_has_a_history_of_its_own_and_keeps_it_over_restarts() {
        let (disk, gates) = gates();
        gates.admit(name(1), Token(5)).unwrap();
        gates.admit(name(2), Token(3)).unwrap();
        gates.admit(name(1), Token(5)).unwrap();
        let error = gates.admit(name(1), Token(4)).unwrap_err();
        let GateError::Stale(stale) = error else { panic!("{error}") };
        assert_eq!(stale, StaleToken { offered: Token(4), highest: Token(5) });
        gates.admit(name(2), Token(4)).unwrap();
        drop(gates);
        let gates = Gates::open_on(&disk, directory()).unwrap();
        assert_eq!([1, 2, 3].map(|number| gates.highest(name(number))), [Token(5), Token(4), Token(0)]);
    }

    #[test]
    fn token_zero_of_a_new_resource_is_kept_as_well() {
        let (disk, gates) = gates();
        gates.admit(name(1), Token(0)).unwrap();
        let syncs = disk.syncs();
        gates.admit(name(1), Token(0)).unwrap();
        assert_eq!(disk.syncs(), syncs, "what is not new costs nothing");
    }

    #[test]
    fn whatever_was_admitted_is_refused_below_after_a_power_cut_at_any_operation() {
        for seed in 0..300 {
            let (disk, gates) = gates();
            gates.admit(name(1), Token(5)).unwrap();
            disk.cut_power_after(seed % 5);
            // A new resource, and a new token of a known one.
            let second = gates.admit(name(2), Token(7)).is_ok();
            let third = gates.admit(name(1), Token(9)).is_ok();
            drop(gates);
            disk.crash(Crash::Seed(seed));
            let gates = Gates::open_on(&disk, directory()).unwrap();
            let highest = [1, 2].map(|number| gates.highest(name(number)));
            assert!(highest[0] >= Token(5) && highest[0] <= Token(9), "seed {seed}: {highest:?}");
            assert!(!third || highest[0] == Token(9), "seed {seed}: {highest:?}");
            assert!(!second || highest[1] == Token(7), "seed {seed}: {highest:?}");
            gates.admit(name(1), Token(4)).unwrap_err();
        }
    }

    #[test]
    fn after_a_failed_sync_nothing_is_let_through_any_more() {
        let (disk, gates) = gates();
        gates.admit(name(1), Token(5)).unwrap();
        disk.fail_next_sync(Crash::Nothing);
        let result = gates.admit_and(name(1), Token(6), || panic!("the write ran"));
        assert!(matches!(result, Err(GateError::Ledger(LedgerError::Io { .. }))), "{result:?}");
        for token in [5, 6, 7] {
            let result = gates.admit_and(name(1), Token(token), || panic!("the write ran"));
            assert!(matches!(result, Err(GateError::Ledger(LedgerError::Poisoned { .. }))), "{result:?}");
        }
    }

    #[test]
    fn one_that_lost_its_state_does_not_open_and_there_is_no_room_for_endless_names() {
        let disk = FaultyDisk::new();
        assert!(matches!(
            Gates::open_on(&disk, directory()),
            Err(GateError::Ledger(LedgerError::Missing { .. }))
        ));
        let (_disk, gates) = gates();
        for number in 0..RESOURCES_MAX as u64 {
            lock(&gates.resources).entry(name(number)).or_default();
        }
        let error = gates.admit(name(RESOURCES_MAX as u64), Token(1)).unwrap_err();
        assert!(
            matches!(error, GateError::TooMany { .. }) && error.to_string().contains("resource-"),
            "{error}"
        );
        gates.admit(name(7), Token(1)).unwrap();
    }

    #[test]
    fn nobody_else_is_admitted_to_a_resource_while_a_write_to_it_runs() {
        let (_disk, gates) = gates();
        let write = || {
            assert!(gates.place(name(1)).unwrap().try_lock().is_err(), "another could come in");
            gates.admit(name(2), Token(1)).unwrap();
        };
        gates.admit_and(name(1), Token(5), write).unwrap();
    }

    #[test]
    fn among_concurrent_writers_no_write_follows_one_with_a_higher_token_and_syncs_are_shared() {
        const RESOURCES: u64 = 8;
        const STEPS: u64 = 60;
        let (disk, gates) = gates();
        let last: Vec<AtomicU64> = (0..RESOURCES).map(|_| AtomicU64::new(0)).collect();
        let before = disk.syncs();
        std::thread::scope(|scope| {
            for writer in 0..RESOURCES * 2 {
                let (gates, last) = (&gates, &last[usize::try_from(writer % RESOURCES).unwrap()]);
                scope.spawn(move || {
                    for step in 0..STEPS {
                        let token = Token(step * 2 + writer / RESOURCES + 1);
                        // Errors are refusals here: the other writer was faster.
                        let _ = gates.admit_and(name(writer % RESOURCES), token, || {
                            let before = last.swap(token.0, Ordering::SeqCst);
                            assert!(before <= token.0, "{before} came before {token}");
                        });
                    }
                });
            }
        });
        for (number, last) in (0..).zip(&last) {
            assert_eq!(gates.highest(name(number)), Token(last.load(Ordering::SeqCst)));
        }
        let syncs = disk.syncs() - before;
        assert!(syncs < RESOURCES * STEPS * 2, "{syncs} syncs");
    }

    proptest! {
        /// Against a model that is a map; the gates are opened again now and then.
        #[test]
        fn they_admit_what_a_map_of_the_highest_would(
            steps in proptest::collection::vec((0..4_u64, 0..9_u64, any::<bool>()), 1..60),
        ) {
            let (disk, mut gates) = gates();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for (resource, token, restart) in steps {
                if restart {
                    drop(gates);
                    gates = Gates::open_on(&disk, directory()).unwrap();
                }
                let highest = model.entry(resource).or_default();
                let admitted = gates.admit(name(resource), Token(token)).is_ok();
                prop_assert_eq!(admitted, token >= *highest);
                *highest = token.max(*highest);
                prop_assert_eq!(gates.highest(name(resource)), Token(*highest));
            }
        }
    }
}
