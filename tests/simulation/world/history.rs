//! What clients saw: reads that were served, against everything that had been acknowledged when they began.
//!
//! A client's read takes time: it waits at the replica, the value is taken, and after that the lease is looked at once
//! more, as `Lease::is_valid` is to be used. The process may be stopped anywhere between.

use tiebreak::ids::Term;

/// A read on its way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Reading {
    /// Writes that were acknowledged, or read, before it began.
    pub(crate) floor: usize,
    /// What was found, and in which term; looked at before the lease is looked at again.
    pub(crate) found: Option<(Term, usize)>,
}

/// Completed reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) served: u64,
    pub(crate) refused: u64,
    /// The most that any read has returned.
    newest: usize,
}

impl History {
    /// A read begins when so many writes are acknowledged: it may return no less, and no less than any before it.
    pub(crate) fn begin(&self, acknowledged: usize) -> Reading {
        Reading { floor: acknowledged.max(self.newest), found: None }
    }

    /// A read returns so many writes.
    pub(crate) fn end(&mut self, name: &str, reading: Reading, upto: usize) -> Result<(), String> {
        self.served += 1;
        self.newest = self.newest.max(upto);
        if upto < reading.floor {
            return Err(format!(
                "6: a read at {name} returns {upto} writes; {} were safe before",
                reading.floor
            ));
        }
        Ok(())
    }
}
