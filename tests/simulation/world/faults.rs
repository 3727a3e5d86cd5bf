//! Everything that can happen to machines, processes, disks and links; and the commands of a data layer or operator.

use tiebreak::ids::{Incarnation, VoterId};
use tiebreak::message::{Ratchet, Record, Remembered};
use tiebreak::testing::{Input, Replica, Witness, WitnessSettings};

use super::data::Data;
use super::disks::{End, VoteDisk};
use super::node::{Release, Voter, Work};
use super::{A, B, Event, MS, W, World};

// Processes and machines.
impl World {
    pub(crate) fn start(&mut self, node: usize) {
        if self.nodes[node].up {
            return;
        }
        let plan_settings = self.plan.settings;
        let rules = self.plan.rules;
        let now = self.now;
        let n = &mut self.nodes[node];
        let found = match n.votes.start() {
            Ok(found) => found,
            Err(error) => {
                self.note(node, &format!("does not start: {error}"));
                return;
            }
        };
        n.up = true;
        n.run += 1;
        n.wake = u64::MAX;
        let local = n.clock(now);
        let same = found == n.disk;
        let seed = n.dice.wide();
        let strict_boot = self.plan.strict_boot;
        self.note(node, "starts");
        if !same {
            self.fail(Err(format!("4: {} finds {found:?} on its disk", super::NAMES[node])));
        }
        let n = &mut self.nodes[node];
        match found {
            Record::Replica(found) => {
                let (replica, step) =
                    Replica::start(local, found, n.data.position(), plan_settings, seed, rules);
                n.voter = Voter::Replica(Box::new(replica));
                let asks = step.outputs.asks;
                let view = Some(step.outputs.view);
                let release = Release { asks, view, ..Release::nothing(step.outputs.sender) };
                self.settle(node, step.record.map(Record::Replica), vec![release]);
            }
            Record::Witness(found) => {
                let (witness, record) = Witness::start(local, found, WitnessSettings { strict_boot }, rules);
                n.voter = Voter::Witness(Box::new(witness));
                self.settle(node, Some(Record::Witness(record)), Vec::new());
            }
            Record::Gate(_) | Record::Resource(_) => {}
        }
        let run = self.nodes[node].run;
        if node == A || (node == B && self.plan.both_dial) {
            self.at(MS, Event::Dial { from: node, to: 1 - node, run });
        }
        if node == A || node == B {
            let to = self.nodes[node].witness;
            self.at(MS, Event::Dial { from: node, to, run });
        }
    }

    /// Its power fails.
    pub(crate) fn crash(&mut self, node: usize) {
        if self.nodes[node].up {
            self.note(node, "dies");
            self.end(node, End::PowerCut);
        }
    }

    /// Its process is killed.
    pub(crate) fn kill(&mut self, node: usize) {
        if self.nodes[node].up {
            self.note(node, "is killed");
            self.end(node, End::Killed);
        }
    }

    pub(super) fn end(&mut self, node: usize, how: End) {
        let n = &mut self.nodes[node];
        let seed = n.dice.roll();
        let writing = n.syncing.take();
        let found = n.votes.end(how, writing.as_ref(), seed);
        if found != n.disk {
            if writing != Some(found) {
                let before = n.disk;
                self.fail(Err(format!("4: after a crash {before:?} reads {found:?}, not {writing:?}")));
            }
            self.write_disk(node, found);
        }
        let n = &mut self.nodes[node];
        n.up = false;
        n.paused = false;
        n.asleep = false;
        n.pauses += 1;
        n.run += 1;
        n.voter = Voter::Off;
        n.queue.clear();
        n.held.clear();
        n.syncing = None;
        n.synced_meanwhile = false;
        n.shown = None;
        n.dialling = None;
        n.link = None;
        n.data = n.data.after_crash();
        n.data_run += 1;
        self.break_all(node);
    }

    pub(super) fn break_all(&mut self, node: usize) {
        for connection in 0..self.connections.len() {
            let c = &self.connections[connection];
            if c.ends.contains(&node) && !c.broken {
                self.break_connection(connection);
            }
        }
    }

    /// Its process is stopped.
    pub(crate) fn pause(&mut self, node: usize) {
        if self.nodes[node].up && !self.nodes[node].paused {
            self.note(node, "is stopped (its clock goes on)");
            self.nodes[node].paused = true;
            self.nodes[node].pauses += 1;
            let pauses = self.nodes[node].pauses;
            let patience = self.nodes[node].dice.between(self.plan.idle / 2, self.plan.idle);
            self.at(patience, Event::Silent { node, pauses });
        }
    }

