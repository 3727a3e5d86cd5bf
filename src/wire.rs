//! Bytes ↔ messages. Total: no bytes make it panic, and every message has one spelling only.
//!
//! A message is its version (`u16`, little endian), its [`Sender`], its body; numbers have a fixed width and are
//! little endian, variants are a `u32` in the order of their declaration, and every byte has to be consumed. A
//! decoder reads the version before it looks at anything else, so it can answer any later version, whatever
//! stands behind it.
//!
//! Version 0 is not a version: it marks the one message that every version reads and writes in the same bytes,
//! for ever: "these are the versions that I speak" ([`Reply::Versions`]). It is `0`, the sender as version 1 has
//! it, the lowest and the highest version.
//!
//! Architecture invariant: nothing else in this crate knows the codec. Golden bytes are in `tests/vectors.rs`.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::error::DecodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits::{MESSAGE_BYTES_MAX, RECORD_BYTES_MAX};
use crate::message::{Record, Reply, Request, Sender};

/// The version written here, and the highest one understood.
pub const VERSION: u16 = 1;
/// The lowest version understood.
pub const VERSION_LOWEST: u16 = 1;
/// Stands in place of a version in the message that tells the versions.
const VERSIONS_MARK: u16 = 0;
/// The version of what is kept or said beside the votes.
const PLAIN_VERSION: u16 = 1;
const VERSION_BYTES: usize = size_of::<u16>();

const MESSAGE: Configuration<LittleEndian, Fixint, Limit<MESSAGE_BYTES_MAX>> =
    bincode::config::legacy().with_limit::<MESSAGE_BYTES_MAX>();
const RECORD: Configuration<LittleEndian, Fixint, Limit<RECORD_BYTES_MAX>> =
    bincode::config::legacy().with_limit::<RECORD_BYTES_MAX>();

/// Why bytes are not a message. The fault is the sender's, or the path's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The version is not spoken here; answer with [`versions`].
    #[error(
        "the message is of version {got}, and versions {VERSION_LOWEST} to {VERSION} are spoken here; \
         bring both nodes to the same release"
    )]
    Version {
        /// The version that the message states.
        got: u16,
    },
    /// Longer than any message or record may be.
    #[error("{bytes} bytes are more than any message may have")]
    TooLong {
        /// How many there are.
        bytes: usize,
    },
    /// The bytes end too early.
    #[error("the bytes end inside the message")]
    Truncated,
    /// Bytes are left over behind the message.
    #[error("{bytes} bytes are left over behind the message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A value stands there that has no meaning, or not this spelling.
    #[error("the bytes are not a message: {reason}")]
    Malformed {
        /// What the decoder met.
        reason: String,
    },
}

/// The answer to a message whose version is not spoken here.
pub fn versions() -> Reply {
    Reply::Versions { lowest: VERSION_LOWEST, highest: VERSION }
}

/// The bytes of a request.
pub fn encode_request(sender: &Sender, request: &Request) -> Vec<u8> {
    encode_message(VERSION, &(sender, request))
}

/// The bytes of a reply.
pub fn encode_reply(sender: &Sender, reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Versions { lowest, highest } => encode_message(VERSIONS_MARK, &(sender, lowest, highest)),
        _ => encode_message(VERSION, &(sender, reply)),
    }
}

/// Reads a request.
///
/// # Errors
/// [`WireError`], for any bytes that [`encode_request`] does not make.
pub fn decode_request(bytes: &[u8]) -> Result<(Sender, Request), WireError> {
    match split_version(bytes)? {
        (VERSION, rest) => decode(rest, MESSAGE),
        (got, _) => Err(WireError::Version { got }),
    }
}

/// Reads a reply.
///
/// # Errors
/// [`WireError`], for any bytes that [`encode_reply`] does not make.
pub fn decode_reply(bytes: &[u8]) -> Result<(Sender, Reply), WireError> {
    match split_version(bytes)? {
        (VERSIONS_MARK, rest) => {
            let (sender, lowest, highest) = decode(rest, MESSAGE)?;
            Ok((sender, Reply::Versions { lowest, highest }))
        }
        (VERSION, rest) => match decode(rest, MESSAGE)? {
            (_, Reply::Versions { .. }) => {
                Err(WireError::Malformed { reason: "versions are told under the mark 0 only".into() })
            }
            message => Ok(message),
        },
        (got, _) => Err(WireError::Version { got }),
    }
}

