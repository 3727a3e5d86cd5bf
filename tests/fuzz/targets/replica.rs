//! A replica's voter, told anything by anybody in any order, killed before and after its records are durable.
//!
//! The oracle knows nothing of how the voter decides. It sees what was made durable and what was said afterwards:
//! - 4: terms, `holds`, adoptions, starts and tokens never go back, but for `holds := 0` when a destructive copy
//!   begins; a vote in a term is never changed, over all restarts;
//! - 5: what is said or shown is in the record that is durable then;
//! - a lease that was promised binds over restarts and new lives;
//! - a state that is lost (blank, given up, or an old image) neither votes nor stands nor leads before a leader takes it
//!   in, and a copying one votes for its leader only;
//! - the peer vouches while it takes part in the leader's term, and a leader validates what was vouched for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tiebreak::ids::{Incarnation, LinkId, Position, Term, Token, VoterId};
use tiebreak::message::{
    Adoption, Hello, Part, Ratchet, Remembered, ReplicaRecord, Reply, Request, Standing,
};
use tiebreak::testing::{Input, Link, Outputs, Replica, Right, RoleView, Rules, Settings, Step};
use tiebreak::time::Moment;

use super::draw::{CLUSTER, Draw, LIFE, cluster_name, node};

struct Oracle {
    /// For whom it voted, itself included, as far as that was said.
    votes: BTreeMap<Term, VoterId>,
    token: Token,
    /// The highest token of earlier starts: a write of theirs may still be on its way.
    earlier_token: Token,
    /// To the leader of which term a lease was promised, and until when at least; a restart does not undo it.
    promised: Option<(VoterId, Term, Moment)>,
    /// Its lives so far.
    lives: BTreeSet<Incarnation>,
    /// The terms for which a leader has offered to take the present life in.
    taken_in: BTreeSet<Term>,
    starts: u32,
    disk: ReplicaRecord,
}

/// What a step was about.
struct About<'a> {
    /// What was durable before it.
    before: ReplicaRecord,
    position: Position,
    input: &'a Input,
    /// The greeting in it, if it came on a link that was not up.
    greeting: Option<(VoterId, Hello)>,
}

impl Oracle {
    fn me(&self) -> VoterId {
        VoterId { node: self.disk.node, incarnation: self.disk.incarnation }
    }

    fn vote(&mut self, term: Term, to: VoterId) {
        let given = *self.votes.entry(term).or_insert(to);
        assert_eq!(given, to, "two votes in {term}");
    }

    fn durable(&mut self, new: ReplicaRecord) {
        let old = std::mem::replace(&mut self.disk, new);
        let forgets = |life: &Incarnation| *life != Incarnation::NIL && !new.banned.contains(life);
        let is_full = !new.banned.contains(&Incarnation::NIL);
        assert!(is_full || !old.banned.iter().any(forgets), "a life that was given up is forgotten");
        if old.incarnation != new.incarnation {
            assert_eq!(new.standing, Standing::Blank, "a new life that is not blank");
            assert!(
                (new.term, new.holds, new.sole) == (Term::ZERO, Term::ZERO, false),
                "a new life has something"
            );
            assert!(new.longest_lease >= old.longest_lease, "a lease of an earlier life is forgotten");
            assert!(self.lives.insert(new.incarnation), "a life comes twice");
            self.taken_in.clear();
            self.votes.clear();
            (self.token, self.earlier_token) = (Token::default(), Token::default());
            return;
        }
        assert!(new.term >= old.term, "a term went back");
        let copies = matches!(new.standing, Standing::Resyncing(_)) && new.holds == Term::ZERO;
        assert!(new.holds >= old.holds || copies, "`holds` went back");
        assert!(new.holds <= new.term, "it holds a term that it has not reached");
        assert!(
            (new.adoption.term, new.adoption.ordinal) >= (old.adoption.term, old.adoption.ordinal),
            "an adoption went back"
        );
        assert!(new.boot >= old.boot, "the count of starts went back");
        if old.standing == Standing::Blank && new.standing != Standing::Blank {
            assert!(new.holds == new.term && self.taken_in.contains(&new.holds), "nobody took it in");
        }
        assert!(old.standing == Standing::Blank || new.standing != Standing::Blank, "a member became blank");
        let same = new.term == old.term && old.voted_for.is_some();
        assert!(!same || new.voted_for == old.voted_for, "a vote was changed");
    }

