//! Runs hooks: one process group each, a fixed environment, output into the log.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::edge::clock::Clock;
use crate::ids::{ClusterName, NodeId, Token};
use crate::time::Moment;

use super::command::LOOK_EVERY;
use super::contain::{self, Cgroup, Containment, Named};
use super::supervisor::{Hook, Outcome, Run};

/// Bytes of one line of output that are logged.
const LINE_BYTES_MAX: u64 = 4096;
/// Lines of one run that are logged.
const LINES_MAX: usize = 500;
/// Bytes of a check's standard output that are kept.
const SAID_BYTES_MAX: usize = 2048;
/// How long the end of the output is waited for once a hook has ended: what it started may keep it open for ever.
const OUTPUT_PATIENCE: Duration = Duration::from_millis(200);

/// The same for what a check says, which counts.
const SAID_PATIENCE: Duration = Duration::from_secs(1);

/// What every hook is told.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The cluster.
    pub cluster: ClusterName,
    /// This node.
    pub node: NodeId,
    /// The other replica.
    pub peer: NodeId,
    /// Where sockets and the token are.
    pub runtime: PathBuf,
}

/// A hook has ended.
#[derive(Debug)]
pub struct Ended {
    /// Which.
    pub hook: Hook,
    /// How.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
    /// What a check said on its standard output.
    pub said: String,
}

/// Runs hooks.
#[derive(Debug)]
pub struct Hooks {
    paths: BTreeMap<Hook, PathBuf>,
    facts: Facts,
    cgroup: Option<Cgroup>,
    containment: Arc<Containment>,
    ended: mpsc::Sender<Ended>,
    running: Option<Pid>,
    /// The one that runs was killed.
    killed: Arc<AtomicBool>,
}

impl Hooks {
    /// With these executables.
    pub fn new(
        paths: BTreeMap<Hook, PathBuf>,
        facts: Facts,
        cgroup: Option<Cgroup>,
        containment: Arc<Containment>,
        ended: mpsc::Sender<Ended>,
    ) -> Hooks {
        Hooks { paths, facts, cgroup, containment, ended, running: None, killed: Arc::default() }
    }

    /// What every hook is told.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Other executables from now on.
    pub fn set_paths(&mut self, paths: BTreeMap<Hook, PathBuf>) {
        self.paths = paths;
    }

