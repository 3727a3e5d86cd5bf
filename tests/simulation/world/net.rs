//! The network: connections between nodes, what travels on them, and what can go wrong with that.
//!
//! A replica dials the witness, and either one or both replicas dial the other, as the plan says. When both dial, both
//! ends settle on the connection that the first in the order of names has made, by the rules of `src/client`.

use std::collections::BTreeMap;

use tiebreak::ids::{LinkId, Term, VoterId};
use tiebreak::message::{Part, Refusal, Reply, Request, Sender};
use tiebreak::testing::Input;

use super::data::Body;
use super::node::Work;
use super::{A, Event, W, World};

/// One message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Packet {
    Ask {
        sender: Sender,
        request: Request,
    },
    Answer {
        sender: Sender,
        reply: Reply,
    },
    /// Numbered per connection and direction, so that it is read in order.
    Data {
        number: u64,
        term: Term,
        body: Body,
    },
}

impl Packet {
    /// Lease traffic goes by datagram and may be lost; the rest is repeated until the connection ends.
    pub(crate) fn is_datagram(&self) -> bool {
        matches!(
            self,
            Packet::Ask { request: Request::Renew { .. }, .. }
                | Packet::Answer { reply: Reply::Renewed { .. }, .. }
        )
    }
}

impl Packet {
    fn greets(&self) -> bool {
        matches!(
            self,
            Packet::Ask { request: Request::Hello(_), .. } | Packet::Answer { reply: Reply::Hello(_), .. }
        )
    }
}

/// A connection. Its number is the `LinkId` at both ends.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// Dialler and listener.
    pub(crate) ends: [usize; 2],
    /// Which run of each process it belongs to.
    pub(crate) runs: [u64; 2],
    /// Who was at each end.
    pub(crate) lives: [VoterId; 2],
    /// Which ends have been told that it is over.
    pub(crate) closed: [bool; 2],
    /// Nothing new gets through; what is on the way may still arrive.
    pub(crate) broken: bool,
    /// The dialler's `Hello` was answered. Until then the dialler's shell lets nothing else in: what the listener
    /// says may overtake its `Hello`.
    pub(crate) greeted: bool,
    /// What came too early for that.
    pub(crate) ungreeted: Vec<Packet>,
    /// Data that was sent, per sender.
    pub(crate) sent: [u64; 2],
    /// Data that was read, per sender.
    pub(crate) read: [u64; 2],
    /// Data that overtook other data, per sender.
    pub(crate) early: [BTreeMap<u64, Packet>; 2],
}

impl Connection {
    pub(crate) fn end(&self, node: usize) -> usize {
        usize::from(self.ends[1] == node)
    }

    pub(crate) fn other(&self, node: usize) -> usize {
        self.ends[1 - self.end(node)]
    }
}

pub(crate) fn link(connection: usize) -> LinkId {
    LinkId(connection as u64)
}

/// How one direction behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) loss_per_mille: u64,
    pub(crate) twice_per_mille: u64,
    pub(crate) cut: bool,
    /// Counts cuts, so that a time-out knows whether it is still about the same one.
    pub(crate) cuts: u64,
}

// The network.
impl World {
    pub(super) fn dial(&mut self, from: usize, to: usize, run: u64) {
        let n = &self.nodes[from];
        if n.run != run {
            return;
        }
        // Which witness that is may have been configured anew.
        let to = if to < W { to } else { n.witness };
        let live = n.live_link(Part::Replica).is_some_and(|live| {
            // Its voter may not have been told yet that it is over.
            let c = &self.connections[live];
            !c.closed[c.end(from)]
        });
        if self.plan.both_dial && to < W && (live || n.dialling.is_some()) {
            // It is dialled again when that connection is over.
            return;
        }
        let cut = self.edges[from][to].cut || self.edges[to][from].cut;
        let deaf = !self.nodes[to].up || (self.plan.both_dial && self.nodes[to].paused);
        if cut || deaf || n.paused {
            self.dial_later(from, to, run);
            return;
        }
        let connection = self.connections.len();
        self.connections.push(Connection {
            ends: [from, to],
            runs: [run, self.nodes[to].run],
            lives: [self.nodes[from].id(), self.nodes[to].id()],
            closed: [false; 2],
            broken: false,
            greeted: false,
            ungreeted: Vec::new(),
            sent: [0; 2],
            read: [0; 2],
            early: Default::default(),
        });
        if to < W {
            self.nodes[from].dialling = Some(connection);
        }
        self.nodes[from].queue.push_back(Work::SayHello { connection });
        self.work(from);
    }

