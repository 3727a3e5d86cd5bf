//! The witness's voter for one cluster: pure. It is asked, it answers, and it says what has to be durable first.
//!
//! Invariants, asserted after every request:
//! - `promised.term` and `confirmed.term` never go back;
//! - `confirmed.term <= promised.term`;
//! - a term is promised to one life of one replica and never to another;
//! - a refusal changes nothing durable.
//!
//! **What is deliberately absent**: any notion of data, of who is up to date, of who is alive. The witness needs
//! two numbers and two names, and no clock: `now` serves only the answer *busy*, which is a courtesy.

use crate::ids::{Boot, ClusterId, ClusterName, Incarnation, NodeId, Position, Term, VoterId};
use crate::message::{
    Adoption, Candidacy, Hello, Kind, OtherReport, Part, Ratchet, Refusal, Reply, Report, Request, RoleName,
    Sender, Standing, WitnessRecord, Word,
};
use crate::rules::{Rule, Rules};
use crate::time::{Millis, Moment};

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

/// The voter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Witness {
    record: WitnessRecord,
    heard: Option<Heard>,
    /// Who spoke last, per replica, for the report.
    seen: [Option<(VoterId, Moment)>; 2],
    refused: Option<(NodeId, Refusal)>,
    rules: Rules,
}

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
            ratchets: [Ratchet::default(); 2],
            remembers: [None; 2],
            banned: [Incarnation::NIL; 2],
        }
    }

    /// Starts on what was found on disk. The record that comes back counts this start and has to be durable before
    /// the voter is asked anything.
    pub fn start(found: WitnessRecord, rules: Rules) -> (Witness, WitnessRecord) {
        let record = WitnessRecord { boot: Boot(found.boot.0.saturating_add(1)), ..found };
        (Witness { record, heard: None, seen: [None; 2], refused: None, rules }, record)
    }

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

    /// Answers one request of a replica whose key was found to be pinned for this cluster under the name that it
    /// uses.
    pub fn handle(&mut self, now: Moment, from: &Sender, request: &Request) -> Step {
        let before = self.record;
        if *request != Request::Status {
            self.see(now, from.voter);
        }
        let reply = match self.answer(now, from, request) {
            Ok(reply) => reply,
            Err(refusal) => {
                debug_assert_eq!(before, self.record, "a refusal changes nothing");
                self.refused = Some((from.voter.node, refusal));
                Reply::Refused(refusal)
            }
        };
        self.check(&before);
        Step { record: (self.record != before).then_some(self.record), sender: self.sender(), reply }
    }

    fn answer(&mut self, now: Moment, from: &Sender, request: &Request) -> Result<Reply, Refusal> {
        match request {
            Request::Status => return Ok(Reply::Status(Box::new(self.report(now)))),
            Request::Hello(hello) => return self.hello(now, from, hello),
            Request::Admit { term, kind, adoption, solo, longest_lease, .. } => {
                return self.admit(from, *term, *kind, *adoption, *solo, *longest_lease);
            }
            _ => {}
        }
        if self.record.standing == Standing::Blank && self.rules.keep(Rule::BlankGrantsNothing) {
            return Err(Refusal::Blank);
        }
        self.same_cluster(from)?;
        match request {
            Request::PreVote(candidacy) => {
                self.not_busy(now, from.voter)?;
                self.may_grant(from.voter, candidacy)?;
                Ok(Reply::PreVoted { term: candidacy.term })
            }
            Request::Vote(candidacy) => {
                self.may_grant(from.voter, candidacy)?;
                self.record.promised = Word { term: candidacy.term, to: Some(from.voter) };
                if !self.rules.keep(Rule::ConfirmationOutlivesPromises) {
                    self.record.confirmed = Word::default();
                }
                Ok(Reply::Voted { term: candidacy.term })
            }
            Request::Confirm { term, lease } => {
                self.may_confirm(from.voter, *term)?;
                let word = Word { term: *term, to: Some(from.voter) };
                self.record.promised.term = self.record.promised.term.max(*term);
                if self.record.promised.term == *term {
                    self.record.promised = word;
                }
                self.record.confirmed = word;
                self.heard = Some(Heard { leader: from.voter, until: now + lease.span() });
                Ok(Reply::Confirmed { term: *term })
            }
            _ => Err(Refusal::NotServed),
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
    fn hello(&mut self, now: Moment, from: &Sender, hello: &Hello) -> Result<Reply, Refusal> {
        if self.record.standing != Standing::Blank && from.cluster != ClusterId::NIL {
            self.same_cluster(from)?;
        }
        if hello.leads && hello.adoption.incarnation == self.record.incarnation {
            // A courtesy that lasts for an exchange or two; a promise it is not.
            let until = now + crate::limits::LEASE_MIN;
            self.heard = Some(Heard { leader: from.voter, until });
        }
        Ok(Reply::Hello(Hello {
            name: self.record.name,
            kind: self.record.kind,
            part: Part::Witness,
            standing: self.record.standing,
            holds: self.record.confirmed.term,
            position: Position(0),
            sole: false,
            leads: false,
            adoption: Adoption { incarnation: self.record.incarnation, ..Adoption::NONE },
            ratchet: Ratchet::default(),
            remembers: None,
            nonce: 0,
        }))
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
        if self.record.standing != Standing::Blank {
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
        self.record.promised = Word { term, to: Some(from.voter) };
        let confirmed = if solo { term } else { Term(term.0 - 1) };
        self.record.confirmed = Word { term: confirmed, to: Some(from.voter) };
        Ok(Reply::Admitted { term })
    }

    fn same_cluster(&self, from: &Sender) -> Result<(), Refusal> {
        if from.cluster == self.record.cluster { Ok(()) } else { Err(Refusal::OtherCluster) }
    }

    fn see(&mut self, now: Moment, voter: VoterId) {
        let place = self
            .seen
            .iter()
            .position(|seen| seen.is_some_and(|(known, _)| known.node == voter.node))
            .or_else(|| self.seen.iter().position(Option::is_none));
        if let Some(place) = place {
            self.seen[place] = Some((voter, now));
        }
    }

    /// How it sees its cluster.
    pub fn report(&self, now: Moment) -> Report {
        let others = self.seen.map(|seen| {
            seen.map(|(voter, at)| OtherReport {
                node: voter.node,
                part: Part::Replica,
                link: None,
                incarnation: voter.incarnation,
                silent_for: Some(Millis::ceil(now.since(at))),
            })
        });
        Report {
            name: self.record.name,
            kind: self.record.kind,
            role: RoleName::Witness,
            standing: self.record.standing,
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
