//! The last resort: a device that resets the machine unless it is fed in time.

mod device;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use device::open;

/// Whether there has to be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// None is used.
    #[default]
    Off,
    /// It is used if it is there.
    Automatic,
    /// Without it the agent does not start.
    Required,
}

/// A device that is armed.
pub trait Device: fmt::Debug + Send {
    /// When it fires, from the last feeding.
    fn timeout(&self) -> Duration;

    /// Puts that off.
    ///
    /// # Errors
    /// If the device fails.
    fn feed(&mut self) -> io::Result<()>;

    /// Closes it properly: it does not fire any more.
    ///
    /// # Errors
    /// If the device fails.
    fn disarm(self: Box<Self>) -> io::Result<()>;
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchdogError {
    /// The device.
    #[error(
        "the watchdog {path} cannot be used: {source}; load a driver (`modprobe softdog` if the machine has none), stop \
         whoever else feeds it, or set `watchdog = \"off\"`"
    )]
    Device {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The device does not take the time-out.
    #[error("the watchdog {path} fires after {got:?}, and {wanted:?} was asked for; set `watchdog_timeout`")]
    Timeout {
        /// Which.
        path: PathBuf,
        /// Asked for.
        wanted: Duration,
        /// What it has.
        got: Duration,
    },
}

fn failed(path: &Path, source: io::Error) -> WatchdogError {
    WatchdogError::Device { path: path.into(), source }
}
