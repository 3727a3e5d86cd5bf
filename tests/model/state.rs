//! The world of the search: the shipped voters, logs of writes, and whatever was ever sent.

use std::collections::BTreeSet;

use tiebreak::ids::{Boot, ClusterId, Incarnation, LinkId, NodeId, Position, Term, VoterId};
use tiebreak::message::{
    Adoption, Candidacy, Hello, Kind, Part, ReplicaRecord, Reply, Request, Sender, Standing, WitnessRecord,
    Word,
};
use tiebreak::testing::{Ballot, Call, OfferIn, Replica, Right, Role, Rule, Rules, Witness, WitnessSettings};
use tiebreak::time::{Millis, Moment};

const CLUSTER: ClusterId = ClusterId(1);
/// Links to the witness are numbered from here.
const WITNESS_LINKS: u64 = 1_000;

/// How much of everything may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bounds {
    /// The highest term.
    pub(crate) terms: u32,
    /// Writes of clients.
    pub(crate) writes: u8,
    /// Crashes of replicas that had a role.
    pub(crate) crashes: u8,
    /// New links between the replicas beside those that a crash makes.
    pub(crate) links: u8,
    /// Resyncs that wipe although nothing forces them to.
    pub(crate) resyncs: u8,
    /// Lost disks of the witness.
    pub(crate) lost_witness: u8,
    /// Lost disks of replicas.
    pub(crate) lost_replica: u8,
}

impl Bounds {
    pub(crate) const NONE: Bounds =
        Bounds { terms: 0, writes: 0, crashes: 0, links: 0, resyncs: 0, lost_witness: 0, lost_replica: 0 };
}

