//! The files of the first release, kept for ever: a newer program reads them, and writes the same bytes.
//!
//! `tests/upgrades/0.1.0.txt` holds the ledgers that 0.1.0 makes of the samples, as lines of offset and bytes; everything else
//! in a ledger is zero. It is never written again: a later format gets a file of its own beside it.
//!
//! ```sh
//! TIEBREAK_WRITE_UPGRADES=1 cargo test --test upgrades     # only before the first release
//! ```

mod samples;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use samples::{replica_record, witness_record};
use tiebreak::ids::Incarnation;
use tiebreak::message::Record;
use tiebreak::testing::disk::RealDisk;
use tiebreak::testing::ledger::{FILE_NAME, Ledger, Purpose};

const INCARNATION: Incarnation = Incarnation(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const LINE_BYTES: usize = 32;

fn ledgers() -> [(&'static str, Purpose, Vec<Record>); 2] {
    let second = tiebreak::message::WitnessRecord { name: samples::cluster("second"), ..witness_record() };
    [
        ("witness", Purpose::Witness, vec![Record::Witness(witness_record()), Record::Witness(second)]),
        ("replica", Purpose::Replica, vec![Record::Replica(replica_record())]),
    ]
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrades/0.1.0.txt")
}

fn made(purpose: Purpose, records: &[Record]) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    Ledger::create(&RealDisk, &state, purpose, INCARNATION, records).expect("made");
    fs::read(state.join(FILE_NAME)).expect("read")
}

fn write_fixture() {
    let mut text = String::from(
        "# The ledgers of release 0.1.0. Read and checked by tests/upgrades.rs; never written again.\n",
    );
    for (name, purpose, records) in ledgers() {
        let bytes = made(purpose, &records);
        writeln!(text, "\n{name} {}", bytes.len()).expect("text");
        for (at, line) in
            bytes.chunks(LINE_BYTES).enumerate().filter(|(_, line)| line.iter().any(|b| *b != 0))
        {
            let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "    {} {}", at * LINE_BYTES, hex.join("")).expect("text");
        }
    }
    fs::create_dir_all(fixture().parent().expect("a directory")).expect("made");
    fs::write(fixture(), text).expect("written");
}

fn kept(name: &str) -> Vec<u8> {
    let text = fs::read_to_string(fixture()).expect("the fixture is there");
    let mut lines = text.lines().skip_while(|line| line.split(' ').next() != Some(name));
    let length =
        lines.next().and_then(|head| head.split(' ').nth(1)).expect("a head").parse().expect("bytes");
    let mut bytes = vec![0; length];
    for line in lines.take_while(|line| line.starts_with("    ")) {
        let (at, hex) = line.trim().split_once(' ').expect("an offset and bytes");
        let at: usize = at.parse().expect("an offset");
        for (place, pair) in hex.as_bytes().chunks(2).enumerate() {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            bytes[at + place] = u8::from_str_radix(pair, 16).expect("two digits");
        }
    }
    bytes
}

#[test]
fn the_ledgers_of_the_first_release_are_read_and_still_written_in_the_same_bytes() {
    if std::env::var_os("TIEBREAK_WRITE_UPGRADES").is_some() {
        write_fixture();
    }
    for (name, purpose, records) in ledgers() {
        let bytes = kept(name);
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(FILE_NAME), &bytes).expect("written");
        let (ledger, found) = Ledger::open(&RealDisk, directory.path(), purpose).expect("it opens");
        let found: Vec<Record> = found.into_iter().map(|(_, record)| record).collect();
        assert_eq!(found, records, "{name}");
        drop(ledger);
        assert_eq!(
            fs::read(directory.path().join(FILE_NAME)).expect("read"),
            bytes,
            "opening changes nothing"
        );
        // What this program writes is what that release can read.
        assert_eq!(made(purpose, &records), bytes, "{name}: the bytes on disk have changed");
    }
}
