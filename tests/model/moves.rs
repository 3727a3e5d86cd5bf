//! Every move that is possible in a world, and what it leads to.

use tiebreak::message::Standing;
use tiebreak::testing::{Right, Rule, Witness};

use crate::model::{Model, Move, Next, Turn};
use crate::node::{Hint, Input, Witnessed};
use crate::sight::{Sight, Sort, Stance};
use crate::talk::{Life, cluster_name, node, witness_life};
use crate::world::{Age, Faults, World, leader_mark, packed, unpacked};

impl Model {
    /// Every move that is possible here, with what it leads to: a world, or a violation.
    pub(crate) fn moves(&mut self, world: &World, out: &mut Vec<(Move, Next)>) {
        for side in 0..2 {
            self.moves_of(world, side, out);
        }
        let left = &world.left;
        if world.witness[1] == 0 && (left.lost_witness > 0 || left.replaced_witness > 0) {
            let blank = Witness::blank(node("w"), cluster_name(), witness_life(1));
            let blank = self.started(blank);
            let blank = self.witness(&blank);
            if left.lost_witness > 0 {
                let mut next = *world;
                Faults::spend(&mut next.left.lost_witness);
                next.witness = [0, blank];
                self.finish(Move::LoseWitness, next, out);
            }
            if left.replaced_witness > 0 {
                let mut next = *world;
                Faults::spend(&mut next.left.replaced_witness);
                next.witness[1] = blank;
                self.finish(Move::ReplaceWitness, next, out);
            }
        }
        self.restarts_of_witness(world, out);
        for side in 0..2 {
            for item in world.flight[side].items() {
                self.deliver(world, side, *item, out);
            }
        }
    }

    fn restarts_of_witness(&mut self, world: &World, out: &mut Vec<(Move, Next)>) {
        let first = world.witness[0];
        if world.left.restarts > 0
            && let Some(started) = self.restarted(first, first)
        {
            let mut next = *world;
            Faults::spend(&mut next.left.restarts);
            next.witness[0] = started;
            self.finish(Move::RestartWitness, next, out);
        }
        if world.left.rolled_witness > 0
            && world.image != 0
            && let Some(started) = self.restarted(first, world.image)
        {
            let mut next = *world;
            Faults::spend(&mut next.left.rolled_witness);
            (next.witness[0], next.image) = (started, 0);
            self.finish(Move::RollWitness, next, out);
        }
    }

    fn moves_of(&mut self, world: &World, side: usize, out: &mut Vec<(Move, Next)>) {
        let me = *self.sight(world, side);
        let other = *self.sight(world, 1 - side);
        let terms = self.bounds.terms;
        let promised = world.witness.map(|number| self.words_of(number).map_or(0, |words| words.promised));
        let promised = promised[0].max(promised[1]);
        let highest = me.term.max(other.term).max(promised);

        if me.may_stand {
            for term in me.term + 1..=terms.min(highest + 1) {
                self.node_move(world, side, Input::Stand(term), out);
            }
        }
        let solo = me.stance == Stance::Leader(Right::Solo);
        let leads = matches!(me.stance, Stance::Leader(_));
        if me.sole && !leads && me.term < terms {
            self.node_move(world, side, Input::Resume(Hint::Nobody), out);
        }
        if solo && me.term < terms {
            self.node_move(world, side, Input::Open(Hint::Nobody), out);
        }
        for term in me.term + 1..terms {
            if me.sole && term <= other.term {
                self.node_move(world, side, Input::Resume(Hint::Peer(term)), out);
            } else if me.sole && term <= promised && !leads {
                self.node_move(world, side, Input::Resume(Hint::Witness(term)), out);
            }
            if solo && term <= other.term {
                self.node_move(world, side, Input::Open(Hint::Peer(term)), out);
            }
        }
        if leads {
            if !solo && me.offer != Some(me.length) {
                self.node_move(world, side, Input::Offer, out);
            }
            if world.written < self.bounds.writes {
                let mut next = *world;
                next.written += 1;
                let input = Input::Write(next.written);
                self.apply(Move::Node(side, input), next, side, input, out);
            }
            if me.met.is_some_and(|witness| witness.standing == Standing::Blank) {
                self.node_move(world, side, Input::AdmitWitness, out);
                self.node_move(world, side, Input::AdmitWithoutPeer, out);
            }
        }
        if leads || me.stance == Stance::Candidate {
            self.node_move(world, side, Input::StepDown, out);
        }
        self.moves_of_follower(world, side, &me, out);
        self.moves_of_links(world, side, &me, &other, out);
    }

