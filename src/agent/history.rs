//! Who led when, why, and with which token: a file of JSON lines that people and programs can read.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::edge::clock::wall_seconds;
use crate::ids::{NodeId, Term, Token};

/// Bytes of the file; then it becomes the older half, and a new one begins.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// For how long a disk that hangs holds up the end of the agent.
const LAST_WRITE_MAX: Duration = Duration::from_secs(2);

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Seconds since 1970, on the machine's clock as it was set then.
    pub at: u64,
    /// Which node.
    pub node: NodeId,
    /// What: `leads`, `stops`, or what an operator did.
    pub event: String,
    /// Its term.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<Term>,
    /// Its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Why.
    pub reason: String,
}

/// The file.
#[derive(Debug)]
pub struct History(PathBuf);

impl History {
    /// In this state directory.
    pub fn of(state: &Path) -> History {
        History(state.join("history.jsonl"))
    }

    fn older(&self) -> PathBuf {
        self.0.with_extension("older.jsonl")
    }

    /// Takes notes from now on, on a thread of its own: a disk that hangs holds up nobody.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn keep(self) -> io::Result<Notes> {
        let directory = self.0.parent().unwrap_or(Path::new("")).to_owned();
        let (to, notes) = mpsc::channel::<Entry>();
        let (finished, written) = mpsc::channel();
        thread::Builder::new().name("history".into()).spawn(move || {
            for entry in notes {
                // A disk that fails costs a line of history, and no more.
                if let Err(error) = self.append(&entry) {
                    tracing::warn!(path = %self.0.display(), "the history cannot be written: {error}");
                }
            }
            let _ = finished.send(());
        })?;
        Ok(Notes { directory, to: Some(to), finished: written })
    }

    fn append(&self, entry: &Entry) -> io::Result<()> {
        if fs::metadata(&self.0).is_ok_and(|about| about.len() > FILE_BYTES_MAX) {
            fs::rename(&self.0, self.older())?;
        }
        let line = serde_json::to_string(entry)?;
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        file.write_all(format!("{line}\n").as_bytes())
    }

    /// All of it, oldest first. A torn last line is left out.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for path in [self.older(), self.0.clone()] {
            match fs::read_to_string(&path) {
                Ok(text) => entries.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }
}

/// The history, to be written.
#[derive(Debug)]
pub struct Notes {
    directory: PathBuf,
    to: Option<mpsc::Sender<Entry>>,
    finished: mpsc::Receiver<()>,
}

impl Notes {
    /// The state directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Adds to it.
    pub fn note(
        &self,
        node: NodeId,
        event: &str,
        term: Option<Term>,
        token: Option<Token>,
        reason: impl ToString,
    ) {
        let (event, reason) = (event.into(), reason.to_string());
        let entry = Entry { at: wall_seconds(), node, event, term, token, reason };
        if let Some(to) = &self.to {
            // The writer is there for as long as this is.
            let _ = to.send(entry);
        }
    }

    /// Returns when everything is written, or the disk has had its time.
    pub fn finish(&mut self) {
        drop(self.to.take());
        let _ = self.finished.recv_timeout(LAST_WRITE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_back_in_order_and_a_torn_line_is_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = History::of(directory.path());
        assert_eq!(history.read().expect("nothing yet"), []);
        let node = "a".parse().expect("a name");
        let mut notes = History::of(directory.path()).keep().expect("a thread");
        notes.note(node, "leads", Some(Term(3)), Some(Token::of(Term(3))), "elected");
        notes.note(node, "stops", Some(Term(3)), None, "switchover: upgrade");
        notes.finish();
        let mut file =
            OpenOptions::new().append(true).open(directory.path().join("history.jsonl")).expect("it");
        file.write_all(b"{\"at\":1,\"no").expect("written");
        let entries = history.read().expect("readable");
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[1].event.as_str(), entries[1].reason.as_str()), ("stops", "switchover: upgrade"));
        assert!(entries[0].at > 1_700_000_000);
    }
}
