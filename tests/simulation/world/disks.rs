//! The disk of one machine, as far as the vote is concerned: the shipped ledger on a disk in memory that tears writes,
//! fails syncs, fills up and loses power.

use std::path::Path;

use rustix::io::Errno;
use tiebreak::ids::Incarnation;
use tiebreak::message::Record;
use tiebreak::testing::disk::faulty::{Crash, FaultyDisk};
use tiebreak::testing::ledger::{Ledger, LedgerError, Purpose, Slot};

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum End {
    /// It is killed; the machine, with its caches, goes on.
    Killed,
    /// It ends itself after a write that failed.
    WriteFailed,
    /// The machine loses power in the middle of whatever it wrote.
    PowerCut,
}

pub(crate) struct VoteDisk {
    device: FaultyDisk,
    open: Option<(Ledger, Slot)>,
    purpose: Purpose,
    /// No write gets through.
    pub(crate) full: bool,
    /// The next sync fails.
    pub(crate) sync_fails: bool,
}

fn directory() -> &'static Path {
    Path::new("/state")
}

fn purpose(record: &Record) -> Purpose {
    match record {
        Record::Replica(_) => Purpose::Replica,
        Record::Witness(_) => Purpose::Witness,
        Record::Gate(_) | Record::Resource(_) => Purpose::Gate,
    }
}

impl VoteDisk {
    pub(crate) fn new(first: &Record) -> VoteDisk {
        let device = FaultyDisk::new();
        let purpose = purpose(first);
        Ledger::create(&device, directory(), purpose, Incarnation(1), &[*first])
            .expect("a new disk takes a ledger");
        VoteDisk { device, open: None, purpose, full: false, sync_fails: false }
    }

    /// The process starts and reads its vote.
    pub(crate) fn start(&mut self) -> Result<Record, LedgerError> {
        if self.full {
            self.device.fail_next_write(Errno::NOSPC, 0);
        }
        let (ledger, records) = Ledger::open(&self.device, directory(), self.purpose)?;
        let [(slot, record)] = records[..] else {
            unreachable!("one record was put there");
        };
        self.open = Some((ledger, slot));
        Ok(record)
    }

    /// Makes a record durable, as the shells do it.
    pub(crate) fn write(&mut self, record: &Record, seed: u64) -> Result<(), LedgerError> {
        if self.full {
            self.device.fail_next_write(Errno::NOSPC, usize::try_from(seed % 4096).expect("small"));
        }
        if std::mem::take(&mut self.sync_fails) {
            self.device.fail_next_sync(Crash::Seed(seed));
        }
        let (ledger, slot) = self.open.as_mut().expect("only a running process writes");
        let sealed = ledger.seal(*slot, Some(record), ())?;
        let proof = ledger.sync()?;
        sealed.release(&proof).expect("the sync covers what was sealed before it");
        Ok(())
    }

    /// The process ends, perhaps while it wrote a record. What the next one will find.
    pub(crate) fn end(&mut self, end: End, writing: Option<&Record>, seed: u64) -> Record {
        if let (Some(record), true) = (writing, self.open.is_some()) {
            match end {
                // A write that the kernel has taken over is finished by it.
                End::Killed if seed.is_multiple_of(2) => drop(self.write(record, seed)),
                End::Killed | End::WriteFailed => {}
                End::PowerCut => {
                    self.device.cut_power_after(seed % 4);
                    drop(self.write(record, seed));
                }
            }
        }
        self.open = None;
        match end {
            End::Killed | End::WriteFailed => self.device.restart(),
            End::PowerCut => self.device.crash(Crash::Seed(seed)),
        }
        let (_, records) = Ledger::open(&self.device.fork(), directory(), self.purpose)
            .expect("no crash makes a vote unreadable");
        records[0].1
    }
}