    fn moves_of_follower(&mut self, world: &World, side: usize, me: &Sight, out: &mut Vec<(Move, Next)>) {
        let forced = me.heard.is_some_and(|(_, fits)| !fits);
        let may_wipe = forced || (me.knows_leader && world.left.resyncs > 0);
        if may_wipe {
            let mut next = *world;
            if !forced {
                Faults::spend(&mut next.left.resyncs);
            }
            self.apply(Move::Node(side, Input::Wipe), next, side, Input::Wipe, out);
        }
        if let Some((upto, true)) = me.heard {
            if me.length < upto {
                self.node_move(world, side, Input::Copy, out);
            }
            self.node_move(world, side, Input::Join, out);
        }
    }

    fn moves_of_links(
        &mut self,
        world: &World,
        side: usize,
        me: &Sight,
        other: &Sight,
        out: &mut Vec<(Move, Next)>,
    ) {
        let greeting = other.greeting;
        let witnessed = self.witnessed(world);
        // After a start the witness that was met before is met again, if it is still there.
        let again = self.met_again(me, &witnessed);
        let plain = me.stance == Stance::Follower && !me.knows_leader;
        if world.left.crashes > 0 && !plain {
            let mut next = *world;
            Faults::spend(&mut next.left.crashes);
            self.relink(&mut next, side);
            let input = Input::Crash { peer: greeting, witness: again };
            self.apply(Move::Node(side, input), next, side, input, out);
        }
        if world.left.lost_replica > 0 && me.greeting.life == Life::First {
            let mut next = *world;
            Faults::spend(&mut next.left.lost_replica);
            self.relink(&mut next, side);
            let input = Input::LoseDisk { peer: greeting, witness: None };
            self.apply(Move::Node(side, input), next, side, input, out);
        }
        let behind = world.is_ahead(1 - side);
        if behind || world.left.links > 0 {
            let mut next = *world;
            if behind {
                self.catch_up(&mut next, side);
            } else {
                Faults::spend(&mut next.left.links);
                self.relink(&mut next, side);
            }
            let input = Input::LinkUp(greeting);
            self.apply(Move::Node(side, input), next, side, input, out);
        }
        for witness in witnessed.into_iter().flatten() {
            if me.met != Some(witness) {
                let mut next = *world;
                let slot = usize::from(witness.slot);
                next.witness[slot] = self.greeted(world.witness[slot], world.nodes[side], side);
                let input = Input::Meet(witness);
                self.apply(Move::Node(side, input), next, side, input, out);
            }
        }
    }

    /// The link to the witness that a restart brings back: the witness has it still, unless it has restarted, too.
    fn met_again(&self, me: &Sight, witnessed: &[Option<Witnessed>; 2]) -> Option<Witnessed> {
        let met = me.met?;
        witnessed[usize::from(met.slot)].filter(|witness| witness.start == met.start)
    }

    /// What each witness that is there says of itself.
    fn witnessed(&self, world: &World) -> [Option<Witnessed>; 2] {
        [0, 1].map(|slot: u8| {
            let words = self.words_of(world.witness[usize::from(slot)])?;
            let standing = match (words.blank, words.validated) {
                (true, _) => Standing::Blank,
                (false, true) => Standing::Member,
                (false, false) => Standing::Unvalidated,
            };
            Some(Witnessed { slot, standing, start: words.start })
        })
    }

