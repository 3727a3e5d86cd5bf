//! The stage: three processes, clients that write without pause, a protected resource, and a story that breaks them.

mod bank;
mod clients;
mod fencing;
mod nodes;
mod picture;
mod postgresql;
mod resource;
mod scene;
mod story;
mod tally;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use bank::Bank;
use fencing::Fencing;
use nodes::Nodes;
use picture::Picture;
use scene::Scene;
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
    /// Another story
    #[command(subcommand)]
    story: Option<Stories>,
    /// One JSON object per line, for machines
    #[arg(long, global = true)]
    json: bool,
    /// The lease of the cluster
    #[arg(long, global = true, default_value = "1s", value_parser = humantime::parse_duration, value_name = "SPAN")]
    lease: Duration,
}

/// What can be played besides.
#[derive(Subcommand, Debug)]
enum Stories {
    /// Stop a writer past its lease: what takes its late write, and what refuses it
    #[command(
        after_help = "The same two writers change a balance in a plain file, in a file behind a gate, in two tables of a \
                      PostgreSQL that it starts if one is installed, and in two objects of a store if you name one. Exit \
                      code: 0 every resource with a gate refused the late write, and every other one took it; 1 if not."
    )]
    Fencing {
        /// An object store to use as well: s3://BUCKET[/PREFIX], with AWS_ACCESS_KEY_ID, AWS_ENDPOINT and so on set
        #[arg(long, value_name = "URL")]
        s3: Option<String>,
    },
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
        let scene = Scene { nodes, tally, picture, lease: self.lease };
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let signalled = async {
            tokio::select! {
                _ = interrupt.recv() => INTERRUPTED,
                _ = terminate.recv() => TERMINATED,
            }
        };
        let played = match self.story {
            None => {
                let mut story = Story::new(scene);
                let played = unless(signalled, story.play()).await;
                story.end().await;
                played
            }
            Some(Stories::Fencing { s3 }) => {
                let bank = Bank::open(directory.path(), s3.as_deref()).await?;
                let mut fencing = Fencing::new(scene, bank);
                let played = unless(signalled, fencing.play()).await;
                fencing.end().await;
                played
            }
        };
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

/// The outcome of a story, unless a signal comes first.
async fn unless<T>(signalled: impl Future<Output = u8>, played: impl Future<Output = T>) -> Result<T, u8> {
    tokio::select! {
        played = played => Ok(played),
        signalled = signalled => Err(signalled),
    }
}
