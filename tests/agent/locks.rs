//! `tiebreak lock` on both nodes: commands that race for one name while leaders are killed, frozen, cut and switched.
//!
//! Each command writes lines with its token to one file. A gate reads the file from the top: had two commands held the name
//! at once, or had a token not risen, it would refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use tiebreak::fence::Gate;
use tiebreak::ids::Token;

use crate::stage::{A, B, Choice, NAMES, Stage, W};

/// Acts under the name for a while, with a child that is deaf to SIGTERM; `for-ever` beside it makes it stay.
const LOCKED: &str = r#"#!/bin/sh
here=$(dirname "$0")
(trap '' TERM; while :; do echo "$1 $TIEBREAK_TOKEN" >> "$here/locked"; sleep 0.02; done) &
n=0
while [ $n -lt 20 ] || [ -e "$here/for-ever" ]; do
    echo "$1 $TIEBREAK_TOKEN" >> "$here/locked"
    sleep 0.02
    n=$((n + 1))
done
"#;

fn prepared() -> Stage {
    let mut stage = Stage::prepare(Choice::hooks(&["promote", "demote"]));
    let script = stage.place("lock.sh");
    fs::write(&script, LOCKED).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("executable");
    for node in [W, A, B] {
        stage.run(node);
    }
    stage.until_pair(A);
    stage
}

fn lock(config: &Path, arguments: &[&str], command: &[&str]) -> Command {
    let mut run = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    run.arg("lock").arg("--config").arg(config).args(arguments).arg("--").args(command);
    run.stdin(Stdio::null());
    run
}

/// Locks again and again on one node, until it is told to stop.
struct Contender {
    stop: Arc<AtomicBool>,
    codes: JoinHandle<BTreeMap<Option<i32>, u32>>,
}

impl Contender {
    fn start(stage: &Stage, node: usize) -> Contender {
        let stop = Arc::new(AtomicBool::new(false));
        let (config, script, told) = (stage.config(node), stage.place("lock.sh"), stop.clone());
        let log = stage.place(&format!("lock-{}.log", NAMES[node]));
        let codes = std::thread::spawn(move || {
            let mut codes = BTreeMap::new();
            while !told.load(Ordering::Acquire) {
                let log = fs::File::options().create(true).append(true).open(&log).expect("a log");
                let script = script.to_string_lossy();
                let status = lock(&config, &["--wait", "2s", "shard-42"], &[&script, NAMES[node]])
                    .stderr(log)
                    .status()
                    .expect("the binary runs");
                *codes.entry(status.code()).or_default() += 1;
                // Agents that are away are not asked without a pause.
                std::thread::sleep(Duration::from_millis(20));
            }
            codes
        });
        Contender { stop, codes }
    }

    fn end(self) -> BTreeMap<Option<i32>, u32> {
        self.stop.store(true, Ordering::Release);
        self.codes.join().expect("no panic")
    }
}