    /// What leaves, with this on disk.
    fn said(&mut self, now: Moment, about: Option<&About<'_>>, outputs: &Outputs) {
        let disk = self.disk;
        let promised = self.promised.filter(|(_, _, until)| now < *until);
        let asked = about.and_then(|about| match about.input {
            Input::Asked { from, request, .. } => Some((from.voter, request)),
            _ => None,
        });
        if let Some(about) = about {
            self.after(about, outputs);
        }
        assert_eq!(outputs.sender.term, disk.term, "a term was stated that is not durable");
        assert_eq!(outputs.sender.voter, self.me());
        assert_eq!(outputs.answer.is_some(), asked.is_some(), "one answer to each request");
        if let (Some((from, request)), Some(answer)) = (asked, &outputs.answer) {
            match (request, answer) {
                (Request::Vote(candidacy), Reply::Voted { term }) => {
                    assert_eq!(*term, candidacy.term);
                    let may_vote = match disk.standing {
                        Standing::Member => !disk.sole,
                        Standing::Resyncing(leader) => leader == from.incarnation,
                        Standing::Blank | Standing::Unvalidated => false,
                    };
                    assert!(may_vote, "it may not vote");
                    assert_eq!(promised, None, "it votes while a lease runs that it promised");
                    // Answering may be followed by something else in the same step, but never below the vote.
                    assert!(disk.term >= *term, "said, not kept");
                    assert!(disk.term > *term || disk.voted_for == Some(from), "said, not kept");
                    self.vote(*term, from);
                }
                (Request::Renew { lease, .. }, Reply::Renewed { .. }) => {
                    assert!(disk.longest_lease >= *lease, "a lease was promised that a restart forgets");
                    let Request::Renew { term, .. } = request else { unreachable!("it is one") };
                    let until = now + lease.span();
                    let (term, until) =
                        promised.map_or((*term, until), |(_, t, before)| (t.max(*term), before.max(until)));
                    self.promised = Some((from, term, until));
                }
                (Request::Release { term, .. }, Reply::Released { .. }) => {
                    // One of an earlier term came late.
                    self.promised = self.promised.filter(|(_, of, _)| term < of);
                }
                (Request::Vouch { term, nonce }, Reply::Vouched { term: said, nonce: echo }) => {
                    assert_eq!((term, nonce), (said, echo), "it vouches for something else");
                    let is_part =
                        disk.standing == Standing::Member && (disk.term, disk.holds) == (*term, *term);
                    assert!(is_part, "it vouches, and takes no part");
                    let follows = matches!(
                        outputs.view.role,
                        RoleView::Follower { leader: Some(leader), joined: true, .. } if leader == (from, *term)
                    );
                    assert!(follows, "it vouches for another leader");
                }
                (Request::PreVote(_), Reply::PreVoted { .. }) => {
                    assert!(disk.standing != Standing::Blank && !disk.sole, "it may not vote");
                }
                (Request::Adopt { adoption, .. }, Reply::Adopted { adoption: mine }) => {
                    assert!(*mine == disk.adoption && disk.adoption >= *adoption, "said, not kept");
                }
                (Request::Joined { .. }, Reply::Settled { term }) => {
                    assert!(disk.holds >= *term, "said, not kept");
                }
                (
                    _,
                    Reply::Voted { .. }
                    | Reply::Renewed { .. }
                    | Reply::Adopted { .. }
                    | Reply::Settled { .. }
                    | Reply::PreVoted { .. }
                    | Reply::Vouched { .. },
                ) => {
                    panic!("{answer:?} to {request:?}");
                }
                _ => {}
            }
        }
        for ask in &outputs.asks {
            match ask.request {
                Request::Vote(candidacy) => {
                    assert_eq!(
                        (candidacy.term, disk.voted_for),
                        (disk.term, Some(self.me())),
                        "said, not kept"
                    );
                    let is_whole = disk.standing == Standing::Member && disk.holds > Term::ZERO;
                    assert!(is_whole && !disk.sole, "it may not stand");
                    assert_eq!(candidacy.holds, disk.holds, "it shows what it does not hold");
                    assert_eq!(promised, None, "it stands while a lease runs that it promised");
                    self.vote(candidacy.term, self.me());
                }
                Request::PreVote(candidacy) => {
                    assert_eq!(candidacy.holds, disk.holds);
                    assert_eq!(disk.standing, Standing::Member, "it may not stand");
                }
                Request::Joined { term, .. } => {
                    assert_eq!((term, disk.term), (disk.holds, disk.holds), "not kept");
                }
                Request::Offer { term, .. } => {
                    assert!(term == disk.term && !disk.sole, "a term was offered that is not open on disk");
                }
                Request::Confirm { term, .. } => {
                    assert_eq!((term, disk.voted_for), (disk.term, Some(self.me())));
                }
                Request::Admit { adoption, .. } => {
                    assert_eq!(
                        adoption.incarnation, disk.adoption.incarnation,
                        "admitted before it is adopted"
                    );
                }
                Request::Validate { term, solo, nonce } => {
                    assert_eq!((term, disk.voted_for), (disk.term, Some(self.me())));
                    let vouched = about.is_some_and(|about| {
                        matches!(about.input, Input::Answered { reply, .. } if *reply == Reply::Vouched { term, nonce })
                    });
                    assert!(if solo { disk.sole } else { vouched }, "nobody vouched for it");
                }
                _ => {}
            }
        }
        if let RoleView::Leader { token, right, .. } = outputs.view.role {
            assert_eq!(
                (token.term(), disk.voted_for),
                (disk.term, Some(self.me())),
                "it leads, and has not said so"
            );
            assert_eq!(disk.standing, Standing::Member, "it leads, and is lost");
            assert!(token >= self.token, "a token went back");
            assert!(token > self.earlier_token, "a token of an earlier start");
            self.token = token;
            match right {
                Right::Solo => assert!(disk.sole, "alone without a record of it"),
                Right::Paired => assert!(disk.holds == disk.term && !disk.sole, "paired and not settled"),
                Right::Blocked => assert!(!disk.sole),
            }
        }
    }
}

