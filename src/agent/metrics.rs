//! Counters, and the text that Prometheus reads (text format 0.0.4).

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::client::{Remaining, Role};
use crate::message::Part;

use super::state::{State, Watched};
use super::supervisor::{Data, Hook};

/// What became of the runs of one hook.
#[derive(Clone, Copy, Default, Debug)]
struct Runs {
    good: u64,
    failed: u64,
    seconds: f64,
    last: f64,
}

#[derive(Clone, Default, Debug)]
struct Counters {
    hooks: BTreeMap<Hook, Runs>,
    promotions: BTreeMap<String, u64>,
    demotions: BTreeMap<String, u64>,
    kills: u64,
}

/// What was counted since the agent started.
#[derive(Default, Debug)]
pub struct Metrics(Mutex<Counters>);

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hook has ended.
    pub fn ran(&self, hook: Hook, good: bool, took: Duration) {
        let mut counters = self.lock();
        let runs = counters.hooks.entry(hook).or_default();
        if good {
            runs.good += 1;
        } else {
            runs.failed += 1;
        }
        runs.last = took.as_secs_f64();
        runs.seconds += runs.last;
    }

    /// The service acts here from now on.
    pub fn promoted(&self, reason: &str) {
        *self.lock().promotions.entry(word(reason)).or_default() += 1;
    }

    /// It stops.
    pub fn demoted(&self, reason: &str) {
        *self.lock().demotions.entry(word(reason)).or_default() += 1;
    }

    /// It had to be killed.
    pub fn killed(&self) {
        self.lock().kills += 1;
    }

    /// The page.
    pub fn page(&self, state: &State) -> String {
        let counters = self.lock().clone();
        let mut page = Page::default();
        let flag = |yes: bool| u8::from(yes);
        let (leads, lease) = match &state.role {
            Role::Leader(leader) => (true, leader.lease.as_ref().map(crate::client::Lease::remaining)),
            Role::Standby(_) => (false, None),
        };
        page.gauge("leads", "Whether this node leads its term.", flag(leads));
        page.gauge("may_act", "Whether this node has the right to act.", flag(state.may_act()));
        page.gauge("primary", "Whether the service acts here and may.", flag(state.is_primary()));
        page.gauge("replica", "Whether the service follows here, up to date.", flag(state.is_replica()));
        page.gauge("healthy", "Whether the last check found the service well.", flag(state.is_healthy()));
        let term = match &state.role {
            Role::Leader(leader) => leader.term,
            Role::Standby(standby) => standby.term,
        };
        page.gauge("term", "The highest term that this node knows.", term);
        if let Some(Remaining::Left(left)) = lease {
            page.gauge(
                "lease_left_seconds",
                "What is left of the lease; absent when sole or without one.",
                left.as_secs_f64(),
            );
        }
        page.gauge(
            "sole",
            "Whether this node leads without a lease, alone.",
            flag(lease == Some(Remaining::Sole)),
        );
        page.head("right_to_acknowledge", "gauge", "What a leader may acknowledge.");
        for right in ["none", "blocked", "paired", "solo"] {
            page.line("right_to_acknowledge", &[("right", right)], flag(state.right_word() == right));
        }
        if let Some(report) = &state.report {
            let others = report.others.iter().flatten();
            let witness = others.clone().any(|other| other.part == Part::Witness);
            page.gauge(
                "votes_reachable",
                "Voters that this one reaches, itself included.",
                1 + others.count(),
            );
            page.gauge("witness_up", "Whether this node has a link to the witness.", flag(witness));
        }
        page.head("round_trip_seconds", "gauge", "The way to another voter and back.");
        for (to, round_trip) in ["peer", "witness"].into_iter().zip(state.measures.round_trips) {
            if let Some(round_trip) = round_trip {
                page.line("round_trip_seconds", &[("to", to)], round_trip.as_secs_f64());
            }
        }
        page.syncs(state.measures.syncs, state.measures.sync_total, state.measures.sync_last);
        if let Some(redundant) = state.redundant {
            page.gauge(
                "redundancy_lost",
                "Of a leader: whether the second copy or the witness is missing.",
                flag(!redundant),
            );
        }
        let is_missing = state.data == Data::Missing;
        page.gauge("data_missing", "Whether `demote` found no usable data on this node.", flag(is_missing));
        page.gauge("paused", "Whether the service is left alone.", flag(state.paused));
        page.gauge("watchdog_armed", "Whether there is a watchdog.", flag(state.watchdog != Watched::Off));
        page.gauge("watchdog_starved", "Whether it is not fed.", flag(state.watchdog == Watched::Starved));
        page.head("promotions_total", "counter", "Times that the service was promoted here.");
        for (reason, count) in &counters.promotions {
            page.line("promotions_total", &[("reason", reason)], count);
        }
        page.head("demotions_total", "counter", "Times that the service was demoted here.");
        for (reason, count) in &counters.demotions {
            page.line("demotions_total", &[("reason", reason)], count);
        }
        page.head("kills_total", "counter", "Times that the service had to be killed.");
        page.line("kills_total", &[], counters.kills);
        page.head("hook_runs_total", "counter", "Runs of hooks that have ended.");
        for (hook, runs) in &counters.hooks {
            page.line("hook_runs_total", &[("hook", hook.name()), ("outcome", "good")], runs.good);
            page.line("hook_runs_total", &[("hook", hook.name()), ("outcome", "failed")], runs.failed);
        }
        page.head("hook_seconds_total", "counter", "Time that hooks have taken.");
        for (hook, runs) in &counters.hooks {
            page.line("hook_seconds_total", &[("hook", hook.name())], runs.seconds);
        }
        page.head("hook_last_seconds", "gauge", "Time that the last run of a hook took.");
        for (hook, runs) in &counters.hooks {
            page.line("hook_last_seconds", &[("hook", hook.name())], runs.last);
        }
        page.text()
    }
}

/// The part of a reason that is not an operator's own words.
fn word(reason: &str) -> String {
    reason.split(':').next().unwrap_or("").replace(' ', "_")
}

/// A page in the making.
#[derive(Default, Debug)]
pub struct Page(String);

impl Page {
    /// The whole of it.
    pub fn text(self) -> String {
        self.0
    }

    /// How long syncs of the durable state take.
    pub fn syncs(&mut self, syncs: u64, total: Duration, last: Duration) {
        self.head("syncs_total", "counter", "Syncs of the voter's durable state.");
        self.line("syncs_total", &[], syncs);
        self.head("sync_seconds_total", "counter", "The time that they took.");
        self.line("sync_seconds_total", &[], total.as_secs_f64());
        self.gauge("sync_last_seconds", "The time that the last one took.", last.as_secs_f64());
    }

    /// One number.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.line(name, &[], value);
    }

    /// What a family of numbers is.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP tiebreak_{name} {help}\n# TYPE tiebreak_{name} {kind}\n");
    }

    /// One of them.
    pub fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.0, "tiebreak_{name}");
        for (place, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{text}\"", if place == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}
