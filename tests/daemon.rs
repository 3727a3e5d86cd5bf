//! Real processes, real QUIC, real disks: a witness and two replicas on loopback, broken on purpose.
//!
//! Each node is this test binary, started again (see `daemon/child.rs`), and each path between two nodes leads through
//! a relay (see `relay`). The client that remembers what was acknowledged is `daemon/trio.rs`. Waits are for
//! conditions, with a deadline; time passes only where it is shown that nothing happens in it.

#![allow(unreachable_pub, reason = "modules of one program")]

#[path = "daemon/child.rs"]
mod child;
#[path = "daemon/data.rs"]
mod data;
#[path = "daemon/ledgers.rs"]
mod ledgers;
#[path = "daemon/log.rs"]
mod log;
#[path = "daemon/partitions.rs"]
mod partitions;
#[path = "daemon/paths.rs"]
mod paths;
mod relay;
#[path = "daemon/sequences.rs"]
mod sequences;
#[path = "daemon/trio.rs"]
mod trio;

/// Not a test: what the other processes of these tests run.
#[test]
fn child() {
    child::run_if_child();
}
