//! The safety rules of a replica: terms, votes, `holds`, `sole`, and what a leader may acknowledge.
//!
//! There is no time in here. Whatever the moment, the caller picks one of the moves below, and each of them either
//! is safe or is refused: so the order and the timing of moves, which [`super::Replica`] decides, cannot hurt an
//! acknowledged write. (What needs time, the lease, is in `lease.rs`.)
//!
//! Invariants, asserted after every move:
//! - `term` and `holds` never go back, but for `holds := 0` when a destructive resync begins;
//! - `holds <= term`, and a vote in a term is never changed;
//! - a leader is solo exactly when it is durably `sole`;
//! - a replica that is sole never follows and never votes.

mod links;
#[cfg(feature = "testing")]
mod normal;
mod witness;

use crate::ids::{ClusterId, Incarnation, LinkId, Position, Term, VoterId};
use crate::memory::Greeting;
use crate::message::{Adoption, Candidacy, Part, Refusal, ReplicaRecord, Request, Sender, Standing};
use crate::rules::{Rule, Rules};
use crate::time::Millis;

use links::place;

/// What a leader may acknowledge to its clients. (§5)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Right {
    /// Nothing.
    Blocked,
    /// What is durable on both replicas.
    Paired,
    /// What is durable on this one.
    Solo,
}

/// The live link to another voter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Link {
    /// This connection.
    pub id: LinkId,
    /// Which life is at the other end.
    pub who: VoterId,
    /// What that life's state is worth.
    pub standing: Standing,
    /// The highest durable term that it stated.
    pub term: Term,
    /// Names the link, at both ends.
    pub nonce: u64,
    /// The number of the links between the two (see `memory.rs`) that whoever dialled has when it speaks on this one.
    pub number: u64,
}

/// An offer that a leader has out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OfferOut {
    /// On which link.
    pub link: LinkId,
    /// What the peer has to hold.
    pub position: Position,
}

/// An offer that a follower has heard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OfferIn {
    /// On which link.
    pub link: LinkId,
    /// Of which leader.
    pub leader: VoterId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// The term.
    pub term: Term,
    /// What has to be held.
    pub position: Position,
    /// The leader's witness.
    pub adoption: Adoption,
}

/// What the replica is at present. Volatile: a restart makes a follower.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Waits, follows or copies.
    Follower {
        /// The leader that was heard, of this term or of a later one that was not joined yet.
        leader: Option<(VoterId, Term)>,
        /// The offer to join.
        offer: Option<OfferIn>,
    },
    /// Voted for itself and asks for one more vote.
    Candidate,
    /// Leads its term.
    Leader {
        /// What it may acknowledge.
        right: Right,
        /// The offer that is out.
        offer: Option<OfferOut>,
        /// The life of the peer for which this term was opened by a sole leader.
        opened_for: Option<Incarnation>,
    },
}

const NO_LEADER: Role = Role::Follower { leader: None, offer: None };

/// The safety state of one replica.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ballot {
    record: ReplicaRecord,
    position: Position,
    role: Role,
    peer: Option<Link>,
    witness: Option<Link>,
    /// The newest of the peer's greetings.
    greeting: Option<Greeting>,
    /// How far its data reached at most while it took part in this term on this link: so much the leader may count
    /// on, and it joins again only when it holds as much.
    stated: Option<(LinkId, Term, Position)>,
    rules: Rules,
}

// Getters.
impl Ballot {
    /// What is durable, or is about to be.
    pub fn record(&self) -> &ReplicaRecord {
        &self.record
    }

    /// How far the data reaches durably.
    pub fn position(&self) -> Position {
        self.position
    }

    /// What it is at present.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// The link to the peer.
    pub fn peer(&self) -> Option<&Link> {
        self.peer.as_ref()
    }

    /// The link to the witness.
    pub fn witness(&self) -> Option<&Link> {
        self.witness.as_ref()
    }

    /// Which rules are kept.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Who it is.
    pub fn me(&self) -> VoterId {
        VoterId { node: self.record.node, incarnation: self.record.incarnation }
    }

    /// The head of its messages.
    pub fn sender(&self) -> Sender {
        Sender {
            cluster: self.record.cluster,
            voter: self.me(),
            boot: self.record.boot,
            term: self.record.term,
        }
    }