impl Oracle {
    /// What a greeting has to lead to, and what a life that was given up may be told.
    fn after(&self, about: &About<'_>, outputs: &Outputs) {
        let (before, disk) = (&about.before, &self.disk);
        let is_refused = match &outputs.answer {
            Some(Reply::Refused(_) | Reply::Status(_)) => true,
            Some(_) => false,
            None => outputs.taken.is_err(),
        };
        if let (Input::Asked { from, .. }, false) = (about.input, is_refused) {
            assert!(!before.banned.contains(&from.voter.incarnation), "a life that was given up is answered");
        }
        if *about.input == Input::Resync && !is_refused && disk.standing != Standing::Blank {
            assert_eq!(disk.holds, Term::ZERO, "it copies, and claims to hold everything");
        }
        let Some((from, hello)) = about.greeting.filter(|_| !is_refused) else { return };
        assert!(!hello.banned.contains(&before.incarnation), "it was given up, and goes on");
        assert!(!before.banned.contains(&from.incarnation), "a life that was given up has a link");
        let me = VoterId { node: before.node, incarnation: before.incarnation };
        let Some(claim) = hello.remembers.filter(|claim| claim.voter == me) else { return };
        let is_newest = claim.boot <= before.boot && claim.term <= before.term;
        assert!(is_newest, "it goes on with an old image of itself");
        let is_behind = before.standing == Standing::Member
            && before.holds > Term::ZERO
            && claim.took_part == before.holds
            && claim.position > about.position;
        assert!(!is_behind || disk.standing != Standing::Member, "its data is an old image");
    }
}

