//! Storms: the shipped binary as three real processes, broken at random while clients write and read, and then asked
//! whether anything that was promised was broken.
//!
//! ```text
//! cargo test --test storm                                  about a minute
//! TIEBREAK_STORM_SECONDS=600 cargo test --release --test storm -- --nocapture
//! ```
//!
//! `TIEBREAK_STORM_SEED` repeats a schedule; without it each run draws a new one. The processes and the machine are as
//! they are, so the same schedule need not meet the same moment again. A storm that fails keeps logs, states and a
//! journal of what it did; one that passes only if `TIEBREAK_STORM_KEEP` is set.
//!
//! Every round is a stretch of faults, then healing, then the questions: there is a leader within a bounded time; every
//! acknowledged write is there; no two nodes acknowledged in one term or after a later one; reads were those of one
//! register; the tokens of those who wrote to the protected resource rose. Wall clocks are stepped where libfaketime is
//! installed (`apt-get install libfaketime`), disks are filled where this process may mount.

#![allow(unreachable_pub, reason = "modules of one program")]

#[path = "storm/cluster.rs"]
mod cluster;
#[path = "storm/dice.rs"]
mod dice;
#[path = "storm/faults.rs"]
mod faults;
#[path = "storm/history.rs"]
mod history;
#[path = "storm/load.rs"]
mod load;
mod relay;
#[path = "storm/stream.rs"]
mod stream;

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tiebreak::testing::clock::{Clock, random_u64};
use tiebreak::time::Moment;

use cluster::{A, B, Cluster, LEASE, NAMES, W};
use dice::Dice;
use faults::{Counts, FAULTS_AT_ONCE_MAX, Fault};
use load::{Load, Resource};

/// Faults go on for so long unless the environment says otherwise. Healing and questions come on top.
const SECONDS_DEFAULT: u64 = 40;
/// Faults between two healings.
const ROUND: Duration = Duration::from_secs(10);
/// Far beyond what healing takes, even on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(120);

struct Storm {
    seed: u64,
    began: Moment,
    cluster: Cluster,
    load: Load,
    resource: Resource,
    counts: Counts,
    rounds: u64,
    slowest_recovery: Duration,
    journal: PathBuf,
}

impl Storm {
    fn prepare(seed: u64, directory: &Path) -> Storm {
        let resource = Resource::serve(directory);
        let mut cluster = Cluster::prepare(directory, resource.address);
        if !cluster.can_step_clocks() {
            eprintln!("skipped: wall clocks are not stepped, libfaketime is not installed");
        }
        if !cluster.can_fill_disks() {
            eprintln!("skipped: disks are not filled, this process may not mount");
        }
        for node in [W, A, B] {
            cluster.step_clock(node, 0);
            cluster.run(node);
        }
        let load = Load::start(cluster.clients, seed);
        Storm {
            seed,
            began: Clock.now(),
            cluster,
            load,
            resource,
            counts: Counts::new(),
            rounds: 0,
            slowest_recovery: Duration::ZERO,
            journal: directory.join("journal"),
        }
    }

    fn play(&mut self, seconds: u64) -> Result<(), String> {
        let end = self.began + Duration::from_secs(seconds);
        let mut dice = Dice(self.seed);
        self.recover()?;
        while !end.since(Clock.now()).is_zero() {
            self.round(&mut dice)?;
            self.rounds += 1;
            let leader = self.recover()?;
            self.ask(leader)?;
        }
        // The other one as well, by itself.
        let leader = self.recover()?;
        self.note("the last question: the leader dies");
        self.cluster.heals = false;
        self.cluster.kill(leader);
        self.ask(1 - leader)
    }

    fn round(&mut self, dice: &mut Dice) -> Result<(), String> {
        let end = Clock.now() + ROUND;
        self.cluster.heals = false;
        let mut active: Vec<(Moment, Fault)> = Vec::new();
        let mut next = Clock.now();
        while !end.since(Clock.now()).is_zero() {
            let due = active.iter().map(|(until, _)| *until).chain([next, end]).min().unwrap_or(end);
            self.cluster.wait(due)?;
            let now = Clock.now();
            while let Some(at) = active.iter().position(|(until, _)| *until <= now) {
                let (_, fault) = active.swap_remove(at);
                self.note(&format!("ends {fault:?}"));
                fault.end(&mut self.cluster);
            }
            if next <= now {
                next = now + faults::gap(dice);
                let span = faults::span(dice);
                if active.len() < FAULTS_AT_ONCE_MAX
                    && let Some(fault) = Fault::begin(dice, &mut self.cluster)
                {
                    self.note(&format!("begins {fault:?} for {span:?}"));
                    *self.counts.entry(fault.kind).or_default() += 1;
                    active.push((now + span, fault));
                }
            }
        }
        self.note("heals");
        self.cluster.heals = true;
        for (_, fault) in active {
            fault.end(&mut self.cluster);
        }
        faults::heal(&mut self.cluster);
        Ok(())
    }

