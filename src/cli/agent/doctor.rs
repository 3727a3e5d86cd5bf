//! `tiebreak doctor`: everything that would go wrong later, looked at now. It changes nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::agent::config::AgentConfig;
use crate::agent::watchdog::Wish;
use crate::cli::config::agent::load;
use crate::cli::config::{NodeConfig, OtherConfig, ReplicaConfig};
use crate::cli::status;
use crate::edge::clock::{Clock, unsteered};
use crate::edge::identity::Identity;
use crate::edge::quic::{Endpoint, HostPort, Pins, Timing};
use crate::limits::CLOCK_RATE_ERROR_PER_MILLE;

/// Round trips and syncs that are measured.
const SAMPLES: usize = 9;

/// Look for what would go wrong
#[derive(Args, Debug)]
#[command(
    after_help = "Exit code: 0 nothing found; 1 something to think about; 2 something that does not work."
)]
pub struct Doctor {
    /// The replica's configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// One JSON object for each line
    #[arg(long)]
    pub json: bool,
    /// How long to wait for an answer
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration, value_name = "SPAN")]
    pub timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    Doubtful,
    Wrong,
}

#[derive(Debug, Serialize)]
struct Finding {
    verdict: Verdict,
    about: String,
    words: String,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, verdict: Verdict, about: impl Into<String>, words: impl Into<String>) {
        self.0.push(Finding { verdict, about: about.into(), words: words.into() });
    }
}

impl Doctor {
    /// Looks and prints.
    ///
    /// # Errors
    /// If the configuration is not a replica's.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut found = Findings::default();
        // A file without hooks is one for `tiebreak run`.
        let loaded = load(&self.config, None).or_else(|error| {
            let hooks = fs::read_to_string(&self.config).is_ok_and(|text| text.contains("[agent.hooks]"));
            if hooks { Err(error) } else { load(&self.config, Some(vec!["command".into()])) }
        });
        let (replica, agent) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                let NodeConfig::Replica(replica) = NodeConfig::load(&self.config)? else {
                    return Err(error.into());
                };
                found.add(Verdict::Wrong, "configuration", error.to_string());
                let service = crate::agent::config::ServiceConfig::Command(Vec::new());
                let agent = AgentConfig::of(&replica, service);
                (replica, agent)
            }
        };
        let (boot, raw) = (Clock.now(), unsteered());
        times(&agent, &mut found);
        let slowest = disk(&replica.own.state, replica.lease, &mut found);
        match Identity::load(&replica.own.key) {
            Ok(identity) => {
                found.add(Verdict::Good, "key", identity.fingerprint().to_string());
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(network(&replica, &agent, &identity, slowest, self.timeout, &mut found));
            }
            Err(error) => found.add(Verdict::Wrong, "key", error.to_string()),
        }
        watchdog(&agent, &mut found);
        let steered = Clock.now().since(boot).as_secs_f64();
        clock(steered / unsteered().since(raw).as_secs_f64(), &mut found);
        self.print(&found)
    }

    fn print(&self, found: &Findings) -> anyhow::Result<ExitCode> {
        let mut out = io::stdout().lock();
        for finding in &found.0 {
            if self.json {
                writeln!(out, "{}", serde_json::to_string(finding)?)?;
                continue;
            }
            let mark = match finding.verdict {
                Verdict::Good => "good ",
                Verdict::Doubtful => "doubt",
                Verdict::Wrong => "WRONG",
            };
            writeln!(out, "{mark}  {}: {}", finding.about, finding.words)?;
        }
        Ok(ExitCode::from(match found.0.iter().map(|finding| finding.verdict).max() {
            None | Some(Verdict::Good) => 0,
            Some(Verdict::Doubtful) => 1,
            Some(Verdict::Wrong) => 2,
        }))
    }
}

fn times(agent: &AgentConfig, found: &mut Findings) {
    let times = &agent.times;
    let words = format!(
        "a stop begins {:?} before the end of the lease of {:?}: demote {:?} + kill {:?} + margin {:?}",
        times.stop_before(),
        times.lease,
        times.demote,
        times.kill,
        times.margin()
    );
    found.add(Verdict::Good, "times", words);
}

/// How long a sync takes; a vote waits for it.
fn disk(state: &Path, lease: Duration, found: &mut Findings) -> Duration {
    let measured = (|| {
        let place = state.join("doctor");
        let mut file = File::create(&place)?;
        let mut spans = Vec::new();
        for _ in 0..SAMPLES {
            let began = Clock.now();
            file.write_all(&[0; 4096])?;
            file.sync_data()?;
            spans.push(Clock.now().since(began));
        }
        fs::remove_file(place)?;
        Ok::<_, io::Error>(spans)
    })();
    let about = "disk sync";
    match measured {
        Ok(mut spans) => {
            spans.sort();
            let (middle, worst) = (spans[SAMPLES / 2], spans[SAMPLES - 1]);
            let verdict = if worst > lease / 10 { Verdict::Doubtful } else { Verdict::Good };
            let words =
                format!("{middle:?} in {}, {worst:?} at worst, of a lease of {lease:?}", state.display());
            found.add(verdict, about, words);
            worst
        }
        Err(error) => {
            let words = format!(
                "{}: {error}; has `tiebreak init` made the state, and is this its user?",
                state.display()
            );
            found.add(Verdict::Wrong, about, words);
            Duration::ZERO
        }
    }
}

