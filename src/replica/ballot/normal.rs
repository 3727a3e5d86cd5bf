//! For the exhaustive search alone: one number for the live link, so that two histories with as many links as you
//! like lead to equal states.

use crate::ids::LinkId;

use super::{Ballot, Role};

impl Ballot {
    /// The same state, with the live link to the peer numbered `id` and without what was noted about links that are
    /// over. The number of a link is only ever compared with another one's, and a link that is over does not come
    /// back: so nothing that this state can do is changed.
    #[must_use]
    pub fn renumbered(mut self, id: LinkId) -> Ballot {
        let Some(peer) = &mut self.peer else { return self };
        let live = std::mem::replace(&mut peer.id, id);
        match &mut self.role {
            Role::Leader { offer: Some(offer), .. } if offer.link == live => offer.link = id,
            Role::Follower { offer: Some(offer), .. } if offer.link == live => offer.link = id,
            _ => {}
        }
        self.stated =
            self.stated.filter(|(link, ..)| *link == live).map(|(_, term, position)| (id, term, position));
        self
    }
}
