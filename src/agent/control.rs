//! The operator's socket: one request for each connection, as a line of JSON; replies, one line each, until it closes.
//! Only root and the configured group can open it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::ids::{LockName, NodeId, Token};

use super::locks::Locks;
use super::state::State;

/// Bytes of a request.
const REQUEST_BYTES_MAX: u64 = 4096;
/// Connections at once.
const CONNECTIONS_MAX: usize = 16;
/// Time for a request to arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// Replies that wait to be taken.
const REPLIES_MAX: usize = 64;

/// What an operator wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Request {
    /// The other node is to lead.
    Switchover {
        /// Which.
        to: Option<NodeId>,
        /// Answer when it leads.
        wait: bool,
        /// For the history.
        reason: String,
    },
    /// This node is to lead no longer, whether or not the other one looks fit.
    Resign {
        /// For the history.
        reason: String,
    },
    /// Leave the service alone.
    Pause,
    /// No longer.
    Resume,
    /// Everything that is known.
    Status,
    /// The same, each time that it changes.
    Watch,
    /// Hold a name while the connection is open.
    Lock(super::locks::Wish),
    /// Whoever holds this name is to let go.
    Revoke {
        /// Which.
        name: LockName,
    },
    /// Break something on purpose, for a time.
    Drill {
        /// What.
        what: Drill,
        /// For how long, in milliseconds.
        for_ms: u64,
    },
}

/// What can be broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drill {
    /// This node hears nobody and is heard by nobody.
    Partition,
    /// The agent is stopped, the service runs on.
    Freeze,
    /// The agent is killed.
    Kill,
}

/// What an operator is told.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// It goes on.
    Progress {
        /// In words.
        text: String,
    },
    /// It is done.
    Done {
        /// In words.
        text: String,
    },
    /// It is not done, and nothing more will happen.
    Refused {
        /// Why, with figures.
        text: String,
    },
    /// Somebody else holds the name, and nobody wanted to wait.
    Busy {
        /// Who, and for how long at least.
        text: String,
    },
    /// The name is waited for. Said once, and again when somebody begins or ceases to hold it.
    Waits {
        /// For what.
        text: String,
        /// Whether somebody else holds it; if not, no leader can be asked.
        taken: bool,
    },
    /// The name is held.
    Held {
        /// Under this token.
        token: Token,
        /// Until then on the boot clock, in nanoseconds, unless it is renewed.
        until_ns: u64,
    },
    /// The name is held no longer.
    Lost {
        /// Why.
        text: String,
        /// From then on, on the boot clock, somebody else may hold it.
        until_ns: u64,
    },
    /// What is known.
    State {
        /// As over HTTP.
        state: Value,
    },
}

/// A request that the agent's loop decides about.
#[derive(Debug)]
pub struct Command {
    /// The request.
    pub request: Request,
    /// Who asked. Dropped when there is nothing more to say.
    pub asker: Asker,
}

/// Where replies go.
#[derive(Clone, Debug)]
pub struct Asker(mpsc::Sender<Reply>);

impl Asker {
    /// One reply. Whoever does not listen misses it.
    pub fn tell(&self, reply: Reply) {
        let _ = self.0.try_send(reply);
    }

    /// It goes on.
    pub fn progress(&self, text: impl Into<String>) {
        self.tell(Reply::Progress { text: text.into() });
    }

    /// It is done.
    pub fn done(&self, text: impl Into<String>) {
        self.tell(Reply::Done { text: text.into() });
    }

    /// It is not done.
    pub fn refused(&self, text: impl Into<String>) {
        self.tell(Reply::Refused { text: text.into() });
    }
}

/// Makes the directory of sockets and marks, for root and the group.
///
/// # Errors
/// If it cannot be made, or there is no such group.
pub fn make_runtime(directory: &Path, group: Option<&str>) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o750))?;
    give(directory, group)
}

fn give(path: &Path, group: Option<&str>) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    let known = fs::read_to_string("/etc/group")?;
    let number = group_number(&known, group)
        .ok_or_else(|| io::Error::other(format!("there is no group {group} in /etc/group")))?;
    std::os::unix::fs::chown(path, None, Some(number))
}

