//! One machine and its process: the voter, its disk and clock, and what waits to be handled or to leave.

use std::collections::VecDeque;

use tiebreak::ids::{Term, VoterId};
use tiebreak::message::{Hello, Part, Record, Refusal, ReplicaRecord, Reply, Request, Sender, WitnessRecord};
use tiebreak::testing::{Ask, Input, Replica, View, Witness};
use tiebreak::time::Moment;

use super::clocks::Clock;
use super::data::{Body, Data};
use super::dice::Dice;
use super::disks::VoteDisk;
use super::history::Reading;

/// What waits for a process.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Input(Input),
    Requested {
        connection: usize,
        sender: Sender,
        request: Request,
    },
    Data {
        connection: usize,
        term: Term,
        body: Body,
    },
    SayHello {
        connection: usize,
    },
    Read(Reading),
    /// A connection of a witness is over.
    Over {
        connection: usize,
    },
}

/// What leaves a process once its record is durable.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) sender: Sender,
    pub(super) answer: Option<(usize, Reply)>,
    pub(super) asks: Vec<Ask>,
    pub(super) hello: Option<(usize, Hello)>,
    pub(super) view: Option<View>,
    pub(super) command: Option<(Input, Result<(), Refusal>)>,
}

impl Release {
    pub(super) fn nothing(sender: Sender) -> Release {
        Release { sender, answer: None, asks: Vec::new(), hello: None, view: None, command: None }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Voter {
    Off,
    Replica(Box<Replica>),
    Witness(Box<Witness>),
}

/// One machine.
pub(crate) struct Node {
    /// What is durable of the vote.
    pub(crate) disk: Record,
    pub(crate) votes: VoteDisk,
    pub(super) clock: Clock,
    pub(super) dice: Dice,
    pub(crate) run: u64,
    pub(crate) up: bool,
    /// The process is stopped; its clock goes on.
    pub(crate) paused: bool,
    /// The machine sleeps: besides, nothing arrives.
    pub(crate) asleep: bool,
    /// Counts pauses.
    pub(super) pauses: u64,
    pub(super) voter: Voter,
    pub(super) queue: VecDeque<Work>,
    /// The record that is being written.
    pub(super) syncing: Option<Record>,
    /// Its sync was done while the process was stopped.
    pub(super) synced_meanwhile: bool,
    pub(super) held: Vec<Release>,
    pub(crate) shown: Option<View>,
    pub(crate) data: Data,
    pub(super) wake: u64,
    pub(super) data_run: u64,
    /// Which witness this replica dials.
    pub(crate) witness: usize,
    /// The link to the peer that was used last.
    pub(super) link: Option<usize>,
    /// The connection to the peer on which a greeting of this replica waits for its answer.
    pub(super) dialling: Option<usize>,
}

impl Node {
    /// What its own clock shows at a true time.
    pub(crate) fn clock(&self, at: u64) -> Moment {
        self.clock.shows(at)
    }

    /// The true time at which its clock shows this.
    pub(crate) fn true_time(&self, moment: Moment) -> u64 {
        self.clock.when(moment)
    }

    pub(super) fn may_run(&self) -> bool {
        self.up && !self.paused && self.syncing.is_none()
    }

    pub(crate) fn replica(&self) -> Option<&Replica> {
        match &self.voter {
            Voter::Replica(replica) => Some(replica),
            _ => None,
        }
    }

    /// The connection that its voter uses.
    pub(super) fn live_link(&self, part: Part) -> Option<usize> {
        let ballot = self.replica()?.ballot();
        let link = match part {
            Part::Replica => ballot.peer(),
            Part::Witness => ballot.witness(),
        };
        link.map(|link| usize::try_from(link.id.0).expect("links are connections"))
    }

    pub(crate) fn id(&self) -> VoterId {
        match &self.disk {
            Record::Replica(r) => VoterId { node: r.node, incarnation: r.incarnation },
            Record::Witness(w) => VoterId { node: w.node, incarnation: w.incarnation },
            Record::Gate(_) | Record::Resource(_) => unreachable!("no gates here"),
        }
    }

    pub(crate) fn replica_record(&self) -> &ReplicaRecord {
        match &self.disk {
            Record::Replica(record) => record,
            _ => unreachable!("asked of a replica only"),
        }
    }

    pub(crate) fn witness_record(&self) -> &WitnessRecord {
        match &self.disk {
            Record::Witness(record) => record,
            _ => unreachable!("asked of a witness only"),
        }
    }
}
