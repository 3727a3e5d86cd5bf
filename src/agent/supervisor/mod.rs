//! What to do with the service: the wanted state against what the hooks have done. Pure: it is told what happens and
//! when, and says what to run, what to kill and what to tell the voter.
//!
//! Invariants of this file:
//! - one hook runs at a time;
//! - the service is wanted as leader only while the right to act lasts longer than a stop takes;
//! - whatever may act is demoted before anything else is done to it, and the lease is given back only after that;
//! - what the last votes want wins: a hook that no longer serves it is killed, but `demote` always runs to its end.

mod decide;
mod hook;
#[cfg(test)]
mod storm_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use crate::client::Right;
use crate::ids::{NodeId, Token};
use crate::time::Moment;

use super::times::Times;
pub use hook::{Data, Hook, Mode, Outcome, Reason, Run};

/// Events that wait for `on_event`; with one more the oldest is dropped.
const EVENTS_WAITING_MAX: usize = 16;

/// What the service is, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// It may act: just started, or a hook has failed on the way.
    Unclear,
    /// Demoted.
    Rests,
    /// It follows this leader.
    Follows(NodeId),
    /// It acts, and acknowledges so.
    Leads(Mode),
}

/// What the votes say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Votes {
    /// This node leads.
    pub leads: Option<Leads>,
    /// Another one leads.
    pub follows: Option<NodeId>,
    /// An offer of that leader that was not joined yet.
    pub offer: Option<Ticket>,
}

/// Names an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(pub u32, pub u64);

/// This node leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leads {
    /// Its token.
    pub token: Token,
    /// Until when it may act; [`Moment::FOREVER`] when sole.
    pub until: Option<Moment>,
    /// What it may acknowledge.
    pub right: Right,
    /// Whether an offer would be taken.
    pub may_offer: bool,
    /// Whether the peer is linked.
    pub peer: bool,
}

/// Why an operator or the agent itself wants another leader.
#[derive(Clone, PartialEq, Eq, Debug)]
enum StepDown {
    Asked(Reason),
    Failed,
    Shutdown,
}

/// What happens to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// The votes have changed, or time has passed.
    Votes(Votes),
    /// The hook has ended.
    Done(Hook, Outcome),
    /// After a kill: nothing is left of the service.
    Emptied,
    /// The command has ended by itself.
    Exited,
    /// The voter has answered.
    Called(Call, Result<(), String>),
    /// An operator wants another leader.
    StepDown(Reason),
    /// Leave the service alone, or no longer.
    Pause(bool),
    /// The agent is to end.
    Shutdown,
    /// Something that `on_event` is told.
    Event(&'static str, String),
    /// Look again as soon as possible.
    CheckNow,
    /// Other times and marks are in force.
    Reload(Plan),
}

/// What the voter is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// The peer may join.
    Offer,
    /// Everything is there: join.
    Join(Ticket),
    /// Data is about to be destroyed in order to copy the leader.
    Resync,
    /// The standby makes nothing durable any more.
    Stalled,
    /// The service has stopped: hand over.
    Release,
}

/// What has to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Run a hook.
    Run(Run),
    /// Kill the hook that runs.
    KillHook,
    /// Kill everything that the service consists of, the running hook as well.
    KillService,
    /// Ask the voter.
    Call(Call),
    /// The kill did not work in time.
    Escalate,
    /// A step-down that was asked for is over: done, or why not.
    SteppedDown(Result<(), String>),
    /// The agent may end.
    Exit,
}

/// What is configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// All times.
    pub times: Times,
    /// The hooks that there are.
    pub hooks: Vec<Hook>,
    /// Whether nothing is left of the service's doing once its processes are gone: it is a command, without hooks.
    pub killing_is_enough: bool,
    /// This node never runs the service as leader by itself.
    pub no_failover: bool,
}

impl Plan {
    fn has(&self, hook: Hook) -> bool {
        self.killing_is_enough && matches!(hook, Hook::Promote | Hook::Demote) || self.hooks.contains(&hook)
    }
}

#[derive(Clone, Debug)]
struct Task {
    hook: Hook,
    since: Moment,
    deadline: Moment,
    killed: bool,
    /// When; it may take long to die.
    killed_at: Moment,
}

