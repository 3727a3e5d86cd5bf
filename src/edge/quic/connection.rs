//! One authenticated connection: requests on streams, one each, and datagrams.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{ReadError, ReadToEndError, RecvStream, SendDatagramError, SendStream, WriteError};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::error::{CloseCode, LinkError};
use super::pins::Pins;
use super::tally::{Happened, Tally};
use crate::edge::clock::Clock;
use crate::edge::identity::Fingerprint;
use crate::edge::meter::{Allowance, Meter};
use crate::limits::{MESSAGE_BYTES_MAX, REQUEST_READ_TIMEOUT, TURNED_AWAY_A_SECOND, TURNED_AWAY_AT_ONCE};

/// Requests of one connection that are turned away unread before it is closed.
const TURNED_AWAY: Allowance = Allowance { at_once: TURNED_AWAY_AT_ONCE, a_second: TURNED_AWAY_A_SECOND };

/// A connection to a node whose key is pinned. Clones share it; it is closed when the last one is dropped.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    quinn: quinn::Connection,
    key: Fingerprint,
    pins: Pins,
    number: u64,
    tally: Arc<Tally>,
    reading: Mutex<Reading>,
}

#[derive(Default)]
struct Reading {
    /// Requests that are being read, no more than the streams that the other side may open.
    requests: JoinSet<Option<Request>>,
    turned_away: Meter,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A no-op if it was closed before.
        self.quinn.close(CloseCode::DONE.wire(), b"nothing more to say");
        self.pins.forget(self.key, self.number);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({} at {})", self.0.key, self.remote_address())
    }
}

impl Connection {
    /// `number` is what [`Pins`] gave when it noted the connection.
    pub(super) fn new(
        quinn: quinn::Connection,
        key: Fingerprint,
        pins: Pins,
        number: u64,
        tally: Arc<Tally>,
    ) -> Connection {
        Connection(Arc::new(Inner { quinn, key, pins, number, tally, reading: Mutex::default() }))
    }

    /// Sends one request and waits for its reply. The first answer on a dialled connection is also the proof that
    /// the other side took it: a refusal of this node's key shows up here, as [`LinkError::Closed`].
    ///
    /// There is no time-out but the connection's; dropping the future gives the request up.
    ///
    /// # Errors
    /// If the request is too long, or the link fails, or the other side gives the exchange up.
    pub async fn ask(&self, request: &[u8]) -> Result<Vec<u8>, LinkError> {
        check_length(request)?;
        let (send, mut receive) = self.0.quinn.open_bi().await?;
        Sending(Some(send)).whole(request).await?;
        match receive.read_to_end(MESSAGE_BYTES_MAX).await {
            Ok(reply) => Ok(reply),
            Err(ReadToEndError::TooLong) => Err(LinkError::TooLongTheirs),
            Err(ReadToEndError::Read(ReadError::ConnectionLost(error))) => Err(error.into()),
            Err(ReadToEndError::Read(ReadError::Reset(code))) => {
                Err(LinkError::GivenUp(CloseCode::read(code)))
            }
            Err(ReadToEndError::Read(error)) => Err(LinkError::Transport(error.to_string())),
        }
    }

