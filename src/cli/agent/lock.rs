//! `tiebreak lock`: a command that runs while this node holds a name, and is killed before it can hold it no longer.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{self, SignalKind, signal};

use super::operate::Which;
use crate::agent::command;
use crate::agent::contain::Containment;
use crate::agent::control::{Reply, Request};
use crate::agent::locks::Wish;
use crate::edge::clock::Clock;
use crate::ids::{LockName, Token};
use crate::limits::{NAME_LEASE_MAX, NAME_LEASE_MIN};
use crate::time::Moment;

/// `EX_UNAVAILABLE`: the agent cannot be asked, or refuses.
const UNAVAILABLE: u8 = 69;
/// `EX_TEMPFAIL`: the name was lost, and the command was killed.
const LOST: u8 = 75;
/// The command is asked to end when so much of the lease is left (in hundredths): several renewals are missing then.
const ASK_TO_END_PERCENT: u32 = 40;
/// It is killed when so much is left.
const KILL_PERCENT: u32 = 15;
/// For how long the agent is waited for when the name is given back.
const GOODBYE: Duration = Duration::from_secs(3);

/// Run a command while this node holds a name that nobody else in the cluster holds
#[derive(Args, Debug)]
#[command(after_help = "\
The command gets TIEBREAK_LOCK, TIEBREAK_TOKEN (higher than that of any earlier holder of the name: give it to whatever the \
command writes to) and TIEBREAK_DEADLINE_NS (when the first lease ends, on CLOCK_BOOTTIME). Its standard input is empty.

When the name is lost, its whole process group gets SIGTERM, and SIGKILL before anybody else can hold the name. A change of \
the leader loses every name. What is left of the group when the command ends is killed, then the name is given back. \
SIGTERM, SIGINT and SIGHUP ask the command to end; the second one kills it.

