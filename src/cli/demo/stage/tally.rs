//! What was seen: who led, what was acknowledged, what the resource admitted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cli::demo::messages::{Status, Touch, Touched};
use crate::edge::clock::Clock;
use crate::ids::{LinkId, Term, Token};
use crate::time::Moment;

use super::nodes::WITNESS;

/// An acknowledgement that a client got.
#[derive(Clone, Copy)]
pub(super) struct Acknowledgement {
    pub(super) id: u64,
    pub(super) at: Moment,
    pub(super) term: Term,
}

/// A write to the resource that it refused.
#[derive(Clone)]
pub(super) struct RefusedTouch {
    pub(super) by: String,
    pub(super) offered: Token,
    pub(super) highest: Token,
}

#[derive(Default)]
pub(super) struct Seen {
    /// The last word of each replica that runs.
    pub(super) status: BTreeMap<&'static str, Status>,
    /// What runs.
    pub(super) up: BTreeSet<&'static str>,
    pub(super) paused: BTreeSet<&'static str>,
    /// Each replica's link to a witness that has died since; it takes a while to notice.
    dead_links: BTreeMap<&'static str, LinkId>,
    /// Who led in each term: by its own word, or because it acknowledged.
    pub(super) leaders: BTreeMap<Term, BTreeSet<String>>,
    /// When each leader first had a lease in each term.
    pub(super) leases: Vec<(Moment, Term)>,
    pub(super) acknowledged: Vec<Acknowledgement>,
    /// The highest token that wrote to the resource.
    pub(super) highest_token: Token,
    pub(super) refused_touches: Vec<RefusedTouch>,
}

impl Seen {
    /// The one that leads now, with a lease.
    pub(super) fn leader(&self) -> Option<(&'static str, &Status)> {
        let leads = |(name, status): &(&&'static str, &Status)| {
            status.leads && status.lease && !self.paused.contains(**name)
        };
        self.status.iter().filter(leads).max_by_key(|(_, status)| status.term).map(|(name, s)| (*name, s))
    }

    /// Whether this replica has a link to the witness that runs now.
    pub(super) fn sees_witness(&self, name: &str) -> bool {
        let link = self.status.get(name).and_then(|status| status.witness);
        link.is_some() && link.as_ref() != self.dead_links.get(name)
    }

    /// The highest term in which something was acknowledged or led.
    pub(super) fn term(&self) -> Term {
        self.leaders.keys().next_back().copied().unwrap_or_default()
    }

    pub(super) fn first_lease(&self, above: Term) -> Option<Moment> {
        self.leases.iter().find(|(_, term)| *term > above).map(|(at, _)| *at)
    }

    pub(super) fn first_acknowledgement(&self, above: Term) -> Option<Moment> {
        self.acknowledged.iter().find(|ack| ack.term > above).map(|ack| ack.at)
    }

    pub(super) fn acknowledged_since(&self, since: Moment) -> usize {
        self.acknowledged.iter().rev().take_while(|ack| ack.at >= since).count()
    }

    /// The longest time without an acknowledgement that was under way at `since` or began later.
    pub(super) fn longest_pause(&self, since: Moment) -> Duration {
        let first = self.acknowledged.partition_point(|ack| ack.at < since).saturating_sub(1);
        let times = self.acknowledged[first..].iter().map(|ack| ack.at);
        times.clone().zip(times.skip(1)).map(|(one, next)| next.since(one)).max().unwrap_or_default()
    }
}

/// Shared by all who see something.
#[derive(Clone, Default)]
pub(super) struct Tally(Arc<Mutex<Seen>>);

impl Tally {
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn started(&self, name: &'static str) {
        self.seen().up.insert(name);
    }

    pub(super) fn ended(&self, name: &'static str) {
        let mut seen = self.seen();
        seen.up.remove(name);
        seen.paused.remove(name);
        seen.status.remove(name);
        // Links are numbered anew by each run of a replica.
        seen.dead_links.remove(name);
        if name == WITNESS {
            seen.dead_links =
                seen.status.iter().filter_map(|(name, status)| Some((*name, status.witness?))).collect();
        }
    }

    pub(super) fn told(&self, name: &'static str, status: Status) {
        let mut seen = self.seen();
        if status.leads {
            seen.leaders.entry(status.term).or_default().insert(name.into());
            if status.lease && !seen.leases.iter().any(|(_, term)| *term == status.term) {
                seen.leases.push((Clock.now(), status.term));
            }
        }
        if seen.up.contains(name) {
            seen.status.insert(name, status);
        }
    }

    pub(super) fn acknowledged(&self, id: u64, term: Term, by: &str) {
        let mut seen = self.seen();
        seen.leaders.entry(term).or_default().insert(by.into());
        seen.acknowledged.push(Acknowledgement { id, at: Clock.now(), term });
    }

    pub(super) fn touched(&self, touch: &Touch, answer: Touched) {
        let mut seen = self.seen();
        match answer {
            Touched::Written { .. } => seen.highest_token = seen.highest_token.max(touch.token),
            Touched::Refused { offered, highest } => {
                seen.refused_touches.push(RefusedTouch { by: touch.by.clone(), offered, highest });
            }
        }
    }
}
