//! What goes wrong and when: a list that is drawn from the seed before the run, so that a run can be repeated with
//! some of it left out.

use tiebreak::message::Standing;
use tiebreak::testing::Input;

use crate::world::dice::Dice;
use crate::world::{A, B, MS, V, W, World};

/// One thing that goes wrong, or is mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Start(usize),
    /// Power is cut, in the middle of whatever was being written.
    PowerCut(usize),
    Kill(usize),
    Pause(usize),
    /// The machine sleeps: nothing arrives, and time leaps when it wakes.
    Suspend(usize),
    Resume(usize),
    Cut(usize, usize),
    Heal(usize, usize),
    BreakLink(usize, usize),
    /// How slow and lossy one direction is from now on.
    Way {
        from: usize,
        to: usize,
        low: u64,
        high: u64,
        loss_per_mille: u64,
    },
    DataStalls(usize),
    DataMoves(usize),
    Resign(usize),
    SyncFails(usize),
    DiskFull(usize),
    DiskFreed(usize),
    LoseDisk(usize),
    UseWitness(usize, usize),
    /// The clock runs at another rate from now on, in parts per million.
    ClockRate(usize, i64),
    /// An image of the machine is kept.
    TakeImage(usize),
    /// The machine is restored from its image, while the others are in reach.
    Restore(usize),
}

/// A fault and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Happening {
    /// True time, in nanoseconds.
    pub(crate) at: u64,
    pub(crate) fault: Fault,
}

impl Happening {
    pub(crate) fn words(&self) -> String {
        format!("{:>10.3}s  {:?}", self.at as f64 / 1e9, self.fault)
    }
}

/// Does it to the world. What makes no sense there is left out, so that every part of a schedule can be run.
pub(crate) fn apply(world: &mut World, fault: Fault) {
    match fault {
        Fault::Start(node) => world.start(node),
        Fault::PowerCut(node) => world.crash(node),
        Fault::Kill(node) => world.kill(node),
        Fault::Pause(node) => world.pause(node),
        Fault::Suspend(node) => world.suspend(node),
        Fault::Resume(node) => world.resume(node),
        Fault::Cut(from, to) => world.cut(from, to),
        Fault::Heal(from, to) => world.heal(from, to),
        Fault::BreakLink(one, other) => world.break_link(one, other),
        Fault::Way { from, to, low, high, loss_per_mille } => {
            let edge = &mut world.edges[from][to];
            (edge.low, edge.high, edge.loss_per_mille) = (low, high, loss_per_mille);
            world.slowest = world.slowest.max(high);
        }
        Fault::DataStalls(node) => world.nodes[node].data.stuck = true,
        Fault::DataMoves(node) => world.nodes[node].data.stuck = false,
        Fault::Resign(node) => world.command(node, Input::Resign),
        Fault::SyncFails(node) => world.nodes[node].votes.sync_fails = true,
        Fault::DiskFull(node) => world.nodes[node].votes.full = true,
        Fault::DiskFreed(node) => world.nodes[node].votes.full = false,
        Fault::LoseDisk(node) => {
            // Of the data one copy has to be left.
            let other_whole =
                node >= W || world.nodes[1 - node].replica_record().standing == Standing::Member;
            if other_whole && world.lives < 2 {
                world.crash(node);
                world.lose_disk(node);
            }
        }
        Fault::UseWitness(replica, witness) => {
            world.start(V);
            world.use_witness(replica, witness);
        }
        Fault::TakeImage(node) => world.take_image(node),
        Fault::Restore(node) => restore(world, node),
        Fault::ClockRate(node, rate) => world.change_rate(node, rate),
    }
}

/// A restored state can only be found out by a voter that is reached. So the others are there, for as long as it takes,
/// and then it has to have been found out, if one of them remembers more.
fn restore(world: &mut World, node: usize) {
    for other in [A, B, W] {
        world.resume(other);
        world.heal_both(node, other);
        if other != node {
            world.start(other);
        }
    }
    let lease = u64::try_from(world.plan.settings.lease.as_nanos()).expect("leases are short");
    // Whatever was on its way is there by then.
    world.run_for(lease);
    let known = world.restore(node);
    if known.is_empty() {
        return;
    }
    let image = world.nodes[node].id();
    world.run_for(lease * 2 + 2_000 * MS);
    let found_out = world.nodes[node].id() != image;
    if !found_out && world.linked_to(node, &known) {
        world.fail(Err(format!("4: the restored {image} has a link to one who remembers more of it")));
    }
    world.seen.note(if found_out { "a restored image became blank" } else { "a restored image was refused" });
}

/// Chances of each fault, per mille and turn.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Weather {
    pub(crate) cut: u64,
    pub(crate) one_way: u64,
    pub(crate) heal: u64,
    pub(crate) break_link: u64,
    pub(crate) crash: u64,
    pub(crate) start: u64,
    pub(crate) pause: u64,
    pub(crate) suspend: u64,
    pub(crate) resume: u64,
    pub(crate) stall: u64,
    pub(crate) resign: u64,
    pub(crate) bad_sync: u64,
    pub(crate) full: u64,
    pub(crate) lose_disk: u64,
    pub(crate) lose_witness: u64,
    pub(crate) replace_witness: u64,
    pub(crate) way: u64,
    pub(crate) clock: u64,
    pub(crate) image: u64,
    pub(crate) restore: u64,
}