pub fn run(bytes: &[u8]) {
    run_with(bytes, Rules::KEPT);
}

/// The same for a voter that breaks a rule: the oracle has to notice.
pub fn run_with(bytes: &[u8], rules: Rules) {
    let mut draw = Draw::new(bytes);
    let kind = draw.kind();
    let init = Replica::init(node("a"), cluster_name(), kind, LIFE, CLUSTER);
    let adoption = Adoption { term: Term(1), ordinal: 0, incarnation: LIFE };
    let first = match draw.below(4) {
        0 => Replica::blank(node("a"), cluster_name(), kind, LIFE),
        1 => init,
        2 => ReplicaRecord { adoption, ..init },
        _ => ReplicaRecord { sole: false, adoption, ..init },
    };
    let mut oracle = Oracle {
        votes: BTreeMap::new(),
        token: Token::default(),
        earlier_token: Token::default(),
        promised: None,
        lives: BTreeSet::from([LIFE]),
        taken_in: BTreeSet::new(),
        starts: 0,
        disk: first,
    };
    let mut now = Moment(0);
    let settings = Settings::for_lease(Duration::from_secs(1));
    loop {
        let position = draw.position();
        // Another one at each start, as it has to be.
        oracle.starts += 1;
        let seed = u128::from(draw.byte()) << 64 | u128::from(oracle.starts);
        let before = oracle.disk;
        let (mut replica, step) = Replica::start(now, before, position, settings, seed, rules);
        let counted = step.record.expect("a start is counted");
        assert!(counted.boot > before.boot, "a start that is not counted");
        oracle.durable(counted);
        oracle.earlier_token = oracle.token;
        oracle.said(now, None, &step.outputs);
        if live(&mut draw, &mut replica, &mut oracle, &mut now) {
            return;
        }
    }
}

/// Until the process dies; whether it is over.
fn live(draw: &mut Draw<'_>, replica: &mut Replica, oracle: &mut Oracle, now: &mut Moment) -> bool {
    while !draw.is_over() {
        let fate = draw.byte();
        // Up to about a lease at once.
        *now = Moment(now.0.saturating_add(u64::from(fate & 7) << 27));
        if fate >= 250 {
            return false;
        }
        draw.near = oracle.disk.term;
        let input = input(draw, replica);
        let about = About {
            before: oracle.disk,
            position: replica.ballot().position(),
            input: &input,
            greeting: new_greeting(&input, replica),
        };
        if let Input::Asked { request: Request::Offer { term, admits, .. }, .. } = &input
            && *admits == Some(oracle.disk.incarnation)
        {
            oracle.taken_in.insert(*term);
        }
        let Step { record, outputs } = replica.handle(*now, input.clone());
        if fate >= 244 {
            // It dies before anything is durable, and nothing was said.
            return false;
        }
        if let Some(record) = record {
            oracle.durable(record);
        }
        if fate >= 238 {
            // It dies with the record on disk, and nothing was said.
            return false;
        }
        assert_eq!(*replica.ballot().record(), oracle.disk, "what it goes on with is not what is durable");
        oracle.said(*now, Some(&about), &outputs);
        assert!(replica.wake_at(*now) > *now, "it would spin");
    }
    true
}

