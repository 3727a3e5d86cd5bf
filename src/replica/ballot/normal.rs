//! For the exhaustive search alone: one state for all those that differ only in what cannot matter to it.

use crate::ids::{Incarnation, LinkId, Term};
use crate::message::LIVES_MET_MAX;

use super::{Ballot, Role};

impl Ballot {
    /// The same state, with the live links to peer and witness numbered by these; without notes about links that are
    /// over, which never match again; and without what others have said of their past and of their terms. `nonce` is
    /// what names a new link to the witness.
    ///
    /// Numbers of links are only ever compared with one another. What is remembered serves the nets of §7, which
    /// refuse links or find a state lost; and terms of others are hints for choosing a term. The search gives each
    /// hint that there can be when it matters, and searches states that lost nothing: there the nets have nothing to
    /// find.
    #[must_use]
    pub fn plain(mut self, [to_peer, to_witness]: [LinkId; 2], nonce: Option<u64>) -> Ballot {
        self.record.remembers = [None; 2];
        self.record.met = [Incarnation::NIL; LIVES_MET_MAX];
        self.greeting = None;
        if let Some(witness) = &mut self.witness {
            (witness.id, witness.term) = (to_witness, Term::ZERO);
            (witness.number, witness.nonce) = (0, nonce.unwrap_or(witness.nonce));
        }
        let Some(peer) = &mut self.peer else { return self };
        let live = std::mem::replace(&mut peer.id, to_peer);
        (peer.term, peer.number, peer.nonce) = (Term::ZERO, 0, 0);
        match &mut self.role {
            Role::Leader { offer: Some(offer), .. } if offer.link == live => offer.link = to_peer,
            Role::Follower { offer: Some(offer), .. } if offer.link == live => offer.link = to_peer,
            _ => {}
        }
        self.stated = self
            .stated
            .filter(|(link, ..)| *link == live)
            .map(|(_, term, position)| (to_peer, term, position));
        self
    }
}
