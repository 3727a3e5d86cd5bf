//! From a storm that does harm to the few faults of it that still do: delta debugging over the schedule.

use tiebreak::testing::{Rule, Rules};

use crate::schedule::Happening;
use crate::storm::{Profile, Storm};
use crate::sweep::guard;

/// Runs for one reduction.
pub(crate) const SHRINKING_RUNS_MAX: u32 = 2_000;

/// A schedule that does the same kind of harm as the whole one.
#[derive(Clone, Debug)]
pub(crate) struct Shrunk {
    /// Which entries of the whole schedule are left.
    pub(crate) kept: Vec<usize>,
    pub(crate) schedule: Vec<Happening>,
    /// How many entries the whole one has.
    pub(crate) of: usize,
    pub(crate) why: String,
    pub(crate) runs: u32,
}

/// What kind of harm: the number of the invariant, or a panic.
pub(crate) fn kind(why: &str) -> String {
    let numbered = why.split(": ").find(|part| part.len() == 1 && part.chars().all(|c| c.is_ascii_digit()));
    numbered.unwrap_or("panic").to_owned()
}

fn picked(storm: &Storm, kept: &[usize]) -> Vec<Happening> {
    kept.iter().map(|place| storm.schedule[*place]).collect()
}

/// Runs the storm with a part of its schedule. What it violated.
pub(crate) fn harm(storm: &Storm, kept: &[usize]) -> Option<String> {
    guard(|| storm.run_with(&picked(storm, kept))).err()
}

/// Shrinks within so many runs. `None` if the whole storm does no harm.
pub(crate) fn shrink(storm: &Storm, runs_max: u32) -> Option<Shrunk> {
    let mut kept: Vec<usize> = (0..storm.schedule.len()).collect();
    let mut why = harm(storm, &kept)?;
    let wanted = kind(&why);
    let mut runs = 1;
    let mut parts = 2;
    while kept.len() > 1 && runs < runs_max {
        let size = kept.len().div_ceil(parts);
        let mut smaller = None;
        for start in (0..kept.len()).step_by(size) {
            let without: Vec<usize> =
                kept[..start].iter().chain(&kept[(start + size).min(kept.len())..]).copied().collect();
            runs += 1;
            if let Some(found) = harm(storm, &without).filter(|found| kind(found) == wanted) {
                smaller = Some((without, found));
                break;
            }
            if runs >= runs_max {
                break;
            }
        }
        match smaller {
            Some((without, found)) => {
                (kept, why) = (without, found);
                parts = (parts - 1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(kept.len()),
        }
    }
    if runs < runs_max && harm(storm, &[]).is_some_and(|found| kind(&found) == wanted) {
        kept.clear();
    }
    let schedule = picked(storm, &kept);
    Some(Shrunk { kept, schedule, of: storm.schedule.len(), why, runs })
}

impl Shrunk {
    pub(crate) fn lines(&self, storm: &Storm, broken: Option<Rule>) -> Vec<String> {
        let mut lines = vec![format!(
            "seed {} ({:?}): {} of {} faults do it, found in {} runs: {}",
            storm.seed,
            storm.profile,
            self.kept.len(),
            self.of,
            self.runs,
            self.why
        )];
        lines.extend(self.schedule.iter().map(Happening::words));
        lines.push(reproduce(storm.seed, storm.profile, Some(&self.kept), broken));
        lines
    }
}

/// The line that runs it again.
pub(crate) fn reproduce(seed: u64, profile: Profile, kept: Option<&[usize]>, broken: Option<Rule>) -> String {
    let mut line = format!("TIEBREAK_SEED={seed} TIEBREAK_PROFILE={profile:?}");
    if let Some(kept) = kept {
        let list: Vec<String> = kept.iter().map(ToString::to_string).collect();
        line += &format!(" TIEBREAK_KEEP={}", if list.is_empty() { "none".into() } else { list.join(",") });
    }
    if let Some(rule) = broken {
        line += &format!(" TIEBREAK_RULE={rule:?}");
    }
    line + " cargo test --test simulation replay -- --nocapture"
}

/// The lines that run the failures again, and for the first of them what of its storm does the harm.
pub(crate) fn explain(
    failures: &[(u64, Profile, String)],
    rules: Rules,
    broken: Option<Rule>,
) -> Vec<String> {
    let mut lines: Vec<String> = failures
        .iter()
        .map(|(seed, profile, why)| format!("{}  # {why}", reproduce(*seed, *profile, None, broken)))
        .collect();
    if let Some((seed, profile, _)) = failures.first() {
        let storm = Storm::of(*seed, *profile, rules);
        lines.push(String::new());
        match shrink(&storm, SHRINKING_RUNS_MAX) {
            Some(shrunk) => lines.extend(shrunk.lines(&storm, broken)),
            None => lines.push(format!("seed {seed} does no harm when it is run again")),
        }
    }
    lines
}

/// What the environment asks to run again, if anything: storm, faults, and the rule that is broken in it.
pub(crate) fn asked_for() -> Option<(Storm, Vec<usize>)> {
    let seed = std::env::var("TIEBREAK_SEED").ok()?.parse().expect("TIEBREAK_SEED is a number");
    let profile = match std::env::var("TIEBREAK_PROFILE") {
        Ok(name) => Profile::named(&name).expect("TIEBREAK_PROFILE is the name of a profile"),
        Err(_) => Profile::of(seed),
    };
    let rules = match std::env::var("TIEBREAK_RULE") {
        Ok(name) => Rules::without(
            Rule::ALL
                .into_iter()
                .find(|rule| format!("{rule:?}") == name)
                .expect("TIEBREAK_RULE is the name of a rule"),
        ),
        Err(_) => Rules::KEPT,
    };
    let storm = Storm::of(seed, profile, rules);
    let kept = match std::env::var("TIEBREAK_KEEP") {
        Ok(list) if list == "none" => Vec::new(),
        Ok(list) => list.split(',').map(|n| n.parse().expect("TIEBREAK_KEEP is a list of numbers")).collect(),
        Err(_) => (0..storm.schedule.len()).collect(),
    };
    Some((storm, kept))
}