/// What a datagram carries. A stream shows by its direction which of the two it is; a datagram says it in its first
/// byte: 0 for a request, 1 for a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datagram {
    /// A request.
    Request(Sender, Request),
    /// A reply.
    Reply(Sender, Reply),
}

/// The bytes of a request in a datagram.
pub fn encode_datagram_request(sender: &Sender, request: &Request) -> Vec<u8> {
    [&[0], encode_request(sender, request).as_slice()].concat()
}

/// The bytes of a reply in a datagram.
pub fn encode_datagram_reply(sender: &Sender, reply: &Reply) -> Vec<u8> {
    [&[1], encode_reply(sender, reply).as_slice()].concat()
}

/// Reads a datagram.
///
/// # Errors
/// [`WireError`], for any bytes that the encoders do not make.
pub fn decode_datagram(bytes: &[u8]) -> Result<Datagram, WireError> {
    match bytes.split_first() {
        Some((0, rest)) => decode_request(rest).map(|(sender, request)| Datagram::Request(sender, request)),
        Some((1, rest)) => decode_reply(rest).map(|(sender, reply)| Datagram::Reply(sender, reply)),
        Some((kind, _)) => {
            Err(WireError::Malformed { reason: format!("a datagram is of kind 0 or 1, this one of {kind}") })
        }
        None => Err(WireError::Truncated),
    }
}

/// The bytes of a record of the ledger, whose header carries the version.
pub fn encode_record(record: &Record) -> Vec<u8> {
    let bytes = bincode::serde::encode_to_vec(record, RECORD).expect("plain fields always encode");
    assert!(bytes.len() <= RECORD_BYTES_MAX, "every record fits its block");
    bytes
}

/// Reads a record of the ledger.
///
/// # Errors
/// [`WireError`], for any bytes that [`encode_record`] does not make.
pub fn decode_record(bytes: &[u8]) -> Result<Record, WireError> {
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(WireError::TooLong { bytes: bytes.len() });
    }
    decode(bytes, RECORD)
}

/// The bytes of something that is kept or said beside the votes: a registration, a request to join. It begins with its
/// version, like a message.
pub fn encode_plain(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = PLAIN_VERSION.to_le_bytes().to_vec();
    bincode::serde::encode_into_std_write(value, &mut bytes, RECORD).expect("plain fields always encode");
    bytes
}

/// Reads what [`encode_plain`] wrote.
///
/// # Errors
/// [`WireError`], for any other bytes.
pub fn decode_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (version, rest) = bytes.split_first_chunk::<VERSION_BYTES>().ok_or(WireError::Truncated)?;
    match u16::from_le_bytes(*version) {
        PLAIN_VERSION => decode(rest, RECORD),
        got => Err(WireError::Version { got }),
    }
}

fn encode_message(version: u16, body: &impl Serialize) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    bincode::serde::encode_into_std_write(body, &mut bytes, MESSAGE).expect("plain fields always encode");
    // The codec's limit holds for reading only.
    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "every message fits a datagram");
    bytes
}

fn split_version(bytes: &[u8]) -> Result<(u16, &[u8]), WireError> {
    let (version, rest) = bytes.split_first_chunk::<VERSION_BYTES>().ok_or(WireError::Truncated)?;
    let version = u16::from_le_bytes(*version);
    let spoken = version == VERSIONS_MARK || (VERSION_LOWEST..=VERSION).contains(&version);
    if spoken && bytes.len() > MESSAGE_BYTES_MAX {
        return Err(WireError::TooLong { bytes: bytes.len() });
    }
    Ok((version, rest))
}

fn decode<T: DeserializeOwned>(bytes: &[u8], config: impl bincode::config::Config) -> Result<T, WireError> {
    let (value, consumed) =
        bincode::serde::decode_from_slice(bytes, config).map_err(|error| match error {
            DecodeError::UnexpectedEnd { .. } => WireError::Truncated,
            other => WireError::Malformed { reason: other.to_string() },
        })?;
    if consumed == bytes.len() {
        Ok(value)
    } else {
        Err(WireError::Trailing { bytes: bytes.len() - consumed })
    }
}
