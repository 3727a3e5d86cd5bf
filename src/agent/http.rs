//! The questions of load balancers and monitors, answered from memory. One request for each connection; nothing here
//! asks the service or waits for anything but the asker.
//!
//! Its own few lines, because a library for all of HTTP would weigh more than the rest of the agent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::edge::clock::Clock;
use crate::time::Moment;

use super::metrics::Metrics;
use super::state::State;

/// Bytes of one request, body not wanted.
const REQUEST_BYTES_MAX: usize = 8192;
/// Connections at once; the next one waits.
const CONNECTIONS_MAX: usize = 64;
/// Time for asking and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What answers are made from.
#[derive(Clone, Debug)]
pub struct Answers {
    /// What the agent knows.
    pub state: watch::Receiver<State>,
    /// What was counted.
    pub metrics: Arc<Metrics>,
    /// When the agent's loop last turned.
    pub beat: Arc<std::sync::atomic::AtomicU64>,
    /// For how long it may stand still.
    pub alive_for: Duration,
}

/// What can be asked for.
pub trait Pages: Send + Sync + 'static {
    /// The answer to this path, without its question mark and what follows it; `None` if there is no such thing.
    fn page(&self, path: &str) -> Option<Reply>;
}

/// Listens, and answers on a thread of its own until the process ends.
///
/// # Errors
/// If the address cannot be had.
pub fn serve(address: SocketAddr, answers: impl Pages) -> std::io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new()
        .name("http".into())
        .spawn(move || runtime.block_on(accept(listener, Arc::new(answers))))?;
    Ok(address)
}

async fn accept(listener: std::net::TcpListener, answers: Arc<dyn Pages>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("no answers over HTTP: {error}"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let answers = answers.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(PATIENCE, talk(stream, &*answers)).await;
                    drop(place);
                });
            }
            // Out of file descriptors, say: not in a circle at full speed.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn talk(mut stream: TcpStream, answers: &dyn Pages) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            more if request.len() + more > REQUEST_BYTES_MAX => {
                return stream.write_all(b"HTTP/1.1 431 Too Long\r\nConnection: close\r\n\r\n").await;
            }
            more => request.extend_from_slice(&buffer[..more]),
        }
    }
    stream.write_all(&answer(&request, answers)).await?;
    stream.shutdown().await
}

fn answer(request: &[u8], answers: &dyn Pages) -> Vec<u8> {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split(['?', '#']).next().unwrap_or("");
    let reply = match method {
        "GET" | "HEAD" | "OPTIONS" => answers.page(path).unwrap_or_else(|| Reply {
            code: 404,
            kind: TEXT,
            body: format!("there is no {path} here\n"),
        }),
        _ => Reply { code: 405, kind: TEXT, body: "GET, HEAD and OPTIONS are answered here\n".into() },
    };
    let (code, kind, length) = (reply.code, reply.kind, reply.body.len());
    let words = match code {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Service Unavailable",
    };
    let head = format!(
        "HTTP/1.1 {code} {words}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         Connection: close\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    if method == "GET" || method == "POST" {
        bytes.extend_from_slice(reply.body.as_bytes());
    }
    bytes
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    code: u16,
    kind: &'static str,
    body: String,
}

impl Reply {
    /// Yes or no, for those who look at the code only.
    pub fn verdict(good: bool, body: String) -> Reply {
        Reply { code: if good { 200 } else { 503 }, kind: JSON, body }
    }

    /// A page for Prometheus.
    pub fn metrics(body: String) -> Reply {
        Reply { code: 200, kind: TEXT, body }
    }
}

impl Pages for Answers {
    fn page(&self, path: &str) -> Option<Reply> {
        let state = self.state.borrow().clone();
        let turned = Moment(self.beat.load(std::sync::atomic::Ordering::Acquire));
        let alive = Clock.now().since(turned) < self.alive_for;
        let good = match path {
            "/" | "/primary" | "/read-write" => state.is_primary(),
            "/replica" => state.is_replica(),
            "/health" => state.is_healthy(),
            "/liveness" => alive,
            "/readiness" => alive && (state.is_primary() || state.is_replica()),
            "/status" => true,
            "/metrics" => return Some(Reply::metrics(self.metrics.page(&state))),
            _ => return None,
        };
        Some(Reply::verdict(good, format!("{}\n", state.json())))
    }
}
