//! The codes that people carry from one machine to another.

use std::fmt;
use std::str::FromStr;

use ring::{digest, hmac};

use crate::edge::clock::random_u128;
use crate::edge::identity::Fingerprint;
use crate::edge::quic::HostPort;
use crate::ids::{ClusterName, NodeId};
use crate::limits::{ADDRESSES_PER_NODE_MAX, CODE_BYTES_MAX};

/// What every code begins with; the 1 is the version of the scheme.
const PREFIX: &str = "tbj1-";
/// Without letters that are taken for digits.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const CHECKSUM_BYTES: usize = 4;

/// 128 random bits that a code carries.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// A new one.
    pub fn draw() -> Secret {
        Secret(random_u128().to_be_bytes())
    }

    /// What is shown to the witness. It tells nothing of the rest.
    pub fn shown(&self) -> [u8; 32] {
        self.part(b"tiebreak: shown to the witness")
    }

    /// What is used between the two replicas, and never sent.
    fn between(&self) -> [u8; 32] {
        self.part(b"tiebreak: between the replicas")
    }

    fn part(&self, purpose: &[u8]) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        hmac::sign(&key, purpose).as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

/// What the witness keeps of what it will be shown.
pub fn hash(shown: &[u8; 32]) -> [u8; 32] {
    digest::digest(&digest::SHA256, shown).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The second replica's key and addresses, signed for the first one.
pub fn seal_key(
    secret: &Secret,
    cluster: ClusterName,
    node: NodeId,
    key: Fingerprint,
    at: &[String],
) -> [u8; 32] {
    let text = format!("{cluster}\n{node}\n{key}\n{}", at.join(","));
    let with = hmac::Key::new(hmac::HMAC_SHA256, &secret.between());
    hmac::sign(&with, text.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// What a code says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// The cluster.
    pub cluster: ClusterName,
    /// The witness's name.
    pub witness: NodeId,
    /// The witness's key.
    pub witness_key: Fingerprint,
    /// Where the witness is.
    pub witness_at: Vec<HostPort>,
    /// The one-time secret.
    pub secret: Secret,
    /// In the code for the second replica.
    pub second: Option<Second>,
}

/// What the code for the second replica says besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Second {
    /// The first replica's name.
    pub first: NodeId,
    /// Its key.
    pub first_key: Fingerprint,
    /// Where it is.
    pub first_at: Vec<HostPort>,
    /// The name of the second one.
    pub node: NodeId,
}

/// Why a text is no code. Nothing was sent anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// Something else.
    #[error(
        "a code begins with `{PREFIX}`; copy the whole line that `tiebreak invite` or `tiebreak join` printed"
    )]
    Prefix,
    /// A character that no code has.
    #[error("{0:?} stands in no code; copy it again")]
    Character(char),
    /// Something is missing or was changed.
    #[error("the code is incomplete or mistyped: its checksum does not fit; copy it again")]
    Checksum,
    /// It is whole, and says nothing that this program knows.
    #[error("the code is of another release of tiebreak; use the same on all nodes")]
    Unknown,
}

fn texts(at: &[HostPort]) -> String {
    at.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![u8::from(self.second.is_some())];
        bytes.extend(self.witness_key.0);
        bytes.extend(self.secret.0);
        let mut words = format!("{} {} {}", self.cluster, self.witness, texts(&self.witness_at));
        if let Some(second) = &self.second {
            bytes.extend(second.first_key.0);
            words = format!("{words} {} {} {}", second.first, second.node, texts(&second.first_at));
        }
        bytes.extend(words.as_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
        f.write_str(PREFIX)?;
        f.write_str(&spell(&bytes))
    }
}

impl FromStr for Code {
    type Err = CodeError;

    fn from_str(text: &str) -> Result<Code, CodeError> {
        let text = text.trim().to_ascii_lowercase();
        let bytes = read(text.strip_prefix(PREFIX).ok_or(CodeError::Prefix)?)?;
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(CodeError::Checksum)?;
        if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
            return Err(CodeError::Checksum);
        }
        parse(body).ok_or(CodeError::Unknown)
    }
}

