//! What a fleet costs its witness: the shipped program serves many clusters, whose voters run in this process and reach it
//! over real QUIC with real keys. It measures and prints Markdown, and asserts nothing:
//!
//! ```text
//! cargo bench --bench scale                              # 100 clusters
//! cargo bench --bench scale -- --clusters 1000 --seconds 60
//! cargo bench --bench scale -- --clusters 5000 --witness /usr/bin/tiebreak
//! cargo bench --bench scale -- --only churn,crash        # of churn, goodbye, crash, election
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark waits by the clock")]
#![allow(unreachable_pub, reason = "modules of one program")]

mod pair;
mod witness;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pair::{Handle, Order, Seen, Target};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tiebreak::Identity;
use tiebreak::testing::clock::Clock;
use tiebreak::testing::quic::Timing;
use tiebreak::time::Moment;
use witness::{Memory, Witness};

/// The longest that any one phase is waited for.
const PHASE_MAX: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Clusters that are founded at once: so few that what is measured at rest has not gone through a storm.
const FOUNDED_AT_ONCE: usize = 50;

struct Options {
    clusters: usize,
    seconds: u64,
    rounds: usize,
    keep_alive: Duration,
    lease: Duration,
    one_source: bool,
    binary: PathBuf,
    directory: PathBuf,
    only: Option<String>,
}

impl Options {
    fn read() -> Options {
        let binary = option("--witness").unwrap_or_else(|| env!("CARGO_BIN_EXE_tiebreak").into());
        let directory = option("--directory").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
        Options {
            clusters: number("--clusters").unwrap_or(100),
            seconds: number("--seconds").unwrap_or(20),
            rounds: number("--rounds").unwrap_or(5),
            keep_alive: Duration::from_secs(number("--keep-alive").unwrap_or(15)),
            lease: Duration::from_millis(number("--lease").unwrap_or(2000)),
            one_source: std::env::args().any(|argument| argument == "--one-source"),
            binary: binary.into(),
            directory: directory.into(),
            only: option("--only"),
        }
    }

    fn wants(&self, phase: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.split(',').any(|name| name == phase))
    }
}

fn main() {
    let options = Options::read();
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum });
    let needed = 2 * options.clusters as u64 + 100;
    let allowed = files.maximum.unwrap_or(u64::MAX);
    assert!(allowed >= needed, "{needed} sockets are needed and {allowed} open files allowed (`ulimit -Hn`)");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure(&options));
}

/// The fleet and its witness, and the lines of the table.
struct Fleet {
    witness: Witness,
    pairs: Vec<Handle>,
}

async fn measure(options: &Options) {
    let directory = tempfile::tempdir_in(&options.directory).expect("a directory");
    let keys: Vec<[Identity; 2]> =
        (0..options.clusters).map(|_| [(); 2].map(|()| Identity::generate().expect("a key"))).collect();
    let name = |number: usize| format!("cluster-{number}");
    let listed: Vec<_> = keys
        .iter()
        .enumerate()
        .map(|(n, keys)| (name(n), [keys[0].fingerprint(), keys[1].fingerprint()]))
        .collect();
    let mut witness = Witness::make(&options.binary, directory.path(), &listed);
    witness.start();
    println!("### {} clusters, {} connections\n", options.clusters, 2 * options.clusters);
    println!(
        "{} cores; keep-alive {:?}, lease {:?}; the fleet's own process shares them.\n",
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        options.keep_alive,
        options.lease
    );
    println!("| phase | what | measured |\n|---|---|---:|");
    let timing = Timing::of(options.keep_alive);
    let address = witness.address.to_string().parse().expect("an address");
    let node = "w".parse().expect("a name");
    let target = Target { node, address, key: witness.key, timing, lease: options.lease };
    let mut fleet = Fleet { witness, pairs: Vec::new() };
    fleet.listening().await;
    memory_row("before the first connection", fleet.witness.memory(), &fleet, options);
    let began = Clock.now();
    for (number, keys) in keys.iter().enumerate() {
        let from = [0, 1].map(|side| source(number, side, options.one_source));
        let cluster = name(number).parse().expect("a name");
        fleet.pairs.push(pair::start(cluster, keys, from, &target).expect("a socket"));
        if fleet.pairs.len().is_multiple_of(FOUNDED_AT_ONCE) {
            fleet.until(Seen::is_linked).await;
        }
    }
    let settled = |seen: &Seen| seen.is_linked() && seen.paired.load(Relaxed) && seen.acts.load(Relaxed) != 0;
    let left = fleet.until(settled).await;
    row("founding", "all clusters made, paired and linked", &span(Clock.now().since(began)));
    row("founding", "clusters that were not, at the end", &left.to_string());
    fleet.steady(options).await;
    if options.wants("churn") {
        fleet.churn(options).await;
    }
    if options.wants("goodbye") {
        fleet.restart("restart with a goodbye", Signal::TERM, options).await;
    }
    if options.wants("crash") {
        fleet.restart("restart after a crash", Signal::KILL, options).await;
    }
    if options.wants("election") {
        fleet.election(options).await;
    }
    let log = std::fs::metadata(fleet.witness.log()).map_or(0, |log| log.len());
    row("all of it", "log of the witness, kB", &(log / 1000).to_string());
    println!();
}

