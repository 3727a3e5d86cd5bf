//! Replays what the fuzzer found worth keeping (`tests/fuzz/corpus`), through the same functions, without a fuzzer.
//!
//! `tests/fuzz/run` looks for more. A file that once made a target fail is kept in its corpus, so that it is tried
//! here for ever.

#![allow(unreachable_pub, reason = "modules of two programs")]

#[path = "fuzz/targets/mod.rs"]
mod targets;

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use tiebreak::testing::{Rule, Rules};

/// Of all files together: a corpus is kept minimised.
const CORPUS_BYTES_MAX: u64 = 200_000;
/// Fewer show that a corpus was lost, not that it is small.
const FILES_MIN: usize = 10;

/// Bytes that look unordered, the same in each run.
struct Chance(u64);

impl Chance {
    fn bytes(&mut self, many: usize) -> Vec<u8> {
        let mut byte = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.to_le_bytes()[4]
        };
        (0..many).map(|_| byte()).collect()
    }
}

#[test]
fn every_kept_input_passes_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let mut bytes = 0;
    for (name, run) in targets::TARGETS {
        let mut files = 0;
        for entry in fs::read_dir(corpus.join(name)).expect("each target has a corpus") {
            let path = entry.expect("an entry").path();
            let input = fs::read(&path).expect("a file of the corpus");
            bytes += input.len() as u64;
            files += 1;
            // Shown only if it fails.
            println!("{}", path.display());
            run(&input);
        }
        assert!(files >= FILES_MIN, "{name} has {files} files");
    }
    assert!(
        bytes <= CORPUS_BYTES_MAX,
        "the corpus has {bytes} bytes; minimise it with tests/fuzz/run --minimise"
    );
}

/// The targets hold for bytes that nobody chose, too; and an empty input is an input.
#[test]
fn bytes_by_chance_pass_every_target() {
    let mut chance = Chance(0x2545_f491_4f6c_dd1d);
    for length in 0..600 {
        let input = chance.bytes(length);
        for (_, run) in targets::TARGETS {
            run(&input);
        }
    }
}

/// The oracles of the voters are not blind: with a rule switched off that they watch, some input fails. (The other
/// rules need two voters that are honest; `tests/simulation/mutations.rs` has them all.)
#[test]
fn a_voter_that_breaks_a_rule_is_caught() {
    let mut chance = Chance(1);
    let inputs: Vec<Vec<u8>> = (0..20_000).map(|_| chance.bytes(400)).collect();
    let caught = |run: fn(&[u8], Rules), rule| {
        inputs.iter().any(|input| catch_unwind(|| run(input, Rules::without(rule))).is_err())
    };
    let of_witness = [
        Rule::OnePromisePerTerm,
        Rule::HoldsAboveConfirmed,
        Rule::HoldsStrictlyAbove,
        Rule::ConfirmationOutlivesPromises,
        Rule::ConfirmNotBelowPromise,
        Rule::BlankGrantsNothing,
    ];
    let of_replica =
        [Rule::StandingIsGranting, Rule::SoleRefusesVotes, Rule::ResumeInNewTerm, Rule::BlankGrantsNothing];
    let missed: Vec<Rule> = of_witness
        .into_iter()
        .filter(|rule| !caught(targets::witness::run_with, *rule))
        .chain(of_replica.into_iter().filter(|rule| !caught(targets::replica::run_with, *rule)))
        .collect();
    assert!(missed.is_empty(), "no input fails without {missed:?}");
}
