//! One of everything that goes over the wire or into a ledger. Each field has a value of its own, so that two
//! that changed places are seen.
#![allow(dead_code, unreachable_pub, reason = "shared by tests, each of which uses a part of it")]

use tiebreak::ids::*;
use tiebreak::message::*;
use tiebreak::time::Millis;

/// Makes the list of all variants of an enum, and the function that names one. A variant that is added and not
/// named here does not compile.
macro_rules! variants {
    ($list:ident, $name:ident, $enum:ident: $($variant:ident)*) => {
        pub const $list: &[&str] = &[$(stringify!($variant)),*];
        pub fn $name(value: &$enum) -> &'static str {
            match value { $($enum::$variant { .. } => stringify!($variant)),* }
        }
    };
}

variants!(REQUESTS, request_name, Request:
    Hello PreVote Vote Confirm Offer Joined Renew Release Adopt Admit Validate Vouch Linked Status Name);
variants!(REPLIES, reply_name, Reply:
    Hello PreVoted Voted Confirmed Offered Settled Renewed Released Adopted Admitted Validated Vouched Linked Status Refused
    Versions Name);
variants!(REFUSALS, refusal_name, Refusal:
    Stale TermSpent Behind LeaseRuns Sole Busy HoldOff Blank Resyncing HoldsNothing OtherWitness OtherCluster Void
    NotLeader Crossing NotServed Restored Copied Banned Unvalidated);
variants!(NAME_REQUESTS, name_request_name, NameRequest: Acquire Renew Release Revoke);
variants!(NAME_REPLIES, name_reply_name, NameReply: Granted Renewed Released Revoked Refused);
variants!(NAME_REFUSALS, name_refusal_name, NameRefusal: NotLeader HoldOff Held Lost Revoked Full BadLease Spent);
variants!(RECORDS, record_name, Record: Witness Replica Gate Resource);
variants!(ROLES, role_name, RoleName: Witness Follower Candidate Blocked Paired Solo);
variants!(STANDINGS, standing_name, Standing: Blank Member Resyncing Unvalidated);

/// The longest name there is.
const LONGEST: &str = "abcdefghijklmnopqrstuvwxyz.-_012";

pub fn node(name: &str) -> NodeId {
    name.parse().expect("a valid name")
}

pub fn cluster(name: &str) -> ClusterName {
    name.parse().expect("a valid name")
}

pub fn voter(name: &str, incarnation: u128) -> VoterId {
    VoterId { node: node(name), incarnation: Incarnation(incarnation) }
}

pub fn sender() -> Sender {
    Sender {
        cluster: ClusterId(0x1011_1213_1415_1617_1819_1a1b_1c1d_1e1f),
        voter: voter("a", 0x2021_2223_2425_2627_2829_2a2b_2c2d_2e2f),
        boot: Boot(0x3031_3233),
        term: Term(0x4041_4243),
    }
}

fn adoption(base: u32) -> Adoption {
    Adoption { term: Term(base), ordinal: base + 1, incarnation: Incarnation(u128::from(base) + 2) }
}

fn remembered(name: &str) -> Remembered {
    Remembered {
        voter: voter(name, 0x51),
        boot: Boot(0x52),
        term: Term(0x53),
        took_part: Term(0x54),
        position: Position(0x55),
        ratchet: Ratchet { current: 0x56, pending: 0x57 },
    }
}

fn hello() -> Hello {
    Hello {
        name: cluster("orders"),
        kind: Kind::Replicated,
        part: Part::Replica,
        standing: Standing::Member,
        holds: Term(1),
        position: Position(2),
        sole: true,
        leads: false,
        adoption: adoption(3),
        remembers: None,
        nonce: 5,
        banned: std::array::from_fn(|i| Incarnation(0x60 + i as u128)),
    }
}

fn hello_of_witness() -> Hello {
    Hello {
        name: cluster(LONGEST),
        kind: Kind::Leadership,
        part: Part::Witness,
        standing: Standing::Resyncing(Incarnation(9)),
        sole: false,
        leads: true,
        remembers: Some(remembered(LONGEST)),
        ..hello()
    }
}

fn candidacy() -> Candidacy {
    Candidacy { term: Term(1), holds: Term(2), position: Position(3) }
}

fn lock(name: &str) -> LockName {
    name.parse().expect("a valid name")
}

