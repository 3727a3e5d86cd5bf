//! What operators ask for, and what they are told while it goes on.

use std::path::Path;
use std::time::Duration;

use crate::agent::config::AgentConfig;
use crate::agent::control::{Asker, Command, Drill, Request};
use crate::agent::supervisor::{Input, Reason, Service};
use crate::client::{Right, Role};
use crate::edge::clock::Clock;
use crate::ids::NodeId;
use crate::time::Moment;

use super::Agent;

/// The longest drill.
const DRILL_MAX: Duration = Duration::from_secs(600);
/// For how long the other node has the time to take over, in leases.
const TAKE_OVER_LEASES: u32 = 4;

/// A switchover that was asked for.
#[derive(Debug)]
struct Order {
    asker: Option<Asker>,
    wait: bool,
    reason: Reason,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Waits for a check that began after the first, until the second.
    Checking(Moment, Moment),
    /// The service is being stopped and the lease given back.
    Stopping,
    /// The other node is to lead, by then.
    Handed(Moment),
}

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Orders {
    order: Option<Order>,
    /// Since when the preferred node could have the service back.
    could_fail_back: Option<Moment>,
}

impl Orders {
    pub(super) fn wake_at(&self) -> Moment {
        match &self.order {
            Some(Order { stage: Stage::Handed(until) | Stage::Checking(_, until), .. }) => *until,
            _ => Moment::FOREVER,
        }
    }
}

impl Agent {
    pub(super) fn command(&mut self, command: Command) {
        let Command { request, asker } = command;
        match request {
            Request::Switchover { to, wait, reason } => {
                if let Err(why) = self.may_switch(to) {
                    return asker.refused(why);
                }
                let reason = Reason::Switchover(reason);
                let stage = self.checking();
                self.orders.order = Some(Order { asker: Some(asker), wait, reason, stage });
                self.apply(Input::CheckNow);
            }
            Request::Resign { reason } => {
                if let Err(why) = self.may_switch(None) {
                    return asker.refused(why);
                }
                let Role::Leader(leader) = &self.role else { return };
                if leader.right != Right::Paired {
                    let right = leader.right;
                    return asker.refused(format!(
                        "there is nobody to hand over to: {} leads {right}, and {} has not joined; to stop the service \
                         stop the agent",
                        self.node, self.peer
                    ));
                }
                let reason = Reason::Resign(reason);
                self.step_down(Order { asker: Some(asker), wait: false, reason, stage: Stage::Stopping });
            }
            Request::Pause => self.set_paused(true, &asker),
            Request::Resume => self.set_paused(false, &asker),
            Request::Drill { what, for_ms } => self.drill(what, Duration::from_millis(for_ms), &asker),
            // Answered by the socket itself.
            Request::Status | Request::Watch | Request::Lock(_) | Request::Revoke { .. } => {}
        }
    }

    fn may_switch(&self, to: Option<NodeId>) -> Result<(), String> {
        if to.is_some_and(|to| to != self.peer) {
            let to = to.map(|to| to.to_string()).unwrap_or_default();
            return Err(if to == self.node.as_str() && matches!(self.role, Role::Leader(_)) {
                format!("{to} leads already")
            } else {
                format!("{to} cannot be switched to from here: the other node is {}", self.peer)
            });
        }
        if let Role::Standby(standby) = &self.role {
            let leader = standby.leader.map_or("nobody".into(), |leader| leader.to_string());
            return Err(format!("{} does not lead, {leader} does: ask the agent there", self.node));
        }
        if self.supervisor.paused() {
            return Err("the service is left alone (`tiebreak resume` ends that)".into());
        }
        if self.orders.order.is_some() {
            return Err("another switchover is under way".into());
        }
        if !matches!(self.supervisor.service(), Service::Leads(_)) {
            return Err("the service does not act here at present".into());
        }
        Ok(())
    }

