//! The loop between the voter, the supervisor and everything that they want done.
//!
//! It waits for nothing but events: whatever takes time (a hook, the voter's answer, a kill) is started and reported
//! back. So the time from a lost lease to the demote does not depend on any of them, and the watchdog is fed by the loop
//! that decides.

mod orders;
mod work;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::client::{Cluster, Failure, JoinError, NotTaken, Remaining, Role};
use crate::config::ReplicaConfig;
use crate::edge::clock::Clock;
use crate::ids::{NodeId, Position, Token};
use crate::message::{Part, Report};
use crate::time::Moment;

use super::command::{LOOK_EVERY, Running};
use super::config::{AgentConfig, ServiceConfig};
use super::contain::{self, Cgroup, Containment};
use super::control::{self, Command};
use super::history::{History, Notes};
use super::hooks::{Ended, Facts, Hooks};
use super::http::{self, Answers};
use super::locks::Locks;
use super::metrics::Metrics;
use super::state::{State, Watched};
use super::supervisor::{Call, Data, Hook, Input, Leads, Service, Supervisor, Ticket, Votes};
use super::systemd::{self, Pulse};
use super::times::TimesError;
use super::watchdog::{self, Device, WatchdogError, Wish};
use orders::Orders;

/// Events that wait for the loop.
const EVENTS_MAX: usize = 64;
/// Between two reports of the voter.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The loop turns at least so often, so that monitors can tell that it does.
const TURN_EVERY: Duration = Duration::from_secs(1);
/// Characters of the name of a cgroup.
const CGROUP_NAME_CHARS_MAX: usize = 100;
/// For how long an agent that has given its lease back stays, so that the other node hears of it and leads.
const STAY_MAX: Duration = Duration::from_secs(10);
/// Time without a turn after which the agent counts as dead, in leases.
const ALIVE_LEASES: u32 = 2;

