//! Connection ids that a node recognises as its own, also those that it gave before a restart.
//!
//! Invariants:
//! 1. An id is never given twice, over restarts neither: half of it and more is random. The token that resets a connection
//!    is made from the id alone, so whoever had an id before could reset a connection that has it now, and packets of a
//!    client of the earlier life would go to a connection that cannot read them, instead of being answered by a reset.
//! 2. Nobody without this node's key can make an id that it recognises: so nothing but its own earlier connections can
//!    use up the resets that it sends.

use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator};
use quinn_proto::InvalidCid;
use ring::hmac;

use crate::edge::clock::random_u64;

const RANDOM_BYTES: usize = 8;
const CHECK_BYTES: usize = 4;
const BYTES: usize = RANDOM_BYTES + CHECK_BYTES;

/// Makes ids: random bytes, and a check of them by this node's key.
#[derive(Clone)]
pub(super) struct Ids(hmac::Key);

impl Ids {
    /// The same secret recognises the same ids.
    pub(super) fn of(secret: &[u8; 32]) -> Ids {
        Ids(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    fn check(&self, random: &[u8]) -> [u8; CHECK_BYTES] {
        let tag = hmac::sign(&self.0, random);
        tag.as_ref()[..CHECK_BYTES].try_into().expect("the tag is longer")
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let random = random_u64().to_ne_bytes();
        let mut id = [0; BYTES];
        id[..RANDOM_BYTES].copy_from_slice(&random);
        id[RANDOM_BYTES..].copy_from_slice(&self.check(&random));
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let (random, check) = id.split_at_checked(RANDOM_BYTES).ok_or(InvalidCid)?;
        if *check == self.check(random) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_of_an_earlier_life_are_recognised_and_others_are_not() {
        let id = Ids::of(&[1; 32]).generate_cid();
        assert!(Ids::of(&[1; 32]).validate(&id).is_ok());
        assert!(Ids::of(&[2; 32]).validate(&id).is_err());
        for bit in 0..8 * BYTES {
            let mut forged = [0; BYTES];
            forged.copy_from_slice(&id);
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(Ids::of(&[1; 32]).validate(&ConnectionId::new(&forged)).is_err());
        }
        assert!(Ids::of(&[1; 32]).validate(&ConnectionId::new(&id[..7])).is_err());
    }

    #[test]
    fn no_id_comes_twice_over_many_lives() {
        // As many as a fleet uses in a year of restarts; three random bytes, as a common generator has, would repeat some.
        let lives = 100;
        let ids: HashSet<Vec<u8>> = (0..lives)
            .flat_map(|_| {
                let mut ids = Ids::of(&[1; 32]);
                (0..500).map(move |_| ids.generate_cid().to_vec())
            })
            .collect();
        assert_eq!(ids.len(), lives * 500);
    }
}