/// Every replica has an address of its own, as hosts have, unless one for all is asked for.
fn source(number: usize, side: u8, one: bool) -> SocketAddr {
    let byte = |n: usize| u8::try_from(n % 250 + 1).expect("below 251");
    let address = if one {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::new(127, byte(number / 250), byte(number), side + 1)
    };
    SocketAddr::from((address, 0))
}

impl Fleet {
    /// Waits until it holds for all pairs, for a bounded time; for how many it does not.
    async fn until(&self, holds: impl Fn(&Seen) -> bool) -> usize {
        let deadline = Clock.now() + PHASE_MAX;
        loop {
            let left = self.pairs.iter().filter(|pair| !holds(&pair.seen)).count();
            if left == 0 || Clock.now() > deadline {
                return left;
            }
            Clock.after(LOOK_EVERY).await;
        }
    }

    /// Until it answers monitors, which it does after its votes are open.
    async fn listening(&self) {
        let deadline = Clock.now() + PHASE_MAX;
        while self.witness.metrics("tiebreak_syncs_total").is_empty() && Clock.now() < deadline {
            Clock.after(LOOK_EVERY).await;
        }
    }

    async fn steady(&self, options: &Options) {
        // What founding has left to do is done.
        Clock.after(Duration::from_secs(3)).await;
        let (began, before, syncs) = (Clock.now(), self.witness.processor(), self.syncs());
        Clock.after(Duration::from_secs(options.seconds)).await;
        let (spent, window) = (self.witness.processor() - before, Clock.now().since(began));
        row("steady", "processor, share of a core", &share(spent, window));
        row("steady", "syncs of votes", &format!("{:.0}", self.syncs() - syncs));
        memory_row("steady", self.witness.memory(), self, options);
    }

    fn syncs(&self) -> f64 {
        self.witness.metrics("tiebreak_syncs_total").first().map_or(0.0, |(_, syncs)| *syncs)
    }

    /// What has happened at the witness's socket since it started.
    fn door(&self, phase: &str) {
        let word = |(name, count): (String, f64)| {
            let name = name.trim_start_matches("{outcome=\"").trim_end_matches("\"}").to_owned();
            (count > 0.0).then(|| format!("{name} {count:.0}"))
        };
        let words: Vec<String> =
            self.witness.metrics("tiebreak_witness_door_total").into_iter().filter_map(word).collect();
        row(phase, "at the witness's door since it started", &words.join(", "));
    }

    /// Rounds in which every replica dials again, one side after the other.
    async fn churn(&self, options: &Options) {
        let mut sizes = Vec::new();
        for _ in 0..options.rounds {
            for side in 0..2 {
                for pair in &self.pairs {
                    pair.seen.linked[side].store(0, Relaxed);
                    pair.order(Order::Reconnect(side));
                }
                self.until(Seen::is_linked).await;
            }
            sizes.push(format!("{:.1}", self.witness.memory().resident as f64 / 1000.0));
        }
        let made = 2 * self.pairs.len() * options.rounds;
        row(
            "churn",
            &format!("resident MB after each of {} rounds, {made} connections", options.rounds),
            &sizes.join(", "),
        );
        // Until what was closed is forgotten.
        Clock.after(Duration::from_secs(5)).await;
        self.door("churn");
        memory_row("churn", self.witness.memory(), self, options);
    }

    /// The witness goes and comes back at once: until every replica has its greeting, and whether a lease was lost.
    async fn restart(&mut self, phase: &str, signal: Signal, options: &Options) {
        let terms: Vec<u64> = self.pairs.iter().map(|pair| pair.seen.acts.load(Relaxed)).collect();
        let ended = Clock.now();
        self.witness.end(signal);
        let before = Clock.now();
        self.witness.start();
        let is_back = |seen: &Seen| seen.linked.iter().all(|at| Moment(at.load(Relaxed)) > before);
        let left = self.until(is_back).await;
        let mut back: Vec<Duration> = Vec::new();
        for pair in &self.pairs {
            back.extend(pair.seen.linked.iter().map(|at| Moment(at.load(Relaxed)).since(before)));
        }
        row(phase, "the old process ended after", &span(before.since(ended)));
        row(phase, "replicas that are back: first, median, p99, last", &spread(&mut back));
        row(phase, "busiest second, replicas", &busiest(&back).to_string());
        let lost =
            self.pairs.iter().zip(&terms).filter(|(pair, term)| pair.seen.acts.load(Relaxed) != **term);
        row(
            phase,
            "clusters that were not back; leases lost meanwhile",
            &format!("{left}; {}", lost.count()),
        );
        row(
            phase,
            "processor of the witness until then, s",
            &format!("{:.2}", self.witness.processor().as_secs_f64()),
        );
        self.door(phase);
        memory_row(phase, self.witness.memory(), self, options);
    }