    /// The next whole request of the other side. Requests come in the order in which they are complete; one that
    /// stalls holds up no other. A request that is too long or too slow is turned away without a word up here, and a
    /// connection that goes on sending such is closed.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn next_request(&self) -> Result<Request, LinkError> {
        let mut reading = self.0.reading.lock().await;
        let Reading { requests, turned_away } = &mut *reading;
        loop {
            tokio::select! {
                Some(read) = requests.join_next() => match read {
                    Ok(Some(request)) => return Ok(request),
                    Ok(None) | Err(_) => {
                        if !turned_away.take(Clock.now(), TURNED_AWAY) {
                            self.close(CloseCode::MISBEHAVED, "too many requests that cannot be read");
                        }
                    }
                },
                opened = self.0.quinn.accept_bi() => {
                    let (send, receive) = opened?;
                    requests.spawn(read_request(Sending(Some(send)), receive, self.0.tally.clone()));
                }
            }
        }
    }

    /// Sends a datagram. It may be lost, and under pressure older ones make room for newer ones.
    ///
    /// # Errors
    /// If it is too long, or the connection has ended.
    pub fn send_datagram(&self, message: &[u8]) -> Result<(), LinkError> {
        check_length(message)?;
        self.0.quinn.send_datagram(message.to_vec().into()).map_err(|error| match error {
            SendDatagramError::ConnectionLost(error) => error.into(),
            SendDatagramError::UnsupportedByPeer
            | SendDatagramError::Disabled
            | SendDatagramError::TooLarge => LinkError::NoDatagrams,
        })
    }

    /// The next datagram of the other side.
    ///
    /// # Errors
    /// When the connection has ended, or the datagram is longer than a message.
    pub async fn next_datagram(&self) -> Result<Vec<u8>, LinkError> {
        let message = self.0.quinn.read_datagram().await?;
        if message.len() > MESSAGE_BYTES_MAX { Err(LinkError::TooLongTheirs) } else { Ok(message.to_vec()) }
    }

    /// Closes the connection and tells the other side why. Only the first close counts.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.0.quinn.close(code.wire(), reason.as_bytes());
    }

    /// Returns when the connection has ended, with the cause.
    pub async fn closed(&self) -> LinkError {
        self.0.quinn.closed().await.into()
    }

    /// The cause of the end, if it has ended.
    pub fn close_reason(&self) -> Option<LinkError> {
        self.0.quinn.close_reason().map(Into::into)
    }

    /// Whether both are handles of one connection.
    pub fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The round-trip time as it is estimated now.
    pub fn rtt(&self) -> Duration {
        self.0.quinn.rtt()
    }

    /// The pinned key that the other side proved to have.
    pub fn fingerprint(&self) -> Fingerprint {
        self.0.key
    }

    /// Where the other side is now; it may move.
    pub fn remote_address(&self) -> SocketAddr {
        canonical(self.0.quinn.remote_address())
    }

    #[cfg(test)]
    pub(super) fn quinn(&self) -> &quinn::Connection {
        &self.0.quinn
    }
}

/// The bytes of a request, and the right to answer it.
pub type Request = (Vec<u8>, Responder);

/// The right to answer one request, once. Dropped without an answer, it tells the other side that none will come.
pub struct Responder(Sending);

impl Responder {
    /// Sends the reply. It returns when the reply is handed to the transport.
    ///
    /// # Errors
    /// If the reply is too long, or the link fails, or the other side no longer wants it.
    pub async fn answer(self, reply: &[u8]) -> Result<(), LinkError> {
        check_length(reply)?;
        self.0.whole(reply).await
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

/// A stream that ends well only after a whole message. A bare quinn stream that is dropped looks finished to the
/// other side, so that a cut message would pass for a whole one.
struct Sending(Option<SendStream>);

impl Sending {
    async fn whole(mut self, message: &[u8]) -> Result<(), LinkError> {
        let Some(stream) = self.0.as_mut() else { return Ok(()) };
        match stream.write_all(message).await {
            Ok(()) => {}
            Err(WriteError::ConnectionLost(error)) => return Err(error.into()),
            Err(WriteError::Stopped(code)) => return Err(LinkError::GivenUp(CloseCode::read(code))),
            Err(error) => return Err(LinkError::Transport(error.to_string())),
        }
        if let Some(mut whole) = self.0.take() {
            // An error means that the other side has stopped or lost the stream: reading its reply tells.
            let _ = whole.finish();
        }
        Ok(())
    }

    fn refuse(mut self, code: CloseCode) {
        if let Some(mut stream) = self.0.take() {
            let _ = stream.reset(code.wire());
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(mut stream) = self.0.take() {
            // An error means that the stream is gone already.
            let _ = stream.reset(CloseCode::NO_ANSWER.wire());
        }
    }
}

async fn read_request(send: Sending, mut receive: RecvStream, tally: Arc<Tally>) -> Option<Request> {
    let read = tokio::time::timeout(REQUEST_READ_TIMEOUT, receive.read_to_end(MESSAGE_BYTES_MAX)).await;
    let code = match read {
        Ok(Ok(request)) => return Some((request, Responder(send))),
        Ok(Err(ReadToEndError::TooLong)) => CloseCode::TOO_LONG,
        // Given up by the one who asked, or the connection is gone.
        Ok(Err(ReadToEndError::Read(_))) => return None,
        Err(_) => CloseCode::TOO_SLOW,
    };
    tally.note(Happened::TurnedAway);
    if let Some(unsaid) = tally.may_say() {
        tracing::warn!(%code, unsaid, "a request was turned away unread");
    }
    let _ = receive.stop(code.wire());
    send.refuse(code);
    None
}

fn check_length(message: &[u8]) -> Result<(), LinkError> {
    if message.len() > MESSAGE_BYTES_MAX { Err(LinkError::TooLongOurs(message.len())) } else { Ok(()) }
}

/// On a dual-stack socket IPv4 looks like `::ffff:10.0.0.1`.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
