//! Persist before reply, as types: a value that speaks of a record can be had only with the proof that the
//! record is durable, and only the ledger makes the proof.

/// Proof that everything put into a ledger up to some point is durable. Only the ledger that synced makes one.
///
/// ```compile_fail,E0451
/// let forged = tiebreak::testing::ledger::Synced { ledger: 1, through: u64::MAX };
/// ```
#[derive(Debug, Clone)]
pub struct Synced {
    pub(super) ledger: u64,
    pub(super) through: u64,
}

/// A value that must not be seen before the record behind it is durable. Only a ledger makes one.
///
/// ```compile_fail,E0451
/// let forged = tiebreak::testing::ledger::Sealed { ledger: 1, needs: 0, value: "granted" };
/// ```
#[derive(Debug)]
#[must_use = "a sealed value is released with the proof of its sync"]
pub struct Sealed<T> {
    pub(super) ledger: u64,
    pub(super) needs: u64,
    pub(super) value: T,
}

/// The proof is of an earlier sync, or of another ledger. Holds the sealed value, to be tried again.
#[derive(Debug, thiserror::Error)]
#[error("the record behind this is not durable yet; sync the ledger that sealed it first")]
pub struct NotCovered<T>(pub Sealed<T>);

impl<T> Sealed<T> {
    /// Hands out the value against the proof.
    ///
    /// # Errors
    /// [`NotCovered`], with the value still sealed, if the proof does not cover it.
    pub fn release(self, proof: &Synced) -> Result<T, NotCovered<T>> {
        if self.ledger == proof.ledger && self.needs <= proof.through {
            Ok(self.value)
        } else {
            Err(NotCovered(self))
        }
    }
}
