//! The file of a ledger as a whole: where its parts are, how a new one looks, how one that may be anything is
//! read, and how bad copies are written again.

use std::io;
use std::path::Path;

use super::block::{self, COPIES, Found};
use super::{LedgerError, Purpose, failed};
use crate::edge::disk::DiskFile;
use crate::ids::Incarnation;
use crate::limits::{BLOCK_BYTES, CLUSTERS_MAX, RECORD_BLOCKS};
use crate::message::Record;
use crate::wire;

/// The format written and read here.
const FORMAT: u16 = 1;
const MAGIC: [u8; 8] = *b"tiebreak";
// Fields of the header, in bytes from its beginning; little endian. Magic, format and the checksum at the end of
// the block stay where they are in every format.
const HEADER_FORMAT: usize = 8;
const HEADER_PURPOSE: usize = 10;
const HEADER_LEDGER: usize = 16;
const HEADER_BLOCKS: usize = 2;

pub(super) const SLOT_BYTES: usize = RECORD_BLOCKS * BLOCK_BYTES;
/// The slot that says how many slots count.
pub(super) const COUNT_SLOT: u32 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) purpose: Purpose,
    pub(super) incarnation: Incarnation,
    /// The copy that has to be written again.
    bad_copy: Option<usize>,
}

impl Header {
    fn encode(self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        block[..HEADER_FORMAT].copy_from_slice(&MAGIC);
        block[HEADER_FORMAT..HEADER_PURPOSE].copy_from_slice(&FORMAT.to_le_bytes());
        block[HEADER_PURPOSE] = self.purpose.code();
        block[HEADER_LEDGER..HEADER_LEDGER + 16].copy_from_slice(&self.incarnation.0.to_le_bytes());
        block::seal(&mut block);
        block
    }

    fn decode(block: &[u8]) -> Option<Header> {
        let ours =
            block[..HEADER_FORMAT] == MAGIC && block::field(block, HEADER_FORMAT) == FORMAT.to_le_bytes();
        if !ours || !block::is_sealed(block) {
            return None;
        }
        let purpose = Purpose::ALL.into_iter().find(|purpose| purpose.code() == block[HEADER_PURPOSE])?;
        let incarnation = Incarnation(u128::from_le_bytes(block::field(block, HEADER_LEDGER)));
        Some(Header { purpose, incarnation, bad_copy: None })
    }
}

/// Reads a ledger that may be anything.
pub(super) struct Reader<'a> {
    pub(super) file: &'a dyn DiskFile,
    pub(super) path: &'a Path,
}

impl Reader<'_> {
    pub(super) fn header(&self) -> Result<Header, LedgerError> {
        let path = || self.path.to_owned();
        let length = self.length()?;
        let parts = [0, 1].map(|at| self.part_of_block(at));
        let strange = parts.iter().all(|part| part.as_ref().is_ok_and(|part| !part.starts_with(&MAGIC)));
        if strange && length != 0 {
            return Err(LedgerError::Foreign { path: path() });
        }
        self.check_length(slot_offset(COUNT_SLOT))?;
        let blocks = parts.map(|part| part.ok().filter(|part| part.len() == BLOCK_BYTES));
        match blocks.each_ref().map(|block| block.as_deref().and_then(Header::decode)) {
            [Some(first), Some(second)] if first == second => Ok(first),
            [Some(first), None] => Ok(Header { bad_copy: Some(1), ..first }),
            [None, Some(second)] => Ok(Header { bad_copy: Some(0), ..second }),
            [Some(_), Some(_)] => Err(LedgerError::Damaged { path: path() }),
            [None, None] => {
                let formats = blocks.iter().flatten().filter(|block| block::is_sealed(block));
                match formats.map(|block| u16::from_le_bytes(block::field(block, HEADER_FORMAT))).next() {
                    Some(found) if found != FORMAT => {
                        Err(LedgerError::Newer { path: path(), found, known: FORMAT })
                    }
                    _ => Err(LedgerError::Damaged { path: path() }),
                }
            }
        }
    }

    pub(super) fn slot(&self, ledger: Incarnation, slot: u32) -> Result<Found, LedgerError> {
        self.check_length(slot_offset(slot + 1))?;
        let mut whole = vec![0; SLOT_BYTES];
        let blocks = match self.file.read_at(&mut whole, slot_offset(slot)) {
            Ok(SLOT_BYTES) => whole.chunks_exact(BLOCK_BYTES).map(|block| Some(block.to_vec())).collect(),
            // One bad block fails the read of all four.
            _ => {
                let first = HEADER_BLOCKS + slot as usize * RECORD_BLOCKS;
                (first..first + RECORD_BLOCKS).map(|at| self.block(at)).collect::<Vec<_>>()
            }
        };
        let blocks = [0, 1, 2, 3].map(|at| blocks[at].as_deref());
        block::find(ledger, slot, blocks).map_err(|cause| self.lost(slot, cause))
    }

    /// A block; `None` if it cannot be read, which is what a copy beside it is for.
    fn block(&self, at: usize) -> Option<Vec<u8>> {
        self.part_of_block(at).ok().filter(|part| part.len() == BLOCK_BYTES)
    }

    /// A block, or as much of it as the file has.
    fn part_of_block(&self, at: usize) -> io::Result<Vec<u8>> {
        let mut block = vec![0; BLOCK_BYTES];
        let bytes = self.file.read_at(&mut block, (at * BLOCK_BYTES) as u64)?;
        block.truncate(bytes);
        Ok(block)
    }

    pub(super) fn check_length(&self, expected: u64) -> Result<(), LedgerError> {
        let found = self.length()?;
        if found < expected {
            return Err(LedgerError::Short { path: self.path.to_owned(), found, expected });
        }
        Ok(())
    }

    fn length(&self) -> Result<u64, LedgerError> {
        self.file.length().map_err(failed("measure", self.path))
    }

    pub(super) fn lost(&self, slot: u32, cause: impl ToString) -> LedgerError {
        LedgerError::Lost { path: self.path.to_owned(), slot, cause: cause.to_string() }
    }
}

