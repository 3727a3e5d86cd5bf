//! Breadth-first search: the first violation found is a shortest one.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use crate::state::World;

/// How a search ended.
pub(crate) enum Outcome {
    /// Every reachable state was seen.
    Exhausted { states: usize, depth: usize, acknowledged: usize },
    /// An invariant was violated on this path.
    Violated { what: String, path: Vec<String> },
    /// The bound on states was reached.
    Cut { states: usize },
}

/// Two independent 64-bit hashes: at ten million states a clash of both has a chance of about 10^-25.
fn fingerprint(hashers: &[RandomState; 2], world: &World) -> u128 {
    let [low, high] = hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(world)));
    low | (high << 64)
}

pub(crate) fn search(start: &World, states_max: usize) -> Outcome {
    let hashers = [RandomState::new(), RandomState::new()];
    let first = fingerprint(&hashers, start);
    // For each state the one it was first reached from, and by which move.
    let mut from: HashMap<u128, (u128, u32)> = HashMap::from([(first, (first, 0))]);
    let mut queue = VecDeque::from([(start.clone(), first, 0_usize)]);
    let (mut depth, mut acknowledged) = (0, 0);
    while let Some((world, print, steps)) = queue.pop_front() {
        depth = depth.max(steps);
        acknowledged = acknowledged.max(world.acknowledged());
        for (number, (name, next)) in world.moves().into_iter().enumerate() {
            let next = match next {
                Ok(next) => next,
                Err(what) => {
                    let mut path = replay(start, &from, print, first);
                    path.push(name);
                    return Outcome::Violated { what, path };
                }
            };
            let reached = fingerprint(&hashers, &next);
            if let std::collections::hash_map::Entry::Vacant(place) = from.entry(reached) {
                let number = u32::try_from(number).expect("a state has few moves");
                place.insert((print, number));
                queue.push_back((next, reached, steps + 1));
            }
        }
        if from.len() > states_max {
            return Outcome::Cut { states: from.len() };
        }
    }
    Outcome::Exhausted { states: from.len(), depth, acknowledged }
}

/// The names of the moves that led to a state.
fn replay(start: &World, from: &HashMap<u128, (u128, u32)>, mut at: u128, first: u128) -> Vec<String> {
    let mut numbers = Vec::new();
    while at != first {
        let (before, number) = from[&at];
        numbers.push(number);
        at = before;
    }
    let mut world = start.clone();
    let mut names = Vec::new();
    for number in numbers.into_iter().rev() {
        let (name, next) = world.moves().swap_remove(number as usize);
        names.push(name);
        world = next.expect("the path was walked before");
    }
    names
}
