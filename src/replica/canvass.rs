//! One candidacy: whom was asked, for what, and what follows from the answers.
//!
//! First the pre-vote, then, with somebody's word that it would be granted, the vote itself, asked of that voter.
//! A peer that was heard a moment ago is asked alone; the witness is asked when the peer cannot or will not.

use crate::ids::{LinkId, Term};
use crate::message::{Candidacy, Part, Refusal, Request};
use crate::time::Moment;

use super::Ask;

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing yet.
    Wait,
    /// The pre-vote is won.
    Stand,
    /// The vote is won.
    Won,
    /// The peer will not; ask the witness.
    AskWitness,
    /// It is over for now.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
enum Stage {
    #[default]
    Idle,
    PreVote,
    Vote,
}

/// The candidacy under way, if any.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Canvass {
    stage: Stage,
    term: Term,
    /// The peer's link, while its answer is awaited.
    peer: Option<LinkId>,
    /// The witness's link, while its answer is awaited.
    witness: Option<LinkId>,
    witness_asked: bool,
    /// Until when the peer is waited for. The witness is waited for as long as its link is up: however slow it is,
    /// nobody else could decide sooner.
    patience: Option<Moment>,
}

impl Canvass {
    pub(super) fn pre_vote(
        term: Term,
        peer: Option<LinkId>,
        witness: Option<LinkId>,
        patience: Moment,
    ) -> Canvass {
        Canvass {
            stage: Stage::PreVote,
            term,
            peer,
            witness,
            witness_asked: witness.is_some(),
            patience: peer.map(|_| patience),
        }
    }

    /// The pre-vote was won: only whoever granted it is asked for the vote.
    pub(super) fn stand(&mut self, patience: Moment) {
        self.stage = Stage::Vote;
        self.witness_asked = self.witness.is_some();
        self.patience = self.peer.map(|_| patience);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    pub(super) fn term(&self) -> Term {
        self.term
    }

    pub(super) fn until(&self) -> Moment {
        if self.is_idle() { Moment::FOREVER } else { self.patience.unwrap_or(Moment::FOREVER) }
    }

    fn request(&self, candidacy: Candidacy) -> Request {
        if self.stage == Stage::Vote { Request::Vote(candidacy) } else { Request::PreVote(candidacy) }
    }

    /// Asks everybody whose answer is awaited.
    pub(super) fn ask(&self, candidacy: Candidacy, asks: &mut Vec<Ask>) {
        let request = self.request(candidacy);
        asks.extend(self.peer.map(|link| Ask { link, part: Part::Replica, request }));
        asks.extend(self.witness.map(|link| Ask { link, part: Part::Witness, request }));
    }

    /// Asks one voter more.
    pub(super) fn also_ask(&mut self, link: LinkId, part: Part, candidacy: Candidacy, asks: &mut Vec<Ask>) {
        match part {
            Part::Replica => self.peer = Some(link),
            Part::Witness => {
                self.witness = Some(link);
                self.witness_asked = true;
            }
        }
        asks.push(Ask { link, part, request: self.request(candidacy) });
    }

    pub(super) fn granted(&mut self, link: LinkId, term: Term, durable: bool) -> Verdict {
        let by_peer = self.peer == Some(link);
        let by_witness = self.witness == Some(link);
        if term != self.term || !(by_peer || by_witness) {
            return Verdict::Wait;
        }
        match (self.stage, durable) {
            (Stage::PreVote, false) => {
                if by_peer {
                    self.witness = None;
                } else {
                    self.peer = None;
                }
                Verdict::Stand
            }
            (Stage::Vote, true) => Verdict::Won,
            _ => Verdict::Wait,
        }
    }

    pub(super) fn refused(&mut self, link: LinkId, part: Part, refusal: Refusal) -> Verdict {
        match part {
            Part::Replica if self.peer == Some(link) => {
                self.peer = None;
                self.patience = None;
                match refusal {
                    // The peer leads, or holds more and should: the witness does not know, and must not be asked.
                    Refusal::LeaseRuns { .. } | Refusal::Sole | Refusal::Behind { .. } => Verdict::Failed,
                    _ if self.witness.is_some() => Verdict::Wait,
                    _ if self.witness_asked => Verdict::Failed,
                    _ => Verdict::AskWitness,
                }
            }
            Part::Witness if self.witness == Some(link) => {
                self.witness = None;
                if self.peer.is_some() { Verdict::Wait } else { Verdict::Failed }
            }
            _ => Verdict::Wait,
        }
    }

    /// The peer did not answer in time.
    pub(super) fn timed_out(&mut self, witness: Option<LinkId>) -> Verdict {
        self.peer = None;
        self.patience = None;
        match (self.witness, witness) {
            (Some(_), _) => Verdict::Wait,
            (None, Some(_)) if !self.witness_asked => Verdict::AskWitness,
            _ => Verdict::Failed,
        }
    }

    pub(super) fn link_down(&mut self, link: LinkId) -> Verdict {
        if self.is_idle() {
            return Verdict::Wait;
        }
        let asked = self.peer == Some(link) || self.witness == Some(link);
        self.peer = self.peer.filter(|peer| *peer != link);
        self.witness = self.witness.filter(|witness| *witness != link);
        match (asked && self.peer.is_none() && self.witness.is_none(), self.witness_asked) {
            (false, _) => Verdict::Wait,
            // A peer that has handed over may leave before it has voted.
            (true, false) => Verdict::AskWitness,
            (true, true) => Verdict::Failed,
        }
    }
}
