//! A world: two replicas, up to two witnesses, what is in flight, and what has to be remembered to tell a violation.

use std::hash::Hasher;

use crate::table::Folded;

/// Bounds of a search. Crashes, links and resyncs are without limit when their number is [`ANY`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// The highest term; the pair begins in term 1.
    pub(crate) terms: u8,
    /// Writes of clients.
    pub(crate) writes: u8,
    /// What else may happen.
    pub(crate) faults: Faults,
    /// Whether the witness waits for a leader after each start.
    pub(crate) strict_boot: bool,
    /// Whether the cluster has no data, and leases of the witness.
    pub(crate) leadership: bool,
    /// The highest ordinal of an adoption: how often one leader may propose a new witness again.
    pub(crate) ordinals: u8,
}

/// How often something may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Faults {
    /// Crashes of replicas.
    pub(crate) crashes: u8,
    /// New links between the replicas, beside those that a crash makes.
    pub(crate) links: u8,
    /// Resyncs that wipe although nothing forces them to.
    pub(crate) resyncs: u8,
    /// Lost disks of the witness: a blank one takes its place.
    pub(crate) lost_witness: u8,
    /// Replaced witnesses: a blank one beside the old one, which lives on and can be reached by anybody.
    pub(crate) replaced_witness: u8,
    /// Lost disks of replicas.
    pub(crate) lost_replica: u8,
    /// Restarts of the witness. (Without `strict_boot` they change nothing that is not lost with a message anyway.)
    pub(crate) restarts: u8,
    /// Restarts of the witness on an earlier record.
    pub(crate) rolled_witness: u8,
}

/// Without limit.
pub(crate) const ANY: u8 = u8::MAX;

impl Faults {
    /// Crashes, new links and wiping copies, as often as you like.
    pub(crate) const ORDINARY: Faults = Faults { crashes: ANY, links: ANY, resyncs: ANY, ..Faults::NONE };
    pub(crate) const NONE: Faults = Faults {
        crashes: 0,
        links: 0,
        resyncs: 0,
        lost_witness: 0,
        replaced_witness: 0,
        lost_replica: 0,
        restarts: 0,
        rolled_witness: 0,
    };

    pub(crate) fn spend(count: &mut u8) {
        if *count != ANY {
            *count -= 1;
        }
    }
}

pub(crate) const TERMS_MAX: usize = 8;
pub(crate) const WRITES_MAX: usize = 4;
const IN_FLIGHT_MAX: usize = 44;

/// What was sent by one replica, or told to it by a witness: numbers of messages with their age, in order.
#[derive(Clone, Copy)]
pub(crate) struct Flight {
    count: u8,
    items: [u16; IN_FLIGHT_MAX],
}

/// On which link a message to the peer travels, as its receiver sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Age {
    /// On the receiver's present link. Messages of the witness always are.
    Present = 0,
    /// On a link that the receiver has not heard of yet.
    Future = 1,
    /// On a link that is over for the receiver.
    Past = 2,
}

pub(crate) fn packed(message: u32, age: Age) -> u16 {
    u16::try_from((message << 2) | age as u32).expect("few kinds of messages within the bounds")
}

pub(crate) fn unpacked(item: u16) -> (u32, Age) {
    let age = match item & 3 {
        0 => Age::Present,
        1 => Age::Future,
        _ => Age::Past,
    };
    (u32::from(item >> 2), age)
}

impl Flight {
    pub(crate) const EMPTY: Flight = Flight { count: 0, items: [0; IN_FLIGHT_MAX] };

    pub(crate) fn items(&self) -> &[u16] {
        &self.items[..usize::from(self.count)]
    }

    pub(crate) fn insert(&mut self, item: u16) {
        let Err(at) = self.items().binary_search(&item) else { return };
        let count = usize::from(self.count);
        assert!(count < IN_FLIGHT_MAX, "few messages in flight within the bounds");
        self.items.copy_within(at..count, at + 1);
        self.items[at] = item;
        self.count += 1;
    }

    /// Keeps some, as they are or changed.
    pub(crate) fn change(&mut self, mut change: impl FnMut(u16) -> Option<u16>) {
        let before = *self;
        self.count = 0;
        for item in before.items() {
            if let Some(item) = change(*item) {
                if self.items().last().is_none_or(|last| *last < item) {
                    self.items[usize::from(self.count)] = item;
                    self.count += 1;
                } else {
                    self.insert(item);
                }
            }
        }
    }
}

/// Who led a term: nobody, or one life of one of the two.
pub(crate) fn leader_mark(side: usize, second_life: bool) -> u8 {
    1 + u8::from(side == 1) + 2 * u8::from(second_life)
}

#[derive(Clone, Copy)]
pub(crate) struct World {
    pub(crate) nodes: [u32; 2],
    /// By number, zero for none: the first witness, and the one that came after it.
    pub(crate) witness: [u16; 2],
    /// The record on which the first witness may start again, once it is chosen; zero for none.
    pub(crate) image: u16,
    /// The newest link is up at both ends (0), or at one end only (1 or 2).
    pub(crate) ahead: u8,
    pub(crate) written: u8,
    /// What was acknowledged, a log by number, and each write's term.
    pub(crate) committed: u16,
    pub(crate) acknowledged: [u8; WRITES_MAX],
    /// Who led each term.
    pub(crate) leaders: [u8; TERMS_MAX],
    pub(crate) left: Faults,
    pub(crate) flight: [Flight; 2],
}

