//! A ledger from any bytes. Opening never panics, and gives no record but one that a valid seal covers: the newest one
//! in its own slot, found here by other means. An error leaves the file as it was.
//!
//! The first byte chooses: the rest is the file itself; or it is a list of damages to a good one, since no fuzzer
//! guesses checksums.

use std::path::{Path, PathBuf};

use tiebreak::ids::{Incarnation, Term, Token, VoterId};
use tiebreak::limits::{BLOCK_BYTES, CLUSTERS_MAX, RECORD_BLOCKS};
use tiebreak::message::{GateRecord, Kind, Record, ResourceRecord, WitnessRecord, Word};
use tiebreak::testing::disk::Disk;
use tiebreak::testing::disk::faulty::FaultyDisk;
use tiebreak::testing::ledger::{FILE_NAME, Ledger, LedgerError, Purpose};
use tiebreak::testing::{Replica, Witness, wire};

use super::draw::{CLUSTER, Draw, LIFE, cluster_name, node};

/// Where the fields of a block are; written down again, on purpose.
const RECORD_AT: usize = 36;
const CHECKSUM_AT: usize = BLOCK_BYTES - 4;
const HEADER_BLOCKS: usize = 2;
const PURPOSES: [Purpose; 4] = [Purpose::Witness, Purpose::Replica, Purpose::Gate, Purpose::Gates];

fn directory() -> &'static Path {
    Path::new("/state")
}

fn path() -> PathBuf {
    directory().join(FILE_NAME)
}

pub fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let choice = draw.byte();
    let purpose = PURPOSES[usize::from(choice >> 2) % 4];
    let disk = FaultyDisk::new();
    if choice & 3 == 0 {
        disk.create_directory(directory()).expect("a disk in memory");
        let file = draw.bytes(usize::MAX).to_vec();
        disk.alter(&path(), |bytes| *bytes = file);
    } else {
        made(&disk, purpose, choice >> 4);
        disk.alter(&path(), |file| {
            while !draw.is_over() {
                damage(&mut draw, file);
            }
        });
    }
    for purpose in PURPOSES {
        look(&disk.fork(), purpose);
    }
}

fn record(purpose: Purpose, number: u32) -> Record {
    match purpose {
        Purpose::Witness => Record::Witness(WitnessRecord {
            cluster: CLUSTER,
            promised: Word { term: Term(number), to: Some(VoterId { node: node("a"), incarnation: LIFE }) },
            ..Witness::blank(node("w"), cluster_name(), LIFE)
        }),
        Purpose::Replica => {
            Record::Replica(Replica::init(node("a"), cluster_name(), Kind::Replicated, LIFE, CLUSTER))
        }
        Purpose::Gate => Record::Gate(GateRecord { highest: Token(u64::from(number)) }),
        Purpose::Gates => {
            let resource = format!("r{number}").parse().expect("a name");
            Record::Resource(ResourceRecord { resource, highest: Token(u64::from(number)) })
        }
    }
}

/// A good ledger with two slots of a few generations.
fn made(disk: &FaultyDisk, purpose: Purpose, generations: u8) {
    let first = [record(purpose, 1), record(purpose, 2)];
    Ledger::create(disk, directory(), purpose, Incarnation(5), &first).expect("a disk that works");
    let (mut ledger, records) = Ledger::open(disk, directory(), purpose).expect("it was made");
    for generation in 0..generations {
        let (slot, _) = records[usize::from(generation) % 2];
        ledger.seal(slot, Some(&record(purpose, u32::from(generation) + 3)), ()).map(drop).expect("it works");
        ledger.sync().map(drop).expect("it works");
    }
}

fn damage(draw: &mut Draw<'_>, file: &mut Vec<u8>) {
    let blocks = (file.len() / BLOCK_BYTES).max(1);
    let what = draw.byte();
    let block = usize::from(draw.byte()) % blocks;
    let at = block * BLOCK_BYTES;
    match what % 6 {
        // Some bytes, near the head of a block or anywhere.
        0 | 1 => {
            let offset =
                if what.is_multiple_of(6) { usize::from(draw.byte()) } else { usize::from(draw.short()) };
            let many = usize::from(draw.below(17));
            for (byte, new) in file.iter_mut().skip(at + offset).zip(draw.bytes(many)) {
                *byte = *new;
            }
        }
        2 => file.truncate(at + usize::from(draw.short()) % BLOCK_BYTES),
        3 => {
            let from = usize::from(draw.byte()) % blocks * BLOCK_BYTES;
            if let Some(block) = file.get(from..from + BLOCK_BYTES).map(<[u8]>::to_vec)
                && let Some(to) = file.get_mut(at..at + BLOCK_BYTES)
            {
                to.copy_from_slice(&block);
            }
        }
        4 => file.iter_mut().skip(at).take(BLOCK_BYTES).for_each(|byte| *byte = 0),
        _ => file.extend(std::iter::repeat_n(0, BLOCK_BYTES)),
    }
    // Half of the time the checksum fits all the same: whoever wrote it meant it.
    if what & 0x80 != 0
        && let Some(block) = file.get_mut(at..at + BLOCK_BYTES)
    {
        let checksum = crc32fast::hash(&block[..CHECKSUM_AT]).to_le_bytes();
        block[CHECKSUM_AT..].copy_from_slice(&checksum);
    }
}