    /// One end has a new link. Nothing reaches it on an earlier one; the other end still hears what was sent on the
    /// link that it has, and what was sent on one in between is never heard.
    fn relink(&self, world: &mut World, side: usize) {
        let gists = &self.gists;
        let voids = self.rules.keep(Rule::EarlierLinksAreVoid);
        let past = |item: u16| {
            let (message, _) = unpacked(item);
            if !gists[message as usize].kind.is_to_peer() {
                Some(item)
            } else if voids {
                None
            } else {
                Some(packed(message, Age::Past))
            }
        };
        world.flight[1 - side].change(past);
        world.flight[side]
            .change(|item| if unpacked(item).1 == Age::Future { past(item) } else { Some(item) });
        world.ahead = leader_mark(side, false);
    }

    /// The end that is behind hears of the newest link.
    fn catch_up(&self, world: &mut World, side: usize) {
        let gists = &self.gists;
        let voids = self.rules.keep(Rule::EarlierLinksAreVoid);
        world.flight[1 - side].change(|item| {
            let (message, age) = unpacked(item);
            match age {
                _ if !gists[message as usize].kind.is_to_peer() => Some(item),
                Age::Future => Some(packed(message, Age::Present)),
                _ if voids => None,
                _ => Some(packed(message, Age::Past)),
            }
        });
        world.ahead = 0;
    }

    fn node_move(&mut self, world: &World, side: usize, input: Input, out: &mut Vec<(Move, Next)>) {
        self.apply(Move::Node(side, input), *world, side, input, out);
    }

    fn deliver(&mut self, world: &World, side: usize, item: u16, out: &mut Vec<(Move, Next)>) {
        let (number, age) = unpacked(item);
        let gist = self.gists[number as usize];
        let message = item >> 2;
        match gist.kind {
            Sort::AskVote | Sort::AskConfirm | Sort::AskAdmit | Sort::AskValidate | Sort::AskRenew => {
                let slot = usize::from(gist.slot);
                if self.words_of(world.witness[slot]).is_none_or(|words| words.start != gist.start) {
                    return;
                }
                let answer = self.answer(world.witness[slot], message, side);
                if let Some(what) = answer.broken {
                    out.push((Move::Ask(side, message), Err(what)));
                    return;
                }
                let changed = answer.witness != world.witness[slot];
                let mut next = *world;
                if let Some(reply) = answer.reply {
                    next.flight[side].insert(packed(u32::from(reply), Age::Present));
                } else if !changed {
                    return;
                }
                if changed && !self.rules.keep(Rule::SyncBeforeReply) {
                    // The reply left, and the record did not survive.
                    self.finish(Move::HalfAsk(side, message), next, out);
                }
                next.witness[slot] = answer.witness;
                self.finish(Move::Ask(side, message), next, out);
                if changed && slot == 0 && world.image == 0 && world.left.rolled_witness > 0 {
                    // Somebody took an image of the disk just before.
                    next.image = world.witness[slot];
                    self.finish(Move::Ask(side, message), next, out);
                }
            }
            Sort::ToldVoted | Sort::ToldConfirmed | Sort::ToldAdmitted | Sort::ToldValidated => {
                let input = Input::Hear { message, earlier: false };
                self.node_move(world, side, input, out);
            }
            _ if age != Age::Future => {
                let input = Input::Hear { message, earlier: age == Age::Past };
                self.node_move(world, 1 - side, input, out);
            }
            _ => {}
        }
    }

