//! The data of the test cluster: a file of numbered entries, each with the term in which it was written.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

const ENTRY_BYTES: usize = 12;

/// One entry. Value 0 is the mark that begins a term.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub term: u32,
    pub value: u64,
}

/// Entries, durable when a call returns. Position `n` is after the `n`th entry.
#[derive(Debug)]
pub struct Log {
    file: File,
    entries: Vec<Entry>,
}

impl Log {
    pub fn open(path: &Path) -> io::Result<Log> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let entries: Vec<Entry> = bytes
            .chunks_exact(ENTRY_BYTES)
            .map(|bytes| Entry {
                term: u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")),
                value: u64::from_le_bytes(bytes[4..].try_into().expect("eight bytes")),
            })
            .collect();
        let mut log = Log { file, entries };
        // An entry that was cut off was never durable; what is whole may be in the cache only.
        log.truncate(log.position())?;
        Ok(log)
    }

    pub fn position(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The term of the entry before `position`; 0 before all.
    pub fn term_at(&self, position: u64) -> Option<u32> {
        if position == 0 {
            return Some(0);
        }
        self.get(position).map(|entry| entry.term)
    }

    /// The entry that ends at `position`.
    pub fn get(&self, position: u64) -> Option<Entry> {
        let index = usize::try_from(position).ok()?.checked_sub(1)?;
        self.entries.get(index).copied()
    }

    pub fn last_term(&self) -> u32 {
        self.entries.last().map_or(0, |entry| entry.term)
    }

    /// Up to `most` entries after `position`.
    pub fn after(&self, position: u64, most: usize) -> Vec<Entry> {
        let from = usize::try_from(position).unwrap_or(usize::MAX).min(self.entries.len());
        self.entries[from..].iter().take(most).copied().collect()
    }

    pub fn values(&self) -> Vec<u64> {
        self.entries.iter().map(|entry| entry.value).filter(|value| *value != 0).collect()
    }

    pub fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
        for entry in entries {
            bytes.extend_from_slice(&entry.term.to_le_bytes());
            bytes.extend_from_slice(&entry.value.to_le_bytes());
        }
        self.file.write_all(&bytes)?;
        self.file.sync_data()?;
        self.entries.extend_from_slice(entries);
        Ok(())
    }

    pub fn truncate(&mut self, position: u64) -> io::Result<()> {
        let bytes = position * ENTRY_BYTES as u64;
        self.file.set_len(bytes)?;
        self.file.seek(SeekFrom::Start(bytes))?;
        self.file.sync_data()?;
        self.entries.truncate(usize::try_from(position).unwrap_or(usize::MAX));
        Ok(())
    }
}
