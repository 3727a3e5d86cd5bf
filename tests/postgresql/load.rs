//! Clients that follow `/primary` and remember what was acknowledged, and one that looks at both servers all the time.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::hosts::{A, B, C, NAMES};
use crate::pair::{ACCOUNTS, BALANCE, Pair};
use crate::wire::{Client, Failed};

const WRITERS: u64 = 4;
/// Between two writes of one client: the machine has other things to do.
const PAUSE: Duration = Duration::from_millis(4);
const PATIENCE: Duration = Duration::from_secs(1);
/// For whoever connects through something that follows `/primary` by itself.
const ELSEWHERE: usize = 2;
const NOBODY: usize = 3;

#[derive(Default)]
struct Shared {
    over: AtomicBool,
    /// Who is primary, as the agents say.
    primary: AtomicUsize,
    next: AtomicU64,
    acknowledged: Mutex<Vec<(u64, Instant)>>,
    unknown: AtomicU64,
    samples: Mutex<Vec<Sample>>,
    strange: Mutex<Vec<String>>,
}

/// A write that a server acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sample {
    node: usize,
    timeline: u32,
    began: Instant,
    ended: Instant,
}

pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    name: &'static str,
    faults: Vec<(String, Instant)>,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Load {
    /// Clients that ask the agents who is primary.
    pub fn start(pair: &Pair, name: &'static str) -> Load {
        Load::begin(pair, name, None)
    }

    /// Clients that know one address, behind which something follows the primary.
    pub fn through(pair: &Pair, name: &'static str, address: SocketAddr) -> Load {
        Load::begin(pair, name, Some(address))
    }

    fn begin(pair: &Pair, name: &'static str, through: Option<SocketAddr>) -> Load {
        let shared = Arc::new(Shared::default());
        shared.primary.store(if through.is_some() { ELSEWHERE } else { NOBODY }, Ordering::Relaxed);
        let mut load = Load { shared: shared.clone(), threads: Vec::new(), name, faults: Vec::new() };
        if through.is_none() {
            load.thread(pair, move |shared| look_for_primary(&shared));
        }
        for writer in 0..WRITERS {
            load.thread(pair, move |shared| write(&shared, writer, through));
        }
        for node in [A, B] {
            load.thread(pair, move |shared| sample(&shared, node));
        }
        load.goes_on(pair);
        load
    }

    fn thread(&mut self, pair: &Pair, work: impl FnOnce(Arc<Shared>) + Send + 'static) {
        let shared = self.shared.clone();
        std::thread::scope(|scope| {
            // A thread is where its parent is.
            let made = scope.spawn(|| {
                pair.hosts.enter(C);
                std::thread::spawn(move || work(shared))
            });
            self.threads.push(made.join().expect("made"));
        });
    }

    fn acknowledged(&self) -> usize {
        self.shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Until more is acknowledged than now.
    #[track_caller]
    pub fn goes_on(&self, pair: &Pair) {
        let before = self.acknowledged();
        pair.until("writes are acknowledged", || self.acknowledged() >= before + 20);
    }

    /// From here on an interruption has this cause.
    pub fn fault(&mut self, what: &str) {
        self.faults.push((what.to_owned(), Instant::now()));
    }

    fn pause_between(&self, from: Instant, to: Instant) -> Duration {
        let acknowledged = self.shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = from;
        let mut longest = Duration::ZERO;
        for (_, moment) in acknowledged.iter().filter(|(_, moment)| *moment >= from && *moment <= to) {
            longest = longest.max(moment.saturating_duration_since(at));
            at = *moment;
        }
        longest.max(to.saturating_duration_since(at))
    }

    /// Ends it, and looks whether everything is there that was acknowledged. Prints the story's lines of the table.
    #[track_caller]
    pub fn check(mut self, pair: &Pair) {
        self.goes_on(pair);
        self.shared.over.store(true, Ordering::Relaxed);
        let ended = Instant::now();
        for thread in self.threads.drain(..) {
            thread.join().expect("a client");
        }
        let mut held = Err(Failed::Unknown(String::new()));
        pair.until("the primary can be asked", || {
            let primary = [A, B].into_iter().find(|node| Pair::code(*node, "/primary") == Some(200));
            held = primary.map_or(Err(Failed::Unknown("nobody leads".into())), |node| {
                Pair::sql(node, "SELECT id, (SELECT sum(balance) FROM accounts) FROM done")
            });
            held.is_ok()
        });
        let held = held.expect("asked");
        let sum = held.first().and_then(|row| row[1].parse::<i64>().ok());
        let held: HashSet<u64> = held.iter().filter_map(|row| row[0].parse().ok()).collect();
        let acknowledged = self.shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lost = acknowledged.iter().filter(|(id, _)| !held.contains(id)).count();
        let samples = self.shared.samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let overlaps = overlaps(&samples);
        let strange = self.shared.strange.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unknown = self.shared.unknown.load(Ordering::Relaxed);
        let mut table = String::new();
        let mut pauses: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (number, (what, at)) in self.faults.iter().enumerate() {
            let to = self.faults.get(number + 1).map_or(ended, |(_, next)| *next);
            let pause = self.pause_between(*at, to).as_secs_f64();
            table += &format!("| {} | {what} | {pause:.2} s |\n", self.name);
            pauses.entry(what).or_default().push(pause);
        }
        for (what, mut pauses) in pauses.into_iter().filter(|(_, pauses)| pauses.len() > 2) {
            pauses.sort_by(f64::total_cmp);
            let (middle, rounds) = (pauses[pauses.len() / 2], pauses.len());
            table += &format!("| {} | {what} | median of {rounds}: {middle:.2} s |\n", self.name);
        }
        println!(
            "{table}| {} | acknowledged {}, lost {lost}, unknown {unknown}, probes of both servers {}, two at a time {} |",
            self.name,
            acknowledged.len(),
            samples.len(),
            overlaps.len()
        );
        assert_eq!(lost, 0, "acknowledged and lost");
        assert_eq!(overlaps, Vec::<String>::new(), "two servers acknowledged at one time");
        assert_eq!(strange, Vec::<String>::new());
        assert_eq!(sum, Some(ACCOUNTS as i64 * BALANCE), "money was made or lost");
    }
}

fn look_for_primary(shared: &Shared) {
    while !shared.over.load(Ordering::Relaxed) {
        let known = shared.primary.load(Ordering::Relaxed);
        let order = if known == B { [B, A] } else { [A, B] };
        let found = order.into_iter().find(|node| Pair::code(*node, "/primary") == Some(200));
        shared.primary.store(found.unwrap_or(NOBODY), Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Inserts numbers that nobody else inserts, and moves money in the same transaction.
fn write(shared: &Shared, writer: u64, through: Option<SocketAddr>) {
    let mut connection: Option<(usize, Client)> = None;
    while !shared.over.load(Ordering::Relaxed) {
        let primary = shared.primary.load(Ordering::Relaxed);
        if connection.as_ref().is_none_or(|(to, _)| *to != primary) {
            connection = match (primary, through) {
                (NOBODY, _) => None,
                (_, Some(address)) => Client::connect(address, PATIENCE).ok().map(|client| (primary, client)),
                (node, None) => {
                    Client::connect(Pair::server(node), PATIENCE).ok().map(|client| (node, client))
                }
            };
        }
        let Some((to, client)) = &mut connection else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let id = shared.next.fetch_add(1, Ordering::Relaxed) * WRITERS + writer;
        let accounts = ACCOUNTS as u64;
        let (one, other) = (id % accounts + 1, (id / 7) % accounts + 1);
        let sql = format!(
            "INSERT INTO done VALUES ({id}); UPDATE accounts SET balance = balance - 1 WHERE id = {}; \
             UPDATE accounts SET balance = balance + 1 WHERE id = {}",
            one.min(other),
            one.max(other)
        );
        let began = Instant::now();
        let told = client.query(&sql, || {
            let known = shared.primary.load(Ordering::Relaxed);
            let elsewhere = known != *to && known != NOBODY;
            !elsewhere && !shared.over.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(30)
        });
        match told {
            Ok(_) => {
                let mut acknowledged = shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
                acknowledged.push((id, Instant::now()));
            }
            Err(failed) => {
                if let Failed::Unknown(_) = failed {
                    shared.unknown.fetch_add(1, Ordering::Relaxed);
                } else if let Failed::Refused(why) = failed
                    && (why.contains("duplicate") || why.contains("PANIC"))
                {
                    shared.strange.lock().unwrap_or_else(PoisonError::into_inner).push(why);
                }
                connection = None;
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Tries to write on this server, whatever the agents say.
fn sample(shared: &Shared, node: usize) {
    let mut connection = None;
    while !shared.over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
        if connection.is_none() {
            connection = Client::connect(Pair::server(node), Duration::from_millis(300)).ok();
        }
        let Some(client) = &mut connection else { continue };
        let began = Instant::now();
        // The commit is acknowledged with the answer as a whole.
        let told = client.ask(
            "SELECT pg_is_in_recovery(); INSERT INTO sampled DEFAULT VALUES; \
             SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)",
            PATIENCE,
        );
        match told {
            Ok(rows) => {
                let timeline =
                    rows.last().and_then(|row| u32::from_str_radix(&row[0], 16).ok()).expect("a timeline");
                let sample = Sample { node, timeline, began, ended: Instant::now() };
                shared.samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
            }
            // A standby.
            Err(Failed::Refused(why)) if why.contains("read-only") => {}
            Err(_) => connection = None,
        }
    }
}

/// Writes of an earlier timeline that began after one of a later timeline had been acknowledged, and timelines that two
/// servers made.
fn overlaps(samples: &[Sample]) -> Vec<String> {
    let mut found = Vec::new();
    let mut owners: BTreeMap<u32, usize> = BTreeMap::new();
    let mut sorted = samples.to_vec();
    sorted.sort_by_key(|sample| sample.ended);
    let mut ended_first: BTreeMap<u32, Instant> = BTreeMap::new();
    for sample in &sorted {
        let owner = *owners.entry(sample.timeline).or_insert(sample.node);
        if owner != sample.node {
            found
                .push(format!("timeline {} of {} and {}", sample.timeline, NAMES[owner], NAMES[sample.node]));
        }
        ended_first.entry(sample.timeline).or_insert(sample.ended);
        let later = ended_first.range(sample.timeline + 1..).map(|(_, ended)| *ended).min();
        if later.is_some_and(|ended| ended < sample.began) {
            found.push(format!(
                "{} acknowledged on timeline {} after a later one",
                NAMES[sample.node], sample.timeline
            ));
        }
    }
    found.dedup();
    found
}
