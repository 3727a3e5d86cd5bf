//! What a voter must not forget: one file of votes in a state directory.
//!
//! # Invariants
//! 1. Nothing is released before its record is durable: [`Ledger::seal`] binds a value to its record, and
//!    [`Sealed::release`] asks for the [`Synced`] that only [`Ledger::sync`] and [`Ledger::proof`] make.
//! 2. A new record never touches a block of the present one, and a slot never has two new generations in one
//!    sync; so a crash tears at most the generation in flight.
//! 3. After a failed write or sync the ledger refuses everything, for ever: the kernel may have dropped what it
//!    could not write and still show it to readers.
//! 4. Nothing is read as zero. No ledger, no readable vote, a strange file: each is an error, found before the
//!    first write, and the file is left as it was.
//! 5. No file that exists is overwritten; a ledger comes to be whole or not at all.
//!
//! # The file
//! ```text
//! block 0, 1      the header, twice: "tiebreak", format, purpose, incarnation of the ledger, checksum
//! block 2 to 5    slot 0: how many slots count
//! block 6 to 9    slot 1: the first record; and so on, four blocks each
//! ```
//! What lies in a slot, and which record it holds: see `block.rs`.
//!
//! # A new slot
//! Slot 0 says how many slots count. It is raised in a sync of its own, after the first record of the new slot
//! is durable and before that sync is proved to anybody. So a crash leaves either a slot that counts, and has a
//! durable record, or one that does not count, was never spoken of, and is written anew. A slot that counts and
//! cannot be read is *lost*. The blocks of a new slot are written (with zeros) when it is allotted, so that a
//! full disk refuses a new slot and never an old one.
//!
//! # Opening
//! What can be read need not be durable: a process that was killed leaves it in the cache, and after a failed
//! sync the cache shows what never reached the disk. So opening syncs first and reads from the medium, past the
//! cache. A copy that is not readable is written again (or blanked, where it is of a generation that was given
//! up), and synced, before [`Ledger::open`] returns. A readable one is never touched, so a crash while opening
//! takes nothing away.

mod block;
mod error;
mod file;
mod seal;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::block::COPIES;
use self::file::{
    COUNT_SLOT, Reader, SLOT_BYTES, block_offset, decode_count, image, repair, slot_offset, warn,
};
use crate::edge::clock::Clock;
use crate::edge::disk::{DirectoryLock, Disk, DiskFile};
use crate::ids::Incarnation;
use crate::limits::CLUSTERS_MAX;
use crate::message::Record;
use crate::wire;

pub use self::error::LedgerError;
pub use self::seal::{NotCovered, Sealed, Synced};

/// Name of the ledger in its state directory.
pub const FILE_NAME: &str = "ledger";
/// Name of a ledger that is being made. One that is found was never finished.
const UNFINISHED_NAME: &str = "ledger.new";

/// Whose records a ledger keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A witness's, one per cluster.
    Witness,
    /// A replica's.
    Replica,
    /// A gate's.
    Gate,
    /// Those of the gates of many resources, one each.
    Gates,
}

impl Purpose {
    const ALL: [Purpose; 4] = [Purpose::Witness, Purpose::Replica, Purpose::Gate, Purpose::Gates];

    fn code(self) -> u8 {
        match self {
            Purpose::Witness => 1,
            Purpose::Replica => 2,
            Purpose::Gate => 3,
            Purpose::Gates => 4,
        }
    }

    fn of(record: &Record) -> Purpose {
        match record {
            Record::Witness(_) => Purpose::Witness,
            Record::Replica(_) => Purpose::Replica,
            Record::Gate(_) => Purpose::Gate,
            Record::Resource(_) => Purpose::Gates,
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Purpose::Witness => "witness",
            Purpose::Replica => "replica",
            Purpose::Gate => "gate",
            Purpose::Gates => "set of gates",
        })
    }
}

/// Where one record lives in its ledger. Never reused for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

/// What is remembered of a slot while the ledger is open.
#[derive(Debug, Clone, Copy)]
struct SlotState {
    /// The durable generation; 0 in a new slot.
    generation: u64,
    /// The number of the last record put here.
    last_put: u64,
}

