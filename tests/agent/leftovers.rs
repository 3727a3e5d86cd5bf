//! What an agent that was killed has left behind.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::stage::{A, Choice, Stage, W, script};

/// Shows: whatever an agent that was killed has left running cannot undo what the next one does: neither a `promote` that
/// is still at it, nor what a command has started in sessions of their own.
#[test]
fn what_an_earlier_life_of_the_agent_has_left_running_is_ended_first() {
    let mut choice = Choice::hooks(&["promote", "demote"]);
    choice.times = "demote = \"500ms\"\nkill = \"500ms\"".into();
    let mut stage = Stage::prepare(choice);
    // It acts only after a while, which is when its agent is dead.
    stage.on("promote", A, "[ -e \"$here/late\" ] || { : > \"$here/late\"; sleep 8; }");
    for node in [W, A] {
        stage.run(node);
    }
    stage.until("promote runs", |stage| stage.place("late").exists());
    stage.kill(A);
    stage.run(A);
    stage.until("the next life has demoted", |stage| stage.hook_runs(A, "demote").len() >= 2);
    // The second promotion is this life's own, and the first one is gone: each that ends starts a service.
    stage.until_acts(A);
    let pid = || fs::read_to_string(stage.place("service-a.pid")).expect("it acts");
    let began = Instant::now();
    let first = pid();
    stage
        .until("the late promotion would have come to its end", |_| began.elapsed() > Duration::from_secs(9));
    assert_eq!(pid(), first, "an earlier promotion has started the service again");
    stage.check();
}

/// Shows: agent and guard of `tiebreak run` die at once, with a grandchild in a session of its own: the command itself goes
/// with them, and the next agent ends the rest before anything acts again.
#[test]
fn what_a_command_has_started_ends_with_the_next_agent_at_the_latest() {
    let mut stage = Stage::prepare(Choice::default());
    let service = stage.place("service");
    fs::rename(&service, stage.place("service-itself")).expect("moved");
    script(
        &service,
        "#!/bin/sh\nhere=$(dirname \"$0\")\nsetsid sh -c 'echo $$ > '$here'/stray; exec sleep 600' &\nexec $here/service-itself\n",
    );
    for node in [W, A] {
        stage.run(node);
    }
    stage.until_acts(A);
    stage.until("it has a stray", |stage| stage.place("stray").exists());
    let runs = |stage: &Stage, file: &str| {
        let pid = fs::read_to_string(stage.place(file)).unwrap_or_default();
        let place = format!("/proc/{}/environ", pid.trim());
        fs::read(place).is_ok_and(|environ| !environ.is_empty())
    };
    assert!(runs(&stage, "stray"));
    // Both at once: a guard that is stopped cannot do its work.
    let guards = children_of(stage.pid(A));
    assert!(!guards.is_empty());
    for guard in &guards {
        let _ = rustix::process::kill_process(*guard, Signal::STOP);
    }
    stage.kill(A);
    for guard in guards {
        let _ = rustix::process::kill_process(guard, Signal::KILL);
    }
    stage.run(A);
    stage.until("the stray is gone", |stage| !runs(stage, "stray"));
    stage.until_acts(A);
    stage.check();
}

fn children_of(parent: i32) -> Vec<Pid> {
    let tasks = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(tasks).expect("the kernel tells");
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