pub fn name_requests() -> Vec<NameRequest> {
    let (name, token) = (lock("shard-42"), Token::granted(Term(3), 4));
    vec![
        NameRequest::Acquire { name: lock(LONGEST), lease: Millis(2000), nonce: 5 },
        NameRequest::Renew { name, token },
        NameRequest::Release { name, token },
        NameRequest::Revoke { name },
    ]
}

pub fn name_refusals() -> Vec<NameRefusal> {
    let left = Millis(2000);
    vec![
        NameRefusal::NotLeader,
        NameRefusal::HoldOff { left },
        NameRefusal::Held { by: node("b"), token: Token::granted(Term(3), 4), left },
        NameRefusal::Lost,
        NameRefusal::Revoked,
        NameRefusal::Full,
        NameRefusal::BadLease,
        NameRefusal::Spent,
    ]
}

pub fn name_replies() -> Vec<NameReply> {
    let token = Token::granted(Term(3), 4);
    let mut replies = vec![
        NameReply::Granted { token },
        NameReply::Renewed { token },
        NameReply::Released { token },
        NameReply::Revoked { from: node("b"), token, left: Millis(2000) },
    ];
    replies.extend(name_refusals().into_iter().map(NameReply::Refused));
    replies
}

pub fn requests() -> Vec<Request> {
    let (term, position) = (Term(1), Position(2));
    let mut requests = vec![
        Request::Hello(hello()),
        Request::Hello(hello_of_witness()),
        Request::PreVote(candidacy()),
        Request::Vote(candidacy()),
        Request::Confirm { term, lease: Millis(2000) },
        Request::Offer { term, position, adoption: adoption(3), admits: None },
        Request::Offer { term, position, adoption: adoption(3), admits: Some(Incarnation(6)) },
        Request::Joined { term, position },
        Request::Renew { term, sequence: 2, lease: Millis(2000) },
        Request::Release { term, position },
        Request::Adopt { term, adoption: adoption(2) },
        Request::Admit {
            term,
            kind: Kind::Leadership,
            adoption: adoption(2),
            solo: true,
            longest_lease: Millis(5),
        },
        Request::Validate { term, solo: true, nonce: 2 },
        Request::Vouch { term, nonce: 2 },
        Request::Linked,
        Request::Status,
    ];
    requests.extend(name_requests().into_iter().map(Request::Name));
    requests
}

pub fn refusals() -> Vec<Refusal> {
    let left = Millis(2000);
    vec![
        Refusal::Stale { holds: Term(1), confirmed: Term(2), to: node("b") },
        Refusal::TermSpent { term: Term(1) },
        Refusal::Behind { holds: Term(1), position: Position(2) },
        Refusal::LeaseRuns { left },
        Refusal::Sole,
        Refusal::Busy { left },
        Refusal::HoldOff { left },
        Refusal::Blank,
        Refusal::Resyncing,
        Refusal::HoldsNothing,
        Refusal::OtherWitness,
        Refusal::OtherCluster,
        Refusal::Void,
        Refusal::NotLeader { term: Term(1) },
        Refusal::Crossing,
        Refusal::NotServed,
        Refusal::Restored { boot: Boot(1), term: Term(2), links: 3 },
        Refusal::Copied { life: node("a"), with: node("b") },
        Refusal::Banned { life: Incarnation(1) },
        Refusal::Unvalidated,
    ]
}

fn report(role: RoleName) -> Report {
    Report {
        name: cluster("orders"),
        kind: Kind::Replicated,
        role,
        standing: if role == RoleName::Witness { Standing::Unvalidated } else { Standing::Blank },
        sole: false,
        acts: true,
        lease_left: None,
        token: None,
        leader: None,
        holds: Term(1),
        position: Position(2),
        promised: Word::default(),
        confirmed: Word { term: Term(3), to: None },
        adoption: Adoption::NONE,
        others: [None, None],
        refused: None,
    }
}

