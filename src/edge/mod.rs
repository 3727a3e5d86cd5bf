//! Where the program touches the world: clock, entropy, disk, keys, sockets. Nothing here decides a vote.

pub mod clock;
pub mod disk;
pub mod identity;
pub mod ledger;
pub mod meter;
pub mod quic;
mod tls;
