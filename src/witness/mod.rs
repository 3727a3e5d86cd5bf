//! The witness's voter for one cluster: pure. It is asked, it answers, and it says what has to be durable first.
//!
//! Invariants, asserted after every request:
//! - `promised.term` and `confirmed.term` never go back in one life;
//! - `confirmed.term <= promised.term`;
//! - a term is promised to one life of one replica and never to another;
//! - a refusal changes nothing durable, unless it is that the state was found to be lost.
//!
//! **What is deliberately absent**: any notion of data, of who is up to date, of who is alive. For a replicated cluster
//! the witness needs two numbers and two names, and no clock: `now` serves only the answer *busy*, which is a courtesy.
//! Only a leadership cluster, which has no data, has it promise leases (`lease.rs`).

mod lease;
#[cfg(feature = "testing")]
mod normal;

use crate::ids::{Boot, ClusterId, ClusterName, Incarnation, LinkId, NodeId, Position, Term, VoterId};
use crate::memory::{Finding, Greeting, Own, add_lives, draw, nonce};
use crate::message::{
    Adoption, BANNED_MAX, Candidacy, Hello, Kind, OtherReport, Part, Refusal, Remembered, Reply, Report,
    Request, RoleName, Sender, Standing, WitnessRecord, Word,
};
use crate::rules::{Rule, Rules};
use crate::time::{Millis, Moment};

use lease::Leases;

/// What the operator chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Settings {
    /// After each start nothing is granted before a current leader has said that the state is the one it knows: for
    /// media that may lose what they have synced.
    pub strict_boot: bool,
}

/// Something that a replica asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// On this connection.
    pub link: LinkId,
    /// Of whom: a replica whose key was found to be pinned for this cluster under the name that it uses.
    pub from: Sender,
    /// What.
    pub request: Request,
    /// Random, and drawn for this call alone.
    pub fresh: u128,
}

/// What a request led to: the record has to be durable before the reply is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step {
    /// To be synced first; `None` when nothing changed.
    pub record: Option<WitnessRecord>,
    /// Who answers.
    pub sender: Sender,
    /// The answer.
    pub reply: Reply,
}

/// A leader that was heard: others are told *busy* until then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Heard {
    leader: VoterId,
    until: Moment,
}

/// The live link of a replica: a later greeting of it replaces the earlier link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Link {
    id: LinkId,
    who: VoterId,
    /// Names the link, at both ends.
    nonce: u64,
    /// The number of the links between the two that the replica has when it speaks on this one.
    number: u64,
    /// The highest durable term that the replica stated on it.
    term: Term,
    heard: Moment,
}

/// The voter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Witness {
    record: WitnessRecord,
    settings: Settings,
    /// A current leader has said that the state is the one it knows; always so without `strict_boot`.
    validated: bool,
    heard: Option<Heard>,
    leases: Leases,
    /// In the places of `record.remembers`.
    links: [Option<Link>; 2],
    /// The newest greeting of each.
    greetings: [Option<Greeting>; 2],
    refused: Option<(NodeId, Refusal)>,
    rules: Rules,
}

// Making one.
impl Witness {
    /// The record of a new, blank vote. It has to be durable before the voter is started on it.
    pub fn blank(node: NodeId, name: ClusterName, incarnation: Incarnation) -> WitnessRecord {
        WitnessRecord {
            node,
            name,
            cluster: ClusterId::NIL,
            kind: Kind::Replicated,
            incarnation,
            boot: Boot(0),
            standing: Standing::Blank,
            promised: Word::default(),
            confirmed: Word::default(),
            longest_lease: Millis(0),
            remembers: [None; 2],
            banned: [Incarnation::NIL; BANNED_MAX],
        }
    }

    /// Starts on what was found on disk. The record that comes back counts this start and has to be durable before
    /// the voter is asked anything.
    pub fn start(
        now: Moment,
        found: WitnessRecord,
        settings: Settings,
        rules: Rules,
    ) -> (Witness, WitnessRecord) {
        let record = WitnessRecord { boot: Boot(found.boot.0.saturating_add(1)), ..found };
        let witness = Witness {
            record,
            settings,
            validated: !settings.strict_boot || !rules.keep(Rule::ValidatedFirst),
            heard: None,
            leases: Leases::started(now, &record, rules),
            links: [None; 2],
            greetings: [None; 2],
            refused: None,
            rules,
        };
        (witness, record)
    }
}