impl World {
    /// Whether one end has a link that the other has not heard of.
    pub(crate) fn is_ahead(&self, side: usize) -> bool {
        usize::from(self.ahead) == side + 1
    }

    /// The same with the two replicas changed over; `witness` is what the witnesses look like then.
    pub(crate) fn turned(&self, witness: [u16; 2], image: u16) -> World {
        let mut turned = *self;
        turned.nodes.swap(0, 1);
        turned.flight.swap(0, 1);
        turned.witness = witness;
        turned.image = image;
        turned.ahead = [0, 2, 1][usize::from(self.ahead)];
        for mark in &mut turned.leaders {
            *mark = [0, 2, 1, 4, 3][usize::from(*mark)];
        }
        turned
    }

    /// Adds the world to `words`, with its length first.
    pub(crate) fn write(&self, words: &mut Vec<u16>) {
        let start = words.len();
        words.push(0);
        let pair = |low: u8, high: u8| u16::from(low) | (u16::from(high) << 8);
        for node in self.nodes {
            words.push((node & 0xffff) as u16);
            words.push((node >> 16) as u16);
        }
        words.extend(self.witness);
        words.push(pair(self.ahead, self.written));
        words.push(self.committed);
        words.push(self.image);
        for two in self.acknowledged.chunks(2) {
            words.push(pair(two[0], two[1]));
        }
        for four in self.leaders.chunks(4) {
            words.push(pair(four[0] | (four[1] << 4), four[2] | (four[3] << 4)));
        }
        let left = &self.left;
        words.push(pair(left.crashes, left.links));
        words.push(pair(left.resyncs, left.lost_witness));
        words.push(pair(left.replaced_witness, left.lost_replica));
        words.push(pair(left.restarts, left.rolled_witness));
        words.push(pair(self.flight[0].count, self.flight[1].count));
        for flight in &self.flight {
            words.extend(flight.items());
        }
        words[start] = u16::try_from(words.len() - start).expect("a world is short");
    }

    /// Reads what `write` wrote at the beginning of `words`; says how long it was.
    pub(crate) fn read(words: &[u16]) -> (World, usize) {
        let halves = |word: u16| word.to_le_bytes();
        let length = usize::from(words[0]);
        let w = &words[1..length];
        let node = |at: usize| u32::from(w[at]) | (u32::from(w[at + 1]) << 16);
        let mut acknowledged = [0; WRITES_MAX];
        for (two, word) in acknowledged.chunks_mut(2).zip(&w[9..11]) {
            two.copy_from_slice(&halves(*word));
        }
        let mut leaders = [0; TERMS_MAX];
        for (four, word) in leaders.chunks_mut(4).zip(&w[11..13]) {
            let [low, high] = halves(*word);
            four.copy_from_slice(&[low & 15, low >> 4, high & 15, high >> 4]);
        }
        let [
            [crashes, links],
            [resyncs, lost_witness],
            [replaced_witness, lost_replica],
            [restarts, rolled_witness],
        ] = [13, 14, 15, 16].map(|at| halves(w[at]));
        let counts = halves(w[17]);
        let mut flight = [Flight::EMPTY; 2];
        let mut at = 18;
        for (flight, count) in flight.iter_mut().zip(counts) {
            let end = at + usize::from(count);
            flight.count = count;
            flight.items[..usize::from(count)].copy_from_slice(&w[at..end]);
            at = end;
        }
        let [ahead, written] = halves(w[6]);
        let world = World {
            nodes: [node(0), node(2)],
            witness: [w[4], w[5]],
            ahead,
            written,
            committed: w[7],
            image: w[8],
            acknowledged,
            leaders,
            left: Faults {
                crashes,
                links,
                resyncs,
                lost_witness,
                replaced_witness,
                lost_replica,
                restarts,
                rolled_witness,
            },
            flight,
        };
        (world, length)
    }
}

/// Ninety-six bits of a hash in two independent lanes. At a thousand million states a clash anywhere has a chance of
/// about one in a hundred thousand million.
pub(crate) fn fingerprint(words: &[u16]) -> [u32; 3] {
    let (mut low, mut high) = (Folded::default(), 0x243f_6a88_85a3_08d3_u64);
    for four in words.chunks(4) {
        let mut word = 0;
        for part in four {
            word = (word << 16) | u64::from(*part);
        }
        low.write_u64(word);
        high = (high.rotate_left(29) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        high ^= high >> 32;
    }
    low.write_u64(words.len() as u64);
    high = high.wrapping_mul(0xff51_afd7_ed55_8ccd);
    let low = low.finish();
    #[allow(clippy::cast_possible_truncation, reason = "halves are meant")]
    let halves = [low as u32, (low >> 32) as u32, (high >> 32) as u32];
    halves
}
