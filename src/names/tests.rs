//! Each rule once, in words and figures.

use std::time::Duration;

use super::*;
use crate::ids::{Incarnation, LockName, Term, Token, VoterId};
use crate::limits::{NAME_LEASE_MAX, NAMES_MAX};
use crate::message::{NameRefusal, NameReply, NameRequest};
use crate::rate::{kept, relied_on};
use crate::time::{Millis, Moment};

const LEASE: Millis = Millis(2000);
const START: Moment = Moment(1_000_000_000_000);

fn at(after: Duration) -> Moment {
    START + after
}

fn voter(name: &str) -> VoterId {
    VoterId { node: name.parse().expect("a name"), incarnation: Incarnation(1) }
}

fn lock(name: &str) -> LockName {
    name.parse().expect("a name")
}

fn acquire(table: &mut Table, now: Moment, who: &str, name: &str, nonce: u64) -> NameReply {
    table.handle(now, voter(who), &NameRequest::Acquire { name: lock(name), lease: LEASE, nonce })
}

fn token(term: u32, grants: u32) -> Token {
    Token::granted(Term(term), grants)
}

/// The table of a sole leader of term 7, and a moment when it grants.
fn leading() -> (Table, Moment) {
    let mut table = Table::new(NameRules::KEPT);
    table.observe(START, Some((Term(7), Moment::FOREVER)));
    (table, at(kept(NAME_LEASE_MAX)))
}

#[test]
fn a_new_leader_grants_nothing_before_what_others_gave_has_ended() {
    let (mut table, open) = leading();
    let early = Moment(open.0 - 1);
    let reply = acquire(&mut table, early, "a", "x", 1);
    assert!(matches!(reply, NameReply::Refused(NameRefusal::HoldOff { left: Millis(1) })), "{reply:?}");
    assert_eq!(acquire(&mut table, open, "a", "x", 1), NameReply::Granted { token: token(7, 1) });
    assert_eq!(acquire(&mut table, open, "b", "y", 1), NameReply::Granted { token: token(7, 2) });
}

#[test]
fn a_name_is_given_to_one_and_again_when_it_was_given_back_or_has_ended() {
    let (mut table, now) = leading();
    acquire(&mut table, now, "a", "x", 1);
    assert!(matches!(
        acquire(&mut table, now, "b", "x", 1),
        NameReply::Refused(NameRefusal::Held { by, .. }) if by.as_str() == "a"
    ));
    assert_eq!(
        acquire(&mut table, now, "a", "x", 1),
        NameReply::Granted { token: token(7, 1) },
        "asked again"
    );
    assert!(matches!(acquire(&mut table, now, "a", "x", 2), NameReply::Refused(NameRefusal::Held { .. })));
    let renew = NameRequest::Renew { name: lock("x"), token: token(7, 1) };
    let later = now + Duration::from_secs(1);
    assert_eq!(table.handle(later, voter("a"), &renew), NameReply::Renewed { token: token(7, 1) });
    let ends = later + kept(LEASE.span());
    assert!(matches!(acquire(&mut table, Moment(ends.0 - 1), "b", "x", 3), NameReply::Refused(_)));
    assert_eq!(acquire(&mut table, ends, "b", "x", 3), NameReply::Granted { token: token(7, 2) });
    assert_eq!(table.handle(ends, voter("a"), &renew), NameReply::Refused(NameRefusal::Lost));
    let stale = NameRequest::Release { name: lock("x"), token: token(7, 1) };
    table.handle(ends, voter("a"), &stale);
    assert!(matches!(acquire(&mut table, ends, "a", "x", 4), NameReply::Refused(NameRefusal::Held { .. })));
    let release = NameRequest::Release { name: lock("x"), token: token(7, 2) };
    assert_eq!(table.handle(ends, voter("b"), &release), NameReply::Released { token: token(7, 2) });
    assert_eq!(acquire(&mut table, ends, "a", "x", 5), NameReply::Granted { token: token(7, 3) });
}

#[test]
fn what_is_taken_back_is_free_when_its_holder_has_let_go_or_it_has_ended() {
    let (mut table, now) = leading();
    acquire(&mut table, now, "a", "x", 1);
    let revoke = NameRequest::Revoke { name: lock("x") };
    assert!(matches!(table.handle(now, voter("b"), &revoke), NameReply::Revoked { left: Millis(2021), .. }));
    let renew = NameRequest::Renew { name: lock("x"), token: token(7, 1) };
    assert_eq!(table.handle(now, voter("a"), &renew), NameReply::Refused(NameRefusal::Revoked));
    assert!(matches!(acquire(&mut table, now, "b", "x", 2), NameReply::Refused(NameRefusal::Held { .. })));
    assert!(
        matches!(acquire(&mut table, now, "a", "x", 1), NameReply::Refused(NameRefusal::Held { .. })),
        "the attempt that has it does not get it anew"
    );
    table.handle(now, voter("a"), &NameRequest::Release { name: lock("x"), token: token(7, 1) });
    assert_eq!(acquire(&mut table, now, "b", "x", 2), NameReply::Granted { token: token(7, 2) });
    let nobodys = NameRequest::Revoke { name: lock("y") };
    assert_eq!(table.handle(now, voter("b"), &nobodys), NameReply::Refused(NameRefusal::Lost));
}

