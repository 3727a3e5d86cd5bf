//! The disk as the ledger sees it: a few operations that can fail, and a real and a faulty one of each.
//!
//! Architecture invariant: nothing here knows what is stored, and nothing else in this crate syncs.

#[cfg(any(test, feature = "testing"))]
pub mod faulty;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Advice, CWD, FlockOperation, OFlags, RenameFlags, fadvise, flock, renameat_with};

use crate::limits::BLOCK_BYTES;

/// Held for as long as nobody else shall use a directory; given back when dropped, or when the process ends.
pub trait DirectoryLock: Send {}

/// Where files are.
pub trait Disk: Send + Sync {
    /// Takes a directory for this process alone. [`io::ErrorKind::WouldBlock`] when somebody else has it.
    fn lock(&self, directory: &Path) -> io::Result<Box<dyn DirectoryLock>>;
    /// Makes a directory that only its owner can enter; no error if there is one.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Opens a file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Makes a file that does not exist yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Whether anything has that name.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Gives a file a new name; [`io::ErrorKind::AlreadyExists`] if something has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Returns when the names in a directory are durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
}

/// One open file.
pub trait DiskFile: Send {
    /// Length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Reads from an offset in bytes, both whole blocks, until the buffer is full or the file ends, and returns
    /// how many bytes that were. Reads what is on the medium or on its way there, and not what a cache still
    /// shows after it could not be written.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all bytes at an offset in bytes, or fails, having written any part of them.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Returns when the contents and the length are durable. After an error nothing is known of what was
    /// written since the last success, and asking again proves nothing: the kernel may have dropped it.
    fn sync(&self) -> io::Result<()>;
}

/// The machine's own file systems.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl DirectoryLock for File {}

impl Disk for RealDisk {
    fn lock(&self, directory: &Path) -> io::Result<Box<dyn DirectoryLock>> {
        let directory = File::open(directory)?;
        flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(directory))
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("flags of open(2) are an int");
        let direct = OpenOptions::new().read(true).custom_flags(flags).open(path).ok();
        Ok(Box::new(RealFile { file, direct }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Box::new(RealFile { file, direct: None }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match fs::symlink_metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

/// A file, and how to read it past the page cache.
struct RealFile {
    file: File,
    /// Where the file system has no direct reads, the cache is dropped instead, which it may decline.
    direct: Option<File>,
}

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(direct) = &self.direct else {
            fadvise(&self.file, offset, NonZeroU64::new(buffer.len() as u64), Advice::DontNeed)?;
            return read_until_end(&self.file, buffer, offset);
        };
        // Direct reads want memory that is aligned like the device's blocks.
        let mut memory = vec![0; buffer.len() + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        let aligned = &mut memory[start..start + buffer.len()];
        let bytes = read_until_end(direct, aligned, offset)?;
        buffer[..bytes].copy_from_slice(&aligned[..bytes]);
        Ok(bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn read_until_end(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            // A direct read that ends inside a block has met the end of the file.
            Ok(bytes) if bytes == 0 || bytes % BLOCK_BYTES != 0 => return Ok(filled + bytes),
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
