//! What voters remember of one another, and how a state that came out of an old image is found out. (§7)
//!
//! A voter says of itself only what is durable: its count of starts, its term, how far its data reaches. Each of them
//! only rises. So a voter that is told "you said more than that before" knows that its state is not the newest; and
//! because such a claim stays true for ever, it may arrive as late as it likes.
//!
//! Beside them every link moves on a number that both ends keep, in two steps: the one that is dialled proposes the
//! next number and keeps it as pending, the one that dialled makes it current, and its first message on the link makes
//! it current at the other end, too. Whatever crashes in between, the two have one of their numbers in common.
//!
//! Invariants:
//! - what is claimed of a voter was said by that very life of it, durably: never hearsay, never a pre-vote;
//! - two ends that lost nothing always have a number in common.

use crate::ids::{Boot, Incarnation, Position, Term};
use crate::message::{BANNED_MAX, Hello, Part, Ratchet, Refusal, Remembered, Sender, Standing};
use crate::rules::{Rule, Rules};

/// Half of a number of a link counts, the other half is drawn.
const DRAWN_BITS: u32 = 32;

impl Ratchet {
    /// How many links a number counts.
    pub fn links(number: u64) -> u32 {
        u32::try_from(number >> DRAWN_BITS).unwrap_or(u32::MAX)
    }

    fn numbers(self) -> [u64; 2] {
        [self.current, self.pending]
    }

    fn farthest(self) -> u32 {
        Ratchet::links(self.current).max(Ratchet::links(self.pending))
    }

    /// The newest number that both ends have.
    fn common(self, other: Ratchet) -> Option<u64> {
        // 0 as a pending number means that there is none.
        let has = |ratchet: Ratchet, number| {
            ratchet.current == number || (number != 0 && ratchet.pending == number)
        };
        let both = self.numbers().into_iter().filter(|number| has(self, *number) && has(other, *number));
        both.max_by_key(|number| Ratchet::links(*number))
    }
}

/// Who one is when a link comes up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own<'a> {
    /// The head of one's messages.
    pub(crate) sender: Sender,
    /// The term in which one takes part, when one's data may be relied on.
    pub(crate) takes_part: Term,
    /// How far one's data reaches.
    pub(crate) position: Position,
    /// What one remembers of the node at the other end.
    pub(crate) remembers: Option<&'a Remembered>,
    /// Which rules are kept.
    pub(crate) rules: Rules,
}

/// What a greeting shows about the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// They fit: this is to be remembered, and the link has this number.
    Fits {
        /// What to remember of the other end.
        remember: Remembered,
        /// Names the link.
        link: u64,
        /// One's data is older than what one stated of it.
        data_is_older: bool,
    },
    /// One's own state is an old image.
    OwnIsOlder,
    /// The other end is refused.
    Refused(Refusal),
}