    /// What it may acknowledge; `None` when it does not lead.
    pub fn right(&self) -> Option<Right> {
        match &self.role {
            Role::Leader { right, .. } => Some(*right),
            _ => None,
        }
    }

    /// The highest term that anybody reachable has stated.
    pub fn highest_term(&self) -> Term {
        let linked = [self.peer, self.witness].into_iter().flatten().map(|link| link.term);
        linked.fold(self.record.term, Term::max)
    }

    /// Whether the linked witness is the one that this replica recognises.
    pub fn recognised_witness(&self) -> Option<&Link> {
        self.witness.as_ref().filter(|link| self.recognises(link.who.incarnation))
    }

    fn recognises(&self, witness: Incarnation) -> bool {
        witness != Incarnation::NIL
            && (witness == self.record.adoption.incarnation || !self.rules.keep(Rule::OneWitnessIncarnation))
    }

    /// What it would show a voter when standing for `term`.
    pub fn candidacy(&self, term: Term) -> Candidacy {
        Candidacy { term, holds: self.record.holds, position: self.position }
    }

    /// Whether an ordinary candidacy is open to it at all. (Standing is granting to oneself.)
    pub fn may_stand(&self) -> Result<(), Refusal> {
        if self.rules.keep(Rule::StandingIsGranting) {
            match self.record.standing {
                Standing::Blank | Standing::Unvalidated => return Err(Refusal::Blank),
                Standing::Resyncing(_) => return Err(Refusal::Resyncing),
                Standing::Member => {}
            }
            if self.record.holds == Term::ZERO {
                return Err(Refusal::HoldsNothing);
            }
        }
        if self.record.sole {
            return Err(Refusal::Sole);
        }
        Ok(())
    }

    /// Whether it would vote for `candidate`; changes nothing.
    pub fn may_grant(&self, candidate: VoterId, candidacy: &Candidacy) -> Result<(), Refusal> {
        let record = &self.record;
        if record.standing == Standing::Blank && self.rules.keep(Rule::BlankGrantsNothing) {
            return Err(Refusal::Blank);
        }
        if record.sole && self.rules.keep(Rule::SoleRefusesVotes) {
            return Err(Refusal::Sole);
        }
        // Not even a vote that it gave before: what it had then is no longer there.
        if let Standing::Resyncing(leader) = record.standing
            && leader != candidate.incarnation
            && self.rules.keep(Rule::ResyncClearsHolds)
        {
            return Err(Refusal::Resyncing);
        }
        if candidacy.term == record.term && record.voted_for == Some(candidate) {
            return Ok(());
        }
        if candidacy.term <= record.term {
            return Err(Refusal::TermSpent { term: Term(record.term.0.saturating_add(1)) });
        }
        if candidacy.holds == Term::ZERO {
            return Err(Refusal::HoldsNothing);
        }
        let behind = (candidacy.holds, candidacy.position) < (record.holds, self.position);
        if behind && self.rules.keep(Rule::PeerNotBehind) {
            return Err(Refusal::Behind { holds: record.holds, position: self.position });
        }
        Ok(())
    }

    /// Whether the linked peer may be offered this leader's term at present.
    pub fn may_offer(&self) -> Result<&Link, Refusal> {
        let Role::Leader { right, opened_for, .. } = &self.role else {
            return Err(Refusal::NotLeader { term: self.record.term });
        };
        let peer = self.peer.as_ref().ok_or(Refusal::Void)?;
        if *right == Right::Solo && self.rules.keep(Rule::OpeningIsAtomic) {
            return Err(Refusal::Sole);
        }
        if peer.term > self.record.term {
            return Err(Refusal::TermSpent { term: Term(peer.term.0.saturating_add(1)) });
        }
        let admitted = peer.standing != Standing::Blank || *opened_for == Some(peer.who.incarnation);
        if admitted || !self.rules.keep(Rule::BlankJoinsSoleOnly) { Ok(peer) } else { Err(Refusal::Blank) }
    }
}

// Moves.
impl Ballot {
    /// Starts on what was found on disk; the record counts this start and has to be durable first.
    pub fn start(found: ReplicaRecord, position: Position, rules: Rules) -> Ballot {
        let mut record = found;
        record.boot.0 = record.boot.0.saturating_add(1);
        Ballot {
            record,
            position,
            role: NO_LEADER,
            peer: None,
            witness: None,
            greeting: None,
            stated: None,
            rules,
        }
    }

