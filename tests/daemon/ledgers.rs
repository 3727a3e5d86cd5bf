//! Damaged votes, seen from outside: the witness does not start, says why, and touches nothing (case 14).

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;

use crate::trio::{A, B, Choice, Trio, W};

const BLOCK: usize = 4096;
/// A user without rights, for when the tests are run by one that has all.
const NOBODY: u32 = 65_534;

/// Shows: every damage is a named error with file, cause and remedy, and the file stays as it was.
#[test]
fn a_witness_with_a_damaged_vote_does_not_start_and_changes_nothing() {
    let mut trio = Trio::start(Choice::default());
    trio.kill(B);
    trio.until_solo(A);
    trio.kill(W);
    let path = trio.ledger(W);
    let whole = fs::read(&path).expect("the ledger");
    let flip = |blocks: std::ops::Range<usize>| {
        let mut bytes = whole.clone();
        for block in blocks {
            bytes[block * BLOCK + 100] ^= 1;
        }
        bytes
    };
    let blocks = whole.len() / BLOCK;
    let mut damages: Vec<(String, Vec<u8>, &str)> = vec![
        ("wrong checksum of the vote".into(), flip(6..10), "is lost"),
        ("wrong checksum of the header".into(), flip(0..2), "damaged in both copies"),
        ("wrong checksum everywhere".into(), flip(0..blocks), "damaged in both copies"),
        ("zero length".into(), Vec::new(), "was cut off"),
        ("something else".into(), vec![b'x'; whole.len()], "not a ledger of tiebreak"),
        ("zeros".into(), vec![0; whole.len()], "not a ledger of tiebreak"),
    ];
    for end in [9, 100, BLOCK - 1, BLOCK, 2 * BLOCK, 5 * BLOCK + 7, 6 * BLOCK, whole.len() - 1] {
        damages.push((format!("torn at {end}"), whole[..end].to_vec(), "was cut off"));
    }
    for (what, bytes, cause) in damages {
        fs::write(&path, &bytes).expect("damaged");
        let why = trio.refuses_to_start(W);
        let file = path.to_str().expect("plain");
        assert!(why.contains(file), "{what}: the file is not named: {why}");
        assert!(why.contains(cause), "{what}: the cause is not named: {why}");
        let remedy = ["init --blank", "tiebreak replace", "move it away", "check the disk"];
        assert!(remedy.iter().any(|remedy| why.contains(remedy)), "{what}: no remedy: {why}");
        assert_eq!(fs::read(&path).expect("it is there"), bytes, "{what}: the file was changed");
    }
    // As it was, it votes as it did.
    fs::write(&path, &whole).expect("restored");
    trio.kill(A);
    trio.run(W);
    trio.run(B);
    trio.until("b is refused", |told| told.refused(B).filter(|why| why.contains("Stale")).map(|_| ()));
    trio.run(A);
    trio.until_paired(A);
    trio.check(A);
}

/// Shows: a vote that cannot be written is no vote. The witness says which file and what to do.
#[test]
fn a_witness_whose_state_cannot_be_written_does_not_start() {
    let mut trio = Trio::prepare(Choice::default());
    let (path, state, node) = (trio.ledger(W), trio.plan(W).state(), trio.plan(W).directory.clone());
    let before = fs::read(&path).expect("the ledger");
    let program = trio.directory().join("node");
    let as_root = rustix::process::geteuid().is_root();
    if as_root {
        fs::copy(std::env::current_exe().expect("this test"), &program).expect("a copy that anybody can run");
        for place in [trio.directory(), &node] {
            fs::set_permissions(place, fs::Permissions::from_mode(0o755)).expect("ours");
        }
        for file in [&node.join("key.pem"), &state, &path] {
            chown(file, Some(NOBODY), Some(NOBODY)).expect("root may");
        }
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("ours");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o555)).expect("ours");
    trio.run_as(W, |command| {
        if as_root {
            let mut other = std::process::Command::new(&program);
            other.args(command.get_args()).envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
            other.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
            other.current_dir("/").uid(NOBODY).gid(NOBODY);
            *command = other;
        }
    });
    let why = trio.failed(W);
    assert!(why.contains(state.to_str().expect("plain")), "{why}");
    assert!(why.contains("denied") && why.contains("give the file to the user"), "{why}");
    assert_eq!(fs::read(&path).expect("it is there"), before);
    // So that the temporary directory can be removed by whoever made it.
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).expect("ours");
}

/// Shows: a vote that the disk did not take was not given. The witness names the file and ends; what it was asked for
/// is had once it runs on a disk that works.
#[test]
fn a_witness_whose_disk_breaks_ends_and_has_said_nothing() {
    let mut trio = Trio::prepare(Choice::default());
    // A write past the limit that breaks the disk would otherwise kill it before it could speak.
    trio.run_as(W, |command| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(command.get_program());
        shell.args(command.get_args()).envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        shell.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        *command = shell;
    });
    for node in [A, B] {
        trio.run(node);
    }
    trio.until("the witness is taken in", |told| told.logged(W, &["taken in"]).then_some(()));
    trio.until_paired(A);
    let before = fs::read(trio.ledger(W)).expect("the ledger");
    trio.break_disk(W);
    // Whoever is left has to ask the witness.
    trio.kill(B);
    let why = trio.failed(W);
    let file = trio.ledger(W);
    assert!(why.contains(file.to_str().expect("plain")) && why.contains("cannot write"), "{why}");
    assert!(why.contains("check the disk"), "no remedy: {why}");
    assert_eq!(fs::read(&file).expect("it is there"), before, "nothing was written");
    trio.let_leases_pass(3, |told| !told.acts(A, "solo"));
    trio.run(W);
    trio.until_solo(A);
    trio.run(B);
    trio.until_paired(A);
    trio.check(A);
}
