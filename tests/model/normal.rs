//! The invariants, and the normal form of a world: what can have no effect any more is not kept.

use tiebreak::message::Standing;
use tiebreak::testing::{Right, Rule, Rules};

use crate::model::{Model, Move, Next};
use crate::sight::{Gist, Sight, Sort, Stance};
use crate::talk::Life;
use crate::world::{Age, World, leader_mark, unpacked};

impl Model {
    /// The move is done: is anything violated?
    pub(crate) fn finish(&mut self, name: Move, mut world: World, out: &mut Vec<(Move, Next)>) {
        if let Err(what) = self.check(&world) {
            out.push((name, Err(what)));
            return;
        }
        if self.tidies {
            self.tidy(&mut world);
        }
        self.forget(&mut world);
        out.push((name, Ok(world)));
    }

    /// Invariants 2 and 3. (1 is checked where a term begins, 4 where a voter has moved, 5 by how moves are made.)
    fn check(&self, world: &World) -> Result<(), String> {
        let sights = [self.sight(world, 0), self.sight(world, 1)];
        if sights.iter().all(|me| me.sole) {
            return Err("both replicas may acknowledge alone".into());
        }
        if sights.iter().all(|me| me.stance == Stance::Leader(Right::Solo)) {
            return Err("both replicas acknowledge alone".into());
        }
        let known = self.logs.get(u32::from(world.committed));
        if known.is_empty() {
            return Ok(());
        }
        for me in sights {
            if !matches!(me.stance, Stance::Leader(_)) {
                continue;
            }
            let below = world.acknowledged[..known.len()].iter().take_while(|term| **term < me.term).count();
            if !self.logs.get(u32::from(me.log)).starts_with(&known[..below]) {
                return Err(format!("a leader of term {} lacks what was acknowledged before", me.term));
            }
        }
        let lost = world.left.lost_replica != self.bounds.faults.lost_replica;
        if !lost && !sights.iter().any(|me| self.logs.get(u32::from(me.log)).starts_with(known)) {
            return Err(format!("no replica has all of {known:?}"));
        }
        Ok(())
    }

    /// What can tell no violation any more is forgotten: who led a term that both replicas are above, and in which of
    /// the terms below theirs something was acknowledged.
    fn forget(&self, world: &mut World) {
        let lowest = self.sight(world, 0).term.min(self.sight(world, 1).term);
        for (term, mark) in world.leaders.iter_mut().enumerate() {
            if term < usize::from(lowest) {
                *mark = 0;
            }
        }
        for term in &mut world.acknowledged {
            if *term > 0 {
                *term = (*term).max(lowest.saturating_sub(1));
            }
        }
    }

    /// Messages that can never have an effect again are dropped.
    fn tidy(&self, world: &mut World) {
        for side in 0..2 {
            let (me, other) = (*self.sight(world, side), *self.sight(world, 1 - side));
            let witness = world.witness;
            let asked = self.waits_for(world);
            let mut flight = world.flight[side];
            flight.change(|item| {
                let (message, age) = unpacked(item);
                let gist = &self.gists[message as usize];
                let live = if gist.kind.is_to_peer() {
                    self.lives_at_peer(gist, age, &other)
                        && (!matches!(gist.kind, Sort::Vouch | Sort::Vouched) || asked == Some(gist.length))
                } else if gist.kind.is_to_witness() {
                    self.lives_at_witness(gist, side, witness[usize::from(gist.slot)])
                } else {
                    lives_when_told(gist, &me, self.rules)
                };
                live.then_some(item)
            });
            world.flight[side] = flight;
        }
    }

    /// The start in which the first witness waits for a leader. No other is ever waited for: a new one is taken in.
    fn waits_for(&self, world: &World) -> Option<u8> {
        self.words_of(world.witness[0])
            .filter(|words| !words.validated && !words.blank)
            .map(|words| words.start)
    }

    /// Whether a message to the peer can still do anything to its receiver, `to`.
    fn lives_at_peer(&self, gist: &Gist, age: Age, to: &Sight) -> bool {
        if gist.term < to.term {
            return false;
        }
        if age != Age::Present {
            return true;
        }
        let at_term = gist.term == to.term;
        match gist.kind {
            // Granted already, and the answer is in flight on the same link; or never to be granted.
            Sort::PeerVote => !at_term,
            Sort::PeerVoted => to.stance == Stance::Candidate && at_term,
            // Only the leader of the term can use it, and only while it is not solo, which it stays to the end of the
            // term; and an offer of less than it has is not made again.
            Sort::Joined => match to.stance {
                Stance::Leader(right) if at_term && right != Right::Solo => {
                    let fits = to.offer == Some(gist.length);
                    let heard = fits && right == Right::Paired;
                    !heard && (fits || gist.length >= to.length)
                }
                _ => !self.rules.keep(Rule::ConfirmedNeverPaired) && at_term,
            },
            // As long as the receiver takes part, it never again has less than it has now: whoever wipes joins again
            // only with what it had stated.
            Sort::Append => !(at_term && to.takes_part && gist.length <= to.length),
            Sort::Adopt => gist.adoption >= to.adoption,
            Sort::Adopted | Sort::Vouched => {
                matches!(to.stance, Stance::Leader(Right::Blocked | Right::Paired)) && at_term
            }
            Sort::Offer | Sort::Renew => !(at_term && matches!(to.stance, Stance::Leader(_))),
            _ => true,
        }
    }

    fn lives_at_witness(&self, gist: &Gist, side: usize, witness: u16) -> bool {
        let Some(words) = self.words_of(witness) else { return false };
        if gist.start != words.start {
            // It was sent to a process that is gone.
            return false;
        }
        let asker = leader_mark(side, gist.second_life);
        let promised_to_it = words.promised_to == asker && gist.term == words.promised;
        match gist.kind {
            // What was granted once needs no second answer: the first stays in flight.
            Sort::AskVote => {
                let again = gist.term == words.promised
                    && (!promised_to_it && !self.rules.keep(Rule::OnePromisePerTerm)
                        || promised_to_it && !self.rules.keep(Rule::ConfirmationOutlivesPromises));
                gist.term > words.promised || again
            }
            Sort::AskConfirm => {
                let answered = gist.term == words.confirmed && words.confirmed_to == asker;
                let above = gist.term > words.promised || promised_to_it;
                let any = gist.term >= words.confirmed && !self.rules.keep(Rule::ConfirmNotBelowPromise);
                (above || any) && !answered
            }
            Sort::AskValidate => {
                !words.validated
                    && words.start == gist.length
                    && (gist.term > words.promised || promised_to_it)
            }
            Sort::AskRenew => gist.term > words.promised,
            _ => words.blank || !self.rules.keep(Rule::AdmittedOnce),
        }
    }
}

/// Whether what a witness said can still do anything to its receiver.
fn lives_when_told(gist: &Gist, to: &Sight, rules: Rules) -> bool {
    let this_life = gist.second_life == (to.greeting.life == Life::Second);
    let voids = rules.keep(Rule::EarlierLinksAreVoid);
    let over = to.met.is_some_and(|met| met.slot == gist.slot && met.start > gist.start && voids);
    let at_term = gist.term == to.term;
    this_life
        && !over
        && match gist.kind {
            Sort::ToldVoted => to.stance == Stance::Candidate && at_term,
            Sort::ToldConfirmed => {
                matches!(to.stance, Stance::Leader(Right::Blocked | Right::Paired)) && at_term
            }
            _ => to.met.is_none_or(|met| met.slot != gist.slot || met.standing != Standing::Member),
        }
}
