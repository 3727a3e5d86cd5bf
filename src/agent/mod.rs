//! The sidecar: runs somebody else's service where the votes want it, and stops it before the right to act ends.
//!
//! - `supervisor/` decides what to run and what to kill; pure.
//! - `hooks.rs`, `command.rs` and `contain.rs` run it and kill it whole; `watchdog/` is what remains if that fails.
//! - `run.rs` is the loop between them and the voter.
//! - `state.rs` is what is known; `http.rs`, `metrics.rs` and `control.rs` answer from it; `history.rs` keeps it.
//! - `systemd.rs` tells who started this process how it is.

pub mod command;
pub mod config;
pub mod contain;
pub mod control;
pub mod history;
pub mod hooks;
pub mod http;
pub mod locks;
pub mod metrics;
pub mod run;
pub mod state;
pub mod supervisor;
pub mod systemd;
pub mod times;
pub mod watchdog;
