//! The same thing many times, for the median of its interruptions: as many as `TIEBREAK_ROUNDS` says.

use crate::hosts::{A, B};
use crate::load::Load;
use crate::pair::{Pair, can_run};

fn rounds() -> Option<usize> {
    let rounds = std::env::var("TIEBREAK_ROUNDS").ok()?.parse().expect("TIEBREAK_ROUNDS is a number");
    can_run().then_some(rounds)
}

/// Shows: how long nothing is acknowledged when the primary's host dies.
#[test]
fn rounds_of_a_primarys_host_that_dies() {
    let Some(rounds) = rounds() else { return };
    let mut pair = Pair::start();
    let mut load = Load::start(&pair, "rounds: primary's host dies");
    for round in 0..rounds {
        let (leader, other) = if round % 2 == 0 { (A, B) } else { (B, A) };
        load.fault("power off");
        pair.power_off(leader);
        pair.until_primary(other);
        load.goes_on(&pair);
        load.fault("power on");
        pair.power_on(leader);
        pair.until_pair(other);
        load.goes_on(&pair);
    }
    load.check(&pair);
}

/// Shows: how long nothing is acknowledged at a switchover.
#[test]
fn rounds_of_a_switchover() {
    let Some(rounds) = rounds() else { return };
    let pair = Pair::start();
    let mut load = Load::start(&pair, "rounds: switchover");
    for round in 0..rounds {
        let (from, to) = if round % 2 == 0 { (A, B) } else { (B, A) };
        load.fault("switchover");
        pair.until_switched(from, to);
        pair.until_pair(to);
        load.goes_on(&pair);
    }
    load.check(&pair);
}
