//! `tiebreak keys`: key files and their fingerprints.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;

use crate::edge::identity::{Fingerprint, Identity};

/// Make and show keys.
#[derive(Subcommand, Debug)]
pub enum Keys {
    /// Make a key pair in a new file and print its fingerprint
    New {
        /// The file to make; it must not exist
        file: PathBuf,
    },
    /// Print the fingerprint of a key file
    Show {
        /// The key file
        file: PathBuf,
        /// Print it as the line that other nodes' configurations need
        #[arg(long)]
        toml: bool,
    },
    /// Give a node another key while it runs: announce it, change to it, drop the old one
    Rotate(super::join::Rotate),
}

impl Keys {
    /// Does it, and prints.
    ///
    /// # Errors
    /// If the file cannot be made or read.
    pub fn run(self) -> anyhow::Result<()> {
        let line = match self {
            Keys::Rotate(rotate) => return rotate.run(),
            Keys::New { file } => {
                let fingerprint = new(&file)?;
                eprintln!(
                    "Made {}. It is secret and stays on this node. Other nodes list the fingerprint in `keys`:",
                    file.display()
                );
                fingerprint.to_string()
            }
            Keys::Show { file, toml: false } => show(&file)?.to_string(),
            Keys::Show { file, toml: true } => format!("keys = [\"{}\"]", show(&file)?),
        };
        writeln!(io::stdout(), "{line}")?;
        Ok(())
    }
}

/// Makes a key file.
///
/// # Errors
/// If the file exists or cannot be written.
pub fn new(file: &Path) -> anyhow::Result<Fingerprint> {
    Ok(Identity::create(file)?.fingerprint())
}

/// The fingerprint of a key file.
///
/// # Errors
/// If the file cannot be read, can be read by others, or is no key file.
pub fn show(file: &Path) -> anyhow::Result<Fingerprint> {
    Ok(Identity::load(file)?.fingerprint())
}
