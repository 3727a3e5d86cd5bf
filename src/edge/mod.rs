//! Where the program touches the world: clock, entropy, keys, sockets. Nothing here decides a vote.

pub mod clock;
pub mod identity;
pub mod quic;
mod tls;
