//! For the exhaustive search alone: one state for all those that differ only in what cannot matter to it.

use crate::ids::{Position, Term, VoterId};
use crate::message::{Ratchet, Remembered};
use crate::time::Moment;

use super::{Boot, Witness};

impl Witness {
    /// The same state with the replicas renamed; without notes that serve reports, courtesies and the nets of §7 only.
    /// A link keeps its replica, and of its nonce only which start of the witness it came up in.
    #[must_use]
    pub fn plain(mut self, renamed: impl Fn(VoterId) -> VoterId) -> Witness {
        self.forget_notes();
        self.greetings = [None; 2];
        for word in [&mut self.record.promised, &mut self.record.confirmed] {
            word.to = word.to.map(&renamed);
        }
        for link in self.links.iter_mut().flatten() {
            link.who = renamed(link.who);
            (link.nonce, link.number) = (u64::from(self.record.boot.0), 0);
            (link.term, link.heard) = (Term::ZERO, Moment(0));
        }
        for known in self.record.remembers.iter_mut().flatten() {
            *known = Remembered {
                voter: renamed(known.voter),
                boot: Boot(0),
                term: Term::ZERO,
                took_part: Term::ZERO,
                position: Position(0),
                ratchet: Ratchet::default(),
            };
        }
        // Places are found by name: in which order they stand does not matter.
        let name = |place: usize| self.record.remembers[place].map(|known| known.voter.node);
        if name(0).is_none() || name(1).is_some_and(|second| Some(second) < name(0)) {
            self.record.remembers.swap(0, 1);
            self.links.swap(0, 1);
        }
        self
    }
}
