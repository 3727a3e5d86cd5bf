//! How long a hand-over takes, planned and not. It measures and prints, and asserts nothing:
//!
//! ```text
//! cargo bench --bench failover                    # lease 2 s, 20 rounds
//! cargo bench --bench failover -- 400 20          # lease in ms, rounds
//! ```
//!
//! - *failover*: from kill -9 of the paired leader to the first acknowledgement of the other one, beside the lease plus
//!   the allowance of 100 ms (and two round trips and three syncs, which are small on loopback).
//! - *resign*: from the command to the first acknowledgement of the other one.
#![allow(
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "modules of one program, shared with the tests"
)]

#[path = "../daemon/child.rs"]
mod child;
#[path = "../daemon/data.rs"]
mod data;
#[path = "../daemon/log.rs"]
mod log;
#[path = "../relay/mod.rs"]
mod relay;
#[path = "../daemon/trio.rs"]
mod trio;

use std::time::Duration;

use trio::{A, B, Choice, Trio};

fn main() {
    child::run_if_child();
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let lease = Duration::from_millis(numbers.first().copied().unwrap_or(2000));
    let rounds = numbers.get(1).copied().unwrap_or(20);
    let choice = Choice { lease, solo_after: Some(lease / 2) };

    let (mut failovers, mut resigns) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // A new cluster each time: one whose nodes come and go is made to wait longer and longer.
        let mut trio = Trio::start(choice);
        // A node that has just started holds its vote back for a lease.
        trio.until_leases_pass(A, 2);
        let said = child::now();
        trio.say(A, "resign");
        resigns.push(trio.until_first_acknowledgement(B, said));
        trio.until_paired(B);
        trio.until_leases_pass(B, 1);
        let killed = child::now();
        trio.kill(B);
        failovers.push(trio.until_first_acknowledgement(A, killed));
        trio.check(A);
    }
    let allowed = lease + Duration::from_millis(100);
    println!("lease {lease:?}, {rounds} rounds");
    print("failover", &mut failovers, &format!("lease and allowance: {allowed:?}"));
    print("resign", &mut resigns, "wanted: below 100 ms");
}

fn print(what: &str, spans: &mut [Duration], beside: &str) {
    spans.sort();
    let (Some(median), Some(most)) = (spans.get(spans.len() / 2), spans.last()) else { return };
    println!("{what:<10} median {median:>8.1?}   max {most:>8.1?}   ({beside})");
}