async fn network(
    replica: &ReplicaConfig,
    agent: &AgentConfig,
    identity: &Identity,
    slowest_sync: Duration,
    patience: Duration,
    found: &mut Findings,
) {
    let keys = replica.peer.keys.iter().chain(&replica.witness.keys).copied();
    let endpoint = match Endpoint::bind(
        identity,
        &[],
        Pins::new(keys.chain([identity.fingerprint()])),
        Timing::default(),
    ) {
        Ok(endpoint) => endpoint,
        Err(error) => return found.add(Verdict::Wrong, "sockets", error.to_string()),
    };
    for (part, other) in [("peer", &replica.peer), ("witness", &replica.witness)] {
        if other.addresses.is_empty() {
            let words = "no address of it here; it has to dial this node";
            found.add(Verdict::Good, format!("{part} {}", other.node), words);
        }
        for address in &other.addresses {
            let about = format!("{part} {} at {address}", other.node);
            match tokio::time::timeout(patience, round_trip(&endpoint, replica, other, address)).await {
                Ok(Ok(round_trip)) => {
                    let (verdict, words) = judge(part, round_trip, replica, agent, slowest_sync);
                    found.add(verdict, about, words);
                }
                Ok(Err(why)) => found.add(Verdict::Wrong, about, why),
                Err(_) => {
                    let words = format!(
                        "no answer in {patience:?}: is it running, and does every firewall on the way let UDP port {} \
                         through?",
                        address.port
                    );
                    found.add(Verdict::Wrong, about, words);
                }
            }
        }
    }
    let _ = tokio::time::timeout(status::GOODBYE, endpoint.shutdown("the doctor has looked")).await;
}

/// The middle one of some questions and answers, with everything that the other side does for one.
async fn round_trip(
    endpoint: &Endpoint,
    replica: &ReplicaConfig,
    other: &OtherConfig,
    address: &HostPort,
) -> Result<Duration, String> {
    let connection = endpoint.dial(std::slice::from_ref(address), &other.keys).await.map_err(|error| {
        let attempts: Vec<String> = error.attempts.iter().map(ToString::to_string).collect();
        format!("{}; it listens on UDP, and firewalls have to let that through", attempts.join("; "))
    })?;
    let mut spans = Vec::new();
    for _ in 0..SAMPLES {
        let began = Clock.now();
        let report = status::exchange(&connection, replica.own.node).await?;
        spans.push(Clock.now().since(began));
        if report.name != replica.cluster {
            return Err(format!("it belongs to cluster {}, not to {}", report.name, replica.cluster));
        }
    }
    spans.sort();
    Ok(spans[SAMPLES / 2])
}

fn judge(
    part: &str,
    round_trip: Duration,
    replica: &ReplicaConfig,
    agent: &AgentConfig,
    slowest_sync: Duration,
) -> (Verdict, String) {
    let lease = replica.lease;
    let words = format!("answers in {round_trip:?}, of a lease of {lease:?}");
    if part == "peer" {
        let verdict = if round_trip > lease / 10 { Verdict::Doubtful } else { Verdict::Good };
        return (verdict, words);
    }
    let Some(solo_after) = replica.solo_after else { return (Verdict::Good, words) };
    // When the peer has fallen silent: one confirmation, with a sync at either end, before the stop begins.
    let spent = solo_after + round_trip + slowest_sync * 2 + agent.times.stop_before();
    let relied_on = lease * (1000 - CLOCK_RATE_ERROR_PER_MILLE) / 1000;
    if spent <= relied_on {
        return (Verdict::Good, words);
    }
    let words = format!(
        "{words}: when the peer dies, solo_after {solo_after:?} + round trip {round_trip:?} + two syncs of \
         {slowest_sync:?} + stop {:?} = {spent:?} is more than the {relied_on:?} that a lease lasts, so the service pauses; \
         set a longer `lease`",
        agent.times.stop_before()
    );
    (Verdict::Doubtful, words)
}

/// Only looked at: opening it would arm it.
fn watchdog(agent: &AgentConfig, found: &mut Findings) {
    let about = "watchdog";
    if agent.watchdog == Wish::Off {
        let words = "off: nothing stops the service while the agent itself is stopped or starved";
        return found.add(Verdict::Doubtful, about, words);
    }
    let device = &agent.watchdog_device;
    if !device.exists() {
        let words = format!("there is no {}; `modprobe softdog` makes one", device.display());
        let verdict = if agent.watchdog == Wish::Required { Verdict::Wrong } else { Verdict::Doubtful };
        return found.add(verdict, about, words);
    }
    let read = |name: &str| {
        fs::read_to_string(format!("/sys/class/watchdog/watchdog0/{name}"))
            .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
    };
    let words = format!(
        "{}: {}, state {}, nowayout {}; it is to fire after {:?}",
        device.display(),
        read("identity"),
        read("state"),
        read("nowayout"),
        agent.watchdog_fires().unwrap_or_default()
    );
    found.add(Verdict::Good, about, words);
}

fn clock(rate: f64, found: &mut Findings) {
    let off = (rate - 1.0) * 1000.0;
    let verdict = if off.abs() > f64::from(CLOCK_RATE_ERROR_PER_MILLE) / 2.0 {
        Verdict::Doubtful
    } else {
        Verdict::Good
    };
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let words = format!(
        "{}; it is steered by {off:+.3} per mille, and leases allow {CLOCK_RATE_ERROR_PER_MILLE}",
        source.map_or_else(|_| "of an unknown source".into(), |source| source.trim().to_owned()),
    );
    found.add(verdict, "clock", words);
}
