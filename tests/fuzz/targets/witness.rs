//! The witness's voter, asked anything by anybody in any order, killed before and after its records are durable.
//!
//! The oracle knows nothing of how the voter decides. It sees what was made durable and what was said afterwards:
//! - 1: no term is given to two lives of replicas, by a vote or a confirmation, over all restarts;
//! - 4: promised and confirmed never go back, the confirmed term is not above the promised one, starts are counted;
//! - 5: what was said is in the record that is durable then, and a refusal leaves both words as they were;
//! - the rule that the witness is there for: a vote against a confirmation goes only to one that holds more;
//! - a lease that was promised binds over restarts, and after a start or an admission one that is not known may run;
//! - words are given to a life that was not given up, on its live link, by a state that is known to be the newest; a
//!   state that turns out not to be is a new, blank life.

use std::collections::{BTreeMap, BTreeSet};

use tiebreak::ids::{Incarnation, LinkId, NodeId, Term, VoterId};
use tiebreak::message::{Hello, Kind, Refusal, Remembered, Reply, Request, Standing, WitnessRecord, Word};
use tiebreak::testing::{Call, Rules, Witness, WitnessSettings};
use tiebreak::time::{Millis, Moment};

use super::draw::{CLUSTER, Draw, LIFE, cluster_name, node};

#[derive(Default)]
struct Oracle {
    /// To whom each term was given, by the present life of the witness.
    given: BTreeMap<Term, VoterId>,
    /// Its lives so far.
    lives: BTreeSet<Incarnation>,
    /// The lease that it promised, and until when at least; a restart does not undo it.
    lease: Option<(VoterId, Moment)>,
    /// Until then a lease that it does not know of may run.
    quiet_until: Moment,
    /// Whether its state is known to be the newest, since this start.
    validated: bool,
    /// The live link of each replica: its id, whose it is, its nonce.
    links: BTreeMap<NodeId, (LinkId, VoterId, u64)>,
    /// Counts what was drawn for it.
    drawn: u32,
}

impl Oracle {
    /// A record replaced another on disk.
    fn durable(&mut self, old: &WitnessRecord, new: &WitnessRecord) {
        let forgets = |life: &Incarnation| *life != Incarnation::NIL && !new.banned.contains(life);
        let is_full = !new.banned.contains(&Incarnation::NIL);
        assert!(is_full || !old.banned.iter().any(forgets), "a life that was given up is forgotten");
        if old.incarnation != new.incarnation {
            assert_eq!(new.standing, Standing::Blank, "a new life that is not blank");
            assert_eq!((new.promised, new.confirmed), (Word::default(), Word::default()), "a blank word");
            assert!(self.lives.insert(new.incarnation), "a life comes twice");
            (self.lease, self.validated) = (None, false);
            self.given.clear();
            self.links.clear();
            return;
        }
        assert!(new.standing == old.standing || old.standing == Standing::Blank, "a member became blank");
        assert!(new.promised.term >= old.promised.term, "a promise went back");
        assert!(new.confirmed.term >= old.confirmed.term, "a confirmation went back");
        assert!(new.confirmed.term <= new.promised.term, "confirmed and not promised");
        assert!(new.boot >= old.boot, "the count of starts went back");
        let same_term = new.promised.term == old.promised.term && old.promised.to.is_some();
        assert!(!same_term || new.promised.to == old.promised.to, "a term was promised twice");
    }

    fn give(&mut self, term: Term, to: VoterId) {
        let given = *self.given.entry(term).or_insert(to);
        assert_eq!(given, to, "{term} was given to two");
    }

    /// A start of the process, with this on disk.
    fn started(&mut self, now: Moment, disk: &WitnessRecord, strict_boot: bool) {
        self.links.clear();
        self.validated = !strict_boot;
        self.waits(now, disk.kind, disk.longest_lease);
    }

    fn waits(&mut self, now: Moment, kind: Kind, longest: Millis) {
        self.quiet_until = if kind == Kind::Leadership { now + longest.span() } else { now };
    }

    /// Somebody was given something: that asks for this much, whatever it was.
    fn may_give(&self, disk: &WitnessRecord) {
        assert_eq!(disk.standing, Standing::Member, "a blank witness gave something");
        assert!(self.validated, "something was given before a leader knew the state");
    }

    /// A greeting was taken.
    fn greeted(&mut self, before: &WitnessRecord, call: &Call, hello: &Hello, answer: &Hello) {
        let (from, me) = (&call.from, VoterId { node: before.node, incarnation: before.incarnation });
        let link = (call.link, from.voter, answer.nonce);
        if self.links.get(&from.voter.node) == Some(&link) {
            return;
        }
        if let Some(claim) = hello.remembers.filter(|claim| claim.voter == me) {
            let is_newest = claim.boot <= before.boot && claim.term <= before.promised.term;
            assert!(is_newest, "it goes on with an old image of itself");
        }
        if let Some(known) = before.remembers.iter().flatten().find(|known| known.voter == from.voter) {
            assert!(known.boot <= from.boot && known.term <= from.term, "it takes an old image");
        }
        self.links.insert(from.voter.node, link);
    }

