//! After the storm everything works: within a bounded time there has to be a leader that acts and acknowledges, the
//! pair has to come together, and then nothing may change any more (invariant 7). Where nobody may lead, and only an
//! operator could help, that is worked out from what lies on the disks.

use tiebreak::message::{Kind, ReplicaRecord, Standing, WitnessRecord};
use tiebreak::testing::Right;

use crate::world::{A, B, MS, V, W, World};

/// What the disks allow to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Demand {
    /// An operator has to decide.
    Nothing,
    /// A leader that acts and acknowledges.
    Leader,
    /// And a pair.
    Pair,
}

/// Mends everything and demands what can be demanded. Whether there was anything.
pub(crate) fn heal(world: &mut World, lease: u64) -> bool {
    world.heading("healed");
    // What was sent on the slowest way may still arrive, and twice.
    let stragglers = world.slowest * 4;
    mend(world);
    let demand = demand(world);
    if demand == Demand::Nothing {
        world.run_for(lease * 10);
        return false;
    }
    world.plan.write_per_mille = 400;
    let before = world.oracle.acknowledged.len();
    let bound = lease * 40 + stragglers;
    let served = world.run_while(bound, |w| {
        w.serves().is_none() || (w.plan.kind == Kind::Replicated && w.oracle.acknowledged.len() == before)
    });
    if !served {
        world.fail(Err("7: nobody serves within 40 leases after the last fault".into()));
        return true;
    }
    if demand == Demand::Leader {
        return true;
    }
    // A link that flapped makes a sole leader wait for up to 32 leases.
    let paired = |w: &World| [A, B].iter().any(|node| w.right(*node) == Some(Right::Paired));
    if !world.run_while(lease * 60 + stragglers, |w| !paired(w)) {
        world.fail(Err("7: the replicas are not paired 60 leases after the last fault".into()));
        return true;
    }
    // From here on nothing may change.
    world.run_for(lease * 3 + stragglers);
    let changes = world.oracle.changes;
    world.run_for(lease * 10);
    if world.oracle.changes != changes {
        world.fail(Err("7: a healthy leader was deposed".into()));
    }
    let served = world.run_while(lease, |w| w.serves().is_none());
    if !served {
        world.fail(Err("7: a healthy leader serves no more".into()));
    }
    nothing_is_lost(world);
    true
}

/// Clients stop, everything settles, and then both replicas have everything that was ever acknowledged.
fn nothing_is_lost(world: &mut World) {
    world.plan.write_per_mille = 0;
    let lease = u64::try_from(world.plan.settings.lease.as_nanos()).expect("leases are short");
    let all_there = |w: &World| {
        let all = w.oracle.acknowledged.len();
        [A, B].iter().all(|node| w.nodes[*node].data.durable >= all)
    };
    if !world.run_while(lease * 5, |w| !all_there(w)) {
        world.fail(Err("3: a paired replica does not get everything that was acknowledged".into()));
        return;
    }
    for node in [A, B] {
        let data = &world.nodes[node].data;
        let verdict = world.oracle.has_everything(node, &data.log[..data.durable]);
        world.fail(verdict);
    }
}

fn mend(world: &mut World) {
    for one in 0..4 {
        for other in 0..4 {
            let edge = &mut world.edges[one][other];
            edge.cut = false;
            edge.loss_per_mille = 0;
            edge.twice_per_mille = 0;
            edge.low = MS / 2;
            edge.high = edge.high.min(20 * MS);
        }
    }
    let plan = &mut world.plan;
    plan.record_sync = (MS / 10, plan.record_sync.1.min(15 * MS));
    plan.data_sync = (MS / 10, plan.data_sync.1.min(15 * MS));
    // An operator configures the same witness on both: the one that was recognised last.
    let newest = world.nodes[A].replica_record().adoption.max(world.nodes[B].replica_record().adoption);
    let witness = if newest.incarnation == world.nodes[V].id().incarnation { V } else { W };
    for node in [A, B, witness] {
        world.nodes[node].votes.full = false;
        world.nodes[node].votes.sync_fails = false;
        world.start(node);
        world.resume(node);
    }
    for replica in [A, B] {
        world.nodes[replica].data.stuck = false;
        if world.nodes[replica].witness != witness {
            world.use_witness(replica, witness);
        }
    }
}

/// Whom the disks allow to lead, by §4, §5 and §7 of the protocol.
fn demand(world: &World) -> Demand {
    let replica = |node: usize| world.nodes[node].replica_record();
    let witness = world.nodes[world.nodes[A].witness].witness_record();
    let may_go_alone = world.plan.settings.solo_after.is_some();
    for (me, peer) in [(A, B), (B, A)] {
        let (mine, theirs) = (replica(me), replica(peer));
        // One that has to be validated first may wait for a leader that waits for it.
        let grants = |mine| grants(witness, mine) && !world.plan.strict_boot;
        let confirms = grants(mine) && may_go_alone;
        let peer_blank = theirs.standing == Standing::Blank;
        let lead = mine.sole || elected(world, me, mine, theirs, grants(mine));
        if !lead || !(mine.sole || !peer_blank || confirms) {
            continue;
        }
        // A blank peer joins the term of a sole leader, and only when there is a witness that could elect it.
        let takes_in = usable(witness, mine) || (mine.sole && witness.standing == Standing::Blank);
        let pair = !peer_blank || takes_in;
        return if pair { Demand::Pair } else { Demand::Leader };
    }
    Demand::Nothing
}

fn usable(witness: &WitnessRecord, mine: &ReplicaRecord) -> bool {
    witness.standing == Standing::Member && witness.incarnation == mine.adoption.incarnation
}

/// Whether the witness could vote for it.
fn grants(witness: &WitnessRecord, mine: &ReplicaRecord) -> bool {
    let confirmed = witness.confirmed;
    let same =
        confirmed.to.is_none_or(|leader| leader.node == mine.node && leader.incarnation == mine.incarnation);
    usable(witness, mine) && (same || mine.holds > confirmed.term)
}

fn elected(world: &World, me: usize, mine: &ReplicaRecord, theirs: &ReplicaRecord, by_witness: bool) -> bool {
    if mine.standing != Standing::Member || mine.holds.0 == 0 {
        return false;
    }
    let position = |node: usize| world.nodes[node].data.durable;
    let ahead = (mine.holds, position(me)) >= (theirs.holds, position(1 - me));
    let by_peer = match theirs.standing {
        Standing::Blank => false,
        Standing::Member | Standing::Unvalidated => !theirs.sole && ahead,
        Standing::Resyncing(leader) => leader == mine.incarnation && ahead,
    };
    // A peer that is sole leads itself.
    by_peer || (by_witness && !theirs.sole)
}
