//! Where the program touches the world. Nothing here decides a vote.

pub mod clock;
pub mod disk;
pub mod ledger;
