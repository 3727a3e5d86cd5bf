//! The protected resource: something outside the cluster that only its leader may write to. Here a counter in a file,
//! behind a gate that refuses the tokens of earlier leaders.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};

use crate::cli::demo::messages::{Touch, Touched, receive, send};
use crate::fence::{Gate, GateError};

use super::tally::Tally;

pub(super) struct Resource(std::net::TcpListener);

impl Resource {
    pub(super) fn new() -> anyhow::Result<Resource> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").context("the protected resource")?;
        listener.set_nonblocking(true)?;
        Ok(Resource(listener))
    }

    /// Serves in the background, with its state in `directory`. Where it is.
    pub(super) async fn serve(self, directory: &Path, tally: Tally) -> anyhow::Result<SocketAddr> {
        let (state, counter) = (directory.join("gate"), directory.join("counter"));
        Gate::create(&state)?;
        fs::write(&counter, "0")?;
        let gate = Arc::new(Gate::open(&state)?);
        let address = self.0.local_addr()?;
        let listener = TcpListener::from_std(self.0)?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(touched(stream, gate.clone(), counter.clone(), tally.clone()));
            }
        });
        Ok(address)
    }
}

async fn touched(mut stream: TcpStream, gate: Arc<Gate>, counter: PathBuf, tally: Tally) {
    let Ok(touch) = receive::<Touch>(&mut stream).await else { return };
    let token = touch.token;
    // A new token costs a sync.
    let written = tokio::task::spawn_blocking(move || gate.admit_and(token, || count_up(&counter))).await;
    let answer = match written {
        Ok(Ok(Ok(count))) => Touched::Written { count },
        Ok(Err(GateError::Stale(stale))) => {
            Touched::Refused { offered: stale.offered, highest: stale.highest }
        }
        _ => return,
    };
    tally.touched(&touch, answer);
    let _ = send(&mut stream, &answer).await;
}

fn count_up(counter: &Path) -> std::io::Result<u64> {
    let count = fs::read_to_string(counter)?.trim().parse::<u64>().map_err(std::io::Error::other)? + 1;
    fs::write(counter, count.to_string())?;
    Ok(count)
}