    /// After healing: a paired leader that acknowledges, and all three linked.
    fn recover(&mut self) -> Result<usize, String> {
        let from = Clock.now();
        let leader = loop {
            let leader = self.cluster.until("a leader of all three", PATIENCE, cluster::Told::well)?;
            if self.load.history().acknowledged_after(from.0) {
                break leader;
            }
            if Clock.now().since(from) > PATIENCE {
                return Err(format!("not within {PATIENCE:?}: an acknowledgement of {}", NAMES[leader]));
            }
            self.cluster.wait(Clock.now() + LEASE / 32)?;
        };
        let took = Clock.now().since(from);
        self.slowest_recovery = self.slowest_recovery.max(took);
        self.note(&format!("well again after {took:?}: {} leads", NAMES[leader]));
        Ok(leader)
    }

    /// Whether all promises were kept so far, asked of whoever is expected to lead.
    fn ask(&mut self, leader: usize) -> Result<(), String> {
        // What is acknowledged before the question has to be in the answer.
        let before = self.load.history().operations.len();
        let end = Clock.now() + PATIENCE;
        let mut asked = leader;
        let kept: HashSet<u64> = loop {
            let answer = load::ask(self.cluster.clients[asked], &json!("Ids"), PATIENCE);
            if let Some(ids) = answer.ok().as_ref().and_then(|answer| answer["Ids"].as_array()) {
                break ids.iter().filter_map(serde_json::Value::as_u64).collect();
            }
            if end.since(Clock.now()).is_zero() {
                return Err(format!("not within {PATIENCE:?}: an answer of {}", NAMES[asked]));
            }
            // Leadership may have moved on since.
            if self.cluster.runs(1 - asked) {
                asked = 1 - asked;
            }
            self.cluster.wait(Clock.now() + LEASE / 8)?;
        };
        let history = self.load.history();
        let lost = history.lost(before, &kept);
        if let Some(first) = lost.first() {
            return Err(format!("{} acknowledged writes are lost, first {first:?}", lost.len()));
        }
        history.check_terms()?;
        history.check_reads()?;
        let admitted = self.resource.admitted();
        admitted.wrong.first().map_or(Ok(()), |wrong| Err(wrong.clone()))
    }

    /// For whoever has to find out what happened.
    fn note(&self, what: &str) {
        let at = Clock.now().since(self.began).as_secs_f64();
        if let Ok(mut journal) = OpenOptions::new().create(true).append(true).open(&self.journal) {
            let _ = writeln!(journal, "{at:9.3} {} {what}", Clock.now().0);
        }
    }

    fn summary(&self) -> String {
        let history = self.load.history();
        let (pause, at) = history.longest_pause(self.began.0);
        let admitted = self.resource.admitted();
        let faults: Vec<String> =
            self.counts.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
        format!(
            "storm of seed {}: {:.0} s, {} rounds, {} faults ({}); {} writes acknowledged, {} reads; {} terms, {} \
             failovers; {} writes to the resource by {} actors, {} refused by the gate; longest pause {:.1} s (at \
             {:.0} s), slowest recovery {:.1} s",
            self.seed,
            Clock.now().since(self.began).as_secs_f64(),
            self.rounds,
            self.counts.values().sum::<u64>(),
            faults.join(", "),
            history.acknowledged().count(),
            history.reads(),
            history.check_terms().unwrap_or(0),
            history.failovers(),
            admitted.writes,
            admitted.actors.len(),
            admitted.refused,
            Duration::from_nanos(pause).as_secs_f64(),
            Duration::from_nanos(at).as_secs_f64(),
            self.slowest_recovery.as_secs_f64(),
        )
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// Shows: nothing that is promised is broken, whatever happens to the processes, their links, clocks and disks.
#[test]
fn no_storm_breaks_a_promise() {
    let seed = number("TIEBREAK_STORM_SEED").unwrap_or_else(|| random_u64() >> 32);
    let seconds = number("TIEBREAK_STORM_SECONDS").unwrap_or(SECONDS_DEFAULT);
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("storm-{seed}-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory under target/");
    let mut storm = Storm::prepare(seed, &directory);
    let outcome = storm.play(seconds);
    println!("{}", storm.summary());
    let told = outcome.map_err(|wrong| {
        storm.note(&wrong);
        storm.cluster.keep();
        format!(
            "{wrong}\nlogs, journal and states are kept in {}\n\
             reproduce: TIEBREAK_STORM_SEED={seed} TIEBREAK_STORM_SECONDS={seconds} cargo test --test storm",
            directory.display()
        )
    });
    drop(storm);
    match told {
        Ok(()) if std::env::var_os("TIEBREAK_STORM_KEEP").is_some() => {
            println!("kept in {}", directory.display());
        }
        Ok(()) => drop(fs::remove_dir_all(&directory)),
        Err(wrong) => panic!("{wrong}"),
    }
}