    /// One replica does its turn in `world`, in which everything else is already as it will be.
    fn apply(&mut self, name: Move, world: World, side: usize, input: Input, out: &mut Vec<(Move, Next)>) {
        let Some(turn) = self.turn(world.nodes[side], input) else { return };
        if let Some(what) = &turn.broken {
            out.push((name, Err(what.clone())));
            return;
        }
        let age = if world.is_ahead(1 - side) {
            (!self.rules.keep(Rule::EarlierLinksAreVoid)).then_some(Age::Past)
        } else if world.is_ahead(side) {
            Some(Age::Future)
        } else {
            Some(Age::Present)
        };
        let says_again = |message: &u16| {
            let age =
                if self.gists[usize::from(*message)].kind.is_to_peer() { age } else { Some(Age::Present) };
            age.is_none_or(|age| world.flight[side].items().contains(&packed(u32::from(*message), age)))
        };
        let idle =
            turn.node == world.nodes[side] && turn.led == 0 && turn.on_both == 0 && turn.told.is_none();
        if idle && matches!(input, Input::Hear { .. }) && turn.says.iter().all(says_again) {
            return;
        }
        let mut next = world;
        for message in &turn.says {
            let age =
                if self.gists[usize::from(*message)].kind.is_to_peer() { age } else { Some(Age::Present) };
            if let Some(age) = age {
                next.flight[side].insert(packed(u32::from(*message), age));
            }
        }
        if turn.record_changed && !turn.says.is_empty() && !self.rules.keep(Rule::SyncBeforeReply) {
            self.half(side, input, next, out);
        }
        next.nodes[side] = turn.node;
        if turn.led > 0 {
            let mark = leader_mark(side, self.sight(&next, side).greeting.life == Life::Second);
            let place = &mut next.leaders[usize::from(turn.led)];
            if *place != 0 {
                let what =
                    if *place == mark { "one replica begins to lead twice in" } else { "two leaders in" };
                out.push((name, Err(format!("{what} term {}", turn.led))));
                return;
            }
            *place = mark;
        }
        let acknowledged = self.acknowledge(&mut next, side, &turn);
        if let Err(what) = acknowledged {
            out.push((name, Err(what)));
            return;
        }
        self.finish(name, next, out);
    }

    /// What was said has left, the record was not durable yet, and the replica starts again on the earlier one.
    fn half(&mut self, side: usize, input: Input, said: World, out: &mut Vec<(Move, Next)>) {
        let mut next = said;
        self.relink(&mut next, side);
        let witness = self.met_again(self.sight(&said, side), &self.witnessed(&said));
        let peer = self.sight(&said, 1 - side).greeting;
        if let Some(turn) = self.turn(said.nodes[side], Input::Crash { peer, witness }) {
            next.nodes[side] = turn.node;
            self.finish(Move::Half(side, input), next, out);
        }
    }

    /// Whoever may acknowledge does so at once: that asks more of everybody later, and changes nothing else.
    fn acknowledge(&mut self, world: &mut World, side: usize, turn: &Turn) -> Result<(), String> {
        let me = *self.sight(world, side);
        match me.stance {
            Stance::Leader(Right::Solo) => self.committed(world, &me, me.length)?,
            Stance::Leader(Right::Paired) if turn.on_both > 0 => self.committed(world, &me, turn.on_both)?,
            _ => {}
        }
        // The leader hears at once how far its follower is: all that follows is that more is acknowledged.
        let other = *self.sight(world, 1 - side);
        let linked = world.ahead == 0 || !self.rules.keep(Rule::EarlierLinksAreVoid);
        match turn.told {
            Some(upto)
                if linked && other.stance == Stance::Leader(Right::Paired) && other.term == me.term =>
            {
                self.committed(world, &other, upto)
            }
            _ => Ok(()),
        }
    }

    /// A leader acknowledges the beginning of its log.
    fn committed(&mut self, world: &mut World, leader: &Sight, upto: u8) -> Result<(), String> {
        let known = self.logs.get(u32::from(world.committed));
        let log = self.logs.get(u32::from(leader.log));
        let upto = usize::from(upto).min(log.len());
        let both = known.len().min(upto);
        if known[..both] != log[..both] {
            return Err(format!("{known:?} was acknowledged, and then {:?}", &log[..upto]));
        }
        if upto > known.len() {
            let first = known.len();
            let now = log[..upto].to_vec();
            world.committed = self.log(&now);
            world.acknowledged[first..upto].fill(leader.term);
        }
        Ok(())
    }
}
