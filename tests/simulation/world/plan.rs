//! What of a world does not change while it runs, and how one begins.

use std::time::Duration;

use tiebreak::ids::{ClusterId, Incarnation, NodeId, Term, VoterId};
use tiebreak::message::{Adoption, Kind, Record, ReplicaRecord, Standing, WitnessRecord, Word};
use tiebreak::testing::{Replica, Rules, Settings, Witness};

use super::data::{Data, Entry};
use super::net::Edge;
use super::{A, B, MS, NAMES, V, W};

/// What of a world does not change while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) rules: Rules,
    pub(crate) edge: Edge,
    /// A sync of a vote takes up to this long.
    pub(crate) record_sync: (u64, u64),
    /// A sync of data takes up to this long.
    pub(crate) data_sync: (u64, u64),
    /// A lost stream packet is repeated after this.
    pub(crate) repeat_after: u64,
    /// A connection over a cut edge is given up after this.
    pub(crate) idle: u64,
    pub(crate) redial: (u64, u64),
    /// Each replica dials the other; else only the first in the order of names does.
    pub(crate) both_dial: bool,
    /// A command of the data layer reaches its voter after up to this long.
    pub(crate) command_lag: u64,
    pub(crate) kind: Kind,
    /// Witnesses grant nothing after a start until a leader has validated them.
    pub(crate) strict_boot: bool,
    /// A message of a connection that is over arrives nevertheless.
    pub(crate) late_per_mille: u64,
    /// Data layers look around this often.
    pub(crate) beat: u64,
    /// How much more patient data layers are than on a quick network.
    pub(crate) slack: u64,
    /// Chance of a write, per replica and beat.
    pub(crate) write_per_mille: u64,
    /// Chance of a read, per replica and beat.
    pub(crate) read_per_mille: u64,
    /// The rate error of each clock, in parts per million.
    pub(crate) rates_ppm: [i64; 4],
}

impl Plan {
    /// A quiet network and quick disks.
    pub(crate) fn calm(lease: Duration) -> Plan {
        Plan {
            settings: Settings::for_lease(lease),
            rules: Rules::KEPT,
            edge: Edge { low: MS, high: MS, loss_per_mille: 0, twice_per_mille: 0, cut: false, cuts: 0 },
            record_sync: (MS, MS),
            data_sync: (MS, MS),
            repeat_after: 50 * MS,
            idle: 1500 * MS,
            redial: (100 * MS, 100 * MS),
            both_dial: false,
            command_lag: 0,
            kind: Kind::Replicated,
            strict_boot: false,
            late_per_mille: 0,
            beat: 25 * MS,
            slack: 0,
            write_per_mille: 0,
            read_per_mille: 0,
            rates_ppm: [0; 4],
        }
    }
}

/// How the world begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Birth {
    /// `init` on A; B and the witness are blank.
    New,
    /// All three are members; neither replica leads.
    Mature,
}

pub(super) fn birth_records(
    birth: Birth,
    cluster: ClusterId,
    lives: &[Incarnation],
    plan: &Plan,
) -> Vec<Record> {
    let name = "demo".parse().expect("a valid name");
    let kind = plan.kind;
    let node = |index: usize| -> NodeId { NAMES[index].parse().expect("a valid name") };
    let blank_witness = |index: usize| Witness::blank(node(index), name, lives[index]);
    let blank = |index: usize| Replica::blank(node(index), name, kind, lives[index]);
    let (a, b, w) = match birth {
        Birth::New => (Replica::init(node(A), name, kind, lives[A], cluster), blank(B), blank_witness(W)),
        Birth::Mature => {
            // As after a first term that both have joined.
            let first = Term(1);
            let leader = VoterId { node: node(A), incarnation: lives[A] };
            let member = |index: usize| ReplicaRecord {
                cluster,
                standing: Standing::Member,
                term: first,
                voted_for: Some(leader),
                holds: first,
                adoption: Adoption { term: first, ordinal: 0, incarnation: lives[W] },
                longest_lease: tiebreak::time::Millis::ceil(plan.settings.lease),
                ..blank(index)
            };
            let witness = WitnessRecord {
                cluster,
                kind,
                standing: Standing::Member,
                longest_lease: tiebreak::time::Millis::ceil(plan.settings.lease),
                promised: Word { term: first, to: Some(leader) },
                confirmed: Word { term: Term(0), to: Some(leader) },
                ..blank_witness(W)
            };
            (member(A), member(B), witness)
        }
    };
    vec![Record::Replica(a), Record::Replica(b), Record::Witness(w), Record::Witness(blank_witness(V))]
}

pub(super) fn birth_data(birth: Birth, index: usize, plan: &Plan) -> Data {
    let none = plan.kind == Kind::Leadership;
    let mut data = Data::empty(plan.slack, none);
    if birth == Birth::New && index == A && !none {
        data.log = vec![Entry { term: Term(1), value: 0 }];
        data.durable = 1;
    }
    data.after_crash()
}
