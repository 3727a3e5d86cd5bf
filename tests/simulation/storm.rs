//! Storms: what goes wrong, how often, by profile. A storm is drawn whole from its seed; it can be run with any part
//! of its schedule. After it comes the healing (`heal.rs`), and then there has to be a leader.

use std::time::Duration;

use tiebreak::ids::Term;
use tiebreak::message::Kind;
use tiebreak::testing::{Alone, Rules, Settings};

use crate::heal::heal;
use crate::schedule::{Fault, Happening, Weather, apply, draw};
use crate::world::dice::Dice;
use crate::world::seen::Seen;
use crate::world::talk::Transcript;
use crate::world::{A, B, Birth, MS, Plan, W, World};

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
    /// Delays of up to five seconds on any way, which come and go.
    Distant,
    /// Clocks at both ends of the rate bound, which change their minds.
    Skewed,
    /// Machines that sleep.
    Suspended,
    /// Syncs that fail, disks that are full, power that is cut.
    BadDisk,
    /// Witnesses that have to be validated after each start.
    Strict,
    /// Machines that are restored from old images.
    Restored,
    /// A cluster without data, in which the witness promises leases.
    Leadership,
    Everything,
}

impl Profile {
    pub(crate) const ALL: [Profile; 19] = [
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
        Profile::Distant,
        Profile::Skewed,
        Profile::Suspended,
        Profile::BadDisk,
        Profile::Strict,
        Profile::Restored,
        Profile::Leadership,
        Profile::Everything,
    ];

    /// The profile that a seed runs unless another is asked for.
    pub(crate) fn of(seed: u64) -> Profile {
        let count = Profile::ALL.len() as u64;
        Profile::ALL[usize::try_from(seed % count).expect("small")]
    }

    pub(crate) fn named(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| format!("{profile:?}") == name)
    }
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
        Profile::LostDisk => Weather { lose_disk: 20, lose_witness: 8, crash: 20, cut: 20, ..w },
        Profile::Replaced => Weather { replace_witness: 10, crash: 20, cut: 30, ..w },
        Profile::Distant => Weather { way: 150, crash: 10, break_link: 10, cut: 10, ..w },
        Profile::Skewed => Weather { clock: 100, one_way: 30, cut: 30, pause: 20, way: 20, resume: 300, ..w },
        Profile::Suspended => Weather { suspend: 60, cut: 20, crash: 5, ..w },
        Profile::BadDisk => Weather { bad_sync: 40, full: 20, crash: 40, cut: 20, ..w },
        Profile::Strict => Weather { crash: 60, cut: 20, ..w },
        Profile::Restored => Weather { image: 30, restore: 20, break_link: 30, cut: 30, crash: 30, ..w },
        Profile::Leadership => Weather {
            cut: 30,
            one_way: 20,
            crash: 40,
            pause: 30,
            suspend: 10,
            resign: 20,
            way: 20,
            clock: 20,
            break_link: 10,
            ..w
        },
        Profile::Everything => Weather {
            cut: 30,
            one_way: 20,
            break_link: 20,
            crash: 30,
            pause: 20,
            suspend: 10,
            stall: 10,
            resign: 10,
            bad_sync: 5,
            full: 3,
            way: 10,
            clock: 10,
            ..w
        },
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
    pub(crate) reads: u64,
    pub(crate) highest: Term,
    /// A leader could be asked for in the end.
    pub(crate) healed: bool,
    pub(crate) seen: Seen,
}

/// Everything that a seed stands for.
#[derive(Clone, Debug)]
pub(crate) struct Storm {
    pub(crate) seed: u64,
    pub(crate) profile: Profile,
    plan: Plan,
    birth: Birth,
    wipes: bool,
    pub(crate) schedule: Vec<Happening>,
    end: u64,
}

fn choice<T: Copy>(dice: &mut Dice, of: &[T]) -> T {
    of[usize::try_from(dice.between(0, of.len() as u64 - 1)).expect("small")]
}

fn settings(lease: Duration, dice: &mut Dice) -> Settings {
    let solo_after = match dice.between(0, 9) {
        0 => None,
        1 => Some(lease * 3 / 4),
        2 => Some(lease / 4),
        _ => Some(lease / 2),
    };
    let alone = if dice.per_mille(200) { Alone::Stop } else { Alone::Continue };
    Settings { lease, solo_after, alone }
}

