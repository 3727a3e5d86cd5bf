//! The `tiebreak` command.
fn main() {}
