//! What voters remember of one another, and how a state that came out of an old image is found out. (§7)
//!
//! A voter says of itself only what is durable: its count of starts, its term, how far its data reaches. Each of them
//! only rises. So a voter that is told "you said more than that before" knows that its state is not the newest; and
//! because such a claim stays true for ever, it may arrive as late as it likes.
//!
//! Beside them every link moves on a number that both ends keep, in two steps: the one that is dialled proposes the
//! next number and keeps it as pending, the one that dialled makes it current, and its first message on the link makes
//! it current at the other end, too. A number that was proposed is proposed again until it is current: so whichever
//! answer arrives, and whatever crashes in between, the two have one of their numbers in common.
//!
//! Invariants:
//! - what is claimed of a voter was said by that very life of it, durably: never hearsay, never a pre-vote;
//! - two ends that lost nothing always have a number in common, unless a greeting of an earlier life of one arrives
//!   after a later life was met; then they refuse one another until an operator replaces one (a connection whose other
//!   end is dead is given up in less than a minute, so it would have to be set up anew in less).

use crate::ids::{Boot, Incarnation, Position, Term, VoterId};
use crate::message::{Hello, Part, Ratchet, Refusal, Remembered, Sender, Standing};
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
        // Of two that cross, both ends choose the same one.
        both.max()
    }
}

/// The newest greeting of a node: an older one that was overtaken on its way is void.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Greeting {
    voter: VoterId,
    boot: Boot,
    count: u64,
}

impl Greeting {
    /// This one, if the one before it does not come later in the same run.
    pub(crate) fn after(before: Option<Greeting>, from: &Sender, hello: &Hello) -> Result<Greeting, Refusal> {
        let greeting = Greeting { voter: from.voter, boot: from.boot, count: hello.nonce };
        match before {
            Some(newer)
                if (newer.voter, newer.boot) == (greeting.voter, greeting.boot) && newer > greeting =>
            {
                Err(Refusal::Void)
            }
            _ => Ok(greeting),
        }
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
        /// The number that whoever dialled has when it speaks on the link.
        number: u64,
        /// One's data is older than what one stated of it.
        data_is_older: bool,
    },
    /// One's own state is an old image.
    OwnIsOlder,
    /// The other end is refused.
    Refused(Refusal),
}

impl Own<'_> {
    /// A greeting arrived from one that dialled: propose the next number. `draw` is random; `is_linked` tells whether
    /// that very life has a live link already.
    pub(crate) fn greeted(&self, from: &Sender, hello: &Hello, draw: u32, is_linked: bool) -> Finding {
        let (claim, known) = match self.compare(from, hello, is_linked) {
            Ok(pair) => pair,
            Err(finding) => return finding,
        };
        let (theirs, ours) = (ratchet(claim), ratchet(known.as_ref()));
        let current = if claim.is_none() { 0 } else { theirs.common(ours).unwrap_or(theirs.current) };
        let links = Ratchet::links(current).saturating_add(1);
        let proposed = Ratchet::links(ours.pending) == links;
        let drawn = u64::from(links) << DRAWN_BITS | u64::from(draw);
        let next = if proposed { ours.pending } else { drawn };
        let ratchet = Ratchet { current, pending: next };
        self.fits(from, hello, claim, known, ratchet, next)
    }

    /// The answer to one's own greeting arrived, with the next number.
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

    /// `by` refused a greeting, because it remembers more of this life than was shown. Whether that is so.
    pub(crate) fn is_restored(&self, by: VoterId, boot: Boot, term: Term, links: u32) -> bool {
        let (life, link) = self.said_more(by, boot, term, links);
        life || link
    }

    /// Whether this is more than one's own state knows to have said to that voter: of one's starts and terms, and of the
    /// links between the two.
    fn said_more(&self, to: VoterId, boot: Boot, term: Term, links: u32) -> (bool, bool) {
        // With another life of that node in mind, one cannot tell how many links this one has had.
        let comparable = self.remembers.is_none_or(|known| known.voter == to);
        let own = ratchet(self.remembers).farthest();
        (boot > self.sender.boot || term > self.sender.term, comparable && links > own)
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
            let claimed = Ratchet::links(claim.ratchet.current);
            let (older_life, older_link) = self.said_more(from.voter, claim.boot, claim.term, claimed);
            if (lives && older_life) || (links && older_link) {
                return Err(Finding::OwnIsOlder);
            }
        }
        let known = self.remembers.filter(|known| known.voter == from.voter).copied();
        if let Some(known) = known {
            // One that has another life of this node in mind does not know this one: it said so before the two met, or
            // its state is from before that.
            let theirs = ratchet(claim);
            let older_life = known.boot > from.boot || known.term > from.term;
            let fits = theirs.common(known.ratchet).is_some();
            let older_link = !fits && theirs.farthest() < Ratchet::links(known.ratchet.current);
            let copied = Refusal::Copied { life: from.voter.node, with: me.voter.node };
            if (lives && older_life) || (links && older_link) {
                let links = Ratchet::links(known.ratchet.current);
                let restored = Refusal::Restored { boot: known.boot, term: known.term, links };
                return Err(Finding::Refused(if is_linked { copied } else { restored }));
            }
            if links && !fits {
                return Err(Finding::Refused(copied));
            }
        }
        Ok((claim, known))
    }

    fn fits(
        &self,
        from: &Sender,
        hello: &Hello,
        claim: Option<&Remembered>,
        known: Option<Remembered>,
        ratchet: Ratchet,
        number: u64,
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
        Finding::Fits { remember, number, data_is_older }
    }
}