fn group_number(known: &str, group: &str) -> Option<u32> {
    let mut lines = known.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.find(|fields| fields.first() == Some(&group))?.get(2)?.parse().ok()
}

/// Listens there. The mask for new files is narrower for a moment, so that nobody can open the socket before its mode is
/// set; a file that another thread makes in that moment is for fewer people than it could be.
///
/// # Errors
/// If it cannot be bound.
pub fn bind(path: &Path, group: Option<&str>) -> io::Result<std::os::unix::net::UnixListener> {
    // Whatever is there was left by an earlier life: the ledger's lock lets only one agent come this far.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let listener = std::os::unix::net::UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = listener?;
    give(path, group)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until the agent ends.
pub async fn serve(
    listener: std::os::unix::net::UnixListener,
    state: watch::Receiver<State>,
    commands: mpsc::Sender<Command>,
    locks: Locks,
) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("no control socket: {error}"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (state, commands, locks) = (state.clone(), commands.clone(), locks.clone());
                tokio::spawn(async move {
                    // Whoever hangs up loses the rest.
                    let _ = talk(stream, state, commands, locks, place).await;
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn talk(
    stream: UnixStream,
    state: watch::Receiver<State>,
    commands: mpsc::Sender<Command>,
    locks: Locks,
    place: OwnedSemaphorePermit,
) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES_MAX));
    tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await.map_err(io::Error::other)??;
    let request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(error) => {
            return send(&mut writer, &Reply::Refused { text: format!("not a request: {error}") }).await;
        }
    };
    match request {
        Request::Status => {
            let now = state.borrow().json();
            send(&mut writer, &Reply::State { state: now }).await
        }
        Request::Lock(wish) => {
            // Operators are never kept out by what is locked.
            drop(place);
            locks.hold(wish, reader, &mut writer).await
        }
        Request::Revoke { name } => {
            let reply = locks.revoke(name).await;
            send(&mut writer, &reply).await
        }
        Request::Watch => show(reader, &mut writer, state).await,
        request => {
            let (to, mut replies) = mpsc::channel(REPLIES_MAX);
            let command = Command { request, asker: Asker(to) };
            if commands.send(command).await.is_err() {
                return Ok(());
            }
            while let Some(reply) = replies.recv().await {
                send(&mut writer, &reply).await?;
            }
            Ok(())
        }
    }
}

/// Shows each change until the watcher is gone: its place is free at once, and not only when something changes next.
async fn show(
    mut reader: impl AsyncRead + Unpin,
    writer: &mut OwnedWriteHalf,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    let mut said = Value::Null;
    let mut ignored = [0; 64];
    state.mark_changed();
    loop {
        tokio::select! {
            heard = reader.read(&mut ignored) => match heard? {
                0 => return Ok(()),
                _ => continue,
            },
            changed = state.changed() => if changed.is_err() {
                return Ok(());
            },
        }
        let now = state.borrow_and_update().json();
        if told(&now) != told(&said) {
            // Nor does it keep its place when it takes nothing.
            let sent =
                tokio::time::timeout(PATIENCE, send(writer, &Reply::State { state: now.clone() })).await;
            sent.map_err(io::Error::other)??;
            said = now;
        }
    }
}

/// What a watcher wants to see a change of: everything but the times that always run.
fn told(state: &Value) -> Vec<Value> {
    const SHOWN: [&str; 13] = [
        "role",
        "service",
        "leader",
        "term",
        "token",
        "right",
        "healthy",
        "data",
        "paused",
        "redundant",
        "watchdog",
        "stepping_down",
        "refused",
    ];
    SHOWN.iter().map(|name| state[*name].clone()).collect()
}

pub(super) async fn send(writer: &mut OwnedWriteHalf, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let known = "root:x:0:\npostgresql:x:998:\npostgres:x:117:a,b\n";
        assert_eq!(group_number(known, "postgres"), Some(117));
        assert_eq!(group_number(known, "post"), None);
    }

    #[test]
    fn the_socket_is_for_its_owner_and_group_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("agent.sock");
        // Each test of this file that changes the mask would disturb others: it is the only one.
        let _listener = bind(&path, None).expect("bound");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let _again = bind(&path, None).expect("a left-over is replaced");
    }
}
