//! What happens at the sockets, counted for monitors, and how often the log tells of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::edge::clock::Clock;
use crate::edge::meter::{Allowance, Meter};
use crate::limits::{LINES_A_SECOND, LINES_AT_ONCE};

const LINES: Allowance = Allowance { at_once: LINES_AT_ONCE, a_second: LINES_A_SECOND };

/// Something that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Happened {
    /// A pinned key got in.
    Admitted,
    /// A key came in order to join.
    Joining,
    /// A pinned key came to ask about its registration.
    Asking,
    /// A key that is not pinned.
    NotPinned,
    /// A pinned key that dials too often, or one too many that join.
    Crowded,
    /// A handshake failed, or took too long.
    Failed,
    /// An address had to prove itself.
    Retried,
    /// Too many handshakes were under way, of all or of this source.
    Refused,
    /// Its source has strayed too often.
    Ignored,
    /// A request was too long or too slow.
    TurnedAway,
    /// A line of the log was left out.
    Unsaid,
}

const HAPPENED: [(Happened, &str); 11] = [
    (Happened::Admitted, "admitted"),
    (Happened::Joining, "joining"),
    (Happened::Asking, "asking"),
    (Happened::NotPinned, "not_pinned"),
    (Happened::Crowded, "crowded"),
    (Happened::Failed, "failed"),
    (Happened::Retried, "retried"),
    (Happened::Refused, "refused"),
    (Happened::Ignored, "ignored"),
    (Happened::TurnedAway, "request_turned_away"),
    (Happened::Unsaid, "line_left_out"),
];

/// Counters since the start, and the allowance of lines in the log about strangers.
#[derive(Default, Debug)]
pub struct Tally {
    counts: [AtomicU64; HAPPENED.len()],
    lines: Mutex<(Meter, u64)>,
}

impl Tally {
    /// Each counter by its name.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        HAPPENED.into_iter().map(|(happened, name)| (name, self.of(happened).load(Ordering::Relaxed)))
    }

    pub(super) fn note(&self, happened: Happened) {
        self.of(happened).fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the log may have one more line now, and how many were left out before it.
    pub(super) fn may_say(&self) -> Option<u64> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.0.take(Clock.now(), LINES) {
            return Some(std::mem::take(&mut lines.1));
        }
        lines.1 += 1;
        self.note(Happened::Unsaid);
        None
    }

    fn of(&self, happened: Happened) -> &AtomicU64 {
        &self.counts[happened as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_its_own_name_and_place() {
        let tally = Tally::default();
        for (times, (happened, _)) in HAPPENED.into_iter().enumerate() {
            (0..times).for_each(|_| tally.note(happened));
        }
        let counts: Vec<u64> = tally.counts().map(|(_, count)| count).collect();
        assert_eq!(counts, (0..HAPPENED.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn the_log_has_so_many_lines_and_the_rest_is_counted() {
        let tally = Tally::default();
        let said = (0..10_000).filter(|_| tally.may_say().is_some()).count() as u64;
        let unsaid = tally.counts().find(|(name, _)| *name == "line_left_out").unwrap().1;
        assert!(said < 10_000 / 2, "{said}");
        assert_eq!(said + unsaid, 10_000);
    }
}
