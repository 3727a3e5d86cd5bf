//! A disk in memory that fails in every way the ledger has to survive; the same seed fails the same way.
//!
//! What was written and not yet synced is kept apart from what is durable. [`FaultyDisk::crash`] decides which
//! part of it had reached the medium: nothing, everything, a beginning, an end, or any choice of sectors in any
//! order, torn inside a sector and scrambled. Names in a directory follow the same rule, in the order in which
//! they were changed, as journaling file systems do it. Directories themselves are durable at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::{DirectoryLock, Disk, DiskFile};

/// What a device writes whole, if it writes anything whole.
pub const SECTOR_BYTES: usize = 512;

/// Which part of what was not synced is on the medium when the power is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// None of it.
    Nothing,
    /// All of it.
    Everything,
    /// The first bytes, in the order in which they were written.
    Prefix(usize),
    /// All but the first bytes: what was written last got there first.
    Suffix(usize),
    /// Every sector that was being written is garbage now.
    Scrambled,
    /// Any sectors, in any order, some torn at any byte, some scrambled.
    Seed(u64),
}

#[derive(Debug, Clone, Default)]
struct Inode {
    /// What survives.
    durable: Vec<u8>,
    /// Written since the last sync, in order.
    pending: Vec<(usize, Vec<u8>)>,
    /// Bad sectors: reading them fails until they are written again.
    unreadable: Vec<Range<usize>>,
}

#[derive(Debug, Clone, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    pending_names: Vec<Vec<(PathBuf, Option<usize>)>>,
    directories: BTreeSet<PathBuf>,
    locked: BTreeSet<PathBuf>,
    /// Counts starts of the process: handles of an earlier one are dead.
    run: u64,
    /// Operations that change something, since the beginning.
    operations: u64,
    syncs: u64,
    cut_at: Option<u64>,
    off: bool,
    failing_write: Option<(Errno, usize)>,
    failing_sync: Option<Crash>,
    failing_directory_sync: Option<PathBuf>,
    space_bytes: Option<usize>,
    read_only: bool,
}

/// The disk. Clones share it; [`FaultyDisk::fork`] makes a second one.
#[derive(Debug, Clone, Default)]
pub struct FaultyDisk(Arc<Mutex<State>>);

struct Held {
    disk: FaultyDisk,
    directory: PathBuf,
    run: u64,
}

struct Handle {
    disk: FaultyDisk,
    inode: usize,
    run: u64,
}

impl FaultyDisk {
    /// An empty disk that works.
    pub fn new() -> FaultyDisk {
        FaultyDisk::default()
    }

    /// Another disk in the same state, whose open files belong to nobody.
    pub fn fork(&self) -> FaultyDisk {
        let mut state = self.state().clone();
        state.locked.clear();
        state.run += 1;
        FaultyDisk(Arc::new(Mutex::new(state)))
    }

    /// The power fails and comes back: caches, open files, locks and planned faults are gone.
    pub fn crash(&self, choice: Crash) {
        let mut state = self.state();
        let mut random = Random::of(choice);
        for inode in &mut state.inodes {
            inode.settle(choice, &mut random);
        }
        let changes = std::mem::take(&mut state.pending_names);
        let survive = match choice {
            Crash::Nothing => 0,
            Crash::Seed(_) => random.below(changes.len() + 1),
            _ => changes.len(),
        };
        for (path, inode) in changes.into_iter().take(survive).flatten() {
            set_name(&mut state.durable_names, path, inode);
        }
        state.names = state.durable_names.clone();
        state.restart();
    }

    /// The process is killed and starts again; the machine, with its caches, goes on.
    pub fn restart(&self) {
        self.state().restart();
    }

    /// The power fails in the operation after this many others that change something. A write that it meets has
    /// been handed to the device, and [`FaultyDisk::crash`] decides what became of it.
    pub fn cut_power_after(&self, operations: u64) {
        let mut state = self.state();
        state.cut_at = Some(state.operations + operations);
    }

