//! Storms: what goes wrong, how often, by profile; then the healing, after which there has to be a leader.

use std::time::Duration;

use tiebreak::ids::Term;
use tiebreak::message::Standing;
use tiebreak::testing::{Input, Right, Rules, Settings};

use crate::world::dice::Dice;
use crate::world::{A, B, Birth, MS, Plan, V, W, World};

/// What kind of bad weather.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Profile {
    Calm,
    Lossy,
    Flapping,
    Crashy,
    Paused,
    SlowWitness,
    SlowDisk,
    OneWay,
    HandOver,
    LostDisk,
    Replaced,
    Everything,
}

impl Profile {
    pub(crate) const ALL: [Profile; 12] = [
        Profile::Calm,
        Profile::Lossy,
        Profile::Flapping,
        Profile::Crashy,
        Profile::Paused,
        Profile::SlowWitness,
        Profile::SlowDisk,
        Profile::OneWay,
        Profile::HandOver,
        Profile::LostDisk,
        Profile::Replaced,
        Profile::Everything,
    ];
}

/// Chances of each fault, per mille and turn.
#[derive(Clone, Copy, Default, Debug)]
struct Weather {
    cut: u64,
    one_way: u64,
    heal: u64,
    break_link: u64,
    crash: u64,
    start: u64,
    pause: u64,
    resume: u64,
    stall: u64,
    resign: u64,
    lose_disk: u64,
    replace_witness: u64,
}

fn weather(profile: Profile) -> Weather {
    let w = Weather { heal: 150, start: 150, resume: 150, ..Weather::default() };
    match profile {
        Profile::Calm => Weather { resign: 3, ..w },
        Profile::Lossy => Weather { break_link: 20, cut: 5, crash: 3, ..w },
        Profile::Flapping => Weather { cut: 150, heal: 400, break_link: 50, crash: 3, ..w },
        Profile::Crashy => Weather { crash: 60, cut: 20, ..w },
        Profile::Paused => Weather { pause: 50, cut: 20, crash: 5, ..w },
        Profile::SlowDisk => Weather { crash: 20, cut: 30, break_link: 10, ..w },
        Profile::SlowWitness => Weather { pause: 40, crash: 15, cut: 30, break_link: 10, ..w },
        Profile::OneWay => Weather { one_way: 80, crash: 15, ..w },
        Profile::HandOver => Weather { resign: 60, crash: 15, cut: 20, stall: 5, ..w },
        Profile::LostDisk => Weather { lose_disk: 25, crash: 20, cut: 20, ..w },
        Profile::Replaced => Weather { replace_witness: 10, crash: 20, cut: 30, ..w },
        Profile::Everything => {
            Weather { cut: 30, one_way: 20, break_link: 20, crash: 30, pause: 20, stall: 10, resign: 10, ..w }
        }
    }
}

/// What one run came to.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) profile: Profile,
    pub(crate) violation: Option<String>,
    pub(crate) trace: u64,
    pub(crate) steps: u64,
    pub(crate) virtual_nanos: u64,
    pub(crate) acknowledged: usize,
    pub(crate) highest: Term,
    pub(crate) healed: bool,
}

