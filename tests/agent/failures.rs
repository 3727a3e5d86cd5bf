//! Services and agents that misbehave: deaf, hanging, failing, stopped.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tiebreak::fence::{Gate, GateError};
use tiebreak::ids::Token;

use crate::stage::{A, B, Choice, Stage};

/// Shows: a command that is deaf to SIGTERM, and its children, are killed in time, and the other one acts only after it
/// (case 7).
#[test]
fn a_deaf_command_is_killed_with_its_children_before_the_other_node_acts() {
    let stage = Stage::prepare(Choice::default());
    std::fs::write(stage.place("stubborn"), "").expect("written");
    let mut stage = started(stage);
    stage.until_acts(A);
    let output = stage.tiebreak(A, "switchover", &["--wait"]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && told.contains("everything is killed"), "{output:?}");
    stage.until_acts(B);
    assert!(stage.metric(A, "tiebreak_kills_total") >= Some(1.0));
    stage.check();
    stage.kill(B);
}

/// Shows: the same for a hook that is deaf itself and leaves its service running: it is killed whole, and `demote` runs
/// again until it works, before the lease is given back (case 7).
#[test]
fn a_demote_that_hangs_is_killed_and_repeated_and_the_lease_is_kept_until_it_works() {
    let mut stage = Stage::start(Choice::hooks(&["promote", "demote"]));
    std::fs::write(stage.place("stubborn"), "").expect("written");
    stage.until_acts(A);
    // Hangs once.
    stage.on(
        "demote",
        A,
        "if [ ! -e $here/hung ]; then : > $here/hung; trap '' TERM; sleep 600 & sleep 600; fi",
    );
    let output = stage.tiebreak(A, "resign", &["--reason", "test"]);
    assert!(output.status.success(), "{output:?}");
    stage.until_primary(B);
    stage.until_acts(B);
    let runs = stage.hook_runs(A, "demote");
    assert!(runs.iter().filter(|run| run.contains("reason=resign: test")).count() >= 2, "{runs:?}");
    stage.check();
    stage.kill(B);
}

/// Shows: a promotion that fails is followed by a demote, the lease is given back, and the node waits longer each time:
/// no ping-pong (case 8).
#[test]
fn a_node_whose_promotion_fails_hands_over_and_stays_away() {
    let stage = Stage::prepare(Choice::hooks(&["promote", "demote"]));
    stage.on("promote", A, "code=1; [ $code = 1 ] && { rmdir $here/busy-$node; exit 1; }");
    let mut stage = stage;
    for node in [crate::stage::W, A, B] {
        stage.run(node);
    }
    stage.until_primary(B);
    stage.until_acts(B);
    stage.until_pair(B);
    let log = stage.hooks_log();
    let (promote, demote) = (log.find("a promote").expect("tried"), log.rfind("a demote").expect("stopped"));
    assert!(promote < demote, "{log}");
    assert!(
        stage.hook_runs(A, "demote").last().is_some_and(|run| run.contains("reason=promote failed")),
        "{log}"
    );
    assert_eq!(stage.hook_runs(B, "promote").len(), 1, "{log}");
    stage.check();
}

/// Shows: the same for one that hangs: it is killed at its time-out (case 8).
#[test]
fn a_promotion_that_hangs_is_killed_at_its_time_out_and_handed_over() {
    let mut choice = Choice::hooks(&["promote", "demote"]);
    choice.times = "promote = \"1s\"".into();
    let stage = Stage::prepare(choice);
    stage.on("promote", A, "sleep 600");
    let mut stage = stage;
    for node in [crate::stage::W, A, B] {
        stage.run(node);
    }
    stage.until_primary(B);
    assert!(stage.hook_runs(A, "demote").last().is_some_and(|run| run.contains("reason=promote failed")));
    assert!(stage.metric(A, "tiebreak_hook_runs_total{hook=\"promote\",outcome=\"failed\"}") >= Some(1.0));
    stage.check();
}

/// Shows: a service that fails its checks is handed over.
#[test]
fn an_unhealthy_service_is_handed_over() {
    let mut choice = Choice::hooks(&["promote", "demote", "check"]);
    choice.times = "check_every = \"100ms\"".into();
    let stage = Stage::start(choice);
    stage.until_acts(A);
    stage.on("check", A, "[ $TIEBREAK_ROLE = leader ] && code=7");
    stage.until_primary(B);
    assert!(stage.hook_runs(A, "demote").last().is_some_and(|run| run.contains("reason=unhealthy")));
    stage.check();
}