    /// Whether the power has failed and did not come back yet.
    pub fn is_off(&self) -> bool {
        self.state().off
    }

    /// The next write fails after this many of its bytes.
    pub fn fail_next_write(&self, error: Errno, after_bytes: usize) {
        self.state().failing_write = Some((error, after_bytes));
    }

    /// The next sync of a file fails with an I/O error, after it wrote what `reached` says. The rest is dropped,
    /// and later syncs succeed, as Linux does it.
    pub fn fail_next_sync(&self, reached: Crash) {
        self.state().failing_sync = Some(reached);
    }

    /// The next sync of that directory fails with an I/O error; what changed in it is not durable yet.
    pub fn fail_next_directory_sync(&self, directory: &Path) {
        self.state().failing_directory_sync = Some(directory.to_owned());
    }

    /// Files may grow by this many bytes, together; `None`: without end.
    pub fn limit_space(&self, bytes: Option<usize>) {
        self.state().space_bytes = bytes;
    }

    /// Nothing can be written any more, or again.
    pub fn set_read_only(&self, read_only: bool) {
        self.state().read_only = read_only;
    }

    /// Reading that range fails until it is written again.
    pub fn fail_reads(&self, path: &Path, range: Range<usize>) {
        let mut state = self.state();
        let inode = state.names[path];
        state.inodes[inode].unreadable.push(range);
    }

    /// Changes a file behind everybody's back, on the medium; makes it if there is none.
    pub fn alter(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let inode = match state.names.get(path) {
            Some(inode) => *inode,
            None => {
                state.inodes.push(Inode::default());
                let inode = state.inodes.len() - 1;
                state.names.insert(path.to_owned(), inode);
                state.durable_names.insert(path.to_owned(), inode);
                inode
            }
        };
        let inode = &mut state.inodes[inode];
        assert!(inode.pending.is_empty(), "only a file at rest is altered");
        change(&mut inode.durable);
    }