    /// A reply left, with this on disk.
    fn said(
        &mut self,
        now: Moment,
        before: &WitnessRecord,
        disk: &WitnessRecord,
        call: &Call,
        reply: &Reply,
    ) {
        let Call { from, request, .. } = call;
        let is_lost = disk.incarnation != before.incarnation;
        if is_lost {
            assert!(matches!(request, Request::Hello(_)) && *reply == Reply::Refused(Refusal::Blank));
        }
        if !matches!(reply, Reply::Refused(_) | Reply::Status(_)) {
            assert!(!before.banned.contains(&from.voter.incarnation), "a life that was given up is answered");
            if !matches!(request, Request::Hello(_)) {
                let live = self
                    .links
                    .get(&from.voter.node)
                    .is_some_and(|(id, who, _)| (*id, *who) == (call.link, from.voter));
                assert!(live, "{reply:?} on a link that is over");
            }
        }
        self.links.retain(|_, (_, who, _)| !disk.banned.contains(&who.incarnation));
        match (request, reply) {
            (Request::Vote(candidacy), Reply::Voted { term }) => {
                self.may_give(disk);
                assert_eq!(*term, candidacy.term, "another term than was asked for");
                assert!(now >= self.quiet_until, "voted while an unknown lease may run");
                let lease = self.lease.filter(|(leader, until)| *leader != from.voter && now < *until);
                assert_eq!(lease, None, "voted against a lease that it promised");
                assert_eq!(
                    (disk.promised.term, disk.promised.to),
                    (*term, Some(from.voter)),
                    "said, not kept"
                );
                assert_eq!(disk.confirmed, before.confirmed, "a promise touched the confirmation");
                let barred = disk.confirmed.to.is_some_and(|leader| leader != from.voter);
                assert!(
                    !barred || candidacy.holds > disk.confirmed.term || disk.kind == Kind::Leadership,
                    "a stale one was voted for"
                );
                self.give(*term, from.voter);
            }
            (Request::PreVote(_), Reply::PreVoted { .. }) => self.may_give(disk),
            (Request::Confirm { term, .. }, Reply::Confirmed { term: said }) => {
                self.may_give(disk);
                assert_eq!(term, said, "another term than was asked for");
                assert_eq!(
                    (disk.confirmed.term, disk.confirmed.to),
                    (*term, Some(from.voter)),
                    "said, not kept"
                );
                self.give(*term, from.voter);
            }
            (Request::Renew { term, lease, .. }, Reply::Renewed { term: said, .. }) => {
                self.may_give(disk);
                assert_eq!(disk.kind, Kind::Leadership, "a lease beside data");
                assert_eq!(term, said, "another term than was asked for");
                assert_eq!(
                    (disk.promised.term, disk.promised.to),
                    (*term, Some(from.voter)),
                    "said, not kept"
                );
                self.give(*term, from.voter);
                let until = now + lease.span();
                let earlier = self.lease.filter(|(leader, _)| *leader == from.voter);
                self.lease = Some((from.voter, earlier.map_or(until, |(_, earlier)| earlier.max(until))));
            }
            (Request::Release { term, .. }, Reply::Released { .. }) => {
                self.may_give(disk);
                // One of an earlier term came late.
                let over = *term >= disk.promised.term;
                self.lease = self.lease.filter(|(leader, _)| !over || *leader != from.voter);
            }
            (Request::Validate { term, solo, nonce }, Reply::Validated { .. }) => {
                let live = self.links.get(&from.voter.node).map(|(_, _, nonce)| *nonce);
                assert_eq!(live, Some(*nonce), "validated for another link");
                if !self.validated {
                    assert!(disk.promised.term >= *term, "validated below the leader's term");
                    let confirmed = if *solo { *term } else { Term(term.0 - 1) };
                    assert!(
                        disk.confirmed.term >= confirmed,
                        "one that this leader left behind is not barred"
                    );
                }
                self.validated = true;
                self.may_give(disk);
            }
            (Request::Hello(hello), Reply::Hello(answer)) => self.greeted(before, call, hello, answer),
            (Request::Admit { term, kind, longest_lease, .. }, Reply::Admitted { .. }) => {
                assert_eq!(disk.standing, Standing::Member, "said, not kept");
                assert!(disk.promised.term >= *term, "said, not kept");
                if before.standing == Standing::Blank {
                    self.give(*term, from.voter);
                    self.validated = true;
                    self.waits(now, *kind, *longest_lease);
                } else {
                    let words = |record: &WitnessRecord| (record.promised, record.confirmed);
                    assert_eq!(words(disk), words(before), "admitted twice");
                }
            }
            (_, Reply::Refused(_)) if !is_lost => {
                assert_eq!(
                    (disk.promised, disk.confirmed),
                    (before.promised, before.confirmed),
                    "a refusal changed the vote"
                );
            }
            (_, Reply::Refused(_) | Reply::Status(_)) | (Request::Linked, Reply::Linked) => {}
            _ => panic!("{reply:?} to {request:?}"),
        }
    }
}

