//! Whatever happens in whatever order: the invariants of the supervisor, over many seeded histories.

use super::*;
use crate::ids::Term;

const LEASE: Duration = Duration::from_secs(10);
const HISTORIES: u64 = 20_000;
const STEPS: usize = 150;

/// A fixed sequence for each seed (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// What really is, as those who do the supervisor's bidding see it.
struct World {
    supervisor: Supervisor,
    now: Moment,
    votes: Votes,
    running: Option<Hook>,
    killing: bool,
    calling: Option<Call>,
    /// A promotion was begun, and no demote has succeeded since.
    may_act: bool,
    /// It may acknowledge alone.
    may_be_alone: bool,
    loss_on_record: bool,
    paused: bool,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let hooks =
            if seed.is_multiple_of(3) { vec![Hook::Promote, Hook::Demote] } else { Hook::ALL.to_vec() };
        let plan = Plan {
            times: Times::of(LEASE, Some(LEASE / 2)),
            hooks,
            killing_is_enough: false,
            no_failover: seed.is_multiple_of(7),
        };
        World {
            supervisor: Supervisor::new(plan, false, false),
            now: Moment(1),
            votes: Votes::default(),
            running: None,
            killing: false,
            calling: None,
            may_act: false,
            may_be_alone: false,
            loss_on_record: false,
            paused: false,
            seed,
        }
    }

    fn input(&mut self, input: Input) {
        for action in self.supervisor.handle(self.now, input) {
            self.perform(&action);
        }
        assert!(self.supervisor.may_act() || !self.may_act, "seed {}: it forgot that it may act", self.seed);
        let timeout = Duration::from_secs(3);
        if self.may_act && !self.paused && self.supervisor.may_feed(self.now, timeout) {
            let until = self.votes.leads.and_then(|leads| leads.until).expect("fed without a right to act");
            assert!(until.since(self.now) >= timeout, "seed {}: fed beyond the lease", self.seed);
        }
    }

    fn perform(&mut self, action: &Action) {
        let seed = self.seed;
        match action {
            Action::Run(run) => {
                assert!(!self.killing && !self.paused, "seed {seed}: {run:?} now");
                assert_eq!(self.running.replace(run.hook), None, "seed {seed}: hooks overlap");
                match run.hook {
                    Hook::Promote => {
                        assert!(!self.may_act, "seed {seed}: promoted twice");
                        let leads = self.votes.leads.expect("promoted without leading");
                        let left = leads.until.expect("promoted without a lease").since(self.now);
                        assert!(left > self.supervisor.plan.times.stop_before(), "seed {seed}: too late");
                        self.may_act = true;
                        // Without hooks for it the service does not care.
                        let cares = self.supervisor.plan.has(Hook::Paired);
                        self.may_be_alone = run.mode == Mode::Alone && cares;
                        assert!(run.mode == Mode::Both || leads.right == Right::Solo, "seed {seed}: alone");
                    }
                    Hook::Solo => {
                        let right = self.votes.leads.map(|leads| leads.right);
                        assert_eq!(right, Some(Right::Solo), "seed {seed}: alone without the right to");
                        self.may_be_alone = true;
                    }
                    Hook::Follow => {
                        assert!(!self.may_act, "seed {seed}: follows while it may act");
                        assert!(!run.may_destroy || self.loss_on_record, "seed {seed}: destroys too early");
                    }
                    _ => {}
                }
            }
            Action::KillHook => {
                assert!(
                    self.running.is_some_and(|hook| hook != Hook::Demote),
                    "seed {seed}: kills {:?}",
                    self.running
                );
            }
            Action::KillService => self.killing = true,
            Action::Call(call) => {
                assert_eq!(self.calling.replace(*call), None, "seed {seed}: calls overlap");
                match call {
                    Call::Release => {
                        assert!(!self.may_act, "seed {seed}: gives the lease back while it may act");
                    }
                    Call::Offer => {
                        assert!(!self.may_be_alone, "seed {seed}: offers while it acknowledges alone");
                    }
                    _ => {}
                }
            }
            Action::Escalate => assert!(self.killing, "seed {seed}: nothing is being killed"),
            Action::SteppedDown(_) | Action::Exit => {}
        }
    }

    fn hook_ends(&mut self, outcome: Outcome) {
        let Some(hook) = self.running.take() else { return };
        let done = outcome.good() || hook == Hook::Demote && outcome.has_no_data();
        match (hook, done) {
            // What was done while everything was being killed is not known.
            (Hook::Demote, true) if !self.killing => (self.may_act, self.may_be_alone) = (false, false),
            (Hook::Paired, true) => self.may_be_alone = false,
            (Hook::Follow, _) => self.loss_on_record = false,
            _ => {}
        }
        self.input(Input::Done(hook, outcome));
    }

    fn step(&mut self, dice: &mut Dice) {
        self.now = self.now + Duration::from_millis(dice.below(1500));
        match dice.below(10) {
            0..=2 => {
                let code = [0, 0, 0, 1, 2, 3, 66][usize::try_from(dice.below(7)).expect("small")];
                self.hook_ends(Outcome::Code(code));
            }
            3 => self.hook_ends(Outcome::Signal(9)),
            4 if self.killing && self.running.is_none() => {
                self.killing = false;
                self.input(Input::Emptied);
            }
            5 => {
                if let Some(call) = self.calling.take() {
                    let answer = if dice.once_in(3) { Err("no".into()) } else { Ok(()) };
                    self.loss_on_record |= call == Call::Resync && answer.is_ok();
                    if call == Call::Offer && answer.is_ok() {
                        assert!(!self.may_be_alone, "seed {}: opened while it acknowledges alone", self.seed);
                        self.change_right(Right::Blocked);
                    }
                    self.input(Input::Called(call, answer));
                }
            }
            6 if dice.once_in(4) => self.input(Input::StepDown(Reason::Resign(String::new()))),
            7 if dice.once_in(4) => {
                self.paused = !self.paused;
                self.input(Input::Pause(self.paused));
            }
            8 if dice.once_in(3) => self.input(Input::Event("leads", String::new())),
            _ => {
                self.vote(dice);
                self.input(Input::Votes(self.votes.clone()));
            }
        }
    }

    fn change_right(&mut self, right: Right) {
        if let Some(leads) = &mut self.votes.leads {
            leads.right = right;
            self.input(Input::Votes(self.votes.clone()));
        }
    }

    fn vote(&mut self, dice: &mut Dice) {
        let other = "b".parse().expect("a name");
        self.votes = if dice.once_in(3) {
            let offer = dice.once_in(2).then(|| Ticket(1, dice.below(3)));
            Votes { leads: None, follows: dice.once_in(2).then_some(other), offer }
        } else {
            let before = self.votes.leads.map(|leads| leads.right);
            // A solo leader is paired again by its own offer only.
            let right = match (before, dice.below(3)) {
                (Some(Right::Solo), _) | (_, 0) => Right::Solo,
                (_, 1) => Right::Paired,
                _ => Right::Blocked,
            };
            let until = match right {
                Right::Solo => Some(Moment::FOREVER),
                _ if dice.once_in(8) => None,
                _ => Some(self.now + Duration::from_millis(dice.below(10_000))),
            };
            let (may_offer, peer) = (dice.once_in(2), !dice.once_in(3));
            let token = Token::of(Term(u32::try_from(dice.below(3)).expect("small")));
            let leads = Leads { token, until, right, may_offer: may_offer && peer, peer };
            Votes { leads: Some(leads), follows: None, offer: None }
        };
    }

    /// From here on every hook works and nobody wants anything of this node.
    fn comes_to_rest(&mut self) {
        self.votes = Votes::default();
        self.input(Input::Votes(self.votes.clone()));
        self.paused = false;
        self.input(Input::Pause(false));
        for _ in 0..200 {
            self.now = self.now + Duration::from_secs(1);
            self.input(Input::Votes(self.votes.clone()));
            self.hook_ends(Outcome::Code(0));
            if self.killing && self.running.is_none() {
                self.killing = false;
                self.input(Input::Emptied);
            }
            if let Some(call) = self.calling.take() {
                self.input(Input::Called(call, Ok(())));
            }
            if !self.may_act && !self.supervisor.may_act() {
                return;
            }
        }
        panic!("seed {}: it may still act: {:?}", self.seed, self.supervisor);
    }
}

#[test]
fn the_invariants_hold_in_every_history_and_without_votes_the_service_comes_to_rest() {
    let mut promoted = 0_u64;
    for seed in 1..=HISTORIES {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step(&mut dice);
            promoted += u64::from(world.may_act);
        }
        world.comes_to_rest();
    }
    assert!(promoted > HISTORIES, "the service acted in the histories at all");
}