    fn step_down(&mut self, order: Order) {
        let reason = order.reason.clone();
        if let Some(asker) = &order.asker {
            asker.progress(format!("the service is stopped on {}", self.node));
        }
        self.notes.note(self.node, "steps_down", None, self.token(), &reason);
        self.orders.order = Some(order);
        self.apply(Input::StepDown(reason));
    }

    /// A check may have to wait for another hook.
    fn checking(&self) -> Stage {
        let (now, times) = (Clock.now(), &self.config.times);
        Stage::Checking(now, now + times.check * 2 + times.switch)
    }

    /// Whatever an order waits for may have come.
    pub(super) fn orders_go_on(&mut self) {
        self.fail_back();
        let Some(order) = &self.orders.order else { return };
        match order.stage {
            Stage::Checking(since, until) => {
                let has_check = self.state.borrow().has_check;
                let fresh = self.supervisor.checked().is_some_and(|checked| checked.began >= since);
                let late = Clock.now() >= until;
                if has_check && !fresh && !late && matches!(self.role, Role::Leader(_)) {
                    return;
                }
                self.publish();
                let late = late && has_check && !fresh;
                let why_not = self.state.borrow().why_not_hand_over();
                let why_not = why_not.or_else(|| late.then(|| "no check has ended in time".into()));
                let Some(mut order) = self.orders.order.take() else { return };
                match (why_not, &order.asker) {
                    (Some(why), Some(asker)) => asker.refused(format!("nothing was changed: {why}")),
                    (Some(why), None) => tracing::info!("no fail-back yet: {why}"),
                    (None, _) => {
                        order.stage = Stage::Stopping;
                        self.step_down(order);
                    }
                }
            }
            Stage::Stopping => {}
            Stage::Handed(until) => {
                let outcome = match &self.role {
                    // It offers its term once its service acts there, if its hooks can tell.
                    Role::Standby(standby)
                        if standby.leader == Some(self.peer)
                            && (standby.offer.is_some() || standby.joined) =>
                    {
                        Ok(())
                    }
                    Role::Leader(_) if matches!(self.supervisor.service(), Service::Leads(_)) => {
                        Err(format!("{} did not take over, and {} leads again", self.peer, self.node))
                    }
                    _ if Clock.now() >= until => Err(format!(
                        "the service is stopped and the lease given back; {} has not been heard to lead yet",
                        self.peer
                    )),
                    _ => return,
                };
                let peer = self.peer;
                if let Some(asker) = self.orders.order.take().and_then(|order| order.asker) {
                    match outcome {
                        Ok(()) => asker.done(format!("{peer} leads")),
                        Err(why) => asker.refused(why),
                    }
                }
            }
        }
    }

    pub(super) fn orders_progress(&self, text: &str) {
        if let Some(asker) = self.orders.order.as_ref().and_then(|order| order.asker.as_ref()) {
            asker.progress(text);
        }
    }

    /// The service has stopped, and the lease was given back or not.
    pub(super) fn orders_stepped_down(&mut self, outcome: Result<(), String>) {
        let Some(mut order) = self.orders.order.take() else { return };
        match (outcome, &order.asker) {
            (Ok(()), Some(asker)) if !order.wait => {
                asker.done(format!("{} has stopped, and {} may lead", self.node, self.peer));
            }
            (Ok(()), _) => {
                self.orders_progress("the lease was given back");
                order.stage = Stage::Handed(Clock.now() + self.lease * TAKE_OVER_LEASES);
                self.orders.order = Some(order);
            }
            (Err(why), Some(asker)) => asker.refused(format!("the service comes back here: {why}")),
            (Err(why), None) => tracing::warn!("no fail-back: {why}"),
        }
    }

