//! What goes wrong on a link, and whose fault it is.

use std::fmt;
use std::net::SocketAddr;

use quinn::{ConnectionError, TransportErrorCode, VarInt};

use crate::edge::identity::Fingerprint;
use crate::limits::{MESSAGE_BYTES_MAX, REASON_CHARS_MAX};

/// Who has to do something about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The other node: what it sent is against the protocol.
    Peer,
    /// Nobody in particular: silence, a restart, a leave. Dialling again is the cure.
    Network,
    /// People: keys, addresses or versions do not fit together.
    Operator,
    /// This program.
    Ours,
}

/// Why a connection was closed or a request turned away, as a number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(pub u32);

impl CloseCode {
    /// The one who closes is done with it.
    pub const DONE: CloseCode = CloseCode(0);
    /// The key is not pinned at the one who closes.
    pub const NOT_PINNED: CloseCode = CloseCode(1);
    /// The node goes down in good order.
    pub const LEAVING: CloseCode = CloseCode(2);
    /// The same key has too many connections, and this is the oldest.
    pub const CROWDED: CloseCode = CloseCode(3);
    /// The message was longer than a message may be.
    pub const TOO_LONG: CloseCode = CloseCode(4);
    /// The request did not arrive whole in time.
    pub const TOO_SLOW: CloseCode = CloseCode(5);
    /// The request was dropped without an answer.
    pub const NO_ANSWER: CloseCode = CloseCode(6);
    /// What was sent is against the protocol.
    pub const MISBEHAVED: CloseCode = CloseCode(7);

    pub(super) fn wire(self) -> VarInt {
        VarInt::from_u32(self.0)
    }

    pub(super) fn read(code: VarInt) -> CloseCode {
        CloseCode(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
    }
}

impl fmt::Debug for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            CloseCode::DONE => "done",
            CloseCode::NOT_PINNED => "not pinned",
            CloseCode::LEAVING => "leaving",
            CloseCode::CROWDED => "crowded",
            CloseCode::TOO_LONG => "too long",
            CloseCode::TOO_SLOW => "too slow",
            CloseCode::NO_ANSWER => "no answer",
            CloseCode::MISBEHAVED => "misbehaved",
            CloseCode(other) => return write!(f, "code {other}"),
        };
        f.write_str(name)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a link, or one exchange on it, failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The other node closed the connection and said why.
    #[error("the other node closed the connection ({code}): {reason}")]
    Closed {
        /// Its code.
        code: CloseCode,
        /// Its words, without control characters and cut to a bounded length.
        reason: String,
    },
    /// The other node came up anew and knows nothing of this connection.
    #[error("the other node was restarted")]
    Restarted,
    /// Nothing was heard for the idle time-out.
    #[error("nothing was heard from the other node; it may be down or cut off")]
    Silent,
    /// This side closed the connection.
    #[error("the connection was closed here")]
    ClosedHere,
    /// It showed another key than the pinned ones.
    #[error(
        "it showed the key {got} instead of {}; if the node was given a new key, pin that one here",
        list(.expected)
    )]
    WrongKey {
        /// The keys pinned for the node that was dialled.
        expected: Vec<Fingerprint>,
        /// The key that it proved to have.
        got: Fingerprint,
    },
    /// No version of the protocol in common.
    #[error("the other side does not speak tiebreak/1; both nodes have to run versions that speak it")]
    OtherProtocol,
    /// It takes no connections, or too many are being made.
    #[error("the other node takes no connections now")]
    Refused,
    /// The handshake or the transport failed in another way.
    #[error("the connection failed: {0}")]
    Transport(String),
    /// The other node turned this one request or reply away.
    #[error("the other node gave up the exchange ({0})")]
    GivenUp(CloseCode),
    /// The other node sent more than a message.
    #[error("the other node sent a message of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLongTheirs,
    /// A message to be sent is too long.
    #[error("a message of {0} bytes is longer than {MESSAGE_BYTES_MAX}")]
    TooLongOurs(usize),
    /// The path or the other node carries no datagrams of this size.
    #[error("the other node takes no datagrams of this size")]
    NoDatagrams,
}

