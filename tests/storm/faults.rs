//! What is broken, for how long, in which order: drawn from the seed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cluster::{A, B, Cluster, W};
use crate::dice::Dice;

/// Faults at once. With all three nodes down nothing is tested, and chance would keep it so.
pub const FAULTS_AT_ONCE_MAX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Kill,
    KillTwo,
    PowerCut,
    Terminate,
    Pause,
    HandOver,
    Cut,
    OneWayCut,
    Isolate,
    Delay,
    Loss,
    ClockStep,
    FullDisk,
}

/// With their weights.
const KINDS: [(Kind, u64); 13] = [
    (Kind::Kill, 20),
    (Kind::KillTwo, 6),
    (Kind::PowerCut, 2),
    (Kind::Terminate, 6),
    (Kind::Pause, 18),
    (Kind::HandOver, 8),
    (Kind::Cut, 16),
    (Kind::OneWayCut, 14),
    (Kind::Isolate, 12),
    (Kind::Delay, 8),
    (Kind::Loss, 8),
    (Kind::ClockStep, 10),
    (Kind::FullDisk, 6),
];

const NODES: [usize; 3] = [A, B, W];
const LINKS: [(usize, usize); 6] = [(A, B), (A, W), (B, W), (B, A), (W, A), (W, B)];
const MINUTE: i64 = 60;
const DAY: i64 = 24 * 60 * MINUTE;
const STEPS_SECONDS: [i64; 8] = [-5, 5, -10 * MINUTE, 10 * MINUTE, -DAY, DAY, -400 * DAY, 400 * DAY];

/// What was done, for the summary.
pub type Counts = BTreeMap<Kind, u64>;

/// One fault, which has begun.
#[derive(Debug)]
pub struct Fault {
    pub kind: Kind,
    nodes: Vec<usize>,
    flows: Vec<(usize, usize)>,
}

/// How long until the next fault, and how long one lasts: mostly short beside a lease, sometimes several leases.
pub fn gap(dice: &mut Dice) -> Duration {
    Duration::from_millis(dice.between(20, 900))
}

pub fn span(dice: &mut Dice) -> Duration {
    let longest = dice.pick(&[200, 800, 1600, 4000]);
    Duration::from_millis(dice.between(20, longest))
}

impl Fault {
    /// Draws one and begins it; `None` if chance chose what cannot be done at present.
    pub fn begin(dice: &mut Dice, cluster: &mut Cluster) -> Option<Fault> {
        // Drawn whether they are used or not, so that what is possible here does not change what is drawn next.
        let (kind, node, link) = (kind(dice), dice.pick(&NODES), dice.pick(&LINKS));
        let (step, delay, loss) = (dice.pick(&STEPS_SECONDS), dice.between(1, 400), dice.between(20, 400));
        let free: Vec<usize> = NODES.into_iter().filter(|node| cluster.is_free(*node)).collect();
        let mut fault = Fault { kind, nodes: vec![node], flows: Vec::new() };
        match kind {
            Kind::Kill | Kind::Terminate | Kind::Pause if !free.contains(&node) => return None,
            Kind::Kill => cluster.kill(node),
            Kind::Terminate => cluster.terminate(node),
            Kind::Pause => cluster.pause(node),
            Kind::KillTwo | Kind::PowerCut => {
                fault.nodes = NODES.into_iter().filter(|n| kind == Kind::PowerCut || *n != node).collect();
                fault.nodes.iter().for_each(|node| cluster.kill(*node));
            }
            Kind::HandOver if !free.contains(&node) || node == W => return None,
            Kind::HandOver => {
                let request = serde_json::json!("HandOver");
                let _ = crate::load::ask(cluster.clients[node], &request, Duration::from_millis(200));
            }
            Kind::Cut => fault.flows = vec![link, (link.1, link.0)],
            Kind::OneWayCut => fault.flows = vec![link],
            Kind::Isolate => {
                fault.flows = LINKS.into_iter().filter(|(from, to)| *from == node || *to == node).collect();
            }
            Kind::Delay | Kind::Loss => fault.flows = vec![link, (link.1, link.0)],
            Kind::ClockStep if !cluster.can_step_clocks() => return None,
            Kind::ClockStep => cluster.step_clock(node, step),
            Kind::FullDisk if !cluster.can_fill_disks() => return None,
            Kind::FullDisk => cluster.fill_disk(node),
        }
        for (from, to) in &fault.flows {
            match kind {
                Kind::Delay => cluster.flow(*from, *to).delay(Duration::from_millis(delay)),
                Kind::Loss => cluster.flow(*from, *to).lose(u32::try_from(loss).expect("per mille")),
                _ => cluster.flow(*from, *to).cut(true),
            }
        }
        Some(fault)
    }

    /// Ends it.
    pub fn end(self, cluster: &mut Cluster) {
        for (from, to) in &self.flows {
            cluster.flow(*from, *to).heal();
        }
        for node in self.nodes {
            match self.kind {
                Kind::Kill | Kind::KillTwo | Kind::PowerCut if !cluster.runs(node) => cluster.run(node),
                Kind::Terminate => {
                    cluster.kill(node);
                    cluster.run(node);
                }
                Kind::Pause => cluster.resume(node),
                Kind::FullDisk => {
                    cluster.free_disk(node);
                    if !cluster.runs(node) {
                        cluster.run(node);
                    }
                }
                _ => {}
            }
        }
    }
}

fn kind(dice: &mut Dice) -> Kind {
    let all: u64 = KINDS.iter().map(|(_, weight)| weight).sum();
    let mut roll = dice.between(1, all);
    for (kind, weight) in KINDS {
        if roll <= weight {
            return kind;
        }
        roll -= weight;
    }
    unreachable!("the weights add up")
}

/// After all faults have ended: nothing is left of them.
pub fn heal(cluster: &mut Cluster) {
    for (from, to) in LINKS {
        cluster.flow(from, to).heal();
    }
    for node in NODES {
        cluster.free_disk(node);
        cluster.resume(node);
        if !cluster.is_free(node) {
            cluster.kill(node);
            cluster.run(node);
        }
    }
}