pub fn run(bytes: &[u8]) {
    run_with(bytes, Rules::KEPT);
}

/// The same for a voter that breaks a rule: the oracle has to notice.
pub fn run_with(bytes: &[u8], rules: Rules) {
    let mut draw = Draw::new(bytes);
    let blank = Witness::blank(node("w"), cluster_name(), LIFE);
    let promised = Word { term: Term(1), to: Some(VoterId { node: node("a"), incarnation: LIFE }) };
    let member = WitnessRecord { cluster: CLUSTER, standing: Standing::Member, promised, ..blank };
    let mut disk = match draw.below(4) {
        0 => blank,
        1 => member,
        _ => WitnessRecord { kind: Kind::Leadership, ..member },
    };
    let mut oracle = Oracle { lives: BTreeSet::from([LIFE]), ..Oracle::default() };
    let settings = WitnessSettings { strict_boot: draw.below(4) == 0 };
    let mut now = Moment(0);
    let (mut witness, mut counted) = Witness::start(now, disk, settings, rules);
    loop {
        // A start is durable before the voter is asked anything; it may die before that.
        assert!(counted.boot > disk.boot, "a start that is not counted");
        oracle.durable(&disk, &counted);
        disk = counted;
        oracle.started(now, &disk, settings.strict_boot);
        if serve(&mut draw, &mut witness, &mut disk, &mut oracle, &mut now) {
            return;
        }
        (witness, counted) = Witness::start(now, disk, settings, rules);
    }
}

/// Until the process dies; whether it is over.
fn serve(
    draw: &mut Draw<'_>,
    witness: &mut Witness,
    disk: &mut WitnessRecord,
    oracle: &mut Oracle,
    now: &mut Moment,
) -> bool {
    while !draw.is_over() {
        let fate = draw.byte();
        *now = Moment(now.0.saturating_add(u64::from(fate & 7) << 27));
        if fate >= 250 {
            return false;
        }
        if fate >= 247 {
            let link = LinkId(u64::from(draw.below(2)));
            witness.link_down(link);
            oracle.links.retain(|_, (id, _, _)| *id != link);
            continue;
        }
        draw.near = disk.promised.term;
        draw.witness = disk.incarnation;
        let mut from = draw.sender(&["a", "b"]);
        let link = LinkId(u64::from(from.voter.node == node("b")) + u64::from(draw.below(8) == 0));
        draw.fitting = fitting(witness, from.voter);
        draw.nonce = oracle.links.get(&from.voter.node).map_or(0, |(_, _, nonce)| *nonce);
        let mut request = draw.request();
        let linked = witness.report(*now).others.iter().flatten().any(|other| other.node == from.voter.node);
        if !linked && draw.below(8) != 0 {
            // Without a greeting nothing else is heard.
            let known = witness.record().remembers.iter().flatten().find(|known| known.voter == from.voter);
            from.boot = known.map_or(from.boot, |known| known.boot);
            from.term = from.term.max(known.map_or(Term::ZERO, |known| known.term));
            request = Request::Hello(Hello { remembers: draw.fitting, ..draw.hello() });
        }
        // Never the same twice.
        oracle.drawn += 1;
        let fresh = 1 << 127 | u128::from(oracle.drawn) << 64 | u128::from(draw.byte());
        let call = Call { link, from, request, fresh };
        let step = witness.handle(*now, &call);
        if fate >= 240 {
            // It dies before anything is durable, and nothing was said.
            return false;
        }
        let before = *disk;
        if let Some(record) = step.record {
            oracle.durable(disk, &record);
            *disk = record;
        }
        if fate >= 230 {
            // It dies with the record on disk, and nothing was said.
            return false;
        }
        assert_eq!(witness.record(), disk, "what it goes on with is not what is durable");
        assert!(step.sender.term <= disk.promised.term, "a term was shown that is not durable");
        oracle.said(*now, &before, disk, &call, &step.reply);
    }
    true
}

/// What an honest replica remembers of this witness.
fn fitting(witness: &Witness, of: VoterId) -> Option<Remembered> {
    let record = witness.record();
    let known = record.remembers.iter().flatten().find(|known| known.voter == of)?;
    Some(Remembered { voter: witness.id(), boot: record.boot, term: record.promised.term, ..*known })
}
