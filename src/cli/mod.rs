//! The `tiebreak` command: parse, call, print, exit code.

mod agent;
pub mod config;
mod demo;
#[cfg(feature = "object-store")]
pub mod guard;
pub mod init;
pub mod join;
pub mod keys;
pub mod recover;
pub mod status;
pub mod witness;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The third vote for two-node clusters.
#[derive(Parser, Debug)]
#[command(name = "tiebreak", version, about, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the witness: the third vote, which holds no data
    Witness(witness::RunWitness),
    /// Print a code with which a replica joins a cluster
    Invite(join::Invite),
    /// Join a cluster with a code: key, configuration and state are made
    Join(join::Join),
    /// Take this node's key out of its cluster at the witness
    Leave(join::Leave),
    /// Show the clusters of this witness
    Clusters(join::Clusters),
    /// Let another witness serve this cluster, while it runs
    ReplaceWitness(join::ReplaceWitness),
    /// Make a node's durable state, once
    Init(init::Init),
    /// Make and show the keys by which nodes know each other
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Show how a cluster is, and why
    Status(status::Status),
    /// Run the agent: start, stop and check a service where this node may lead
    Agent(agent::RunAgent),
    /// Run a command only while this node leads
    Run(agent::RunCommand),
    /// Run a command while this node holds a name that nobody else in the cluster holds
    Lock(agent::lock::Lock),
    /// Let the other node lead, once it holds everything
    Switchover(agent::operate::Switchover),
    /// Let this node lead no longer
    Resign(agent::operate::Resign),
    /// Leave the service alone, whatever happens to the votes
    Pause(agent::operate::Pause),
    /// Let the service follow the votes again
    Resume(agent::operate::Resume),
    /// Show who led when, why, and with which token
    History(agent::operate::History),
    /// Show what the agent does, as it does it
    Watch(agent::operate::Watch),
    /// Break something on purpose: bounded in time, ends by itself
    Drill(agent::operate::Drill),
    /// Look for what would go wrong: addresses, keys, clock, disk, watchdog, times
    Doctor(agent::doctor::Doctor),
    /// A helper of the agent
    #[command(hide = true)]
    Contained(agent::helpers::Contained),
    /// A helper of the agent
    #[command(hide = true)]
    Leash(agent::helpers::Guard),
    /// A helper of the agent
    #[command(hide = true)]
    Freeze(agent::helpers::Freeze),
    /// Go on, on the surviving replica, without what the lost one acknowledged
    Recover(recover::Recover),
    /// Begin a node again as blank, and let a leader take it in
    Replace(recover::Replace),
    /// Tell whether a resource can refuse a stale writer
    #[cfg(feature = "object-store")]
    #[command(subcommand)]
    Guard(guard::Guard),
    /// Run a real cluster on this machine, break it, and count what was lost: nothing
    Demo(demo::Demo),
    /// One process of the demo
    #[command(subcommand, hide = true)]
    DemoNode(demo::DemoNode),
}

impl Cli {
    /// Does what was asked for.
    ///
    /// # Errors
    /// If it cannot be done; the error says what to do about it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Witness(witness) => witness.run().map(|()| ExitCode::SUCCESS),
            Command::Invite(invite) => invite.run().map(|()| ExitCode::SUCCESS),
            Command::Join(join) => join.run().map(|()| ExitCode::SUCCESS),
            Command::Leave(leave) => leave.run().map(|()| ExitCode::SUCCESS),
            Command::Clusters(clusters) => clusters.run().map(|()| ExitCode::SUCCESS),
            Command::ReplaceWitness(replace) => replace.run().map(|()| ExitCode::SUCCESS),
            Command::Init(init) => init.run().map(|()| ExitCode::SUCCESS),
            Command::Keys(keys) => keys.run().map(|()| ExitCode::SUCCESS),
            Command::Status(status) => status.run(),
            Command::Agent(agent) => agent.run().map(|()| ExitCode::SUCCESS),
            Command::Run(command) => command.run().map(|()| ExitCode::SUCCESS),
            Command::Lock(lock) => lock.run(),
            Command::Switchover(order) => order.run(),
            Command::Resign(order) => order.run(),
            Command::Pause(order) => order.run(),
            Command::Resume(order) => order.run(),
            Command::History(history) => history.run(),
            Command::Watch(watch) => watch.run(),
            Command::Drill(drill) => drill.run(),
            Command::Doctor(doctor) => doctor.run(),
            Command::Contained(helper) => helper.run(),
            Command::Leash(helper) => helper.run(),
            Command::Freeze(helper) => helper.run(),
            Command::Recover(recover) => recover.run().map(|()| ExitCode::SUCCESS),
            Command::Replace(replace) => replace.run().map(|()| ExitCode::SUCCESS),
            #[cfg(feature = "object-store")]
            Command::Guard(guard) => guard.run(),
            Command::Demo(demo) => demo.run(),
            Command::DemoNode(node) => node.run(),
        }
    }
}

/// Logs go to standard error; `TIEBREAK_LOG` is the level (`info` unless set).
pub(crate) fn log_to_stderr() {
    use tracing_subscriber::filter::LevelFilter;
    let asked = std::env::var("TIEBREAK_LOG").ok().filter(|level| !level.is_empty());
    let level = asked.as_deref().map(str::parse::<LevelFilter>);
    let _ = tracing_subscriber::fmt()
        .with_max_level(
            level.as_ref().and_then(|level| level.as_ref().ok().copied()).unwrap_or(LevelFilter::INFO),
        )
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .try_init();
    if let Some(Err(_)) = level {
        let asked = asked.unwrap_or_default();
        tracing::warn!("TIEBREAK_LOG={asked} is no level; use off, error, warn, info, debug or trace");
    }
}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let asks_status = std::env::args().nth(1).is_some_and(|command| command == "status");
            return match (error.use_stderr(), asks_status) {
                (false, _) => ExitCode::SUCCESS,
                (true, true) => ExitCode::from(status::UNKNOWN),
                (true, false) => ExitCode::from(2),
            };
        }
    };
    // `status` keeps 1 and 2 for what it found out.
    let failure = if matches!(cli.command, Command::Status(_)) {
        ExitCode::from(status::UNKNOWN)
    } else {
        ExitCode::FAILURE
    };
    cli.run().unwrap_or_else(|error| {
        eprintln!("tiebreak: {error:#}");
        failure
    })
}