fn parse(body: &[u8]) -> Option<Code> {
    let (kind, rest) = body.split_first()?;
    let (witness_key, rest) = rest.split_first_chunk::<32>()?;
    let (secret, rest) = rest.split_first_chunk::<16>()?;
    let (first_key, rest) = match kind {
        0 => (None, rest),
        1 => rest.split_first_chunk::<32>().map(|(key, rest)| (Some(*key), rest))?,
        _ => return None,
    };
    let words: Vec<&str> = std::str::from_utf8(rest).ok()?.split(' ').collect();
    let places = |text: &str| -> Option<Vec<HostPort>> {
        let read: Vec<HostPort> =
            text.split(',').filter(|text| !text.is_empty()).map(str::parse).collect::<Result<_, _>>().ok()?;
        (read.len() <= ADDRESSES_PER_NODE_MAX).then_some(read)
    };
    let second = match (first_key, words.get(3..)?) {
        (None, []) => None,
        (Some(key), [first, node, at]) => Some(Second {
            first: first.parse().ok()?,
            first_key: Fingerprint(key),
            first_at: places(at)?,
            node: node.parse().ok()?,
        }),
        _ => return None,
    };
    Some(Code {
        cluster: words[0].parse().ok()?,
        witness: words[1].parse().ok()?,
        witness_key: Fingerprint(*witness_key),
        witness_at: places(words[2])?,
        secret: Secret(*secret),
        second,
    })
}

fn spell(bytes: &[u8]) -> String {
    let (mut text, mut held, mut bits) = (String::new(), 0_u32, 0);
    for byte in bytes {
        held = (held << 8 | u32::from(*byte)) & 0xffff;
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(DIGITS[(held >> bits & 31) as usize]));
        }
    }
    if bits > 0 {
        text.push(char::from(DIGITS[(held << (5 - bits) & 31) as usize]));
    }
    text
}

fn read(text: &str) -> Result<Vec<u8>, CodeError> {
    if text.len() > CODE_BYTES_MAX * 2 {
        return Err(CodeError::Checksum);
    }
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for character in text.chars() {
        let plain = match character {
            'o' => '0',
            'i' | 'l' => '1',
            other => other,
        };
        let digit = DIGITS.iter().position(|digit| char::from(*digit) == plain);
        let digit = digit.ok_or(CodeError::Character(character))?;
        held = (held << 5 | u32::try_from(digit).expect("32 digits")) & 0xffff;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 255).expect("8 bits"));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(second: bool) -> Code {
        Code {
            cluster: "orders".parse().unwrap(),
            witness: "w".parse().unwrap(),
            witness_key: Fingerprint([7; 32]),
            witness_at: vec!["w.example:7400".parse().unwrap(), "[::1]:1".parse().unwrap()],
            secret: Secret([9; 16]),
            second: second.then(|| Second {
                first: "a".parse().unwrap(),
                first_key: Fingerprint([3; 32]),
                first_at: vec!["10.0.0.1:7400".parse().unwrap()],
                node: "b".parse().unwrap(),
            }),
        }
    }

    #[test]
    fn a_code_says_the_same_when_it_is_read() {
        for code in [code(false), code(true)] {
            assert_eq!(code.to_string().parse(), Ok(code.clone()));
            assert_eq!(format!("  {}\n", code.to_string().to_uppercase()).parse(), Ok(code));
        }
    }

    #[test]
    fn every_wrong_character_and_every_cut_is_noticed_before_anything_is_sent() {
        let whole = code(true).to_string();
        for at in PREFIX.len()..whole.len() {
            let mut wrong = whole.clone().into_bytes();
            wrong[at] = if wrong[at] == b'q' { b'r' } else { b'q' };
            let wrong = String::from_utf8(wrong).unwrap();
            // The last character may have bits that say nothing.
            let read = wrong.parse::<Code>();
            assert!(read.is_err() || read == Ok(code(true)), "{at}");
            assert!(at + 1 == whole.len() || whole[..at].parse::<Code>().is_err(), "{at}");
        }
        assert_eq!("hello".parse::<Code>(), Err(CodeError::Prefix));
        assert_eq!("tbj1-!".parse::<Code>(), Err(CodeError::Character('!')));
    }

    #[test]
    fn what_the_witness_is_shown_does_not_sign_keys() {
        let secret = Secret([9; 16]);
        assert_ne!(secret.shown(), secret.between());
        assert_ne!(hash(&secret.shown()), secret.shown());
    }
}
