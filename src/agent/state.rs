//! What the agent knows at a moment, for whoever asks: load balancers, monitors, people. Answered from here alone.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use crate::client::{Measures, Remaining, Right, Role};
use crate::edge::clock::Clock;
use crate::ids::{ClusterName, NodeId};
use crate::message::Report;
use crate::time::Moment;

use super::supervisor::{Checked, Data, Hook, Service};

/// What the agent knows at a moment.
#[derive(Clone, Debug)]
pub struct State {
    /// The cluster.
    pub cluster: ClusterName,
    /// This node.
    pub node: NodeId,
    /// The other replica.
    pub peer: NodeId,
    /// What the votes say.
    pub role: Role,
    /// What the voter reported last.
    pub report: Option<Report>,
    /// What the voter measured.
    pub measures: Measures,
    /// What the service is.
    pub service: Service,
    /// The hook that runs, and since when.
    pub running: Option<(Hook, Moment)>,
    /// A step-down is under way.
    pub stepping_down: bool,
    /// Whether there is data to act on.
    pub data: Data,
    /// The last check, and what it said.
    pub checked: Option<Checked>,
    /// What it said.
    pub said: String,
    /// Whether there is a check at all.
    pub has_check: bool,
    /// The service is left alone.
    pub paused: bool,
    /// No promotion before this.
    pub retry_at: Moment,
    /// Of a leader: whether both copies and the witness are there.
    pub redundant: Option<bool>,
    /// The watchdog.
    pub watchdog: Watched,
}

/// The watchdog, as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Watched {
    /// There is none.
    Off,
    /// It is fed.
    Fed,
    /// It is not: it fires soon.
    Starved,
}

impl State {
    /// Whether this node has the right to act at this very moment.
    pub fn may_act(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => leader.lease.as_ref().is_some_and(crate::client::Lease::is_valid),
            Role::Standby(_) => false,
        }
    }

    /// The service acts here, and may.
    pub fn is_primary(&self) -> bool {
        matches!(self.service, Service::Leads(_)) && !self.stepping_down && self.may_act()
    }

    /// The service follows the leader here, holding everything as far as is known.
    pub fn is_replica(&self) -> bool {
        let follows = matches!((&self.role, self.service), (Role::Standby(standby), Service::Follows(leader))
            if standby.leader == Some(leader));
        let in_sync = self.checked.is_some_and(|checked| checked.well && checked.in_sync);
        follows && (in_sync || !self.has_check)
    }

    /// The service runs, as the last check saw it.
    pub fn is_healthy(&self) -> bool {
        let runs = matches!(self.service, Service::Leads(_) | Service::Follows(_));
        runs && (!self.has_check || self.checked.is_some_and(|checked| checked.well))
    }

    /// What the service is, in one word.
    pub fn service_word(&self) -> &'static str {
        match (self.service, self.running) {
            (_, Some((Hook::Promote, _))) => "promoting",
            (_, Some((Hook::Demote, _))) => "demoting",
            (Service::Unclear, _) => "unclear",
            (Service::Rests, _) => "rests",
            (Service::Follows(_), _) => "follows",
            (Service::Leads(_), _) => "leads",
        }
    }

    /// The right to acknowledge, in one word.
    pub fn right_word(&self) -> &'static str {
        match &self.role {
            Role::Leader(leader) => match leader.right {
                Right::Blocked => "blocked",
                Right::Paired => "paired",
                Right::Solo => "solo",
            },
            Role::Standby(_) => "none",
        }
    }

    /// Everything, for machines.
    pub fn json(&self) -> Value {
        let now = Clock.now();
        let mut shown = json!({
            "cluster": self.cluster,
            "node": self.node,
            "peer": self.peer,
            "role": if self.is_primary() { "primary" } else if self.is_replica() { "replica" } else { "none" },
            "service": self.service_word(),
            "may_act": self.may_act(),
            "right": self.right_word(),
            "healthy": self.is_healthy(),
            "data": match self.data {
                Data::Unknown => "unknown",
                Data::Usable => "usable",
                Data::Missing => "missing",
            },
            "stepping_down": self.stepping_down,
            "paused": self.paused,
            "redundant": self.redundant,
            "watchdog": self.watchdog,
            "check": self.said,
            "voter": self.report,
        });
        match &self.role {
            Role::Leader(leader) => {
                shown["leader"] = json!(self.node);
                shown["term"] = json!(leader.term);
                shown["token"] = json!(leader.token);
                if let Some(Remaining::Left(left)) =
                    leader.lease.as_ref().map(crate::client::Lease::remaining)
                {
                    shown["lease_left_ms"] = json!(left.as_millis());
                }
            }
            Role::Standby(standby) => {
                shown["leader"] = json!(standby.leader);
                shown["term"] = json!(standby.term);
                shown["joined"] = json!(standby.joined);
                if let Some((by, refusal)) = &standby.refused {
                    shown["refused"] = json!(format!("{by}: {refusal}"));
                }
            }
        }
        if let Some((hook, since)) = self.running {
            shown["hook"] = json!({ "name": hook.name(), "for_ms": now.since(since).as_millis() });
        }
        if self.retry_at > now {
            shown["retry_in_ms"] = json!(self.retry_at.since(now).as_millis());
        }
        shown
    }

    /// Why the standby is not fit to take over, with the figures; `None` if it is.
    pub fn why_not_hand_over(&self) -> Option<String> {
        let Role::Leader(leader) = &self.role else {
            return Some(format!("{} does not lead", self.node));
        };
        let mut why = String::new();
        if leader.right != Right::Paired {
            let _ = write!(
                why,
                "{} has not joined term {}: {} leads {}",
                self.peer, leader.term, self.node, leader.right
            );
            if let Some(report) = &self.report {
                let _ = write!(why, ", at position {}", report.position);
            }
        } else if !self.has_check || self.checked.is_some_and(|checked| checked.well && checked.in_sync) {
            return None;
        } else {
            let _ = write!(why, "{} does not hold everything", self.peer);
        }
        let said = self.said.split_whitespace().collect::<Vec<_>>().join(" ");
        if !said.is_empty() {
            let _ = write!(why, "; the check says: {said}");
        }
        if let Some(lag) = lag(&self.said) {
            let _ = write!(why, "; it lacks {lag}");
        }
        Some(why)
    }
}

/// What the standby lacks, from the lines `position=N` and `standby_position=N` of a check.
pub fn lag(said: &str) -> Option<u64> {
    let number = |name: &str| {
        said.split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
    };
    Some(number("position")?.saturating_sub(number("standby_position")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_standby_lacks_is_read_from_the_check() {
        assert_eq!(lag("position=120\nstandby_position=78"), Some(42));
        assert_eq!(lag("replication: position=5 standby_position=9"), Some(0));
        assert_eq!(lag("position=5"), None);
    }
}