// Getters.
impl Witness {
    /// What is durable, or is about to be.
    pub fn record(&self) -> &WitnessRecord {
        &self.record
    }

    /// Who it is.
    pub fn id(&self) -> VoterId {
        VoterId { node: self.record.node, incarnation: self.record.incarnation }
    }

    /// The head of its messages.
    pub fn sender(&self) -> Sender {
        Sender {
            cluster: self.record.cluster,
            voter: self.id(),
            boot: self.record.boot,
            term: self.record.promised.term,
        }
    }

    /// What its state is worth at present.
    pub fn standing(&self) -> Standing {
        match self.record.standing {
            Standing::Member if !self.validated => Standing::Unvalidated,
            standing => standing,
        }
    }

    /// Whether that replica has a live link.
    pub(crate) fn is_linked(&self, node: NodeId) -> bool {
        self.links.iter().flatten().any(|link| link.who.node == node)
    }

    /// What it says when a link to that replica opens.
    pub fn hello(&self, to: VoterId) -> Hello {
        let remembers = self.record.remembers.iter().flatten().find(|known| known.voter == to);
        Hello {
            name: self.record.name,
            kind: self.record.kind,
            part: Part::Witness,
            standing: self.standing(),
            holds: self.record.confirmed.term,
            position: Position(0),
            sole: false,
            leads: false,
            adoption: Adoption { incarnation: self.record.incarnation, ..Adoption::NONE },
            remembers: remembers.copied(),
            nonce: self.links.iter().flatten().find(|link| link.who == to).map_or(0, |link| link.nonce),
            banned: self.record.banned,
        }
    }
}

// What it is asked.
impl Witness {
    /// Answers one request.
    pub fn handle(&mut self, now: Moment, call: &Call) -> Step {
        let before = self.record;
        let reply = match self.answer(now, call) {
            Ok(reply) => reply,
            Err(refusal) => {
                let lost = self.record.incarnation != before.incarnation;
                debug_assert!(lost || before == self.record, "a refusal changes nothing");
                self.refused = Some((call.from.voter.node, refusal));
                Reply::Refused(refusal)
            }
        };
        self.remember_terms(&before);
        self.check(&before);
        Step { record: (self.record != before).then_some(self.record), sender: self.sender(), reply }
    }

    /// A connection is over. Until then another greeting of the same life may be that of a second copy.
    pub fn link_down(&mut self, id: LinkId) {
        for link in &mut self.links {
            *link = link.filter(|link| link.id != id);
        }
    }

    fn answer(&mut self, now: Moment, call: &Call) -> Result<Reply, Refusal> {
        let Call { link, from, request, fresh } = call;
        match request {
            Request::Status => return Ok(Reply::Status(Box::new(self.report(now)))),
            Request::Hello(hello) => return self.greeted(now, *link, from, hello, *fresh),
            _ => {}
        }
        let place = self.on_live_link(now, *link, from)?;
        let reply = self.answer_linked(now, place, from, request)?;
        // Whoever speaks on a link has its number.
        if let (Some(link), Some(known)) = (self.links[place], &mut self.record.remembers[place]) {
            known.settle(link.number);
        }
        Ok(reply)
    }