    /// Every cluster loses the replica that leads, in the same moment.
    async fn election(&mut self, options: &Options) {
        // What a restart has left to do is done, and no hold-off of the witness is in the way.
        Clock.after(options.lease * 2).await;
        for pair in &self.pairs {
            for at in [&pair.seen.asked, &pair.seen.voted, &pair.seen.alone] {
                at.store(0, Relaxed);
            }
        }
        let (syncs, spent, began) = (self.syncs(), self.witness.processor(), Clock.now());
        self.pairs.iter().for_each(|pair| pair.order(Order::LoseLeader));
        let left = self.until(|seen| seen.voted.load(Relaxed) != 0 && seen.alone.load(Relaxed) != 0).await;
        let all = |of: fn(&Seen) -> &AtomicU64| -> Vec<u64> {
            self.pairs.iter().map(|pair| of(&pair.seen).load(Relaxed)).filter(|at| *at != 0).collect()
        };
        let (asked, voted, alone) =
            (all(|seen| &seen.asked), all(|seen| &seen.voted), all(|seen| &seen.alone));
        let from = Moment(asked.iter().min().copied().unwrap_or_default());
        let since = |moments: &[u64], from: Moment| -> Vec<Duration> {
            moments.iter().map(|at| Moment(*at).since(from)).collect()
        };
        row(
            "mass election",
            "from the loss to the first request, to the last",
            &format!(
                "{}, {}",
                span(from.since(began)),
                span(Moment(asked.iter().max().copied().unwrap_or_default()).since(began))
            ),
        );
        row(
            "mass election",
            "votes since the first request: first, median, p99, last",
            &spread(&mut since(&voted, from)),
        );
        row("mass election", "confirmed to go on alone, likewise", &spread(&mut since(&alone, from)));
        let own = |pair: &Handle| {
            let [asked, voted] = [&pair.seen.asked, &pair.seen.voted].map(|at| at.load(Relaxed));
            Moment(voted).since(Moment(asked))
        };
        let mut own: Vec<Duration> = self.pairs.iter().map(own).collect();
        row("mass election", "own first request to own vote: first, median, p99, last", &spread(&mut own));
        row(
            "mass election",
            "clusters without a vote; syncs; processor, s",
            &format!(
                "{left}; {:.0}; {:.2}",
                self.syncs() - syncs,
                (self.witness.processor() - spent).as_secs_f64()
            ),
        );
        memory_row("mass election", self.witness.memory(), self, options);
    }
}

fn row(phase: &str, what: &str, measured: &str) {
    println!("| {phase} | {what} | {measured} |");
}

fn memory_row(phase: &str, memory: Memory, fleet: &Fleet, options: &Options) {
    let mb = |kb: u64| kb as f64 / 1000.0;
    let each = memory.anonymous as f64 / (2 * options.clusters) as f64;
    let each = if fleet.pairs.is_empty() { String::new() } else { format!(" ({each:.1} kB a connection)") };
    row(
        phase,
        "resident MB, anonymous, peak",
        &format!("{:.1}, {:.1}{each}, {:.1}", mb(memory.resident), mb(memory.anonymous), mb(memory.peak)),
    );
}

fn share(spent: Duration, window: Duration) -> String {
    format!("{:.2} %", 100.0 * spent.as_secs_f64() / window.as_secs_f64())
}

fn span(span: Duration) -> String {
    format!("{:.3} s", span.as_secs_f64())
}

/// The first, the one in the middle, the one that only a hundredth exceeds, the last.
fn spread(spans: &mut [Duration]) -> String {
    spans.sort();
    let Some(last) = spans.len().checked_sub(1) else { return "none".into() };
    [0, last / 2, last * 99 / 100, last].map(|place| span(spans[place])).join(", ")
}

/// The most that fell into one second.
fn busiest(sorted: &[Duration]) -> usize {
    let within = |(place, at): (usize, &Duration)| {
        sorted[place..].iter().take_while(|later| **later < *at + Duration::from_secs(1)).count()
    };
    sorted.iter().enumerate().map(within).max().unwrap_or_default()
}

fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.next()?;
    Some(arguments.next().unwrap_or_else(|| panic!("{name} wants a value")))
}

fn number<N: std::str::FromStr>(name: &str) -> Option<N> {
    option(name).map(|text| text.parse().unwrap_or_else(|_| panic!("{name} wants a number, not {text}")))
}
