//! A witness that is very far away, over a path that loses much: an hour of it.

use std::time::Duration;

use tiebreak::testing::Right;

use crate::world::{A, B, Birth, MS, Plan, W, World};

const SECOND: u64 = 1000 * MS;
const HOUR: u64 = 3600 * SECOND;

/// A leads, paired; then every message to and from the witness takes 1.5 s, and a fifth of them are lost.
fn far(seed: u64, lease: u64) -> World {
    let mut plan = Plan::calm(Duration::from_nanos(lease));
    plan.repeat_after = 3 * SECOND;
    plan.idle = 45 * SECOND;
    plan.slack = 20 * SECOND;
    let mut world = World::new(seed, plan, Birth::Mature);
    world.start(W);
    world.start(A);
    world.run_for(400 * MS);
    world.start(B);
    assert!(world.run_while(30 * lease, |w| w.right(A) != Some(Right::Paired)), "a leads, paired");
    for replica in [A, B] {
        for (from, to) in [(replica, W), (W, replica)] {
            let edge = &mut world.edges[from][to];
            (edge.low, edge.high, edge.loss_per_mille) = (1500 * MS, 1500 * MS, 200);
        }
    }
    world
}

#[test]
fn an_hour_with_a_witness_far_away_deposes_nobody() {
    for seed in 0..4 {
        let mut world = far(seed, 2 * SECOND);
        let deposed = world.run_while(HOUR, |w| w.actor() == Some(A) && w.right(A) == Some(Right::Paired));
        assert!(!deposed, "seed {seed}: at {} s", world.now / SECOND);
        assert_eq!(world.violation, None, "seed {seed}");
    }
}

#[test]
fn an_hour_with_a_lossy_link_between_the_replicas_as_well_lets_nobody_else_act_at_a_lease_of_ten_seconds() {
    for seed in 0..4 {
        let mut world = far(seed, 10 * SECOND);
        for (from, to) in [(A, B), (B, A)] {
            world.edges[from][to].loss_per_mille = 400;
        }
        let failed_over = world.run_while(HOUR, |w| w.actor() != Some(B));
        assert!(!failed_over, "seed {seed}: at {} s", world.now / SECOND);
        assert_eq!(world.violation, None, "seed {seed}");
    }
}

#[test]
fn an_election_succeeds_with_a_witness_far_away() {
    let mut spans = Vec::new();
    for seed in 0..40 {
        let mut world = far(seed, 2 * SECOND);
        world.run_for(10 * SECOND);
        let killed = world.now;
        world.crash(A);
        assert!(world.run_while(600 * SECOND, |w| w.actor() != Some(B)), "seed {seed}: b acts");
        assert_eq!(world.violation, None, "seed {seed}");
        spans.push((world.now - killed) / MS);
    }
    spans.sort_unstable();
    println!(
        "3 s round trip and 20 % loss to the witness, lease 2 s: b acts {} ms after a died at the median, {} ms at \
         the most",
        spans[spans.len() / 2],
        spans[spans.len() - 1]
    );
}
