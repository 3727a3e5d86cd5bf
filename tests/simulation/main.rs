//! Seeded storms over the shipped voters, with every invariant of the protocol checked after every step.
//!
//! - `TIEBREAK_SEEDS=n` runs n seeds (4,000 unless set), `TIEBREAK_SEED=s` runs that one alone and says more.
//! - `TIEBREAK_TRACE=1` beside `TIEBREAK_SEED` prints every message and decision of that run.
//! - A failure prints one line that reproduces it.

mod health;
mod mutations;
mod storm;
#[allow(dead_code, reason = "shared with the scenarios, each uses a part")]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use storm::{Outcome, Profile, run};
use tiebreak::testing::Rules;

const SEEDS_DEFAULT: u64 = 4_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// A run whose panics count as violations.
fn guarded(seed: u64, rules: Rules) -> Result<Outcome, String> {
    guard(|| run(seed, rules))
}

fn guard(run: impl FnOnce() -> Outcome) -> Result<Outcome, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => match &outcome.violation {
            Some(why) => Err(format!("{:?}: {why}", outcome.profile)),
            None => Ok(outcome),
        },
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(text.unwrap_or_else(|| "a panic".into()))
        }
    }
}

fn report(seed: u64, why: &str) -> String {
    format!("TIEBREAK_SEED={seed} cargo test --test simulation storms  # {why}")
}

#[test]
fn storms_break_no_invariant() {
    if let Some(seed) = number("TIEBREAK_SEED") {
        match guarded(seed, Rules::KEPT) {
            Ok(outcome) => println!("{outcome:?}"),
            Err(why) => panic!("{}", report(seed, &why)),
        }
        return;
    }
    let seeds = number("TIEBREAK_SEEDS").unwrap_or(SEEDS_DEFAULT);
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || failures.lock().expect("no panic holds it").len() >= 5 {
                        return;
                    }
                    match guarded(seed, Rules::KEPT) {
                        Ok(outcome) => outcomes.lock().expect("no panic holds it").push(outcome),
                        Err(why) => failures.lock().expect("no panic holds it").push((seed, why)),
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no panic holds it");
    summary(&outcomes);
    let mut failures = failures.into_inner().expect("no panic holds it");
    failures.sort();
    let lines: Vec<String> = failures.iter().map(|(seed, why)| report(*seed, why)).collect();
    assert!(lines.is_empty(), "\n{}", lines.join("\n"));
}

fn summary(outcomes: &[Outcome]) {
    for profile in Profile::ALL {
        let of: Vec<&Outcome> = outcomes.iter().filter(|o| o.profile == profile).collect();
        let steps: u64 = of.iter().map(|o| o.steps).sum();
        let hours = of.iter().map(|o| o.virtual_nanos as f64 / 3.6e12).sum::<f64>();
        let acknowledged: usize = of.iter().map(|o| o.acknowledged).sum();
        let healed = of.iter().filter(|o| o.healed).count();
        let highest = of.iter().map(|o| o.highest).max().unwrap_or_default();
        println!(
            "{profile:?}: {} runs, {steps} steps, {hours:.2} hours, {acknowledged} writes acknowledged, \
             {healed} healed, highest term {highest}",
            of.len()
        );
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..24 {
        let (one, other) = (run(seed, Rules::KEPT), run(seed, Rules::KEPT));
        assert_eq!((one.trace, one.steps), (other.trace, other.steps), "seed {seed}");
    }
    assert_ne!(run(1, Rules::KEPT).trace, run(13, Rules::KEPT).trace);
}