    /// The data layer made more durable.
    pub fn durable(&mut self, position: Position) {
        self.position = position;
        self.note_stated();
    }

    /// What the leader of this offer may count on already, because it was stated on the same link in the same term. A
    /// copy that began from an older offer may have destroyed some of it.
    fn owed(&self, offer: &OfferIn) -> Position {
        let same = self.stated.filter(|(link, term, _)| (*link, *term) == (offer.link, offer.term));
        same.map_or(Position::default(), |(_, _, position)| position)
    }

    /// While it takes part in its leader's term, whatever is durable may have been stated to the leader.
    fn note_stated(&mut self) {
        let record = &self.record;
        let takes_part = matches!(self.role, Role::Follower { .. }) && record.holds == record.term;
        let Some(peer) = self.peer.filter(|_| takes_part) else { return };
        let now = (peer.id, record.term, self.position);
        let before = self.stated.filter(|(link, term, _)| (*link, *term) == (now.0, now.1));
        self.stated = Some(before.map_or(now, |before| before.max(now)));
    }

    /// Raises the term to `term` and votes for itself.
    pub fn stand(&mut self, term: Term) -> Result<Candidacy, Refusal> {
        self.may_stand()?;
        if term <= self.record.term {
            return Err(Refusal::TermSpent { term: Term(self.record.term.0.saturating_add(1)) });
        }
        self.record.term = term;
        self.record.voted_for = Some(self.me());
        if !self.rules.keep(Rule::HoldsByJoiningOnly) {
            self.record.holds = term;
        }
        self.role = Role::Candidate;
        Ok(self.candidacy(term))
    }

    /// Votes for another. Whoever calls this has stopped acting as leader before the record is written.
    pub fn grant(&mut self, candidate: VoterId, candidacy: &Candidacy) -> Result<(), Refusal> {
        self.may_grant(candidate, candidacy)?;
        if candidacy.term > self.record.term {
            self.record.term = candidacy.term;
            self.record.voted_for = Some(candidate);
            self.role = NO_LEADER;
        }
        Ok(())
    }

    /// A vote arrived on a live link. With it, two of three have voted for this replica.
    pub fn elected(&mut self, voter: Part, term: Term) -> Result<(), Refusal> {
        if self.role != Role::Candidate || term != self.record.term {
            return Err(Refusal::Void);
        }
        if voter == Part::Witness && self.recognised_witness().is_none() {
            return Err(Refusal::OtherWitness);
        }
        let mut right = Right::Blocked;
        if !self.rules.keep(Rule::SoleAfterConfirmation) {
            self.record.sole = true;
            right = Right::Solo;
        }
        self.role = Role::Leader { right, offer: None, opened_for: None };
        Ok(())
    }

    /// The witness confirmed the term: from now on this replica is a quorum of one. (§5)
    pub fn confirmed(&mut self, term: Term) -> Result<(), Refusal> {
        if self.recognised_witness().is_none() {
            return Err(Refusal::OtherWitness);
        }
        if term != self.record.term {
            return Err(Refusal::Void);
        }
        let Role::Leader { right, offer, .. } = &mut self.role else {
            return Err(Refusal::NotLeader { term });
        };
        *right = Right::Solo;
        // An offer that is out in a confirmed term is void.
        *offer = None;
        self.record.sole = true;
        self.record.holds = term;
        Ok(())
    }

    /// A sole leader begins a new term in which the peer may join: one record gives up `sole` and takes the term.
    /// From here on nothing is acknowledged by this replica alone. (§5)
    pub fn open(&mut self) -> Result<Term, Refusal> {
        if self.right() != Some(Right::Solo) {
            return Err(Refusal::NotLeader { term: self.record.term });
        }
        let peer = self.peer.ok_or(Refusal::Void)?;
        if !self.rules.keep(Rule::OpeningIsAtomic) {
            return Ok(self.record.term);
        }
        let term = self.record.term.max(peer.term).next().ok_or(Refusal::Void)?;
        self.record.term = term;
        self.record.voted_for = Some(self.me());
        self.record.sole = false;
        // Whoever joins takes over the witness of this leader, whatever was proposed before.
        if self.record.adoption.incarnation != Incarnation::NIL {
            self.record.adoption = Adoption { term, ordinal: 0, ..self.record.adoption };
        }
        self.role =
            Role::Leader { right: Right::Blocked, offer: None, opened_for: Some(peer.who.incarnation) };
        Ok(term)
    }