/// Draws a schedule. Its last entry is before the end that comes with it.
pub(crate) fn draw(chances: Weather, dice: &mut Dice, lease: u64) -> (Vec<Happening>, u64) {
    let mut drawn = Draw { list: Vec::new(), at: 0, witness: [W; 2] };
    let turns = dice.between(20, 120);
    // Let it begin in peace as often as not.
    if dice.per_mille(500) {
        drawn.at = lease * 3;
    }
    for _ in 0..turns {
        drawn.turn(chances, dice, lease);
        drawn.at += dice.between(lease / 20, lease / 2);
    }
    drawn.list.sort_by_key(|happening| happening.at);
    let last = drawn.list.last().map_or(0, |happening| happening.at);
    (drawn.list, drawn.at.max(last))
}

struct Draw {
    list: Vec<Happening>,
    at: u64,
    witness: [usize; 2],
}

impl Draw {
    fn put(&mut self, fault: Fault) {
        self.list.push(Happening { at: self.at, fault });
    }

    fn turn(&mut self, chances: Weather, dice: &mut Dice, lease: u64) {
        let mut pick = |most: usize| usize::try_from(dice.between(0, most as u64)).expect("small");
        let (one, other) = [(A, B), (A, W), (B, W)][pick(2)];
        let (from, to) = if pick(1) == 0 { (one, other) } else { (other, one) };
        let node = [A, B, W][pick(2)];
        let replica = [A, B][pick(1)];
        if dice.per_mille(chances.cut) {
            self.put(Fault::Cut(one, other));
            self.put(Fault::Cut(other, one));
        }
        if dice.per_mille(chances.one_way) {
            self.put(Fault::Cut(from, to));
        }
        for (one, other) in [(A, B), (A, W), (B, W)] {
            if dice.per_mille(chances.heal) {
                self.put(Fault::Heal(one, other));
                self.put(Fault::Heal(other, one));
            }
        }
        if dice.per_mille(chances.break_link) {
            self.put(Fault::BreakLink(one, other));
        }
        if dice.per_mille(chances.crash) {
            self.put(if dice.per_mille(500) { Fault::PowerCut(node) } else { Fault::Kill(node) });
        }
        self.stops(chances, dice, node, lease);
        for node in [A, B, W, V] {
            if dice.per_mille(chances.resume) {
                self.put(Fault::Resume(node));
            }
            // The second witness runs only where a profile brings it in.
            if dice.per_mille(chances.start) && node != V {
                self.put(Fault::Start(node));
            }
        }
        if dice.per_mille(chances.resign) {
            self.put(Fault::Resign(replica));
        }
        self.disks(chances, dice, node, replica);
        if dice.per_mille(chances.replace_witness) {
            self.witness[replica] = if self.witness[replica] == W { V } else { W };
            self.put(Fault::UseWitness(replica, self.witness[replica]));
        }
        if dice.per_mille(chances.image) {
            self.put(Fault::TakeImage(node));
        }
        if dice.per_mille(chances.restore) {
            self.put(Fault::Restore(node));
        }
        if dice.per_mille(chances.way) {
            // Mostly quick, sometimes up to 5 s.
            let high =
                [5 * MS, lease / 4, lease, 5_000 * MS][usize::try_from(dice.between(0, 3)).expect("small")];
            let (low, loss_per_mille) = (dice.between(0, high / 2), dice.between(0, 4) * 100);
            self.put(Fault::Way { from, to, low, high, loss_per_mille });
        }
        if dice.per_mille(chances.clock) {
            let rate = [-10_000, 10_000, 0, 5_000][usize::try_from(dice.between(0, 3)).expect("small")];
            self.put(Fault::ClockRate(node, rate));
        }
    }

    /// Pauses of any length, from far below a lease to a hundred of them.
    fn stops(&mut self, chances: Weather, dice: &mut Dice, node: usize, lease: u64) {
        for (chance, fault) in [(chances.pause, Fault::Pause(node)), (chances.suspend, Fault::Suspend(node))]
        {
            if dice.per_mille(chance) {
                self.put(fault);
                let span = (lease / 64) << dice.between(0, 9);
                if dice.per_mille(500) {
                    let at = self.at + dice.between(span / 2, span);
                    self.list.push(Happening { at, fault: Fault::Resume(node) });
                }
            }
        }
    }

    fn disks(&mut self, chances: Weather, dice: &mut Dice, node: usize, replica: usize) {
        if dice.per_mille(chances.stall) {
            self.put(Fault::DataStalls(replica));
        }
        if chances.stall > 0 && dice.per_mille(200) {
            self.put(Fault::DataMoves(replica));
        }
        if dice.per_mille(chances.bad_sync) {
            self.put(Fault::SyncFails(node));
        }
        if dice.per_mille(chances.full) {
            self.put(Fault::DiskFull(node));
        }
        if chances.full > 0 && dice.per_mille(150) {
            self.put(Fault::DiskFreed(node));
        }
        if dice.per_mille(chances.lose_disk) {
            self.put(Fault::LoseDisk(replica));
        }
        if dice.per_mille(chances.lose_witness) {
            self.put(Fault::LoseDisk(W));
        }
    }
}
