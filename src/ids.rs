//! Names and numbers that must not be mixed up, each as a type of its own.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name of a node or a cluster, in bytes.
pub const NAME_BYTES_MAX: usize = 32;

/// Why a text is not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty or longer than [`NAME_BYTES_MAX`].
    #[error("a name has 1 to {NAME_BYTES_MAX} characters, this one has {0}")]
    Length(usize),
    /// The text holds something else than `a-z A-Z 0-9 . _ -`.
    #[error("a name is made of letters, digits, '.', '_' and '-'; {0:?} is none of them")]
    Character(char),
}

/// Bytes of a valid name, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Name([u8; NAME_BYTES_MAX]);

impl Name {
    fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            return Err(NameError::Length(text.chars().count()));
        }
        if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-".contains(*c))) {
            return Err(NameError::Character(bad));
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Name(bytes))
    }

    fn from_bytes(bytes: [u8; NAME_BYTES_MAX]) -> Result<Self, NameError> {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES_MAX);
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| NameError::Character('\u{fffd}'))?;
        let name = Name::parse(text)?;
        // Only one spelling of each name is accepted: what follows the end is zeros.
        if name.0 == bytes { Ok(name) } else { Err(NameError::Character('\0')) }
    }

    fn as_str(&self) -> &str {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES_MAX);
        std::str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Name);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Name::parse(text).map($type)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() { to.serialize_str(self.as_str()) } else { self.0.0.serialize(to) }
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                if from.is_human_readable() {
                    String::deserialize(from)?.parse().map_err(D::Error::custom)
                } else {
                    let bytes = <[u8; NAME_BYTES_MAX]>::deserialize(from)?;
                    Name::from_bytes(bytes).map($type).map_err(D::Error::custom)
                }
            }
        }
    };
}

name_type! {
    /// What people call a node: 1 to 32 characters out of `a-z A-Z 0-9 . _ -`.
    NodeId
}
name_type! {
    /// What people call a cluster: 1 to 32 characters out of `a-z A-Z 0-9 . _ -`.
    ClusterName
}

name_type! {
    /// What people call a protected resource: 1 to 32 characters out of `a-z A-Z 0-9 . _ -`.
    ResourceName
}

name_type! {
    /// What is locked (see [`crate::Cluster::acquire`]): 1 to 32 characters out of `a-z A-Z 0-9 . _ -`.
    LockName
}

macro_rules! random_type {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $type(pub u128);

        impl $type {
            /// "None yet": never drawn for a real one.
            pub const NIL: $type = $type(0);
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // Eight digits tell two of them apart for a reader.
                write!(f, "{:08x}", self.0 >> 96)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() { to.serialize_str(&self.to_string()) } else { self.0.serialize(to) }
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                if from.is_human_readable() {
                    let text = String::deserialize(from)?;
                    u128::from_str_radix(&text, 16).map($type).map_err(D::Error::custom)
                } else {
                    u128::deserialize(from).map($type)
                }
            }
        }
    };
}

random_type! {
    /// A cluster's random 128-bit number, drawn once by `init`.
    ClusterId
}
random_type! {
    /// A random 128-bit number made together with a voter's durable state. It changes when the state is lost.
    Incarnation
}

macro_rules! number_type {
    ($(#[$doc:meta])* $type:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $type(pub $inner);

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_type! {
    /// The unit of leadership: a number that only rises. At most one leader per term.
    Term(u32)
}
number_type! {
    /// How often a voter has started on its present durable state.
    Boot(u32)
}
number_type! {
    /// Whatever orders writes inside a term in the data layer (a log index, an LSN).
    Position(u64)
}
number_type! {
    /// One connection between two running nodes, numbered by the node that counts it. Never reused in one run.
    LinkId(u64)
}

impl Term {
    /// Before any term.
    pub const ZERO: Term = Term(0);

    /// The term after this one, or `None` at the very end of the numbers.
    pub fn next(self) -> Option<Term> {
        self.0.checked_add(1).map(Term)
    }
}

/// The fencing token of a leader: its term in the high 32 bits. A protected resource keeps the highest token
/// it has seen and refuses lower ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Token(pub u64);

impl Token {
    /// The first token of a term.
    pub fn of(term: Term) -> Token {
        Token(u64::from(term.0) << 32)
    }

    /// Of the grant of a name: the term in the high half, the count of grants in that term in the low half.
    pub fn granted(term: Term, grants: u32) -> Token {
        Token(Token::of(term).0 | u64::from(grants))
    }

    /// The term this token belongs to.
    #[allow(clippy::cast_possible_truncation, reason = "the upper half of 64 bits is 32 bits")]
    pub fn term(self) -> Term {
        Term((self.0 >> 32) as u32)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// One life of a node: its name and its incarnation. The vote counts lives, people read names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VoterId {
    /// What people call it.
    pub node: NodeId,
    /// Which life of its durable state.
    pub incarnation: Incarnation,
}

impl fmt::Display for VoterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.node.as_str())
    }
}

impl fmt::Debug for VoterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:?}", self.node, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling_only() {
        assert!("db-1.example".parse::<NodeId>().is_ok());
        assert_eq!("".parse::<NodeId>(), Err(NameError::Length(0)));
        assert_eq!("a b".parse::<NodeId>(), Err(NameError::Character(' ')));
        assert!("x".repeat(33).parse::<NodeId>().is_err());
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes[0] = b'a';
        bytes[9] = b'b';
        assert!(Name::from_bytes(bytes).is_err());
    }

    #[test]
    fn tokens_rise_with_terms() {
        assert!(Token::of(Term(2)) > Token(Token::of(Term(1)).0 + 0xffff_ffff));
        assert_eq!(Token::of(Term(7)).term(), Term(7));
    }
}