/// Says which copies are not readable, before they are written again: nobody else will ever know. A crash within a
/// write leaves one, and so does a disk that begins to die; only repetition tells them apart.
pub(super) fn warn(path: &Path, header: &Header, found: &[Found]) {
    let warn = |what: &str, copy: String, block: usize| {
        tracing::warn!(
            file = %path.display(), %copy, block,
            "{what} is damaged; another copy is whole, so nothing is lost, and this one is mended. Nothing to \
             do if it happens once, as after a power cut; if it happens again, the disk or memory card is dying: \
             replace it"
        );
    };
    if let Some(copy) = header.bad_copy {
        warn("a copy of the header", format!("{} of {HEADER_BLOCKS}", copy + 1), copy);
    }
    for (slot, raw) in (0..).zip(found) {
        let what =
            if slot == COUNT_SLOT { "the count of slots".into() } else { format!("the vote in slot {slot}") };
        let first = HEADER_BLOCKS + slot as usize * RECORD_BLOCKS;
        if let Some(copy) = raw.bad_copy {
            let at = block::place(raw.generation) + copy;
            warn(&format!("a copy of {what}"), format!("{} of {COPIES}", copy + 1), first + at);
        }
        if let [one, other] = raw.spoilt[..] {
            tracing::warn!(
                file = %path.display(), blocks = %format_args!("{} and {}", first + one, first + other),
                "both copies of one generation of {what} are damaged, and the other generation is used. After a power \
                 cut nothing is lost: nobody was told of a write that it interrupted. Without one, the newest vote may \
                 be gone and the disk is dying: stop this node, replace the disk, move the file away and run \
                 `tiebreak replace`, and a leader will take this node in"
            );
            continue;
        }
        for at in &raw.spoilt {
            let copy = format!("{} of {COPIES}, of the other generation", at % COPIES + 1);
            warn(&format!("a copy of {what}"), copy, first + at);
        }
    }
}

/// Writes the copies that are not readable, and only those, so that nothing is left that may be read in another
/// way the next time.
pub(super) fn repair(file: &dyn DiskFile, header: &Header, found: &[Found]) -> io::Result<()> {
    let mut repairs = Vec::new();
    if let Some(copy) = header.bad_copy {
        repairs.push(((copy * BLOCK_BYTES) as u64, header.encode()));
    }
    for (slot, raw) in (0..).zip(found) {
        if let Some(copy) = raw.bad_copy {
            let block = block::encode(header.incarnation, slot, raw.generation, &raw.record);
            repairs.push((block_offset(slot, block::place(raw.generation) + copy), block));
        }
        repairs.extend(raw.spoilt.iter().map(|at| (block_offset(slot, *at), vec![0; BLOCK_BYTES])));
    }
    for (offset, block) in &repairs {
        file.write_at(block, *offset)?;
    }
    if repairs.is_empty() { Ok(()) } else { file.sync() }
}

/// The whole file of a new ledger.
pub(super) fn image(purpose: Purpose, incarnation: Incarnation, records: &[Record]) -> Vec<u8> {
    assert!(records.len() <= CLUSTERS_MAX, "no more records than slots");
    let count = u32::try_from(records.len()).expect("CLUSTERS_MAX slots are numbered by 32 bits");
    let mut image = Header { purpose, incarnation, bad_copy: None }.encode().repeat(HEADER_BLOCKS);
    let records = records.iter().map(|record| {
        assert_eq!(Purpose::of(record), purpose, "a ledger keeps the records of one part");
        wire::encode_record(record)
    });
    for (slot, record) in (0..).zip(std::iter::once(count.to_le_bytes().to_vec()).chain(records)) {
        // The first generation is 1, and its place is the second one.
        image.resize(image.len() + COPIES * BLOCK_BYTES, 0);
        image.extend(block::encode(incarnation, slot, 1, &record).repeat(COPIES));
    }
    image
}

pub(super) fn decode_count(record: &[u8]) -> Option<u32> {
    let count = u32::from_le_bytes(record.try_into().ok()?);
    (count as usize <= CLUSTERS_MAX).then_some(count)
}

pub(super) fn block_offset(slot: u32, block: usize) -> u64 {
    ((HEADER_BLOCKS + slot as usize * RECORD_BLOCKS + block) * BLOCK_BYTES) as u64
}

pub(super) fn slot_offset(slot: u32) -> u64 {
    block_offset(slot, 0)
}
