//! The fuzzer's entrance. `TIEBREAK_FUZZ_TARGET` names the target; the command line is libFuzzer's.
#![no_main]
#![allow(unreachable_pub, reason = "modules of two programs")]

mod targets;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let asked = std::env::var("TIEBREAK_FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(name, _)| *name == asked);
    let names = targets::TARGETS.map(|(name, _)| name).join(", ");
    found.unwrap_or_else(|| panic!("TIEBREAK_FUZZ_TARGET has to be one of {names}")).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