    fn answer_linked(
        &mut self,
        now: Moment,
        place: usize,
        from: &Sender,
        request: &Request,
    ) -> Result<Reply, Refusal> {
        if *request == Request::Linked {
            return Ok(Reply::Linked);
        }
        if let Request::Admit { term, kind, adoption, solo, longest_lease } = request {
            let reply = self.admit(from, *term, *kind, *adoption, *solo, *longest_lease)?;
            self.leases = Leases::started(now, &self.record, self.rules);
            return Ok(reply);
        }
        if self.record.standing == Standing::Blank && self.rules.keep(Rule::BlankGrantsNothing) {
            return Err(Refusal::Blank);
        }
        self.same_cluster(from)?;
        if let Request::Validate { term, solo, nonce } = request {
            return self.validate(place, from, *term, *solo, *nonce);
        }
        if !self.validated {
            return Err(Refusal::Unvalidated);
        }
        match request {
            Request::PreVote(candidacy) => {
                self.not_busy(now, from.voter)?;
                self.leases.may_grant(now, from.voter, self.rules)?;
                self.may_grant(from.voter, candidacy)?;
                Ok(Reply::PreVoted { term: candidacy.term })
            }
            Request::Vote(candidacy) => {
                self.leases.may_grant(now, from.voter, self.rules)?;
                self.may_grant(from.voter, candidacy)?;
                self.record.promised = Word { term: candidacy.term, to: Some(from.voter) };
                if !self.rules.keep(Rule::ConfirmationOutlivesPromises) {
                    self.record.confirmed = Word::default();
                }
                Ok(Reply::Voted { term: candidacy.term })
            }
            Request::Confirm { term, lease } => {
                self.may_confirm(from.voter, *term)?;
                self.promise(*term, from.voter);
                self.record.confirmed = Word { term: *term, to: Some(from.voter) };
                self.heard = Some(Heard { leader: from.voter, until: now + lease.span() });
                Ok(Reply::Confirmed { term: *term })
            }
            Request::Renew { term, sequence, lease } if self.record.kind == Kind::Leadership => {
                self.may_confirm(from.voter, *term)?;
                self.leases.renew(now, from.voter, *lease, &mut self.record.longest_lease)?;
                self.promise(*term, from.voter);
                Ok(Reply::Renewed { term: *term, sequence: *sequence })
            }
            Request::Release { term, .. } if self.record.kind == Kind::Leadership => {
                if *term >= self.record.promised.term {
                    self.leases.release(from.voter);
                }
                Ok(Reply::Released { term: *term })
            }
            _ => Err(Refusal::NotServed),
        }
    }

    /// Raises the promise to this term and this leader.
    fn promise(&mut self, term: Term, leader: VoterId) {
        if term >= self.record.promised.term {
            self.record.promised = Word { term, to: Some(leader) };
        }
    }

    /// The vote (§4): a higher term, or the same one for the same life; and ◆ more held than what was confirmed, or
    /// the one it was confirmed to.
    fn may_grant(&self, candidate: VoterId, candidacy: &Candidacy) -> Result<(), Refusal> {
        let promised = &self.record.promised;
        let again = candidacy.term == promised.term
            && (promised.to == Some(candidate) || !self.rules.keep(Rule::OnePromisePerTerm));
        if candidacy.term <= promised.term && !again {
            return Err(Refusal::TermSpent { term: Term(promised.term.0.saturating_add(1)) });
        }
        if candidacy.holds == Term::ZERO {
            return Err(Refusal::HoldsNothing);
        }
        let confirmed = &self.record.confirmed;
        let enough = candidacy.holds > confirmed.term
            || (candidacy.holds == confirmed.term && !self.rules.keep(Rule::HoldsStrictlyAbove))
            || !self.rules.keep(Rule::HoldsAboveConfirmed);
        match confirmed.to {
            Some(leader) if leader != candidate && !enough => {
                Err(Refusal::Stale { holds: candidacy.holds, confirmed: confirmed.term, to: leader.node })
            }
            _ => Ok(()),
        }
    }

    /// The confirmation (§4): the same bar as for a promise, without the question of data: whoever leads the term
    /// holds what it needs.
    fn may_confirm(&self, leader: VoterId, term: Term) -> Result<(), Refusal> {
        let promised = &self.record.promised;
        let granted = term > promised.term || (term == promised.term && promised.to == Some(leader));
        if granted || (!self.rules.keep(Rule::ConfirmNotBelowPromise) && term >= self.record.confirmed.term) {
            Ok(())
        } else {
            Err(Refusal::TermSpent { term: Term(promised.term.0.saturating_add(1)) })
        }
    }

    fn not_busy(&self, now: Moment, candidate: VoterId) -> Result<(), Refusal> {
        match self.heard {
            Some(heard) if heard.leader != candidate && now < heard.until => {
                Err(Refusal::Busy { left: Millis::ceil(heard.until.since(now)) })
            }
            _ => Ok(()),
        }
    }