impl LinkError {
    /// Who has to do something about it.
    pub fn fault(&self) -> Fault {
        match self {
            LinkError::Closed { code: CloseCode::NOT_PINNED, .. }
            | LinkError::WrongKey { .. }
            | LinkError::OtherProtocol => Fault::Operator,
            // It complains about what was sent from here.
            LinkError::Closed { code: CloseCode::MISBEHAVED | CloseCode::TOO_LONG, .. }
            | LinkError::GivenUp(CloseCode::TOO_LONG)
            | LinkError::TooLongOurs(_) => Fault::Ours,
            LinkError::TooLongTheirs | LinkError::Transport(_) | LinkError::NoDatagrams => Fault::Peer,
            LinkError::Closed { .. }
            | LinkError::Restarted
            | LinkError::Silent
            | LinkError::ClosedHere
            | LinkError::Refused
            | LinkError::GivenUp(_) => Fault::Network,
        }
    }
}

impl From<ConnectionError> for LinkError {
    fn from(error: ConnectionError) -> LinkError {
        // TLS alert 120, "no application protocol": RFC 7301.
        let no_alpn = TransportErrorCode::crypto(120);
        match error {
            ConnectionError::ApplicationClosed(close) => {
                LinkError::Closed { code: CloseCode::read(close.error_code), reason: harmless(&close.reason) }
            }
            ConnectionError::ConnectionClosed(close) if close.error_code == no_alpn => {
                LinkError::OtherProtocol
            }
            ConnectionError::TransportError(error) if error.code == no_alpn => LinkError::OtherProtocol,
            ConnectionError::VersionMismatch => LinkError::OtherProtocol,
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                LinkError::Refused
            }
            ConnectionError::Reset => LinkError::Restarted,
            ConnectionError::TimedOut => LinkError::Silent,
            ConnectionError::LocallyClosed => LinkError::ClosedHere,
            other => LinkError::Transport(harmless(other.to_string().as_bytes())),
        }
    }
}

/// Words of another node, fit for a terminal and a log.
fn harmless(words: &[u8]) -> String {
    let words = String::from_utf8_lossy(words);
    words.chars().take(REASON_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn list(keys: &[Fingerprint]) -> String {
    match keys {
        [] => "any (none is pinned for it)".into(),
        keys => keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
    }
}

/// One address that was tried, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// The name or address as it was configured.
    pub given: String,
    /// What it was resolved to, if it was.
    pub address: Option<SocketAddr>,
    /// Why it failed.
    pub error: LinkError,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) if address.to_string() != self.given => {
                write!(f, "{} ({address}): {}", self.given, self.error)
            }
            _ => write!(f, "{}: {}", self.given, self.error),
        }
    }
}

/// No address led to the node.
#[derive(Clone, PartialEq, Eq, Debug, Default, thiserror::Error)]
pub struct DialError {
    /// Everything that was tried, in the order in which it failed.
    pub attempts: Vec<Attempt>,
}

impl DialError {
    /// The fault of the attempt that says most: a wrong key says more than silence.
    pub fn fault(&self) -> Fault {
        let faults = || self.attempts.iter().map(|attempt| attempt.error.fault());
        let weight = |fault: &Fault| match fault {
            Fault::Ours => 3,
            Fault::Operator => 2,
            Fault::Peer => 1,
            Fault::Network => 0,
        };
        faults().max_by_key(weight).unwrap_or(Fault::Operator)
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.attempts.is_empty() {
            return f.write_str("no address is configured for the node");
        }
        f.write_str("no address led to the node")?;
        self.attempts.iter().try_for_each(|attempt| write!(f, "; {attempt}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_cut_and_cannot_drive_a_terminal() {
        let shown = harmless(&[b"\x1b[2J\n", "ä".repeat(9999).as_bytes()].concat());
        assert_eq!(shown.chars().count(), REASON_CHARS_MAX);
        assert!(!shown.chars().any(char::is_control));
    }

    #[test]
    fn a_wrong_key_says_more_than_silence() {
        let attempt = |error| Attempt { given: "a:1".into(), address: None, error };
        let wrong = LinkError::WrongKey { expected: vec![], got: Fingerprint([1; 32]) };
        let error = DialError { attempts: vec![attempt(LinkError::Silent), attempt(wrong)] };
        assert_eq!(error.fault(), Fault::Operator);
        assert!(error.to_string().contains("tb1:0101"), "{error}");
    }
}
