//! Named leases: the lock service. Pure: it is told what happens and when, and answers; the term's leader keeps a
//! [`Table`] in memory, whoever holds a name keeps a [`Hold`]. (§8)
//!
//! The rules, in full:
//! - A *tenure* is one stretch of time in which a node has the right to act as leader without a break, whatever terms it
//!   opens meanwhile. No two nodes have a tenure at the same instant (§10.6). Only in its tenure a table answers, and with
//!   the tenure it forgets every name.
//! - Whoever holds a name relies on it until (its clock when it *sent* the request) + D·(1−ρ). The table keeps the name
//!   until (its clock when it *received* it) + D·(1+ρ). D is at most [`NAME_LEASE_MAX`](crate::limits::NAME_LEASE_MAX), a
//!   constant of the program: no configuration, message or record has to be right for what follows.
//! - So whatever an earlier tenure gave ends within that bound of its end, and a new tenure grants nothing before the bound
//!   has passed from its own beginning.
//!
//! Invariants of this room:
//! - at no instant two holds of one name are valid;
//! - tokens of one name rise: the term is in the high half, the count of grants in that term in the low half;
//! - a name that was taken back is given to nobody before its holder has let go of it or its lease has ended;
//! - nothing is granted outside a tenure;
//! - an ended hold never becomes valid again.

mod hold;
mod rules;
mod table;
#[cfg(test)]
mod tests;

pub use hold::Hold;
#[cfg(feature = "testing")]
pub use rules::NameRule;
pub use rules::NameRules;
pub use table::Table;