    fn dial_later(&mut self, from: usize, to: usize, run: u64) {
        let pause = self.nodes[from].dice.between(self.plan.redial.0, self.plan.redial.1);
        self.at(pause, Event::Dial { from, to, run });
    }

    pub(super) fn lost(&mut self, node: usize, connection: usize) {
        let c = &mut self.connections[connection];
        let end = c.end(node);
        let (run, dialled, other) = (c.runs[end], end == 0, c.other(node));
        if c.closed[end] || self.nodes[node].run != run {
            return;
        }
        c.closed[end] = true;
        if self.nodes[node].dialling == Some(connection) {
            self.nodes[node].dialling = None;
        }
        if node < W {
            self.nodes[node].queue.push_back(Work::Input(Input::LinkDown(link(connection))));
        } else {
            self.nodes[node].queue.push_back(Work::Over { connection });
        }
        self.work(node);
        if dialled || (node < W && other < W && self.plan.both_dial) {
            let to = if other >= W { self.nodes[node].witness } else { other };
            self.dial_later(node, to, run);
        }
    }

    /// Two replicas that dial at once keep the connection of the first in the order of names.
    pub(super) fn crosses(&self, listener: usize) -> bool {
        let n = &self.nodes[listener];
        self.plan.both_dial && listener == A && n.dialling.is_some() && n.live_link(Part::Replica).is_none()
    }

    /// A greeting was answered. Whether the connection becomes a link.
    fn greeted(&mut self, connection: usize, to: usize, packet: &Packet) -> bool {
        if self.nodes[to].dialling == Some(connection) {
            self.nodes[to].dialling = None;
        }
        let by = if self.connections[connection].other(to) >= W { Part::Witness } else { Part::Replica };
        let other_is_used = self.nodes[to].live_link(Part::Replica).is_some() && to != A;
        if let Packet::Answer { sender, reply: Reply::Refused(refusal) } = packet {
            if *refusal != Refusal::Crossing {
                let input = Input::NotGreeted { part: by, by: sender.voter, refusal: *refusal };
                self.nodes[to].queue.push_back(Work::Input(input));
            }
            self.break_connection(connection);
            return false;
        }
        if self.plan.both_dial && by == Part::Replica && other_is_used {
            self.break_connection(connection);
            return false;
        }
        true
    }

    pub(super) fn send(&mut self, connection: usize, from: usize, packet: Packet) {
        let c = &self.connections[connection];
        let to = c.other(from);
        if c.broken || c.closed[c.end(from)] || c.runs[c.end(from)] != self.nodes[from].run {
            return;
        }
        if self.hold.is_some_and(|hold| hold(from, to, &packet)) {
            self.held_back.push((connection, to, packet));
            return;
        }
        let edge = self.edges[from][to];
        let dice = &mut self.edge_dice[from][to];
        if edge.cut || dice.per_mille(edge.loss_per_mille) {
            if !packet.is_datagram() {
                let after = self.plan.repeat_after;
                let packet = self.keep(packet);
                self.at(after, Event::Repeat { connection, from, packet });
            }
            return;
        }
        let delay = dice.between(edge.low, edge.high);
        if dice.per_mille(edge.twice_per_mille) {
            let again = dice.between(edge.low, edge.high * 4);
            let packet = self.keep(packet.clone());
            self.at(again, Event::Arrive { connection, to, packet });
        }
        let packet = self.keep(packet);
        self.at(delay, Event::Arrive { connection, to, packet });
    }