    /// Opens a link. A blank witness may be spoken to by anybody whose key is pinned; it grants nothing anyway.
    fn greeted(
        &mut self,
        now: Moment,
        link: LinkId,
        from: &Sender,
        hello: &Hello,
        fresh: u128,
    ) -> Result<Reply, Refusal> {
        if self.record.standing != Standing::Blank && from.cluster != ClusterId::NIL {
            self.same_cluster(from)?;
        }
        let bans = self.rules.keep(Rule::BannedStops);
        if bans && self.record.banned.contains(&from.voter.incarnation) {
            return Err(Refusal::Banned { life: from.voter.incarnation });
        }
        let place = self.place_of(from.voter.node);
        if self.links[place].is_some_and(|live| live.id == link && live.who == from.voter) {
            // A link comes up once: the same greeting again has the same answer.
            return Ok(Reply::Hello(self.hello(from.voter)));
        }
        let greeting = Greeting::after(self.greetings[place], from, hello)?;
        let own = Own {
            sender: self.sender(),
            takes_part: Term::ZERO,
            position: Position(0),
            remembers: self.record.remembers[place].as_ref(),
            rules: self.rules,
        };
        let is_linked = self.links[place].is_some_and(|link| link.who == from.voter);
        let finding = own.greeted(from, hello, draw(fresh), is_linked);
        let (remember, number) = match finding {
            Finding::Fits { remember, number, .. } => (remember, number),
            Finding::Refused(refusal) => return Err(refusal),
            Finding::OwnIsOlder => {
                self.lose(Incarnation(fresh));
                return Err(Refusal::Blank);
            }
        };
        self.record.remembers[place] =
            Some(Remembered { took_part: Term::ZERO, position: Position(0), ..remember });
        self.greetings[place] = Some(greeting);
        self.refused = self.refused.filter(|(node, _)| *node != from.voter.node);
        add_lives(&mut self.record.banned, &hello.banned);
        let nonce = nonce(fresh);
        self.links[place] =
            Some(Link { id: link, who: from.voter, nonce, number, term: from.term, heard: now });
        for link in &mut self.links {
            *link = link.filter(|link| !bans || !self.record.banned.contains(&link.who.incarnation));
        }
        if hello.leads && hello.adoption.incarnation == self.record.incarnation {
            // A courtesy that lasts for an exchange or two; a promise it is not.
            let until = now + crate::limits::LEASE_MIN;
            self.heard = Some(Heard { leader: from.voter, until });
        }
        Ok(Reply::Hello(self.hello(from.voter)))
    }

    /// The state is an old image: a new, blank life begins. (§7)
    fn lose(&mut self, life: Incarnation) {
        let old = self.record;
        self.record =
            WitnessRecord { boot: Boot(1), banned: old.banned, ..Witness::blank(old.node, old.name, life) };
        self.links = [None; 2];
        self.heard = None;
    }

    /// Where a replica's link and what is remembered of it are kept: one that is gone from the configuration makes
    /// room.
    fn place_of(&self, node: NodeId) -> usize {
        let known = |place: usize| self.record.remembers[place].map(|known| known.voter.node);
        let places = [0, 1];
        let own = places.into_iter().find(|place| known(*place) == Some(node));
        let free = || places.into_iter().find(|place| known(*place).is_none());
        let unlinked = || places.into_iter().find(|place| self.links[*place].is_none());
        own.or_else(free).or_else(unlinked).unwrap_or(0)
    }

    /// The place of the sender, if this is its live link. Notes what it states of itself.
    fn on_live_link(&mut self, now: Moment, link: LinkId, from: &Sender) -> Result<usize, Refusal> {
        let place = self.place_of(from.voter.node);
        let live = self.links[place].as_mut().filter(|live| live.id == link && live.who == from.voter);
        match live {
            Some(live) => {
                live.term = live.term.max(from.term);
                live.heard = now;
                Ok(place)
            }
            None if self.rules.keep(Rule::EarlierLinksAreVoid) => Err(Refusal::Void),
            None => Ok(place),
        }
    }

    /// Terms that replicas have stated are kept with whatever else is written: so that they cost no write of their
    /// own.
    fn remember_terms(&mut self, before: &WitnessRecord) {
        if self.record == *before {
            return;
        }
        for (link, known) in self.links.iter().zip(&mut self.record.remembers) {
            if let (Some(link), Some(known)) = (link, known.as_mut())
                && known.voter == link.who
            {
                known.term = known.term.max(link.term);
            }
        }
    }

