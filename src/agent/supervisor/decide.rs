//! What comes next, given everything that is known.

use crate::client::Right;
use crate::ids::NodeId;
use crate::time::Moment;

use super::hook::{Data, Hook, Mode, Reason, Run};
use super::{Action, Call, Service, StepDown, Supervisor, Task, nanos};

/// What the votes want of the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Lead,
    Follow(NodeId),
    Rest,
}

impl Supervisor {
    pub(super) fn decide(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.kill_due) {
            self.kill_everything(now, actions);
        }
        if let Some((since, told)) = self.killing {
            if now >= since + self.plan.times.kill && !told {
                self.killing = Some((since, true));
                actions.push(Action::Escalate);
            }
            return;
        }
        if self.task.is_some() {
            self.watch_task(now, actions);
        } else if self.paused {
            if self.stepping == Some(StepDown::Shutdown) {
                actions.push(Action::Exit);
            }
        } else {
            self.next_step(now, actions);
        }
        if !self.paused && self.killing.is_none() && self.stepping.is_none() {
            self.calls(now, actions);
        }
    }

    /// The running hook gives way to what is wanted more, and is killed when its time is over.
    fn watch_task(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let Some(task) = self.task.clone() else { return };
        if task.hook == Hook::Demote {
            let deadline = self.stop_by().map_or(task.deadline, |stop_by| task.deadline.min(stop_by));
            if now >= deadline {
                self.kill_everything(now, actions);
            }
            return;
        }
        let over = now >= task.deadline || !self.paused && !self.serves(now, task.hook);
        if over && !task.killed {
            self.task = Some(Task { killed: true, killed_at: now, ..task });
            actions.push(Action::KillHook);
        } else if task.killed && self.led && !self.paused && now >= self.gone_by(&task) {
            let unfinished = task.hook == Hook::Promote || self.wanted(now) != Wanted::Lead;
            if unfinished {
                self.service = Service::Unclear;
                self.kill_everything(now, actions);
            }
        } else if task.killed && !self.led && !self.paused && now >= self.gone_by(&task) {
            self.lead_no_longer(now, actions);
        }
    }

    /// A hook hangs where it cannot be killed, and nothing can run beside it: the other node is to lead.
    fn lead_no_longer(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.stepping.is_none() && self.votes.leads.is_some() && now >= self.retry_at {
            self.fails(now, Reason::HookHangs);
        }
        if self.stepping.is_some() {
            self.release(actions);
        }
    }

    /// By when a hook that was killed has to be gone. One that hangs in the kernel stays, and no `demote` can run beside it:
    /// what is left then is to kill the service, and the watchdog.
    pub(super) fn gone_by(&self, task: &Task) -> Moment {
        let gone_by = task.killed_at + self.plan.times.kill;
        self.stop_by().map_or(gone_by, |stop_by| gone_by.min(stop_by))
    }

    fn kill_everything(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.killing = Some((now, false));
        actions.push(Action::KillService);
    }

    /// Whether a hook that runs does what is wanted.
    fn serves(&self, now: Moment, hook: Hook) -> bool {
        let wanted = self.wanted(now);
        match hook {
            Hook::Demote => true,
            Hook::Promote | Hook::Fence => wanted == Wanted::Lead,
            Hook::Solo => wanted == Wanted::Lead && self.wanted_mode() == Mode::Alone,
            Hook::Paired => wanted == Wanted::Lead && self.wanted_mode() == Mode::Both,
            Hook::Follow => matches!(wanted, Wanted::Follow(_)),
            Hook::Check | Hook::OnEvent => match (wanted, self.service) {
                (Wanted::Lead, Service::Leads(mode)) => {
                    mode == self.wanted_mode() && !self.unsure || now < self.pause_until
                }
                (Wanted::Lead, _) | (_, Service::Leads(_) | Service::Unclear) => false,
                (Wanted::Follow(leader), service) => {
                    service == Service::Follows(leader) || now < self.pause_until
                }
                (Wanted::Rest, _) => true,
            },
        }
    }

    fn wanted(&self, now: Moment) -> Wanted {
        let Some(leads) = self.votes.leads else {
            return self.votes.follows.map_or(Wanted::Rest, Wanted::Follow);
        };
        let lasts = leads.until.is_some_and(|until| until.since(now) > self.plan.times.stop_before());
        let waits = !self.service_leads() && now < self.retry_at;
        // Whoever is giving the lease back does not begin to act under it.
        let gives_back = self.calling == Some(Call::Release);
        if lasts && !waits && !gives_back && self.stepping.is_none() && !self.stays_away() {
            Wanted::Lead
        } else {
            Wanted::Rest
        }
    }

    /// This node does not run the service as leader, whatever the votes say.
    fn stays_away(&self) -> bool {
        self.plan.no_failover || self.data == Data::Missing
    }

    /// How it is to acknowledge. Both is always safe; alone is allowed to a solo leader only.
    fn wanted_mode(&self) -> Mode {
        let Some(leads) = self.votes.leads.filter(|leads| leads.right == Right::Solo) else {
            return Mode::Both;
        };
        let in_sync = !self.plan.has(Hook::Check)
            || self.checked.is_some_and(|checked| checked.well && checked.in_sync);
        let is_both = self.service == Service::Leads(Mode::Both);
        // Before the term is opened for the peer, nothing may be acknowledged alone any more; nor while it is not known
        // whether the offer was taken, which opens it.
        let offered = self.calling == Some(Call::Offer);
        let may_open = leads.peer && in_sync && (leads.may_offer || is_both);
        if offered || may_open { Mode::Both } else { Mode::Alone }
    }

    pub(super) fn service_leads(&self) -> bool {
        matches!(self.service, Service::Leads(_))
    }

    /// By when `demote` has to be done, so that there is time for the kill before the lease ends.
    pub(super) fn stop_by(&self) -> Option<Moment> {
        let known = self.last_until != Moment::default() && self.last_until != Moment::FOREVER;
        if !self.led || self.overdue || !known {
            return None;
        }
        let rest = nanos(self.plan.times.kill) + nanos(self.plan.times.margin());
        Some(Moment(self.last_until.0.saturating_sub(rest)))
    }

    /// Nothing runs: what is to be run now.
    fn next_step(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let wanted = self.wanted(now);
        if self.service == Service::Unclear || self.service_leads() && wanted != Wanted::Lead {
            if now < self.demote_at {
                return;
            }
            let reason = self.why_stop();
            let deadline = now + self.plan.times.demote;
            // From here on it does not count as acting, and yet may.
            self.service = Service::Unclear;
            return self.run(now, Hook::Demote, reason, deadline, actions);
        }
        if self.stepping.is_some() && !self.release(actions) {
            return;
        }
        match (self.wanted(now), self.service) {
            (Wanted::Lead, Service::Leads(mode))
                if (mode != self.wanted_mode() || self.unsure) && now >= self.pause_until =>
            {
                self.switch_mode(now, actions);
            }
            (Wanted::Lead, Service::Leads(_)) => self.at_leisure(now, actions),
            (Wanted::Lead, _) => self.promote(now, actions),
            (Wanted::Follow(leader), service)
                if service != Service::Follows(leader) && now >= self.pause_until =>
            {
                self.follow(now, actions);
            }
            _ => self.at_leisure(now, actions),
        }
    }

    fn why_stop(&self) -> Reason {
        match (&self.stepping, self.votes.leads) {
            (Some(StepDown::Asked(reason)), _) => reason.clone(),
            (Some(StepDown::Failed), _) => self.failure.clone(),
            (Some(StepDown::Shutdown), _) => Reason::Shutdown,
            (None, _) if !self.led => Reason::Start,
            (None, Some(_)) if self.plan.no_failover => Reason::NoFailover,
            (None, Some(_)) if self.data == Data::Missing => Reason::NoData,
            (None, Some(leads)) if leads.until.is_some() => Reason::LeaseEnds,
            (None, _) => Reason::NotLeading,
        }
    }

    /// The service has stopped: whether nothing is left to do for the step-down.
    fn release(&mut self, actions: &mut Vec<Action>) -> bool {
        if self.calling.is_some() {
            return false;
        }
        let outcome = match self.votes.leads {
            Some(leads) if leads.right == Right::Paired => {
                self.call(Call::Release, actions);
                return false;
            }
            Some(leads) => Err(format!("there is nobody to hand over to: this node leads {}", leads.right)),
            None => Ok(()),
        };
        self.stepped_down(outcome, actions);
        self.stepping.is_none()
    }

    fn promote(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let token = self.votes.leads.map(|leads| leads.token);
        let reason = if self.failures > 0 { Reason::Again } else { Reason::Elected };
        if self.plan.has(Hook::Fence) && self.fenced != token {
            return self.run(now, Hook::Fence, reason, now + self.plan.times.switch, actions);
        }
        self.promoted_as = self.wanted_mode();
        self.service = Service::Unclear;
        self.led = true;
        self.run(now, Hook::Promote, reason, now + self.plan.times.promote, actions);
    }

    fn switch_mode(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let mode = self.wanted_mode();
        let hook = match mode {
            Mode::Both => Hook::Paired,
            Mode::Alone => Hook::Solo,
        };
        if self.plan.has(hook) {
            // From here on it may acknowledge alone, whatever becomes of the hook.
            self.service = Service::Leads(Mode::Alone);
            self.unsure = true;
            self.run(now, hook, Reason::Right, now + self.plan.times.switch, actions);
        } else {
            self.acknowledges(now, mode);
            self.at_leisure(now, actions);
        }
    }

    fn follow(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.wants_copy {
            if self.calling.is_none() {
                self.call(Call::Resync, actions);
            }
        } else if self.plan.has(Hook::Follow) {
            self.run(now, Hook::Follow, Reason::Follows, now + self.plan.times.follow, actions);
        } else {
            self.follows(now);
            self.at_leisure(now, actions);
        }
    }

    /// Checks and events, when nothing presses.
    fn at_leisure(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let runs = matches!(self.service, Service::Leads(_) | Service::Follows(_));
        if runs && self.plan.has(Hook::Check) && now >= self.check_at {
            self.run(now, Hook::Check, Reason::Time, now + self.plan.times.check, actions);
        } else if !self.events.is_empty() {
            self.run(now, Hook::OnEvent, Reason::Event, now + self.plan.times.on_event, actions);
        }
    }

    fn run(&mut self, now: Moment, hook: Hook, reason: Reason, deadline: Moment, actions: &mut Vec<Action>) {
        let deadline = match (hook, self.stop_by()) {
            (Hook::Demote, Some(stop_by)) => deadline.min(stop_by.max(now)),
            _ => deadline,
        };
        self.task = Some(Task { hook, since: now, deadline, killed: false, killed_at: now });
        let mode = match (hook, self.service) {
            (Hook::Promote, _) => self.promoted_as,
            (Hook::Check | Hook::OnEvent, Service::Leads(mode)) => mode,
            _ => self.wanted_mode(),
        };
        let event = if hook == Hook::OnEvent { self.events.pop_front() } else { None };
        actions.push(Action::Run(Run {
            hook,
            reason,
            deadline,
            mode,
            leader: self.votes.follows,
            may_destroy: self.may_destroy,
            event,
        }));
    }

    fn call(&mut self, call: Call, actions: &mut Vec<Action>) {
        self.calling = Some(call);
        actions.push(Action::Call(call));
    }

    /// What the voter is told, besides hand-overs.
    fn calls(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.calling.is_some() {
            return;
        }
        if let Some(leads) = self.votes.leads {
            let lags = self.checked.is_some_and(|checked| checked.well && !checked.in_sync);
            if leads.right == Right::Paired {
                if self.service_leads() && lags && self.is_fresh(self.both_since) && !self.stalled {
                    self.stalled = true;
                    self.call(Call::Stalled, actions);
                } else if self.stays_away() && !self.led && now >= self.offer_at {
                    self.offer_at = now + self.plan.times.lease;
                    self.call(Call::Release, actions);
                }
            } else if leads.may_offer && now >= self.offer_at && self.peer_may_join() {
                self.call(Call::Offer, actions);
            }
        } else if let (Some(ticket), Service::Follows(_)) = (self.votes.offer, self.service)
            && now >= self.offer_at
            && self.caught_up(self.offered_since)
        {
            self.call(Call::Join(ticket), actions);
        }
    }

    /// Whether the last check began at or after `since`.
    fn is_fresh(&self, since: Moment) -> bool {
        self.checked.is_some_and(|checked| checked.began >= since)
    }

    fn caught_up(&self, since: Moment) -> bool {
        let in_sync = self.checked.is_some_and(|checked| checked.well && checked.in_sync);
        !self.plan.has(Hook::Check) || in_sync && self.is_fresh(since)
    }

    /// Nothing is acknowledged alone any more, and the standby holds everything that was.
    fn peer_may_join(&self) -> bool {
        let mode = match self.service {
            Service::Leads(mode) => Some(mode),
            Service::Unclear => self
                .task
                .as_ref()
                .filter(|task| task.hook == Hook::Promote && !task.killed)
                .map(|_| self.promoted_as),
            Service::Rests | Service::Follows(_) => Some(Mode::Both),
        };
        let checked = !self.plan.has(Hook::Check) || self.service_leads() && self.caught_up(self.both_since);
        // A leader that leaves the service at rest has nothing to compare.
        mode == Some(Mode::Both) && (checked || self.plan.no_failover)
    }
}
