//! What is no ledger, or not the right one: refused, and left as it was.

use super::*;

/// Opening fails, says where and what to do, and leaves the file as it was.
#[test]
fn an_absent_or_emptied_directory_is_an_error_and_not_a_new_start() {
    let disk = FaultyDisk::new();
    assert!(matches!(refuses(&disk, &["never initialised", "init --blank"]), LedgerError::Missing { .. }));
    disk.create_directory(directory()).unwrap();
    assert!(matches!(refuses(&disk, &["no ledger"]), LedgerError::Missing { .. }));
    let (disk, ledger, _) = ledger_at(3);
    drop(ledger);
    disk.remove(&path()).unwrap();
    assert!(matches!(refuses(&disk, &["wiped"]), LedgerError::Missing { .. }));
}

#[test]
fn a_ledger_cut_off_at_any_length_is_refused() {
    let (disk, ledger, _) = ledger_at(3);
    drop(ledger);
    let length = disk.contents(&path()).unwrap().len();
    for cut in (0..100).chain((100..length).step_by(509)).chain(length - 100..length) {
        let disk = disk.fork();
        disk.alter(&path(), |bytes| bytes.truncate(cut));
        match refuses(&disk, &[]) {
            // Less than its first word is left.
            LedgerError::Foreign { .. } => assert!((1..8).contains(&cut)),
            LedgerError::Short { found, .. } => assert_eq!(found, cut as u64),
            other => panic!("cut at {cut}: {other}"),
        }
    }
    disk.alter(&path(), |bytes| bytes.truncate(0));
    assert!(matches!(refuses(&disk, &["cut off"]), LedgerError::Short { found: 0, .. }));
}

#[test]
fn a_file_of_something_else_is_refused_and_never_written() {
    for contents in [&b"# a text"[..], &[0; 3 * BLOCK_BYTES], &[0xff; 100_000]] {
        let disk = FaultyDisk::new();
        disk.create_directory(directory()).unwrap();
        disk.alter(&path(), |bytes| *bytes = contents.to_vec());
        assert!(matches!(refuses(&disk, &["not a ledger"]), LedgerError::Foreign { .. }));
        assert!(matches!(create(&disk, &[]), Err(LedgerError::Exists { .. })));
        assert_eq!(disk.contents(&path()).unwrap(), contents);
    }
}

#[test]
fn a_newer_format_is_refused_with_both_numbers() {
    let (disk, ledger, _) = ledger_at(2);
    drop(ledger);
    disk.alter(&path(), |bytes| {
        for header in bytes.chunks_mut(BLOCK_BYTES).take(2) {
            header[8] = 2;
            let checksum = crc32fast::hash(&header[..BLOCK_BYTES - 4]);
            header[BLOCK_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        }
    });
    let error = refuses(&disk, &["format 2", "reads 1", "later release"]);
    assert!(matches!(error, LedgerError::Newer { found: 2, known: 1, .. }));
}

#[test]
fn a_damaged_header_is_refused_in_both_copies_and_repaired_in_one() {
    let (disk, ledger, _) = ledger_at(2);
    drop(ledger);
    let whole = disk.contents(&path()).unwrap();
    for bit in (0..BLOCK_BYTES * 8).step_by(61) {
        for copy in [0, 1] {
            let disk = disk.fork();
            disk.alter(&path(), |bytes| bytes[copy * BLOCK_BYTES + bit / 8] ^= 1 << (bit % 8));
            assert_eq!(terms(&disk), [2]);
            assert_eq!(disk.contents(&path()).unwrap(), whole, "repaired");
        }
        let disk = disk.fork();
        disk.alter(&path(), |bytes| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes[BLOCK_BYTES + bit / 8] ^= 1 << (bit % 8);
        });
        let error = refuses(&disk, &[]);
        assert!(matches!(error, LedgerError::Damaged { .. } | LedgerError::Foreign { .. }), "bit {bit}");
    }
}

#[test]
fn the_ledger_of_another_part_is_refused() {
    let (disk, ledger, _) = ledger_at(2);
    drop(ledger);
    let before = disk.contents(&path());
    let error = Ledger::open(&disk, directory(), Purpose::Replica).map(drop).unwrap_err();
    assert!(matches!(error, LedgerError::WrongPart { .. }));
    assert!(error.to_string().contains("of a witness and was opened for a replica"), "{error}");
    assert_eq!(disk.contents(&path()), before);
}

#[test]
fn blocks_of_another_ledger_are_not_taken_for_votes() {
    let (disk, ledger, _) = ledger_at(2);
    drop(ledger);
    let other = FaultyDisk::new();
    Ledger::create(&other, directory(), Purpose::Witness, Incarnation(0xdef), &[vote(0, 99)]).unwrap();
    let other = other.contents(&path()).unwrap();
    // Everything behind the headers, as after a copy that was cut short.
    disk.alter(&path(), |bytes| bytes[2 * BLOCK_BYTES..].copy_from_slice(&other[2 * BLOCK_BYTES..]));
    refuses(&disk, &["lost"]);
}

#[test]
fn two_processes_do_not_share_a_state_directory() {
    let (disk, ledger, _) = ledger_at(2);
    assert!(matches!(refuses(&disk, &["another process"]), LedgerError::Locked { .. }));
    drop(ledger);
    assert_eq!(terms(&disk), [2]);
}
