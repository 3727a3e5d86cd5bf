//! The leader's side of named leases.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{LockName, Term, Token, VoterId};
use crate::limits::{NAME_LEASE_MAX, NAME_LEASE_MIN, NAMES_MAX};
use crate::message::{NameRefusal, NameReply, NameRequest};
use crate::rate::kept;
use crate::time::{Millis, Moment};

use super::rules::{NameRule, NameRules};

/// One stretch of time with the right to act.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Tenure {
    term: Term,
    /// The end of the right to act, as far as it is known now.
    until: Moment,
    /// Nothing is granted before this.
    grants_from: Moment,
}

/// A name that was granted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Entry {
    token: Token,
    owner: VoterId,
    /// Of the request: the same one, asked again, is answered in the same way.
    nonce: u64,
    lease: Duration,
    until: Moment,
    /// It is not renewed any more.
    revoked: bool,
}

/// Who holds what.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Table {
    tenure: Option<Tenure>,
    /// The highest term of any tenure of this process.
    term: Term,
    /// Grants in that term. It outlives the tenure: a leader may lose the right to act, and have it again in one term.
    grants: u32,
    entries: BTreeMap<LockName, Entry>,
    rules: NameRules,
}

impl Table {
    /// Of a node that has just started.
    pub fn new(rules: NameRules) -> Table {
        Table { tenure: None, term: Term::ZERO, grants: 0, entries: BTreeMap::new(), rules }
    }

    /// Whether it answers: whether this node has the right to act.
    pub fn leads(&self, now: Moment) -> bool {
        self.tenure.is_some_and(|tenure| now < tenure.until || !self.rules.keep(NameRule::GrantsInTenureOnly))
    }

    /// How many names are kept.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no name is kept.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What the votes say: the term of this leader and the end of its right to act ([`Moment::FOREVER`] when it is
    /// sole), or `None` when it has no such right. To be told after each change, when it is durable, and before each
    /// request.
    pub fn observe(&mut self, now: Moment, right: Option<(Term, Moment)>) {
        let right = right.filter(|(_, until)| now < *until);
        let runs = self.tenure.is_some_and(|tenure| now < tenure.until);
        let stays = match right {
            None => !self.rules.keep(NameRule::GrantsInTenureOnly),
            Some(_) => runs || !self.rules.keep(NameRule::BreakEndsTenure),
        };
        if !stays {
            self.tenure = None;
            self.entries.clear();
        }
        let Some((term, until)) = right else { return };
        assert!(term >= self.term, "terms of one process rise");
        if term > self.term {
            (self.term, self.grants) = (term, 0);
        }
        match &mut self.tenure {
            Some(tenure) => (tenure.term, tenure.until) = (term, until),
            none => {
                let waits =
                    if self.rules.keep(NameRule::HoldOff) { kept(NAME_LEASE_MAX) } else { Duration::ZERO };
                *none = Some(Tenure { term, until, grants_from: now + waits });
            }
        }
    }

    /// Answers `from`.
    pub fn handle(&mut self, now: Moment, from: VoterId, request: &NameRequest) -> NameReply {
        match self.answer(now, from, request) {
            Ok(reply) => reply,
            Err(refusal) => NameReply::Refused(refusal),
        }
    }

    fn answer(
        &mut self,
        now: Moment,
        from: VoterId,
        request: &NameRequest,
    ) -> Result<NameReply, NameRefusal> {
        let tenure = self.tenure.filter(|_| self.leads(now)).ok_or(NameRefusal::NotLeader)?;
        match *request {
            NameRequest::Acquire { name, lease, nonce } => {
                if now < tenure.grants_from {
                    return Err(NameRefusal::HoldOff { left: Millis::ceil(tenure.grants_from.since(now)) });
                }
                if !(NAME_LEASE_MIN..=NAME_LEASE_MAX).contains(&lease.span()) {
                    return Err(NameRefusal::BadLease);
                }
                self.acquire(now, from, name, lease.span(), nonce)
            }
            NameRequest::Renew { name, token } => {
                let rules = self.rules;
                let entry = self.held(now, &name, token).ok_or(NameRefusal::Lost)?;
                if entry.revoked {
                    return Err(NameRefusal::Revoked);
                }
                entry.until = entry.until.max(now + longer(entry.lease, rules));
                Ok(NameReply::Renewed { token })
            }
            NameRequest::Release { name, token } => {
                if self.held(now, &name, token).is_some() {
                    self.entries.remove(&name);
                }
                Ok(NameReply::Released { token })
            }
            NameRequest::Revoke { name } => {
                let Some(entry) = self.entries.get_mut(&name).filter(|entry| now < entry.until) else {
                    return Err(NameRefusal::Lost);
                };
                entry.revoked = true;
                let reply = NameReply::Revoked {
                    from: entry.owner.node,
                    token: entry.token,
                    left: Millis::ceil(entry.until.since(now)),
                };
                if !self.rules.keep(NameRule::RevokedIsKept) {
                    self.entries.remove(&name);
                }
                Ok(reply)
            }
        }
    }

    fn held(&mut self, now: Moment, name: &LockName, token: Token) -> Option<&mut Entry> {
        let any_token = !self.rules.keep(NameRule::TokenMatches);
        self.entries.get_mut(name).filter(|entry| now < entry.until && (entry.token == token || any_token))
    }

    fn acquire(
        &mut self,
        now: Moment,
        owner: VoterId,
        name: LockName,
        lease: Duration,
        nonce: u64,
    ) -> Result<NameReply, NameRefusal> {
        let until = now + longer(lease, self.rules);
        if let Some(entry) = self.entries.get_mut(&name).filter(|entry| now < entry.until) {
            if entry.owner == owner && entry.nonce == nonce && !entry.revoked {
                // Asked again: the first answer was lost, or comes later.
                entry.until = entry.until.max(until);
                return Ok(NameReply::Granted { token: entry.token });
            }
            if self.rules.keep(NameRule::OneHolder) {
                return Err(NameRefusal::Held {
                    by: entry.owner.node,
                    token: entry.token,
                    left: Millis::ceil(entry.until.since(now)),
                });
            }
        }
        if self.entries.len() >= NAMES_MAX && !self.entries.contains_key(&name) {
            self.entries.retain(|_, entry| now < entry.until);
            if self.entries.len() >= NAMES_MAX {
                return Err(NameRefusal::Full);
            }
        }
        let grants = self.grants.checked_add(1).ok_or(NameRefusal::Spent)?;
        if self.rules.keep(NameRule::GrantsAreCounted) {
            self.grants = grants;
        }
        let token = Token::granted(self.term, grants);
        self.entries.insert(name, Entry { token, owner, nonce, lease, until, revoked: false });
        Ok(NameReply::Granted { token })
    }
}

fn longer(lease: Duration, rules: NameRules) -> Duration {
    if rules.keep(NameRule::RateErrorCounts) { kept(lease) } else { lease }
}
