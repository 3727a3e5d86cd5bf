//! Breadth-first search: the first violation found is a shortest one.

use std::time::Instant;

use crate::model::Model;
use crate::world::{World, fingerprint};

/// How a search ended.
pub(crate) enum Ended {
    /// Every reachable state was seen.
    Exhausted,
    /// An invariant was violated on this path.
    Violated { what: String, path: Vec<String> },
    /// The bound on states was reached.
    Cut,
}

pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    pub(crate) states: usize,
    pub(crate) depth: usize,
    /// The most writes that were acknowledged in one state.
    pub(crate) acknowledged: usize,
    pub(crate) seconds: f64,
}

/// Fingerprints of the states that were seen, in an open-addressed table of twelve bytes a place.
struct Seen {
    /// Three zeros mark a free place.
    places: Vec<[u32; 3]>,
    count: usize,
}

impl Seen {
    fn new(places: usize) -> Seen {
        Seen { places: vec![[0; 3]; places], count: 0 }
    }

    fn put(&mut self, print: [u32; 3]) -> bool {
        let last = self.places.len() - 1;
        let mut at = (print[0] as usize | ((print[1] as usize) << 32)) & last;
        while self.places[at] != [0; 3] {
            if self.places[at] == print {
                return false;
            }
            at = (at + 1) & last;
        }
        self.places[at] = print;
        self.count += 1;
        true
    }

    /// Whether it is new.
    fn insert(&mut self, [low, middle, high]: [u32; 3]) -> bool {
        if self.count * 4 > self.places.len() * 3 {
            let mut larger = Seen::new(self.places.len() * 2);
            for print in self.places.iter().filter(|print| **print != [0; 3]) {
                larger.put(*print);
            }
            *self = larger;
        }
        self.put([low, middle, high.max(1)])
    }
}

/// From which state each was first reached, and by which of its moves.
struct Parents {
    state: Vec<u32>,
    number: Vec<u16>,
}

/// `visit` is shown every state that is reached, once.
pub(crate) fn search(model: &mut Model, states_max: usize, mut visit: impl FnMut(&World)) -> Outcome {
    #[allow(clippy::disallowed_methods, reason = "the rate is shown to people")]
    let began = Instant::now();
    let start = model.start();
    let mut seen = Seen::new(1 << 12);
    let mut parents = Parents { state: vec![0], number: vec![0] };
    let mut level = Vec::new();
    model.canonical(&start).0.write(&mut level);
    seen.insert(fingerprint(&level));
    let mut next_level = Vec::new();
    let (mut index, mut depth, mut acknowledged) = (0_usize, 0, 0);
    let mut moves = Vec::new();
    let mut words = Vec::new();
    let mut ended = None;
    'levels: while !level.is_empty() {
        let mut rest = &level[..];
        while !rest.is_empty() {
            let (world, length) = World::read(rest);
            rest = &rest[length..];
            acknowledged = acknowledged.max(model.acknowledged(&world));
            visit(&world);
            moves.clear();
            model.moves(&world, &mut moves);
            for (number, (_, next)) in moves.iter().enumerate() {
                let next = match next {
                    Ok(next) => next,
                    Err(what) => {
                        let path = replay(model, &parents, index, Some(number));
                        ended = Some(Ended::Violated { what: what.clone(), path });
                        break 'levels;
                    }
                };
                words.clear();
                model.canonical(next).0.write(&mut words);
                if seen.insert(fingerprint(&words)) {
                    next_level.extend_from_slice(&words);
                    parents.state.push(u32::try_from(index).expect("fewer than four thousand million"));
                    parents.number.push(u16::try_from(number).expect("a state has few moves"));
                }
            }
            index += 1;
            if seen.count > states_max {
                ended = Some(Ended::Cut);
                break 'levels;
            }
        }
        std::mem::swap(&mut level, &mut next_level);
        next_level.clear();
        depth += usize::from(!level.is_empty());
        if std::env::var_os("TIEBREAK_MODEL_TRACE").is_some() {
            let seconds = began.elapsed().as_secs_f64();
            eprintln!("  depth {depth}: {} states, {}, {seconds:.0} s", seen.count, model.sizes());
        }
    }
    let ended = ended.unwrap_or(Ended::Exhausted);
    let seconds = began.elapsed().as_secs_f64();
    Outcome { ended, states: seen.count, depth, acknowledged, seconds }
}

/// The names of the moves that led to a state, and of one move more.
fn replay(model: &mut Model, parents: &Parents, mut at: usize, more: Option<usize>) -> Vec<String> {
    let mut numbers: Vec<usize> = more.into_iter().collect();
    while at != 0 {
        numbers.push(usize::from(parents.number[at]));
        at = parents.state[at] as usize;
    }
    let mut names = Vec::new();
    // A canonical world may have its replicas changed over; people are told one story.
    let start = model.start();
    let (mut world, mut turned) = model.canonical(&start);
    let mut moves = Vec::new();
    for number in numbers.into_iter().rev() {
        moves.clear();
        model.moves(&world, &mut moves);
        let (name, next) = &moves[number];
        names.push(model.name(&world, *name, turned));
        let Ok(next) = next else { break };
        let (canonical, again) = model.canonical(next);
        world = canonical;
        turned ^= again;
    }
    names
}
