//! Leases at the bound of the clock rates, and past it.
//!
//! At the bound, with the leader's clock as slow and the follower's as fast as may be, and with the delays that leave
//! the least room, no two act. Past it two do, and these tests demand to see it: and even then no acknowledged write
//! is lost, and the resource refuses the one that was deposed, because neither of these hangs on a clock.

use std::time::Duration;

use tiebreak::fence::{Gate, GateError};
use tiebreak::ids::Token;
use tiebreak::limits::CLOCK_RATE_ERROR_PER_MILLE;
use tiebreak::testing::Right;

use crate::world::dice::Dice;
use crate::world::{A, B, Birth, MS, Plan, W, World};

const LEASE: u64 = 1000 * MS;
const BOUND_PPM: i64 = CLOCK_RATE_ERROR_PER_MILLE as i64 * 1000;

/// A leads, paired. Its clock is slow and that of B is fast, by so much.
fn skewed(seed: u64, ppm: i64, delays: (u64, u64)) -> World {
    let mut plan = Plan::calm(Duration::from_nanos(LEASE));
    (plan.edge.low, plan.edge.high) = delays;
    plan.record_sync = (MS / 100, MS / 10);
    plan.data_sync = (MS / 100, MS / 10);
    plan.idle = 20 * LEASE;
    plan.slack = LEASE;
    plan.write_per_mille = 500;
    plan.read_per_mille = 500;
    plan.beat = 5 * MS;
    plan.rates_ppm = [-ppm, ppm, 0, 0];
    let mut world = World::new(seed, plan, Birth::Mature);
    world.oracle.past_the_bound = ppm > BOUND_PPM;
    world.start(W);
    world.start(A);
    world.run_for(400 * MS);
    world.start(B);
    assert!(world.run_while(LEASE * 30, |w| w.right(A) != Some(Right::Paired)), "a leads, paired");
    world
}

/// The protected resource: the shipped gate in front of it.
pub(crate) struct Resource {
    gate: Gate,
    refused: u64,
    _directory: tempfile::TempDir,
}

impl Resource {
    pub(crate) fn new() -> Resource {
        let directory = tempfile::tempdir().expect("a directory for the gate");
        let path = directory.path().join("gate");
        Gate::create(&path).expect("a new gate");
        Resource { gate: Gate::open(&path).expect("the gate"), refused: 0, _directory: directory }
    }

    pub(crate) fn write(&self, token: Token) -> Result<(), GateError> {
        self.gate.admit(token)
    }

    /// Whoever believes that it acts writes, the deposed one last: that is the dangerous order.
    fn written_by_all(&mut self, world: &World) {
        for node in [B, A] {
            let Some(token) = world.shown(node).and_then(|shown| shown.acts) else { continue };
            match self.write(token) {
                Ok(()) => {}
                Err(GateError::Stale(stale)) => {
                    assert!(stale.offered < stale.highest);
                    self.refused += 1;
                }
                Err(error) => panic!("the gate fails: {error}"),
            }
        }
    }
}

/// What the isolation of the leader came to.
struct Isolated {
    world: World,
    /// From the end of the right of A to the moment in which B asks for its first vote, in true nanoseconds.
    room: i128,
    refused: u64,
}

/// A is cut off at some moment; B takes over. All the while whoever acts writes to the resource.
fn isolate(seed: u64, ppm: i64, delays: (u64, u64)) -> Isolated {
    let mut world = skewed(seed, ppm, delays);
    let mut resource = Resource::new();
    let after = Dice::new(seed ^ 0x1ea5e).between(0, LEASE / 5);
    world.run_for(after);
    world.cut_both(A, B);
    world.cut_both(A, W);
    let asked = |w: &World| w.seen.0.get("ask: pre-vote").copied().unwrap_or_default();
    let before = asked(&world);
    let (mut ends, mut stood) = (0, None);
    let deadline = world.now + 6 * LEASE;
    while world.now < deadline && world.violation.is_none() {
        if world.run_while(MS, |w| stood.is_some() || asked(w) == before) && stood.is_none() {
            stood = Some(world.now);
        }
        if stood.is_some() {
            world.run_for(MS / 4);
        }
        if let Some(until) = world.shown(A).and_then(|shown| shown.view.authority()?.2) {
            ends = world.nodes[A].true_time(until);
        }
        resource.written_by_all(&world);
    }
    assert_eq!(world.violation, None, "seed {seed}");
    assert_eq!(world.actor(), Some(B), "seed {seed}: b leads in the end");
    let stood = stood.expect("b stands");
    Isolated { world, room: i128::from(stood) - i128::from(ends), refused: resource.refused }
}

#[test]
fn at_the_bound_of_the_rates_no_two_act_however_long_messages_take() {
    let mut least = i128::MAX;
    for seed in 0..150 {
        let slowest = [MS / 100, MS, 20 * MS, 60 * MS][usize::try_from(seed % 4).expect("small")];
        let isolated = isolate(seed, BOUND_PPM, (MS / 100, slowest));
        assert_eq!((isolated.world.oracle.two_acted, isolated.refused), (0, 0), "seed {seed}");
        assert!(isolated.room >= 0, "seed {seed}: b asks {} ns too early", -isolated.room);
        least = least.min(isolated.room);
    }
    // Or this test would not be at the edge of anything.
    assert!(least < i128::from(MS), "the least room was {least} ns");
    println!("at a rate error of {BOUND_PPM} ppm the least room was {least} ns");
}

#[test]
fn past_the_bound_two_act_and_still_no_write_is_lost_and_the_gate_refuses_the_deposed_one() {
    let (mut overlaps, mut refused, mut most) = (0, 0, 0);
    for seed in 0..40 {
        // A cluster that never breaks an invariant but the sixth: the oracle checks the others all the while.
        let isolated = isolate(seed, 3 * BOUND_PPM, (MS / 100, MS / 10));
        let mut world = isolated.world;
        let two_acted = world.oracle.two_acted;
        overlaps += u64::from(two_acted > 0);
        most = most.max(-isolated.room);
        assert_eq!(two_acted > 0, isolated.refused > 0, "seed {seed}: whoever is deposed is refused");
        refused += isolated.refused;
        world.heal_both(A, B);
        world.heal_both(A, W);
        assert!(world.run_while(LEASE * 40, |w| w.right(B) != Some(Right::Paired)), "seed {seed}: a joins");
        world.plan.write_per_mille = 0;
        world.run_for(LEASE);
        for node in [A, B] {
            let data = &world.nodes[node].data;
            let verdict = world.oracle.has_everything(node, &data.log[..data.durable]);
            world.fail(verdict);
        }
        assert_eq!(world.violation, None, "seed {seed}");
    }
    assert!(overlaps > 0, "past the bound two have to act, or the bound is not what keeps them apart");
    println!(
        "at three times the bound two acted in {overlaps} of 40 runs, b stood up to {most} ns early, and the \
              gate refused {refused} writes"
    );
}
