//! `tiebreak agent` and `tiebreak run`, and what operators do with a running one.

pub mod doctor;
pub mod helpers;
pub mod lock;
pub mod operate;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::config::agent::load;
use crate::agent::config::{AgentConfig, ServiceConfig};
use crate::agent::run::run;

/// Run the agent
#[derive(Args, Debug)]
#[command(
    after_help = "SIGTERM stops the service, gives the lease back and ends. SIGHUP reads the configuration again."
)]
pub struct RunAgent {
    /// The replica's configuration file, with its [agent] table
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the file and stop
    #[arg(long)]
    pub check_config: bool,
}

impl RunAgent {
    /// Runs until SIGTERM.
    ///
    /// # Errors
    /// If it cannot start, or the voter failed.
    pub fn run(self) -> anyhow::Result<()> {
        start(self.config, self.check_config, None)
    }
}

/// Run a command only while this node leads
#[derive(Args, Debug)]
#[command(
    after_help = "The command gets TIEBREAK_TOKEN and the other variables of the hooks. When this node may act no longer, \
                  its whole process group (and cgroup, where one can be made) gets SIGTERM, then SIGKILL. One that ends by itself has failed: it is handed over, or started again after ever longer pauses."
)]
pub struct RunCommand {
    /// The replica's configuration file; an [agent] table is optional
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the file and stop
    #[arg(long)]
    pub check_config: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl RunCommand {
    /// Runs until SIGTERM.
    ///
    /// # Errors
    /// If it cannot start, or the voter failed.
    pub fn run(self) -> anyhow::Result<()> {
        start(self.config, self.check_config, Some(self.command))
    }
}

fn start(path: PathBuf, check_only: bool, command: Option<Vec<OsString>>) -> anyhow::Result<()> {
    let (replica, agent) = load(&path, command.clone())?;
    if check_only {
        println!("{}: good; {}", path.display(), described(&agent));
        return Ok(());
    }
    super::log_to_stderr();
    let watched = path.clone();
    let reload = move || load(&path, command.clone()).map_err(|error| error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        tokio::spawn(super::join::complete_in_background(watched));
        run(replica, agent, Box::new(reload)).await
    });
    // A disk that hangs must not keep a process whose service is stopped.
    runtime.shutdown_background();
    Ok(outcome?)
}

fn described(agent: &AgentConfig) -> String {
    let what = match &agent.service {
        ServiceConfig::Hooks(hooks) => {
            let names: Vec<&str> = hooks.keys().map(|hook| hook.name()).collect();
            format!("hooks {}", names.join(", "))
        }
        ServiceConfig::Command(words) => {
            format!(
                "the command {}",
                words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
            )
        }
    };
    format!("{what}; a stop begins {:?} before the lease ends", agent.times.stop_before())
}
