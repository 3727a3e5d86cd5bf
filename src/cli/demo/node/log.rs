//! The log: a file that is only appended to, each entry with its length and checksum. A position is a number of
//! entries.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use crate::cli::demo::messages::{Entry, Run};
use crate::ids::Term;

const HEAD_BYTES: usize = 8;

pub(super) struct Log {
    file: Arc<File>,
    entries: Vec<Entry>,
    /// Where each entry ends in the file.
    ends: Vec<u64>,
    runs: Vec<Run>,
}

impl Log {
    /// Opens or makes it. Entries that were not written to their end were never acknowledged, and are dropped. (A
    /// store for more than a demonstration would also tell a torn end from a middle that has rotted.)
    pub(super) fn open(path: &Path) -> io::Result<Log> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut log = Log { file: Arc::new(file), entries: Vec::new(), ends: Vec::new(), runs: Vec::new() };
        let mut at = 0;
        while at < bytes.len() {
            let Some((entry, length)) = decode(&bytes[at..]) else {
                tracing::warn!(entries = log.length(), "the last entry is torn; it was never acknowledged");
                break;
            };
            at += length;
            log.remember(entry, at as u64);
        }
        log.file.set_len(at as u64)?;
        log.file.sync_all()?;
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(log)
    }

    pub(super) fn length(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The term of the last entry.
    pub(super) fn term(&self) -> Term {
        self.runs.last().map_or(Term::ZERO, |run| run.term)
    }

    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The entries from `from` on, `most` of them at most.
    pub(super) fn entries(&self, from: u64, most: usize) -> &[Entry] {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.entries.len());
        &self.entries[from..(from + most).min(self.entries.len())]
    }

    /// How many entries this log shares with one of these runs.
    ///
    /// A term has one leader, which only appends. So two logs that have the same term at the same place are the same
    /// up to there.
    pub(super) fn common(&self, theirs: &[Run], their_length: u64) -> u64 {
        let same = self.runs.iter().zip(theirs).take_while(|(mine, theirs)| mine == theirs).count();
        let end = |runs: &[Run], length: u64| runs.get(same).map_or(length, |run| run.from);
        if same == 0 { 0 } else { end(&self.runs, self.length()).min(end(theirs, their_length)) }
    }

    /// Appends, durable on return.
    pub(super) async fn append(&mut self, entries: Vec<Entry>) -> io::Result<()> {
        let start = self.ends.last().copied().unwrap_or(0);
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for entry in &entries {
            encode(entry, &mut bytes)?;
            ends.push(start + bytes.len() as u64);
        }
        let file = self.file.clone();
        // A sync takes its time: never on the thread that renews the lease.
        on_disk(move || {
            let mut file = &*file;
            file.seek(SeekFrom::Start(start))?;
            file.write_all(&bytes)?;
            file.sync_data()
        })
        .await?;
        for (entry, end) in entries.into_iter().zip(ends) {
            self.remember(entry, end);
        }
        Ok(())
    }

    /// Destroys everything after the first `length` entries, durable on return.
    pub(super) async fn truncate(&mut self, length: u64) -> io::Result<()> {
        let keep = usize::try_from(length).map_err(io::Error::other)?;
        let end = keep.checked_sub(1).map_or(0, |last| self.ends[last]);
        let file = self.file.clone();
        on_disk(move || {
            file.set_len(end)?;
            file.sync_data()
        })
        .await?;
        self.entries.truncate(keep);
        self.ends.truncate(keep);
        self.runs.retain(|run| run.from < length);
        Ok(())
    }

    fn remember(&mut self, entry: Entry, end: u64) {
        if let Entry::Mark { term } = entry {
            self.runs.push(Run { term, from: self.length() });
        }
        self.entries.push(entry);
        self.ends.push(end);
    }
}

async fn on_disk(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn encode(entry: &Entry, into: &mut Vec<u8>) -> io::Result<()> {
    let body = serde_json::to_vec(entry)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    into.extend(length.to_le_bytes());
    into.extend(crc32fast::hash(&body).to_le_bytes());
    into.extend(body);
    Ok(())
}

/// The entry at the head of `bytes` and its length in the file; `None` if it is not whole.
fn decode(bytes: &[u8]) -> Option<(Entry, usize)> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let length = HEAD_BYTES + usize::try_from(number(0)?).ok()?;
    let body = bytes.get(HEAD_BYTES..length)?;
    let whole = number(4)? == crc32fast::hash(body);
    Some((serde_json::from_slice(body).ok().filter(|_| whole)?, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(term: u32) -> Entry {
        Entry::Mark { term: Term(term) }
    }

    fn put(id: u64) -> Entry {
        Entry::Put { id, key: "k".into(), value: "v".into() }
    }

    #[tokio::test]
    async fn a_torn_entry_is_dropped_and_what_came_before_it_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = Log::open(&path).unwrap();
        log.append(vec![mark(1), put(1), put(2)]).await.unwrap();
        let whole = std::fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(whole - 1).unwrap();
        let mut log = Log::open(&path).unwrap();
        assert_eq!(log.entries(0, 9), [mark(1), put(1)]);
        log.append(vec![put(3)]).await.unwrap();
        assert_eq!(Log::open(&path).unwrap().entries(0, 9), [mark(1), put(1), put(3)]);
    }

    #[tokio::test]
    async fn two_logs_part_where_their_terms_do() {
        let directory = tempfile::tempdir().unwrap();
        let mut mine = Log::open(&directory.path().join("mine")).unwrap();
        let mut theirs = Log::open(&directory.path().join("theirs")).unwrap();
        mine.append(vec![mark(1), put(1), put(2), put(3)]).await.unwrap();
        theirs.append(vec![mark(1), put(1), put(2), mark(2), put(9)]).await.unwrap();
        assert_eq!(mine.common(theirs.runs(), theirs.length()), 3);
        mine.truncate(3).await.unwrap();
        mine.append(vec![mark(2)]).await.unwrap();
        assert_eq!(mine.common(theirs.runs(), theirs.length()), 4);
        assert_eq!((mine.length(), mine.term()), (4, Term(2)));
        assert_eq!(mine.common(&[], 0), 0);
    }
}
