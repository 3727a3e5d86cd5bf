//! Replays what the fuzzer found worth keeping (`tests/fuzz/corpus`), through the same functions, without a fuzzer.
//!
//! `tests/fuzz/run` looks for more. An input that once made a target fail is kept in its corpus, so that it is tried
//! here for ever.

#![allow(unreachable_pub, reason = "modules of two programs")]

#[path = "fuzz/targets/mod.rs"]
mod targets;

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use tiebreak::testing::{Rule, Rules};

/// Of all files together: a corpus is kept minimised.
const CORPUS_BYTES_MAX: usize = 240_000;
/// Of each target. Fewer show that a corpus was lost, not that it is small.
const INPUTS_MIN: usize = 10;

/// The corpus of a target: an input a line, in hexadecimal.
fn corpus(target: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fuzz/corpus/{target}.hex"));
    fs::read_to_string(file).expect("each target has a corpus")
}

fn unpacked(line: &str) -> Vec<u8> {
    assert!(line.len().is_multiple_of(2), "half a byte: {line}");
    let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).expect("two hexadecimal digits");
    (0..line.len()).step_by(2).map(byte).collect()
}

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
    let mut bytes = 0;
    for (name, run) in targets::TARGETS {
        let corpus = corpus(name);
        bytes += corpus.len();
        assert!(corpus.lines().count() >= INPUTS_MIN, "{name} has {} inputs", corpus.lines().count());
        assert!(corpus.lines().is_sorted(), "{name}: sorted, a change of the corpus shows as what it is");
        for line in corpus.lines() {
            // Shown only if it fails.
            println!("{name}: {line}");
            run(&unpacked(line));
        }
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
    // By chance, and on from each state that the kept inputs lead to.
    let inputs = |name| {
        let mut chance = Chance(1);
        let kept: Vec<Vec<u8>> = corpus(name).lines().map(unpacked).collect();
        let mut inputs = kept.clone();
        inputs.extend((0..20_000).map(|_| chance.bytes(400)));
        inputs.extend((0..40_000).map(|n| [&kept[n % kept.len()][..], &chance.bytes(200)].concat()));
        inputs
    };
    let missed = |name, run: fn(&[u8], Rules), rules: &[Rule]| -> Vec<Rule> {
        let inputs = inputs(name);
        // It is the broken rule that is caught.
        inputs.iter().for_each(|input| run(input, Rules::KEPT));
        let caught =
            |rule| inputs.iter().any(|input| catch_unwind(|| run(input, Rules::without(rule))).is_err());
        rules.iter().copied().filter(|rule| !caught(*rule)).collect()
    };
    let of_witness = [
        Rule::OnePromisePerTerm,
        Rule::HoldsAboveConfirmed,
        Rule::HoldsStrictlyAbove,
        Rule::ConfirmationOutlivesPromises,
        Rule::ConfirmNotBelowPromise,
        Rule::BlankGrantsNothing,
        Rule::EarlierLinksAreVoid,
        Rule::AdmittedOnce,
        Rule::LivesAreRemembered,
        Rule::BannedStops,
        Rule::ValidatedFirst,
        Rule::ValidationRaisesConfirmed,
        Rule::WitnessLeaseBinds,
        Rule::WitnessHoldsOff,
    ];
    let of_replica = [
        Rule::StandingIsGranting,
        Rule::PromiseBindsFollower,
        Rule::HoldOffAfterRestart,
        Rule::SoleRefusesVotes,
        Rule::ResumeInNewTerm,
        Rule::BlankGrantsNothing,
        Rule::ResyncClearsHolds,
        Rule::AdoptionNeverGoesBack,
        Rule::LivesAreRemembered,
        Rule::PositionsAreRemembered,
        Rule::BannedStops,
        Rule::VouchedByPeer,
    ];
    let of_witness = missed("witness", targets::witness::run_with, &of_witness);
    let of_replica = missed("replica", targets::replica::run_with, &of_replica);
    assert!(of_witness.is_empty(), "no input fails for a witness without {of_witness:?}");
    assert!(of_replica.is_empty(), "no input fails for a replica without {of_replica:?}");
}