/// Shows: without a watchdog nothing stops the service of an agent that is stopped; but the resource refuses each of its
/// writes once the new leader has written, and the agent that goes on stops it at once (case 6, the gate).
#[test]
fn what_a_stopped_agent_left_running_is_refused_by_the_gate_and_stopped_when_it_goes_on() {
    let stage = Stage::start(Choice::default());
    stage.until_acts(A);
    stage.signal(A, Signal::STOP);
    stage.until_primary(B);
    stage.until_acts(B);
    stage.until_acts(A);
    assert!(stage.refused() > 0, "the old token is refused");
    stage.signal(A, Signal::CONT);
    stage.until_pair(B);
    let from = stage.acts().len();
    stage.until_acts(B);
    assert!(stage.acts()[from..].iter().all(|(node, _)| *node == B), "the old service is gone");
}

/// A machine with a watchdog: reads the pipe, and when nothing came in time, kills the agent and its service, which is what
/// a reset does.
struct Machine {
    fired: Arc<Mutex<Option<usize>>>,
    disarmed: Arc<AtomicBool>,
}

impl Machine {
    /// Without an `agent` to kill it is one whose watchdog fires and resets nothing.
    fn new(pipe: &Path, timeout: Duration, acts: PathBuf, agent: Option<PathBuf>) -> Machine {
        rustix::fs::mkfifoat(rustix::fs::CWD, pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .expect("a pipe");
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut pipe = OpenOptions::new().read(true).custom_flags(nonblocking).open(pipe).expect("the pipe");
        let fired = Arc::new(Mutex::new(None));
        let disarmed = Arc::new(AtomicBool::new(false));
        let (told, closed) = (fired.clone(), disarmed.clone());
        std::thread::spawn(move || {
            let mut fed: Option<Instant> = None;
            let mut buffer = [0; 64];
            loop {
                match pipe.read(&mut buffer) {
                    Ok(0) | Err(_) => {}
                    Ok(bytes) if buffer[..bytes].ends_with(b"V") => {
                        fed = None;
                        closed.store(true, Ordering::Release);
                    }
                    Ok(_) => {
                        fed = Some(Instant::now());
                        closed.store(false, Ordering::Release);
                    }
                }
                if fed.is_some_and(|fed| fed.elapsed() > timeout) {
                    if let Some(agent) = &agent {
                        reset(agent);
                    }
                    *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(lines(&acts));
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Machine { fired, disarmed }
    }

    /// How much the service had written when it fired.
    fn fired(&self) -> Option<usize> {
        *self.fired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lines(acts: &Path) -> usize {
    let mut text = String::new();
    File::open(acts).and_then(|mut file| file.read_to_string(&mut text)).expect("what the service wrote");
    text.lines().count()
}

/// Kills the agent with this configuration and, by its end, the command under its guard: nothing of the machine goes on.
fn reset(config: &Path) {
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        if words.contains("\0run\0") && words.contains(&*config.to_string_lossy()) {
            let pid = Pid::from_raw(pid).expect("not zero");
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Shows: the watchdog of a machine whose agent is stopped fires before the lease ends, so the old service is gone before
/// the other one acts; and a clean end closes it properly (cases 6 and 9).
#[test]
fn the_watchdog_resets_a_machine_whose_agent_is_stopped_before_the_other_node_acts() {
    let mut choice = Choice { lease: "8s", ..Choice::default() };
    choice.agent =
        "watchdog = \"required\"\nwatchdog_device = \"watchdog-NODE\"\nwatchdog_timeout = \"3s\"".into();
    let mut stage = Stage::prepare(choice);
    let machines = [A, B].map(|node| {
        let pipe = stage.place(&format!("watchdog-{}", crate::stage::NAMES[node]));
        Machine::new(&pipe, Duration::from_secs(3), stage.place("acts"), Some(stage.config(node)))
    });
    for node in [crate::stage::W, A, B] {
        stage.run(node);
    }
    stage.until_pair(A);
    stage.until_acts(A);
    assert_eq!(stage.metric(A, "tiebreak_watchdog_armed"), Some(1.0));
    stage.signal(A, Signal::STOP);
    stage.until_primary(B);
    stage.until_acts(B);
    let fired = machines[A].fired().expect("it has fired");
    let first = stage.acts().iter().position(|(node, _)| *node == B).expect("b has acted");
    assert!(fired <= first, "it fired after {fired} writes, and b wrote from {first} on");
    assert!(stage.acts()[first..].iter().all(|(node, _)| *node == B));
    stage.check();
    assert_eq!(machines[B].fired(), None);
    stage.stop(B);
    stage.until("the other watchdog is closed properly", |_| machines[B].disarmed.load(Ordering::Acquire));
    assert_eq!(machines[B].fired(), None);
}

/// Shows: an agent is stopped for 20 s while its service runs on. The watchdog fires before the lease ends and so before the
/// other node acts; on a machine that it does not reset, the resource refuses each later write with the old token, and the
/// agent that goes on stops the service (case 6, whole).
#[test]
fn a_stopped_agent_is_caught_by_the_watchdog_and_where_that_resets_nothing_by_the_gate() {
    const STOPPED: Duration = Duration::from_secs(20);
    let mut choice = Choice { lease: "8s", ..Choice::default() };
    choice.agent =
        "watchdog = \"required\"\nwatchdog_device = \"watchdog-NODE\"\nwatchdog_timeout = \"3s\"".into();
    let mut stage = Stage::prepare(choice);
    let [machine, _other] = [A, B].map(|node| {
        let pipe = stage.place(&format!("watchdog-{}", crate::stage::NAMES[node]));
        Machine::new(&pipe, Duration::from_secs(3), stage.place("acts"), None)
    });
    for node in [crate::stage::W, A, B] {
        stage.run(node);
    }
    stage.until_pair(A);
    stage.until_acts(A);
    let old = stage.acts().last().expect("it acts").1;
    stage.signal(A, Signal::STOP);
    let began = Instant::now();
    stage.until_acts(B);
    let fired = machine.fired().expect("it has fired before the other one acts");
    let first = stage.acts().iter().position(|(node, _)| *node == B).expect("b has acted");
    assert!(fired <= first, "it fired after {fired} writes, and b wrote from {first} on");
    stage.until("20 s have passed", |_| began.elapsed() > STOPPED);
    // The resource, as the writes have reached it.
    let place = stage.place("gate");
    Gate::create(&place).expect("a gate");
    let gate = Gate::open(&place).expect("a gate");
    let acts = stage.acts();
    gate.admit(Token(old)).expect("while it led");
    gate.admit(Token(acts[first].1)).expect("the new leader");
    let late = acts[first..].iter().find(|(node, _)| *node == A).expect("the old service runs on").1;
    match gate.admit(Token(late)) {
        Err(GateError::Stale(stale)) => {
            assert_eq!((stale.offered, stale.highest), (Token(old), Token(acts[first].1)));
        }
        other => panic!("a late write: {other:?}"),
    }
    stage.signal(A, Signal::CONT);
    stage.until_pair(B);
    let from = stage.acts().len();
    stage.until_acts(B);
    assert!(stage.acts()[from..].iter().all(|(node, _)| *node == B), "the old service is gone");
}

/// Shows: times that cannot be met are refused before anything runs, with the sums; so is a missing required watchdog.
#[test]
fn a_configuration_whose_times_cannot_be_met_is_refused_with_the_sums() {
    let mut choice = Choice::hooks(&["promote", "demote"]);
    choice.times = "demote = \"5s\"".into();
    let stage = Stage::prepare(choice);
    let output = stage.tiebreak(A, "agent", &["--check-config"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && told.contains("demote 5s + kill 500ms + margin 250ms = 5.75s"),
        "{told}"
    );
    let choice = Choice {
        agent: "watchdog = \"required\"\nwatchdog_device = \"none\"\nwatchdog_timeout = \"1s\"".into(),
        ..Choice::default()
    };
    let mut stage = Stage::prepare(choice);
    stage.run(A);
    assert_eq!(stage.ended(A), Some(1));
    let log = std::fs::read_to_string(stage.place("a.log")).expect("a log");
    assert!(log.contains("the watchdog") && log.contains("modprobe"), "{log}");
}

fn started(mut stage: Stage) -> Stage {
    for node in [crate::stage::W, A, B] {
        stage.run(node);
    }
    stage.until_pair(A);
    stage
}
