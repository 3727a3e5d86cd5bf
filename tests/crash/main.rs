//! The ledger on a disk that fails: whatever happens, a vote that was spoken of is found again, and never an older
//! one; and what cannot be read is a named error that leaves the file as it was.

#![allow(clippy::unwrap_used, reason = "a test says with its failure what was expected")]

#[path = "../samples/mod.rs"]
mod samples;

mod life;
mod opening;
mod strange;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use tiebreak::ids::{Incarnation, LinkId, Position, Term, Token};
use tiebreak::limits::BLOCK_BYTES;
use tiebreak::message::{
    Candidacy, GateRecord, Hello, Part, Record, Remembered, Reply, Request, Sender, WitnessRecord, Word,
};
use tiebreak::testing::disk::faulty::{Crash, FaultyDisk};
use tiebreak::testing::disk::{Disk, RealDisk};
use tiebreak::testing::ledger::{FILE_NAME, Ledger, LedgerError, Purpose, Slot};
use tiebreak::testing::{Call, Rules, Witness, WitnessSettings};
use tiebreak::time::Moment;

fn directory() -> &'static Path {
    Path::new("/var/lib/tiebreak")
}

fn path() -> PathBuf {
    directory().join(FILE_NAME)
}

/// The vote of one cluster, told apart by its number.
fn vote(cluster: usize, term: u32) -> Record {
    Record::Witness(WitnessRecord {
        name: samples::cluster(&format!("c{cluster}")),
        promised: Word { term: Term(term), to: Some(samples::voter("a", 1)) },
        ..samples::witness_record()
    })
}

fn term_of(record: &Record) -> u32 {
    match record {
        Record::Witness(record) => record.promised.term.0,
        other => panic!("not a witness's: {other:?}"),
    }
}

fn create(disk: &dyn Disk, records: &[Record]) -> Result<(), LedgerError> {
    Ledger::create(disk, directory(), Purpose::Witness, Incarnation(0xabc), records)
}

fn open(disk: &dyn Disk) -> Result<(Ledger, Vec<(Slot, Record)>), LedgerError> {
    Ledger::open(disk, directory(), Purpose::Witness)
}

/// Opens and returns the terms of all slots, with the ledger closed again.
fn terms(disk: &FaultyDisk) -> Vec<u32> {
    match open(disk) {
        Ok((_, records)) => records.iter().map(|(_, record)| term_of(record)).collect(),
        Err(error) => panic!("it does not open: {error}"),
    }
}

/// A ledger of one cluster that was given the terms 1 to `last`, all acknowledged, and is open.
fn ledger_at(last: u32) -> (FaultyDisk, Ledger, Slot) {
    let disk = FaultyDisk::new();
    create(&disk, &[vote(0, 1)]).unwrap();
    let (mut ledger, records) = open(&disk).unwrap();
    let slot = records[0].0;
    for term in 2..=last {
        put(&mut ledger, slot, &vote(0, term)).unwrap();
    }
    (disk, ledger, slot)
}

/// Puts one record and has its acknowledgement released.
fn put(ledger: &mut Ledger, slot: Slot, record: &Record) -> Result<(), LedgerError> {
    let sealed = ledger.seal(slot, Some(record), ())?;
    let proof = ledger.sync()?;
    sealed.release(&proof).expect("a sync covers what was put before it");
    Ok(())
}