/// The largest message: every field is there.
pub fn fullest_report() -> Report {
    let other = |base: u32| OtherReport {
        node: node(LONGEST),
        part: Part::Witness,
        link: Some(LinkId(u64::from(base))),
        incarnation: Incarnation(u128::from(base) + 1),
        silent_for: Some(Millis(base + 2)),
    };
    Report {
        name: cluster(LONGEST),
        kind: Kind::Leadership,
        role: RoleName::Solo,
        standing: Standing::Resyncing(Incarnation(1)),
        sole: true,
        acts: false,
        lease_left: Some(Millis(2)),
        token: Some(Token::of(Term(3))),
        leader: Some(node(LONGEST)),
        holds: Term(4),
        position: Position(5),
        promised: Word { term: Term(6), to: Some(voter(LONGEST, 7)) },
        confirmed: Word { term: Term(8), to: Some(voter(LONGEST, 9)) },
        adoption: adoption(10),
        others: [Some(other(13)), Some(other(16))],
        refused: Some((node(LONGEST), Refusal::Copied { life: node(LONGEST), with: node(LONGEST) })),
    }
}

pub fn replies() -> Vec<Reply> {
    let term = Term(1);
    let mut replies = vec![
        Reply::Hello(hello()),
        Reply::Hello(hello_of_witness()),
        Reply::PreVoted { term },
        Reply::Voted { term },
        Reply::Confirmed { term },
        Reply::Offered { term },
        Reply::Settled { term },
        Reply::Renewed { term, sequence: 2 },
        Reply::Released { term },
        Reply::Adopted { adoption: adoption(1) },
        Reply::Admitted { term },
        Reply::Validated { term },
        Reply::Vouched { term, nonce: 2 },
        Reply::Linked,
        Reply::Status(Box::new(fullest_report())),
        Reply::Versions { lowest: 1, highest: 2 },
    ];
    let roles = [
        RoleName::Witness,
        RoleName::Follower,
        RoleName::Candidate,
        RoleName::Blocked,
        RoleName::Paired,
        RoleName::Solo,
    ];
    replies.extend(roles.map(|role| Reply::Status(Box::new(report(role)))));
    replies.extend(refusals().into_iter().map(Reply::Refused));
    replies.extend(name_replies().into_iter().map(Reply::Name));
    replies
}

pub fn witness_record() -> WitnessRecord {
    WitnessRecord {
        node: node("w"),
        name: cluster("orders"),
        cluster: ClusterId(1),
        kind: Kind::Replicated,
        incarnation: Incarnation(2),
        boot: Boot(3),
        standing: Standing::Member,
        promised: Word { term: Term(4), to: Some(voter("a", 5)) },
        confirmed: Word::default(),
        longest_lease: Millis(6),
        remembers: [None, Some(remembered("b"))],
        banned: std::array::from_fn(|i| Incarnation(0x60 + i as u128)),
    }
}

pub fn replica_record() -> ReplicaRecord {
    ReplicaRecord {
        node: node("a"),
        name: cluster("orders"),
        cluster: ClusterId(1),
        kind: Kind::Replicated,
        incarnation: Incarnation(2),
        boot: Boot(3),
        standing: Standing::Member,
        term: Term(4),
        voted_for: None,
        holds: Term(5),
        sole: true,
        adoption: adoption(6),
        longest_lease: Millis(9),
        remembers: [Some(remembered("b")), None],
        met: [Incarnation(14), Incarnation(15)],
        banned: std::array::from_fn(|i| Incarnation(0x60 + i as u128)),
    }
}

pub fn records() -> Vec<Record> {
    let fullest_witness = WitnessRecord {
        node: node(LONGEST),
        name: cluster(LONGEST),
        standing: Standing::Resyncing(Incarnation(16)),
        confirmed: Word { term: Term(17), to: Some(voter(LONGEST, 18)) },
        remembers: [Some(remembered(LONGEST)), Some(remembered("b"))],
        ..witness_record()
    };
    let fullest_replica = ReplicaRecord {
        node: node(LONGEST),
        name: cluster(LONGEST),
        standing: Standing::Resyncing(Incarnation(16)),
        voted_for: Some(voter(LONGEST, 17)),
        remembers: [Some(remembered(LONGEST)), Some(remembered("b"))],
        ..replica_record()
    };
    vec![
        Record::Witness(witness_record()),
        Record::Witness(fullest_witness),
        Record::Replica(replica_record()),
        Record::Replica(fullest_replica),
        Record::Gate(GateRecord { highest: Token(1) }),
        Record::Resource(ResourceRecord {
            resource: LONGEST.parse().expect("a valid name"),
            highest: Token(2),
        }),
    ]
}