    /// Offers the term to the linked peer, who has to hold everything up to `position`.
    pub fn offer(&mut self, position: Position) -> Result<Request, Refusal> {
        let peer = *self.may_offer()?;
        let (term, adoption) = (self.record.term, self.record.adoption);
        let Role::Leader { offer, opened_for, .. } = &mut self.role else {
            return Err(Refusal::NotLeader { term });
        };
        *offer = Some(OfferOut { link: peer.id, position });
        let mut admits = opened_for.filter(|life| *life == peer.who.incarnation);
        if !self.rules.keep(Rule::BlankJoinsSoleOnly) {
            admits = Some(peer.who.incarnation);
        }
        Ok(Request::Offer { term, position, adoption, admits })
    }

    /// A leader's offer arrived on the live link to the peer. Nothing durable changes until the data is here.
    pub fn hear_offer(&mut self, offer: OfferIn, admits: Option<Incarnation>) -> Result<(), Refusal> {
        if self.record.sole && self.rules.keep(Rule::OpeningIsAtomic) {
            return Err(Refusal::Sole);
        }
        if offer.adoption.term > offer.term {
            return Err(Refusal::Void);
        }
        if offer.term < self.record.term {
            return Err(Refusal::TermSpent { term: self.record.term });
        }
        if offer.term == self.record.term && self.right().is_some() {
            return Err(Refusal::Void);
        }
        if self.record.standing == Standing::Blank && admits != Some(self.record.incarnation) {
            return Err(Refusal::Blank);
        }
        // Offers overtake one another: on one link, in one term, the one that goes furthest is the newest.
        let newer = match &self.role {
            Role::Follower { offer: Some(known), .. } => {
                (known.link, known.term) == (offer.link, offer.term) && known.position > offer.position
            }
            _ => false,
        };
        if !newer {
            self.role = Role::Follower { leader: Some((offer.leader, offer.term)), offer: Some(offer) };
        }
        Ok(())
    }

    /// The data layer holds everything that was offered, durably: take part in the leader's term. (§5)
    pub fn join(&mut self, term: Term) -> Result<Request, Refusal> {
        let Role::Follower { offer: Some(offer), .. } = self.role.clone() else {
            return Err(Refusal::Void);
        };
        let same_link = self.peer.is_some_and(|link| link.id == offer.link);
        let too_late = offer.term != term || offer.term < self.record.term || self.position < offer.position;
        let short = self.position < self.owed(&offer) && self.rules.keep(Rule::EarlierLinksAreVoid);
        if too_late || short || (!same_link && self.rules.keep(Rule::EarlierLinksAreVoid)) {
            return Err(Refusal::Void);
        }
        let record = &mut self.record;
        record.cluster = offer.cluster;
        record.standing = Standing::Member;
        if offer.term > record.term {
            record.term = offer.term;
            record.voted_for = Some(offer.leader);
        }
        record.holds = offer.term;
        record.sole = false;
        record.adoption = if self.rules.keep(Rule::AdoptionNeverGoesBack) {
            record.adoption.max(offer.adoption)
        } else {
            offer.adoption
        };
        self.role = Role::Follower { leader: Some((offer.leader, offer.term)), offer: None };
        self.note_stated();
        Ok(Request::Joined { term: offer.term, position: offer.position })
    }

    /// The peer joined: settle, and acknowledge what is durable on both from now on. (§5)
    pub fn joined(&mut self, link: LinkId, term: Term, position: Position) -> Result<(), Refusal> {
        if term != self.record.term {
            return Err(Refusal::Void);
        }
        let rules = self.rules;
        let Role::Leader { right, offer, .. } = &mut self.role else {
            return Err(Refusal::NotLeader { term });
        };
        if *right == Right::Solo && rules.keep(Rule::ConfirmedNeverPaired) {
            return Err(Refusal::Void);
        }
        let fits = *offer == Some(OfferOut { link, position });
        if !fits && rules.keep(Rule::EarlierLinksAreVoid) && rules.keep(Rule::ConfirmedNeverPaired) {
            return Err(Refusal::Void);
        }
        *right = Right::Paired;
        self.record.sole = false;
        self.record.holds = term;
        if let Some(known) = &mut self.record.remembers[place(Part::Replica)] {
            (known.took_part, known.position) = (term, position);
        }
        self.peer_is_member();
        Ok(())
    }

