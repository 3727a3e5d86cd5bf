//! One replica of the search: the shipped `Ballot`, a list of writes in place of the data layer, and what each input
//! leads to.

use tiebreak::ids::{Boot, ClusterId, Incarnation, Position, Term};
use tiebreak::message::{Adoption, Kind, Part, ReplicaRecord, Reply, Request, Sender, Standing};
use tiebreak::testing::{Ballot, OfferIn, Replica, Right, Role, Rules};
use tiebreak::time::Millis;

use crate::talk::{
    Body, CLUSTER, EARLIER_LINK, LINK, Life, Log, Message, NEW_LINK, NEW_WITNESS_LINK, WITNESS_LINK,
    answer_of_witness, bare, cluster_name, hello, me, node, turned, turned_body, witness_life, witness_slot,
};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Node {
    pub(crate) ballot: Ballot,
    pub(crate) log: Log,
    /// The log that came with the offer that is heard.
    pub(crate) offered: Option<Log>,
}

/// What the other end of a new link to the peer says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Greeting {
    pub(crate) life: Life,
    pub(crate) blank: bool,
    pub(crate) in_cluster: bool,
}

/// What the witness says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Witnessed {
    pub(crate) slot: u8,
    pub(crate) standing: Standing,
    /// In which of its starts.
    pub(crate) start: u8,
}

/// Somebody else's term that a replica has heard of: what it chooses its own by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Hint {
    Nobody,
    Peer(u8),
    Witness(u8),
}

/// Something that happens to a replica.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Input {
    Stand(u8),
    Resume(Hint),
    /// A sole leader opens a new term, and offers it.
    Open(Hint),
    /// A leader offers its term again, with what it wrote since.
    Offer,
    Write(u8),
    StepDown,
    Crash {
        peer: Greeting,
        witness: Option<Witnessed>,
    },
    LoseDisk {
        peer: Greeting,
        witness: Option<Witnessed>,
    },
    LinkUp(Greeting),
    Meet(Witnessed),
    Wipe,
    /// Copies one write of what was offered.
    Copy,
    Join,
    AdmitWitness,
    /// With that rule broken.
    AdmitWithoutPeer,
    Hear {
        message: u16,
        earlier: bool,
    },
}

/// What an input led to.
pub(crate) struct Effect {
    pub(crate) node: Node,
    /// What is said, on the present links.
    pub(crate) says: Vec<Message>,
    /// It has begun to lead this term.
    pub(crate) led: Option<Term>,
    /// So much of its log is durable on both now, and it leads.
    pub(crate) on_both: usize,
    /// A follower has told its leader that so much is durable.
    pub(crate) told: Option<usize>,
}

/// A member of a mature pair: both hold term 1, `led` led it.
pub(crate) fn member(led: bool, kind: Kind, rules: Rules) -> Node {
    let own = me(Life::First);
    let record = ReplicaRecord {
        cluster: CLUSTER,
        standing: Standing::Member,
        term: Term(1),
        voted_for: Some(if led { own } else { turned(own) }),
        holds: Term(1),
        adoption: Adoption { term: Term(1), ordinal: 0, incarnation: witness_life(0) },
        ..Replica::blank(own.node, cluster_name(), kind, own.incarnation)
    };
    let node = Node { ballot: Ballot::start(record, Position(0), rules), log: Log::new(), offered: None };
    let peer = Greeting { life: Life::First, blank: false, in_cluster: true };
    node.linked(peer, Some(Witnessed { slot: 0, standing: Standing::Member, start: 1 }))
}

fn greeting_sender(greeting: Greeting) -> Sender {
    let cluster = if greeting.in_cluster { CLUSTER } else { ClusterId::NIL };
    Sender { cluster, voter: turned(me(greeting.life)), boot: Boot(0), term: Term::ZERO }
}

fn standing(blank: bool) -> Standing {
    if blank { Standing::Blank } else { Standing::Member }
}

fn witness_sender(witness: Witnessed) -> Sender {
    let voter =
        tiebreak::ids::VoterId { node: node("w"), incarnation: witness_life(usize::from(witness.slot)) };
    let cluster = if witness.standing == Standing::Blank { ClusterId::NIL } else { CLUSTER };
    Sender { cluster, voter, boot: Boot(0), term: Term::ZERO }
}

