//! Bytes as a source of choices. What a fuzzer changes in them changes one choice and leaves the others alone.

use tiebreak::ids::{Boot, ClusterId, Incarnation, NodeId, Position, Term, VoterId};
use tiebreak::message::{
    Adoption, BANNED_MAX, Candidacy, Hello, Kind, Part, Ratchet, Refusal, Remembered, Reply, Request, Sender,
    Standing,
};
use tiebreak::time::Millis;

/// The cluster that is meant; another one is drawn now and then.
pub const CLUSTER: ClusterId = ClusterId(7);
/// The life that a node has when it was not lost.
pub const LIFE: Incarnation = Incarnation(1);

pub fn node(name: &str) -> NodeId {
    name.parse().expect("a valid name")
}

pub fn cluster_name() -> tiebreak::ids::ClusterName {
    "orders".parse().expect("a valid name")
}

/// The bytes that are left.
pub struct Draw<'a> {
    bytes: &'a [u8],
    /// Terms are drawn around this one.
    pub near: Term,
    /// What an honest node would remember of the one that it greets; most of them are.
    pub fitting: Option<Remembered>,
}

impl<'a> Draw<'a> {
    pub fn new(bytes: &'a [u8]) -> Draw<'a> {
        Draw { bytes, near: Term::ZERO, fitting: None }
    }

    pub fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next byte; 0 when there are no more.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// So many bytes, or what is left.
    pub fn bytes(&mut self, many: usize) -> &'a [u8] {
        let (first, rest) = self.bytes.split_at(many.min(self.bytes.len()));
        self.bytes = rest;
        first
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Small as a rule, and sometimes at the far end.
    pub fn number(&mut self) -> u32 {
        match self.byte() {
            small @ 0..=239 => u32::from(small % 16),
            large => u32::MAX - u32::from(255 - large),
        }
    }

    pub fn term(&mut self) -> Term {
        match self.byte() {
            near @ 0..=191 => Term(self.near.0.saturating_add(u32::from(near % 4)).saturating_sub(1)),
            _ => Term(self.number()),
        }
    }

    pub fn position(&mut self) -> Position {
        match self.number() {
            u32::MAX => Position(u64::MAX),
            number => Position(u64::from(number)),
        }
    }

    pub fn millis(&mut self) -> Millis {
        match self.byte() {
            255 => Millis(u32::MAX),
            byte => Millis(u32::from(byte) * 20),
        }
    }

    pub fn incarnation(&mut self) -> Incarnation {
        Incarnation(u128::from(self.below(4)))
    }

    pub fn standing(&mut self) -> Standing {
        match self.below(8) {
            0 => Standing::Blank,
            1 => Standing::Resyncing(self.incarnation()),
            _ => Standing::Member,
        }
    }

    pub fn kind(&mut self) -> Kind {
        if self.below(8) == 0 { Kind::Leadership } else { Kind::Replicated }
    }

    pub fn adoption(&mut self) -> Adoption {
        Adoption { term: self.term(), ordinal: u32::from(self.below(3)), incarnation: self.incarnation() }
    }

    pub fn sender(&mut self, names: &[&str]) -> Sender {
        let cluster = match self.below(16) {
            0 => ClusterId::NIL,
            1 => ClusterId(9),
            _ => CLUSTER,
        };
        let name = names[usize::from(self.byte()) % names.len()];
        let incarnation = if self.below(4) == 0 { self.incarnation() } else { LIFE };
        let voter = VoterId { node: node(name), incarnation };
        Sender { cluster, voter, boot: Boot(u32::from(self.below(4))), term: self.term() }
    }

    pub fn candidacy(&mut self) -> Candidacy {
        Candidacy { term: self.term(), holds: self.term(), position: self.position() }
    }

    pub fn hello(&mut self) -> Hello {
        let bits = self.byte();
        Hello {
            name: cluster_name(),
            kind: self.kind(),
            part: if bits & 1 == 0 { Part::Replica } else { Part::Witness },
            standing: self.standing(),
            holds: self.term(),
            position: self.position(),
            sole: bits & 2 != 0,
            leads: bits & 4 != 0,
            adoption: self.adoption(),
            remembers: match self.below(16) {
                0 => None,
                1 => Some(self.remembered()),
                _ => self.fitting,
            },
            nonce: u64::from(bits),
            banned: [if bits >= 250 { self.incarnation() } else { Incarnation::NIL }; BANNED_MAX],
        }
    }

    fn remembered(&mut self) -> Remembered {
        let voter = VoterId { node: node(if self.flag() { "a" } else { "w" }), incarnation: LIFE };
        let mut number = || u64::from(self.byte() % 4) << 32 | u64::from(self.byte() % 4);
        let ratchet = Ratchet { current: number(), pending: number() };
        let boot = Boot(u32::from(self.below(4)));
        Remembered {
            voter,
            boot,
            term: self.term(),
            took_part: self.term(),
            position: self.position(),
            ratchet,
        }
    }

    pub fn request(&mut self) -> Request {
        match self.below(16) {
            0 | 12 => Request::Hello(self.hello()),
            1 => Request::PreVote(self.candidacy()),
            2 | 13 => Request::Vote(self.candidacy()),
            3 | 14 => Request::Confirm { term: self.term(), lease: self.millis() },
            4 => {
                let admits = self.flag().then(|| self.incarnation());
                Request::Offer {
                    term: self.term(),
                    position: self.position(),
                    adoption: self.adoption(),
                    admits,
                }
            }
            5 => Request::Joined { term: self.term(), position: self.position() },
            6 | 15 => {
                Request::Renew { term: self.term(), sequence: u64::from(self.byte()), lease: self.millis() }
            }
            7 => Request::Release { term: self.term(), position: self.position() },
            8 => Request::Adopt { term: self.term(), adoption: self.adoption() },
            9 => Request::Admit {
                term: self.term(),
                kind: self.kind(),
                adoption: self.adoption(),
                solo: self.flag(),
                longest_lease: self.millis(),
            },
            10 if self.flag() => {
                Request::Validate { term: self.term(), solo: self.flag(), nonce: u64::from(self.byte()) }
            }
            10 if self.flag() => Request::Linked,
            10 => Request::Vouch { term: self.term(), nonce: u64::from(self.byte()) },
            _ => Request::Status,
        }
    }

    pub fn refusal(&mut self) -> Refusal {
        match self.below(12) {
            0 => Refusal::Stale { holds: self.term(), confirmed: self.term(), to: node("b") },
            1 => Refusal::TermSpent { term: self.term() },
            2 => Refusal::Behind { holds: self.term(), position: self.position() },
            3 => Refusal::LeaseRuns { left: self.millis() },
            4 => Refusal::Sole,
            5 => Refusal::Busy { left: self.millis() },
            6 => Refusal::HoldOff { left: self.millis() },
            7 => Refusal::Blank,
            8 => Refusal::OtherWitness,
            9 => Refusal::OtherCluster,
            10 => Refusal::NotLeader { term: self.term() },
            _ => Refusal::Void,
        }
    }

    pub fn reply(&mut self) -> Reply {
        let term = self.term();
        match self.below(12) {
            0 => Reply::Hello(self.hello()),
            1 => Reply::PreVoted { term },
            2 => Reply::Voted { term },
            3 => Reply::Confirmed { term },
            4 => Reply::Offered { term },
            5 => Reply::Settled { term },
            6 => Reply::Renewed { term, sequence: u64::from(self.byte()) },
            7 => Reply::Released { term },
            8 => Reply::Adopted { adoption: self.adoption() },
            9 => Reply::Admitted { term },
            10 => Reply::Validated { term },
            _ => Reply::Refused(self.refusal()),
        }
    }
}