/// Something that was sent. It stays for ever: so it may arrive late, twice, or never.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Sent {
    /// To the peer of `by`, on a link. An offer and an append carry the log.
    Peer { by: u8, link: LinkId, from: Sender, body: Body },
    /// To the witness.
    Ask { by: u8, link: LinkId, from: Sender, request: Request },
    /// From the witness to `to`.
    Told { to: u8, link: LinkId, from: Sender, reply: Reply },
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Body {
    Request(Request, Vec<u8>),
    Reply(Reply),
    Append(Term, Vec<u8>),
    Has(Term, u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    ballot: Ballot,
    log: Vec<u8>,
    /// The log that came with the offer that is heard.
    offered: Option<Vec<u8>>,
    /// How far the peer, on the present link and in the present term, has said that it is durable.
    peer_has: u64,
    link: LinkId,
    witness_link: LinkId,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    nodes: [Node; 2],
    witness: Witness,
    sent: BTreeSet<Sent>,
    /// Writes that were acknowledged, and in which term.
    acknowledged: Vec<(u8, Term)>,
    /// Who led each term.
    leaders: Vec<Option<VoterId>>,
    written: u8,
    left: Bounds,
    rules: Rules,
}

type Next = Result<World, String>;

fn node(name: &str) -> NodeId {
    name.parse().expect("a name")
}

/// A start of the witness; how often it started is not counted, so that two states do not differ by that alone.
fn started(record: WitnessRecord, rules: Rules) -> Witness {
    Witness::start(Moment(0), WitnessRecord { boot: Boot(0), ..record }, WitnessSettings::default(), rules).0
}

impl World {
    /// A mature pair: both hold term 1, nobody leads, the witness is taken in.
    pub(crate) fn new(bounds: Bounds, rules: Rules) -> World {
        let name = "c".parse().expect("a name");
        let record = |own: &str, life| ReplicaRecord {
            cluster: CLUSTER,
            standing: Standing::Member,
            term: Term(1),
            voted_for: Some(VoterId { node: node("a"), incarnation: Incarnation(1) }),
            holds: Term(1),
            adoption: Adoption { term: Term(1), ordinal: 0, incarnation: Incarnation(3) },
            ..Replica::blank(node(own), name, Kind::Replicated, Incarnation(life))
        };
        let start = |own, life| Node {
            ballot: Ballot::start(record(own, life), Position(0), rules),
            log: Vec::new(),
            offered: None,
            peer_has: 0,
            link: LinkId(0),
            witness_link: LinkId(WITNESS_LINKS),
        };
        let nodes = [start("a", 1), start("b", 2)];
        let first = Word { term: Term(1), to: Some(nodes[0].ballot.me()) };
        let taken_in = WitnessRecord {
            cluster: CLUSTER,
            standing: Standing::Member,
            promised: first,
            confirmed: Word { term: Term(0), ..first },
            ..Witness::blank(node("w"), name, Incarnation(3))
        };
        let witness = started(taken_in, rules);
        let mut world = World {
            nodes,
            witness,
            sent: BTreeSet::new(),
            acknowledged: Vec::new(),
            leaders: vec![None; bounds.terms as usize + 2],
            written: 0,
            left: bounds,
            rules,
        };
        for i in 0..2 {
            world.link_witness(i);
        }
        world.dial_peer(0);
        let (_, greeted) =
            world.moves().into_iter().find(|(name, _)| name.contains("greeted")).expect("an answer");
        greeted.expect("a first link breaks nothing")
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// Replica `i` dials the other one, which takes the greeting at once; its answer is on the way from then on.
    fn dial_peer(&mut self, i: usize) {
        let link = self.fresh_link();
        let (from, hello) = (self.nodes[i].ballot.sender(), self.nodes[i].ballot.hello(Part::Replica));
        let hello = Hello { nonce: link.0, ..hello };
        let other = &mut self.nodes[1 - i];
        // A greeting that is refused makes no link.
        if other.ballot.link_up(link, &from, &hello, false, u128::from(link.0)).is_ok() {
            other.link = link;
            other.peer_has = 0;
            other.offered = None;
            let (from, hello) = (other.ballot.sender(), other.ballot.hello(Part::Replica));
            let body = Body::Reply(Reply::Hello(hello));
            self.sent.insert(Sent::Peer { by: u8::from(i == 0), link, from, body });
        }
    }

    fn hear_greeting(&mut self, i: usize, link: LinkId, from: &Sender, hello: &Hello) -> Option<()> {
        let me = &mut self.nodes[i];
        if link <= me.link {
            return None;
        }
        me.ballot.link_up(link, from, hello, true, 0).ok()?;
        me.link = link;
        me.peer_has = 0;
        me.offered = None;
        Some(())
    }

    fn link_witness(&mut self, i: usize) {
        let link = LinkId(self.nodes[i].witness_link.0 + 1);
        self.nodes[i].witness_link = link;
        let (from, hello) = (self.nodes[i].ballot.sender(), self.nodes[i].ballot.hello(Part::Witness));
        let hello = Hello { nonce: link.0, ..hello };
        let call = Call { link, from, request: Request::Hello(hello), fresh: 0 };
        let step = self.witness.handle(Moment(0), &call);
        if let Reply::Hello(hello) = step.reply {
            let _ = self.nodes[i].ballot.link_up(link, &step.sender, &hello, true, 0);
        }
    }

    /// Whether the two ends of a link agree that it is the present one.
    fn fresh_link(&self) -> LinkId {
        LinkId(self.nodes[0].link.0.max(self.nodes[1].link.0) + 1)
    }

    /// A normal form: what can never have an effect again is dropped, because terms only rise and an earlier link
    /// does not come back. That hides nothing and leaves less to search.
    fn tidy(mut self) -> World {
        self.eager();
        let rules = self.rules;
        let newest = [self.nodes[0].link, self.nodes[1].link];
        let terms = [0, 1].map(|i: usize| self.nodes[i].ballot.record().term);
        let witness = *self.witness.record();
        let confirm_bar = if rules.keep(Rule::ConfirmNotBelowPromise) {
            witness.promised.term
        } else {
            witness.confirmed.term
        };
        let to_witness = [self.nodes[0].witness_link, self.nodes[1].witness_link];
        self.sent.retain(|sent| match sent {
            Sent::Ask { by, link, .. } if *link != to_witness[usize::from(*by)] => false,
            Sent::Ask { request, .. } => match request {
                Request::Vote(candidacy) => candidacy.term >= witness.promised.term,
                Request::Confirm { term, .. } => *term >= confirm_bar,
                Request::Admit { adoption, .. } => {
                    witness.standing == Standing::Blank && adoption.incarnation == witness.incarnation
                }
                _ => true,
            },
            Sent::Told { to, link, reply, .. } => {
                let to = usize::from(*to);
                let term = match reply {
                    Reply::Voted { term } | Reply::Confirmed { term } | Reply::Admitted { term } => *term,
                    _ => Term(u32::MAX),
                };
                *link == self.nodes[to].witness_link && term >= terms[to]
            }
            Sent::Peer { by, link, body, .. } => {
                let to = 1 - usize::from(*by);
                let term = match body {
                    Body::Request(Request::Vote(candidacy), _) => candidacy.term,
                    Body::Request(
                        Request::Offer { term, .. }
                        | Request::Joined { term, .. }
                        | Request::Adopt { term, .. },
                        _,
                    )
                    | Body::Reply(Reply::Voted { term })
                    | Body::Append(term, _)
                    | Body::Has(term, _) => *term,
                    Body::Reply(Reply::Hello(_)) => return *link > newest[to],
                    _ => Term(u32::MAX),
                };
                let live = *link >= newest[to] || !rules.keep(Rule::EarlierLinksAreVoid);
                live && term >= terms[to]
            }
        });
        self
    }

    /// Every move that is possible here, with what it leads to: a world, or a violation.
    pub(crate) fn moves(&self) -> Vec<(String, Next)> {
        let mut moves = Vec::new();
        for i in 0..2 {
            self.moves_of(i, &mut moves);
        }
        if self.left.lost_witness > 0 {
            let mut next = self.clone();
            next.left.lost_witness -= 1;
            let name = self.witness.record().name;
            next.witness = started(Witness::blank(node("w"), name, Incarnation(4)), self.rules);
            moves.push(("w loses its disk".into(), Ok(next)));
        }
        for sent in &self.sent {
            self.deliver(sent, &mut moves);
        }
        let mut tidied: Vec<(String, Next)> =
            moves.into_iter().map(|(name, next)| (name, next.map(World::tidy))).collect();
        tidied.retain(|(_, next)| next.as_ref() != Ok(self));
        tidied
    }

    fn say(next: &mut World, i: usize, request: Request, log: Vec<u8>) {
        let me = &next.nodes[i];
        let (link, from, by) = (me.link, me.ballot.sender(), u8::from(i == 1));
        next.sent.insert(Sent::Peer { by, link, from, body: Body::Request(request, log) });
    }

    fn ask(next: &mut World, i: usize, request: Request) {
        let from = next.nodes[i].ballot.sender();
        let link = next.nodes[i].witness_link;
        next.sent.insert(Sent::Ask { by: u8::from(i == 1), link, from, request });
    }

    fn moves_of(&self, i: usize, moves: &mut Vec<(String, Next)>) {
        let me = &self.nodes[i];
        let who = ["a", "b"][i];
        let record = me.ballot.record();
        let leads = me.ballot.right();
        let highest = me.ballot.highest_term().0;

        if me.ballot.may_stand().is_ok() && highest < self.left.terms {
            let mut next = self.clone();
            if let Ok(candidacy) = next.nodes[i].ballot.stand(Term(highest + 1)) {
                World::say(&mut next, i, Request::Vote(candidacy), Vec::new());
                World::ask(&mut next, i, Request::Vote(candidacy));
                moves.push((format!("{who} stands for {}", highest + 1), Ok(next)));
            }
        }
        if record.sole && highest < self.left.terms {
            let mut next = self.clone();
            if let Ok(term) = next.nodes[i].ballot.resume() {
                next.nodes[i].peer_has = 0;
                moves.push((format!("{who} resumes in {term}"), next.led(i)));
            }
        }
        if self.left.crashes > 0 && (*me.ballot.role() != Role::Follower { leader: None, offer: None }) {
            let mut next = self.clone();
            next.left.crashes -= 1;
            next.restart(i, *record);
            moves.push((format!("{who} crashes"), Ok(next)));
        }
        if self.left.lost_replica > 0 {
            let mut next = self.clone();
            next.left.lost_replica -= 1;
            let blank = Replica::blank(record.node, record.name, Kind::Replicated, Incarnation(5));
            next.nodes[i].log.clear();
            next.restart(i, blank);
            moves.push((format!("{who} loses its disk"), Ok(next)));
        }
        if self.left.links > 0 {
            let mut next = self.clone();
            next.left.links -= 1;
            next.dial_peer(i);
            moves.push((format!("{who} dials its peer"), Ok(next)));
        }
        if me.ballot.witness().is_none_or(|link| link.who != self.witness.id()) {
            let mut next = self.clone();
            next.link_witness(i);
            moves.push((format!("{who} meets the witness"), Ok(next)));
        }
        if let Some(right) = leads {
            self.moves_of_leader(i, right, moves);
        } else {
            self.moves_of_follower(i, moves);
        }
    }

    fn moves_of_leader(&self, i: usize, right: Right, moves: &mut Vec<(String, Next)>) {
        let me = &self.nodes[i];
        let who = ["a", "b"][i];
        let term = me.ballot.record().term;
        if self.written < self.left.writes {
            let mut next = self.clone();
            next.written += 1;
            next.nodes[i].log.push(next.written);
            let position = Position(next.nodes[i].log.len() as u64);
            next.nodes[i].ballot.durable(position);
            moves.push((format!("{who} writes {}", next.written), Ok(next)));
        }
        let upto = match right {
            Right::Blocked => 0,
            Right::Paired => me.log.len().min(usize::try_from(me.peer_has).unwrap_or(usize::MAX)),
            Right::Solo => me.log.len(),
        };
        moves.push((format!("{who} acknowledges up to {upto}"), self.acknowledge(i, upto)));

        let mut next = self.clone();
        let opened = right != Right::Solo || {
            let above = term.0.max(me.ballot.peer().map_or(0, |peer| peer.term.0));
            above < self.left.terms && next.nodes[i].ballot.open().is_ok()
        };
        let began = next.nodes[i].ballot.record().term != term;
        if opened && let Ok(request) = next.nodes[i].ballot.offer(Position(me.log.len() as u64)) {
            World::say(&mut next, i, request, me.log.clone());
            if began {
                next.nodes[i].peer_has = 0;
            }
            let name = format!("{who} offers {}", next.nodes[i].ballot.record().term);
            moves.push((name, if began { next.led(i) } else { Ok(next) }));
        }
        let mut next = self.clone();
        if let Ok(request) = next.nodes[i].ballot.admit_witness(0) {
            World::ask(&mut next, i, request);
            moves.push((format!("{who} takes the witness in alone"), Ok(next)));
        } else if let Ok(request) = me.ballot.propose_witness(0) {
            World::say(&mut next, i, request, Vec::new());
            moves.push((format!("{who} proposes the witness"), Ok(next)));
        }
    }

    fn moves_of_follower(&self, i: usize, moves: &mut Vec<(String, Next)>) {
        let me = &self.nodes[i];
        let who = ["a", "b"][i];
        let Some(offered) = &me.offered else { return };
        let Role::Follower { offer: Some(offer), .. } = me.ballot.role() else { return };
        let fits = offered.starts_with(&me.log);
        if !fits || self.left.resyncs > 0 {
            let mut next = self.clone();
            next.left.resyncs -= u8::from(fits);
            if next.nodes[i].ballot.resync().is_ok() {
                next.nodes[i].log.clear();
                next.nodes[i].ballot.durable(Position(0));
                moves.push((format!("{who} wipes to copy"), Ok(next)));
            }
        }
        if fits {
            let mut next = self.clone();
            next.nodes[i].log = offered.clone();
            next.nodes[i].ballot.durable(Position(offered.len() as u64));
            if let Ok(request) = next.nodes[i].ballot.join(offer.term) {
                next.nodes[i].offered = None;
                World::say(&mut next, i, request, Vec::new());
                moves.push((format!("{who} joins {}", offer.term), Ok(next)));
            }
        }
    }

    fn restart(&mut self, i: usize, record: ReplicaRecord) {
        let record = ReplicaRecord { boot: Boot(0), ..record };
        let position = Position(self.nodes[i].log.len() as u64);
        let mut ballot = Ballot::start(record, position, self.rules);
        std::mem::swap(&mut self.nodes[i].ballot, &mut ballot);
        self.nodes[i].link = LinkId(0);
        self.nodes[i].peer_has = 0;
        self.nodes[i].offered = None;
        self.link_witness(i);
        self.dial_peer(i);
    }

    fn deliver(&self, sent: &Sent, moves: &mut Vec<(String, Next)>) {
        match sent {
            Sent::Ask { by, link, from, request } => {
                let mut next = self.clone();
                let call = Call { link: *link, from: *from, request: *request, fresh: 0 };
                let step = next.witness.handle(Moment(0), &call);
                next.witness.forget_notes();
                if !matches!(step.reply, Reply::Refused(_)) {
                    next.sent.insert(Sent::Told {
                        to: *by,
                        link: *link,
                        from: step.sender,
                        reply: step.reply,
                    });
                    moves.push((format!("w hears {} ask {request:?}", from.voter.node), Ok(next)));
                }
            }
            Sent::Told { to, link, from, reply } => {
                let i = usize::from(*to);
                let mut next = self.clone();
                if next.nodes[i].ballot.heard(*link, Part::Witness, from).is_err() {
                    return;
                }
                let name = format!("{} hears w say {reply:?}", next.nodes[i].ballot.me().node);
                let ballot = &mut next.nodes[i].ballot;
                match reply {
                    Reply::Voted { term } => {
                        if ballot.elected(Part::Witness, *term).is_ok() {
                            next.nodes[i].peer_has = 0;
                            moves.push((name, next.led(i)));
                        }
                    }
                    Reply::Confirmed { term } => {
                        if ballot.confirmed(*term).is_ok() {
                            next.nodes[i].peer_has = 0;
                            moves.push((name, next.checked()));
                        }
                    }
                    Reply::Admitted { term } => {
                        ballot.witness_is_member(*term);
                        moves.push((name, Ok(next)));
                    }
                    _ => {}
                }
            }
            Sent::Peer { by, link, from, body } => {
                let i = 1 - usize::from(*by);
                let mut next = self.clone();
                if let Body::Reply(Reply::Hello(hello)) = body {
                    if next.hear_greeting(i, *link, from, hello).is_some() {
                        let name = next.nodes[i].ballot.me().node;
                        moves.push((format!("{name} is greeted on link {link}"), Ok(next)));
                    }
                    return;
                }
                if next.nodes[i].ballot.heard(*link, Part::Replica, from).is_err() {
                    return;
                }
                let name = format!("{} hears {body:?}", next.nodes[i].ballot.me().node);
                if let Some(outcome) = next.hear(i, *link, from, body) {
                    moves.push((name, outcome));
                }
            }
        }
    }

    /// What a replica does with a message of its peer; `None` when it refuses.
    fn hear(mut self, i: usize, link: LinkId, from: &Sender, body: &Body) -> Option<Next> {
        let me = &mut self.nodes[i];
        let before = *me.ballot.record();
        let mut reply = None;
        match body {
            Body::Request(Request::Vote(candidacy), _) => {
                let candidacy: &Candidacy = candidacy;
                me.ballot.grant(from.voter, candidacy).ok()?;
                if me.ballot.record().term != before.term {
                    me.offered = None;
                }
                reply = Some(Reply::Voted { term: candidacy.term });
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
                me.ballot.hear_offer(offer, *admits).ok()?;
                let heard =
                    matches!(me.ballot.role(), Role::Follower { offer: Some(now), .. } if *now == offer);
                if heard {
                    me.offered = Some(log.clone());
                }
            }
            Body::Request(Request::Joined { term, position }, _) => {
                me.ballot.joined(link, *term, *position).ok()?;
                me.peer_has = me.peer_has.max(position.0);
            }
            Body::Request(Request::Adopt { term, adoption }, _) => {
                // The leader was heard when it was joined.
                me.ballot.adopt(from.voter, *term, *adoption).ok()?;
                reply = Some(Reply::Adopted { adoption: *adoption });
            }
            Body::Reply(Reply::Voted { term }) => {
                me.ballot.elected(Part::Replica, *term).ok()?;
                me.peer_has = 0;
                return Some(self.led(i));
            }
            Body::Reply(Reply::Adopted { adoption }) => {
                let request = me.ballot.adopted(*adoption).ok()?;
                World::ask(&mut self, i, request);
            }
            Body::Append(term, log) => {
                let record = me.ballot.record();
                let follows = me.ballot.right().is_none() && record.term == *term && record.holds == *term;
                if !follows || log.len() < me.log.len() {
                    return None;
                }
                me.log.clone_from(log);
                me.ballot.durable(Position(log.len() as u64));
                let (from, by) = (me.ballot.sender(), u8::from(i == 1));
                let body = Body::Has(*term, log.len() as u64);
                self.sent.insert(Sent::Peer { by, link, from, body });
            }
            Body::Has(term, upto) => {
                if me.ballot.right() != Some(Right::Paired) || me.ballot.record().term != *term {
                    return None;
                }
                me.peer_has = me.peer_has.max(*upto);
            }
            _ => return None,
        }
        self.nodes[i].ballot.check(&before);
        if let Some(reply) = reply {
            let me = &self.nodes[i];
            let (from, by) = (me.ballot.sender(), u8::from(i == 1));
            self.sent.insert(Sent::Peer { by, link, from, body: Body::Reply(reply) });
        }
        Some(self.checked())
    }

    fn acknowledge(&self, i: usize, upto: usize) -> Next {
        let mut next = self.clone();
        let term = self.nodes[i].ballot.record().term;
        for write in &self.nodes[i].log[..upto] {
            if !next.acknowledged.iter().any(|(known, _)| known == write) {
                let other = &self.nodes[1 - i];
                let later = other.ballot.right().is_some() && other.ballot.record().term > term;
                if later && !other.log.contains(write) {
                    return Err(format!(
                        "write {write} is acknowledged in {term}, and a later leader lacks it"
                    ));
                }
                next.acknowledged.push((*write, term));
            }
        }
        next.acknowledged.sort_unstable();
        next.checked()
    }

    /// A replica has begun to lead: invariants 1 and 2.
    fn led(mut self, i: usize) -> Next {
        let me = self.nodes[i].ballot.me();
        let term = self.nodes[i].ballot.record().term;
        let place = &mut self.leaders[term.0 as usize];
        if place.is_some_and(|leader| leader != me) {
            return Err(format!("two leaders in term {term}"));
        }
        *place = Some(me);
        for (write, acknowledged) in &self.acknowledged {
            if *acknowledged < term && !self.nodes[i].log.contains(write) {
                return Err(format!("{} leads {term} without write {write} of {acknowledged}", me.node));
            }
        }
        self.checked()
    }

    /// What a leader may send at any time is sent at once: a message that is never delivered is one that was never
    /// sent.
    fn eager(&mut self) {
        for i in 0..2 {
            let me = &self.nodes[i];
            let to_witness = me.witness_link;
            let (term, link, from, by) =
                (me.ballot.record().term, me.link, me.ballot.sender(), u8::from(i == 1));
            match me.ballot.right() {
                Some(Right::Blocked) => {
                    let request = Request::Confirm { term, lease: Millis(0) };
                    self.sent.insert(Sent::Ask { by, link: to_witness, from, request });
                }
                Some(Right::Paired) => {
                    let body = Body::Append(term, me.log.clone());
                    self.sent.insert(Sent::Peer { by, link, from, body });
                    let request = Request::Confirm { term, lease: Millis(0) };
                    self.sent.insert(Sent::Ask { by, link: to_witness, from, request });
                }
                _ => {}
            }
        }
    }

    /// Invariant 3, and what the witness must keep of 4.
    fn checked(self) -> Next {
        let solo = |node: &Node| node.ballot.right() == Some(Right::Solo);
        if self.nodes.iter().all(solo) {
            return Err("both replicas acknowledge alone".into());
        }
        for (write, term) in &self.acknowledged {
            if !self.nodes.iter().any(|node| node.log.contains(write)) && self.left.lost_replica > 0 {
                return Err(format!("write {write} of {term} is nowhere"));
            }
        }
        let record = self.witness.record();
        if record.confirmed.term > record.promised.term {
            return Err("confirmed above promised".into());
        }
        Ok(self)
    }
}
