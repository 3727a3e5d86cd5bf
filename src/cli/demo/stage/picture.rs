//! What the audience sees: lines, a running picture of the three nodes in a terminal, or JSON.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::edge::clock::Clock;
use crate::time::Moment;

use super::nodes::{A, B, WITNESS};
use super::tally::{Seen, Tally};

/// Begins the line anew, and clears it.
const CLEAR: &str = "\r\x1b[2K";

/// How long each state is shown to people.
const PACE: Duration = Duration::from_millis(1500);

#[derive(PartialEq, Eq, Clone, Copy)]
enum Form {
    Json,
    Terminal,
    Lines,
}

/// A time without service.
pub(super) struct Interruption {
    pub(super) what: String,
    /// Until somebody had a lease again; `None` when it was kept all the time.
    pub(super) lease: Option<Duration>,
    /// Until a write was acknowledged again.
    pub(super) acknowledgement: Duration,
}

/// What became of a balance.
pub(super) struct Change {
    pub(super) place: &'static str,
    /// What refuses a stale writer there.
    pub(super) refuses: &'static str,
    /// Why the late write was refused; `None` if it landed.
    pub(super) refusal: Option<String>,
    pub(super) balance: i64,
    pub(super) outcome: &'static str,
}

/// How it went.
pub(super) struct Outcome<'a> {
    pub(super) acknowledged: usize,
    pub(super) lost: &'a BTreeSet<u64>,
    pub(super) terms: usize,
    pub(super) most_leaders: usize,
    pub(super) interruptions: &'a [Interruption],
}

pub(super) struct Picture {
    form: Form,
    tally: Tally,
    began: Moment,
}

impl Picture {
    pub(super) fn new(json: bool, tally: Tally) -> Picture {
        let form = match (json, io::stdout().is_terminal()) {
            (true, _) => Form::Json,
            (false, true) => Form::Terminal,
            (false, false) => Form::Lines,
        };
        Picture { form, tally, began: Clock.now() }
    }

    /// How long a person wants to look at each state.
    pub(super) fn pace(&self) -> Duration {
        if self.form == Form::Json { Duration::ZERO } else { PACE }
    }

    pub(super) fn act(&self, title: &str) {
        match self.form {
            Form::Json => self.json("act", json!({ "title": title })),
            Form::Terminal => self.line(&format!("\n\x1b[1m{title}\x1b[0m")),
            Form::Lines => self.line(&format!("\n{title}")),
        }
    }

    pub(super) fn say(&self, text: &str) {
        match self.form {
            Form::Json => self.json("note", json!({ "text": text })),
            _ => self.line(&format!("{:6.2}  {text}", self.seconds())),
        }
    }

    pub(super) fn interrupted(&self, interruption: &Interruption) {
        if self.form == Form::Json {
            self.json(
                "interruption",
                json!({
                    "what": interruption.what,
                    "first_lease_ms": interruption.lease.map(millis),
                    "first_acknowledgement_ms": millis(interruption.acknowledgement),
                }),
            );
        }
    }

    /// The running picture.
    pub(super) fn draw(&self) {
        if self.form == Form::Terminal {
            let seen = self.tally.seen();
            let line = format!(
                "{:6.2}  {} | {} | {} | acked {}",
                self.seconds(),
                replica(&seen, A),
                replica(&seen, B),
                if seen.up.contains(WITNESS) { "w up" } else { "w DOWN" },
                seen.acknowledged.len()
            );
            self.raw(&format!("{CLEAR}{line}"));
        }
    }

    pub(super) fn end(&self, outcome: &Outcome<'_>) {
        let Outcome { acknowledged, lost, terms, most_leaders, interruptions } = outcome;
        if self.form == Form::Json {
            self.json(
                "end",
                json!({
                    "acknowledged": acknowledged,
                    "lost": lost.len(),
                    "terms": terms,
                    "leaders_per_term": most_leaders,
                    "interruptions": interruptions.len(),
                    "lost_ids": lost.iter().take(10).collect::<Vec<_>>(),
                }),
            );
            return;
        }
        let mut times = Table::new();
        times.load_style(presets::UTF8_HORIZONTAL_ONLY);
        times.set_header(["interruption", "to the first lease", "to the first acknowledgement"]);
        for Interruption { what, lease, acknowledgement } in *interruptions {
            let lease = lease.map_or("kept".into(), |lease| format!("{} ms", millis(lease)));
            times.add_row([what.clone(), lease, format!("{} ms", millis(*acknowledgement))]);
        }
        let mut counts = Table::new();
        counts.load_style(presets::UTF8_HORIZONTAL_ONLY);
        counts.add_row(["writes acknowledged".to_owned(), acknowledged.to_string()]);
        counts.add_row(["of these lost".to_owned(), lost.len().to_string()]);
        counts.add_row([format!("leaders per term, at most, in {terms} terms"), most_leaders.to_string()]);
        self.line(&format!("\n{times}\n(kept: the same leader went on leading)\n\n{counts}"));
    }

    pub(super) fn changes(&self, changes: &[Change]) {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["the balance is in", "what refuses there", "the late write", "balance", ""]);
        for Change { place, refuses, refusal, balance, outcome } in changes {
            if self.form == Form::Json {
                let what = json!({
                    "place": place, "refuses": refuses, "refusal": refusal, "balance": balance, "outcome": outcome,
                });
                self.json("balance", what);
                continue;
            }
            if let Some(why) = refusal {
                self.say(&format!("{refuses}: {why}"));
            }
            let late = if refusal.is_some() { "refused" } else { "landed" };
            table.add_row([*place, *refuses, late, &balance.to_string(), *outcome]);
        }
        if self.form != Form::Json {
            self.line(&format!("\n{table}"));
        }
    }

    fn json(&self, event: &str, mut body: Value) {
        body["event"] = event.into();
        body["at_ms"] = millis(Clock.now().since(self.began)).into();
        self.raw(&format!("{body}\n"));
    }

    fn line(&self, text: &str) {
        let clear = if self.form == Form::Terminal { CLEAR } else { "" };
        self.raw(&format!("{clear}{text}\n"));
        self.draw();
    }

    fn raw(&self, text: &str) {
        // Nobody may be looking any more; the story goes on to its exit code.
        let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    }

    fn seconds(&self) -> f64 {
        Clock.now().since(self.began).as_secs_f64()
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        if self.form == Form::Terminal {
            self.raw(CLEAR);
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn replica(seen: &Seen, name: &'static str) -> String {
    if !seen.up.contains(name) {
        return format!("{name} DOWN");
    }
    if seen.paused.contains(name) {
        return format!("{name} STOPPED");
    }
    match seen.status.get(name) {
        Some(status) if status.leads => format!("{name} LEADS {} token {}", status.right, status.term.0),
        Some(status) if status.joined => format!("{name} follows"),
        Some(status) if status.stale.is_some() => format!("{name} refused: stale"),
        Some(status) if status.follows.is_some() => format!("{name} catches up"),
        _ => format!("{name} waits"),
    }
}