    /// What a read of the whole file finds; `None` if there is no such file.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(path).map(|inode| state.inodes[*inode].contents())
    }

    /// Bytes that were written and not synced.
    pub fn pending_bytes(&self) -> usize {
        self.state().inodes.iter().flat_map(|inode| &inode.pending).map(|(_, bytes)| bytes.len()).sum()
    }

    /// How often a file was synced with success.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Operations that changed something.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn restart(&mut self) {
        self.locked.clear();
        self.run += 1;
        self.cut_at = None;
        self.off = false;
        self.failing_write = None;
        self.failing_sync = None;
        self.failing_directory_sync = None;
    }

    fn check_power(&self) -> io::Result<()> {
        if self.off { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// Counts one operation that changes something. Returns whether the power fails in it.
    fn count(&mut self) -> io::Result<bool> {
        self.check_power()?;
        self.off = self.cut_at == Some(self.operations);
        self.operations += 1;
        Ok(self.off)
    }

    fn change_names(&mut self, change: Vec<(PathBuf, Option<usize>)>) -> io::Result<()> {
        if self.read_only {
            return Err(Errno::ROFS.into());
        }
        let cut = self.count()?;
        for (path, inode) in &change {
            set_name(&mut self.names, path.clone(), *inode);
        }
        self.pending_names.push(change);
        if cut { Err(Errno::IO.into()) } else { Ok(()) }
    }

    fn file(&mut self, handle: &Handle) -> io::Result<&mut Inode> {
        self.check_power()?;
        assert_eq!(self.run, handle.run, "a file of an earlier life is not used");
        Ok(&mut self.inodes[handle.inode])
    }
}

fn set_name(names: &mut BTreeMap<PathBuf, usize>, path: PathBuf, inode: Option<usize>) {
    match inode {
        Some(inode) => names.insert(path, inode),
        None => names.remove(&path),
    };
}

fn put(bytes: &mut Vec<u8>, offset: usize, piece: &[u8]) {
    if piece.is_empty() {
        return;
    }
    if bytes.len() < offset + piece.len() {
        bytes.resize(offset + piece.len(), 0);
    }
    bytes[offset..offset + piece.len()].copy_from_slice(piece);
}

impl Inode {
    /// What a read of the whole finds.
    fn contents(&self) -> Vec<u8> {
        let mut contents = self.durable.clone();
        self.pending.iter().for_each(|(offset, bytes)| put(&mut contents, *offset, bytes));
        contents
    }

    fn length(&self) -> usize {
        let written = self.pending.iter().map(|(offset, bytes)| offset + bytes.len());
        written.max().unwrap_or(0).max(self.durable.len())
    }

    /// Moves what `choice` says from pending to durable and forgets the rest.
    fn settle(&mut self, choice: Crash, random: &mut Random) {
        let length = self.length();
        let pending = std::mem::take(&mut self.pending);
        let durable = &mut self.durable;
        match choice {
            Crash::Nothing => {}
            Crash::Everything => pending.iter().for_each(|(offset, bytes)| put(durable, *offset, bytes)),
            Crash::Prefix(mut left) => {
                for (offset, bytes) in &pending {
                    let part = left.min(bytes.len());
                    put(durable, *offset, &bytes[..part]);
                    left -= part;
                }
            }
            Crash::Suffix(mut left) => {
                for (offset, bytes) in &pending {
                    let part = left.min(bytes.len());
                    put(durable, *offset + part, &bytes[part..]);
                    left -= part;
                }
            }
            Crash::Scrambled => {
                for (offset, bytes) in &pending {
                    put(durable, *offset, &random.garbage(bytes.len()));
                }
            }
            Crash::Seed(_) => {
                let mut sectors: BTreeMap<usize, Vec<(usize, &[u8])>> = BTreeMap::new();
                for (offset, bytes) in &pending {
                    let mut from = 0;
                    while from < bytes.len() {
                        let at = offset + from;
                        let to = bytes.len().min(from + SECTOR_BYTES - at % SECTOR_BYTES);
                        sectors.entry(at / SECTOR_BYTES).or_default().push((at, &bytes[from..to]));
                        from = to;
                    }
                }
                if random.below(2) == 0 && durable.len() < length {
                    // The new length may be on the medium without what stands there.
                    durable.resize(length, 0);
                }
                for versions in sectors.values() {
                    let reached = random.below(versions.len() + 1);
                    for (at, piece) in &versions[..reached] {
                        put(durable, *at, piece);
                    }
                    let (at, piece) = versions[reached.min(versions.len() - 1)];
                    match random.below(16) {
                        0..4 => put(durable, at, &piece[..random.below(piece.len() + 1)]),
                        4 => put(durable, at, &random.garbage(piece.len())),
                        _ => {}
                    }
                }
            }
        }
    }
}

impl Disk for FaultyDisk {
    fn lock(&self, directory: &Path) -> io::Result<Box<dyn DirectoryLock>> {
        let mut state = self.state();
        state.check_power()?;
        if !state.directories.contains(directory) {
            return Err(Errno::NOENT.into());
        }
        if !state.locked.insert(directory.to_owned()) {
            return Err(Errno::WOULDBLOCK.into());
        }
        Ok(Box::new(Held { disk: self.clone(), directory: directory.to_owned(), run: state.run }))
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.check_power()?;
        if state.directories.contains(directory) {
            return Ok(());
        }
        if state.read_only {
            return Err(Errno::ROFS.into());
        }
        state.directories.insert(directory.to_owned());
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let state = self.state();
        state.check_power()?;
        let inode = *state.names.get(path).ok_or(Errno::NOENT)?;
        if state.read_only {
            return Err(Errno::ROFS.into());
        }
        Ok(Box::new(Handle { disk: self.clone(), inode, run: state.run }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        if state.names.contains_key(path) {
            return Err(Errno::EXIST.into());
        }
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.change_names(vec![(path.to_owned(), Some(inode))])?;
        Ok(Box::new(Handle { disk: self.clone(), inode, run: state.run }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.state();
        state.check_power()?;
        Ok(state.names.contains_key(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.names.contains_key(to) {
            return Err(Errno::EXIST.into());
        }
        let inode = *state.names.get(from).ok_or(Errno::NOENT)?;
        state.change_names(vec![(from.to_owned(), None), (to.to_owned(), Some(inode))])
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        if !state.names.contains_key(path) {
            return Err(Errno::NOENT.into());
        }
        state.change_names(vec![(path.to_owned(), None)])
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.count()? || state.failing_directory_sync.as_deref() == Some(directory) {
            state.failing_directory_sync = None;
            return Err(Errno::IO.into());
        }
        let (durable, pending) = std::mem::take(&mut state.pending_names)
            .into_iter()
            .partition::<Vec<_>, _>(|change| change.iter().all(|(path, _)| path.parent() == Some(directory)));
        state.pending_names = pending;
        for (path, inode) in durable.into_iter().flatten() {
            set_name(&mut state.durable_names, path, inode);
        }
        Ok(())
    }
}

impl DirectoryLock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.run == self.run {
            state.locked.remove(&self.directory);
        }
    }
}

impl DiskFile for Handle {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.state().file(self)?.length() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        let inode = state.file(self)?;
        let start = range_of(offset, 0).start.min(inode.length());
        let range = start..(start + buffer.len()).min(inode.length());
        if inode.unreadable.iter().any(|bad| bad.start < range.end && range.start < bad.end) {
            return Err(Errno::IO.into());
        }
        let bytes = range.len();
        buffer[..bytes].fill(0);
        let durable = inode.durable.len().min(range.end).saturating_sub(start);
        buffer[..durable].copy_from_slice(&inode.durable[start.min(inode.durable.len())..][..durable]);
        for (at, written) in &inode.pending {
            let (from, to) = (start.max(*at), range.end.min(at + written.len()));
            if from < to {
                buffer[from - start..to - start].copy_from_slice(&written[from - at..to - at]);
            }
        }
        Ok(bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.file(self)?;
        if state.read_only {
            return Err(Errno::ROFS.into());
        }
        let mut outcome = if state.count()? { Err(Errno::IO) } else { Ok(()) };
        let range = range_of(offset, bytes.len());
        let mut part = bytes.len();
        if let Some((error, after)) = state.failing_write.take() {
            (outcome, part) = (Err(error), after.min(part));
        }
        let grows = range.end.saturating_sub(state.inodes[self.inode].length());
        if let Some(space) = &mut state.space_bytes {
            let missing = grows.saturating_sub(*space);
            if missing > 0 {
                (outcome, part) = (Err(Errno::NOSPC), part.min(bytes.len() - missing.min(bytes.len())));
            }
            *space -= grows - missing;
        }
        let inode = &mut state.inodes[self.inode];
        inode.pending.push((range.start, bytes[..part].to_vec()));
        inode.unreadable.retain(|bad| !(range.start <= bad.start && bad.end <= range.end));
        Ok(outcome?)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.file(self)?;
        if state.count()? {
            return Err(Errno::IO.into());
        }
        let failing = state.failing_sync.take();
        let choice = failing.unwrap_or(Crash::Everything);
        state.inodes[self.inode].settle(choice, &mut Random::of(choice));
        if failing.is_some() {
            return Err(Errno::IO.into());
        }
        state.syncs += 1;
        Ok(())
    }
}

fn range_of(offset: u64, length: usize) -> Range<usize> {
    let start = usize::try_from(offset).expect("files in memory are small");
    start..start + length
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough to choose sectors with.
struct Random(u64);

impl Random {
    fn of(choice: Crash) -> Random {
        Random(if let Crash::Seed(seed) = choice { seed } else { 0 })
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[allow(clippy::cast_possible_truncation, reason = "the remainder is below a usize")]
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn garbage(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}
