//! Paths that are narrow, far or lossy.

use std::time::Duration;

use crate::child::now;
use crate::trio::{A, B, Choice, Trio, W};

/// What is left of an MTU of 1,280 bytes, the least that IPv6 allows, after the heads of IPv6 and UDP.
const NARROW_BYTES: usize = 1280 - 40 - 8;

/// Shows: links come to be, votes are given and leases renewed over a path that swallows whatever is larger than IPv6
/// allows at the least, in silence.
#[test]
fn a_path_with_the_smallest_mtu_that_swallows_larger_packets_is_wide_enough() {
    let mut trio = Trio::prepare(Choice::default());
    trio.narrow(NARROW_BYTES);
    for node in [W, A, B] {
        trio.run(node);
    }
    trio.until_paired(A);
    trio.kill(A);
    trio.until_solo(B);
    trio.run(A);
    trio.until_paired(B);
    let largest = trio.largest_datagram_bytes();
    assert!(largest >= 1200, "the handshake fills its first datagrams, and {largest} bytes were the most");
    trio.check(B);
}

/// The witness is far away: 3 s round trip and every fifth datagram lost, in both directions.
fn far_witness(trio: &Trio) {
    for replica in [A, B] {
        for flow in [trio.flow(replica, W), trio.flow(W, replica)] {
            flow.delay(Duration::from_millis(1500));
            flow.lose(200);
        }
    }
}

/// How long nothing may happen: ten minutes with `TIEBREAK_SLOW_PATHS=1`, which has a command of its own:
/// `TIEBREAK_SLOW_PATHS=1 cargo test --test daemon far_away -- --nocapture`.
fn stretch() -> Duration {
    let long = std::env::var_os("TIEBREAK_SLOW_PATHS").is_some();
    Duration::from_secs(if long { 600 } else { 20 })
}

/// Shows: a witness that is very far away costs a healthy pair nothing, and is enough for an election.
#[test]
fn a_witness_far_away_deposes_nobody_and_elects_when_the_leader_dies() {
    let lease = Duration::from_secs(2);
    let mut trio = Trio::start(Choice { lease, solo_after: Some(Duration::from_millis(1500)) });
    far_witness(&trio);
    let token = trio.see(|told| told.token(A));
    let leases = u32::try_from(stretch().as_millis() / lease.as_millis()).expect("short");
    trio.let_leases_pass(leases, |told| told.token(A) == token && told.token(B) <= token && !told.leads(B));
    let killed = now();
    trio.kill(A);
    let took = trio.until_first_acknowledgement(B, killed);
    println!("3 s round trip and 20 % loss to the witness: b acknowledges {took:.1?} after a was killed");
    trio.check(B);
}

/// Shows: with the link between the replicas bad as well, a lease of 10 s holds.
#[test]
fn a_lossy_link_between_the_replicas_and_a_witness_far_away_depose_nobody_at_a_lease_of_ten_seconds() {
    let lease = Duration::from_secs(10);
    let trio = Trio::start(Choice { lease, solo_after: None });
    far_witness(&trio);
    for flow in [trio.flow(A, B), trio.flow(B, A)] {
        flow.lose(400);
    }
    let token = trio.see(|told| told.token(A));
    let leases = u32::try_from(stretch().as_millis() / lease.as_millis()).expect("short").max(3);
    trio.let_leases_pass(leases, |told| told.token(A) == token && !told.leads(B));
}
