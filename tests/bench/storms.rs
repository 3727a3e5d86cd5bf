//! Storms by the million, as fast as this machine can: it prints the rate, and for a failure the seed, the few faults
//! that do it, and the line that runs it again. The storms are those of `tests/simulation`.
//!
//! ```text
//! cargo bench --bench storms -- --seeds 1000000
//! cargo bench --bench storms -- --seeds 1000000 --from 5000000 --profile Lossy
//! cargo bench --bench storms -- --seeds 10000 --break PeerNotBehind      # with a rule broken: it has to fail
//! ```
#![allow(dead_code, unreachable_pub, reason = "modules of the simulation, each uses a part")]

#[path = "../simulation/heal.rs"]
mod heal;
#[path = "../simulation/schedule.rs"]
mod schedule;
#[path = "../simulation/shrink.rs"]
mod shrink;
#[path = "../simulation/storm.rs"]
mod storm;
#[path = "../simulation/sweep.rs"]
mod sweep;
#[path = "../simulation/world/mod.rs"]
mod world;

use std::sync::Mutex;
use std::time::Duration;

use storm::Profile;
use tiebreak::testing::clock::Clock;
use tiebreak::testing::{Rule, Rules};

const SEEDS_DEFAULT: u64 = 100_000;
const FAILURES_MAX: usize = 5;
const REPORT_EVERY: Duration = Duration::from_secs(10);

fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.next()?;
    Some(arguments.next().unwrap_or_else(|| panic!("{name} wants a value")))
}

fn number(name: &str) -> Option<u64> {
    option(name).map(|text| text.parse().unwrap_or_else(|_| panic!("{name} wants a number, not {text}")))
}

fn main() {
    let seeds = number("--seeds").unwrap_or(SEEDS_DEFAULT);
    let from = number("--from").unwrap_or(0);
    let profile = option("--profile").map(|name| {
        Profile::named(&name).unwrap_or_else(|| panic!("--profile is one of {:?}", Profile::ALL))
    });
    let broken = option("--break").map(|name| {
        let rule = Rule::ALL.into_iter().find(|rule| format!("{rule:?}") == name);
        rule.unwrap_or_else(|| panic!("--break is one of {:?}", Rule::ALL))
    });
    let rules = broken.map_or(Rules::KEPT, Rules::without);
    // A run that panics is reported like any other that fails.
    std::panic::set_hook(Box::new(|_| {}));

    let begun = Clock.now();
    let reported = Mutex::new(begun);
    let swept = sweep::sweep(from..from + seeds, profile, rules, FAILURES_MAX, &|done| {
        let now = Clock.now();
        let mut reported = reported.lock().expect("no panic holds it");
        if now.since(*reported) >= REPORT_EVERY {
            *reported = now;
            println!("{done} of {seeds} seeds, {:.0} a second", rate(done, now.since(begun)));
        }
    });
    let took = Clock.now().since(begun);
    println!("{}", swept.lines().join("\n"));
    let done = swept.runs();
    println!("{done} seeds in {:.1} s: {:.0} a second", took.as_secs_f64(), rate(done, took));
    if !swept.failures.is_empty() {
        println!("{}", shrink::explain(&swept.failures, rules, broken).join("\n"));
        std::process::exit(1);
    }
}

fn rate(done: u64, took: Duration) -> f64 {
    done as f64 / took.as_secs_f64().max(1e-9)
}
