//! The links to peer and witness: who is at the other end, what is void, and which state turns out to be lost when
//! the two ends compare what they remember. (§5, §7)

use crate::ids::{ClusterId, Incarnation, LinkId, Term, VoterId};
use crate::memory::{Finding, Greeting, Own, add_lives, draw, nonce};
use crate::message::{Hello, Part, Refusal, ReplicaRecord, Sender, Standing};
use crate::rules::Rule;

use super::{Ballot, Link, NO_LEADER, Right, Role};

impl Ballot {
    /// What it says when a link to that voter opens.
    pub fn hello(&self, to: Part) -> Hello {
        let record = &self.record;
        Hello {
            name: record.name,
            kind: record.kind,
            part: Part::Replica,
            standing: record.standing,
            holds: record.holds,
            position: self.position,
            sole: record.sole,
            leads: self.right().is_some(),
            adoption: record.adoption,
            remembers: record.remembers[place(to)],
            nonce: self.link_to(to).map_or(0, |link| link.nonce),
            banned: record.banned,
        }
    }

    fn link_to(&self, part: Part) -> Option<&Link> {
        if part == Part::Witness { self.witness.as_ref() } else { self.peer.as_ref() }
    }

    fn own(&self, with: Part) -> Own<'_> {
        let member = self.record.standing == Standing::Member;
        Own {
            sender: self.sender(),
            takes_part: if member { self.record.holds } else { Term::ZERO },
            position: self.position,
            remembers: self.record.remembers[place(with)].as_ref(),
            rules: self.rules,
        }
    }

    /// A link came up, and the other end has said who it is: in a greeting, or `dialled`, in the answer to one. An
    /// earlier link to the same voter is over with it. `fresh` is drawn for this call alone: a state that is found to
    /// be lost takes it as its new incarnation, and answers as the blank node that it is.
    pub fn link_up(
        &mut self,
        id: LinkId,
        from: &Sender,
        hello: &Hello,
        dialled: bool,
        fresh: u128,
    ) -> Result<(), Refusal> {
        let mine = self.record.cluster;
        if hello.name != self.record.name
            || (mine != ClusterId::NIL && from.cluster != ClusterId::NIL && from.cluster != mine)
        {
            return Err(Refusal::OtherCluster);
        }
        let bans = self.rules.keep(Rule::BannedStops);
        if bans && hello.banned.contains(&self.record.incarnation) {
            self.lose(Incarnation(fresh));
            return Err(Refusal::Blank);
        }
        if bans && self.record.banned.contains(&from.voter.incarnation) {
            return Err(Refusal::Banned { life: from.voter.incarnation });
        }
        let live = self.link_to(hello.part);
        if live.is_some_and(|live| live.id == id && live.who == from.voter) {
            // A link comes up once: the same greeting again has the same answer.
            return Ok(());
        }
        let greeting =
            if dialled { self.greeting } else { Some(Greeting::after(self.greeting, from, hello)?) };
        let own = self.own(hello.part);
        let finding = if dialled {
            own.answered(from, hello)
        } else {
            own.greeted(from, hello, draw(fresh), live.is_some_and(|link| link.who == from.voter))
        };
        let (remember, number, data_is_older) = match finding {
            Finding::Fits { remember, number, data_is_older } => (remember, number, data_is_older),
            Finding::Refused(refusal) => return Err(refusal),
            Finding::OwnIsOlder => {
                self.lose(Incarnation(fresh));
                return Err(Refusal::Blank);
            }
        };
        if data_is_older && self.record.sole {
            // It was the only one that held everything, and does no longer.
            self.lose(Incarnation(fresh));
            return Err(Refusal::Blank);
        }
        if data_is_older {
            self.record.holds = Term::ZERO;
            self.record.standing = Standing::Resyncing(from.voter.incarnation);
            self.role = NO_LEADER;
        }
        self.greeting = greeting;
        let met = self.record.remembers[place(hello.part)]
            .filter(|known| known.voter != from.voter && known.took_part != Term::ZERO);
        if let Some(earlier) = met {
            add_lives(&mut self.record.met, &[earlier.voter.incarnation]);
        }
        self.record.remembers[place(hello.part)] = Some(remember);
        if self.record.standing == Standing::Blank && hello.standing == Standing::Member {
            self.record.kind = hello.kind;
        }
        add_lives(&mut self.record.banned, &hello.banned);
        let nonce = if dialled { hello.nonce } else { nonce(fresh) };
        let link = Link { id, who: from.voter, standing: hello.standing, term: from.term, nonce, number };
        match hello.part {
            Part::Witness => {
                self.witness = Some(link);
            }
            Part::Replica => {
                self.peer_gone();
                self.peer = Some(link);
            }
        }
        let given_up = |link: &Link| bans && self.record.banned.contains(&link.who.incarnation);
        if let Some(link) = self.peer.filter(given_up) {
            self.link_down(link.id);
        }
        Ok(())
    }

    /// The other end refused this one's greeting. Whether this replica's state is lost with that: an operator gave it
    /// up, or it is an old image.
    pub fn not_greeted(&mut self, part: Part, by: VoterId, refusal: &Refusal, fresh: u128) -> bool {
        let lost = match refusal {
            Refusal::Banned { life } => {
                *life == self.record.incarnation && self.rules.keep(Rule::BannedStops)
            }
            Refusal::Restored { boot, term, links } => self.own(part).is_restored(by, *boot, *term, *links),
            _ => false,
        };
        if lost {
            self.lose(Incarnation(fresh));
        }
        lost
    }

    /// The state is an old image, or was given up: a new, blank life begins. (§7)
    fn lose(&mut self, life: Incarnation) {
        let old = self.record;
        self.record = crate::replica::Replica::blank(old.node, old.name, old.kind, life);
        self.record.boot.0 = 1;
        self.record.banned = old.banned;
        self.record.longest_lease = old.longest_lease;
        self.role = NO_LEADER;
        (self.peer, self.witness, self.stated) = (None, None, None);
    }

    /// Terms that others have stated are kept with whatever else is written: so that they cost no write of their own.
    pub fn remember_terms(&mut self, before: &ReplicaRecord) {
        if self.record == *before {
            return;
        }
        for (link, known) in [self.peer, self.witness].into_iter().zip(&mut self.record.remembers) {
            if let (Some(link), Some(known)) = (link, known.as_mut())
                && known.voter == link.who
            {
                known.term = known.term.max(link.term);
            }
        }
    }

    /// The link is over.
    pub fn link_down(&mut self, id: LinkId) {
        if self.peer.is_some_and(|link| link.id == id) {
            self.peer = None;
            self.peer_gone();
        }
        if self.witness.is_some_and(|link| link.id == id) {
            self.witness = None;
        }
    }

    /// What was agreed on the link to the peer is void.
    fn peer_gone(&mut self) {
        match &mut self.role {
            Role::Leader { right, offer, .. } => {
                *offer = None;
                if *right == Right::Paired {
                    *right = Right::Blocked;
                }
            }
            Role::Follower { offer, .. } => *offer = None,
            Role::Candidate => {}
        }
    }

    /// Which of the two live links this is, or void.
    fn live(&self, id: LinkId) -> Result<Part, Refusal> {
        if self.peer.is_some_and(|link| link.id == id) {
            return Ok(Part::Replica);
        }
        if self.witness.is_some_and(|link| link.id == id) {
            return Ok(Part::Witness);
        }
        Err(Refusal::Void)
    }

    /// The link on which a message came, if it is live and the message is of the life at its other end. Notes the
    /// sender's term.
    pub fn heard(&mut self, id: LinkId, part: Part, from: &Sender) -> Result<(), Refusal> {
        if !self.rules.keep(Rule::EarlierLinksAreVoid) {
            return Ok(());
        }
        if self.live(id)? != part {
            return Err(Refusal::Void);
        }
        let link = match part {
            Part::Replica => self.peer.as_mut(),
            Part::Witness => self.witness.as_mut(),
        };
        let link = link.ok_or(Refusal::Void)?;
        if link.who != from.voter {
            return Err(Refusal::Void);
        }
        link.term = link.term.max(from.term);
        let number = link.number;
        if let Some(known) = &mut self.record.remembers[place(part)] {
            known.settle(number);
        }
        Ok(())
    }

    /// The peer has shown that it is a full member now (it joined).
    pub(super) fn peer_is_member(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.standing = Standing::Member;
        }
    }

    /// The witness has been taken in. (Its term is what the head of its own messages says: the term in an answer is that
    /// of the question, and the witness may never have reached it.)
    pub fn witness_is_member(&mut self) {
        if let Some(witness) = &mut self.witness {
            witness.standing = Standing::Member;
        }
    }
}

/// Where the record keeps what is remembered of that part.
pub(super) fn place(part: Part) -> usize {
    usize::from(part == Part::Witness)
}
