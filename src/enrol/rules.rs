//! What a witness does with a request, as a function of what it has kept.
//!
//! Invariants: a code counts for one key only; nothing but a code gives a key a seat; a key that has no seat in a
//! cluster changes nothing of it, and is told nothing of it.

use serde::{Deserialize, Serialize};

use crate::edge::identity::Fingerprint;
use crate::ids::{ClusterName, NodeId};
use crate::limits::{ADDRESSES_PER_NODE_MAX, CODE_SECONDS};

use super::code::hash;
use super::message::{Denial, Request, Response};

/// A code, as the witness knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ticket {
    /// Hash of what will be shown.
    pub hash: [u8; 32],
    /// When it was made, in seconds since 1970 of the witness's wall clock.
    pub made: u64,
    /// The key that has used it.
    pub by: Option<Fingerprint>,
}

impl Ticket {
    /// One that counts from now on.
    pub fn new(hash: [u8; 32], now: u64) -> Ticket {
        Ticket { hash, made: now, by: None }
    }

    /// Of a secret that the witness itself has drawn.
    pub fn of(shown: &[u8; 32], now: u64) -> Ticket {
        Ticket::new(hash(shown), now)
    }

    /// Whether this key may use it now. A clock that was set back ends it, too.
    fn check(&self, shown: &[u8; 32], key: Fingerprint, now: u64) -> Result<(), Denial> {
        if hash(shown) != self.hash {
            return Err(Denial::Wrong);
        }
        match self.by {
            Some(by) if by == key => Ok(()),
            Some(_) => Err(Denial::Used),
            None if now < self.made || now > self.made + CODE_SECONDS => Err(Denial::Expired),
            None => Ok(()),
        }
    }
}

/// A replica's place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seat {
    /// Its name.
    pub node: NodeId,
    /// Its key, once it has joined.
    pub key: Option<Fingerprint>,
    /// The key that will take its place.
    pub next: Option<Fingerprint>,
    /// Where it is, for the other one.
    pub at: Vec<String>,
    /// Signed for the other one.
    pub seal: [u8; 32],
}

impl Seat {
    fn empty(node: NodeId) -> Seat {
        Seat { node, key: None, next: None, at: Vec::new(), seal: [0; 32] }
    }
}

/// What is kept of one cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registration {
    /// Its name.
    pub cluster: ClusterName,
    /// The code that the witness printed.
    pub invitation: Option<Ticket>,
    /// The code that the first replica printed.
    pub second: Option<Ticket>,
    /// The replicas: none, or both, of which the second may have no key yet.
    pub seats: Vec<Seat>,
}

impl Registration {
    /// Of a cluster that nobody has joined.
    pub fn invited(cluster: ClusterName, ticket: Ticket) -> Registration {
        Registration { cluster, invitation: Some(ticket), second: None, seats: Vec::new() }
    }

    /// A seat has this key alone. A code that an earlier one has used is this one's, and lets the earlier one in no more.
    fn keep_only(&mut self, seat: usize, key: Fingerprint) {
        let seat = &mut self.seats[seat];
        let before = [seat.key.take(), seat.next.take()];
        seat.key = Some(key);
        for ticket in [&mut self.invitation, &mut self.second].into_iter().flatten() {
            if ticket.by.is_some() && before.contains(&ticket.by) {
                ticket.by = Some(key);
            }
        }
    }

    fn seat_of(&self, key: Fingerprint) -> Option<usize> {
        self.seats.iter().position(|seat| seat.key == Some(key) || seat.next == Some(key))
    }
}

/// What becomes of a registration, and the answer. `taken` says whether a key has a place elsewhere on this witness; `now`
/// is the wall clock in seconds. When the registration has changed it has to be durable before the answer is given.
pub fn decide(
    registration: &mut Registration,
    request: &Request,
    key: Fingerprint,
    now: u64,
    taken: impl Fn(Fingerprint) -> bool,
) -> Response {
    let mut next = registration.clone();
    match change(&mut next, request, key, now, taken) {
        Ok(response) => {
            *registration = next;
            response
        }
        Err(denial) => Response::Denied(denial),
    }
}

