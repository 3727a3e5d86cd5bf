//! Names that are locked through the operator's socket: one connection holds one name, for as long as it is open.
//!
//! Whoever locks says on which clock it counts, and is told by that clock until when it holds the name: each renewal is a
//! line. It says `release` when everything that it did under the lock has ended. A connection that closes without that
//! leaves the name to end by itself: what was done under the lock may still run.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Take};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, watch};

use crate::client::{NamedLease, Names, NotAcquired};
use crate::edge::clock::Clock;
use crate::ids::LockName;
use crate::message::NameRefusal;
use crate::time::Moment;

use super::control::{Reply, send};

/// Names that are held or waited for through one agent at once.
const LOCKS_MAX: usize = 256;
/// Two processes of one machine that read its clock one after the other do not differ by more.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(5);

/// What is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wish {
    /// Which name.
    pub name: LockName,
    /// The lease, in milliseconds.
    pub lease_ms: u32,
    /// Whether to wait for it.
    pub wait: bool,
    /// What the asker's boot clock shows, in nanoseconds.
    pub clock_ns: u64,
}

/// The lock service, as the socket offers it.
#[derive(Clone, Debug)]
pub struct Locks {
    names: Names,
    places: Arc<Semaphore>,
}

/// A lease that is given back only by word: dropped in any other way, it ends by itself.
struct Kept(Option<NamedLease>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take() {
            lease.forget();
        }
    }
}

impl Locks {
    /// Of this cluster.
    pub fn new(names: Names) -> Locks {
        Locks { names, places: Arc::new(Semaphore::new(LOCKS_MAX)) }
    }

    /// Whoever holds the name is to let go.
    pub async fn revoke(&self, name: LockName) -> Reply {
        match self.names.revoke(name).await {
            Ok((node, token, left)) => Reply::Done {
                text: format!("{name} is taken back from {node} (token {token}): free in {left:?} at most"),
            },
            Err(NotAcquired::Refused(NameRefusal::Lost)) => {
                Reply::Refused { text: format!("nobody holds {name}") }
            }
            Err(why) => Reply::Refused { text: why.to_string() },
        }
    }

    /// Holds the name while the connection is open.
    ///
    /// # Errors
    /// If the connection fails: then the name ends by itself.
    pub async fn hold(
        &self,
        wish: Wish,
        mut reader: BufReader<Take<OwnedReadHalf>>,
        writer: &mut OwnedWriteHalf,
    ) -> io::Result<()> {
        let apart = Clock.now().0.checked_sub(wish.clock_ns).map(Duration::from_nanos);
        if apart.is_none_or(|apart| apart > CLOCKS_APART_MAX) {
            let text = "the clocks of agent and command differ: run both in one time namespace".into();
            return send(writer, &Reply::Refused { text }).await;
        }
        let Ok(_place) = self.places.try_acquire() else {
            let text = format!("{LOCKS_MAX} names are held or waited for through this agent");
            return send(writer, &Reply::Refused { text }).await;
        };
        let mut line = String::new();
        let mut said = pin!(reader.read_line(&mut line));
        let span = Duration::from_millis(u64::from(wish.lease_ms));
        let (tell, mut told) = watch::channel(None);
        let mut acquiring = pin!(async {
            if wish.wait {
                self.names.wait(wish.name, span, |why| waits(&tell, why)).await
            } else {
                self.names.acquire(wish.name, span).await
            }
        });
        let acquired = loop {
            tokio::select! {
                // It hung up while it waited.
                _ = &mut said => return Ok(()),
                acquired = &mut acquiring => break acquired,
                Ok(()) = told.changed() => {
                    let why = told.borrow_and_update().clone();
                    if let Some((text, taken)) = why {
                        send(writer, &Reply::Waits { text, taken }).await?;
                    }
                }
            }
        };
        let lease = match acquired {
            Ok(lease) => lease,
            Err(why) => return send(writer, &refusal(&why)).await,
        };
        let mut kept = Kept(Some(lease));
        while let Some(lease) = &kept.0 {
            let until_ns = lease.until().0;
            let over = !lease.is_valid();
            if over {
                let why = lease.lost().map_or_else(
                    || "the leader was not reached before the lease ended".into(),
                    |why| why.to_string(),
                );
                send(writer, &Reply::Lost { text: why, until_ns }).await?;
            } else {
                send(writer, &Reply::Held { token: lease.token(), until_ns }).await?;
            }
            tokio::select! {
                read = &mut said => {
                    let released = read.is_ok_and(|bytes| bytes > 0);
                    if let Some(lease) = kept.0.take().filter(|_| released) {
                        lease.release().await;
                        return send(writer, &Reply::Done { text: "given back".into() }).await;
                    }
                    return Ok(());
                }
                () = lease.changed(), if !over => {}
                () = Clock.until(Moment(until_ns)), if over => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Tells why a name is waited for, when that has changed: how long it may take does with each attempt.
fn waits(tell: &watch::Sender<Option<(String, bool)>>, why: &NotAcquired) {
    let taken = matches!(refusal(why), Reply::Busy { .. });
    tell.send_if_modified(|said| {
        let is_new = said.as_ref().is_none_or(|(_, before)| *before != taken);
        if is_new {
            *said = Some((why.to_string(), taken));
        }
        is_new
    });
}

fn refusal(why: &NotAcquired) -> Reply {
    let text = why.to_string();
    match why {
        NotAcquired::Refused(NameRefusal::Held { .. } | NameRefusal::HoldOff { .. } | NameRefusal::Full) => {
            Reply::Busy { text }
        }
        _ => Reply::Refused { text },
    }
}
