//! A disk that is damaged, or fails, when a ledger is opened: what is mended, what is said, what is lost by name.

use super::*;

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