/// Where the log ends.
fn end(log: &[u8]) -> Position {
    Position(log.len() as u64)
}

impl Node {
    pub(crate) fn life(&self) -> Life {
        if self.ballot.me() == me(Life::First) { Life::First } else { Life::Second }
    }

    pub(crate) fn greeting(&self) -> Greeting {
        let record = self.ballot.record();
        Greeting {
            life: self.life(),
            blank: record.standing == Standing::Blank,
            in_cluster: record.cluster != ClusterId::NIL,
        }
    }

    fn link_peer(&mut self, peer: Greeting) {
        let hello = hello(Part::Replica, standing(peer.blank));
        // A refused link stays down.
        let _ = self.ballot.link_up(NEW_LINK, &greeting_sender(peer), &hello, false, 0);
    }

    fn linked(mut self, peer: Greeting, witness: Option<Witnessed>) -> Node {
        self.link_peer(peer);
        match witness {
            Some(witness) => self.met(witness),
            None => self.normal(None),
        }
    }

    fn met(mut self, witness: Witnessed) -> Node {
        let from = witness_sender(witness);
        let start = u64::from(witness.start);
        let hello = answer_of_witness(witness.standing, self.ballot.me(), start);
        let _ = self.ballot.link_up(NEW_WITNESS_LINK, &from, &hello, true, 0);
        self.normal(Some(start))
    }

    fn restart(&mut self, mut record: ReplicaRecord, peer: Greeting, witness: Option<Witnessed>) {
        record.boot = Boot(0);
        let started = Ballot::start(record, end(&self.log), self.ballot.rules());
        *self =
            Node { ballot: started, log: std::mem::take(&mut self.log), offered: None }.linked(peer, witness);
    }

    /// One state for all those that differ only in what cannot matter: see `Ballot::plain`.
    fn normal(mut self, nonce: Option<u64>) -> Node {
        self.ballot = self.ballot.plain([LINK, WITNESS_LINK], nonce);
        if !matches!(self.ballot.role(), Role::Follower { offer: Some(_), .. }) {
            self.offered = None;
        }
        self
    }

    fn to_peer(&self, body: Body) -> Message {
        Message::Peer { from: bare(self.ballot.sender()), body }
    }

    fn to_witness(&self, request: Request) -> Option<Message> {
        let witness = self.ballot.witness()?;
        let slot = witness_slot(witness.who.incarnation);
        Some(Message::Ask { from: bare(self.ballot.sender()), slot, start: witness.nonce, request })
    }

    /// What a replica in this state says at any time is said at once, and again on each new link.
    fn always_says(&self, ordinals: u8, says: &mut Vec<Message>) {
        let record = self.ballot.record();
        let recognised = self.ballot.recognised_witness().is_some();
        match self.ballot.role() {
            Role::Follower { .. } => {}
            Role::Candidate => {
                let vote = Request::Vote(self.ballot.candidacy(record.term));
                says.push(self.to_peer(Body::Request(vote, Log::new())));
                says.extend(self.to_witness(vote).filter(|_| recognised));
            }
            Role::Leader { right, .. } => {
                if *right != Right::Solo {
                    let confirm = Request::Confirm { term: record.term, lease: Millis(0) };
                    says.extend(self.to_witness(confirm).filter(|_| recognised));
                }
                if *right == Right::Paired {
                    says.push(self.to_peer(Body::Append(record.term, self.log.clone())));
                }
                let renew = Request::Renew { term: record.term, sequence: 0, lease: Millis(0) };
                says.push(self.to_peer(Body::Request(renew, Log::new())));
                if record.kind == Kind::Leadership && *right != Right::Solo {
                    says.extend(self.to_witness(renew).filter(|_| recognised));
                }
                let known = record.adoption;
                let again = if known.term == record.term { known.ordinal + 1 } else { 0 };
                if let Ok(adopt) = self.ballot.propose_witness(0)
                    && again <= u32::from(ordinals)
                {
                    says.push(self.to_peer(Body::Request(adopt, Log::new())));
                }
                if let Ok(validate) = self.ballot.validate_alone() {
                    says.extend(self.to_witness(validate));
                }
                if let Ok(vouch) = self.ballot.ask_to_vouch() {
                    says.push(self.to_peer(Body::Request(vouch, Log::new())));
                }
            }
        }
    }