fn ratchet(of: Option<&Remembered>) -> Ratchet {
    of.map_or_else(Ratchet::default, |known| known.ratchet)
}

impl Remembered {
    /// The other end has spoken on a link that came up with this number: so it has it.
    pub(crate) fn settle(&mut self, number: u64) {
        if self.ratchet.pending == number {
            self.ratchet = Ratchet { current: number, pending: 0 };
        }
    }
}

/// What the number of a link is drawn from, out of what was drawn for one greeting.
#[allow(clippy::cast_possible_truncation, reason = "the lowest bits are meant")]
pub(crate) fn draw(fresh: u128) -> u32 {
    fresh as u32
}

/// What names a link, out of what was drawn for one greeting.
#[allow(clippy::cast_possible_truncation, reason = "the upper half of 128 bits is 64 bits")]
pub(crate) fn nonce(fresh: u128) -> u64 {
    (fresh >> 64) as u64
}

/// Adds lives to those known; the earliest makes room.
pub(crate) fn add_lives(known: &mut [Incarnation], lives: &[Incarnation]) {
    for life in lives.iter().filter(|life| **life != Incarnation::NIL) {
        if known.contains(life) {
            continue;
        }
        if let Some(free) = known.iter_mut().find(|place| **place == Incarnation::NIL) {
            *free = *life;
        } else {
            known.rotate_left(1);
            known[known.len() - 1] = *life;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ClusterId;
    use crate::message::{Adoption, BANNED_MAX, Kind};

    /// One end: its durable state, and the number with which the live link came up.
    #[derive(Clone, Copy, Debug)]
    struct End {
        sender: Sender,
        remembers: Option<Remembered>,
        number: u64,
    }

    impl End {
        fn new(name: &str) -> End {
            let voter = VoterId { node: name.parse().expect("a name"), incarnation: Incarnation(1) };
            let sender = Sender { cluster: ClusterId(1), voter, boot: Boot(1), term: Term(1) };
            End { sender, remembers: None, number: 0 }
        }

        fn own(&self) -> Own<'_> {
            Own {
                sender: self.sender,
                takes_part: Term(1),
                position: Position(5),
                remembers: self.remembers.as_ref(),
                rules: Rules::KEPT,
            }
        }

        fn hello(&self) -> Hello {
            Hello {
                name: "orders".parse().expect("a name"),
                kind: Kind::Replicated,
                part: Part::Replica,
                standing: Standing::Member,
                holds: Term(1),
                position: Position(5),
                sole: false,
                leads: false,
                adoption: Adoption::NONE,
                remembers: self.remembers,
                nonce: 0,
                banned: [Incarnation::NIL; BANNED_MAX],
            }
        }

        fn takes(&mut self, finding: Finding) {
            let Finding::Fits { remember, number, .. } = finding else { panic!("{finding:?}") };
            (self.remembers, self.number) = (Some(remember), number);
        }

        fn hears(&mut self, term: u32) {
            let known = self.remembers.as_mut().expect("linked");
            known.settle(self.number);
            known.term = known.term.max(Term(term));
        }
    }

    /// Dials, and says something on the link.
    fn link(dialler: &mut End, listener: &mut End, draw: u32) {
        let greeting = (dialler.sender, dialler.hello());
        listener.takes(listener.own().greeted(&greeting.0, &greeting.1, draw, false));
        dialler.takes(dialler.own().answered(&listener.sender, &listener.hello()));
        listener.hears(1);
        dialler.hears(1);
    }

    fn roll(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *seed >> 33
    }

    /// A greeting or an answer on its way.
    #[derive(Clone, Copy)]
    struct Way {
        by: usize,
        from: Sender,
        hello: Hello,
        /// Which greeting of the other end it answers.
        answers: Option<u64>,
    }

    #[test]
    fn ends_that_lost_nothing_always_fit_whatever_is_lost_late_or_crossing() {
        let mut linked = 0;
        for seed in 0..3_000 {
            let mut seed = seed * 7 + 1;
            let mut ends = [End::new("a"), End::new("b")];
            let mut under_way: Vec<Way> = Vec::new();
            // Greetings of each end in this run, and the newest one that each end has heard.
            let mut greetings = [0_u64; 2];
            let mut heard = [None; 2];
            for _ in 0..60 {
                let who = usize::try_from(roll(&mut seed) % 2).expect("small");
                match roll(&mut seed) % 40 {
                    0 => {
                        // A lost disk: another life, which knows nobody.
                        ends[who].sender.voter.incarnation.0 += 1;
                        (ends[who].sender.boot, ends[who].remembers) = (Boot(1), None);
                        ends[who].number = 0;
                        (greetings[who], heard[who]) = (0, None);
                        // Connections end long before a machine is set up anew: nothing of the earlier life arrives.
                        under_way.clear();
                    }
                    1..=7 => {
                        greetings[who] += 1;
                        let hello = Hello { nonce: greetings[who], ..ends[who].hello() };
                        under_way.push(Way { by: who, from: ends[who].sender, hello, answers: None });
                    }
                    8..=13 => {
                        // A crash: its links and greetings are over, and the count of starts rises.
                        ends[who].sender.boot.0 += 1;
                        ends[who].number = 0;
                        (greetings[who], heard[who]) = (0, None);
                        under_way.retain(|way| way.by == who);
                    }
                    14..=19 if ends[0].number != 0 && ends[0].number == ends[1].number => {
                        linked += 1;
                        ends[who].hears(1);
                    }
                    _ if !under_way.is_empty() => {
                        let at = usize::try_from(roll(&mut seed)).expect("small") % under_way.len();
                        let Way { by, from, hello, answers } = under_way.swap_remove(at);
                        let (me, draw) = (1 - by, u32::try_from(roll(&mut seed)).expect("31 bits"));
                        let lost = roll(&mut seed).is_multiple_of(3);
                        // Nobody waits for the answer to an earlier greeting.
                        if lost || answers.is_some_and(|count| count != greetings[me]) {
                            continue;
                        }
                        let finding = if answers.is_some() {
                            ends[me].own().answered(&from, &hello)
                        } else {
                            let Ok(newest) = Greeting::after(heard[me], &from, &hello) else { continue };
                            heard[me] = Some(newest);
                            ends[me].own().greeted(&from, &hello, draw, false)
                        };
                        match finding {
                            Finding::OwnIsOlder => panic!("{:?} believes that it is restored", ends[me]),
                            // A greeting that is older than the present state of its own sender.
                            Finding::Refused(Refusal::Copied { .. }) => {}
                            Finding::Refused(Refusal::Restored { boot, term, links }) => {
                                assert!(
                                    !ends[by].own().is_restored(ends[me].sender.voter, boot, term, links),
                                    "{ends:?}"
                                );
                            }
                            Finding::Refused(_) => {}
                            Finding::Fits { .. } => {
                                ends[me].takes(finding);
                                if answers.is_none() {
                                    let answers = Some(hello.nonce);
                                    let (from, hello) = (ends[me].sender, ends[me].hello());
                                    under_way.push(Way { by: me, from, hello, answers });
                                }
                            }
                        }
                    }
                    _ => {}
                }
            }
            // When all is quiet, whoever dials is taken.
            let (one, other) = ends.split_at_mut(1);
            if roll(&mut seed).is_multiple_of(2) {
                link(&mut one[0], &mut other[0], 5);
            } else {
                link(&mut other[0], &mut one[0], 5);
            }
        }
        assert!(linked > 1_000, "{linked} words on live links");
    }

    #[test]
    fn an_image_from_before_the_last_link_is_found_out_by_whichever_end_dials() {
        for restored_dials in [true, false] {
            let (mut a, mut b) = (End::new("a"), End::new("b"));
            link(&mut a, &mut b, 1);
            let image = a;
            link(&mut b, &mut a, 2);
            a = image;
            let (a_says, b_says) = (a.hello(), b.hello());
            if restored_dials {
                let finding = b.own().greeted(&a.sender, &a_says, 3, false);
                let Finding::Refused(Refusal::Restored { boot, term, links }) = finding else {
                    panic!("{finding:?}")
                };
                assert!(a.own().is_restored(b.sender.voter, boot, term, links), "and it agrees");
            } else {
                assert_eq!(a.own().greeted(&b.sender, &b_says, 3, false), Finding::OwnIsOlder);
            }
        }
    }

    #[test]
    fn an_image_from_before_a_start_or_a_term_that_was_stated_is_found_out() {
        let (mut a, mut b) = (End::new("a"), End::new("b"));
        link(&mut a, &mut b, 1);
        let image = a;
        b.hears(7);
        let finding = b.own().greeted(&image.sender, &image.hello(), 3, false);
        assert!(matches!(finding, Finding::Refused(Refusal::Restored { term: Term(7), .. })), "{finding:?}");
        assert_eq!(image.own().greeted(&b.sender, &b.hello(), 3, false), Finding::OwnIsOlder);
    }

    #[test]
    fn data_that_is_older_than_what_was_stated_in_this_term_is_found_out() {
        let (mut a, mut b) = (End::new("a"), End::new("b"));
        link(&mut a, &mut b, 1);
        let known = b.remembers.as_mut().expect("linked");
        (known.took_part, known.position) = (Term(1), Position(9));
        let finding = a.own().greeted(&b.sender, &b.hello(), 2, false);
        assert!(matches!(finding, Finding::Fits { data_is_older: true, .. }), "{finding:?}");
        // In another term positions do not compare.
        let elsewhere = Own { takes_part: Term(2), ..a.own() };
        let finding = elsewhere.greeted(&b.sender, &b.hello(), 2, false);
        assert!(matches!(finding, Finding::Fits { data_is_older: false, .. }), "{finding:?}");
    }

    #[test]
    fn two_machines_with_one_state_are_named() {
        let (mut a, mut b) = (End::new("a"), End::new("b"));
        link(&mut a, &mut b, 1);
        let copy = a;
        link(&mut a, &mut b, 2);
        let finding = b.own().greeted(&copy.sender, &copy.hello(), 3, true);
        let copied = Refusal::Copied { life: a.sender.voter.node, with: b.sender.voter.node };
        assert_eq!(finding, Finding::Refused(copied), "the other one has a live link");
        // Both pairs were copied and went on: as many links, and other numbers.
        let (mut a2, mut b2) = (copy, End::new("b"));
        b2.remembers = b.remembers;
        b2.remembers.as_mut().expect("linked").ratchet = a2.remembers.expect("linked").ratchet;
        link(&mut a2, &mut b2, 4);
        let finding = b.own().greeted(&a2.sender, &a2.hello(), 3, false);
        assert_eq!(finding, Finding::Refused(copied));
    }

    #[test]
    fn a_life_that_was_given_up_is_remembered_until_there_is_no_room() {
        let mut known = [Incarnation::NIL; 4];
        add_lives(&mut known, &[Incarnation(1), Incarnation::NIL, Incarnation(1), Incarnation(2)]);
        assert_eq!(known[..3], [Incarnation(1), Incarnation(2), Incarnation::NIL]);
        add_lives(&mut known, &[Incarnation(3), Incarnation(4), Incarnation(5)]);
        assert_eq!(known, [2, 3, 4, 5].map(Incarnation));
    }
}
