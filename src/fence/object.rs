//! Object stores as the resource: the token travels in conditional writes, so that a replaced writer's put fails although
//! the store knows nothing of tokens.
//!
//! # What is guaranteed, and what is not
//! Each object begins with a line that bears the token of whoever wrote it and a random number. It is only ever replaced on
//! condition that it is still the version that was looked at (`If-Match`), or made on condition that there is none
//! (`If-None-Match`).
//! The line is part of what the store hashes, so each version has an ETag of its own, also where an ETag is a hash of the
//! contents (S3's is) and the same bytes are written again. Read with [`FencedStore::get`], which takes the line off. So:
//!
//! 1. Of one object, the tokens of successive versions never go down.
//! 2. A put with a token below that of the present version fails, however long its writer was paused between the look and
//!    the put.
//!
//! That holds *of each object by itself*: a new leader fences the objects that it has written. One that relies on an object
//! which it has not written yet calls [`FencedStore::take_over`] first, or keeps everything behind one object (a manifest)
//! that names the others, whose names are never used twice. Deleting an object forgets its token; write an empty one
//! instead. Everybody who writes has to write this way; and the store has to honour the conditions, which some ignore
//! without a word: `tiebreak guard probe` finds out ([`probe`](super::probe)).

use std::fmt;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, UpdateVersion};

use super::StaleToken;
use crate::edge::clock::random_u128;
use crate::ids::Token;

/// The first word of an object; behind it the token in decimal, a random number, the end of the line, and the contents.
const MARK: &str = "tiebreak-fenced-1";
/// Bytes of the longest first line.
const LINE_BYTES_MAX: usize = 80;
/// How often another writer may be faster before a put gives up.
const ATTEMPTS_MAX: u32 = 32;

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A newer leader was here.
    #[error("{path}: {stale}")]
    Stale {
        /// Which object.
        path: Path,
        /// Both tokens.
        stale: StaleToken,
    },
    /// Something else writes to it that bears no token, or a broken one.
    #[error(
        "{path} was written by somebody who takes no part in the fencing (it begins with {found}): have everybody write \
         with a token, or move it away"
    )]
    Foreign {
        /// Which object.
        path: Path,
        /// What stands there.
        found: String,
    },
    /// Others were faster each time.
    #[error("{path}: others wrote to it {ATTEMPTS_MAX} times in between; try again")]
    Contended {
        /// Which object.
        path: Path,
    },
    /// The store gives versions no names, so that no condition can be put to it.
    #[error(
        "{path}: the store gives no ETag, and without one no write can be conditional: use another store"
    )]
    NoVersion {
        /// Which object.
        path: Path,
    },
    /// There is no such object.
    #[error("{path}: there is no such object")]
    Missing {
        /// Which one.
        path: Path,
    },
    /// The store.
    #[error("{path}: the store says: {source}")]
    Store {
        /// Which object.
        path: Path,
        /// What it says.
        source: Error,
    },
}

/// What was seen of an object.
struct Seen {
    token: Token,
    version: UpdateVersion,
    contents: Vec<u8>,
}

/// Writes to a store with the token of one leader. Cheap to clone.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use object_store::memory::InMemory;
/// use tiebreak::fence::{FencedStore, ObjectError};
/// use tiebreak::ids::{Term, Token};
///
/// let store = Arc::new(InMemory::new());
/// let old = FencedStore::new(store.clone(), Token::of(Term(3)));
/// let new = FencedStore::new(store, Token::of(Term(4)));
/// old.put(&"orders/1".into(), "first".into()).await?;
/// new.put(&"orders/1".into(), "second".into()).await?;
/// assert!(matches!(old.put(&"orders/1".into(), "late".into()).await, Err(ObjectError::Stale { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FencedStore {
    store: Arc<dyn ObjectStore>,
    token: Token,
}

impl fmt::Debug for FencedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencedStore({}, token {})", self.store, self.token)
    }
}

impl FencedStore {
    /// With the token of a lease ([`Lease::token`](crate::Lease::token)).
    pub fn new(store: Arc<dyn ObjectStore>, token: Token) -> FencedStore {
        FencedStore { store, token }
    }

