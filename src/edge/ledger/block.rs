//! One slot of the ledger: four blocks, and the rule that finds the vote in them.
//!
//! A slot has two *places* of two *copies*. Generation *g* of its record lies in both copies of place *g mod 2*,
//! so a new record goes over the older generation and never touches the present one. A copy is **readable**
//! when its block can be read, its checksum holds, and it belongs to this ledger, this slot and this place.
//!
//! Which record a slot holds, in terms of the newest generation N of which any copy is readable:
//!
//! | readable copies of N | the other place | the slot holds | because |
//! |---|---|---|---|
//! | 2 | two of N−1 | N | the ordinary case |
//! | 2 | one of N−1 | N | N+1 was in flight, or one bad block: nothing acknowledged is in doubt |
//! | 2 | none | N | N+1 was in flight and both copies tore (or N is the first generation) |
//! | 1 | two of N−1 | N | N was in flight, or one bad block: N may have been acknowledged, so it counts |
//! | 1 | one or none | N | as above with a second bad block; N counts all the same |
//! | 2 that differ | any | *lost* | cannot come from a crash: two ledgers were mixed, or the file was edited |
//! | 0 | — | *lost* | no copy of any generation is readable: never *zero* |
//!
//! What this survives: one crash, and besides one bad block per slot. What it cannot tell: both copies of an
//! acknowledged N turned bad at rest look like N in flight, and N−1 is found. Two bad blocks are outside of the
//! promise of §3; the voters' memory of each other (§7) is the net for it.
//!
//! A record that was found in one copy is written to the other one before it is trusted. And what is not readable
//! in the other place is blanked: a sector that fails to be read today and not tomorrow must not bring back a
//! generation in flight that was given up, and whose number was given to another record.

use crate::ids::Incarnation;
use crate::limits::{BLOCK_BYTES, RECORD_BLOCKS, RECORD_BYTES_MAX};

/// Copies of one generation, each in a block of its own.
pub(super) const COPIES: usize = 2;
const _: () = assert!(RECORD_BLOCKS == 2 * COPIES, "two generations");

/// Marks a block of a slot.
const MAGIC: [u8; 4] = *b"vote";
// Fields of a block, in bytes from its beginning; little endian.
const SLOT: usize = 4;
const GENERATION: usize = 8;
const LEDGER: usize = 16;
const LENGTH: usize = 32;
const RECORD: usize = 36;
/// CRC-32 over everything before it.
const CHECKSUM: usize = BLOCK_BYTES - 4;
const _: () = assert!(RECORD + RECORD_BYTES_MAX <= CHECKSUM);

/// The place of a generation, counted in blocks from the beginning of the slot.
pub(super) fn place(generation: u64) -> usize {
    if generation.is_multiple_of(2) { 0 } else { COPIES }
}

/// Writes the checksum at the end of a block.
pub(super) fn seal(block: &mut [u8]) {
    let checksum = crc32fast::hash(&block[..CHECKSUM]);
    block[CHECKSUM..BLOCK_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

/// Whether the checksum at the end of a block holds.
pub(super) fn is_sealed(block: &[u8]) -> bool {
    block.len() == BLOCK_BYTES && field(block, CHECKSUM) == crc32fast::hash(&block[..CHECKSUM]).to_le_bytes()
}

/// The bytes of a field.
pub(super) fn field<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    block[at..at + N].try_into().expect("a field has as many bytes as were cut out")
}

/// One copy of a record, as it stands on disk.
pub(super) fn encode(ledger: Incarnation, slot: u32, generation: u64, record: &[u8]) -> Vec<u8> {
    let length = u32::try_from(record.len()).expect("a record is short");
    assert!(record.len() <= RECORD_BYTES_MAX, "every record fits its block");
    let mut block = vec![0; BLOCK_BYTES];
    block[..SLOT].copy_from_slice(&MAGIC);
    block[SLOT..GENERATION].copy_from_slice(&slot.to_le_bytes());
    block[GENERATION..LEDGER].copy_from_slice(&generation.to_le_bytes());
    block[LEDGER..LENGTH].copy_from_slice(&ledger.0.to_le_bytes());
    block[LENGTH..RECORD].copy_from_slice(&length.to_le_bytes());
    block[RECORD..RECORD + record.len()].copy_from_slice(record);
    seal(&mut block);
    block
}

/// A readable copy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Readable {
    generation: u64,
    record: Vec<u8>,
}

fn decode(ledger: Incarnation, slot: u32, at: usize, block: &[u8]) -> Option<Readable> {
    let generation = u64::from_le_bytes(field(block, GENERATION));
    let ours = block[..SLOT] == MAGIC
        && field(block, SLOT) == slot.to_le_bytes()
        && field(block, LEDGER) == ledger.0.to_le_bytes()
        && place(generation) == at / COPIES * COPIES;
    if !ours || !is_sealed(block) {
        return None;
    }
    let length = usize::try_from(u32::from_le_bytes(field(block, LENGTH))).ok()?;
    let record = block[RECORD..CHECKSUM].get(..length)?.to_vec();
    Some(Readable { generation, record })
}

