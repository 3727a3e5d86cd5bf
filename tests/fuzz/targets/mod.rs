//! The bodies of the fuzz targets: ordinary functions of bytes that panic when something is wrong.
//!
//! Two programs call them: the fuzzer (`tests/fuzz/run`), which looks for new bytes, and `cargo test --test
//! fuzz_corpus`, which replays what the fuzzer found worth keeping.

mod config;
mod draw;
mod ledger;
pub mod replica;
mod wire;
pub mod witness;

/// A target's name, which is that of its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 5] = [
    ("wire", wire::run),
    ("ledger", ledger::run),
    ("witness", witness::run),
    ("replica", replica::run),
    ("config", config::run),
];
