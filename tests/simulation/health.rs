//! A healthy leader stays: whatever happens to those who are not needed.

use std::time::Duration;

use tiebreak::testing::Right;

use crate::world::{A, B, Birth, MS, Plan, W, World};

const LEASE: u64 = 1000 * MS;

fn paired(seed: u64) -> World {
    let mut plan = Plan::calm(Duration::from_millis(1000));
    plan.edge.high = 10 * MS;
    plan.record_sync = (MS, 5 * MS);
    plan.data_sync = (MS, 5 * MS);
    plan.write_per_mille = 400;
    plan.rates_ppm = [10_000, -10_000, 0, 0];
    let mut world = World::new(seed, plan, Birth::Mature);
    for node in [W, A] {
        world.start(node);
    }
    world.run_for(100 * MS);
    world.start(B);
    assert!(world.run_while(LEASE * 5, |w| w.right(A) != Some(Right::Paired)), "a leads, paired");
    world
}

/// Runs what happens and demands that A acted all the time, in a term of its own.
fn undisturbed(seed: u64, story: impl FnOnce(&mut World)) -> World {
    let mut world = paired(seed);
    story(&mut world);
    world.run_for(LEASE * 10);
    assert_eq!(world.violation, None, "seed {seed}");
    assert_eq!((world.actor(), world.oracle.changes), (Some(A), 0), "seed {seed}: a leads without a break");
    world
}

#[test]
fn a_witness_that_restarts_or_stays_away_changes_nothing() {
    for seed in 0..20 {
        let mut term = None;
        let world = undisturbed(seed, |w| {
            term = Some(w.nodes[A].replica_record().term);
            w.crash(W);
            w.run_for(60 * LEASE);
            assert_eq!(w.right(A), Some(Right::Paired));
            w.start(W);
        });
        assert_eq!(Some(world.nodes[A].replica_record().term), term, "seed {seed}: the term is as it was");
        assert_eq!(world.right(A), Some(Right::Paired));
    }
}

#[test]
fn a_standby_that_was_isolated_for_ten_minutes_comes_back_without_disturbing_anybody() {
    for seed in 0..4 {
        let world = undisturbed(seed, |w| {
            w.cut_both(A, B);
            w.cut_both(B, W);
            w.run_for(600 * LEASE);
            w.heal_both(A, B);
            w.heal_both(B, W);
        });
        assert_eq!(world.right(A), Some(Right::Paired), "seed {seed}");
        assert_eq!(world.nodes[A].replica_record().term.0, 3, "seed {seed}: one new term, to take it in");
    }
}

#[test]
fn a_one_way_link_of_the_standby_deposes_nobody() {
    for seed in 0..20 {
        for (from, to) in [(A, B), (B, A), (B, W), (W, B)] {
            let world = undisturbed(seed, |w| {
                w.cut(from, to);
                w.run_for(30 * LEASE);
                w.heal(from, to);
                w.run_for(60 * LEASE);
            });
            assert_eq!(world.right(A), Some(Right::Paired), "seed {seed} {from} {to}");
        }
    }
}

#[test]
fn a_link_between_the_replicas_that_is_cut_leaves_the_leader_in_its_place() {
    for seed in 0..20 {
        undisturbed(seed, |w| {
            w.cut_both(A, B);
            w.run_for(30 * LEASE);
            assert_eq!(w.right(A), Some(Right::Solo));
            w.heal_both(A, B);
        });
    }
}

#[test]
fn a_witness_five_seconds_away_disturbs_nobody() {
    for seed in 0..10 {
        undisturbed(seed, |w| {
            for (from, to) in [(A, W), (W, A), (B, W), (W, B)] {
                w.edges[from][to].low = 2400 * MS;
                w.edges[from][to].high = 2500 * MS;
            }
            w.run_for(60 * LEASE);
        });
    }
}

#[test]
fn a_link_that_flaps_for_hours_changes_leaders_rarely_and_terms_slowly() {
    for seed in 0..2 {
        let mut world = paired(seed);
        world.plan.write_per_mille = 20;
        let hours = 3;
        for _ in 0..hours * 600 {
            world.cut_both(A, B);
            world.run_for(3 * LEASE);
            world.heal_both(A, B);
            world.run_for(3 * LEASE);
        }
        assert_eq!(world.violation, None, "seed {seed}");
        assert_eq!(world.oracle.changes, 0, "seed {seed}: leaders changed");
        let term = world.nodes[A].replica_record().term.0;
        // A pause grows to 32 leases, and each opening costs one term.
        assert!(term < 120 * hours, "seed {seed}: term {term} after {hours} hours");
    }
}