    /// Writes the object if no higher token was there before.
    ///
    /// # Errors
    /// [`ObjectError::Stale`]: nothing of this writer is there any more, or ever was. Any other error of the store leaves
    /// open whether it was, as always with a network; a write that arrived late is subject to the same condition.
    pub async fn put(&self, path: &Path, contents: PutPayload) -> Result<(), ObjectError> {
        for _ in 0..ATTEMPTS_MAX {
            let mode = match self.look(path).await? {
                None => PutMode::Create,
                Some(seen) => PutMode::Update(seen.version),
            };
            if self.write(path, contents.clone(), mode).await? {
                return Ok(());
            }
        }
        Err(ObjectError::Contended { path: path.clone() })
    }

    /// Reads the object, as it was when it was read.
    ///
    /// # Errors
    /// [`ObjectError::Missing`], [`ObjectError::Stale`] if a newer leader has written it (then this one is replaced and
    /// has to stop), and what the store says.
    pub async fn get(&self, path: &Path) -> Result<Vec<u8>, ObjectError> {
        let seen = self.look(path).await?;
        seen.map(|seen| seen.contents).ok_or_else(|| ObjectError::Missing { path: path.clone() })
    }

    /// Reads the object and writes it again as it is, with this token: from then on no earlier leader can change it.
    ///
    /// # Errors
    /// As [`get`](FencedStore::get) and [`put`](FencedStore::put).
    pub async fn take_over(&self, path: &Path) -> Result<Vec<u8>, ObjectError> {
        for _ in 0..ATTEMPTS_MAX {
            let seen = self.look(path).await?.ok_or_else(|| ObjectError::Missing { path: path.clone() })?;
            let contents = seen.contents.clone();
            if seen.token == self.token
                || self.write(path, seen.contents.into(), PutMode::Update(seen.version)).await?
            {
                return Ok(contents);
            }
        }
        Err(ObjectError::Contended { path: path.clone() })
    }

    /// The present version; `None` if there is none. One with a higher token is an error.
    async fn look(&self, path: &Path) -> Result<Option<Seen>, ObjectError> {
        let failed = |source| ObjectError::Store { path: path.clone(), source };
        let found = match self.store.get(path).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let body = found.bytes().await.map_err(failed)?;
        let (token, contents) = split(&body).ok_or_else(|| {
            let start = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            ObjectError::Foreign { path: path.clone(), found: format!("{start:?}") }
        })?;
        if token > self.token {
            let stale = StaleToken { offered: self.token, highest: token };
            return Err(ObjectError::Stale { path: path.clone(), stale });
        }
        if version.e_tag.is_none() {
            return Err(ObjectError::NoVersion { path: path.clone() });
        }
        Ok(Some(Seen { token, version, contents: contents.to_vec() }))
    }

    /// Whether the condition held.
    async fn write(&self, path: &Path, contents: PutPayload, mode: PutMode) -> Result<bool, ObjectError> {
        let line = format!("{MARK} {} {:032x}\n", self.token, random_u128());
        let parts = std::iter::once(line.into_bytes().into()).chain(contents);
        let replaces = mode != PutMode::Create;
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.store.put_opts(path, parts.collect(), options).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            // It was deleted meanwhile. Where nothing is there to be replaced, it is the bucket that is missing.
            Err(Error::NotFound { .. }) if replaces => Ok(false),
            Err(source) => Err(ObjectError::Store { path: path.clone(), source }),
        }
    }
}

/// The token in the first line, and what stands behind it.
fn split(body: &[u8]) -> Option<(Token, &[u8])> {
    let end = body.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n')?;
    let mut words = std::str::from_utf8(&body[..end]).ok()?.split(' ');
    let (mark, token, nonce) = (words.next()?, words.next()?, words.next()?);
    let whole = mark == MARK && nonce.len() == 32 && words.next().is_none();
    whole.then(|| super::token_of(Some(token)).ok()).flatten().map(|token| (token, &body[end + 1..]))
}