fn change(
    of: &mut Registration,
    request: &Request,
    key: Fingerprint,
    now: u64,
    taken: impl Fn(Fingerprint) -> bool,
) -> Result<Response, Denial> {
    if request.cluster() != of.cluster {
        return Err(Denial::Wrong);
    }
    let me = of.seat_of(key);
    match request {
        Request::First { shown, node, second, second_hash, second_key, .. } => {
            let ticket = of.invitation.as_mut().ok_or(Denial::Wrong)?;
            let of_pair = me.is_some() && hash(shown) == ticket.hash;
            if !of_pair {
                ticket.check(shown, key, now)?;
            }
            if node == second {
                return Err(Denial::Name);
            }
            if let Some(me) = me {
                // Again, after an interruption, or the other one of a pair.
                return if of.seats[me].node == *node { Ok(Response::Done) } else { Err(Denial::Name) };
            }
            // Also if this key once had a place, and another one has it now.
            if !of.seats.is_empty() {
                return Err(Denial::Used);
            }
            if taken(key) || second_key.is_some_and(|other| taken(other) || other == key) {
                return Err(Denial::KeyInUse);
            }
            ticket.by = Some(key);
            of.second = second_key.is_none().then(|| Ticket::new(*second_hash, now));
            let first = Seat { key: Some(key), ..Seat::empty(*node) };
            of.seats = vec![first, Seat { key: *second_key, ..Seat::empty(*second) }];
            Ok(Response::Done)
        }
        Request::Second { shown, node, at, seal, .. } => {
            let ticket = of.second.as_mut().ok_or(Denial::Wrong)?;
            ticket.check(shown, key, now)?;
            let [first, second] = of.seats.as_mut_slice() else { return Err(Denial::Wrong) };
            if second.node != *node {
                return Err(Denial::Name);
            }
            if first.key == Some(key) || (second.key != Some(key) && taken(key)) {
                return Err(Denial::KeyInUse);
            }
            if second.key.is_some_and(|held| held != key) {
                return Err(Denial::Used);
            }
            if at.len() > ADDRESSES_PER_NODE_MAX {
                return Err(Denial::Unknown);
            }
            ticket.by = Some(key);
            *second = Seat { node: *node, key: Some(key), next: second.next, at: at.clone(), seal: *seal };
            Ok(Response::Done)
        }
        Request::Other { .. } => {
            let me = me.ok_or(Denial::Wrong)?;
            let other = of.seats.get(1 - me).ok_or(Denial::Wrong)?;
            Ok(match other.key {
                None => Response::NotYet,
                Some(key) => {
                    Response::Other { node: other.node, key, at: other.at.clone(), seal: other.seal }
                }
            })
        }
        Request::Again { second, second_hash, .. } => {
            let me = me.ok_or(Denial::Wrong)?;
            if of.seats[1 - me].key.is_some() {
                return Err(Denial::Used);
            }
            if of.seats[me].node == *second {
                return Err(Denial::Name);
            }
            of.seats = vec![of.seats[me].clone(), Seat::empty(*second)];
            of.second = Some(Ticket::new(*second_hash, now));
            Ok(Response::Done)
        }
        Request::NextKey { next, .. } => {
            let me = me.ok_or(Denial::Wrong)?;
            let seat = &of.seats[me];
            if seat.key != Some(*next) && seat.next != Some(*next) {
                if taken(*next) {
                    return Err(Denial::KeyInUse);
                }
                // Whoever speaks with the later one of two keys has done with the earlier one.
                of.keep_only(me, key);
                of.seats[me].next = Some(*next);
            }
            Ok(Response::Done)
        }
        Request::OnlyKey { .. } => {
            let me = me.ok_or(Denial::Wrong)?;
            of.keep_only(me, key);
            Ok(Response::Done)
        }
        Request::Leave { .. } => {
            let me = me.ok_or(Denial::Wrong)?;
            of.seats[me].key = None;
            of.seats[me].next = None;
            // A code that this key has used lets it in no more.
            of.second = None;
            of.invitation = None;
            if of.seats.iter().all(|seat| seat.key.is_none()) {
                of.seats.clear();
            }
            Ok(Response::Done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enrol::Secret;

    const NOW: u64 = 1_000_000;
    const A: Fingerprint = Fingerprint([1; 32]);
    const B: Fingerprint = Fingerprint([2; 32]);
    const EVE: Fingerprint = Fingerprint([9; 32]);

    fn name(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    fn orders() -> ClusterName {
        "orders".parse().unwrap()
    }

    fn invited(secret: &Secret) -> Registration {
        Registration::invited(orders(), Ticket::of(&secret.shown(), NOW))
    }

    fn first(secret: &Secret, second: &Secret) -> Request {
        Request::First {
            cluster: orders(),
            shown: secret.shown(),
            node: name("a"),
            second: name("b"),
            second_hash: hash(&second.shown()),
            second_key: None,
        }
    }

    fn second(secret: &Secret) -> Request {
        let (node, at, seal) = (name("b"), vec!["b:1".to_owned()], [5; 32]);
        Request::Second { cluster: orders(), shown: secret.shown(), node, at, seal }
    }

    fn ask(of: &mut Registration, request: &Request, key: Fingerprint, now: u64) -> Response {
        decide(of, request, key, now, |_| false)
    }

    #[test]
    fn wrong_used_and_expired_codes_are_told_apart_and_change_nothing() {
        let (one, two) = (Secret([1; 16]), Secret([2; 16]));
        let mut of = invited(&one);
        let before = of.clone();
        let denied =
            |of: &mut Registration, secret: &Secret, key, now| ask(of, &first(secret, &two), key, now);
        assert_eq!(denied(&mut of, &two, EVE, NOW), Response::Denied(Denial::Wrong));
        assert_eq!(denied(&mut of, &one, A, NOW + CODE_SECONDS + 1), Response::Denied(Denial::Expired));
        assert_eq!(denied(&mut of, &one, A, NOW - 1), Response::Denied(Denial::Expired));
        assert_eq!(of, before);
        assert_eq!(denied(&mut of, &one, A, NOW), Response::Done);
        let taken = of.clone();
        // The same key again, however late; another one never.
        assert_eq!(denied(&mut of, &one, A, NOW + 10 * CODE_SECONDS), Response::Done);
        assert_eq!(denied(&mut of, &one, EVE, NOW), Response::Denied(Denial::Used));
        assert_eq!(of, taken);
    }

    #[test]
    fn a_stranger_learns_and_changes_nothing() {
        let (one, two) = (Secret([1; 16]), Secret([2; 16]));
        let mut of = invited(&one);
        assert_eq!(ask(&mut of, &first(&one, &two), A, NOW), Response::Done);
        assert_eq!(ask(&mut of, &second(&two), B, NOW), Response::Done);
        let before = of.clone();
        let cluster = orders();
        let again = Request::Again { cluster, second: name("c"), second_hash: [0; 32] };
        for request in [Request::Other { cluster }, Request::Leave { cluster }, again] {
            assert_eq!(ask(&mut of, &request, EVE, NOW), Response::Denied(Denial::Wrong));
        }
        assert_eq!(ask(&mut of, &second(&two), EVE, NOW), Response::Denied(Denial::Used));
        assert_eq!(ask(&mut of, &second(&one), EVE, NOW), Response::Denied(Denial::Wrong));
        assert_eq!(of, before);
    }

    #[test]
    fn a_key_has_one_seat() {
        let (one, two) = (Secret([1; 16]), Secret([2; 16]));
        let mut of = invited(&one);
        let used = decide(&mut of, &first(&one, &two), A, NOW, |key| key == A);
        assert_eq!(used, Response::Denied(Denial::KeyInUse));
        assert_eq!(ask(&mut of, &first(&one, &two), A, NOW), Response::Done);
        assert_eq!(ask(&mut of, &second(&two), A, NOW), Response::Denied(Denial::KeyInUse));
    }

    #[test]
    fn a_key_is_followed_by_another_one_and_both_speak_until_the_old_one_is_dropped() {
        let (one, two) = (Secret([1; 16]), Secret([2; 16]));
        let mut of = invited(&one);
        ask(&mut of, &first(&one, &two), A, NOW);
        ask(&mut of, &second(&two), B, NOW);
        let cluster = orders();
        let next = Request::NextKey { cluster, next: EVE };
        assert_eq!(decide(&mut of, &next, A, NOW, |_| true), Response::Denied(Denial::KeyInUse));
        assert_eq!(ask(&mut of, &next, A, NOW), Response::Done);
        assert_eq!(of.cluster_config().unwrap().replicas[0].keys, vec![A, EVE]);
        assert_eq!(ask(&mut of, &Request::OnlyKey { cluster }, EVE, NOW), Response::Done);
        assert_eq!(of.cluster_config().unwrap().replicas[0].keys, vec![EVE]);
        assert_eq!(ask(&mut of, &next, A, NOW), Response::Denied(Denial::Wrong));
        // The code that it has joined with does not bring it back, and puts nobody else out.
        let kept = of.clone();
        assert_eq!(ask(&mut of, &first(&one, &two), A, NOW), Response::Denied(Denial::Used));
        assert_eq!(ask(&mut of, &Request::NextKey { cluster, next: A }, B, NOW), Response::Done);
        assert_eq!(ask(&mut of, &Request::OnlyKey { cluster }, A, NOW), Response::Done);
        assert_eq!(ask(&mut of, &second(&two), B, NOW), Response::Denied(Denial::Used));
        assert_eq!(of.cluster_config().unwrap().replicas[1].keys, vec![A]);
        assert_eq!(of.seats[0], kept.seats[0]);
    }

    #[test]
    fn a_key_that_is_followed_before_it_was_dropped_gives_its_place_to_the_one_in_use() {
        let (one, two) = (Secret([1; 16]), Secret([2; 16]));
        let mut of = invited(&one);
        ask(&mut of, &first(&one, &two), A, NOW);
        let cluster = orders();
        ask(&mut of, &Request::NextKey { cluster, next: EVE }, A, NOW);
        assert_eq!(ask(&mut of, &Request::NextKey { cluster, next: B }, EVE, NOW), Response::Done);
        assert_eq!((of.seats[0].key, of.seats[0].next), (Some(EVE), Some(B)));
    }

    #[test]
    fn who_leaves_is_out_and_another_one_may_come() {
        let (one, two, three) = (Secret([1; 16]), Secret([2; 16]), Secret([3; 16]));
        let mut of = invited(&one);
        ask(&mut of, &first(&one, &two), A, NOW);
        ask(&mut of, &second(&two), B, NOW);
        let cluster = orders();
        let again = Request::Again { cluster, second: name("b"), second_hash: hash(&three.shown()) };
        assert_eq!(ask(&mut of, &again, A, NOW), Response::Denied(Denial::Used));
        assert_eq!(ask(&mut of, &Request::Leave { cluster }, B, NOW), Response::Done);
        assert_eq!(ask(&mut of, &second(&two), B, NOW), Response::Denied(Denial::Wrong));
        assert_eq!(ask(&mut of, &Request::Other { cluster }, A, NOW), Response::NotYet);
        assert_eq!(ask(&mut of, &again, A, NOW), Response::Done);
        assert_eq!(ask(&mut of, &second(&three), EVE, NOW), Response::Done);
    }
}
