//! Beyond repair: the only one that held everything is gone, and an operator goes on without what it had. (§7)

use crate::ids::{Incarnation, Term, VoterId};
use crate::limits::RECOVERY_TERM_BITS;
use crate::memory::add_lives;
use crate::message::{ReplicaRecord, Standing};

/// Why there is nothing to recover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecoverable {
    /// It has never held anything of a cluster.
    #[error(
        "this replica is blank and holds nothing of a cluster. To make a new cluster of the data that is here, move its state \
         directory away and run `tiebreak init`"
    )]
    Blank,
    /// It was copying.
    #[error(
        "this replica was copying from its leader, and what it has may be neither the old data nor the new; restore a \
         backup, move the state directory away, and make a new cluster of it with `tiebreak init`"
    )]
    Resyncing,
    /// It holds everything.
    #[error(
        "this replica went on alone and holds everything: nothing is lost; start it, and it leads, in five seconds at most. If it is turned away as a copy, run `tiebreak replace` on the one that turns it away"
    )]
    Sole,
    /// There is no term above the one that it has.
    #[error(
        "its term is {0}, and there is none far enough above it; move the state directory away and make a new cluster with `tiebreak init`"
    )]
    NoTerm(Term),
}

/// The record with which a survivor goes on, alone, without what the lost replica acknowledged. Its term is far above
/// anything that was reached, so that it meets no term which the lost one made unseen; every other life of the peer that
/// it has heard of is given up for good.
///
/// # Errors
/// If there is nothing to recover, or nothing to recover from.
pub fn recovered(found: &ReplicaRecord) -> Result<ReplicaRecord, NotRecoverable> {
    match found.standing {
        Standing::Blank | Standing::Unvalidated => return Err(NotRecoverable::Blank),
        Standing::Resyncing(_) => return Err(NotRecoverable::Resyncing),
        Standing::Member if found.sole => return Err(NotRecoverable::Sole),
        Standing::Member if found.holds == Term::ZERO => return Err(NotRecoverable::Resyncing),
        Standing::Member => {}
    }
    let known = found.remembers.iter().flatten().map(|known| known.term);
    let highest = known.fold(found.term, Term::max);
    // Two steps of the upper bits: the lost one may just have passed the first.
    let term = (highest.0 >> RECOVERY_TERM_BITS)
        .checked_add(2)
        .and_then(|steps| steps.checked_mul(1 << RECOVERY_TERM_BITS))
        .ok_or(NotRecoverable::NoTerm(highest))?;
    let me = VoterId { node: found.node, incarnation: found.incarnation };
    let mut record =
        ReplicaRecord { term: Term(term), voted_for: Some(me), holds: Term(term), sole: true, ..*found };
    add_lives(&mut record.banned, &lost_lives(found));
    Ok(record)
}

/// Every life of the peer that this replica has heard of.
pub fn lost_lives(found: &ReplicaRecord) -> Vec<Incarnation> {
    let peer = found.remembers[0].map(|known| known.voter);
    let voted = found.voted_for.filter(|voter| voter.node != found.node);
    let mut lives = Vec::new();
    let newer = [voted, peer].into_iter().flatten().map(|voter| voter.incarnation);
    for life in found.met.into_iter().filter(|life| *life != Incarnation::NIL).chain(newer) {
        if !lives.contains(&life) {
            lives.push(life);
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Boot, Position};
    use crate::message::{Kind, Ratchet, Remembered};
    use crate::replica::Replica;

    fn survivor(term: u32) -> ReplicaRecord {
        let (node, name) = ("b".parse().expect("a name"), "orders".parse().expect("a name"));
        let lost = VoterId { node: "a".parse().expect("a name"), incarnation: Incarnation(0xa) };
        let said = Remembered {
            voter: lost,
            boot: Boot(3),
            term: Term(term + 4),
            took_part: Term(term),
            position: Position(7),
            ratchet: Ratchet::default(),
        };
        ReplicaRecord {
            standing: Standing::Member,
            term: Term(term),
            voted_for: Some(lost),
            holds: Term(term),
            remembers: [Some(said), None],
            ..Replica::blank(node, name, Kind::Replicated, Incarnation(0xb))
        }
    }

    #[test]
    fn a_survivor_goes_on_alone_far_above_every_term_that_was_reached_and_gives_the_lost_life_up() {
        let record = recovered(&survivor(5)).expect("there is something to recover");
        assert!(record.sole && record.holds == record.term);
        assert_eq!(record.term, Term(2 << 16));
        assert_eq!(record.banned[0], Incarnation(0xa));
        // The lost one may be a little further than anybody knows, over the edge of the lower bits.
        let record = recovered(&survivor(0xfff0)).expect("there is something to recover");
        assert_eq!(record.term, Term(2 << 16));
        let record = recovered(&survivor(0xfffe)).expect("there is something to recover");
        assert_eq!(record.term, Term(3 << 16));
        assert_eq!(recovered(&survivor(u32::MAX - 9)), Err(NotRecoverable::NoTerm(Term(u32::MAX - 5))));
    }

    #[test]
    fn the_life_that_held_everything_is_given_up_although_its_successor_was_met_first() {
        let mut found = survivor(5);
        // It led the last term that it took part in, so its own vote does not name the lost one; and the machine was set
        // up anew before the operator decided.
        found.voted_for = Some(VoterId { node: found.node, incarnation: found.incarnation });
        let settings = crate::replica::Settings::default();
        let now = crate::time::Moment(0);
        let (mut replica, _) =
            Replica::start(now, found, Position(7), settings, 1, crate::rules::Rules::KEPT);
        let voter = VoterId { node: "a".parse().expect("a name"), incarnation: Incarnation(0xaa) };
        let blank = Replica::blank(voter.node, found.name, Kind::Replicated, voter.incarnation);
        let (successor, _) = Replica::start(now, blank, Position(0), settings, 2, crate::rules::Rules::KEPT);
        let step = replica.handle(
            now,
            crate::replica::Input::Asked {
                link: crate::ids::LinkId(1),
                from: successor.ballot().sender(),
                request: crate::message::Request::Hello(
                    successor.ballot().hello(crate::message::Part::Replica),
                ),
            },
        );
        let found = step.record.expect("it remembers whom it met");
        assert_eq!(found.remembers[0].map(|known| known.voter), Some(voter));
        let banned = recovered(&found).expect("there is something to recover").banned;
        assert!(banned.contains(&Incarnation(0xa)), "{banned:?}");
    }

    #[test]
    fn nothing_is_recovered_where_nothing_was_lost_or_nothing_is_whole() {
        let sole = ReplicaRecord { sole: true, ..survivor(5) };
        assert_eq!(recovered(&sole), Err(NotRecoverable::Sole));
        let blank = ReplicaRecord { standing: Standing::Blank, ..survivor(5) };
        assert_eq!(recovered(&blank), Err(NotRecoverable::Blank));
        let copying = ReplicaRecord { standing: Standing::Resyncing(Incarnation(0xa)), ..survivor(5) };
        assert_eq!(recovered(&copying), Err(NotRecoverable::Resyncing));
    }
}
