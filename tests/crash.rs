//! The ledger on a disk that fails: whatever happens, a vote that was spoken of is found again, and never an older
//! one; and what cannot be read is a named error that leaves the file as it was.

#![allow(clippy::unwrap_used, reason = "a test says with its failure what was expected")]

mod samples;

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
fn a_disk_that_fails_while_a_ledger_is_opened_is_named_and_takes_nothing_away() {
    type Failing = fn(&FaultyDisk);
    let ways: [(&str, Failing, &str); 5] = [
        ("EIO on the first sync", |disk| disk.fail_next_sync(Crash::Nothing), "check the disk"),
        ("EIO on the directory's", |disk| disk.fail_next_directory_sync(directory()), "check the disk"),
        ("EIO on the repair", |disk| disk.fail_next_write(Errno::IO, 700), "check the disk"),
        ("ENOSPC on the repair", |disk| disk.fail_next_write(Errno::NOSPC, 0), "free space"),
        ("read-only", |disk| disk.set_read_only(true), "remount"),
    ];
    for block in 0..10 {
        for (way, fail, remedy) in ways {
            let (disk, ledger, _) = ledger_at(4);
            drop(ledger);
            damage(&disk, block, false);
            fail(&disk);
            let error = open(&disk).map(drop).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, LedgerError::Io { .. }), "{way}: {text}");
            assert!(text.contains("/var/lib/tiebreak") && text.contains(remedy), "{way}: {text}");
            disk.set_read_only(false);
            disk.crash(Crash::Nothing);
            assert_eq!(terms(&disk), [4], "{way}, block {block}");
        }
    }
}

/// Hears what is logged as a warning on this thread.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Ear {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{}={value:?} ", field.name()));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Opens, and returns what was warned of.
fn warnings(disk: &FaultyDisk) -> Vec<String> {
    let ear = Ear::default();
    tracing::subscriber::with_default(ear.clone(), || terms(disk));
    ear.0.lock().unwrap().clone()
}

#[test]
fn a_copy_that_is_damaged_is_warned_of_once_with_file_place_and_remedy() {
    let (disk, ledger, _) = ledger_at(4);
    drop(ledger);
    assert_eq!(warnings(&disk), Vec::<String>::new(), "nothing is damaged");
    // Generation 4 of the vote lies in blocks 6 and 7, generation 3 in 8 and 9; the count has one generation.
    let places = [
        (0, "header", "copy=1 of 2 "),
        (1, "header", "copy=2 of 2 "),
        (4, "count of slots", "copy=1 of 2 "),
        (7, "vote in slot 1", "copy=2 of 2 "),
        (8, "vote in slot 1", "copy=1 of 2, of the other generation "),
    ];
    for (block, what, copy) in places {
        for unreadable in [false, true] {
            let disk = disk.fork();
            damage(&disk, block, unreadable);
            let heard = warnings(&disk);
            let [warning] = &heard[..] else { panic!("block {block}: {heard:?}") };
            for part in ["file=/var/lib/tiebreak/ledger", what, copy, &format!("block={block}")] {
                assert!(warning.contains(part), "block {block}: {warning:?} lacks {part:?}");
            }
            assert!(warning.contains("Nothing to do if it happens once"), "{warning}");
            assert!(warning.contains("is dying: replace it"), "{warning}");
            assert_eq!(warnings(&disk), Vec::<String>::new(), "it was mended");
        }
    }
}

#[test]
fn both_copies_of_a_generation_are_not_called_harmless() {
    let (disk, ledger, _) = ledger_at(4);
    drop(ledger);
    damage(&disk, 6, false);
    damage(&disk, 7, true);
    let heard = warnings(&disk);
    let [warning] = &heard[..] else { panic!("{heard:?}") };
    let parts = [
        "ledger",
        "blocks=6 and 7",
        "both copies",
        "vote in slot 1",
        "After a power cut",
        "tiebreak replace",
    ];
    for part in parts {
        assert!(warning.contains(part), "{warning:?} lacks {part:?}");
    }
}

#[test]
fn opening_repairs_one_bad_block_and_a_crash_meanwhile_takes_nothing_away() {
    // In turn, each block goes bad; the opening that repairs it is cut at each step; then another block goes bad.
    let (disk, ledger, _) = ledger_at(4);
    drop(ledger);
    let blocks = disk.contents(&path()).unwrap().len() / BLOCK_BYTES;
    for first in 0..blocks {
        for cut in 0..4 {
            for crash in crashes().into_iter().step_by(7) {
                let disk = disk.fork();
                damage(&disk, first, false);
                disk.cut_power_after(cut);
                let outcome = open(&disk).map(drop);
                assert_eq!(outcome.is_err(), disk.is_off());
                disk.crash(crash);
                assert_eq!(terms(&disk), [4], "block {first}, cut {cut}, {crash:?}");
                for second in 0..blocks {
                    let disk = disk.fork();
                    damage(&disk, second, true);
                    assert_eq!(terms(&disk), [4], "blocks {first} and {second}, cut {cut}, {crash:?}");
                }
            }
        }
    }
}

