//! What operators ask of a running agent, over its socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use serde_json::Value;

use crate::agent::control::{Drill as What, Reply, Request};
use crate::cli::config::NodeConfig;
use crate::cli::config::agent::load;
use crate::ids::NodeId;

/// The agent refuses, and nothing has changed.
const REFUSED: u8 = 1;

/// For how long the agent may be silent before it counts as stopped.
const PATIENCE: Duration = Duration::from_secs(10);

fn send(socket: &Path, request: &Request, patience: Option<Duration>) -> anyhow::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).map_err(|error| {
        let help = match error.kind() {
            io::ErrorKind::PermissionDenied => "only root and the configured group may use it",
            _ => "does the agent run on this machine?",
        };
        anyhow::anyhow!("{}: {error}; {help}", socket.display())
    })?;
    stream.set_read_timeout(patience)?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    Ok(stream)
}

/// Which agent.
#[derive(Args, Debug)]
pub struct Which {
    /// The replica's configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
}

impl Which {
    fn socket(&self) -> anyhow::Result<PathBuf> {
        // Which service it has does not matter here.
        let (_, agent) = load(&self.config, Some(Vec::new()))?;
        Ok(agent.socket())
    }

    /// Asks, and leaves the reading to the caller.
    pub(super) fn begin(&self, request: &Request) -> anyhow::Result<UnixStream> {
        send(&self.socket()?, request, None)
    }

    fn ask(&self, request: &Request) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Reply>> + use<>> {
        let socket = self.socket()?;
        // An order to an agent that stands still would be carried out whenever it goes on.
        let mut answer = BufReader::new(send(&socket, &Request::Status, Some(PATIENCE))?).lines();
        match answer.next() {
            Some(Ok(_)) => {}
            Some(Err(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                bail!(
                    "{}: the agent has not answered for {PATIENCE:?}, so it was asked for nothing: it is stopped (`tiebreak \
                 drill freeze` does that for a time), or this machine starves it",
                    socket.display()
                )
            }
            Some(Err(error)) => return Err(error).with_context(|| socket.display().to_string()),
            None => bail!("{}: the agent has hung up", socket.display()),
        }
        let lines = BufReader::new(send(&socket, request, None)?).lines();
        Ok(lines.map(|line| Ok(serde_json::from_str(&line?)?)))
    }

    /// Prints what the agent says until it has said everything.
    pub(super) fn order(&self, request: &Request) -> anyhow::Result<ExitCode> {
        for reply in self.ask(request)? {
            match reply? {
                Reply::Progress { text } => println!("{text}"),
                Reply::Done { text } => {
                    println!("{text}");
                    return Ok(ExitCode::SUCCESS);
                }
                Reply::Refused { text } | Reply::Busy { text } => {
                    eprintln!("tiebreak: {text}");
                    return Ok(ExitCode::from(REFUSED));
                }
                Reply::State { .. } | Reply::Waits { .. } | Reply::Held { .. } | Reply::Lost { .. } => {}
            }
        }
        bail!("the agent has hung up; look at its log, and at `tiebreak status`")
    }
}

/// Let the other node lead, once it holds everything
#[derive(Args, Debug)]
pub struct Switchover {
    #[command(flatten)]
    which: Which,
    /// The node that is to lead
    #[arg(long, value_name = "NODE")]
    to: Option<NodeId>,
    /// Return when it leads
    #[arg(long)]
    wait: bool,
    /// For the history and the hooks
    #[arg(long, default_value = "", value_name = "TEXT")]
    reason: String,
}

impl Switchover {
    /// Asks and prints.
    ///
    /// # Errors
    /// If the agent cannot be asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.which.order(&Request::Switchover { to: self.to, wait: self.wait, reason: self.reason })
    }
}

/// Let this node lead no longer, whatever the last check said of the other one
#[derive(Args, Debug)]
pub struct Resign {
    #[command(flatten)]
    which: Which,
    /// For the history and the hooks
    #[arg(long, default_value = "", value_name = "TEXT")]
    reason: String,
}

impl Resign {
    /// Asks and prints.
    ///
    /// # Errors
    /// If the agent cannot be asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.which.order(&Request::Resign { reason: self.reason })
    }
}