fn refuses(disk: &FaultyDisk, words: &[&str]) -> LedgerError {
    let before = disk.contents(&path());
    let error = open(disk).map(drop).expect_err("it must not open");
    let text = error.to_string();
    for word in words.iter().chain([&"/var/lib/tiebreak"]) {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
    assert_eq!(disk.contents(&path()), before, "the file has changed");
    error
}

/// Ways in which the power can fail, for places that are met often.
fn crashes() -> Vec<Crash> {
    let edges = (0..=64).chain((512..8192).step_by(509)).chain(8128..=8192);
    let torn = edges.flat_map(|bytes| [Crash::Prefix(bytes), Crash::Suffix(bytes)]);
    let plain = [Crash::Nothing, Crash::Everything, Crash::Scrambled];
    plain.into_iter().chain(torn).chain((0..40).map(Crash::Seed)).collect()
}

#[test]
fn a_vote_torn_at_any_byte_is_the_old_one_or_the_new_one_for_good() {
    for last in [1, 2, 5] {
        let (disk, mut ledger, slot) = ledger_at(last);
        disk.cut_power_after(1);
        put(&mut ledger, slot, &vote(0, last + 1)).unwrap_err();
        drop(ledger);
        assert_eq!(disk.pending_bytes(), 2 * BLOCK_BYTES);
        let mut seen = [0, 0];
        for bytes in 0..=2 * BLOCK_BYTES {
            for crash in [Crash::Prefix(bytes), Crash::Suffix(bytes)] {
                let disk = disk.fork();
                disk.crash(crash);
                let found = terms(&disk);
                assert!(found == [last] || found == [last + 1], "{crash:?}: {found:?} after {last}");
                seen[usize::from(found == [last + 1])] += 1;
                // What was found once stays.
                disk.crash(Crash::Nothing);
                assert_eq!(terms(&disk), found, "{crash:?}");
            }
        }
        assert!(seen[0] > 1000 && seen[1] > 1000, "both outcomes are met: {seen:?}");
    }
}

#[test]
fn sectors_that_reach_the_disk_in_any_order_leave_the_old_vote_or_the_new_one() {
    let (disk, mut ledger, slot) = ledger_at(4);
    disk.cut_power_after(1);
    put(&mut ledger, slot, &vote(0, 5)).unwrap_err();
    drop(ledger);
    let mut new = 0;
    for seed in 0..5000 {
        let disk = disk.fork();
        disk.crash(Crash::Seed(seed));
        let found = terms(&disk);
        assert!(found == [4] || found == [5], "seed {seed}: {found:?}");
        new += u32::from(found == [5]);
    }
    assert!(new > 100, "the new vote is met as well");
}

#[test]
fn one_bad_block_beside_a_crash_hides_no_acknowledged_vote() {
    let (disk, mut ledger, slot) = ledger_at(4);
    disk.cut_power_after(1);
    put(&mut ledger, slot, &vote(0, 5)).unwrap_err();
    drop(ledger);
    let blocks = disk.contents(&path()).unwrap().len() / BLOCK_BYTES;
    for crash in crashes() {
        for block in 0..blocks {
            for unreadable in [false, true] {
                let disk = disk.fork();
                disk.crash(crash);
                damage(&disk, block, unreadable);
                let found = terms(&disk);
                assert!(found == [4] || found == [5], "{crash:?}, block {block}: {found:?}");
            }
        }
    }
}

fn damage(disk: &FaultyDisk, block: usize, unreadable: bool) {
    let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
    if unreadable {
        disk.fail_reads(&path(), range);
    } else {
        disk.alter(&path(), |bytes| bytes[range.start + 40] ^= 4);
    }
}

#[test]
fn votes_of_several_clusters_torn_in_one_sync_are_each_the_old_one_or_the_new_one() {
    let disk = FaultyDisk::new();
    create(&disk, &[vote(0, 1), vote(1, 1), vote(2, 1)]).unwrap();
    let mut mixed = 0;
    for cut in 0..=4 {
        let disk = disk.fork();
        let (mut ledger, records) = open(&disk).unwrap();
        disk.cut_power_after(cut);
        for (cluster, (slot, _)) in records.iter().enumerate() {
            let _ = ledger.seal(*slot, Some(&vote(cluster, 2)), ()).unwrap();
        }
        let synced = ledger.sync().is_ok();
        assert_eq!(synced, cut == 4, "three writes and a sync");
        drop(ledger);
        let torn = (0..=6 * BLOCK_BYTES).step_by(127);
        let torn = torn.flat_map(|bytes| [Crash::Prefix(bytes), Crash::Suffix(bytes)]);
        for crash in torn.chain((0..500).map(Crash::Seed)).chain([Crash::Nothing, Crash::Scrambled]) {
            let disk = disk.fork();
            disk.crash(crash);
            let found = terms(&disk);
            let fits = |term: &u32| *term == 2 || (*term == 1 && !synced);
            assert!(found.len() == 3 && found.iter().all(fits), "cut {cut}, {crash:?}: {found:?}");
            mixed += u32::from(found.contains(&1) && found.contains(&2));
            disk.crash(Crash::Nothing);
            assert_eq!(terms(&disk), found, "for good: cut {cut}, {crash:?}");
        }
    }
    assert!(mixed > 100, "some were torn between the votes");
}

/// The witness's voter on its ledger, as the shipped witness runs it: start, count the start, answer.
fn awake(disk: &FaultyDisk) -> Result<(Witness, Ledger, Slot), LedgerError> {
    let (mut ledger, records) = open(disk)?;
    let (slot, Record::Witness(found)) = records[0] else { panic!("a witness's ledger") };
    let (witness, counted) = Witness::start(Moment(0), found, WitnessSettings::default(), Rules::KEPT);
    put(&mut ledger, slot, &Record::Witness(counted))?;
    Ok((witness, ledger, slot))
}

/// Asks for a vote, and hands out the answer if it may be handed out.
fn ask_vote(disk: &FaultyDisk, who: Sender, term: Term) -> Option<Reply> {
    let (mut witness, mut ledger, slot) = awake(disk).ok()?;
    let candidacy = Candidacy { term, holds: Term(3), position: Position(0) };
    // What the candidate remembers of the witness fits what the witness remembers of it.
    let hello = witness.hello(who.voter);
    let (voter, boot, said) = (witness.id(), witness.record().boot, witness.record().promised.term);
    let remembers = hello.remembers.map(|known| Remembered { voter, boot, term: said, ..known });
    let greeting = Hello { part: Part::Replica, remembers, ..hello };
    let mut reply = None;
    for request in [Request::Hello(greeting), Request::Vote(candidacy)] {
        let step = witness.handle(Moment(0), &Call { link: LinkId(1), from: who, request, fresh: 1 });
        let record = step.record.map(Record::Witness);
        let sealed = ledger.seal(slot, record.as_ref(), step.reply).ok()?;
        let proof = ledger.sync().ok()?;
        reply = sealed.release(&proof).ok();
    }
    reply
}

#[test]
fn no_crash_and_no_failing_disk_lets_a_witness_vote_twice_in_a_term() {
    let term = Term(9);
    let candidate = |name, incarnation| Sender {
        cluster: samples::witness_record().cluster,
        voter: samples::voter(name, incarnation),
        ..samples::sender()
    };
    let (first, second) = (candidate("a", 1), candidate("b", 2));
    let voted = Some(Reply::Voted { term });
    let (mut spoken, mut unspoken) = (0, 0);
    for cut in 0..=12 {
        let disk = FaultyDisk::new();
        create(&disk, &[vote(0, 4)]).unwrap();
        disk.cut_power_after(cut);
        let first_heard = ask_vote(&disk, first, term) == voted;
        for crash in crashes() {
            let disk = disk.fork();
            disk.crash(crash);
            let second_heard = ask_vote(&disk, second, term) == voted;
            assert!(!(first_heard && second_heard), "two votes in {term}: cut {cut}, {crash:?}");
            // Whoever was refused may find that the vote that nobody heard of was given all the same, and to whom.
            let again = ask_vote(&disk, first, term) == voted;
            assert!(!(again && second_heard), "two votes in {term}, later: cut {cut}, {crash:?}");
            assert!(again || second_heard, "somebody can be elected: cut {cut}, {crash:?}");
            spoken += u32::from(first_heard);
            unspoken += u32::from(second_heard);
        }
    }
    assert!(spoken > 100 && unspoken > 100, "both outcomes are met: {spoken}, {unspoken}");
}

#[test]
fn after_a_failed_sync_or_write_nothing_more_is_accepted_and_nothing_is_released() {
    type Failing = fn(&FaultyDisk);
    let (broken, full, locked) = ("check the disk", "free space", "remount");
    let ways: [(&str, Failing, &str); 7] = [
        ("EIO on sync", |disk| disk.fail_next_sync(Crash::Nothing), broken),
        ("EIO on sync, half written", |disk| disk.fail_next_sync(Crash::Prefix(BLOCK_BYTES + 9)), broken),
        ("EIO on sync, all written", |disk| disk.fail_next_sync(Crash::Everything), broken),
        ("ENOSPC on write", |disk| disk.fail_next_write(Errno::NOSPC, 100), full),
        ("EDQUOT on write", |disk| disk.fail_next_write(Errno::DQUOT, 0), full),
        ("EIO on write", |disk| disk.fail_next_write(Errno::IO, BLOCK_BYTES), broken),
        ("read-only", |disk| disk.set_read_only(true), locked),
    ];
    for (way, fail, remedy) in ways {
        let (disk, mut ledger, slot) = ledger_at(4);
        let earlier = ledger.proof().unwrap();
        let sealed = ledger.seal(slot, Some(&vote(0, 5)), "granted").unwrap();
        fail(&disk);
        let error = ledger.sync().unwrap_err();
        assert!(error.to_string().contains("/var/lib/tiebreak/ledger: cannot"), "{way}: {error}");
        assert!(error.to_string().contains(remedy), "{way}: {error}");
        assert!(matches!(error, LedgerError::Io { .. }), "{way}: {error}");
        disk.set_read_only(false);
        // The disk would succeed now. That proves nothing.
        assert!(matches!(ledger.sync(), Err(LedgerError::Poisoned { .. })), "{way}");
        assert!(matches!(ledger.proof(), Err(LedgerError::Poisoned { .. })), "{way}");
        assert!(matches!(ledger.seal(slot, None, ()), Err(LedgerError::Poisoned { .. })), "{way}");
        assert!(matches!(ledger.allot(&vote(1, 1)), Err(LedgerError::Poisoned { .. })), "{way}");
        sealed.release(&earlier).unwrap_err();
        drop(ledger);
        // The process starts again on the same machine; then the power fails.
        disk.restart();
        let found = terms(&disk);
        assert!(found == [4] || found == [5], "{way}: {found:?}");
        disk.crash(Crash::Nothing);
        assert_eq!(terms(&disk), found, "{way}");
    }
}

#[test]
fn a_read_only_disk_is_named_when_the_ledger_is_opened() {
    let (disk, ledger, _) = ledger_at(4);
    drop(ledger);
    disk.set_read_only(true);
    let error = refuses(&disk, &["cannot open for writing", "remount"]);
    assert!(
        matches!(error, LedgerError::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem)
    );
}

#[test]
fn a_value_is_released_with_the_proof_of_its_own_sync_only() {
    let (disk, mut ledger, slot) = ledger_at(1);
    let earlier = ledger.sync().unwrap();
    // Nothing to record, and nothing under way: no sync is needed.
    let operations = disk.operations();
    assert_eq!(ledger.seal(slot, None, 7).unwrap().release(&earlier).unwrap(), 7);
    assert_eq!(disk.operations(), operations);
    // Nothing to record, but it may speak of what is under way.
    let granted = ledger.seal(slot, Some(&vote(0, 2)), "granted").unwrap();
    let refused = ledger.seal(slot, None, "refused").unwrap();
    assert!(ledger.waits());
    let granted = granted.release(&earlier).unwrap_err().0;
    let refused = refused.release(&ledger.proof().unwrap()).unwrap_err().0;
    let proof = ledger.sync().unwrap();
    assert_eq!(granted.release(&proof).unwrap(), "granted");
    assert_eq!(refused.release(&proof).unwrap(), "refused");
    // The proof of another ledger proves nothing.
    let (_disk, mut other, _) = ledger_at(9);
    let foreign = other.sync().unwrap();
    ledger.seal(slot, None, ()).unwrap().release(&foreign).unwrap_err();
}

#[test]
fn votes_that_wait_together_share_one_sync() {
    let disk = FaultyDisk::new();
    let votes: Vec<Record> = (0..20).map(|cluster| vote(cluster, 1)).collect();
    create(&disk, &votes).unwrap();
    let (mut ledger, records) = open(&disk).unwrap();
    let before = disk.syncs();
    // Twice in one slot: the last one counts, and both replies wait for it.
    let mut sealed = Vec::new();
    for term in [2, 3] {
        for (cluster, (slot, _)) in records.iter().enumerate() {
            sealed.push(ledger.seal(*slot, Some(&vote(cluster, term)), ()).unwrap());
        }
    }
    let proof = ledger.sync().unwrap();
    assert_eq!(disk.syncs(), before + 1);
    assert!(sealed.into_iter().all(|sealed| sealed.release(&proof).is_ok()));
    drop(ledger);
    disk.crash(Crash::Nothing);
    assert_eq!(terms(&disk), [3; 20]);
}

#[test]
fn a_ledger_comes_to_be_whole_or_not_at_all() {
    let mut cut = 0;
    loop {
        let disk = FaultyDisk::new();
        disk.cut_power_after(cut);
        let outcome = create(&disk, &[vote(0, 1), vote(1, 1)]);
        for crash in crashes() {
            let disk = disk.fork();
            disk.crash(crash);
            match open(&disk) {
                Ok((_, records)) => assert_eq!(records.len(), 2, "cut {cut}, {crash:?}"),
                Err(LedgerError::Missing { .. }) => {
                    assert!(outcome.is_err(), "cut {cut}, {crash:?}");
                    create(&disk, &[vote(0, 1), vote(1, 1)]).unwrap();
                    assert_eq!(terms(&disk), [1, 1]);
                }
                Err(other) => panic!("cut {cut}, {crash:?}: {other}"),
            }
        }
        if outcome.is_ok() {
            break;
        }
        cut += 1;
    }
    assert!(cut > 4, "every step of it was cut");
}

#[test]
fn a_ledger_whose_name_is_not_durable_yet_is_so_once_it_was_opened() {
    let disk = FaultyDisk::new();
    disk.fail_next_directory_sync(directory());
    create(&disk, &[vote(0, 1)]).unwrap_err();
    disk.restart();
    let (mut ledger, records) = open(&disk).unwrap();
    put(&mut ledger, records[0].0, &vote(0, 2)).unwrap();
    drop(ledger);
    disk.crash(Crash::Nothing);
    assert_eq!(terms(&disk), [2]);
}

#[test]
fn a_full_disk_makes_no_ledger_and_refuses_a_new_slot_but_no_vote() {
    let disk = FaultyDisk::new();
    disk.limit_space(Some(10_000));
    let error = create(&disk, &[vote(0, 1)]).unwrap_err();
    assert!(error.to_string().contains("free space"), "{error}");
    assert!(matches!(open(&disk), Err(LedgerError::Missing { .. })));
    disk.limit_space(None);
    create(&disk, &[vote(0, 1)]).unwrap();
    disk.limit_space(Some(5000));
    let (mut ledger, records) = open(&disk).unwrap();
    let error = ledger.allot(&vote(1, 1)).unwrap_err();
    assert!(matches!(error, LedgerError::Full { .. }) && error.to_string().contains("disk is full"));
    for term in 2..6 {
        put(&mut ledger, records[0].0, &vote(0, term)).unwrap();
    }
    disk.limit_space(None);
    ledger.allot(&vote(1, 1)).unwrap();
    ledger.sync().unwrap();
    drop(ledger);
    assert_eq!(terms(&disk), [5, 1]);
}

#[test]
fn a_new_slot_counts_with_its_vote_or_not_at_all_and_the_others_stay() {
    let mut cut = 0;
    loop {
        let (disk, mut ledger, slot) = ledger_at(3);
        disk.cut_power_after(cut);
        let outcome = (|| {
            ledger.allot(&vote(1, 1))?;
            ledger.seal(slot, Some(&vote(0, 4)), ()).map(drop)?;
            ledger.sync().map(drop)
        })();
        drop(ledger);
        for crash in crashes() {
            let disk = disk.fork();
            disk.crash(crash);
            let found = terms(&disk);
            assert!([3, 4].contains(&found[0]), "cut {cut}, {crash:?}: {found:?}");
            assert!(found[1..].is_empty() || found == [4, 1], "cut {cut}, {crash:?}: {found:?}");
            assert!(outcome.is_err() || found == [4, 1], "cut {cut}, {crash:?}: {found:?}");
            // Whatever was left behind does not stand in the way of the next one.
            let (mut ledger, records) = open(&disk).unwrap();
            if records.len() == 1 {
                ledger.allot(&vote(1, 9)).unwrap();
                ledger.sync().unwrap();
                drop(ledger);
                disk.crash(Crash::Nothing);
                assert_eq!(terms(&disk), [found[0], 9], "cut {cut}, {crash:?}");
            }
        }
        if outcome.is_ok() {
            break;
        }
        cut += 1;
    }
    assert_eq!(cut, 6, "reservation, two votes, sync, count, sync");
}

#[test]
fn the_real_disk_keeps_votes_and_refuses_a_second_user() {
    let state = tempfile::tempdir().unwrap();
    let directory = state.path().join("deep/state");
    let gate = |token| Record::Gate(GateRecord { highest: Token(token) });
    let open = || Ledger::open(&RealDisk, &directory, Purpose::Gate);
    assert!(matches!(open(), Err(LedgerError::Missing { .. })));
    Ledger::create(&RealDisk, &directory, Purpose::Gate, Incarnation(1), &[gate(1)]).unwrap();
    let again = Ledger::create(&RealDisk, &directory, Purpose::Gate, Incarnation(2), &[gate(9)]);
    assert!(matches!(again, Err(LedgerError::Exists { .. })));
    for token in 2..6 {
        let (mut ledger, records) = open().unwrap();
        assert_eq!(records[0].1, gate(token - 1));
        assert!(matches!(open(), Err(LedgerError::Locked { .. })));
        put(&mut ledger, records[0].0, &gate(token)).unwrap();
        if token == 3 {
            ledger.allot(&gate(100)).unwrap();
            ledger.sync().unwrap();
        }
    }
    let file = directory.join(FILE_NAME);
    let bytes = std::fs::read(&file).unwrap();
    for length in [0, 5, 100, BLOCK_BYTES, BLOCK_BYTES + 7, bytes.len() - 1] {
        std::fs::write(&file, &bytes[..length]).unwrap();
        assert!(matches!(open(), Err(LedgerError::Short { .. } | LedgerError::Foreign { .. })), "{length}");
        assert_eq!(std::fs::read(&file).unwrap(), &bytes[..length]);
    }
    let mut bad = bytes.clone();
    bad[6 * BLOCK_BYTES + 50] ^= 1;
    bad[100] ^= 1;
    std::fs::write(&file, &bad).unwrap();
    let (ledger, records) = open().unwrap();
    assert_eq!(records.iter().map(|(_, record)| *record).collect::<Vec<_>>(), [gate(5), gate(100)]);
    drop(ledger);
    assert_eq!(std::fs::read(&file).unwrap()[..2 * BLOCK_BYTES], bytes[..2 * BLOCK_BYTES], "repaired");
}

#[test]
fn a_ledger_can_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Ledger>();
}

/// The layout on disk is frozen: a change of any byte is a new format.
#[test]
fn the_bytes_of_a_ledger_are_frozen() {
    let disk = FaultyDisk::new();
    let record = Record::Gate(GateRecord { highest: Token(0x0102_0304_0506_0708) });
    Ledger::create(&disk, directory(), Purpose::Gate, Incarnation(0xabc), &[record]).unwrap();
    let bytes = disk.contents(&path()).unwrap();
    assert_eq!(bytes.len(), 10 * BLOCK_BYTES);
    assert_eq!(&bytes[..18], b"tiebreak\x01\0\x03\0\0\0\0\0\xbc\x0a");
    let copy = &bytes[8 * BLOCK_BYTES..9 * BLOCK_BYTES];
    assert_eq!(&copy[..18], b"vote\x01\0\0\0\x01\0\0\0\0\0\0\0\xbc\x0a");
    assert_eq!(&copy[32..48], b"\x0c\0\0\0\x02\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01");
    assert_eq!(crc32fast::hash(&bytes), 0x2265_15f0);
}
