//! The command of `tiebreak run` and of `tiebreak lock`: runs while this node may, in a process group (and a cgroup where one
//! can be made) of its own, under a guard that outlives neither the command nor whoever started it.

use std::ffi::OsString;
use std::process::Stdio;
use std::sync::Arc;

use rustix::process::{Pid, Signal};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

use crate::edge::clock::Clock;
use crate::time::Moment;

use super::contain::{Cgroup, Containment};

/// How often it is looked whether everything has ended: the kernel tells nobody that a process group is empty.
pub const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(20);

/// The command, when it runs.
#[derive(Debug)]
pub struct Running {
    /// Closed when the agent ends, however it ends: the guard kills everything then.
    leash: Option<ChildStdin>,
}

/// A line for a guard whose pipe is full waits no longer than this: then it is stopped, as is what it guards.
const LINE_WITHIN: std::time::Duration = std::time::Duration::from_millis(50);

impl Running {
    /// Moves the end that was given at the start.
    pub async fn may_run_until(&mut self, end: Moment) {
        if let Some(leash) = &mut self.leash {
            let line = format!("{}\n", end.0);
            let _ = tokio::time::timeout(LINE_WITHIN, leash.write_all(line.as_bytes())).await;
        }
    }
}

/// Starts it under its guard. The guard's process is to be waited for. It kills the command at the given end by itself, also
/// when this process is stopped.
///
/// # Errors
/// If it cannot be started.
pub fn start(
    command: &[OsString],
    environment: Vec<(&'static str, String)>,
    cgroup: Option<&Cgroup>,
    until: Option<Moment>,
    containment: &Containment,
) -> std::io::Result<(Running, Child)> {
    let mut guard = Command::new("/proc/self/exe");
    guard.arg("leash");
    if let Some(until) = until {
        guard.arg("--until").arg(until.0.to_string());
    }
    if let Some(cgroup) = cgroup {
        guard.arg("--cgroup").arg(cgroup.path());
    }
    guard.arg("--").args(command).envs(environment).process_group(0).stdin(Stdio::piped());
    let mut child = guard.spawn()?;
    if let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        containment.add(group);
    }
    let leash = child.stdin.take();
    Ok((Running { leash }, child))
}

/// Asks everything to end.
pub fn ask_to_end(containment: &Containment) {
    containment.signal(Signal::TERM);
    // Stopped processes hear of it as well.
    containment.signal(Signal::CONT);
}

/// Returns when nothing runs any more.
pub async fn empty(containment: Arc<Containment>) {
    while !containment.is_empty() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Kills until nothing runs any more: a process that was just being made may have been missed.
pub async fn kill(containment: Arc<Containment>) -> Moment {
    loop {
        containment.kill();
        tokio::time::sleep(LOOK_EVERY).await;
        if containment.is_empty() {
            return Clock.now();
        }
    }
}