    /// Starts one. How it ended is told later, whatever happens.
    pub fn start(&mut self, run: &Run, token: Option<Token>) {
        let (hook, began) = (run.hook, Clock.now());
        let ended = self.ended.clone();
        let tell = move |outcome, said| Ended { hook, outcome, took: Clock.now().since(began), said };
        let mut child = match self.command(run, token).spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::error!(%hook, "cannot be started: {error}");
                tokio::spawn(async move {
                    let _ = ended.send(tell(Outcome::NotStarted(error.to_string()), String::new())).await;
                });
                return;
            }
        };
        tracing::info!(%hook, reason = %run.reason, "runs");
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        self.running = group;
        self.killed = Arc::default();
        self.note(group);
        let killed = self.killed.clone();
        let leaves_nothing = matches!(hook, Hook::Check | Hook::OnEvent | Hook::Fence);
        if let Some(group) = group
            && !leaves_nothing
        {
            self.containment.add(group);
        }
        let (to, said) = mpsc::channel(1);
        let out = child.stdout.take().map(|out| tokio::spawn(narrate(hook, out, Some(to))));
        let err = child.stderr.take().map(|err| tokio::spawn(narrate(hook, err, None)));
        tokio::spawn(async move {
            let outcome = match child.wait().await {
                Ok(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => Outcome::Code(code),
                    (None, signal) => Outcome::Signal(signal.unwrap_or(0)),
                },
                Err(error) => Outcome::NotStarted(error.to_string()),
            };
            if let Some(group) = group {
                if leaves_nothing {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                // What it had started may still be at it: the next hook must not run beside that.
                while killed.load(Ordering::Acquire) && contain::is_alive(group) {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
            let said = if hook == Hook::Check { heard(said).await } else { String::new() };
            for reader in [out, err].into_iter().flatten() {
                let _ = tokio::time::timeout(OUTPUT_PATIENCE, reader).await;
            }
            let _ = ended.send(tell(outcome, said)).await;
        });
    }

    /// SIGKILL to the hook that runs, and to everything that it started.
    pub fn kill(&self) {
        if let Some(group) = self.running {
            self.killed.store(true, Ordering::Release);
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// It has ended: its number may be given to others.
    pub fn forget(&mut self) {
        self.running = None;
        let _ = std::fs::remove_file(self.noted());
    }

    /// Where the hook that runs is written down for a later life of the agent.
    fn noted(&self) -> PathBuf {
        self.facts.runtime.join("hook")
    }

    fn note(&self, group: Option<Pid>) {
        let Some(named) = group.and_then(Named::now) else { return };
        if let Err(error) = named.note(&self.noted()) {
            tracing::warn!(path = %self.noted().display(), "{error}: should the agent be killed now, its hook goes on");
        }
    }

    /// Kills the hook that an earlier life of the agent has left running: a late `promote` would undo this life's
    /// `demote`. Whether it is gone.
    pub fn kill_left_over(&self) -> bool {
        let Some(group) = Named::noted(&self.noted()) else { return true };
        let _ = kill_process_group(group, Signal::KILL);
        !contain::is_alive(group)
    }

    fn command(&self, run: &Run, token: Option<Token>) -> Command {
        let nothing = PathBuf::new();
        let path = self.paths.get(&run.hook).unwrap_or(&nothing);
        let leaves_nothing = matches!(run.hook, Hook::Check | Hook::OnEvent | Hook::Fence);
        let mut command = match &self.cgroup {
            Some(cgroup) if !leaves_nothing => contained(cgroup.path(), path),
            _ => Command::new(path),
        };
        command.arg(run.hook.name());
        if let Some((name, _)) = &run.event {
            command.arg(name);
        }
        command
            .envs(environment(&self.facts, run, token, Clock.now()))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// This program once more: it moves itself into the cgroup and becomes `program`, so that nothing of it is ever outside.
pub fn contained(cgroup: &Path, program: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("contained").arg("--cgroup").arg(cgroup).arg("--").arg(program);
    command
}

/// The variables of the contract.
pub fn environment(
    facts: &Facts,
    run: &Run,
    token: Option<Token>,
    now: Moment,
) -> Vec<(&'static str, String)> {
    let or_nothing = |value: Option<String>| value.unwrap_or_default();
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_string();
    let mut variables = vec![
        ("TIEBREAK_CLUSTER", facts.cluster.to_string()),
        ("TIEBREAK_NODE", facts.node.to_string()),
        ("TIEBREAK_PEER", facts.peer.to_string()),
        ("TIEBREAK_RUNTIME", facts.runtime.display().to_string()),
        ("TIEBREAK_ROLE", if token.is_some() { "leader" } else { "standby" }.to_string()),
        ("TIEBREAK_LEADER", or_nothing(run.leader.map(|leader| leader.to_string()))),
        ("TIEBREAK_TERM", or_nothing(token.map(|token| token.term().to_string()))),
        ("TIEBREAK_TOKEN", or_nothing(token.map(|token| token.to_string()))),
        ("TIEBREAK_REASON", run.reason.to_string()),
        ("TIEBREAK_DEADLINE_MS", run.deadline.since(now).as_millis().to_string()),
        ("TIEBREAK_ACKNOWLEDGE", run.mode.to_string()),
        ("TIEBREAK_MAY_DESTROY", yes(run.may_destroy)),
    ];
    if let Some((name, text)) = &run.event {
        variables.push(("TIEBREAK_EVENT", (*name).to_string()));
        variables.push(("TIEBREAK_EVENT_TEXT", text.clone()));
    }
    variables
}

/// Logs each line; what a check says is kept as well.
async fn narrate(hook: Hook, from: impl AsyncRead + Unpin, keep: Option<mpsc::Sender<String>>) {
    let mut reader = BufReader::new(from);
    let (mut kept, mut line, mut lines) = (String::new(), Vec::new(), 0);
    loop {
        line.clear();
        match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        lines += 1;
        if lines <= LINES_MAX {
            if hook == Hook::Check {
                tracing::debug!(%hook, "{text}");
            } else {
                tracing::info!(%hook, "{text}");
            }
        }
        if kept.len() + text.len() < SAID_BYTES_MAX {
            kept.push_str(text);
            kept.push('\n');
        }
    }
    if let Some(keep) = keep {
        let _ = keep.send(kept).await;
    }
}

async fn heard(mut said: mpsc::Receiver<String>) -> String {
    if let Ok(said) = tokio::time::timeout(SAID_PATIENCE, said.recv()).await {
        return said.unwrap_or_default();
    }
    // On a starved machine the time may be over before the reader had its turn.
    tokio::task::yield_now().await;
    said.try_recv().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::supervisor::{Mode, Reason};
    use crate::ids::Term;

    #[test]
    fn a_hook_is_told_everything_that_the_contract_names() {
        let facts = Facts {
            cluster: "orders".parse().expect("a name"),
            node: "a".parse().expect("a name"),
            peer: "b".parse().expect("a name"),
            runtime: "/run/tiebreak".into(),
        };
        let run = Run {
            hook: Hook::OnEvent,
            reason: Reason::Switchover("upgrade".into()),
            deadline: Moment(2_500_000_000),
            mode: Mode::Alone,
            leader: None,
            may_destroy: false,
            event: Some(("redundancy_lost", "b is gone".into())),
        };
        let told: BTreeMap<_, _> =
            environment(&facts, &run, Some(Token::of(Term(7))), Moment(1_000_000_000)).into_iter().collect();
        let expected = [
            ("TIEBREAK_ROLE", "leader"),
            ("TIEBREAK_TERM", "7"),
            ("TIEBREAK_TOKEN", "30064771072"),
            ("TIEBREAK_PEER", "b"),
            ("TIEBREAK_REASON", "switchover: upgrade"),
            ("TIEBREAK_DEADLINE_MS", "1500"),
            ("TIEBREAK_ACKNOWLEDGE", "alone"),
            ("TIEBREAK_EVENT", "redundancy_lost"),
        ];
        for (name, value) in expected {
            assert_eq!(told.get(name).map(String::as_str), Some(value), "{name}");
        }
    }
}
