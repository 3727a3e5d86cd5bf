//! What the replica shows: to its data layer, to the other end of a link, to people.

use crate::ids::{NodeId, Term, Token, VoterId};
use crate::limits::COPY_GREETS_WITHIN;
use crate::message::{OtherReport, Part, Refusal, Report, RoleName, Standing, Word};
use crate::time::{Millis, Moment};

use super::{Alone, Link, OfferIn, OfferOut, Replica, Right, Role};

/// What the replica is, for its data layer and its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Its highest term.
    pub term: Term,
    /// What its state is worth.
    pub standing: Standing,
    /// Whether it is sole.
    pub sole: bool,
    /// Its role.
    pub role: RoleView,
    /// The link to the peer.
    pub peer: Option<Link>,
    /// The link to the witness, and whether it is the recognised one.
    pub witness: Option<(Link, bool)>,
    /// The last refusal that it met, and whose it was.
    pub refused: Option<(NodeId, Refusal)>,
}

/// The role in a [`View`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoleView {
    /// Waits, follows or copies.
    Follower {
        /// The leader that was heard and its term.
        leader: Option<(VoterId, Term)>,
        /// The offer to join.
        offer: Option<OfferIn>,
        /// Whether it takes part in the leader's term.
        joined: bool,
    },
    /// Asks for votes.
    Candidate,
    /// Leads.
    Leader {
        /// The fencing token.
        token: Token,
        /// What it may acknowledge.
        right: Right,
        /// Until when it has the right to act: [`Moment::FOREVER`] when sole, `None` when it has none.
        acts_until: Option<Moment>,
        /// Whether an offer would be taken now.
        may_offer: bool,
        /// The offer that is out.
        offered: Option<OfferOut>,
        /// It hands over: the service has to stop, and then to say so.
        resigning: bool,
    },
}

impl View {
    /// The token, the right to acknowledge and the end of the right to act, of a leader.
    pub fn authority(&self) -> Option<(Token, Right, Option<Moment>)> {
        match self.role {
            RoleView::Leader { token, right, acts_until, .. } => Some((token, right, acts_until)),
            _ => None,
        }
    }
}

impl Replica {
    /// When the last of its leases ends, or ended.
    pub(super) fn lease_until(&self) -> Moment {
        self.lease.until().max(self.witness_lease.until())
    }

    /// Until when it has the right to act as leader.
    pub fn acts_until(&self, now: Moment) -> Option<Moment> {
        let right = self.ballot.right()?;
        if self.resigning {
            return None;
        }
        if right == Right::Solo {
            let alone = self.ballot.peer().is_none() && self.ballot.recognised_witness().is_none();
            let stops = alone && self.settings.alone == Alone::Stop;
            return (!stops).then_some(Moment::FOREVER);
        }
        let until = self.lease_until();
        (now < until).then_some(until)
    }

    /// What it is now.
    pub fn view(&self, now: Moment) -> View {
        let record = self.ballot.record();
        let role = match self.ballot.role() {
            Role::Follower { leader, offer } => RoleView::Follower {
                leader: *leader,
                offer: *offer,
                joined: leader.is_some_and(|(_, term)| record.holds == term && record.term == term),
            },
            Role::Candidate => RoleView::Candidate,
            Role::Leader { right, offer, .. } => RoleView::Leader {
                token: Token::of(record.term),
                right: *right,
                acts_until: self.acts_until(now),
                may_offer: self.may_offer(now).is_ok(),
                offered: *offer,
                resigning: self.resigning,
            },
        };
        View {
            term: record.term,
            standing: record.standing,
            sole: record.sole,
            role,
            peer: self.ballot.peer().copied(),
            witness: self.ballot.witness().map(|link| (*link, self.ballot.recognised_witness().is_some())),
            refused: self.refused,
        }
    }

    /// How it sees its cluster.
    pub fn report(&self, now: Moment) -> Report {
        let record = self.ballot.record();
        let acts = self.acts_until(now);
        let (role, leader) = match self.ballot.role() {
            Role::Follower { leader, .. } => (RoleName::Follower, leader.map(|(voter, _)| voter.node)),
            Role::Candidate => (RoleName::Candidate, None),
            Role::Leader { right, .. } => {
                let name = match right {
                    Right::Blocked => RoleName::Blocked,
                    Right::Paired => RoleName::Paired,
                    Right::Solo => RoleName::Solo,
                };
                (name, Some(record.node))
            }
        };
        let other = |link: &Link, part, silent_for| OtherReport {
            node: link.who.node,
            part,
            link: Some(link.id),
            incarnation: link.who.incarnation,
            silent_for,
        };
        let heard = Millis::ceil(now.since(self.peer_heard));
        Report {
            name: record.name,
            kind: record.kind,
            role,
            standing: record.standing,
            sole: record.sole,
            acts: acts.is_some(),
            lease_left: acts.filter(|end| *end != Moment::FOREVER).map(|end| Millis::ceil(end.since(now))),
            token: self.ballot.right().map(|_| Token::of(record.term)),
            leader,
            holds: record.holds,
            position: self.ballot.position(),
            promised: Word { term: record.term, to: record.voted_for },
            confirmed: Word::default(),
            adoption: record.adoption,
            others: [
                self.ballot.peer().map(|link| other(link, Part::Replica, Some(heard))),
                self.ballot.witness().map(|link| other(link, Part::Witness, None)),
            ],
            refused: self.refused.filter(|(node, refusal)| !self.is_over(now, *node, refusal)),
        }
    }

    /// Two machines with one state greet again and again. One that was taken for a copy, is linked and has not greeted
    /// since was none: its greeting was overtaken.
    fn is_over(&self, now: Moment, node: NodeId, refusal: &Refusal) -> bool {
        let linked = [self.ballot.peer(), self.ballot.witness()]
            .into_iter()
            .flatten()
            .any(|link| link.who.node == node);
        let quiet = now.since(self.not_greeted_at) > COPY_GREETS_WITHIN;
        matches!(refusal, Refusal::Copied { .. }) && linked && quiet
    }
}
