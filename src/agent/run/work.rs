//! Doing what the supervisor wants, and telling it how that ended.

use std::os::unix::process::ExitStatusExt;

use crate::agent::command;
use crate::agent::config::ServiceConfig;
use crate::agent::hooks::environment;
use crate::agent::supervisor::{Action, Call, Hook, Input, Outcome, Reason, Run, Service, Ticket};
use crate::client::{NotTaken, Role};
use crate::edge::clock::Clock;
use crate::edge::identity::Identity;
use crate::ids::{NodeId, Position, Token};
use crate::message::Refusal;

use super::{Agent, Ended, Event, Reload, STAY_MAX};

/// What was told and noted last.
#[derive(Debug, Default)]
pub(super) struct Noted {
    leads: bool,
    may_act: bool,
    follows: Option<NodeId>,
    token: Option<Token>,
    promoted_for: Option<Reason>,
    demoted_for: Option<Reason>,
}

impl Agent {
    /// One input, and everything that follows from it at once.
    pub(super) fn apply(&mut self, input: Input) {
        for action in self.supervisor.handle(Clock.now(), input) {
            self.perform(action);
        }
        self.note();
    }

    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Ended(ended) => self.hook_ended(ended),
            Event::Exited(number, how) => {
                if number == self.commands_started && self.running.take().is_some() {
                    tracing::warn!("the command has ended: {how}");
                    self.apply(Input::Exited);
                }
            }
            Event::Emptied => {
                // The hook that was killed with it is heard of first.
                self.emptied = true;
                self.tell_emptied();
            }
            Event::Called(call, answer) => {
                if let Err(why) = &answer {
                    tracing::info!(?call, "not taken: {why}");
                }
                // The voter's word is there before its answer is.
                self.role = self.cluster.role();
                let votes = self.votes();
                self.apply(Input::Votes(votes));
                self.apply(Input::Called(call, answer.map_err(|why| why.to_string())));
            }
            Event::Reported(report) => {
                self.reporting = false;
                self.report = Some(*report);
            }
        }
    }

    fn hook_ended(&mut self, ended: Ended) {
        let Ended { hook, outcome, took, said } = ended;
        self.hook_runs = false;
        self.hooks.forget();
        let good = outcome.good()
            || hook == Hook::Check && outcome.lags()
            || hook == Hook::Demote && outcome.has_no_data();
        self.metrics.ran(hook, good, took);
        if !good {
            tracing::warn!(%hook, ?took, "failed: {outcome}");
        } else if hook != Hook::Check {
            tracing::info!(%hook, ?took, "done");
        }
        // One that was killed to make way has said nothing that counts.
        if hook == Hook::Check && matches!(outcome, Outcome::Code(_)) {
            self.said = said;
        }
        self.apply(Input::Done(hook, outcome));
        if !good && hook != Hook::OnEvent {
            self.tell("hook_failed", hook.name());
        }
        self.tell_emptied();
    }

    fn tell_emptied(&mut self) {
        if self.emptied && !self.hook_runs {
            self.emptied = false;
            self.running = None;
            self.apply(Input::Emptied);
        }
    }

    pub(super) fn tell(&mut self, event: &'static str, text: &str) {
        self.apply(Input::Event(event, text.to_owned()));
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Run(run) => self.run_hook(&run),
            Action::KillHook => self.hooks.kill(),
            Action::KillService => {
                tracing::error!("everything of the service is killed");
                self.metrics.killed();
                self.orders_progress("demote took too long or failed: everything is killed");
                let (containment, events) = (self.containment.clone(), self.events.clone());
                self.hooks.kill();
                self.tasks.spawn(async move {
                    command::kill(containment).await;
                    let _ = events.send(Event::Emptied).await;
                });
            }
            Action::Call(call) => self.call(call),
            Action::Escalate => {
                if self.watchdog.is_some() {
                    tracing::error!("the kill has not worked in time: the watchdog resets this machine");
                } else {
                    tracing::error!(
                        "the kill has not worked in time, and there is no watchdog: turn this machine off"
                    );
                }
            }
            Action::SteppedDown(outcome) => self.orders_stepped_down(outcome),
            Action::Exit => {
                self.leaving.get_or_insert(Clock.now() + STAY_MAX.min(self.lease * 2));
            }
        }
    }

    fn run_hook(&mut self, run: &Run) {
        match run.hook {
            Hook::Promote => {
                self.noted.promoted_for = Some(run.reason.clone());
                // Before anything acts: whoever comes after a crash has to know.
                if let Err(error) = std::fs::write(self.config.mark_acts(), "") {
                    let why = format!("{}: {error}", self.config.mark_acts().display());
                    return self.ended(Hook::Promote, Outcome::NotStarted(why));
                }
                self.write_token();
            }
            Hook::Demote => {
                self.noted.demoted_for = Some(run.reason.clone());
                self.orders_progress("demote runs");
            }
            _ => {}
        }
        if let ServiceConfig::Command(words) = &self.config.service {
            let words = words.clone();
            match run.hook {
                Hook::Promote => self.start_command(&words, run),
                Hook::Demote => self.end_command(),
                _ => {}
            }
            return;
        }
        self.hook_runs = true;
        self.hooks.start(run, self.token());
    }

    fn start_command(&mut self, words: &[std::ffi::OsString], run: &Run) {
        tracing::info!(reason = %run.reason, "the command is started");
        let told = environment(self.hooks.facts(), run, self.token(), Clock.now());
        match command::start(words, told, self.cgroup.as_ref(), None, &self.containment) {
            Ok((running, mut child)) => {
                self.running = Some(running);
                self.commands_started += 1;
                let (number, events) = (self.commands_started, self.events.clone());
                // Before its end can be heard of.
                self.ended(Hook::Promote, Outcome::Code(0));
                self.tasks.spawn(async move {
                    let how = match child.wait().await {
                        Ok(status) => status.signal().map_or_else(
                            || format!("exit code {}", status.code().unwrap_or(-1)),
                            |signal| format!("signal {signal}"),
                        ),
                        Err(error) => error.to_string(),
                    };
                    let _ = events.send(Event::Exited(number, how)).await;
                });
            }
            Err(error) => self.ended(Hook::Promote, Outcome::NotStarted(error.to_string())),
        }
    }

    fn end_command(&mut self) {
        command::ask_to_end(&self.containment);
        let (containment, events, began) = (self.containment.clone(), self.events.clone(), Clock.now());
        let number = self.commands_started;
        self.hook_runs = true;
        self.tasks.spawn(async move {
            command::empty(containment).await;
            tracing::debug!(number, "nothing of the command is left");
            let took = Clock.now().since(began);
            let ended = Ended { hook: Hook::Demote, outcome: Outcome::Code(0), took, said: String::new() };
            let _ = events.send(Event::Ended(ended)).await;
        });
    }

    /// A hook that took no time.
    fn ended(&mut self, hook: Hook, outcome: Outcome) {
        self.hook_runs = true;
        let events = self.events.clone();
        let ended = Ended { hook, outcome, took: std::time::Duration::ZERO, said: String::new() };
        self.tasks.spawn(async move {
            let _ = events.send(Event::Ended(ended)).await;
        });
    }

    fn call(&mut self, call: Call) {
        let (cluster, events) = (self.cluster.clone(), self.events.clone());
        let offer = match &self.role {
            Role::Standby(standby) => standby.offer,
            Role::Leader(_) => None,
        };
        // Positions are the business of the service's own replication: who holds everything is what `check` says.
        let position = Position(0);
        self.tasks.spawn(async move {
            let answer = match call {
                Call::Offer => cluster.offer(position).await,
                Call::Join(ticket) => {
                    match offer.filter(|offer| ticket == Ticket(offer.term.0, offer.link.0)) {
                        Some(offer) => cluster.joined(&offer, offer.position).await,
                        None => Err(NotTaken::Refused(Refusal::Void)),
                    }
                }
                Call::Resync => cluster.resync().await,
                Call::Stalled => cluster.stalled().await,
                Call::Release => match cluster.resign().await {
                    Ok(()) => cluster.stopped().await,
                    refused => refused,
                },
            };
            let _ = events.send(Event::Called(call, answer)).await;
        });
    }

    /// Writes down, and tells, what has changed for people.
    fn note(&mut self) {
        let leads = matches!(self.supervisor.service(), Service::Leads(_));
        let token = self.token();
        let may_act = self.supervisor.may_act();
        if self.noted.may_act && !may_act {
            let _ = std::fs::remove_file(self.config.mark_acts());
            let _ = std::fs::remove_file(self.config.token_file());
        }
        if leads && token != self.noted.token {
            self.write_token();
        }
        if leads && !self.noted.leads {
            let reason = self.noted.promoted_for.clone().unwrap_or(Reason::Elected).to_string();
            self.metrics.promoted(&reason);
            self.notes.note(self.node, "leads", token.map(Token::term), token, &reason);
            self.noted.leads = true;
            tracing::info!(token = token.map(|token| token.0), "the service acts here");
            self.tell("leads", &reason);
        } else if self.noted.leads && !leads && !may_act {
            let reason = self.noted.demoted_for.clone().unwrap_or(Reason::NotLeading).to_string();
            self.metrics.demoted(&reason);
            self.notes.note(self.node, "stops", self.noted.token.map(Token::term), self.noted.token, &reason);
            self.noted.leads = false;
            tracing::info!(%reason, "the service does not act here any more");
            self.tell("stops", &reason);
        }
        if leads || !self.noted.leads {
            self.noted.token = token;
        }
        self.noted.may_act = may_act;
        if let Role::Standby(standby) = &self.role
            && standby.leader.is_some_and(|leader| leader != self.node)
            && standby.leader != self.noted.follows
        {
            let (leader, term) = (standby.leader, standby.leader_term);
            self.noted.follows = leader;
            self.notes.note(self.peer, "leads", Some(term), Some(Token::of(term)), "heard of it");
            self.tell("follows", self.peer.clone().as_str());
        } else if matches!(self.role, Role::Leader(_)) {
            self.noted.follows = None;
        }
    }

    /// For services that read the token whenever they write. Replaced whole.
    fn write_token(&self) {
        let Some(token) = self.token() else { return };
        let place = self.config.token_file();
        let new = place.with_extension("new");
        let written = std::fs::write(&new, format!("{token}\n")).and_then(|()| std::fs::rename(&new, &place));
        if let Err(error) = written {
            tracing::warn!(path = %place.display(), "the token cannot be written: {error}");
        }
    }

    /// What can change while it runs is taken over; the rest needs a restart, and that is said.
    pub(super) fn reload(&mut self, reload: &Reload) {
        let (replica, new) = match reload() {
            Ok(new) => new,
            Err(error) => return tracing::error!("the old configuration stays in force: {error}"),
        };
        let old = &self.config;
        // The lease and the watchdog stay as they are until the next start: the other times have to fit into them.
        let mut times = new.times.clone();
        times.lease = old.times.lease;
        times.solo_after = old.times.solo_after;
        if let Err(error) = times.check(old.watchdog_fires()) {
            return tracing::error!(
                "the old configuration stays in force, since lease and watchdog change at the next start only: {error}"
            );
        }
        if replica.own.node != self.node || replica.peer.node != self.peer {
            return tracing::error!(
                "the old configuration stays in force: nodes keep their names while they run"
            );
        }
        match Identity::load(&replica.own.key) {
            Ok(identity) => {
                if let Err(error) = self.cluster.use_key(&identity) {
                    tracing::error!("the old key stays in use: {error}");
                }
            }
            Err(error) => tracing::error!("the old key stays in use: {error}"),
        }
        self.cluster.reconfigure(replica.peer, replica.witness);
        let restart = new.http != old.http
            || new.runtime != old.runtime
            || new.group != old.group
            || new.cgroup != old.cgroup
            || new.times.lease != old.times.lease
            || new.watchdog_fires() != old.watchdog_fires()
            || new.watchdog_device != old.watchdog_device
            || matches!((&new.service, &old.service), (ServiceConfig::Command(new), ServiceConfig::Command(old)) if new != old);
        if restart {
            tracing::warn!("lease, watchdog, addresses, paths and groups change at the next start only");
        }
        if let ServiceConfig::Hooks(paths) = &new.service {
            self.hooks.set_paths(paths.clone());
        }
        self.config.times = times;
        self.config.service = new.service;
        self.config.preferred = new.preferred;
        self.config.fail_back = new.fail_back;
        self.config.no_failover = new.no_failover;
        self.apply(Input::Reload(self.config.plan()));
        tracing::info!("the configuration was read again");
    }
}
