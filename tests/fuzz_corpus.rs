//! Replays what the fuzzer found worth keeping (`tests/fuzz/corpus`), through the same functions, without a fuzzer.
//!
//! `tests/fuzz/run` looks for more. A file that once made a target fail is kept in its corpus, so that it is tried
//! here for ever.

#![allow(unreachable_pub, reason = "modules of two programs")]

#[path = "fuzz/targets/mod.rs"]
mod targets;

use std::fs;
use std::path::Path;

/// Of all files together: a corpus is kept minimised.
const CORPUS_BYTES_MAX: u64 = 200_000;
/// Fewer show that a corpus was lost, not that it is small.
const FILES_MIN: usize = 10;

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
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for length in 0..600 {
        let input: Vec<u8> = (0..length)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[4]
            })
            .collect();
        for (_, run) in targets::TARGETS {
            run(&input);
        }
    }
}