/// What a slot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The newest generation.
    pub(super) generation: u64,
    /// The bytes of its record.
    pub(super) record: Vec<u8>,
    /// The copy that is not readable, if there is one.
    pub(super) bad_copy: Option<usize>,
    /// The blocks of the other place that are neither readable nor blank.
    pub(super) spoilt: Vec<usize>,
}

fn is_blank(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Finds the record in the four blocks of a slot; `None` for a block that could not be read at all.
pub(super) fn find(
    ledger: Incarnation,
    slot: u32,
    blocks: [Option<&[u8]>; RECORD_BLOCKS],
) -> Result<Found, &'static str> {
    let mut copies = [const { None }; RECORD_BLOCKS];
    for (at, block) in blocks.into_iter().enumerate() {
        copies[at] = block.and_then(|block| decode(ledger, slot, at, block));
    }
    let newest = copies.iter().flatten().map(|copy| copy.generation).max();
    let generation = newest.ok_or("no copy of any generation is readable")?;
    let at = place(generation);
    let readable = |copy: usize| copies[at + copy].as_ref().filter(|copy| copy.generation == generation);
    let (record, bad_copy) = match (readable(0), readable(1)) {
        (Some(first), Some(second)) if first == second => (first, None),
        (Some(_), Some(_)) => return Err("two copies of one generation differ"),
        (Some(first), None) => (first, Some(1)),
        (None, Some(second)) => (second, Some(0)),
        (None, None) => unreachable!("the newest generation was found in one of its copies"),
    };
    let other = place(generation + 1);
    let is_spoilt = |at: &usize| copies[*at].is_none() && blocks[*at].is_none_or(|block| !is_blank(block));
    let spoilt = (other..other + COPIES).filter(is_spoilt).collect();
    Ok(Found { generation, record: record.record.clone(), bad_copy, spoilt })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEDGER: Incarnation = Incarnation(7);
    const NEWEST: u64 = 10;

    /// Every combination of what the four blocks can be.
    #[test]
    fn the_newest_generation_with_a_readable_copy_counts_in_every_combination() {
        // Generation of the copy, or `None` for one that is not readable.
        let present = [Some(NEWEST), Some(NEWEST - 2), None];
        let other = [Some(NEWEST - 1), Some(NEWEST + 1), Some(NEWEST - 3), None];
        let mut seen = 0;
        for (a, b) in present.iter().flat_map(|a| present.iter().map(move |b| (*a, *b))) {
            for (c, d) in other.iter().flat_map(|c| other.iter().map(move |d| (*c, *d))) {
                let generations = [a, b, c, d];
                let blocks = generations.map(|g| match g {
                    Some(generation) => encode(LEDGER, 3, generation, &generation.to_le_bytes()),
                    None => vec![0; BLOCK_BYTES],
                });
                let found = find(LEDGER, 3, [0, 1, 2, 3].map(|at| Some(&blocks[at][..])));
                match generations.into_iter().flatten().max() {
                    None => assert!(found.is_err()),
                    Some(newest) => {
                        let found = found.unwrap();
                        assert_eq!(found.generation, newest);
                        assert_eq!(found.record, newest.to_le_bytes());
                        let copies = generations.iter().filter(|g| **g == Some(newest)).count();
                        assert_eq!(found.bad_copy.is_some(), copies == 1);
                        if let Some(bad) = found.bad_copy {
                            assert_ne!(generations[place(newest) + bad], Some(newest));
                        }
                    }
                }
                seen += 1;
            }
        }
        assert_eq!(seen, 9 * 16);
    }

    #[test]
    fn a_copy_of_another_ledger_slot_or_place_is_not_readable() {
        let block = encode(LEDGER, 3, 4, b"x");
        let look = |ledger, slot, at: usize| {
            let mut blocks = [None; RECORD_BLOCKS];
            blocks[at] = Some(&block[..]);
            find(ledger, slot, blocks)
        };
        assert!(look(LEDGER, 3, 0).is_ok());
        assert!(look(LEDGER, 3, 1).is_ok());
        assert!(look(LEDGER, 3, 2).is_err());
        assert!(look(LEDGER, 4, 0).is_err());
        assert!(look(Incarnation(8), 3, 0).is_err());
    }

    #[test]
    fn two_different_copies_of_one_generation_are_a_loss() {
        let (a, b) = (encode(LEDGER, 0, 2, b"a"), encode(LEDGER, 0, 2, b"b"));
        assert!(find(LEDGER, 0, [Some(&a), Some(&b), None, None]).is_err());
    }

    #[test]
    fn any_changed_bit_makes_a_copy_unreadable() {
        let block = encode(LEDGER, 0, 2, b"record");
        for bit in 0..BLOCK_BYTES * 8 {
            let mut changed = block.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(find(LEDGER, 0, [Some(&changed), None, None, None]).is_err(), "bit {bit}");
        }
    }
}