/// Node and token of each line.
fn lines(stage: &Stage) -> Vec<(usize, u64)> {
    let text = fs::read_to_string(stage.place("locked")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let line = |line: &str| {
        let (node, token) = line.split_once(' ')?;
        Some((NAMES.iter().position(|name| *name == node)?, token.parse().ok()?))
    };
    whole.lines().map(|text| line(text).unwrap_or_else(|| panic!("a line: {text:?}"))).collect()
}

/// Until the name was granted on each of these nodes since.
#[track_caller]
fn until_locked(stage: &Stage, nodes: &[usize]) {
    let before: BTreeSet<u64> = lines(stage).iter().map(|(_, token)| *token).collect();
    stage.until("the name was granted anew on each node", |stage| {
        let new: Vec<usize> =
            lines(stage).iter().filter(|(_, token)| !before.contains(token)).map(|(node, _)| *node).collect();
        nodes.iter().all(|node| new.contains(node))
    });
}

/// A gate would have refused nothing, and no token was had by two.
#[track_caller]
fn check(stage: &Stage) -> usize {
    let lines = lines(stage);
    let place = stage.place("gate");
    Gate::create(&place).expect("a gate");
    let gate = Gate::open(&place).expect("a gate");
    let mut owners = BTreeMap::new();
    for (number, (node, token)) in lines.iter().enumerate() {
        if let Err(stale) = gate.admit(Token(*token)) {
            panic!("line {number}: {stale}\n{:?}", &lines[number.saturating_sub(5)..=number]);
        }
        assert_eq!(owners.insert(*token, *node).unwrap_or(*node), *node, "two had one token");
    }
    owners.len()
}

/// Shows: through kills, freezes, cuts and a switchover of leaders, the intervals in which two nodes hold one name are
/// disjoint, and their tokens rise.
#[test]
fn a_name_is_never_held_twice_while_leaders_come_and_go() {
    let mut stage = prepared();
    let contenders = [A, B].map(|node| Contender::start(&stage, node));
    until_locked(&stage, &[A, B]);
    // The leader dies, and comes back.
    stage.kill(A);
    stage.until_primary(B);
    until_locked(&stage, &[B]);
    stage.run(A);
    stage.until_pair(B);
    until_locked(&stage, &[A, B]);
    // The leader is frozen, for longer than any lease.
    stage.signal(B, Signal::STOP);
    stage.until_primary(A);
    until_locked(&stage, &[A]);
    stage.signal(B, Signal::CONT);
    stage.until_pair(A);
    until_locked(&stage, &[A, B]);
    // The link between the nodes is cut: the follower reaches no leader.
    stage.cut(A, B);
    until_locked(&stage, &[A]);
    stage.heal();
    stage.until_pair(A);
    until_locked(&stage, &[A, B]);
    // The leader is cut from everybody.
    stage.cut(A, B);
    stage.cut(A, W);
    until_locked(&stage, &[B]);
    stage.heal();
    stage.until_pair(B);
    until_locked(&stage, &[A, B]);
    let output = stage.tiebreak(B, "switchover", &["--wait"]);
    assert!(output.status.success(), "{output:?}");
    until_locked(&stage, &[A, B]);
    let codes = contenders.map(Contender::end);
    let granted = check(&stage);
    println!("granted {granted} times; exit codes {codes:?}");
    for of_node in &codes {
        let known = [Some(0), Some(1), Some(69), Some(75)];
        assert!(of_node.keys().all(|code| known.contains(code)), "{codes:?}");
    }
}

struct Held(Child, PathBuf);

impl Held {
    fn start(stage: &Stage, node: usize, arguments: &[&str]) -> Held {
        let mark = stage.place("for-ever");
        fs::write(&mark, "").expect("a mark");
        let script = stage.place("lock.sh").to_string_lossy().into_owned();
        let before = lines(stage).len();
        let child = lock(&stage.config(node), arguments, &[&script, NAMES[node]]).spawn().expect("it runs");
        stage.until("the command runs", |stage| lines(stage).len() > before);
        Held(child, mark)
    }

    fn code(&mut self) -> Option<i32> {
        self.0.wait().expect("it ends").code()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.1);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ends_with(mut command: Command) -> Option<i32> {
    command.stderr(Stdio::null()).status().expect("it runs").code()
}

/// Shows: each end has the exit code that the help says, and what is lost is stopped whole.
#[test]
fn each_end_of_a_lock_has_its_exit_code_and_leaves_nothing_running() {
    let mut stage = prepared();
    let (a, b) = (stage.config(A), stage.config(B));
    assert_eq!(ends_with(lock(&a, &["x"], &["sh", "-c", "exit 7"])), Some(7));
    assert_eq!(ends_with(lock(&b, &["x"], &["sh", "-c", "kill -9 $$"])), Some(137));
    assert_eq!(ends_with(lock(&b, &["x"], &["/nowhere/at-all"])), Some(127));
    assert_eq!(ends_with(lock(&b, &["x"], &["/etc"])), Some(126));
    assert_eq!(ends_with(lock(&b, &["--ttl", "3s", "x"], &["true"])), Some(2));
    let environment = "test $TIEBREAK_LOCK = x && test $TIEBREAK_TOKEN -gt 4294967296";
    assert_eq!(ends_with(lock(&b, &["x"], &["sh", "-c", environment])), Some(0));

    // One holds it on B: nobody gets it on either node, until an operator takes it back.
    let mut held = Held::start(&stage, B, &["y"]);
    for config in [&a, &b] {
        assert_eq!(ends_with(lock(config, &["--no-wait", "y"], &["true"])), Some(1));
        assert_eq!(ends_with(lock(config, &["-n", "-E", "9", "y"], &["true"])), Some(9));
        assert_eq!(ends_with(lock(config, &["--wait", "100ms", "y"], &["true"])), Some(1));
    }
    let revoked = stage.tiebreak(A, "lock", &["--revoke", "y"]);
    assert!(revoked.status.success(), "{revoked:?}");
    assert_eq!(held.code(), Some(75));
    assert_eq!(ends_with(lock(&a, &["y"], &["true"])), Some(0));
    let stopped = lines(&stage).len();

    // Asked to end, it does, with everything that it started.
    let mut held = Held::start(&stage, A, &["y"]);
    let pid = rustix::process::Pid::from_child(&held.0);
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!(held.code(), Some(143));
    assert_eq!(ends_with(lock(&b, &["y"], &["true"])), Some(0));
    assert!(lines(&stage).len() > stopped);

    // Stopped itself, it cannot kill the command: the guard does, before anybody else can hold the name.
    let mut held = Held::start(&stage, A, &["y"]);
    let pid = rustix::process::Pid::from_child(&held.0);
    rustix::process::kill_process(pid, Signal::STOP).expect("it runs");
    assert!(stage.tiebreak(B, "lock", &["--revoke", "y"]).status.success());
    let next = Held::start(&stage, B, &["y"]);
    until_locked(&stage, &[B]);
    let seen = lines(&stage).len();
    stage.until("it goes on", |stage| lines(stage).len() > seen + 20);
    rustix::process::kill_process(pid, Signal::CONT).expect("it is there");
    assert_eq!(held.code(), Some(75));
    drop(next);
    // Ctrl-Z does not stop it.
    let mut held = Held::start(&stage, A, &["y"]);
    let pid = rustix::process::Pid::from_child(&held.0);
    rustix::process::kill_process(pid, Signal::TSTP).expect("it runs");
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!(held.code(), Some(143));

    // Killed itself, it leaves nothing behind, and the name ends by itself.
    let mut held = Held::start(&stage, A, &["y"]);
    held.0.kill().expect("it runs");
    assert_eq!(ends_with(lock(&b, &["y"], &["true"])), Some(0));
    let after = lines(&stage).len();

    // Without its agent it is lost.
    let mut held = Held::start(&stage, B, &["y"]);
    assert!(lines(&stage).len() > after);
    stage.kill(B);
    assert_eq!(held.code(), Some(75));
    assert_eq!(ends_with(lock(&b, &["y"], &["true"])), Some(69));
    assert_eq!(ends_with(lock(&a, &["y"], &["true"])), Some(0));
    // Where no leader can be asked, nobody else holds it.
    stage.run(B);
    stage.until_pair(A);
    stage.kill(A);
    stage.kill(W);
    for patience in [["--no-wait"].as_slice(), &["--wait", "300ms"]] {
        assert_eq!(ends_with(lock(&b, &[patience, &["y"]].concat(), &["true"])), Some(69), "{patience:?}");
    }
    check(&stage);
}
