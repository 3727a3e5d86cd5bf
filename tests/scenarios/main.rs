//! Whole scenarios in virtual time, told message by message. The transcripts beside this file are documentation:
//! read them. They are also tests: a run has to tell the same story.
//!
//! `TIEBREAK_REWRITE=1 cargo test --test scenarios` writes them anew; whoever does that has to be able to explain
//! the difference.

mod stories;
#[allow(dead_code, reason = "shared with the simulation, each uses a part")]
#[path = "../simulation/world/mod.rs"]
mod world;

use std::path::PathBuf;
use std::time::Duration;

use tiebreak::testing::Settings;
use world::talk::Transcript;
use world::{Birth, Plan, World};

const LEGEND: &str = "\
`x -> y` a message leaves (1 ms on its way), `x -x y` one that cannot arrive. `data[T]` is between the data layers.
`IS` tells what a node's data layer and service are shown. Leases are 2 s, a peer may be silent for 1 s, a sync takes
1 ms. Renewals after the first of a term are counted, not printed.
";

/// Tells a story and compares it with the golden one.
fn tell(name: &str, birth: Birth, prose: &str, story: impl FnOnce(&mut World)) {
    let mut plan = Plan::calm(Duration::from_secs(2));
    plan.settings = Settings::default();
    let mut world = World::new(1, plan, birth);
    world.transcript = Some(Transcript::default());
    story(&mut world);
    world.heading("the end");
    assert_eq!(world.violation, None);
    let lines = &world.transcript.as_ref().expect("it was just put there").lines;
    let body = lines.join("\n");
    let text = format!("{}\n\n{LEGEND}{body}\n", wrapped(prose));
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios").join(format!("{name}.txt"));
    if std::env::var_os("TIEBREAK_REWRITE").is_some() {
        std::fs::write(&path, text).expect("the transcript can be written");
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    if golden == text {
        return;
    }
    let differs = golden.lines().zip(text.lines()).position(|(a, b)| a != b);
    let at = differs.unwrap_or_else(|| golden.lines().count().min(text.lines().count()));
    panic!(
        "{name}.txt tells another story from line {}:\n  golden: {}\n  now:    {}\n\
         (TIEBREAK_REWRITE=1 cargo test --test scenarios writes it anew)",
        at + 1,
        golden.lines().nth(at).unwrap_or("(ends)"),
        text.lines().nth(at).unwrap_or("(ends)"),
    );
}

fn wrapped(prose: &str) -> String {
    let mut lines = vec![String::new()];
    for word in prose.split_whitespace() {
        let last = lines.last_mut().expect("never empty");
        if last.is_empty() {
            last.push_str(word);
        } else if last.len() + word.len() < 110 {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}
