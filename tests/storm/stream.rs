//! The relay's counterpart for the TCP of the data layer: what a flow would lose is sent again a little later, as TCP
//! does, so a cut direction delivers nothing until it heals, and nothing is reordered.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::relay::Flow;

/// After a loss TCP waits a while before it sends again.
const RETRANSMISSION: Duration = Duration::from_millis(20);

/// Runs relays for streams until it is dropped.
pub struct Streams {
    runtime: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Streams {
    pub fn start() -> io::Result<Streams> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("streams".into()).spawn(move || {
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Streams { runtime: handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Starts a relay to `target` and says where it listens.
    pub fn relay(&self, target: SocketAddr, forth: Arc<Flow>, back: Arc<Flow>) -> io::Result<SocketAddr> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let _inside = self.runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        self.runtime.spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                tokio::spawn(join(client, target, forth.clone(), back.clone()));
            }
        });
        Ok(address)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn join(client: TcpStream, target: SocketAddr, forth: Arc<Flow>, back: Arc<Flow>) {
    // The handshake needs both directions.
    pass(&forth).await;
    pass(&back).await;
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::spawn(carry(from_client, to_server, forth));
    carry(from_server, to_client, back).await;
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, flow: Arc<Flow>) {
    let mut buffer = vec![0; 65_536];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        // The end of a stream travels like any other byte.
        pass(&flow).await;
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Returns when a segment sent now has arrived.
async fn pass(flow: &Flow) {
    loop {
        match flow.verdict() {
            Some(delay) => return tokio::time::sleep(delay).await,
            None => tokio::time::sleep(RETRANSMISSION).await,
        }
    }
}
