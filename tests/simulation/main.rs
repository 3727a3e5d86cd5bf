//! Seeded storms over the shipped voters, with every invariant of the protocol checked after every step.

mod cases;
mod heal;
mod leases;
mod mutations;
mod schedule;
mod shrink;
mod storm;
mod sweep;
#[allow(dead_code, reason = "shared with the scenarios, each uses a part")]
mod world;

use storm::Profile;
use storm::run_as;
use tiebreak::testing::Rules;

/// As many for each profile as make the rarer moves happen.
const SEEDS_DEFAULT: u64 = 5_700;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// What has to happen in the storms that every test run goes through: whatever is never reached is not tested.
const REACHED: &[&str] = &[
    "a restored image became blank",
    "a sync failed",
    "alone: it goes on again",
    "alone: it stops",
    "answer: admitted",
    "answer: adopted",
    "answer: confirmed",
    "answer: hello",
    "answer: offered",
    "answer: released",
    "answer: renewed",
    "answer: settled",
    "answer: validated",
    "answer: voted",
    "answer: vouched",
    "answer: would vote",
    "ask: admit",
    "ask: admit, confirmed",
    "ask: offer",
    "ask: offer that takes a life in",
    "command refused: join",
    "command refused: offer",
    "command refused: resign",
    "command: resync",
    "command: stalled",
    "command: stopped",
    "refused: behind",
    "refused: blank",
    "refused: busy",
    "refused: copied",
    "refused: crossing",
    "refused: hold-off",
    "refused: lease runs",
    "refused: restored",
    "refused: sole",
    "refused: stale",
    "refused: term spent",
    "refused: unvalidated",
    "refused: void",
    "role: blocked to follower",
    "role: blocked to paired",
    "role: blocked to solo",
    "role: candidate to blocked",
    "role: candidate to follower",
    "role: follower to candidate",
    "role: paired to blocked",
    "role: paired to follower",
    "role: paired to solo",
    "role: resigning",
    "role: sole one resumes",
    "role: solo opens a term",
    "standing: blank to member",
    "standing: member to resyncing",
    "standing: resyncing to member",
    "starts as a member",
    "starts blank",
    "starts sole",
];

/// Rare: with the profile and the number of seeds that reach it surely.
const REACHED_BY: &[(&str, Profile, u64)] = &[
    ("role: solo rises above its peer", Profile::SlowWitness, 1500),
    ("starts resyncing", Profile::SlowDisk, 3000),
];

#[test]
fn storms_break_no_invariant() {
    let seeds = number("TIEBREAK_SEEDS").unwrap_or(SEEDS_DEFAULT);
    let swept = sweep::sweep(0..seeds, None, Rules::KEPT, 5, &|_| {});
    println!("{}\n{} runs", swept.lines().join("\n"), swept.runs());
    for (what, times) in &swept.seen.0 {
        println!("{times:>9} {what}");
    }
    let lines = shrink::explain(&swept.failures, Rules::KEPT, None);
    assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    if seeds < SEEDS_DEFAULT {
        return;
    }
    let never: Vec<&&str> = REACHED.iter().filter(|what| !swept.seen.0.contains_key(**what)).collect();
    assert!(never.is_empty(), "no storm reached {never:?}");
}

#[test]
fn what_is_rare_is_reached_by_the_storms_that_favour_it() {
    for (what, profile, seeds) in REACHED_BY {
        let reached = (0..*seeds).any(|seed| run_as(seed, *profile, Rules::KEPT).seen.0.contains_key(what));
        assert!(reached, "no {profile:?} storm reached {what:?}");
    }
}

#[test]
fn replay() {
    let Some((storm, kept)) = shrink::asked_for() else {
        return;
    };
    for place in &kept {
        println!("{}", storm.schedule[*place].words());
    }
    match shrink::harm(&storm, &kept) {
        None => println!("no harm"),
        Some(why) => panic!("{why}"),
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..32 {
        let run = |seed| run_as(seed, Profile::of(seed), Rules::KEPT);
        let (one, other) = (run(seed), run(seed));
        assert_eq!((one.trace, one.steps), (other.trace, other.steps), "seed {seed}");
    }
    assert_ne!(run_as(1, Profile::Lossy, Rules::KEPT).trace, run_as(2, Profile::Lossy, Rules::KEPT).trace);
}