    /// A current leader says that the state is the one it knows: and the words are at least what such a leader's
    /// witness has said. (§7)
    fn validate(
        &mut self,
        place: usize,
        from: &Sender,
        term: Term,
        solo: bool,
        nonce: u64,
    ) -> Result<Reply, Refusal> {
        if self.links[place].is_none_or(|link| link.nonce != nonce) || term == Term::ZERO {
            return Err(Refusal::Void);
        }
        if self.validated {
            return Ok(Reply::Validated { term });
        }
        self.may_confirm(from.voter, term)?;
        self.promise(term, from.voter);
        let confirmed = if solo { term } else { Term(term.0 - 1) };
        if confirmed > self.record.confirmed.term && self.rules.keep(Rule::ValidationRaisesConfirmed) {
            self.record.confirmed = Word { term: confirmed, to: Some(from.voter) };
        }
        self.validated = true;
        Ok(Reply::Validated { term })
    }

    /// A leader takes the blank witness in, once (§7). It starts as if the leader's term had been given by it: and
    /// confirmed, when the leader is solo.
    fn admit(
        &mut self,
        from: &Sender,
        term: Term,
        kind: Kind,
        adoption: Adoption,
        solo: bool,
        longest_lease: Millis,
    ) -> Result<Reply, Refusal> {
        if adoption.incarnation != self.record.incarnation {
            return Err(Refusal::OtherWitness);
        }
        if self.record.standing != Standing::Blank && self.rules.keep(Rule::AdmittedOnce) {
            // The answer to an earlier admission was lost: say it again, change nothing.
            self.same_cluster(from)?;
            let same = self.record.promised.term >= term;
            return if same { Ok(Reply::Admitted { term }) } else { Err(Refusal::Void) };
        }
        if from.cluster == ClusterId::NIL || term == Term::ZERO {
            return Err(Refusal::Void);
        }
        self.record.cluster = from.cluster;
        self.record.kind = kind;
        self.record.standing = Standing::Member;
        self.record.longest_lease = longest_lease;
        self.validated = true;
        self.record.promised = Word { term, to: Some(from.voter) };
        let confirmed = if solo { term } else { Term(term.0 - 1) };
        self.record.confirmed = Word { term: confirmed, to: Some(from.voter) };
        Ok(Reply::Admitted { term })
    }

    fn same_cluster(&self, from: &Sender) -> Result<(), Refusal> {
        if from.cluster == self.record.cluster { Ok(()) } else { Err(Refusal::OtherCluster) }
    }

    /// Forgets what serves reports and courtesies only: two states that differ in nothing else vote alike.
    #[cfg(feature = "testing")]
    pub fn forget_notes(&mut self) {
        (self.refused, self.heard) = (None, None);
    }

    /// How it sees its cluster.
    pub fn report(&self, now: Moment) -> Report {
        let others = self.links.map(|link| {
            link.map(|link| OtherReport {
                node: link.who.node,
                part: Part::Replica,
                link: Some(link.id),
                incarnation: link.who.incarnation,
                silent_for: Some(Millis::ceil(now.since(link.heard))),
            })
        });
        Report {
            name: self.record.name,
            kind: self.record.kind,
            role: RoleName::Witness,
            standing: self.standing(),
            sole: false,
            acts: false,
            lease_left: None,
            token: None,
            leader: self.record.promised.to.map(|voter| voter.node),
            holds: Term::ZERO,
            position: Position(0),
            promised: self.record.promised,
            confirmed: self.record.confirmed,
            adoption: Adoption { incarnation: self.record.incarnation, ..Adoption::NONE },
            others,
            refused: self.refused,
        }
    }

    fn check(&self, before: &WitnessRecord) {
        if self.rules != Rules::KEPT {
            return;
        }
        let (old, new) = (before, &self.record);
        if new.incarnation != old.incarnation {
            assert!(new.standing == Standing::Blank, "a new life is blank");
            return;
        }
        assert!(new.promised.term >= old.promised.term, "a promise never goes back");
        assert!(new.confirmed.term >= old.confirmed.term, "a confirmation never goes back");
        assert!(new.confirmed.term <= new.promised.term, "what is confirmed was promised");
        assert!(
            new.promised.term > old.promised.term || new.promised.to == old.promised.to,
            "a term is promised once"
        );
    }
}

#[cfg(test)]
mod tests;
