//! Who led when, why, and with which token: a file of JSON lines that people and programs can read.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::edge::clock::wall_seconds;
use crate::ids::{NodeId, Term, Token};

/// Bytes of the file; then it becomes the older half, and a new one begins.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

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

    /// The state directory.
    pub fn directory(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new(""))
    }

    fn older(&self) -> PathBuf {
        self.0.with_extension("older.jsonl")
    }

    /// Adds to it. A disk that fails costs a line of history, and no more.
    pub fn note(
        &self,
        node: NodeId,
        event: &str,
        term: Option<Term>,
        token: Option<Token>,
        reason: impl ToString,
    ) {
        let entry =
            Entry { at: wall_seconds(), node, event: event.into(), term, token, reason: reason.to_string() };
        if let Err(error) = self.append(&entry) {
            tracing::warn!(path = %self.0.display(), "the history cannot be written: {error}");
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_back_in_order_and_a_torn_line_is_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let history = History::of(directory.path());
        assert_eq!(history.read().expect("nothing yet"), []);
        let node = "a".parse().expect("a name");
        history.note(node, "leads", Some(Term(3)), Some(Token::of(Term(3))), "elected");
        history.note(node, "stops", Some(Term(3)), None, "switchover: upgrade");
        let mut file =
            OpenOptions::new().append(true).open(directory.path().join("history.jsonl")).expect("it");
        file.write_all(b"{\"at\":1,\"no").expect("written");
        let entries = history.read().expect("readable");
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[1].event.as_str(), entries[1].reason.as_str()), ("stops", "switchover: upgrade"));
        assert!(entries[0].at > 1_700_000_000);
    }
}
