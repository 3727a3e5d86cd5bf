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

const SEEDS_DEFAULT: u64 = 4_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

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

#[test]
#[ignore = "temporary"]
fn one() {
    let profile = Profile::named(&std::env::var("P").unwrap()).unwrap();
    let swept = sweep::sweep(0..number("N").unwrap(), Some(profile), Rules::KEPT, 5, &|_| {});
    println!("{}\n{} runs", swept.lines().join("\n"), swept.runs());
    for (what, times) in &swept.seen.0 {
        println!("{times:>9} {what}");
    }
    for f in &swept.failures {
        println!("{}", shrink::explain(std::slice::from_ref(f), Rules::KEPT, None).join("\n"));
    }
}