/// An open ledger. Every call may block on the disk.
pub struct Ledger {
    file: Box<dyn DiskFile>,
    _lock: Box<dyn DirectoryLock>,
    path: PathBuf,
    purpose: Purpose,
    incarnation: Incarnation,
    /// Tells this open ledger from any other in the process.
    identity: u64,
    /// Slot 0 and the slots of the records.
    slots: Vec<SlotState>,
    /// Slots that count, slot 0 not included.
    counted: u32,
    /// Records that wait for the next sync, encoded; only the last one of each slot.
    queued: BTreeMap<u32, Vec<u8>>,
    /// Numbers the records as they are put.
    puts: u64,
    /// The last of them that is durable.
    durable_puts: u64,
    poisoned: Option<String>,
}

static IDENTITIES: AtomicU64 = AtomicU64::new(0);

impl Ledger {
    /// Makes a ledger with its first records, whole or not at all, and durable on return. The directory is made
    /// if need be. `incarnation` is a number that no other ledger has.
    ///
    /// # Errors
    /// [`LedgerError::Exists`] if there is any file of that name, [`LedgerError::Locked`], [`LedgerError::Io`].
    pub fn create(
        disk: &dyn Disk,
        directory: &Path,
        purpose: Purpose,
        incarnation: Incarnation,
        records: &[Record],
    ) -> Result<(), LedgerError> {
        let path = directory.join(FILE_NAME);
        let unfinished = directory.join(UNFINISHED_NAME);
        disk.create_directory(directory).map_err(failed("make", directory))?;
        if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            disk.sync_directory(parent).map_err(failed("sync", parent))?;
        }
        let _lock = lock(disk, directory)?;
        if disk.exists(&path).map_err(failed("look for", &path))? {
            return Err(LedgerError::Exists { path });
        }
        if disk.exists(&unfinished).map_err(failed("look for", &unfinished))? {
            disk.remove(&unfinished).map_err(failed("remove", &unfinished))?;
        }
        let file = disk.create(&unfinished).map_err(failed("make", &unfinished))?;
        let image = image(purpose, incarnation, records);
        file.write_at(&image, 0).map_err(failed("write", &unfinished))?;
        file.sync().map_err(failed("sync", &unfinished))?;
        disk.rename(&unfinished, &path).map_err(failed("make", &path))?;
        disk.sync_directory(directory).map_err(failed("sync", directory))
    }

    /// Moves the ledger aside, whatever it holds, and makes a new one in its place; nothing is removed. Returns where
    /// the earlier one is.
    ///
    /// # Errors
    /// [`LedgerError::Missing`] if there is none, [`LedgerError::Locked`], [`LedgerError::Io`].
    pub fn replace(
        disk: &dyn Disk,
        directory: &Path,
        purpose: Purpose,
        incarnation: Incarnation,
        records: &[Record],
    ) -> Result<PathBuf, LedgerError> {
        let path = directory.join(FILE_NAME);
        let aside = {
            let _lock = lock(disk, directory)?;
            if !disk.exists(&path).map_err(failed("look for", &path))? {
                return Err(LedgerError::Missing { path });
            }
            let mut names = (1_u32..).map(|number| directory.join(format!("{FILE_NAME}.replaced-{number}")));
            let aside = loop {
                let name = names.next().expect("there are numbers left");
                if !disk.exists(&name).map_err(failed("look for", &name))? {
                    break name;
                }
            };
            disk.rename(&path, &aside).map_err(failed("move aside", &path))?;
            disk.sync_directory(directory).map_err(failed("sync", directory))?;
            aside
        };
        Ledger::create(disk, directory, purpose, incarnation, records)?;
        Ok(aside)
    }

    /// Opens a ledger for this process alone, and returns its records, each durable.
    ///
    /// # Errors
    /// Any [`LedgerError`] but `Exists`, `Full` and `Poisoned`. Unless it is `Io`, nothing was written.
    pub fn open(
        disk: &dyn Disk,
        directory: &Path,
        purpose: Purpose,
    ) -> Result<(Ledger, Vec<(Slot, Record)>), LedgerError> {
        let path = directory.join(FILE_NAME);
        let lock = lock(disk, directory)?;
        let file = disk.open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LedgerError::Missing { path: path.clone() },
            _ => failed("open for writing", &path)(error),
        })?;
        file.sync().map_err(failed("sync", &path))?;
        let reader = Reader { file: &*file, path: &path };
        let header = reader.header()?;
        if header.purpose != purpose {
            return Err(LedgerError::WrongPart { path, found: header.purpose, expected: purpose });
        }
        let count = reader.slot(header.incarnation, COUNT_SLOT)?;
        let counted =
            decode_count(&count.record).ok_or_else(|| reader.lost(COUNT_SLOT, "it holds no count"))?;
        reader.check_length(slot_offset(counted + 1))?;

        let mut found = vec![count];
        let mut records = Vec::new();
        for slot in 1..=counted {
            let raw = reader.slot(header.incarnation, slot)?;
            let record = wire::decode_record(&raw.record).map_err(|error| reader.lost(slot, error))?;
            if Purpose::of(&record) != purpose {
                return Err(reader.lost(slot, "it holds the record of another part"));
            }
            records.push((Slot(slot), record));
            found.push(raw);
        }
        disk.sync_directory(directory).map_err(failed("sync", directory))?;
        warn(&path, &header, &found);
        repair(&*file, &header, &found).map_err(failed("repair", &path))?;

        let slots = found.iter().map(|raw| SlotState { generation: raw.generation, last_put: 0 }).collect();
        let ledger = Ledger {
            file,
            _lock: lock,
            path,
            purpose,
            incarnation: header.incarnation,
            identity: IDENTITIES.fetch_add(1, Ordering::Relaxed),
            slots,
            counted,
            queued: BTreeMap::new(),
            puts: 0,
            durable_puts: 0,
            poisoned: None,
        };
        Ok((ledger, records))
    }

    /// A new slot with its first record, which is durable, and counts, after the next sync. Until then seal what
    /// speaks of it with [`Ledger::seal`] and no record.
    ///
    /// # Errors
    /// [`LedgerError::Full`] when there is no room: nothing has changed, and the ledger goes on.
    /// [`LedgerError::Io`] and [`LedgerError::Poisoned`] when it cannot go on.
    pub fn allot(&mut self, record: &Record) -> Result<Slot, LedgerError> {
        self.check()?;
        if self.slots.len() > CLUSTERS_MAX {
            let cause = "it has as many as it may have; use another witness";
            return Err(LedgerError::Full { path: self.path.clone(), cause });
        }
        let slot = u32::try_from(self.slots.len()).expect("CLUSTERS_MAX slots are numbered by 32 bits");
        match self.file.write_at(&[0; SLOT_BYTES], slot_offset(slot)) {
            Ok(()) => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                let cause = "the disk is full; free some space";
                return Err(LedgerError::Full { path: self.path.clone(), cause });
            }
            Err(error) => return Err(self.poison("write", error)),
        }
        self.slots.push(SlotState { generation: 0, last_put: 0 });
        self.put(Slot(slot), record);
        Ok(Slot(slot))
    }

    /// Binds a value to the record that justifies it, and queues the record for the next sync. Without a record
    /// the value is bound to what was put into the slot last, because it may speak of that; if that is durable,
    /// the [`proof`](Ledger::proof) at hand releases it without any sync.
    ///
    /// A slot of another ledger, or a record of another part, is a fault of the caller's and panics.
    ///
    /// # Errors
    /// [`LedgerError::Poisoned`].
    pub fn seal<T>(
        &mut self,
        slot: Slot,
        record: Option<&Record>,
        value: T,
    ) -> Result<Sealed<T>, LedgerError> {
        self.check()?;
        if let Some(record) = record {
            self.put(slot, record);
        }
        Ok(Sealed { ledger: self.identity, needs: self.state(slot).last_put, value })
    }

    /// Makes everything durable that was put: one sync, whatever the number of records, and one more if new slots
    /// are among them; none if nothing waits.
    ///
    /// # Errors
    /// [`LedgerError::Io`] when the disk fails, [`LedgerError::Poisoned`] ever after.
    pub fn sync(&mut self) -> Result<Synced, LedgerError> {
        self.check()?;
        if !self.queued.is_empty() {
            let queued = std::mem::take(&mut self.queued);
            for (slot, record) in &queued {
                self.write(*slot, record)?;
            }
            self.sync_file()?;
            let slots = u32::try_from(self.slots.len() - 1).expect("slots are numbered by 32 bits");
            if slots > self.counted {
                self.write(COUNT_SLOT, &slots.to_le_bytes())?;
                self.sync_file()?;
                self.counted = slots;
            }
            self.durable_puts = self.puts;
        }
        self.proof()
    }

    /// [`sync`](Ledger::sync) on a thread for what blocks, so that whoever shares this one goes on; and how long it took.
    pub async fn sync_aside(mut self) -> (Ledger, Result<Synced, LedgerError>, Duration) {
        let began = Clock.now();
        let synced = tokio::task::spawn_blocking(move || {
            let proof = self.sync();
            (self, proof)
        });
        let (ledger, proof) = synced.await.expect("a sync does not panic");
        (ledger, proof, Clock.now().since(began))
    }

    /// The proof of what is durable now, without any I/O.
    ///
    /// # Errors
    /// [`LedgerError::Poisoned`].
    pub fn proof(&self) -> Result<Synced, LedgerError> {
        self.check()?;
        Ok(Synced { ledger: self.identity, through: self.durable_puts })
    }

    /// Whether a sync has anything to do.
    pub fn waits(&self) -> bool {
        !self.queued.is_empty()
    }

    fn put(&mut self, slot: Slot, record: &Record) {
        assert_eq!(Purpose::of(record), self.purpose, "a ledger keeps the records of one part");
        self.puts += 1;
        let puts = self.puts;
        self.state_mut(slot).last_put = puts;
        self.queued.insert(slot.0, wire::encode_record(record));
    }

    fn state(&self, slot: Slot) -> &SlotState {
        self.slots.get(slot.0 as usize).expect("a slot is used with the ledger that gave it")
    }

    fn state_mut(&mut self, slot: Slot) -> &mut SlotState {
        self.slots.get_mut(slot.0 as usize).expect("a slot is used with the ledger that gave it")
    }

    /// Writes the next generation over the older one, both copies.
    fn write(&mut self, slot: u32, record: &[u8]) -> Result<(), LedgerError> {
        let generation = self.slots[slot as usize].generation + 1;
        let copies = block::encode(self.incarnation, slot, generation, record).repeat(COPIES);
        let offset = block_offset(slot, block::place(generation));
        self.file.write_at(&copies, offset).map_err(|error| self.poison("write", error))?;
        // Nothing is written to this slot again before this is synced, or the ledger is poisoned.
        self.slots[slot as usize].generation = generation;
        Ok(())
    }

    fn sync_file(&mut self) -> Result<(), LedgerError> {
        self.file.sync().map_err(|error| self.poison("sync", error))
    }

    fn check(&self) -> Result<(), LedgerError> {
        match &self.poisoned {
            None => Ok(()),
            Some(cause) => Err(LedgerError::Poisoned { path: self.path.clone(), cause: cause.clone() }),
        }
    }

    fn poison(&mut self, operation: &'static str, error: io::Error) -> LedgerError {
        self.poisoned = Some(format!("{operation}: {error}"));
        failed(operation, &self.path)(error)
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("path", &self.path)
            .field("purpose", &self.purpose)
            .field("slots", &self.counted)
            .field("queued", &self.queued.len())
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

fn lock(disk: &dyn Disk, directory: &Path) -> Result<Box<dyn DirectoryLock>, LedgerError> {
    disk.lock(directory).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => LedgerError::Locked { directory: directory.to_owned() },
        io::ErrorKind::NotFound => LedgerError::Missing { path: directory.join(FILE_NAME) },
        _ => failed("lock", directory)(error),
    })
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> LedgerError + use<> {
    let path = path.to_owned();
    move |source| LedgerError::Io { operation, path: path.clone(), source }
}