    /// Puts a packet by until its event takes it.
    fn keep(&mut self, packet: Packet) -> usize {
        if let Some(place) = self.free.pop() {
            self.packets[place] = Some(packet);
            return place;
        }
        self.packets.push(Some(packet));
        self.packets.len() - 1
    }

    pub(super) fn taken_packet(&mut self, place: usize) -> Packet {
        self.free.push(place);
        self.packets[place].take().expect("a packet belongs to one event")
    }

    pub(super) fn arrive(&mut self, connection: usize, to: usize, packet: Packet) {
        let c = &self.connections[connection];
        if c.runs[c.end(to)] != self.nodes[to].run || !self.nodes[to].up {
            return;
        }
        if c.broken && !self.nodes[to].dice.per_mille(self.plan.late_per_mille) {
            return;
        }
        if self.nodes[to].asleep {
            // Nobody is there; the transport tries again, but not with datagrams.
            if !packet.is_datagram() {
                let after = self.plan.repeat_after;
                let packet = self.keep(packet);
                self.at(after, Event::Arrive { connection, to, packet });
            }
            return;
        }
        // A link that is over is not opened again by a late greeting: that much the shell sees to.
        if packet.greets() && c.closed[c.end(to)] {
            return;
        }
        if c.end(to) == 0 && !c.greeted && !c.broken {
            let c = &mut self.connections[connection];
            if !matches!(packet, Packet::Answer { reply: Reply::Hello(_) | Reply::Refused(_), .. }) {
                c.ungreeted.push(packet);
                return;
            }
            c.greeted = true;
            let early = std::mem::take(&mut c.ungreeted);
            if !self.greeted(connection, to, &packet) {
                self.tick(to);
                return;
            }
            self.enqueue(connection, to, packet);
            for packet in early {
                self.arrive(connection, to, packet);
            }
            self.work(to);
            return;
        }
        if let Packet::Data { number, .. } = &packet
            && !c.broken
        {
            let c = &mut self.connections[connection];
            let end = 1 - c.end(to);
            if *number < c.read[end] {
                return;
            }
            c.early[end].insert(*number, packet);
            while let Some(packet) = self.next_data(connection, end) {
                self.enqueue(connection, to, packet);
            }
        } else {
            self.enqueue(connection, to, packet);
        }
        self.work(to);
    }

    fn next_data(&mut self, connection: usize, end: usize) -> Option<Packet> {
        let c = &mut self.connections[connection];
        let packet = c.early[end].remove(&c.read[end])?;
        c.read[end] += 1;
        Some(packet)
    }

    fn enqueue(&mut self, connection: usize, to: usize, packet: Packet) {
        self.mark(&(to, &packet));
        let c = &self.connections[connection];
        let part = if c.other(to) >= W { Part::Witness } else { Part::Replica };
        let work = match packet {
            Packet::Ask { sender, request } if to >= W => Work::Requested { connection, sender, request },
            Packet::Ask { sender, request } => {
                Work::Input(Input::Asked { link: link(connection), from: sender, request })
            }
            Packet::Answer { sender, reply } => {
                Work::Input(Input::Answered { link: link(connection), part, from: sender, reply })
            }
            Packet::Data { term, body, .. } => Work::Data { connection, term, body },
        };
        self.nodes[to].queue.push_back(work);
    }

    /// For directed scripts: a message that nobody sent just now.
    pub(crate) fn forge(&mut self, connection: usize, to: usize, packet: Packet) {
        let (broken, late) = (self.connections[connection].broken, self.plan.late_per_mille);
        self.plan.late_per_mille = if broken { 1000 } else { late };
        self.arrive(connection, to, packet);
        self.plan.late_per_mille = late;
    }
}