/// The greeting in this input, if it does not repeat that of a link that is up.
fn new_greeting(input: &Input, replica: &Replica) -> Option<(VoterId, Hello)> {
    let (link, from, hello) = match input {
        Input::Asked { link, from, request: Request::Hello(hello) }
        | Input::Answered { link, from, reply: Reply::Hello(hello), .. } => (*link, from.voter, *hello),
        _ => return None,
    };
    let ballot = replica.ballot();
    let live =
        [ballot.peer(), ballot.witness()].into_iter().flatten().any(|up| (up.id, up.who) == (link, from));
    (!live).then_some((from, hello))
}

fn input(draw: &mut Draw<'_>, replica: &Replica) -> Input {
    let link = LinkId(u64::from(draw.below(3)) + 1);
    draw.fitting = fitting(draw, replica, Part::Replica);
    let ballot = replica.ballot();
    draw.admits = ballot.me().incarnation;
    draw.nonce = ballot.witness().map_or(0, |link| link.nonce);
    match draw.below(17) {
        16 => {
            let (part, name) = if draw.flag() { (Part::Witness, "w") } else { (Part::Replica, "b") };
            let life = replica.ballot().me().incarnation;
            Input::NotGreeted { life, part, by: draw.sender(&[name]).voter, refusal: draw.refusal() }
        }
        0 | 1 => Input::Tick,
        2..=5 => {
            let from = draw.sender(&["b"]);
            let (link, greets) = on_link(draw, ballot.peer(), link);
            let request = if greets { Request::Hello(draw.hello()) } else { draw.request() };
            Input::Asked { link, from, request }
        }
        6..=9 => {
            let (part, name) = if draw.flag() { (Part::Witness, "w") } else { (Part::Replica, "b") };
            // Witness and peer are never on one link.
            let link = if part == Part::Witness { LinkId(link.0 + 10) } else { link };
            let from = draw.sender(&[name]);
            draw.fitting = fitting(draw, replica, part);
            let live = if part == Part::Witness { ballot.witness() } else { ballot.peer() };
            let (link, greets) = on_link(draw, live, link);
            let mut reply = if greets { Reply::Hello(draw.hello()) } else { draw.reply() };
            if let Reply::Hello(hello) = &mut reply {
                hello.part = part;
            }
            Input::Answered { link, part, from, reply }
        }
        10 => Input::LinkDown(if draw.flag() { link } else { LinkId(link.0 + 10) }),
        11 => {
            Input::Durable(Position(replica.ballot().position().0.saturating_add(u64::from(draw.below(4)))))
        }
        12 => Input::Offer(draw.position()),
        13 => Input::Join(draw.term()),
        14 => match draw.below(3) {
            0 => Input::Resync,
            1 => Input::Durable(draw.position()),
            _ => Input::Stalled,
        },
        _ => {
            if draw.flag() {
                Input::Resign
            } else {
                Input::Stopped
            }
        }
    }
}

/// The link to speak on, and whether a greeting comes first: without one, hardly anything is heard.
fn on_link(draw: &mut Draw<'_>, live: Option<&Link>, other: LinkId) -> (LinkId, bool) {
    match live {
        Some(live) if draw.below(8) != 0 => (live.id, false),
        Some(_) => (other, false),
        None => (other, draw.below(4) != 0),
    }
}

/// What an honest node remembers of this replica, and proposes.
fn fitting(draw: &mut Draw<'_>, replica: &Replica, part: Part) -> Option<Remembered> {
    let ballot = replica.ballot();
    let own = ballot.record().remembers[usize::from(part == Part::Witness)];
    let ratchet = own.map(|known| known.ratchet).unwrap_or_default();
    let (took_part, position) =
        if draw.below(8) == 0 { (ballot.record().holds, draw.position()) } else { (Term::ZERO, Position(0)) };
    let pending = ((ratchet.current >> 32) + 1) << 32 | u64::from(draw.byte());
    Some(Remembered {
        voter: ballot.me(),
        boot: ballot.record().boot,
        term: ballot.record().term,
        took_part,
        position,
        ratchet: Ratchet { current: ratchet.current, pending },
    })
}