/// What the last check said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checked {
    /// When it began.
    pub began: Moment,
    /// Whether the service is well.
    pub well: bool,
    /// Whether the standby holds everything.
    pub in_sync: bool,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Supervisor {
    plan: Plan,
    votes: Votes,
    service: Service,
    /// It was promoted and not demoted since: it may act.
    led: bool,
    task: Option<Task>,
    /// Since when everything is being killed, and whether that was said to have failed.
    killing: Option<(Moment, bool)>,
    stepping: Option<StepDown>,
    calling: Option<Call>,
    /// The end of the last lease that was seen.
    last_until: Moment,
    failures: u32,
    /// No promotion before this.
    retry_at: Moment,
    /// No follow again, no change of mode again, no offer or join again before this.
    pause_until: Moment,
    offer_at: Moment,
    /// Demotes in a row that ended badly by themselves, and before when no other one begins.
    bad_demotes: u32,
    demote_at: Moment,
    promoted_at: Moment,
    /// A hook that changes how it acknowledges was begun and has not succeeded since: nobody knows which it is.
    unsure: bool,
    /// Since when it acknowledges by both.
    both_since: Moment,
    /// Since when the present offer is known.
    offered_since: Moment,
    fenced: Option<Token>,
    checked: Option<Checked>,
    failed_checks: u32,
    check_at: Moment,
    /// A check that began before this is followed by another one at once.
    recheck: Moment,
    stalled: bool,
    /// `follow` can only go on by destroying data, and the loss is on record.
    wants_copy: bool,
    may_destroy: bool,
    /// How the promotion that runs was told to acknowledge.
    promoted_as: Mode,
    /// Everything is to be killed: `demote` has failed.
    kill_due: bool,
    /// The time until the end of the lease is used up: `demote` has its full time from now on.
    overdue: bool,
    /// `demote` has said whether there is usable data here: until the first one has ended nobody knows, and a node
    /// without any does not stand before it has joined a leader's term.
    data: Data,
    /// What the failure was for which it steps down.
    failure: Reason,
    events: VecDeque<(&'static str, String)>,
    paused: bool,
}

impl Supervisor {
    /// `led` says that an earlier life of the agent promoted the service and has not demoted it.
    pub fn new(plan: Plan, led: bool, paused: bool) -> Supervisor {
        Supervisor {
            plan,
            votes: Votes::default(),
            service: Service::Unclear,
            led,
            task: None,
            killing: None,
            stepping: None,
            calling: None,
            last_until: Moment::default(),
            failures: 0,
            retry_at: Moment::default(),
            pause_until: Moment::default(),
            offer_at: Moment::default(),
            bad_demotes: 0,
            demote_at: Moment::default(),
            promoted_at: Moment::default(),
            unsure: false,
            both_since: Moment::default(),
            offered_since: Moment::default(),
            fenced: None,
            checked: None,
            failed_checks: 0,
            check_at: Moment::default(),
            recheck: Moment::default(),
            stalled: false,
            wants_copy: false,
            may_destroy: false,
            promoted_as: Mode::Both,
            kill_due: false,
            overdue: false,
            data: Data::Unknown,
            failure: Reason::Again,
            events: VecDeque::new(),
            paused,
        }
    }
}

// Getters.
impl Supervisor {
    /// What the service is.
    pub fn service(&self) -> Service {
        self.service
    }

    /// The hook that runs, and since when.
    pub fn running(&self) -> Option<(Hook, Moment)> {
        self.task.as_ref().map(|task| (task.hook, task.since))
    }

    /// The last check.
    pub fn checked(&self) -> Option<Checked> {
        self.checked
    }

    /// Whether the service is left alone.
    pub fn paused(&self) -> bool {
        self.paused
    }

    /// Whether it may act, so that only a right to act or the watchdog stands between it and a second actor.
    pub fn may_act(&self) -> bool {
        self.led
    }

    /// Whether a step-down is under way.
    pub fn is_stepping_down(&self) -> bool {
        self.stepping.is_some()
    }

    /// Whether the service has usable data here.
    pub fn data(&self) -> Data {
        self.data
    }

    /// Whether this node may be elected.
    pub fn may_stand(&self) -> bool {
        // While the service is left alone nothing is demoted, so nothing is found out.
        let has_data = self.data == Data::Usable || self.paused && self.data == Data::Unknown;
        !self.plan.no_failover && has_data
    }

    /// Not promoted before this, after failures.
    pub fn retry_at(&self) -> Moment {
        self.retry_at
    }

    /// Whether a watchdog with this time-out may be fed: the node does not lead, or its right to act lasts at least
    /// until the watchdog would fire.
    pub fn may_feed(&self, now: Moment, timeout: Duration) -> bool {
        if self.paused || !self.led {
            return true;
        }
        if matches!(self.killing, Some((_, true))) {
            return false;
        }
        match self.votes.leads.and_then(|leads| leads.until) {
            Some(until) => until == Moment::FOREVER || until.since(now) >= timeout,
            None => false,
        }
    }

    /// When something is due although nothing happens.
    pub fn wake_at(&self, now: Moment) -> Moment {
        let mut wake = Moment::FOREVER;
        let mut at = |moment: Moment| {
            if moment > now {
                wake = wake.min(moment);
            }
        };
        if let Some(until) = self.votes.leads.and_then(|leads| leads.until)
            && until != Moment::FOREVER
        {
            at(Moment(until.0.saturating_sub(nanos(self.plan.times.stop_before()))));
        }
        at(self.retry_at);
        at(self.pause_until);
        at(self.offer_at);
        at(self.demote_at);
        at(self.check_at);
        // What is due already is done at the next call, and then no longer due.
        match (&self.task, self.killing) {
            (_, Some((since, false))) => wake = wake.min(since + self.plan.times.kill),
            (Some(task), None) if task.hook == Hook::Demote => {
                wake = wake.min(self.stop_by().map_or(task.deadline, |stop_by| task.deadline.min(stop_by)));
            }
            (Some(task), None) if !task.killed => wake = wake.min(task.deadline),
            (Some(task), None) if !self.paused => at(self.gone_by(task)),
            _ => {}
        }
        wake
    }
}

// What happens to it.
impl Supervisor {
    /// One thing happened at `now`. The moments of successive calls must not go back.
    pub fn handle(&mut self, now: Moment, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Votes(votes) => self.voted(now, votes),
            Input::Done(hook, outcome) => self.done(now, hook, &outcome),
            Input::Emptied => self.emptied(),
            Input::Exited => self.exited(now),
            Input::Called(call, answer) => self.called(now, call, answer, &mut actions),
            // Whoever ends does not come back because somebody asks for less.
            Input::StepDown(_) if self.stepping == Some(StepDown::Shutdown) => {}
            Input::StepDown(reason) => self.stepping = Some(StepDown::Asked(reason)),
            Input::Pause(paused) => self.paused = paused,
            Input::Shutdown => self.stepping = Some(StepDown::Shutdown),
            Input::Event(name, text) => {
                if self.plan.has(Hook::OnEvent) {
                    self.events.push_back((name, text));
                    if self.events.len() > EVENTS_WAITING_MAX {
                        self.events.pop_front();
                    }
                }
            }
            Input::CheckNow => self.check_now(now),
            Input::Reload(plan) => self.plan = plan,
        }
        self.decide(now, &mut actions);
        actions
    }

    fn voted(&mut self, now: Moment, votes: Votes) {
        if votes.offer.is_some() && votes.offer != self.votes.offer {
            self.offered_since = now;
            self.check_now(now);
        }
        if let Some(until) = votes.leads.and_then(|leads| leads.until) {
            self.last_until = until;
        }
        let right = |votes: &Votes| votes.leads.map(|leads| leads.right);
        if right(&votes) != right(&self.votes) {
            self.stalled = false;
            self.check_now(now);
        }
        self.votes = votes;
    }

    fn done(&mut self, now: Moment, hook: Hook, outcome: &Outcome) {
        let Some(task) = self.task.take_if(|task| task.hook == hook) else { return };
        let good = outcome.good() && !task.killed;
        let no_data = hook == Hook::Demote && outcome.has_no_data() && !task.killed;
        match hook {
            Hook::Check => self.check_done(now, &task, outcome),
            Hook::Promote | Hook::Fence if !good => {
                let failure = if hook == Hook::Fence { Reason::FenceFailed } else { Reason::PromoteFailed };
                // One that was killed because it is not wanted any more has not failed.
                if !task.killed || now >= task.deadline {
                    self.fails(now, failure);
                }
            }
            Hook::Fence => self.fenced = self.votes.leads.map(|leads| leads.token),
            Hook::Promote => {
                self.service = Service::Leads(self.promoted_as);
                self.promoted_at = now;
                self.unsure = false;
                self.both_since = now;
                self.check_now(now);
                self.failed_checks = 0;
            }
            Hook::Demote if (good || no_data) && self.killing.is_none() => {
                self.data = if no_data { Data::Missing } else { self.data.or_usable() };
                self.rests();
            }
            Hook::Demote => {
                self.kill_due = self.killing.is_none();
                // At once the first time, and then not as fast as the machine can.
                if self.bad_demotes > 0 {
                    self.demote_at = now + self.plan.times.margin();
                }
                self.bad_demotes = self.bad_demotes.saturating_add(1);
            }
            Hook::Solo | Hook::Paired if !good => {
                if !task.killed || now >= task.deadline {
                    self.pause_until = now + self.plan.times.retry_min;
                }
            }
            Hook::Solo => self.acknowledges(now, Mode::Alone),
            Hook::Paired => self.acknowledges(now, Mode::Both),
            Hook::Follow => {
                self.may_destroy = false;
                if good {
                    self.follows(now);
                } else if outcome.needs_copy() {
                    self.wants_copy = true;
                } else if !task.killed || now >= task.deadline {
                    self.pause_until = now + self.plan.times.retry_min;
                }
            }
            Hook::OnEvent => {}
        }
    }

    fn check_done(&mut self, now: Moment, task: &Task, outcome: &Outcome) {
        if task.killed && now < task.deadline {
            return;
        }
        self.check_at = if task.since < self.recheck { now } else { now + self.plan.times.check_every };
        let well = !task.killed && (outcome.good() || outcome.lags());
        self.checked = Some(Checked { began: task.since, well, in_sync: well && outcome.good() });
        if well {
            self.failed_checks = 0;
            if self.service_leads() && now.since(self.promoted_at) > self.back_off() * 2 {
                self.failures = 0;
            }
            return;
        }
        self.failed_checks += 1;
        if self.service_leads() && self.failed_checks >= self.plan.times.check_failures {
            self.failed_checks = 0;
            self.fails(now, Reason::Unhealthy);
        } else if matches!(self.service, Service::Follows(_))
            && self.failed_checks >= self.plan.times.check_failures
        {
            // It acts no more than before, and whatever `follow` does may mend it.
            self.failed_checks = 0;
            self.service = Service::Rests;
        }
    }

    fn check_now(&mut self, now: Moment) {
        self.check_at = now;
        self.recheck = now;
    }

    fn exited(&mut self, now: Moment) {
        if self.service_leads() {
            self.service = Service::Unclear;
            self.fails(now, Reason::Exited);
        }
    }

    fn emptied(&mut self) {
        self.killing = None;
        self.overdue = true;
        if self.plan.killing_is_enough {
            self.task = None;
            self.data = self.data.or_usable();
            self.rests();
        }
    }

    fn rests(&mut self) {
        self.service = Service::Rests;
        self.led = false;
        self.overdue = false;
        self.fenced = None;
        self.bad_demotes = 0;
    }

    fn acknowledges(&mut self, now: Moment, mode: Mode) {
        self.service = Service::Leads(mode);
        self.unsure = false;
        self.both_since = now;
        self.check_now(now);
    }

    fn follows(&mut self, now: Moment) {
        if let Some(leader) = self.votes.follows {
            self.service = Service::Follows(leader);
            self.failed_checks = 0;
            self.check_now(now);
        }
    }

    /// The service failed here: stop it, hand over if there is somebody, and do not come back at once.
    fn fails(&mut self, now: Moment, failure: Reason) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + self.back_off();
        self.failure = failure;
        self.stepping.get_or_insert(StepDown::Failed);
    }

    /// The pause after as many failures as there were.
    fn back_off(&self) -> Duration {
        let doubled = 1_u32 << self.failures.saturating_sub(1).min(16);
        self.plan.times.retry_min.saturating_mul(doubled).min(self.plan.times.retry_max)
    }

    fn called(&mut self, now: Moment, call: Call, answer: Result<(), String>, actions: &mut Vec<Action>) {
        self.calling = None;
        match call {
            Call::Offer | Call::Join(_) => {
                if matches!(call, Call::Join(_)) && answer.is_ok() {
                    // It holds everything that the leader held.
                    self.data = Data::Usable;
                }
                self.offer_at = now + self.plan.times.lease / 4;
            }
            Call::Resync => match answer {
                Ok(()) => (self.wants_copy, self.may_destroy) = (false, true),
                Err(_) => self.pause_until = now + self.plan.times.retry_min,
            },
            Call::Stalled => {}
            Call::Release => self.stepped_down(answer, actions),
        }
    }

    fn stepped_down(&mut self, outcome: Result<(), String>, actions: &mut Vec<Action>) {
        match self.stepping.take() {
            Some(StepDown::Shutdown) => {
                // It stays, so that nothing is promoted any more.
                self.stepping = Some(StepDown::Shutdown);
                actions.push(Action::Exit);
            }
            Some(StepDown::Asked(_)) => actions.push(Action::SteppedDown(outcome)),
            Some(StepDown::Failed) | None => {}
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