/// Leave the service alone, whatever happens to the votes
#[derive(Args, Debug)]
#[command(
    after_help = "It holds for this node only. Pause the standby first, then the leader; resume the leader first."
)]
pub struct Pause {
    #[command(flatten)]
    which: Which,
}

impl Pause {
    /// Asks and prints.
    ///
    /// # Errors
    /// If the agent cannot be asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.which.order(&Request::Pause)
    }
}

/// Let the service follow the votes again
#[derive(Args, Debug)]
pub struct Resume {
    #[command(flatten)]
    which: Which,
}

impl Resume {
    /// Asks and prints.
    ///
    /// # Errors
    /// If the agent cannot be asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.which.order(&Request::Resume)
    }
}

/// Show who led when, why, and with which token, as this node knows it
#[derive(Args, Debug)]
pub struct History {
    #[command(flatten)]
    which: Which,
    /// One JSON object for each line
    #[arg(long)]
    json: bool,
}

impl History {
    /// Reads and prints.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let config = NodeConfig::load(&self.which.config)?;
        let entries =
            crate::agent::history::History::of(&config.own().state).read().context("the history")?;
        let mut out = io::stdout().lock();
        if self.json {
            for entry in &entries {
                writeln!(out, "{}", serde_json::to_string(entry)?)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["when (UTC)", "node", "what", "term", "token", "why"]);
        for entry in entries {
            let when =
                humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(entry.at));
            table.add_row([
                when.to_string(),
                entry.node.to_string(),
                entry.event,
                entry.term.map_or("-".into(), |term| term.to_string()),
                entry.token.map_or("-".into(), |token| token.to_string()),
                entry.reason,
            ]);
        }
        writeln!(out, "{table}")?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Show what the agent does, a line for each change, until it ends
#[derive(Args, Debug)]
pub struct Watch {
    #[command(flatten)]
    which: Which,
    /// The whole state as one JSON object for each line
    #[arg(long)]
    json: bool,
    /// Only what is now
    #[arg(long)]
    once: bool,
}

impl Watch {
    /// Asks and prints.
    ///
    /// # Errors
    /// If the agent cannot be asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let request = if self.once { Request::Status } else { Request::Watch };
        let mut out = io::stdout().lock();
        for reply in self.which.ask(&request)? {
            let Reply::State { state } = reply? else { continue };
            if self.json {
                writeln!(out, "{state}")?;
            } else {
                writeln!(out, "{}", in_words(&state))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn in_words(state: &Value) -> String {
    let text = |name: &str| state[name].as_str().unwrap_or("-").to_string();
    let mut line = format!(
        "{}: {}, the service {}; {} leads term {}",
        text("node"),
        text("role"),
        text("service"),
        state["leader"].as_str().unwrap_or("nobody"),
        state["term"]
    );
    if state["right"] != "none" {
        line += &format!(", {}", text("right"));
    }
    for (name, word) in [("paused", "paused"), ("stepping_down", "steps down")] {
        if state[name] == true {
            line += &format!(", {word}");
        }
    }
    if state["redundant"] == false {
        line += ", redundancy lost";
    }
    if state["watchdog"] == "starved" {
        line += ", the watchdog is not fed";
    }
    if let Some(why) = state["refused"].as_str() {
        line += &format!("; refused by {why}");
    }
    line
}

/// Break something on purpose: bounded in time, ends by itself
#[derive(Args, Debug)]
pub struct Drill {
    /// What to break
    #[arg(value_enum)]
    what: Breaks,
    #[command(flatten)]
    which: Which,
    /// For how long; at most 10 minutes
    #[arg(long = "for", default_value = "10s", value_parser = humantime::parse_duration, value_name = "SPAN")]
    span: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Breaks {
    /// This node hears nobody and is heard by nobody
    Partition,
    /// The agent is stopped and the service runs on: what the watchdog is for
    Freeze,
    /// The agent is killed; whoever runs it starts it again
    Kill,
}

impl Drill {
    /// Asks and prints.
    ///
    /// # Errors
    /// If the agent cannot be asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let what = match self.what {
            Breaks::Partition => What::Partition,
            Breaks::Freeze => What::Freeze,
            Breaks::Kill => What::Kill,
        };
        let for_ms = u64::try_from(self.span.as_millis()).unwrap_or(u64::MAX);
        self.which.order(&Request::Drill { what, for_ms })
    }
}