fn plan(profile: Profile, rules: Rules, dice: &mut Dice) -> Plan {
    let lease = Duration::from_millis(dice.between(4, 20) * 100);
    let d = u64::try_from(lease.as_nanos()).expect("leases are short");
    let mut plan = Plan::calm(lease);
    let solo_after = match dice.between(0, 9) {
        0 => None,
        1 => Some(lease * 3 / 4),
        2 => Some(lease / 4),
        _ => Some(lease / 2),
    };
    plan.settings = Settings { lease, solo_after, ..Settings::for_lease(lease) };
    plan.rules = rules;
    plan.edge.low = MS / 2;
    plan.edge.high = dice.between(1, 20) * MS;
    plan.record_sync = (MS / 10, dice.between(1, 15) * MS);
    plan.data_sync = (MS / 10, dice.between(1, 15) * MS);
    plan.idle = dice.between(d / 4, 3 * d);
    plan.redial = (10 * MS, dice.between(50, 500) * MS);
    plan.late_per_mille = dice.between(0, 900);
    plan.write_per_mille = [400, 400, 100, 2][usize::try_from(dice.between(0, 3)).expect("small")];
    for rate in &mut plan.rates_ppm {
        *rate = [-10_000, 0, 10_000, 3_000][usize::try_from(dice.between(0, 3)).expect("small")];
    }
    match profile {
        Profile::Lossy => {
            plan.edge.loss_per_mille = dice.between(20, 300);
            plan.edge.twice_per_mille = 100;
            plan.edge.high = dice.between(20, 300) * MS;
        }
        Profile::SlowDisk => {
            plan.record_sync = (MS, d / 2);
            plan.data_sync = (MS, d / 3);
        }
        Profile::Everything => {
            plan.edge.loss_per_mille = dice.between(0, 100);
            plan.edge.twice_per_mille = 30;
            plan.edge.high = dice.between(5, 150) * MS;
        }
        _ => {}
    }
    plan
}

/// One whole run: a storm of random length, then healing and the proof of progress.
pub(crate) fn run(seed: u64, rules: Rules) -> Outcome {
    let profile = Profile::ALL[usize::try_from(seed % 12).expect("small")];
    run_as(seed, profile, rules)
}

pub(crate) fn run_as(seed: u64, profile: Profile, rules: Rules) -> Outcome {
    let mut dice = Dice::new(seed.wrapping_mul(0x1_0001));
    let plan = plan(profile, rules, &mut dice);
    let birth = if dice.per_mille(300) { Birth::New } else { Birth::Mature };
    let lease = u64::try_from(plan.settings.lease.as_nanos()).expect("leases are short");
    let mut world = World::new(seed, plan, birth);
    if std::env::var_os("TIEBREAK_TRACE").is_some() {
        world.transcript = Some(crate::world::talk::Transcript::default());
    }
    if profile == Profile::SlowWitness {
        for node in [A, B] {
            for (from, to) in [(node, W), (W, node)] {
                world.edges[from][to].low = lease / 8;
                world.edges[from][to].high = lease * dice.between(1, 5) / 2;
            }
        }
    }
    let wipes = dice.per_mille(500);
    for replica in [A, B] {
        world.nodes[replica].data.wipes = wipes;
    }
    for node in [A, B, W] {
        world.start(node);
    }
    storm(&mut world, profile, &mut dice, lease);
    let healed = world.violation.is_none() && heal(&mut world, lease);
    if let Some(transcript) = &world.transcript {
        println!("{}", transcript.lines.join("\n"));
    }
    Outcome {
        profile,
        violation: world.violation.clone(),
        trace: world.trace(),
        steps: world.steps,
        virtual_nanos: world.now,
        acknowledged: world.oracle.acknowledged.len(),
        highest: world.oracle.leaders.keys().next_back().copied().unwrap_or_default(),
        healed,
    }
}

fn storm(world: &mut World, profile: Profile, dice: &mut Dice, lease: u64) {
    let chances = weather(profile);
    let turns = dice.between(20, 120);
    // Let it begin in peace as often as not.
    if dice.per_mille(500) {
        world.run_for(lease * 3);
    }
    for _ in 0..turns {
        if world.violation.is_some() {
            return;
        }
        turn(world, chances, dice);
        let turn_length = dice.between(lease / 20, lease / 2);
        world.run_for(turn_length);
    }
}

