//! What the agent starts of this program itself: parts that have to be processes of their own.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use rustix::process::{
    Pid, Signal, getppid, kill_current_process_group, kill_process, set_parent_process_death_signal,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::agent::contain::Cgroup;
use crate::edge::clock::Clock;
use crate::time::Moment;

/// Moves itself into a cgroup, or ties its life to its parent's, and becomes a program.
#[derive(Args, Debug)]
pub struct Contained {
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// Killed when this process, its parent, ends.
    #[arg(long)]
    parent: Option<i32>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Contained {
    /// Does not return unless it fails.
    ///
    /// # Errors
    /// If the cgroup cannot be entered, or the parent is gone. A program that cannot be run is told, and has an exit code.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(cgroup) = &self.cgroup {
            enter(cgroup)?;
        }
        if let Some(parent) = self.parent {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have ended before that.
            ensure!(getppid().map(Pid::as_raw_pid) == Some(parent), "the parent is gone");
        }
        let (program, arguments) = self.command.split_first().context("a program")?;
        let error = std::process::Command::new(program).args(arguments).exec();
        // As shells have it.
        eprintln!("tiebreak: {}: {error}", program.to_string_lossy());
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        Ok(ExitCode::from(if missing { 127 } else { 126 }))
    }
}

fn enter(cgroup: &std::path::Path) -> anyhow::Result<()> {
    let procs = cgroup.join("cgroup.procs");
    std::fs::write(&procs, "0").with_context(|| procs.display().to_string())
}

/// Runs a command, and kills everything around it when whoever started it is gone (then its standard input ends), or when
/// the command's time is over.
#[derive(Args, Debug)]
pub struct Guard {
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// How long the command may run, in nanoseconds of CLOCK_BOOTTIME; each line of standard input moves it.
    #[arg(long)]
    until: Option<u64>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Guard {
    /// Returns the exit code of the command.
    ///
    /// # Errors
    /// If the command cannot be run.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(cgroup) = &self.cgroup {
            enter(cgroup)?;
        }
        let cgroup = self.cgroup.as_deref().and_then(|place| Cgroup::at(place).ok());
        let kill = move || {
            if let Some(cgroup) = &cgroup {
                let _ = cgroup.kill();
            }
            // This process is one of them.
            let _ = kill_current_process_group(Signal::KILL);
        };
        let (move_end, mut end) = watch::channel(self.until.map_or(Moment::FOREVER, Moment));
        std::thread::spawn({
            let kill = kill.clone();
            move || {
                for line in std::io::stdin().lines().map_while(Result::ok) {
                    if let Ok(until) = line.parse() {
                        move_end.send_replace(Moment(until));
                    }
                }
                kill();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            // What the command is asked by signals is not meant for its guard, which tells how the command ended.
            let mut ignored = Vec::new();
            for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
                ignored.push(signal(kind)?);
            }
            // Should agent and guard be killed at once, the command itself goes with the guard; what it has started is
            // found by the next life of the agent.
            let mut command = tokio::process::Command::new("/proc/self/exe")
                .args(["contained", "--parent", &std::process::id().to_string(), "--"])
                .args(&self.command)
                .stdin(Stdio::null())
                .spawn()
                .context("the command's own process")?;
            let status = loop {
                let until = *end.borrow_and_update();
                tokio::select! {
                    status = command.wait() => break status.context("the command's own process")?,
                    () = Clock.until(until) => kill(),
                    Ok(()) = end.changed() => {}
                }
            };
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
        })
    }
}

/// Stops a process, and lets it go on after a time.
#[derive(Args, Debug)]
pub struct Freeze {
    #[arg(long)]
    pid: i32,
    #[arg(long)]
    for_ms: u64,
}

impl Freeze {
    /// Returns when it goes on again.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let pid = Pid::from_raw(self.pid).context("no process id")?;
        let end = Clock.now() + Duration::from_millis(self.for_ms);
        kill_process(pid, Signal::STOP)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        runtime.block_on(Clock.until(end));
        kill_process(pid, Signal::CONT)?;
        Ok(ExitCode::SUCCESS)
    }
}
