//! The stage: three processes, clients that write without pause, a protected resource, and a story that breaks them.

mod clients;
mod nodes;
mod picture;
mod resource;
mod story;
mod tally;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use nodes::Nodes;
use picture::Picture;
use story::Story;
use tally::Tally;

/// Run a real cluster on this machine and break it
#[derive(Args, Debug)]
#[command(
    after_help = "It needs no root, listens on loopback only, and keeps its keys and data in a directory of \
                        its own, which is removed at the end. Exit code: 0 nothing was lost; 1 a write was lost, a \
                        term had two leaders, or a step did not happen in time; 130 after Ctrl-C."
)]
pub struct Demo {
    /// One JSON object per line, for machines
    #[arg(long)]
    json: bool,
    /// The lease of the cluster
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration, value_name = "SPAN")]
    lease: Duration,
}

/// Exit codes after Ctrl-C and SIGTERM, as shells count them.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

impl Demo {
    /// Plays it.
    ///
    /// # Errors
    /// If something did not happen in time.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let bounds = crate::limits::LEASE_MIN..=Duration::from_secs(10);
        anyhow::ensure!(
            bounds.contains(&self.lease),
            "the demo takes a lease from {:?} to {:?}",
            bounds.start(),
            bounds.end()
        );
        // On this thread the children are started: they end with it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(self.play());
        runtime.shutdown_background();
        outcome
    }

    async fn play(self) -> anyhow::Result<ExitCode> {
        let tally = Tally::default();
        let picture = Picture::new(self.json, tally.clone());
        let (resource, gate) = (resource::Resource::new()?, tally.clone());
        let directory = nodes::Directory::new()?;
        let resource_at = resource.serve(directory.path(), gate).await?;
        let nodes = Nodes::prepare(directory.path(), self.lease, resource_at, tally.clone())?;
        let mut story = Story::new(nodes, tally, picture, self.lease);
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let played = tokio::select! {
            played = story.play() => Ok(played),
            _ = interrupt.recv() => Err(INTERRUPTED),
            _ = terminate.recv() => Err(TERMINATED),
        };
        story.end().await;
        match played {
            Err(signalled) => {
                directory.remove();
                Ok(ExitCode::from(signalled))
            }
            Ok(Ok(true)) => {
                directory.remove();
                Ok(ExitCode::SUCCESS)
            }
            Ok(Ok(false)) => {
                eprintln!("Logs and data are kept in {}.", directory.path().display());
                Ok(ExitCode::FAILURE)
            }
            Ok(Err(error)) => Err(error.context(format!(
                "the demo failed; logs and data are kept in {}",
                directory.path().display()
            ))),
        }
    }
}
