//! Many seeds on all cores.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tiebreak::testing::Rules;

use crate::storm::{Outcome, Profile, run_as};
use crate::world::seen::Seen;

/// A run whose panics count as violations.
pub(crate) fn guard(run: impl FnOnce() -> Outcome) -> Result<Outcome, String> {
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

/// What the runs of one profile came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    runs: u64,
    steps: u64,
    hours: f64,
    acknowledged: usize,
    reads: u64,
    healed: u64,
    highest: u32,
}

/// What all runs came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep {
    totals: BTreeMap<usize, Totals>,
    pub(crate) seen: Seen,
    /// Seed, profile and what was violated.
    pub(crate) failures: Vec<(u64, Profile, String)>,
}

impl Sweep {
    fn add(&mut self, outcome: &Outcome) {
        self.seen.add(&outcome.seen);
        let place = Profile::ALL.iter().position(|p| *p == outcome.profile).expect("one of all");
        let totals = self.totals.entry(place).or_default();
        totals.runs += 1;
        totals.steps += outcome.steps;
        totals.hours += outcome.virtual_nanos as f64 / 3.6e12;
        totals.acknowledged += outcome.acknowledged;
        totals.reads += outcome.reads;
        totals.healed += u64::from(outcome.healed);
        totals.highest = totals.highest.max(outcome.highest.0);
    }

    fn merge(&mut self, other: Sweep) {
        self.seen.add(&other.seen);
        self.failures.extend(other.failures);
        for (place, more) in other.totals {
            let totals = self.totals.entry(place).or_default();
            totals.runs += more.runs;
            totals.steps += more.steps;
            totals.hours += more.hours;
            totals.acknowledged += more.acknowledged;
            totals.reads += more.reads;
            totals.healed += more.healed;
            totals.highest = totals.highest.max(more.highest);
        }
    }

    /// Seeds that were run.
    pub(crate) fn runs(&self) -> u64 {
        self.totals.values().map(|totals| totals.runs).sum::<u64>() + self.failures.len() as u64
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.totals
            .iter()
            .map(|(place, t)| {
                let profile = format!("{:?}", Profile::ALL[*place]);
                format!(
                    "{profile:<12}{:>9} runs {:>12} steps {:>9.1} hours {:>11} writes {:>9} reads {:>9} healed, \
                     highest term {}",
                    t.runs, t.steps, t.hours, t.acknowledged, t.reads, t.healed, t.highest
                )
            })
            .collect()
    }
}

/// Runs these seeds, with one profile or each with its own, until so many have failed. Told now and then how many are
/// done.
pub(crate) fn sweep(
    seeds: Range<u64>,
    profile: Option<Profile>,
    rules: Rules,
    failures_max: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Sweep {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(0);
    let all = Mutex::new(Sweep::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                let mut mine = Sweep::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.load(Ordering::Relaxed) >= failures_max as u64 {
                        break;
                    }
                    if (seed - seeds.start) % 1024 == 1023 {
                        progress(seed - seeds.start + 1);
                    }
                    let profile = profile.unwrap_or_else(|| Profile::of(seed));
                    match guard(|| run_as(seed, profile, rules)) {
                        Ok(outcome) => mine.add(&outcome),
                        Err(why) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            mine.failures.push((seed, profile, why));
                        }
                    }
                }
                all.lock().expect("no panic holds it").merge(mine);
            });
        }
    });
    let mut all = all.into_inner().expect("no panic holds it");
    all.failures.sort_by_key(|(seed, ..)| *seed);
    all
}