    fn offer(&mut self, says: &mut Vec<Message>) -> Option<()> {
        let request = self.ballot.offer(end(&self.log)).ok()?;
        says.push(self.to_peer(Body::Request(request, self.log.clone())));
        Some(())
    }

    /// A hint arrives in the head of any message.
    fn learn(&mut self, hint: Hint) {
        let learnt = match hint {
            Hint::Nobody => return,
            Hint::Peer(term) => self.ballot.peer().map(|link| (Part::Replica, *link, term)),
            Hint::Witness(term) => self.ballot.witness().map(|link| (Part::Witness, *link, term)),
        };
        if let Some((part, link, term)) = learnt {
            let term = Term(u32::from(term));
            let from = Sender { cluster: CLUSTER, voter: link.who, boot: Boot(0), term };
            let _ = self.ballot.heard(link.id, part, &from);
        }
    }

    pub(crate) fn fits(&self) -> bool {
        self.offered.as_ref().is_some_and(|offered| offered.starts_with(&self.log))
    }

    /// What the input leads to; `None` when it is refused.
    pub(crate) fn after(&self, input: Input, message: Option<&Message>, ordinals: u8) -> Option<Effect> {
        let mut next = self.clone();
        let mut says = Vec::new();
        let (mut led, mut on_both, mut told) = (None, 0, None);
        match input {
            Input::Stand(term) => {
                next.ballot.stand(Term(u32::from(term))).ok()?;
            }
            Input::Resume(hint) => {
                next.learn(hint);
                led = Some(next.ballot.resume().ok()?);
            }
            Input::Open(hint) => {
                next.learn(hint);
                let term = next.ballot.open().ok()?;
                next.offer(&mut says)?;
                led = (term != self.ballot.record().term).then_some(term);
            }
            Input::Offer => next.offer(&mut says)?,
            Input::Write(write) => {
                next.log.push(write);
                next.ballot.durable(end(&next.log));
            }
            Input::StepDown => next.ballot.step_down(),
            Input::Crash { peer, witness } => next.restart(*self.ballot.record(), peer, witness),
            Input::LoseDisk { peer, witness } => {
                let own = me(Life::Second);
                let kind = self.ballot.record().kind;
                let blank = Replica::blank(own.node, cluster_name(), kind, own.incarnation);
                next.log.clear();
                next.restart(blank, peer, witness);
            }
            Input::LinkUp(peer) => next.link_peer(peer),
            Input::Meet(witness) => next = next.met(witness),
            Input::Wipe => {
                next.ballot.resync().ok()?;
                next.log.clear();
                next.ballot.durable(Position(0));
            }
            Input::Copy => {
                let offered = next.offered.as_ref()?;
                next.log.push(*offered.get(next.log.len())?);
                next.ballot.durable(end(&next.log));
            }
            Input::Join => {
                let Role::Follower { offer: Some(offer), .. } = self.ballot.role() else { return None };
                next.log = next.offered.take()?;
                next.ballot.durable(end(&next.log));
                let request = next.ballot.join(offer.term).ok()?;
                says.push(next.to_peer(Body::Request(request, Log::new())));
                // A leader that is paired already counts on it as soon as it hears of it.
                told = Some(next.log.len());
            }
            Input::AdmitWitness => {
                let request = next.ballot.admit_witness(0).ok()?;
                says.extend(next.to_witness(request));
            }
            Input::AdmitWithoutPeer => {
                let request = next.ballot.admit_without_peer(0).ok()?;
                says.extend(next.to_witness(request));
            }
            Input::Hear { earlier, .. } => match message? {
                Message::Peer { from, body } => {
                    let (from, body) = turned_body(from, body);
                    let link = if earlier { EARLIER_LINK } else { LINK };
                    next.ballot.heard(link, Part::Replica, &from).ok()?;
                    (led, on_both, told) = next.hear_peer(link, &from, &body, &mut says)?;
                }
                Message::Told { life, from, start, reply } => {
                    if *life != self.ballot.me().incarnation {
                        return None;
                    }
                    let live = next.ballot.witness().is_some_and(|link| link.nonce == *start);
                    let link = if live { WITNESS_LINK } else { EARLIER_LINK };
                    next.ballot.heard(link, Part::Witness, from).ok()?;
                    led = next.hear_witness(reply)?;
                }
                Message::Ask { .. } => return None,
            },
        }
        if !matches!(input, Input::LoseDisk { .. }) {
            next.ballot.check(self.ballot.record());
        }
        let mut next = next.normal(None);
        // The first offer on a link is made at once. To have made one forbids nothing later: it may never arrive, and
        // the next one takes its place.
        let none_out = matches!(
            next.ballot.role(),
            Role::Leader { right: Right::Blocked | Right::Paired, offer: None, .. }
        );
        if none_out {
            let _ = next.offer(&mut says);
        }
        next.always_says(ordinals, &mut says);
        Some(Effect { node: next, says, led, on_both, told })
    }

