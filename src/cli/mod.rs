//! The `tiebreak` command: parse, call, print, exit code.

pub mod config;
pub mod keys;

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
    /// Make and show the keys by which nodes know each other
    #[command(subcommand)]
    Keys(keys::Keys),
}

impl Cli {
    /// Does what was asked for.
    ///
    /// # Errors
    /// If it cannot be done; the error says what to do about it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Keys(keys) => keys.run().map(|()| ExitCode::SUCCESS),
        }
    }
}

/// The whole program.
pub fn main() -> ExitCode {
    Cli::parse().run().unwrap_or_else(|error| {
        eprintln!("tiebreak: {error:#}");
        ExitCode::FAILURE
    })
}