/// Why the agent cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Its times do not fit.
    #[error(transparent)]
    Times(#[from] TimesError),
    /// The watchdog.
    #[error(transparent)]
    Watchdog(#[from] WatchdogError),
    /// The voter cannot start.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The voter has failed. The service was stopped.
    #[error("the voter has failed, and the service was stopped: {0}")]
    Voter(Failure),
    /// Something of the system.
    #[error("{what}: {source}")]
    System {
        /// What cannot be done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> AgentError {
    let what = what.into();
    move |source| AgentError::System { what, source }
}

/// What happens to the loop.
#[derive(Debug)]
enum Event {
    /// A hook has ended.
    Ended(Ended),
    /// The command has ended: which one, counted from the start of the agent.
    Exited(u64, String),
    /// Nothing is left after a kill.
    Emptied,
    /// The voter has answered.
    Called(Call, Result<(), NotTaken>),
    /// How the voter sees the cluster.
    Reported(Box<Report>),
}

/// Reads the configuration again.
pub type Reload = Box<dyn Fn() -> Result<(ReplicaConfig, AgentConfig), String>>;

/// Checks what can be checked without starting anything.
///
/// # Errors
/// If the times cannot be met, with the sums.
pub fn check(config: &AgentConfig) -> Result<(), AgentError> {
    Ok(config.times.check(config.watchdog_fires())?)
}

/// Runs until SIGTERM or SIGINT, or until the voter fails. To be called in a Tokio runtime of one thread.
///
/// # Errors
/// If it cannot start, or the voter failed.
pub async fn run(replica: ReplicaConfig, config: AgentConfig, reload: Reload) -> Result<(), AgentError> {
    check(&config)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system("cannot wait for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("cannot wait for SIGINT"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(system("cannot wait for SIGHUP"))?;
    let cluster = Cluster::join(replica.clone(), Position(0)).await?;
    // The first `demote` says whether there is data to stand with. One that has stopped already says so below.
    let _ = cluster.stands(false).await;
    let (mut agent, mut events, mut commands) = Agent::start(&replica, config, cluster)?;
    let mut roles = agent.cluster.roles();
    if !agent.supervisor.paused() {
        end_left_overs(&agent).await;
    }
    systemd::ready();
    let mut pulse = Pulse::new();
    agent.apply(Input::Votes(Votes::default()));
    loop {
        let now = agent.turn();
        pulse.beat(now);
        if agent.may_leave(now) {
            break;
        }
        let wake = agent.wake_at(now);
        tokio::select! {
            role = roles.next(), if agent.failure.is_none() => match role {
                Some(role) => agent.role = role,
                None => agent.voter_is_over().await,
            },
            Some(event) = events.recv() => agent.event(event),
            Some(command) = commands.recv() => agent.command(command),
            _ = terminate.recv() => agent.shutdown("SIGTERM"),
            _ = interrupt.recv() => agent.shutdown("SIGINT"),
            _ = hangup.recv() => agent.reload(&reload),
            () = Clock.until(wake) => {}
        }
    }
    systemd::stopping();
    agent.end().await
}

/// An earlier life of the agent may have left something running that would undo this life's first `demote`.
async fn end_left_overs(agent: &Agent) {
    let until = Clock.now() + agent.config.times.kill;
    let runtime = &agent.hooks.facts().runtime;
    let is_command = matches!(agent.config.service, ServiceConfig::Command(_));
    loop {
        let gone = agent.hooks.kill_left_over();
        let found = if is_command && agent.supervisor.may_act() { contain::kill_marked(runtime) } else { 0 };
        if found > 0 {
            tracing::warn!(processes = found, "an earlier life of this agent left them running: killed");
        }
        if gone && found == 0 {
            return;
        }
        if Clock.now() >= until {
            return tracing::error!("what an earlier life of this agent has left running cannot be killed");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Everything that the loop holds.
struct Agent {
    node: NodeId,
    peer: NodeId,
    lease: Duration,
    config: AgentConfig,
    cluster: Arc<Cluster>,
    role: Role,
    supervisor: Supervisor,
    hooks: Hooks,
    containment: Arc<Containment>,
    cgroup: Option<Cgroup>,
    /// The command of `tiebreak run`, when it runs, and how many there were.
    running: Option<Running>,
    commands_started: u64,
    /// A hook runs.
    hook_runs: bool,
    /// Nothing was left after a kill, and the hook that was killed has not been heard of yet.
    emptied: bool,
    events: mpsc::Sender<Event>,
    tasks: JoinSet<()>,
    watchdog: Option<Box<dyn Device>>,
    watched: Watched,
    feed_at: Moment,
    report: Option<Report>,
    reporting: bool,
    report_at: Moment,
    said: String,
    /// Since when redundancy has been as it is, and what was told of it.
    redundant: (Option<bool>, Moment),
    redundant_told: Option<bool>,
    orders: Orders,
    state: watch::Sender<State>,
    metrics: Arc<Metrics>,
    notes: Notes,
    beat: Arc<AtomicU64>,
    failure: Option<Failure>,
    /// Whether the voter was told that it may stand.
    stands: bool,
    /// Everything is done; it stays until the other node leads, and until then at the most.
    leaving: Option<Moment>,
    /// What was told and noted last, to tell what has changed.
    noted: work::Noted,
}

type Parts = (Agent, mpsc::Receiver<Event>, mpsc::Receiver<Command>);

impl Agent {
    fn start(replica: &ReplicaConfig, config: AgentConfig, cluster: Cluster) -> Result<Parts, AgentError> {
        let runtime = config.runtime.clone();
        let group = config.group.as_deref();
        control::make_runtime(&runtime, group).map_err(system(format!("{}", runtime.display())))?;
        let (node, peer) = (replica.own.node, replica.peer.node);
        let (to, events) = mpsc::channel(EVENTS_MAX);
        let (ended, mut hooks_ended) = mpsc::channel(EVENTS_MAX);
        let mut tasks = JoinSet::new();
        let forward = to.clone();
        tasks.spawn(async move {
            while let Some(ended) = hooks_ended.recv().await {
                let _ = forward.send(Event::Ended(ended)).await;
            }
        });
        let cgroup = Cgroup::make(&cgroup_name(&config.runtime))
            .inspect_err(|error| {
                tracing::info!("no cgroup for the service, process groups have to do: {error}");
            })
            .ok();
        let mut cgroups: Vec<Cgroup> = cgroup.iter().cloned().collect();
        if let Some(place) = &config.cgroup {
            cgroups.push(Cgroup::of_others(place));
        }
        let containment = Arc::new(Containment::new(cgroups));
        let paths = match &config.service {
            ServiceConfig::Hooks(paths) => paths.clone(),
            ServiceConfig::Command(_) => BTreeMap::new(),
        };
        let facts = Facts { cluster: replica.cluster, node, peer, runtime };
        let hooks = Hooks::new(paths, facts, cgroup.clone(), containment.clone(), ended);
        let (led, paused) = (config.mark_acts().exists(), config.mark_paused(&replica.own.state).exists());
        if led {
            tracing::warn!("an earlier life of this agent promoted the service and has not demoted it");
        }
        let supervisor = Supervisor::new(config.plan(), led, paused);
        let role = cluster.role();
        let has_check = config.plan().hooks.contains(&Hook::Check);
        let state = State {
            cluster: replica.cluster,
            node,
            peer,
            role: role.clone(),
            report: None,
            measures: cluster.measures(),
            service: Service::Unclear,
            running: None,
            stepping_down: false,
            data: Data::Unknown,
            checked: None,
            said: String::new(),
            has_check,
            paused,
            retry_at: Moment::default(),
            redundant: None,
            watchdog: Watched::Off,
        };
        let (state, seen) = watch::channel(state);
        let metrics = Arc::new(Metrics::default());
        let beat = Arc::new(AtomicU64::new(Clock.now().0));
        let (commanded, commands) = mpsc::channel(EVENTS_MAX);
        let socket = config.socket();
        let listener = control::bind(&socket, config.group.as_deref())
            .map_err(system(format!("the control socket {}", socket.display())))?;
        tasks.spawn(control::serve(listener, seen.clone(), commanded, Locks::new(cluster.names())));
        if let Some(address) = config.http {
            let answers = Answers {
                state: seen,
                metrics: metrics.clone(),
                beat: beat.clone(),
                alive_for: (replica.lease * ALIVE_LEASES).max(TURN_EVERY * 3),
            };
            let address =
                http::serve(address, answers).map_err(system(format!("cannot answer HTTP on {address}")))?;
            tracing::info!(%address, "answers HTTP");
        }
        let notes = History::of(&replica.own.state).keep().map_err(system("no thread for the history"))?;
        // Last of what can fail: a device that is armed and then left alone resets the machine.
        let watchdog = open_watchdog(&config)?;
        let watched = if watchdog.is_some() { Watched::Fed } else { Watched::Off };
        let agent = Agent {
            node,
            peer,
            lease: replica.lease,
            config,
            cluster: Arc::new(cluster),
            role,
            supervisor,
            hooks,
            containment,
            cgroup,
            running: None,
            commands_started: 0,
            hook_runs: false,
            emptied: false,
            events: to,
            tasks,
            watchdog,
            watched,
            feed_at: Moment::default(),
            report: None,
            reporting: false,
            report_at: Moment::default(),
            said: String::new(),
            redundant: (None, Moment::default()),
            redundant_told: None,
            orders: Orders::default(),
            state,
            metrics,
            notes,
            beat,
            failure: None,
            stands: false,
            leaving: None,
            noted: work::Noted::default(),
        };
        Ok((agent, events, commands))
    }

    /// What has to be done whatever happened: the votes, the watchdog, what others are told.
    fn turn(&mut self) -> Moment {
        // What has ended would be kept for ever.
        while self.tasks.try_join_next().is_some() {}
        let votes = self.votes();
        self.apply(Input::Votes(votes));
        self.orders_go_on();
        self.let_it_stand();
        let now = Clock.now();
        self.beat.store(now.0, Ordering::Release);
        self.feed(now);
        self.ask_report(now);
        self.look_at_redundancy(now);
        self.publish();
        now
    }

    fn wake_at(&self, now: Moment) -> Moment {
        let mut wake = self.supervisor.wake_at(now).min(now + TURN_EVERY).min(self.orders.wake_at());
        if self.watchdog.is_some() {
            wake = wake.min(self.feed_at);
        }
        wake.min(self.leaving.unwrap_or(Moment::FOREVER))
    }

    fn may_leave(&self, now: Moment) -> bool {
        let Some(until) = self.leaving else { return false };
        let waits = match &self.role {
            // Nobody is told anything: there is nobody, or the lease was not given back.
            Role::Leader(_) => false,
            Role::Standby(standby) => standby.link.is_some() && standby.leader != Some(self.peer),
        };
        !waits || now >= until || self.failure.is_some()
    }

    /// What the votes say now. An end of the lease moves with each renewal, and is read afresh each time.
    fn votes(&self) -> Votes {
        match &self.role {
            Role::Leader(leader) => {
                let until = leader.lease.as_ref().and_then(|lease| match lease.remaining() {
                    Remaining::Sole => Some(Moment::FOREVER),
                    Remaining::Left(left) => Some(Clock.now() + left),
                    Remaining::Ended => None,
                });
                let leads = Leads {
                    token: leader.token,
                    until,
                    right: leader.right,
                    may_offer: leader.may_offer,
                    peer: leader.link.is_some(),
                };
                Votes { leads: Some(leads), ..Votes::default() }
            }
            Role::Standby(standby) => Votes {
                leads: None,
                follows: standby.leader.filter(|leader| *leader != self.node),
                // Also of a term that it takes part in: after a new link it has to join again.
                offer: standby.offer.map(|offer| Ticket(offer.term.0, offer.link.0)),
            },
        }
    }

    fn token(&self) -> Option<Token> {
        match &self.role {
            Role::Leader(leader) => Some(leader.token),
            Role::Standby(_) => None,
        }
    }

    fn feed(&mut self, now: Moment) {
        if now < self.feed_at {
            return;
        }
        self.feed_at = now + self.config.times.margin();
        let Some(device) = &mut self.watchdog else { return };
        let fed = self.supervisor.may_feed(now, device.timeout());
        if fed && let Err(error) = device.feed() {
            tracing::error!("the watchdog cannot be fed: {error}");
        }
        let watched = if fed { Watched::Fed } else { Watched::Starved };
        if watched != self.watched {
            if !fed {
                let timeout = device.timeout();
                tracing::error!(?timeout, "the watchdog is not fed until the service has stopped");
            }
            self.watched = watched;
        }
    }

    fn ask_report(&mut self, now: Moment) {
        if now < self.report_at || self.reporting || self.failure.is_some() {
            return;
        }
        self.report_at = now + REPORT_EVERY;
        self.reporting = true;
        let (cluster, events) = (self.cluster.clone(), self.events.clone());
        self.tasks.spawn(async move {
            if let Ok(report) = cluster.report().await {
                let _ = events.send(Event::Reported(Box::new(report))).await;
            }
        });
    }

    /// A leader with both copies and the witness is redundant. What lasts no longer than a lease is told to nobody.
    fn look_at_redundancy(&mut self, now: Moment) {
        let seen = match (&self.role, &self.report) {
            (Role::Leader(leader), Some(report)) if leader.lease.is_some() => {
                let witness = report.others.iter().flatten().any(|other| other.part == Part::Witness);
                Some(leader.right == crate::client::Right::Paired && witness)
            }
            _ => None,
        };
        if seen != self.redundant.0 {
            self.redundant = (seen, now);
        }
        if now.since(self.redundant.1) < self.lease || seen == self.redundant_told {
            return;
        }
        match (seen, self.redundant_told) {
            (Some(false), _) => {
                tracing::warn!("redundancy is lost: the second copy or the witness is missing");
                self.tell("redundancy_lost", "the second copy or the witness is missing");
            }
            (Some(true), Some(false)) => {
                tracing::info!("redundancy is back");
                self.tell("redundancy_restored", "both copies and the witness are there");
            }
            _ => {}
        }
        self.redundant_told = seen;
    }

    fn publish(&self) {
        // A reload may have brought one, or taken it away.
        let has_check =
            matches!(&self.config.service, ServiceConfig::Hooks(hooks) if hooks.contains_key(&Hook::Check));
        self.state.send_modify(|state| {
            state.role = self.role.clone();
            state.report = self.report.clone();
            state.measures = self.cluster.measures();
            state.service = self.supervisor.service();
            state.running = self.supervisor.running();
            state.stepping_down = self.supervisor.is_stepping_down();
            state.data = self.supervisor.data();
            state.checked = self.supervisor.checked();
            state.has_check = has_check;
            state.said.clone_from(&self.said);
            state.paused = self.supervisor.paused();
            state.retry_at = self.supervisor.retry_at();
            state.redundant = self.redundant.0;
            state.watchdog = self.watched;
        });
    }

    /// A node that is marked so, or has no usable data, is not elected; it votes all the same.
    fn let_it_stand(&mut self) {
        let stands = self.supervisor.may_stand();
        if self.stands == stands || self.failure.is_some() {
            return;
        }
        self.stands = stands;
        if self.supervisor.data() == Data::Missing {
            tracing::error!(
                "`demote` has found no usable data here: this node is not elected before it has copied a leader"
            );
        }
        let cluster = self.cluster.clone();
        self.tasks.spawn(async move {
            // Whoever has stopped stands no more.
            let _ = cluster.stands(stands).await;
        });
    }

    fn shutdown(&mut self, why: &str) {
        tracing::info!("{why}: the service is stopped, then the lease is given back");
        self.apply(Input::Shutdown);
    }

    /// The voter is gone, and every right with it: stop the service, then end.
    async fn voter_is_over(&mut self) {
        let failure = self.cluster.failed().await;
        tracing::error!("the voter has failed: {failure}");
        self.failure = Some(failure);
        self.apply(Input::Votes(Votes::default()));
        self.apply(Input::Shutdown);
    }

    /// The last words: the watchdog is closed properly, and the others hear that this node leaves.
    async fn end(mut self) -> Result<(), AgentError> {
        self.tasks.shutdown().await;
        if let Some(device) = self.watchdog.take() {
            if self.supervisor.may_act() && !self.supervisor.paused() {
                tracing::error!("the service may still act: the watchdog is left to fire");
                std::mem::forget(device);
            } else if let Err(error) = device.disarm() {
                tracing::error!("the watchdog cannot be closed: {error}");
            }
        }
        self.notes.finish();
        let _ = std::fs::remove_file(self.config.socket());
        if let Some(cgroup) = &self.cgroup {
            // It stays as long as something is in it.
            let _ = std::fs::remove_dir(cgroup.path());
        }
        match self.failure.take() {
            Some(failure) => Err(AgentError::Voter(failure)),
            None => {
                if let Some(cluster) = Arc::into_inner(self.cluster) {
                    cluster.shutdown().await;
                }
                tracing::info!("stopped");
                Ok(())
            }
        }
    }
}

/// The same in each life of this agent, and another one for each agent of a machine.
fn cgroup_name(runtime: &std::path::Path) -> String {
    let place = std::path::absolute(runtime).unwrap_or_else(|_| runtime.into());
    let name = format!("tiebreak{}", place.display()).replace(['/', '.'], "-");
    name.chars().rev().take(CGROUP_NAME_CHARS_MAX).collect::<Vec<_>>().into_iter().rev().collect()
}

fn open_watchdog(config: &AgentConfig) -> Result<Option<Box<dyn Device>>, AgentError> {
    let Some(fires) = config.watchdog_fires() else { return Ok(None) };
    match watchdog::open(&config.watchdog_device, fires) {
        Ok(device) => {
            tracing::info!(path = %config.watchdog_device.display(), ?fires, "the watchdog is armed");
            Ok(Some(device))
        }
        Err(error) if config.watchdog == Wish::Required => Err(error.into()),
        Err(error) => {
            tracing::warn!("no watchdog: {error}");
            Ok(None)
        }
    }
}

impl AgentConfig {
    /// Exists while the service may act, and not after a reboot.
    fn mark_acts(&self) -> PathBuf {
        self.runtime.join("acts")
    }

    /// The token of the leader on this node.
    fn token_file(&self) -> PathBuf {
        self.runtime.join("token")
    }

    /// Exists while the service is left alone, also after a reboot.
    fn mark_paused(&self, state: &std::path::Path) -> PathBuf {
        state.join("paused")
    }
}