impl Own<'_> {
    /// A greeting arrived from one that dialled: propose the next number of the link. `draw` is random; `is_linked`
    /// tells whether that very life has a live link already.
    pub(crate) fn greeted(&self, from: &Sender, hello: &Hello, draw: u32, is_linked: bool) -> Finding {
        let (claim, known) = match self.compare(from, hello, is_linked) {
            Ok(pair) => pair,
            Err(finding) => return finding,
        };
        let (theirs, ours) = (ratchet(claim), ratchet(known.as_ref()));
        let current = if claim.is_none() { 0 } else { theirs.common(ours).unwrap_or(theirs.current) };
        let next = u64::from(Ratchet::links(current).saturating_add(1)) << DRAWN_BITS | u64::from(draw);
        let ratchet = Ratchet { current, pending: next };
        self.fits(from, hello, claim, known, ratchet, next)
    }

    /// The answer to one's own greeting arrived: its pending number is the number of the link.
    pub(crate) fn answered(&self, from: &Sender, hello: &Hello) -> Finding {
        let (claim, known) = match self.compare(from, hello, false) {
            Ok(pair) => pair,
            Err(finding) => return finding,
        };
        let Some(claim) = claim else { return Finding::Refused(Refusal::Void) };
        let (theirs, ours) = (claim.ratchet, ratchet(known.as_ref()));
        let stale = ours.current != theirs.current && (theirs.current == 0 || ours.pending != theirs.current);
        if (stale && known.is_some() && self.rules.keep(Rule::LinksRatchet)) || theirs.pending == 0 {
            // Another link came up since the greeting was sent.
            return Finding::Refused(Refusal::Void);
        }
        // What one has proposed oneself on a link that crosses this one may still be taken up.
        let crossing = Ratchet::links(ours.pending) > Ratchet::links(theirs.current);
        let pending = if crossing { ours.pending } else { 0 };
        let ratchet = Ratchet { current: theirs.pending, pending };
        self.fits(from, hello, Some(claim), known, ratchet, theirs.pending)
    }

    /// The other one refused a greeting, because it remembers more of this life than was shown. Whether that is so.
    pub(crate) fn is_restored(&self, boot: Boot, term: Term, links: u32) -> bool {
        let own = self.remembers.map_or(0, |known| known.ratchet.farthest());
        boot > self.sender.boot || term > self.sender.term || links > own
    }

    /// What the other end claims of this life, and what is known of its life, when neither has been found older.
    fn compare<'h>(
        &self,
        from: &Sender,
        hello: &'h Hello,
        is_linked: bool,
    ) -> Result<(Option<&'h Remembered>, Option<Remembered>), Finding> {
        let me = &self.sender;
        let claim = hello.remembers.as_ref().filter(|claim| claim.voter == me.voter);
        let lives = self.rules.keep(Rule::LivesAreRemembered);
        let links = self.rules.keep(Rule::LinksRatchet);
        if let Some(claim) = claim {
            // With another life of that node in mind, one cannot tell how many links this one has had.
            let comparable = self.remembers.is_none_or(|known| known.voter == from.voter);
            let own = ratchet(self.remembers).farthest();
            let older_life = claim.boot > me.boot || claim.term > me.term;
            let older_link = comparable && Ratchet::links(claim.ratchet.current) > own;
            if (lives && older_life) || (links && older_link) {
                return Err(Finding::OwnIsOlder);
            }
        }
        let known = self.remembers.filter(|known| known.voter == from.voter).copied();
        let knows_other_life = hello.remembers.is_some() && claim.is_none();
        if let Some(known) = known.filter(|_| !knows_other_life) {
            let theirs = ratchet(claim);
            let older_life = known.boot > from.boot || known.term > from.term;
            let fits = theirs.common(known.ratchet).is_some();
            let older_link = !fits && theirs.farthest() < Ratchet::links(known.ratchet.current);
            if (lives && older_life) || (links && older_link) {
                let links = Ratchet::links(known.ratchet.current);
                let restored = Refusal::Restored { boot: known.boot, term: known.term, links };
                let copied = Refusal::Copied { life: from.voter.node, with: me.voter.node };
                return Err(Finding::Refused(if is_linked { copied } else { restored }));
            }
            if links && !fits {
                let copied = Refusal::Copied { life: from.voter.node, with: me.voter.node };
                return Err(Finding::Refused(copied));
            }
        }
        Ok((claim, known.filter(|_| !knows_other_life)))
    }

    fn fits(
        &self,
        from: &Sender,
        hello: &Hello,
        claim: Option<&Remembered>,
        known: Option<Remembered>,
        ratchet: Ratchet,
        link: u64,
    ) -> Finding {
        let data_is_older = claim.is_some_and(|claim| {
            self.takes_part != Term::ZERO
                && claim.took_part == self.takes_part
                && claim.position > self.position
                && self.rules.keep(Rule::PositionsAreRemembered)
        });
        let mut remember = Remembered {
            voter: from.voter,
            boot: from.boot,
            term: from.term,
            took_part: Term::ZERO,
            position: Position(0),
            ratchet,
        };
        if let Some(known) = known {
            remember.boot = remember.boot.max(known.boot);
            remember.term = remember.term.max(known.term);
            (remember.took_part, remember.position) = (known.took_part, known.position);
        }
        // A witness has no data, and what a copying replica has is not to be relied on.
        if hello.part == Part::Replica && hello.standing == Standing::Member {
            let stated = (hello.holds, hello.position);
            (remember.took_part, remember.position) = stated.max((remember.took_part, remember.position));
        }
        Finding::Fits { remember, link, data_is_older }
    }
}

fn ratchet(of: Option<&Remembered>) -> Ratchet {
    of.map_or_else(Ratchet::default, |known| known.ratchet)
}

impl Remembered {
    /// The other end has shown that it has the number of this link.
    pub(crate) fn settle(&mut self, link: u64) {
        if self.ratchet.pending == link {
            self.ratchet = Ratchet { current: link, pending: 0 };
        }
    }
}

/// Adds lives that were given up to those known; the earliest makes room.
pub(crate) fn ban(banned: &mut [Incarnation; BANNED_MAX], lives: &[Incarnation]) {
    for life in lives.iter().filter(|life| **life != Incarnation::NIL) {
        if banned.contains(life) {
            continue;
        }
        if let Some(free) = banned.iter_mut().find(|place| **place == Incarnation::NIL) {
            *free = *life;
        } else {
            banned.rotate_left(1);
            banned[BANNED_MAX - 1] = *life;
        }
    }
}