#[test]
fn two_bad_copies_look_like_a_tear_and_four_are_a_named_loss() {
    let (disk, ledger, _) = ledger_at(4);
    drop(ledger);
    // Slot 1 begins at block 6; generation 4 lies in its first place.
    damage(&disk, 6, false);
    damage(&disk, 7, false);
    let fork = disk.fork();
    assert_eq!(terms(&fork), [3]);
    damage(&disk, 8, false);
    assert_eq!(terms(&disk.fork()), [3]);
    damage(&disk, 9, true);
    let error = refuses(&disk, &["slot 1 is lost", "tiebreak replace"]);
    assert!(matches!(error, LedgerError::Lost { slot: 1, .. }));
}

#[test]
fn a_ledger_whose_count_is_lost_is_lost() {
    let (disk, ledger, _) = ledger_at(1);
    drop(ledger);
    for block in 2..6 {
        damage(&disk, block, false);
    }
    assert!(matches!(refuses(&disk, &["slot 0 is lost"]), LedgerError::Lost { slot: 0, .. }));
}

/// Opening fails, says where and what to do, and leaves the file as it was.
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

/// A long life with every kind of failure. One seed gives one life.
#[test]
fn in_any_life_every_acknowledged_vote_is_found_again_and_none_goes_back() {
    for seed in 0..8000 {
        live(seed);
    }
}

struct Life {
    random: u64,
    /// The last acknowledged term of each cluster.
    acknowledged: Vec<u32>,
    /// The last term that was put.
    put: Vec<u32>,
}

impl Life {
    fn below(&mut self, end: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    fn pick(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap()
    }

    /// Works until the disk fails or the day is over.
    fn work(&mut self, ledger: &mut Ledger, slots: &mut Vec<Slot>) -> Result<(), LedgerError> {
        for _ in 0..6 {
            let mut sealed = Vec::new();
            for _ in 0..=self.below(3) {
                if slots.len() < 4 && self.below(8) == 0 {
                    let cluster = slots.len();
                    self.put.truncate(cluster);
                    self.acknowledged.truncate(cluster);
                    self.put.push(1);
                    self.acknowledged.push(0);
                    let slot = ledger.allot(&vote(cluster, 1))?;
                    slots.push(slot);
                    sealed.push(ledger.seal(slot, None, (cluster, 1))?);
                } else {
                    let cluster = self.pick(slots.len());
                    self.put[cluster] += 1;
                    let term = self.put[cluster];
                    let record = vote(cluster, term);
                    sealed.push(ledger.seal(slots[cluster], Some(&record), (cluster, term))?);
                }
            }
            let proof = ledger.sync()?;
            for sealed in sealed {
                let (cluster, term) = sealed.release(&proof).expect("a sync covers what was put before it");
                self.acknowledged[cluster] = term;
            }
        }
        Ok(())
    }

    /// What a crash and at most one bad block per slot have left must be what was acknowledged, or newer.
    fn check(&mut self, records: &[(Slot, Record)], seed: u64) {
        let must = self.acknowledged.iter().filter(|term| **term > 0).count();
        assert!(records.len() >= must, "seed {seed}: {} slots of {must}", records.len());
        for (cluster, (_, record)) in records.iter().enumerate() {
            let (term, acknowledged, put) = (term_of(record), self.acknowledged[cluster], self.put[cluster]);
            assert_eq!(*record, vote(cluster, term), "seed {seed}");
            assert!((acknowledged..=put).contains(&term), "seed {seed}: {acknowledged}..={put} gave {term}");
            // It may be spoken of from now on.
            self.acknowledged[cluster] = term;
        }
    }
}

fn live(seed: u64) {
    let mut life = Life { random: seed, acknowledged: vec![1, 1], put: vec![1, 1] };
    let disk = FaultyDisk::new();
    create(&disk, &[vote(0, 1), vote(1, 1)]).unwrap();
    let mut whole = true;
    for _ in 0..12 {
        match life.below(4) {
            0 => disk.cut_power_after(life.below(24)),
            1 => disk.fail_next_sync(Crash::Seed(life.below(1 << 30))),
            2 => disk.fail_next_write(Errno::IO, life.pick(2 * BLOCK_BYTES)),
            _ => {}
        }
        match open(&disk) {
            Ok((mut ledger, records)) => {
                life.check(&records, seed);
                whole = true;
                let mut slots = records.into_iter().map(|(slot, _)| slot).collect();
                // How it ends is not the point.
                let _ = life.work(&mut ledger, &mut slots);
            }
            Err(LedgerError::Io { .. }) => {}
            Err(other) => panic!("seed {seed}: {other}"),
        }
        if life.below(2) == 0 {
            // Only the process dies.
            disk.restart();
            continue;
        }
        disk.crash(Crash::Seed(life.below(1 << 30)));
        // A second bad block beside one that no opening has repaired yet is outside of the promise.
        if std::mem::take(&mut whole) {
            for slot in 0..=life.acknowledged.iter().filter(|term| **term > 0).count() {
                if life.below(3) == 0 {
                    damage(&disk, 2 + slot * 4 + life.pick(4), life.below(2) == 0);
                }
            }
            if life.below(3) == 0 {
                damage(&disk, life.pick(2), life.below(2) == 0);
            }
        }
    }
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
