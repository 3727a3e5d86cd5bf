//! A rule that no checker misses is not a rule: each is removed in turn, and a violation has to be found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tiebreak::testing::{Rule, Rules};

use crate::guarded;

/// The first seed at which storms find the broken rule, within so many seeds, and what they find.
fn first_violation(rule: Rule, seeds: u64) -> Option<(u64, String)> {
    let next = AtomicU64::new(0);
    let found: Mutex<Option<(u64, String)>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || found.lock().expect("no panic holds it").is_some() {
                        return;
                    }
                    if let Err(why) = guarded(seed, Rules::without(rule)) {
                        let mut found = found.lock().expect("no panic holds it");
                        if found.as_ref().is_none_or(|(first, _)| seed < *first) {
                            *found = Some((seed, why));
                        }
                    }
                }
            });
        }
    });
    found.into_inner().expect("no panic holds it")
}

#[test]
#[ignore = "a survey"]
fn survey() {
    let seeds = crate::number("TIEBREAK_SEEDS").unwrap_or(6000);
    for rule in Rule::ALL {
        match first_violation(rule, seeds) {
            Some((seed, why)) => println!("{rule:?}: seed {seed}: {why}"),
            None => println!("{rule:?}: NOT FOUND in {seeds}"),
        }
    }
}
