//! Sockets: clients and the other replica come in, the other replica and the protected resource are dialled.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::cli::demo::messages::{Answer, Copied, Copy, Request, Stamped, Touch, Touched, receive, send};

/// Requests of clients that wait to be looked at.
const REQUESTS_MAX: usize = 1024;
/// Messages between the replicas that wait on either side.
const COPIES_MAX: usize = 64;
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Who is reached where.
#[derive(Clone, Copy)]
pub(super) struct Remote {
    pub(super) peer: SocketAddr,
    pub(super) resource: SocketAddr,
}

/// A client's request and where its answer goes.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// A connection from the leader to its follower, seen from either end. Dropping it closes it.
pub(super) struct Wire<Out, In> {
    pub(super) to: mpsc::Sender<Stamped<Out>>,
    pub(super) from: mpsc::Receiver<Stamped<In>>,
}

pub(super) type FromLeader = Wire<Copied, Copy>;
pub(super) type ToFollower = Wire<Copy, Copied>;

/// What comes in.
pub(super) struct Ports {
    pub(super) requests: mpsc::Receiver<Asked>,
    pub(super) leaders: mpsc::Receiver<FromLeader>,
}

impl Ports {
    pub(super) async fn open(clients: SocketAddr, replication: SocketAddr) -> std::io::Result<Ports> {
        let clients = TcpListener::bind(clients).await?;
        let replication = TcpListener::bind(replication).await?;
        let (asked, requests) = mpsc::channel(REQUESTS_MAX);
        tokio::spawn(async move {
            while let Ok((stream, _)) = clients.accept().await {
                tokio::spawn(serve(stream, asked.clone()));
            }
        });
        let (leader, leaders) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok((stream, _)) = replication.accept().await {
                if leader.send(wire(stream)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Ports { requests, leaders })
    }
}

async fn serve(mut stream: TcpStream, asked: mpsc::Sender<Asked>) {
    let _ = stream.set_nodelay(true);
    while let Ok(request) = receive::<Request>(&mut stream).await {
        let (answer, answered) = oneshot::channel();
        if asked.send(Asked { request, answer }).await.is_err() {
            return;
        }
        // A request that was let go has an unknown outcome.
        let answer = answered.await.unwrap_or(Answer::Elsewhere);
        if send(&mut stream, &answer).await.is_err() {
            return;
        }
    }
}

/// Dials the other replica, as its leader.
pub(super) async fn dial(peer: SocketAddr) -> Option<ToFollower> {
    let stream = timeout(DIAL_TIMEOUT, TcpStream::connect(peer)).await.ok()?.ok()?;
    Some(wire(stream))
}

fn wire<Out, In>(stream: TcpStream) -> Wire<Out, In>
where
    Out: serde::Serialize + Send + Sync + 'static,
    In: serde::de::DeserializeOwned + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let (mut reader, mut writer) = stream.into_split();
    let (to, mut outgoing) = mpsc::channel::<Stamped<Out>>(COPIES_MAX);
    let (incoming, from) = mpsc::channel(COPIES_MAX);
    tokio::spawn(async move {
        while let Some(message) = outgoing.recv().await {
            if send(&mut writer, &message).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        loop {
            tokio::select! {
                // Whoever held the connection has dropped it.
                () = incoming.closed() => return,
                message = receive(&mut reader) => match message {
                    Ok(message) => if incoming.send(message).await.is_err() { return },
                    Err(_) => return,
                },
            }
        }
    });
    Wire { to, from }
}

/// A write to the protected resource.
pub(super) async fn touch(resource: SocketAddr, touch: Touch) {
    let attempt = async {
        let mut stream = TcpStream::connect(resource).await?;
        send(&mut stream, &touch).await?;
        receive::<Touched>(&mut stream).await
    };
    match timeout(DIAL_TIMEOUT, attempt).await {
        Ok(Ok(Touched::Refused { offered, highest })) => {
            tracing::warn!("the resource refuses token {offered:?}: it has seen {highest:?}");
        }
        Ok(Ok(Touched::Written { .. })) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the resource"),
        Err(_) => tracing::warn!("the resource does not answer"),
    }
}