    /// Gives leadership up. A sole replica stays sole.
    pub fn step_down(&mut self) {
        self.role = NO_LEADER;
    }

    /// A sole replica leads, alone, in a new term of its own making: after a restart (§5, the last one standing), or
    /// to rise above a peer that has reached a higher term and therefore no longer follows.
    pub fn resume(&mut self) -> Result<Term, Refusal> {
        let below_peer = self.peer.is_some_and(|peer| peer.term > self.record.term);
        if !self.record.sole || (self.right().is_some() && !below_peer) {
            return Err(Refusal::Void);
        }
        if self.rules.keep(Rule::ResumeInNewTerm) {
            let term = self.highest_term().next().ok_or(Refusal::Void)?;
            self.record.term = term;
            self.record.voted_for = Some(self.me());
            self.record.holds = term;
        }
        self.role = Role::Leader { right: Right::Solo, offer: None, opened_for: None };
        Ok(self.record.term)
    }

    /// The linked peer leads `term`, and said so by asking for a promise.
    pub fn follow(&mut self, leader: VoterId, term: Term) -> Result<(), Refusal> {
        if self.record.sole {
            return Err(Refusal::Sole);
        }
        if term < self.record.term {
            return Err(Refusal::TermSpent { term: self.record.term });
        }
        match &mut self.role {
            Role::Leader { .. } if term == self.record.term => return Err(Refusal::Void),
            Role::Follower { leader: known, .. } => *known = Some((leader, term)),
            role => *role = Role::Follower { leader: Some((leader, term)), offer: None },
        }
        Ok(())
    }

    /// The data layer is about to destroy what it has, in order to copy the leader. (§5)
    pub fn resync(&mut self) -> Result<(), Refusal> {
        let Role::Follower { leader: Some((leader, term)), .. } = &self.role else {
            return Err(Refusal::NotLeader { term: self.record.term });
        };
        let linked = self.peer.is_some_and(|link| link.who == *leader);
        if (!linked || *term < self.record.term) && self.rules.keep(Rule::ResyncOnLiveLinkOnly) {
            return Err(Refusal::Void);
        }
        if self.record.sole {
            return Err(Refusal::Sole);
        }
        if self.record.standing != Standing::Blank && self.rules.keep(Rule::ResyncClearsHolds) {
            self.record.standing = Standing::Resyncing(leader.incarnation);
            self.record.holds = Term::ZERO;
        }
        Ok(())
    }

    /// Nothing that was promised runs any more: what is promised from now on is on record anew.
    pub fn forget_leases(&mut self, lease: Millis) {
        self.record.longest_lease = lease;
    }

    /// The longest lease that may have been promised has to be durable before it is promised.
    pub fn note_lease(&mut self, lease: Millis) {
        self.record.longest_lease = self.record.longest_lease.max(lease);
    }

    /// Asserts what must hold between two records of one replica.
    pub fn check(&self, before: &ReplicaRecord) {
        if self.rules != Rules::KEPT {
            return;
        }
        let (old, new) = (before, &self.record);
        if new.incarnation != old.incarnation {
            assert!(new.standing == Standing::Blank && !new.sole, "a new life is blank");
            return;
        }
        let resyncing = matches!(new.standing, Standing::Resyncing(_));
        assert!(new.term >= old.term, "a term never goes back");
        assert!(new.holds >= old.holds || (resyncing && new.holds == Term::ZERO), "holds never goes back");
        assert!(new.holds <= new.term, "nobody holds a term that it has not reached");
        assert!(new.adoption >= old.adoption, "an adoption never goes back");
        assert!(
            new.term > old.term || new.voted_for == old.voted_for || old.voted_for.is_none(),
            "a vote is never changed"
        );
        if let Role::Leader { right, .. } = &self.role {
            assert_eq!(*right == Right::Solo, new.sole, "solo is sole");
            assert_eq!(new.voted_for, Some(self.me()), "a leader voted for itself");
        }
        if let Role::Follower { offer: Some(_), .. } = &self.role {
            assert!(!new.sole, "a sole replica follows nobody");
        }
    }
}