fn turn(world: &mut World, chances: Weather, dice: &mut Dice) {
    let mut pick = |most: usize| usize::try_from(dice.between(0, most as u64)).expect("small");
    let (one, other) = [(A, B), (A, W), (B, W)][pick(2)];
    let (from, to) = if pick(1) == 0 { (one, other) } else { (other, one) };
    let node = [A, B, W][pick(2)];
    let replica = [A, B][pick(1)];
    if dice.per_mille(chances.cut) {
        world.cut_both(one, other);
    }
    if dice.per_mille(chances.one_way) {
        world.cut(from, to);
    }
    for (one, other) in [(A, B), (A, W), (B, W)] {
        if dice.per_mille(chances.heal) {
            world.heal_both(one, other);
        }
    }
    if dice.per_mille(chances.break_link) {
        world.break_link(one, other);
    }
    if dice.per_mille(chances.crash) {
        world.crash(node);
    }
    if dice.per_mille(chances.pause) {
        world.pause(node);
    }
    for node in [A, B, W, V] {
        if dice.per_mille(chances.resume) {
            world.resume(node);
        }
        // The second witness runs only where a profile brings it in.
        if dice.per_mille(chances.start) && node != V {
            world.start(node);
        }
    }
    if dice.per_mille(chances.stall) {
        world.nodes[replica].data.stuck = true;
    }
    if dice.per_mille(200) {
        world.nodes[replica].data.stuck = false;
    }
    if dice.per_mille(chances.resign) {
        world.command(replica, Input::Resign);
    }
    if dice.per_mille(chances.lose_disk) {
        let other_whole = world.nodes[1 - replica].replica_record().standing == Standing::Member;
        if other_whole && world.lives < 2 {
            world.crash(replica);
            world.lose_disk(replica);
        }
    }
    if dice.per_mille(chances.replace_witness) {
        world.start(V);
        let witness = if world.nodes[replica].witness == W { V } else { W };
        world.use_witness(replica, witness);
    }
}

/// Everything works from now on: within a bounded time there has to be a leader that acts and acknowledges, and the
/// pair has to come together. Whether that could be asked for.
fn heal(world: &mut World, lease: u64) -> bool {
    if let Some(transcript) = &mut world.transcript {
        transcript.heading("healed");
    }
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
    for node in [A, B, W] {
        world.start(node);
        world.resume(node);
    }
    for replica in [A, B] {
        world.nodes[replica].data.stuck = false;
    }
    if nobody_may_lead(world) {
        world.run_for(lease * 10);
        return false;
    }
    world.plan.write_per_mille = 400;
    let before = world.oracle.acknowledged.len();
    let bound = lease * 40;
    let served = world.run_while(bound, |w| w.serves().is_none() || w.oracle.acknowledged.len() == before);
    if !served {
        world.fail(Err("7: nobody serves within 40 leases after the last fault".into()));
        return true;
    }
    // A link that flapped makes a sole leader wait for up to 32 leases.
    let paired = |w: &World| [A, B].iter().any(|node| w.right(*node) == Some(Right::Paired));
    if !world.run_while(lease * 60, |w| !paired(w)) {
        world.fail(Err("7: the replicas are not paired 60 leases after the last fault".into()));
        return true;
    }
    // From here on nothing may change.
    world.run_for(lease * 3);
    let changes = world.oracle.changes;
    world.run_for(lease * 10);
    if world.oracle.changes != changes {
        world.fail(Err("7: a healthy leader was deposed".into()));
    }
    let served = world.run_while(lease, |w| w.serves().is_none());
    if !served {
        world.fail(Err("7: a healthy leader serves no more".into()));
    }
    true
}

/// Where the protocol asks for an operator, or for a flow that does not belong to this core.
fn nobody_may_lead(world: &World) -> bool {
    if world.lives > 0 || [A, B].iter().any(|replica| world.nodes[*replica].witness != W) {
        return true;
    }
    if world.nodes[V].up {
        return true;
    }
    // Whoever may never go on alone cannot take a blank peer in.
    let blank = |node: &usize| world.nodes[*node].replica_record().standing == Standing::Blank;
    world.plan.settings.solo_after.is_none() && [A, B].iter().any(blank)
}
