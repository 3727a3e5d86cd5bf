//! A PostgreSQL of the demo's own, on a socket in a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::cli::demo::accounts::OWNER;

use super::nodes::Directory;

/// Whom Debian's packages make to run the server, which refuses to run as root.
const USER: &str = "postgres";

pub(super) struct Server {
    bin: PathBuf,
    directory: Option<Directory>,
}

impl Server {
    /// `None` where PostgreSQL is not installed.
    ///
    /// # Errors
    /// If it is, and does not start.
    pub(super) fn start() -> anyhow::Result<Option<Server>> {
        let Some(bin) = programs() else { return Ok(None) };
        let server = Server { bin, directory: Some(Directory::new()?) };
        if rustix::process::geteuid().is_root() {
            let given = Command::new("chown").arg(USER).arg(server.socket()).status()?;
            ensure!(given.success(), "as root it needs the user {USER}, which its packages make");
        }
        server.run("initdb", &["-A", "trust", "-U", OWNER, "-N", "-D", "data"])?;
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={} -c fsync=off",
            server.socket().display()
        );
        server.run("pg_ctl", &["start", "-w", "-D", "data", "-l", "log", "-o", &options])?;
        Ok(Some(server))
    }

    pub(super) fn psql(&self) -> PathBuf {
        self.bin.join("psql")
    }

    /// The directory of its socket, and of everything else that it has.
    pub(super) fn socket(&self) -> &Path {
        self.directory.as_ref().map_or(Path::new(""), Directory::path)
    }

    /// Ends it, and removes what it had.
    pub(super) fn end(mut self) {
        self.stop();
        if let Some(directory) = self.directory.take() {
            directory.remove();
        }
    }

    fn stop(&self) {
        if let Err(error) = self.run("pg_ctl", &["stop", "-m", "immediate", "-D", "data"]) {
            eprintln!("PostgreSQL did not stop: {error:#}");
        }
    }

    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let path = self.bin.join(program);
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", USER, "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        command.args(arguments).current_dir(self.socket());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status().with_context(|| program.to_owned())?;
        ensure!(status.success(), "{program} ended with {status}; see {}", self.socket().display());
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a failure its directory is kept, but no server is left behind.
        if self.directory.is_some() {
            self.stop();
        }
    }
}

/// The newest server's programs, as Debian installs them, or those on the path.
fn programs() -> Option<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let on_path = std::env::var_os("PATH").into_iter().flat_map(|path| {
        let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
        places
    });
    let mut found: Vec<(u32, PathBuf)> = installed
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .chain(on_path.map(|place| (0, place)))
        .filter(|(_, bin)| bin.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().map(|(_, bin)| bin)
}
