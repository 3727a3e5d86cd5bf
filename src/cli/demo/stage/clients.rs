//! The clients: they write without pause, follow whichever replica accepts, and remember each acknowledgement.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cli::demo::messages::{Answer, Request, receive, send};

use super::tally::Tally;

/// Writers at once, each with one write under way.
const WRITERS: u64 = 4;
/// Keys that they write to.
const KEYS: u64 = 97;
/// A write that takes longer has an unknown outcome, and the other replica is tried.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two attempts that were refused.
const PAUSE: Duration = Duration::from_millis(5);

/// A replica as clients know it.
pub(super) type Server = (&'static str, SocketAddr);

/// Starts the writers. They end when the set is dropped.
pub(super) fn start(servers: [Server; 2], tally: &Tally) -> JoinSet<()> {
    let ids = Arc::new(AtomicU64::new(1));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        writers.spawn(write(servers, ids.clone(), tally.clone()));
    }
    writers
}

async fn write(servers: [Server; 2], ids: Arc<AtomicU64>, tally: Tally) {
    for (name, address) in servers.into_iter().cycle() {
        let Ok(Ok(mut stream)) = timeout(PATIENCE, TcpStream::connect(address)).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        loop {
            let id = ids.fetch_add(1, Ordering::Relaxed);
            let request = Request::Put { id, key: key(id), value: value(id) };
            match timeout(PATIENCE, exchange(&mut stream, &request)).await {
                Ok(Ok(Answer::Acknowledged { term })) => tally.acknowledged(id, term, name),
                _ => break,
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn key(id: u64) -> String {
    format!("key-{}", id % KEYS)
}

fn value(id: u64) -> String {
    format!("write {id}")
}

async fn exchange(stream: &mut TcpStream, request: &Request) -> std::io::Result<Answer> {
    send(stream, request).await?;
    receive(stream).await
}

/// One request on a connection of its own.
pub(super) async fn ask(
    server: SocketAddr,
    request: &Request,
    patience: Duration,
) -> std::io::Result<Answer> {
    let asked = async {
        let mut stream = TcpStream::connect(server).await?;
        exchange(&mut stream, request).await
    };
    timeout(patience, asked).await?
}

/// The id that the value under the key of `id` was written with.
pub(super) async fn read_back(server: SocketAddr, id: u64, patience: Duration) -> Option<u64> {
    match ask(server, &Request::Get { key: key(id) }, patience).await {
        Ok(Answer::Value(Some(value))) => value.strip_prefix("write ")?.parse().ok(),
        _ => None,
    }
}