    /// Its machine goes to sleep.
    pub(crate) fn suspend(&mut self, node: usize) {
        self.pause(node);
        self.nodes[node].asleep = self.nodes[node].paused;
    }

    pub(crate) fn resume(&mut self, node: usize) {
        if self.nodes[node].up && self.nodes[node].paused {
            self.note(node, "continues");
            let n = &mut self.nodes[node];
            n.paused = false;
            n.asleep = false;
            n.pauses += 1;
            n.queue.push_back(Work::Input(Input::Tick));
            if std::mem::take(&mut n.synced_meanwhile) {
                self.record_synced(node);
            }
            self.work(node);
        }
    }

    /// Those at the other ends have heard nothing of a stopped process for too long.
    pub(super) fn silent(&mut self, node: usize, pauses: u64) {
        if self.nodes[node].paused && self.nodes[node].pauses == pauses {
            self.break_all(node);
        }
    }

    /// Its clock runs at another rate from now on.
    pub(crate) fn change_rate(&mut self, node: usize, rate_ppm: i64) {
        let now = self.now;
        self.nodes[node].clock.change_rate(now, rate_ppm);
        self.nodes[node].wake = u64::MAX;
        self.schedule_wake(node);
    }
}

// Disks.
impl World {
    /// The disk of a node that is down is replaced by an empty one.
    pub(crate) fn lose_disk(&mut self, node: usize) {
        assert!(!self.nodes[node].up, "only a dead node loses its disk");
        let life = Incarnation(self.dice.wide());
        let n = &mut self.nodes[node];
        n.disk = match &n.disk {
            Record::Replica(r) => Record::Replica(Replica::blank(r.node, r.name, r.kind, life)),
            Record::Witness(w) => Record::Witness(Witness::blank(w.node, w.name, life)),
            other @ (Record::Gate(_) | Record::Resource(_)) => *other,
        };
        n.votes = VoteDisk::new(&n.disk);
        n.data = n.data.lost();
        self.lives += 1;
        self.note(node, "lost its disk");
    }
}

/// What a machine's disk held at some moment.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    record: Record,
    data: Data,
}

// Images.
impl World {
    /// Keeps an image of the whole machine.
    pub(crate) fn take_image(&mut self, node: usize) {
        let n = &self.nodes[node];
        self.images[node] = Some(Image { record: n.disk, data: n.data.after_crash() });
    }

    /// The machine is restored from its image and starts, if one of the others is known to remember more of it than
    /// the image knows: then it has to be found out. (Where nobody remembers, nobody can know.)
    /// Who remembers more.
    pub(crate) fn restore(&mut self, node: usize) -> Vec<usize> {
        let Some(image) = &self.images[node] else {
            return Vec::new();
        };
        let known = |other: &usize| *other != node && self.remembers_more(*other, &image.record);
        let known: Vec<usize> = [A, B, W].into_iter().filter(known).collect();
        // A witness that is not strict grants what the first one asks that reaches it: all have to remember.
        let least = if node == W && !self.plan.strict_boot { 2 } else { 1 };
        if known.len() < least {
            return Vec::new();
        }
        self.put_back(node);
        known
    }

    /// The machine is restored from its image and starts, whoever remembers.
    pub(crate) fn put_back(&mut self, node: usize) {
        let image = self.images[node].clone().expect("an image was taken");
        self.crash(node);
        self.note(node, "is restored from an image");
        let n = &mut self.nodes[node];
        n.disk = image.record;
        n.votes = VoteDisk::new(&n.disk);
        n.data = image.data;
        self.start(node);
    }

    /// Whether it has a link to one of these.
    pub(crate) fn linked_to(&self, node: usize, others: &[usize]) -> bool {
        let linked = |other: &usize| match (self.nodes[node].replica(), self.nodes[*other].replica()) {
            (Some(replica), _) => {
                let links = [replica.ballot().peer(), replica.ballot().witness()];
                links.into_iter().flatten().any(|link| link.who == self.nodes[*other].id())
            }
            (None, Some(replica)) => {
                replica.ballot().witness().is_some_and(|link| link.who == self.nodes[node].id())
            }
            _ => false,
        };
        others.iter().any(linked)
    }

