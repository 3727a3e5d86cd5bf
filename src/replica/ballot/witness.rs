//! Which witness counts: a new one is adopted and taken in, a restarted one is validated. (§7)

use crate::ids::{Term, VoterId};
use crate::message::{Adoption, Refusal, Request, Standing};
use crate::rules::Rule;

use super::{Ballot, Link, Right, Role};

impl Ballot {
    /// What a leader calls the blank witness on the live link, with a stamp above every earlier one. `proposed` counts
    /// what this leader has proposed in its term.
    fn adoption_of_blank(&self, proposed: u32) -> Result<Adoption, Refusal> {
        let blank = self.witness.filter(|link| link.standing == Standing::Blank).ok_or(Refusal::Void)?;
        let known = self.record.adoption;
        let after_known = if known.term == self.record.term { known.ordinal.saturating_add(1) } else { 0 };
        let ordinal = after_known.max(proposed);
        Ok(Adoption { term: self.record.term, ordinal, incarnation: blank.who.incarnation })
    }

    /// A paired leader proposes the blank witness to its peer, who has to recognise it first. (§7)
    pub fn propose_witness(&self, proposed: u32) -> Result<Request, Refusal> {
        if self.right() != Some(Right::Paired) {
            return Err(Refusal::NotLeader { term: self.record.term });
        }
        Ok(Request::Adopt { term: self.record.term, adoption: self.adoption_of_blank(proposed)? })
    }

    /// The leader that this replica has joined recognises another witness: so does this replica, and it never goes
    /// back. (§7)
    pub fn adopt(&mut self, leader: VoterId, term: Term, adoption: Adoption) -> Result<(), Refusal> {
        let follows =
            matches!(&self.role, Role::Follower { leader: Some(known), .. } if *known == (leader, term));
        if !follows || self.record.term != term || self.record.holds != term || adoption.term != term {
            return Err(Refusal::Void);
        }
        if adoption < self.record.adoption && self.rules.keep(Rule::AdoptionNeverGoesBack) {
            return Err(Refusal::Void);
        }
        self.record.adoption = adoption;
        Ok(())
    }

    /// With the rule broken, a paired leader takes the witness in without its peer.
    #[cfg(feature = "testing")]
    pub fn admit_without_peer(&mut self, proposed: u32) -> Result<Request, Refusal> {
        if self.right() != Some(Right::Paired) || self.rules.keep(Rule::PeerAdoptsFirst) {
            return Err(Refusal::NotLeader { term: self.record.term });
        }
        self.record.adoption = self.adoption_of_blank(proposed)?;
        Ok(self.admission(false))
    }

    /// The peer has adopted: adopt too, and take the witness in. The adoption is to be durable before the request
    /// leaves. (§7)
    pub fn adopted(&mut self, adoption: Adoption) -> Result<Request, Refusal> {
        let blank = self.witness.filter(|link| link.standing == Standing::Blank).ok_or(Refusal::Void)?;
        let fits = blank.who.incarnation == adoption.incarnation && adoption.term == self.record.term;
        if self.right() != Some(Right::Paired) || !fits || adoption < self.record.adoption {
            return Err(Refusal::Void);
        }
        self.record.adoption = adoption;
        Ok(self.admission(false))
    }

    fn admission(&self, solo: bool) -> Request {
        Request::Admit {
            term: self.record.term,
            kind: self.record.kind,
            adoption: self.record.adoption,
            solo,
            longest_lease: self.record.longest_lease,
        }
    }

    /// A sole leader takes a blank witness in, alone. The adoption is to be durable before the request leaves. (§7)
    pub fn admit_witness(&mut self, proposed: u32) -> Result<Request, Refusal> {
        if self.right() != Some(Right::Solo) {
            return Err(Refusal::NotLeader { term: self.record.term });
        }
        let adoption = self.adoption_of_blank(proposed)?;
        if self.record.adoption.incarnation != adoption.incarnation {
            self.record.adoption = adoption;
        }
        Ok(self.admission(true))
    }

    fn unvalidated_witness(&self) -> Result<Link, Refusal> {
        let witness = self.recognised_witness().filter(|link| link.standing == Standing::Unvalidated);
        witness.copied().ok_or(Refusal::Void)
    }

    /// A paired leader asks its peer to vouch for it: the witness has restarted and waits for word of a leader. (§7)
    pub fn ask_to_vouch(&self) -> Result<Request, Refusal> {
        let nonce = self.unvalidated_witness()?.nonce;
        match self.right() {
            Some(Right::Paired) => Ok(Request::Vouch { term: self.record.term, nonce }),
            _ => Err(Refusal::NotLeader { term: self.record.term }),
        }
    }

    /// Whether this replica still takes part in its leader's term. (§7)
    pub fn vouch(&self, leader: VoterId, term: Term) -> Result<(), Refusal> {
        let follows =
            matches!(&self.role, Role::Follower { leader: Some(known), .. } if *known == (leader, term));
        let takes_part = self.record.term == term && self.record.holds == term;
        if follows && takes_part { Ok(()) } else { Err(Refusal::Void) }
    }

    /// The peer vouched: tell the witness that its state is the one that is known. (§7)
    pub fn vouched(&self, term: Term, nonce: u64) -> Result<Request, Refusal> {
        let fits = self.unvalidated_witness()?.nonce == nonce && term == self.record.term;
        if fits && self.right() == Some(Right::Paired) {
            Ok(Request::Validate { term, solo: false, nonce })
        } else {
            Err(Refusal::Void)
        }
    }

    /// A sole leader tells the restarted witness, alone, that its state is the one that is known. (§7)
    pub fn validate_alone(&self) -> Result<Request, Refusal> {
        let nonce = self.unvalidated_witness()?.nonce;
        let term = self.record.term;
        match self.right() {
            Some(Right::Solo) => Ok(Request::Validate { term, solo: true, nonce }),
            Some(_) if !self.rules.keep(Rule::VouchedByPeer) => {
                Ok(Request::Validate { term, solo: false, nonce })
            }
            _ => Err(Refusal::NotLeader { term }),
        }
    }
}