    /// A message of the peer: which term it now leads, how much is durable on both, how much was told.
    #[allow(clippy::type_complexity, reason = "three answers, of which each message gives one")]
    fn hear_peer(
        &mut self,
        link: tiebreak::ids::LinkId,
        from: &Sender,
        body: &Body,
        says: &mut Vec<Message>,
    ) -> Option<(Option<Term>, usize, Option<usize>)> {
        let nothing = Some((None, 0, None));
        match body {
            Body::Request(Request::Vote(candidacy), _) => {
                self.ballot.grant(from.voter, candidacy).ok()?;
                says.push(self.to_peer(Body::Reply(Reply::Voted { term: candidacy.term })));
                nothing
            }
            Body::Request(Request::Offer { term, position, adoption, admits }, log) => {
                let offer = OfferIn {
                    link,
                    leader: from.voter,
                    cluster: from.cluster,
                    term: *term,
                    position: *position,
                    adoption: *adoption,
                };
                self.ballot.hear_offer(offer, *admits).ok()?;
                let heard =
                    matches!(self.ballot.role(), Role::Follower { offer: Some(now), .. } if *now == offer);
                if heard {
                    self.offered = Some(log.clone());
                }
                nothing
            }
            Body::Request(Request::Joined { term, position }, _) => {
                self.ballot.joined(link, *term, *position).ok()?;
                Some((None, usize::try_from(position.0).ok()?, None))
            }
            Body::Request(Request::Adopt { term, adoption }, _) => {
                self.ballot.adopt(from.voter, *term, *adoption).ok()?;
                says.push(self.to_peer(Body::Reply(Reply::Adopted { adoption: *adoption })));
                nothing
            }
            Body::Request(Request::Vouch { term, nonce }, _) => {
                self.ballot.vouch(from.voter, *term).ok()?;
                says.push(self.to_peer(Body::Reply(Reply::Vouched { term: *term, nonce: *nonce })));
                nothing
            }
            Body::Reply(Reply::Vouched { term, nonce }) => {
                let request = self.ballot.vouched(*term, *nonce).ok()?;
                says.extend(self.to_witness(request));
                nothing
            }
            Body::Request(Request::Renew { term, .. }, _) => {
                self.ballot.follow(from.voter, *term).ok()?;
                nothing
            }
            Body::Reply(Reply::Voted { term }) => {
                self.ballot.elected(Part::Replica, *term).ok()?;
                Some((Some(*term), 0, None))
            }
            Body::Reply(Reply::Adopted { adoption }) => {
                let request = self.ballot.adopted(*adoption).ok()?;
                says.extend(self.to_witness(request));
                nothing
            }
            Body::Append(term, log) => {
                let record = self.ballot.record();
                let follows = self.ballot.right().is_none() && record.term == *term && record.holds == *term;
                if !follows || log.len() < self.log.len() {
                    return None;
                }
                self.log.clone_from(log);
                self.ballot.durable(end(&self.log));
                Some((None, 0, Some(log.len())))
            }
            _ => None,
        }
    }

    fn hear_witness(&mut self, reply: &Reply) -> Option<Option<Term>> {
        match reply {
            Reply::Voted { term } => {
                self.ballot.elected(Part::Witness, *term).ok()?;
                Some(Some(*term))
            }
            Reply::Confirmed { term } => {
                self.ballot.confirmed(*term).ok()?;
                Some(None)
            }
            Reply::Admitted { .. } | Reply::Validated { .. } => {
                self.ballot.witness_is_member();
                Some(None)
            }
            _ => None,
        }
    }
}

/// Which life of the peer a blank one would be, for whoever has to say it.
pub(crate) fn is_second(life: Incarnation) -> bool {
    matches!(life, Incarnation(5 | 6))
}