#[test]
fn another_term_without_a_break_keeps_the_names_and_raises_the_tokens() {
    let (mut table, now) = leading();
    acquire(&mut table, now, "a", "x", 1);
    table.observe(now, Some((Term(9), now + Duration::from_secs(5))));
    assert!(matches!(acquire(&mut table, now, "b", "x", 1), NameReply::Refused(NameRefusal::Held { .. })));
    assert_eq!(acquire(&mut table, now, "b", "y", 1), NameReply::Granted { token: token(9, 1) });
    let renew = NameRequest::Renew { name: lock("x"), token: token(7, 1) };
    assert_eq!(table.handle(now, voter("a"), &renew), NameReply::Renewed { token: token(7, 1) });
}

#[test]
fn a_right_that_lapsed_grants_nothing_and_comes_back_as_a_new_one_that_counts_on() {
    let mut table = Table::new(NameRules::KEPT);
    let ends = at(Duration::from_secs(9));
    table.observe(START, Some((Term(7), ends)));
    let open = at(kept(NAME_LEASE_MAX));
    assert_eq!(acquire(&mut table, open, "a", "x", 1), NameReply::Granted { token: token(7, 1) });
    assert_eq!(acquire(&mut table, ends, "a", "y", 1), NameReply::Refused(NameRefusal::NotLeader));
    // Nobody told it of the lapse.
    table.observe(ends, Some((Term(7), Moment::FOREVER)));
    assert!(matches!(
        acquire(&mut table, ends, "a", "y", 1),
        NameReply::Refused(NameRefusal::HoldOff { .. })
    ));
    let again = ends + kept(NAME_LEASE_MAX);
    assert_eq!(acquire(&mut table, again, "a", "x", 2), NameReply::Granted { token: token(7, 2) });
    table.observe(again, None);
    assert_eq!(acquire(&mut table, again, "a", "z", 1), NameReply::Refused(NameRefusal::NotLeader));
    assert!(table.is_empty());
}

#[test]
fn the_table_is_bounded_and_forgets_what_has_ended() {
    let (mut table, now) = leading();
    for number in 0..NAMES_MAX {
        let reply = acquire(&mut table, now, "a", &format!("n{number}"), 1);
        assert!(matches!(reply, NameReply::Granted { .. }));
    }
    assert_eq!(acquire(&mut table, now, "a", "one-more", 1), NameReply::Refused(NameRefusal::Full));
    assert_eq!(table.len(), NAMES_MAX);
    let later = now + kept(LEASE.span());
    assert!(matches!(acquire(&mut table, later, "a", "one-more", 1), NameReply::Granted { .. }));
    assert_eq!(table.len(), 1);
}

#[test]
fn a_lease_out_of_bounds_is_refused() {
    let (mut table, now) = leading();
    for lease in [Millis(199), Millis(2001)] {
        let request = NameRequest::Acquire { name: lock("x"), lease, nonce: 1 };
        assert_eq!(table.handle(now, voter("a"), &request), NameReply::Refused(NameRefusal::BadLease));
    }
}

#[test]
fn a_hold_counts_from_when_it_was_asked_for_and_stays_ended() {
    let lease = LEASE.span();
    let ends = START + relied_on(lease);
    let hold = |now| Hold::granted(START, now, token(7, 1), lease, NameRules::KEPT);
    assert_eq!(hold(ends), None, "the answer came too late");
    let mut held = hold(at(Duration::from_millis(500))).expect("in time");
    assert_eq!(held.until(), ends);
    let asked = at(Duration::from_secs(1));
    assert!(held.renewed(asked, at(Duration::from_millis(1900))));
    assert_eq!(held.until(), asked + relied_on(lease));
    assert!(held.renewed(START, at(Duration::from_millis(1950))), "a late answer shortens nothing");
    assert_eq!(held.until(), asked + relied_on(lease));
    let over = held.until();
    assert!(!held.renewed(over, over) && !held.is_valid(over));
    let mut given_back = hold(START).expect("in time");
    given_back.end(START);
    assert!(!given_back.renewed(START, START));
}
