//! A rule that no checker misses is not a rule: each is removed in turn, and a violation has to be found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tiebreak::testing::{Rule, Rules};

use crate::guard;
use crate::storm::{Profile, run_as};

/// The first seed at which storms of this kind find the broken rule, within so many seeds, and what they find.
fn first_violation(rule: Rule, profile: Profile, seeds: u64) -> Option<(u64, String)> {
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
                    if let Err(why) = guard(|| run_as(seed, profile, Rules::without(rule))) {
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
    let seeds = crate::number("TIEBREAK_SEEDS").unwrap_or(300);
    for rule in Rule::ALL {
        let mut line = format!("{rule:?}:");
        for profile in Profile::ALL {
            if let Some((seed, why)) = first_violation(rule, profile, seeds) {
                let number = why.split(": ").nth(2).unwrap_or("?").to_owned();
                line += &format!(" {profile:?}@{seed}/{number}");
            }
        }
        println!("{line}");
    }
}
