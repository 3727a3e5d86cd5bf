//! The witness's voter, asked anything by anybody in any order, killed before and after its records are durable.
//!
//! The oracle knows nothing of how the voter decides. It sees what was made durable and what was said afterwards:
//! - 1: no term is given to two lives of replicas, by a vote or a confirmation, over all restarts;
//! - 4: promised and confirmed never go back, the confirmed term is not above the promised one, starts are counted;
//! - 5: what was said is in the record that is durable then, and a refusal leaves both words as they were;
//! - and the rule that the witness is there for: a vote against a confirmation goes only to one that holds more.

use std::collections::BTreeMap;

use tiebreak::ids::{LinkId, Term, VoterId};
use tiebreak::message::{Hello, Kind, Remembered, Reply, Request, Sender, Standing, WitnessRecord};
use tiebreak::testing::{Call, Rules, Witness, WitnessSettings};
use tiebreak::time::Moment;

use super::draw::{CLUSTER, Draw, LIFE, cluster_name, node};

#[derive(Default)]
struct Oracle {
    /// To whom each term was given, by the present life of the witness.
    given: BTreeMap<Term, VoterId>,
}

impl Oracle {
    /// A record replaced another on disk.
    fn durable(&mut self, old: &WitnessRecord, new: &WitnessRecord) {
        if old.incarnation != new.incarnation {
            self.given.clear();
            return;
        }
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

    /// A reply left, with this on disk.
    fn said(
        &mut self,
        before: &WitnessRecord,
        disk: &WitnessRecord,
        from: &Sender,
        request: &Request,
        reply: &Reply,
    ) {
        match (request, reply) {
            (Request::Vote(candidacy), Reply::Voted { term }) => {
                assert_eq!(*term, candidacy.term, "another term than was asked for");
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
            (Request::Confirm { term, .. }, Reply::Confirmed { term: said }) => {
                assert_eq!(term, said, "another term than was asked for");
                assert_eq!(
                    (disk.confirmed.term, disk.confirmed.to),
                    (*term, Some(from.voter)),
                    "said, not kept"
                );
                self.give(*term, from.voter);
            }
            (Request::Admit { term, .. }, Reply::Admitted { .. }) => {
                assert_eq!(disk.standing, Standing::Member, "said, not kept");
                assert!(disk.promised.term >= *term, "said, not kept");
                if before.standing == Standing::Blank {
                    self.give(*term, from.voter);
                }
            }
            (_, Reply::Refused(_)) if disk.incarnation == before.incarnation => {
                assert_eq!(
                    (disk.promised, disk.confirmed),
                    (before.promised, before.confirmed),
                    "a refusal changed the vote"
                );
            }
            (_, Reply::Voted { .. } | Reply::Confirmed { .. } | Reply::Admitted { .. }) => {
                panic!("{reply:?} to {request:?}");
            }
            _ => {}
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
    let mut disk = if draw.flag() {
        blank
    } else {
        let promised = tiebreak::message::Word {
            term: Term(1),
            to: Some(VoterId { node: node("a"), incarnation: LIFE }),
        };
        WitnessRecord { cluster: CLUSTER, standing: Standing::Member, promised, ..blank }
    };
    let mut oracle = Oracle::default();
    let settings = WitnessSettings { strict_boot: draw.below(8) == 0 };
    let mut now = Moment(0);
    let (mut witness, mut counted) = Witness::start(now, disk, settings, rules);
    loop {
        // A start is durable before the voter is asked anything; it may die before that.
        assert!(counted.boot > disk.boot, "a start that is not counted");
        oracle.durable(&disk, &counted);
        disk = counted;
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
        draw.near = disk.promised.term;
        let mut from = draw.sender(&["a", "b"]);
        let link = LinkId(u64::from(from.voter.node == node("b")) + u64::from(draw.below(8) == 0));
        draw.fitting = fitting(witness, from.voter);
        let mut request = draw.request();
        let linked = witness.report(*now).others.iter().flatten().any(|other| other.node == from.voter.node);
        if !linked && draw.below(8) != 0 {
            // Without a greeting nothing else is heard.
            let known = witness.record().remembers.iter().flatten().find(|known| known.voter == from.voter);
            from.boot = known.map_or(from.boot, |known| known.boot);
            from.term = from.term.max(known.map_or(Term::ZERO, |known| known.term));
            request = Request::Hello(Hello { remembers: draw.fitting, ..draw.hello() });
        }
        let fresh = u128::from(draw.byte()) << 64 | u128::from(draw.byte()) | 1 << 96;
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
        oracle.said(&before, disk, &from, &request, &step.reply);
    }
    true
}

/// What an honest replica remembers of this witness.
fn fitting(witness: &Witness, of: VoterId) -> Option<Remembered> {
    let record = witness.record();
    let known = record.remembers.iter().flatten().find(|known| known.voter == of)?;
    Some(Remembered { voter: witness.id(), boot: record.boot, term: record.promised.term, ..*known })
}