    /// Gives the service back to the preferred node, if that was asked for and both have been well for long enough.
    fn fail_back(&mut self) {
        let AgentConfig { preferred, fail_back: Some(after), .. } = &self.config else { return };
        let leads_well = matches!(self.supervisor.service(), Service::Leads(_))
            && *preferred == Some(self.peer)
            && !self.supervisor.paused()
            && self.orders.order.is_none()
            && self.redundant.0 == Some(true)
            && self.state.borrow().why_not_hand_over().is_none();
        let now = Clock.now();
        match (leads_well, self.orders.could_fail_back) {
            (false, _) => self.orders.could_fail_back = None,
            (true, None) => self.orders.could_fail_back = Some(now),
            (true, Some(since)) if now.since(since) >= *after => {
                self.orders.could_fail_back = None;
                tracing::info!(to = %self.peer, "the preferred node gets the service back");
                let (stage, reason) = (self.checking(), Reason::Preferred);
                self.orders.order = Some(Order { asker: None, wait: false, reason, stage });
                self.apply(Input::CheckNow);
            }
            _ => {}
        }
    }

    fn set_paused(&mut self, paused: bool, asker: &Asker) {
        let mark = self.config.mark_paused(self.notes.directory());
        if let Err(error) = keep_mark(&mark, paused) {
            return asker.refused(format!("{}: {error}", mark.display()));
        }
        if !paused && !self.hook_runs {
            // One of an earlier life, which was left alone until now.
            self.hooks.kill_left_over();
        }
        self.notes.note(self.node, if paused { "pause" } else { "resume" }, None, self.token(), "operator");
        self.apply(Input::Pause(paused));
        tracing::warn!(paused, "an operator");
        if paused {
            asker.done(format!(
                "the service on {} is left alone, whatever happens to the votes, and the watchdog is fed; {} is not \
                 paused by this: if {} loses its lease, {} may lead and start the service as well",
                self.node, self.peer, self.node, self.peer
            ));
        } else {
            asker.done(format!("the service on {} follows the votes again", self.node));
        }
    }

    fn drill(&mut self, what: Drill, span: Duration, asker: &Asker) {
        if span.is_zero() || span > DRILL_MAX {
            return asker.refused(format!("a drill lasts at most {DRILL_MAX:?}, and longer than nothing"));
        }
        self.notes.note(self.node, "drill", None, self.token(), format!("{what:?} for {span:?}"));
        tracing::warn!(?what, ?span, "a drill begins");
        match what {
            Drill::Partition => {
                self.cluster.isolate(span);
                asker.done(format!("{} hears nobody and is heard by nobody for {span:?}", self.node));
            }
            Drill::Freeze => match freeze(span) {
                Ok(()) => asker.done(format!("the agent on {} is stopped for {span:?}", self.node)),
                Err(error) => asker.refused(error.to_string()),
            },
            Drill::Kill => {
                asker.done(format!(
                    "the agent on {} is killed; whoever runs it has to start it again",
                    self.node
                ));
                self.tasks.spawn(async {
                    // The answer leaves first.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let _ = rustix::process::kill_process(
                        rustix::process::getpid(),
                        rustix::process::Signal::KILL,
                    );
                });
            }
        }
    }
}

/// Makes or removes a mark, durably: a machine that loses power must not forget that its service is left alone.
fn keep_mark(mark: &Path, wanted: bool) -> std::io::Result<()> {
    if wanted {
        std::fs::File::create(mark)?.sync_all()?;
    } else if let Err(error) = std::fs::remove_file(mark)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let directory = mark.parent().unwrap_or(Path::new("."));
    std::fs::File::open(directory)?.sync_all()
}

/// Another process stops this one and lets it go on: so it ends whatever happens to the operator's terminal.
fn freeze(span: Duration) -> std::io::Result<()> {
    let mut helper = tokio::process::Command::new("/proc/self/exe");
    helper.args(["freeze", "--pid", &std::process::id().to_string()]);
    helper.args(["--for-ms", &span.as_millis().to_string()]).process_group(0);
    // Nobody waits for it here: the runtime does, when it has ended.
    helper.stdin(std::process::Stdio::null()).spawn().map(drop)
}