    /// Whether a node that runs has heard more starts, terms or links of it than this image knows of.
    fn remembers_more(&self, other: usize, image: &Record) -> bool {
        let me = self.nodes[other].id();
        let (who, boot, term, links) = match image {
            Record::Replica(r) => (r.incarnation, r.boot, r.term, links_with(&r.remembers, me)),
            Record::Witness(w) => (w.incarnation, w.boot, w.promised.term, links_with(&w.remembers, me)),
            Record::Gate(_) | Record::Resource(_) => return false,
        };
        let remembers = match &self.nodes[other].disk {
            Record::Replica(r) => r.remembers,
            Record::Witness(w) => w.remembers,
            Record::Gate(_) | Record::Resource(_) => return false,
        };
        // The start after the restoration counts one more.
        let more = |known: &Remembered| {
            known.voter.incarnation == who
                && (known.boot.0 > boot.0 + 1
                    || known.term > term
                    || Ratchet::links(known.ratchet.current) > links)
        };
        self.nodes[other].up && remembers.iter().flatten().any(more)
    }
}

/// How many links it has had with that voter at most. With another life of that node in mind it cannot be compared.
fn links_with(remembers: &[Option<Remembered>; 2], other: VoterId) -> u32 {
    let known = remembers.iter().flatten().find(|known| known.voter == other);
    known.map_or(u32::MAX, |known| {
        Ratchet::links(known.ratchet.current).max(Ratchet::links(known.ratchet.pending))
    })
}

// Operators and data layers.
impl World {
    /// A replica dials another witness from now on.
    pub(crate) fn use_witness(&mut self, node: usize, witness: usize) {
        self.nodes[node].witness = witness;
        for connection in 0..self.connections.len() {
            let c = &self.connections[connection];
            if c.ends[0] == node && c.ends[1] >= W && !c.broken {
                self.break_connection(connection);
            }
        }
    }

    pub(crate) fn command(&mut self, node: usize, input: Input) {
        if self.nodes[node].up {
            self.nodes[node].queue.push_back(Work::Input(input));
            self.work(node);
        }
    }

    /// A client writes; whether it was accepted.
    pub(crate) fn write(&mut self, node: usize) -> bool {
        let now = self.now;
        let n = &mut self.nodes[node];
        let (true, false, Some(view)) = (n.up, n.paused, n.shown) else {
            return false;
        };
        self.next_value += 1;
        let accepted = n.data.write(&view, n.clock(now), self.next_value);
        self.drain(node);
        self.work(node);
        accepted
    }

    /// A client reads; the answer is checked when it comes.
    pub(crate) fn read(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        if n.up {
            let reading = self.history.begin(self.oracle.acknowledged.len());
            let run = n.run;
            let delay = n.dice.between(0, self.plan.beat);
            self.at(delay, Event::Read { node, run, reading });
        }
    }
}

// Links.
impl World {
    /// Cuts one direction.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        let edge = &mut self.edges[from][to];
        if !edge.cut {
            edge.cut = true;
            edge.cuts += 1;
            let cuts = edge.cuts;
            let patience = self.edge_dice[from][to].between(self.plan.idle / 2, self.plan.idle);
            self.at(patience, Event::Idle { from, to, cuts });
        }
    }

    pub(crate) fn cut_both(&mut self, one: usize, other: usize) {
        self.cut(one, other);
        self.cut(other, one);
    }

    pub(crate) fn heal(&mut self, from: usize, to: usize) {
        self.edges[from][to].cut = false;
    }

    pub(crate) fn heal_both(&mut self, one: usize, other: usize) {
        self.heal(one, other);
        self.heal(other, one);
    }

    pub(crate) fn break_link(&mut self, one: usize, other: usize) {
        for connection in 0..self.connections.len() {
            let c = &self.connections[connection];
            if !c.broken && c.ends.contains(&one) && c.ends.contains(&other) {
                self.break_connection(connection);
            }
        }
    }

    pub(super) fn break_connection(&mut self, connection: usize) {
        self.connections[connection].broken = true;
        for node in self.connections[connection].ends {
            let delay = self.nodes[node].dice.between(MS, self.plan.redial.1);
            self.at(delay, Event::Lost { node, connection });
        }
    }

    /// Lets what was held back arrive now.
    pub(crate) fn let_go(&mut self) {
        for (connection, to, packet) in std::mem::take(&mut self.held_back) {
            self.arrive(connection, to, packet);
        }
    }
}