fn look(disk: &FaultyDisk, purpose: Purpose) {
    let before = disk.contents(&path()).expect("the file");
    match Ledger::open(disk, directory(), purpose) {
        Ok((mut ledger, records)) => {
            let sealed = sealed(&before, purpose);
            let found: Vec<Record> = records.iter().map(|(_, record)| *record).collect();
            assert_eq!(Some(&found), sealed.as_ref(), "not what the seals cover");
            // It can be used, and what it gave is durable.
            let mut expected = found;
            if let Some((slot, _)) = records.first() {
                expected[0] = record(purpose, 77);
                // A generation that no number follows is not of this world, and a fault of whoever wrote it.
                if newest(&before, 1).is_some_and(|(generation, _)| generation == u64::MAX) {
                    return;
                }
                ledger.seal(*slot, Some(&expected[0]), ()).map(drop).expect("it works");
                ledger.sync().map(drop).expect("it works");
            }
            drop(ledger);
            let (_, again) = Ledger::open(disk, directory(), purpose).expect("it opened before");
            assert_eq!(again.into_iter().map(|(_, record)| record).collect::<Vec<_>>(), expected);
        }
        Err(error) => {
            assert!(!matches!(error, LedgerError::Io { .. }), "the disk works: {error}");
            assert!(error.to_string().contains("/state"), "{error}");
            assert_eq!(disk.contents(&path()).as_ref(), Some(&before), "an error, and the file has changed");
        }
    }
}

/// The records that valid seals cover; `None` if there is no telling.
fn sealed(file: &[u8], purpose: Purpose) -> Option<Vec<Record>> {
    let (_, count) = newest(file, 0)?;
    let count = u32::from_le_bytes(count.try_into().ok()?) as usize;
    assert!(count <= CLUSTERS_MAX);
    (1..=count)
        .map(|slot| {
            let (_, bytes) = newest(file, slot)?;
            let record = wire::decode_record(bytes).ok()?;
            let fits = matches!(
                (purpose, &record),
                (Purpose::Witness, Record::Witness(_))
                    | (Purpose::Replica, Record::Replica(_))
                    | (Purpose::Gate, Record::Gate(_))
                    | (Purpose::Gates, Record::Resource(_))
            );
            fits.then_some(record)
        })
        .collect()
}

/// The incarnation that a sealed header gives the ledger.
fn incarnation(file: &[u8]) -> Option<[u8; 16]> {
    let header =
        |at: usize| file.get(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES).filter(|block| is_sealed(block));
    let fits =
        |block: &&[u8]| block[..8] == *b"tiebreak" && block[8..10] == [1, 0] && (1..=4).contains(&block[10]);
    let block = [header(0), header(1)].into_iter().flatten().find(fits)?;
    block[16..32].try_into().ok()
}

/// Generation and record of the newest sealed copy in a slot.
fn newest(file: &[u8], slot: usize) -> Option<(u64, &[u8])> {
    let ledger = incarnation(file)?;
    let first = HEADER_BLOCKS + slot * RECORD_BLOCKS;
    let copies = (0..RECORD_BLOCKS).filter_map(|at| {
        let block = file.get((first + at) * BLOCK_BYTES..(first + at + 1) * BLOCK_BYTES)?;
        let number = |from: usize| u32::from_le_bytes(block[from..from + 4].try_into().expect("four bytes"));
        let generation = u64::from_le_bytes(block[8..16].try_into().expect("eight bytes"));
        let place = if generation % 2 == 0 { 0 } else { RECORD_BLOCKS / 2 };
        let ours = block[..4] == *b"vote" && number(4) as usize == slot && block[16..32] == ledger;
        let here = place == at / 2 * 2;
        let record = block.get(RECORD_AT..RECORD_AT + number(32) as usize)?;
        (ours && here && is_sealed(block) && RECORD_AT + record.len() <= CHECKSUM_AT)
            .then_some((generation, record))
    });
    copies.max_by_key(|(generation, _)| *generation)
}

fn is_sealed(block: &[u8]) -> bool {
    block[CHECKSUM_AT..] == crc32fast::hash(&block[..CHECKSUM_AT]).to_le_bytes()
}