fn plan(profile: Profile, rules: Rules, dice: &mut Dice) -> Plan {
    let longer = if profile == Profile::Distant { 4 } else { 1 };
    let lease = Duration::from_millis(dice.between(4, 20) * 100 * longer);
    let d = u64::try_from(lease.as_nanos()).expect("leases are short");
    let mut plan = Plan::calm(lease);
    plan.settings = settings(lease, dice);
    plan.rules = rules;
    plan.both_dial = dice.per_mille(750);
    plan.edge.low = MS / 2;
    plan.edge.high = dice.between(1, 20) * MS;
    plan.record_sync = (MS / 10, dice.between(1, 15) * MS);
    plan.data_sync = (MS / 10, dice.between(1, 15) * MS);
    plan.idle = dice.between(d / 4, 3 * d);
    plan.redial = (10 * MS, dice.between(50, 500) * MS);
    plan.late_per_mille = dice.between(0, 900);
    plan.command_lag = choice(dice, &[0, 5, 50]) * MS;
    plan.write_per_mille = choice(dice, &[400, 400, 100, 2]);
    plan.read_per_mille = 100;
    for rate in &mut plan.rates_ppm {
        *rate = choice(dice, &[-10_000, 0, 10_000, 3_000]);
    }
    match profile {
        Profile::Lossy => {
            plan.edge.loss_per_mille = dice.between(20, 400);
            plan.edge.twice_per_mille = 100;
            plan.edge.high = dice.between(20, 300) * MS;
        }
        Profile::SlowDisk => {
            plan.record_sync = (MS, d / 2);
            plan.data_sync = (MS, d / 3);
        }
        Profile::Distant => {
            plan.beat *= longer;
            plan.slack = choice(dice, &[0, d, 10_000 * MS]);
            plan.edge.twice_per_mille = 50;
        }
        Profile::Skewed => {
            let fast = choice(dice, &[A, B]);
            plan.rates_ppm[fast] = 10_000;
            plan.rates_ppm[1 - fast] = -10_000;
        }
        Profile::Strict => plan.strict_boot = true,
        Profile::Restored => plan.strict_boot = dice.per_mille(500),
        Profile::Leadership => plan.kind = Kind::Leadership,
        Profile::Everything => {
            plan.edge.loss_per_mille = dice.between(0, 100);
            plan.edge.twice_per_mille = 30;
            plan.edge.high = dice.between(5, 150) * MS;
        }
        _ => {}
    }
    plan
}

impl Storm {
    pub(crate) fn of(seed: u64, profile: Profile, rules: Rules) -> Storm {
        let mut dice = Dice::new(seed.wrapping_mul(0x1_0001));
        let plan = plan(profile, rules, &mut dice);
        let birth = if dice.per_mille(300) { Birth::New } else { Birth::Mature };
        let lease = u64::try_from(plan.settings.lease.as_nanos()).expect("leases are short");
        let wipes = dice.per_mille(500);
        let mut slow = Vec::new();
        if profile == Profile::SlowWitness {
            for (from, to) in [(A, W), (W, A), (B, W), (W, B)] {
                let high = lease * dice.between(1, 5) / 2;
                let fault = Fault::Way { from, to, low: lease / 8, high, loss_per_mille: 0 };
                slow.push(Happening { at: 0, fault });
            }
        }
        let (drawn, end) = draw(weather(profile), &mut dice, lease);
        slow.extend(drawn);
        Storm { seed, profile, plan, birth, wipes, schedule: slow, end }
    }

    /// The whole of it.
    pub(crate) fn run(&self) -> Outcome {
        self.run_with(&self.schedule)
    }

    /// With these faults only.
    pub(crate) fn run_with(&self, schedule: &[Happening]) -> Outcome {
        let mut world = World::new(self.seed, self.plan.clone(), self.birth);
        if std::env::var_os("TIEBREAK_TRACE").is_some() {
            world.transcript = Some(Transcript::default());
        }
        for replica in [A, B] {
            world.nodes[replica].data.wipes = self.wipes;
        }
        let mut rest = schedule.iter().peekable();
        while let Some(first) = rest.next_if(|happening| happening.at == 0) {
            apply(&mut world, first.fault);
        }
        for node in [A, B, W] {
            world.start(node);
        }
        for happening in rest {
            world.run_until(happening.at);
            if world.violation.is_some() {
                break;
            }
            apply(&mut world, happening.fault);
        }
        world.run_until(self.end);
        let lease = u64::try_from(self.plan.settings.lease.as_nanos()).expect("leases are short");
        let healed = world.violation.is_none() && heal(&mut world, lease);
        if let Some(transcript) = &world.transcript {
            println!("{}", transcript.lines.join("\n"));
        }
        Outcome {
            profile: self.profile,
            violation: world.violation.clone(),
            trace: world.trace(),
            steps: world.steps,
            virtual_nanos: world.now,
            acknowledged: world.oracle.acknowledged.len(),
            reads: world.history.served,
            highest: world.oracle.leaders.keys().next_back().copied().unwrap_or_default(),
            healed,
            seen: world.seen,
        }
    }
}

pub(crate) fn run_as(seed: u64, profile: Profile, rules: Rules) -> Outcome {
    Storm::of(seed, profile, rules).run()
}
