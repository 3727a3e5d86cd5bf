//! Connections between nodes, and what can go wrong with them.

use std::collections::BTreeMap;

use tiebreak::ids::{LinkId, Term, VoterId};
use tiebreak::message::{Reply, Request, Sender};

use super::data::Body;

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