Exit codes: the command's own (128 + n if signal n ended it; 126 and 127 if it cannot be run); 1, or that of -E: somebody \
else holds the name; 69: the agent cannot be asked, or no leader can be reached; 75: the name was lost.")]
pub struct Lock {
    #[command(flatten)]
    which: Which,
    /// Letters, digits, '.', '_' and '-'; at most 32
    #[arg(value_name = "NAME")]
    name: LockName,
    /// Give up after this long; without it there is no end to the waiting
    #[arg(long, short, value_parser = humantime::parse_duration, value_name = "SPAN", conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Give up at once if somebody else holds it
    #[arg(long, short)]
    no_wait: bool,
    /// How long the name stays taken when this machine dies: 200ms to 2s
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration, value_name = "SPAN")]
    ttl: Duration,
    /// The exit code when somebody else holds it
    #[arg(long, short = 'E', default_value_t = 1, value_name = "CODE")]
    conflict_exit_code: u8,
    /// Let whoever holds it lose it, and return
    #[arg(long, conflicts_with_all = ["wait", "no_wait", "command"])]
    revoke: bool,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "revoke", value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Lock {
    /// Locks, runs, gives back.
    ///
    /// # Errors
    /// None of its own: what goes wrong is told, and has an exit code.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.revoke {
            return self.which.order(&Request::Revoke { name: self.name });
        }
        if !(NAME_LEASE_MIN..=NAME_LEASE_MAX).contains(&self.ttl) {
            eprintln!("tiebreak: --ttl is {NAME_LEASE_MIN:?} to {NAME_LEASE_MAX:?}, not {:?}", self.ttl);
            return Ok(ExitCode::from(2));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(self.locked()).unwrap_or_else(|error| {
            eprintln!("tiebreak: {error:#}");
            ExitCode::from(UNAVAILABLE)
        }))
    }

    async fn locked(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new()?;
        let mut agent = self.ask()?;
        let given_up = async {
            match self.wait {
                Some(span) => Clock.after(span).await,
                None => std::future::pending().await,
            }
        };
        // One attempt takes no longer than a lease, unless the agent is stopped.
        let unheard = async {
            if self.no_wait {
                Clock.after(NAME_LEASE_MAX + GOODBYE).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let (mut given_up, mut unheard, mut asked) = (pin!(given_up), pin!(unheard), None);
        let reply = loop {
            tokio::select! {
                reply = agent.reply() => match reply? {
                    Some(Reply::Waits { text, taken }) => {
                        eprintln!("tiebreak: waits for {}: {text}", self.name);
                        asked = Some((text, taken));
                    }
                    reply => break reply,
                },
                () = &mut given_up => {
                    let span = self.wait.unwrap_or_default();
                    let (text, taken) =
                        asked.unwrap_or_else(|| ("the agent has not answered".to_owned(), false));
                    eprintln!("tiebreak: {} was not had in {span:?}: {text}", self.name);
                    return Ok(ExitCode::from(if taken { self.conflict_exit_code } else { UNAVAILABLE }));
                }
                () = &mut unheard => {
                    anyhow::bail!("the agent does not answer: it is stopped, or this machine starves it")
                }
                number = signals.next() => return Ok(ExitCode::from(128 + number)),
            }
        };
        match reply {
            Some(Reply::Held { token, until_ns }) => self.work(agent, signals, token, Moment(until_ns)).await,
            Some(Reply::Busy { text }) => {
                eprintln!("tiebreak: {}: {text}", self.name);
                Ok(ExitCode::from(self.conflict_exit_code))
            }
            Some(Reply::Refused { text }) => {
                eprintln!("tiebreak: {}: {text}", self.name);
                Ok(ExitCode::from(UNAVAILABLE))
            }
            _ => anyhow::bail!("the agent has hung up; look at its log, and at `tiebreak status`"),
        }
    }

    fn ask(&self) -> anyhow::Result<Agent> {
        let lease_ms = u32::try_from(self.ttl.as_millis()).unwrap_or(u32::MAX);
        let wish = Wish { name: self.name, lease_ms, wait: !self.no_wait, clock_ns: Clock.now().0 };
        let stream = self.which.begin(&Request::Lock(wish))?;
        stream.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(stream)?.into_split();
        Ok(Agent { lines: BufReader::new(reader).lines(), writer })
    }

    /// Runs the command until it ends, or the name is lost.
    async fn work(
        &self,
        mut agent: Agent,
        mut signals: Signals,
        token: Token,
        mut until: Moment,
    ) -> anyhow::Result<ExitCode> {
        let environment = vec![
            ("TIEBREAK_LOCK", self.name.to_string()),
            ("TIEBREAK_TOKEN", token.to_string()),
            ("TIEBREAK_DEADLINE_NS", until.0.to_string()),
        ];
        let left = |until, percent| before(until, self.ttl * percent / 100);
        // This process may have been stopped since it was told, and the name be somebody else's.
        while Clock.now() >= left(until, KILL_PERCENT) {
            match agent.reply().await? {
                Some(Reply::Held { until_ns, .. }) => until = until.max(Moment(until_ns)),
                _ => {
                    eprintln!("tiebreak: {} was lost before the command was started", self.name);
                    return Ok(ExitCode::from(LOST));
                }
            }
        }
        let containment = Arc::new(Containment::default());
        let end = Some(left(until, KILL_PERCENT));
        let (mut running, mut child) = command::start(&self.command, environment, None, end, &containment)?;
        let (mut lost, mut asked, mut heard) = (None, false, true);
        let status = loop {
            tokio::select! {
                biased;
                status = child.wait() => break status?,
                reply = agent.reply(), if heard => match reply {
                    Ok(Some(Reply::Held { until_ns, .. })) => {
                        until = until.max(Moment(until_ns));
                        running.may_run_until(left(until, KILL_PERCENT)).await;
                    }
                    other => {
                        heard = false;
                        lost = Some(match other {
                            Ok(Some(Reply::Lost { text, .. })) => text,
                            _ => "the agent has ended".into(),
                        });
                        command::ask_to_end(&containment);
                    }
                },
                () = Clock.until(left(until, KILL_PERCENT)) => {
                    lost.get_or_insert_with(|| "it was not renewed in time".to_string());
                    command::kill(containment.clone()).await;
                    break child.wait().await?;
                }
                () = Clock.until(left(until, ASK_TO_END_PERCENT)), if !asked => {
                    asked = true;
                    lost.get_or_insert_with(|| "it was not renewed in time".to_string());
                    command::ask_to_end(&containment);
                }
                _ = signals.next() => signals.pass_on(&containment),
            }
        };
        if status.signal() == Some(Signal::KILL.as_raw()) && Clock.now() >= left(until, KILL_PERCENT) {
            lost.get_or_insert_with(|| {
                "this process was stopped, and its guard killed the command".to_string()
            });
        }
        // Whatever is left of it must not act when somebody else has the name.
        command::kill(containment).await;
        agent.release().await;
        if let Some(why) = lost {
            eprintln!("tiebreak: {} is lost, and the command was stopped: {why}", self.name);
            return Ok(ExitCode::from(LOST));
        }
        Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(128 + 9)))
    }
}

fn before(moment: Moment, span: Duration) -> Moment {
    Moment(moment.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
}

/// The agent's end of the socket.
struct Agent {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl Agent {
    /// What it says; `None` when it has hung up. Cancel-safe.
    async fn reply(&mut self) -> anyhow::Result<Option<Reply>> {
        let Some(line) = self.lines.next_line().await? else { return Ok(None) };
        Ok(Some(serde_json::from_str(&line).context("what the agent says")?))
    }

    /// Gives the name back. What is not heard ends by itself.
    async fn release(mut self) {
        let told = async {
            self.writer.write_all(b"release\n").await?;
            while !matches!(self.reply().await?, None | Some(Reply::Done { .. })) {}
            anyhow::Ok(())
        };
        let _ = tokio::time::timeout(GOODBYE, told).await;
    }
}

/// What asks this process to end.
struct Signals {
    kinds: [unix::Signal; 3],
    /// Ctrl-Z: one that holds a name does not stop.
    _stop: unix::Signal,
    heard: u32,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        let kinds = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        Ok(Signals { kinds, _stop: signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?, heard: 0 })
    }

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        let [terminate, interrupt, hangup] = &mut self.kinds;
        tokio::select! {
            _ = terminate.recv() => 15,
            _ = interrupt.recv() => 2,
            _ = hangup.recv() => 1,
        }
    }

    fn pass_on(&mut self, containment: &Containment) {
        self.heard += 1;
        if self.heard == 1 { command::ask_to_end(containment) } else { containment.kill() }
    }
}
