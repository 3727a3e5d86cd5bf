//! The command of `tiebreak run`: runs while this node leads, in a process group (and a cgroup where one can be made) of
//! its own, under a guard that outlives neither the command nor the agent.

use std::ffi::OsString;
use std::process::Stdio;
use std::sync::Arc;

use rustix::process::{Pid, Signal};
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
    _leash: Option<ChildStdin>,
}

/// Starts it under its guard. The guard's process is to be waited for.
///
/// # Errors
/// If it cannot be started.
pub fn start(
    command: &[OsString],
    environment: Vec<(&'static str, String)>,
    cgroup: Option<&Cgroup>,
    containment: &Containment,
) -> std::io::Result<(Running, Child)> {
    let mut guard = Command::new("/proc/self/exe");
    guard.arg("leash");
    if let Some(cgroup) = cgroup {
        guard.arg("--cgroup").arg(cgroup.path());
    }
    guard.arg("--").args(command).envs(environment).process_group(0).stdin(Stdio::piped());
    let mut child = guard.spawn()?;
    if let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        containment.add(group);
    }
    let leash = child.stdin.take();
    Ok((Running { _leash: leash }, child))
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
