//! `/dev/watchdog` by its ioctl interface (Linux, Documentation/watchdog/watchdog-api.rst), and a pipe that stands in
//! for it in tests.
//!
//! The only file of the crate with unsafe code: the numbers and types of the two ioctls are not known to any safe
//! interface. Both take a pointer to a C `int`, which the kernel reads and writes back.
#![allow(unsafe_code, reason = "two ioctls, see above")]

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::ioctl::{Getter, Updater, ioctl, opcode};

use super::{Device, WatchdogError, failed};

const GROUP: u8 = b'W';
const SET_TIMEOUT: rustix::ioctl::Opcode = opcode::read_write::<c_int>(GROUP, 6);
const GET_TIMEOUT: rustix::ioctl::Opcode = opcode::read::<c_int>(GROUP, 7);

/// Tells most drivers that the close that follows is meant.
const MAGIC_CLOSE: &[u8] = b"V";
const FOOD: &[u8] = b"\0";

/// Opens a watchdog, which arms it. A pipe resets nothing; whoever reads it has to.
///
/// # Errors
/// If there is none, or somebody else has it, or it cannot fire in time.
pub fn open(path: &Path, timeout: Duration) -> Result<Box<dyn Device>, WatchdogError> {
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| failed(path, error))?;
    let about = file.metadata().map_err(|error| failed(path, error))?;
    if about.file_type().is_fifo() {
        tracing::warn!(path = %path.display(), "a pipe stands in for the watchdog: by itself it resets nothing");
        return Ok(Box::new(Watchdog { file, timeout }));
    }
    let mut armed = Box::new(Watchdog { file, timeout });
    match set_timeout(&armed.file, timeout) {
        Ok(got) if got == timeout => Ok(armed),
        outcome => {
            // It is armed by now, and nobody is going to feed it.
            let _ = armed.file.write_all(MAGIC_CLOSE);
            let got = outcome.map_err(|error| failed(path, error))?;
            Err(WatchdogError::Timeout { path: path.into(), wanted: timeout, got })
        }
    }
}

fn set_timeout(file: &File, timeout: Duration) -> io::Result<Duration> {
    let mut seconds = c_int::try_from(timeout.as_secs()).unwrap_or(c_int::MAX);
    // SAFETY: the kernel reads and writes one `int` behind the pointer, which is what the type says.
    unsafe { ioctl(file, Updater::<SET_TIMEOUT, c_int>::new(&mut seconds))? };
    // SAFETY: the kernel writes one `int`, which is what the type says.
    let got = unsafe { ioctl(file, Getter::<GET_TIMEOUT, c_int>::new())? };
    Ok(Duration::from_secs(u64::try_from(got).unwrap_or(0)))
}

/// A device or its stand-in.
#[derive(Debug)]
struct Watchdog {
    file: File,
    timeout: Duration,
}

impl Device for Watchdog {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn feed(&mut self) -> io::Result<()> {
        self.file.write_all(FOOD)
    }

    fn disarm(mut self: Box<Self>) -> io::Result<()> {
        self.file.write_all(MAGIC_CLOSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_numbers_are_those_of_the_kernel() {
        assert_eq!(SET_TIMEOUT, 0xc004_5706);
        assert_eq!(GET_TIMEOUT, 0x8004_5707);
    }

    #[test]
    fn a_pipe_stands_in_and_is_closed_properly() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("watchdog");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .expect("a pipe");
        let error = open(&path, Duration::from_secs(1)).expect_err("nobody reads it");
        assert!(error.to_string().contains("watchdog"), "{error}");
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(&path)
            .expect("the other end");
        let mut device = open(&path, Duration::from_secs(1)).expect("somebody reads it");
        device.feed().expect("it takes food");
        device.disarm().expect("it is closed");
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("what was written");
        assert_eq!(bytes, b"\0V");
    }

    #[test]
    fn what_is_no_watchdog_is_refused_with_a_remedy() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "").expect("a file");
        let error = open(&path, Duration::from_secs(5)).expect_err("a file has no such ioctl");
        assert!(error.to_string().contains("modprobe"), "{error}");
    }
}
