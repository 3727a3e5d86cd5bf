//! How nodes come to know one another without files that are copied by hand: codes, what is said over
//! `tiebreak-join/1`, and the registrations that a witness keeps.
//!
//! # Who has to trust whom
//! - A code is a secret, and is carried by a person from one terminal to another. Whoever reads one before it is used can
//!   take the place that it stands for.
//! - The *first* code names the witness by its fingerprint: the first replica speaks to nobody else. The witness knows the
//!   one-time secret in it by its hash only, and lets the key in that shows the secret first.
//! - The *second* code is made by the first replica. The second takes the first one's fingerprint from it, and not
//!   from the witness. The witness is shown one half of its secret; with the other half the second replica signs its key
//!   for the first (HMAC), so a witness cannot slip in a replica of its own.
//! - The witness decides who votes in a cluster *at the witness*: one that was broken into can lie about its vote, refuse
//!   and forget, as any voter can. It learns no data.
//! - Keys of one cluster mean nothing in another: each request is about the cluster of the key, or of the secret, that it shows,
//!   and a name that is not known is answered like a secret that is wrong.
//!
//! A code is valid for [`CODE_SECONDS`](crate::limits::CODE_SECONDS) of the witness's wall clock, and for one key: the
//! same key may show it again, so that an interrupted command can be run again.

mod client;
mod code;
mod message;
mod rules;
mod store;

pub use client::{AskError, ask};
pub use code::{Code, Second, Secret, hash, seal_key};
pub use message::{Denial, Request, Response};
pub use rules::{Registration, Seat, Ticket, decide};
pub use store::{Store, StoreError};
