//! Named leases in a storm: the shipped table and the shipped hold on two nodes whose clocks run apart, under leaders that
//! come, go, lapse, resign, restart and are paused, over a network that loses, delays and doubles, against an oracle that
//! sees real time. And each of the rules broken in turn: the oracle has to notice.
//!
//! A run is its seed: `TIEBREAK_SEED=17 cargo test --test names storm`.

#![allow(unreachable_pub, reason = "modules of one program")]

mod world;

use tiebreak::testing::{NameRule, NameRules};
use world::{Tally, World};

/// Moves of one run: about 40 seconds of virtual time.
const MOVES: u32 = 10_000;

fn run(mut world: World, seed: u64) -> Result<Tally, String> {
    for _ in 0..MOVES {
        world.step().map_err(|why| format!("TIEBREAK_SEED={seed}: {why}"))?;
    }
    Ok(world.tally)
}

fn seeds(upto: u64) -> Box<dyn Iterator<Item = u64>> {
    match std::env::var("TIEBREAK_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => Box::new(std::iter::once(seed)),
        None => Box::new(0..upto),
    }
}

/// Shows: in 300 storms no name is held twice at any instant, and its tokens rise.
#[test]
fn no_name_is_held_twice_in_a_storm_and_its_tokens_rise() {
    let mut all = Tally::default();
    let mut runs = 0;
    for seed in seeds(300) {
        all += run(World::new(seed, NameRules::KEPT), seed).unwrap_or_else(|why| panic!("{why}"));
        run(World::apart(seed, NameRules::KEPT), seed).unwrap_or_else(|why| panic!("clocks apart: {why}"));
        runs += 1;
    }
    println!("{runs} storms: {all:?}");
    if runs > 1 {
        // Not for want of anything happening.
        assert!(all.holds > 10 * runs && all.tenures > 4 * runs && all.renewals > 10 * runs, "{all:?}");
        assert!(all.refused > runs && all.ran_out > runs && all.lost > runs && all.revoked > runs, "{all:?}");
    }
}

/// Shows: no rule is there in vain.
#[test]
fn each_broken_rule_is_found_out() {
    for rule in NameRule::ALL {
        let rules = NameRules::without(rule);
        let found = (0..600).find_map(|seed| {
            run(World::new(seed, rules), seed).and(run(World::apart(seed, rules), seed)).err()
        });
        let why = found.unwrap_or_else(|| panic!("nobody missed {rule:?}"));
        println!("{rule:?}: {why}");
    }
}

/// Shows: with nothing broken, whoever wants a name gets it, and keeps it.
#[test]
fn in_calm_a_name_is_granted_and_kept() {
    for seed in 0..20 {
        let mut world = World::calm(seed, NameRules::KEPT);
        for _ in 0..MOVES {
            world.step().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        let tally = world.tally;
        assert_eq!((tally.tenures, tally.ran_out, tally.lost), (1, 0, 0), "seed {seed}: {tally:?}");
        assert!(tally.holds > 10 && tally.renewals > 20, "seed {seed}: {tally:?}");
    }
}
