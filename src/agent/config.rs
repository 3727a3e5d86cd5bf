//! What the agent is told to be: plain types. The file that holds it is read by the binary.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::ReplicaConfig;
use crate::ids::NodeId;

use super::supervisor::{Hook, Plan};
use super::times::Times;
use super::watchdog::Wish;

/// What runs where this node leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServiceConfig {
    /// Hooks start, stop and check it.
    Hooks(BTreeMap<Hook, PathBuf>),
    /// A command, which runs only while this node leads.
    Command(Vec<OsString>),
}

/// The agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentConfig {
    /// What it runs.
    pub service: ServiceConfig,
    /// How long everything may take.
    pub times: Times,
    /// Whether there has to be a watchdog.
    pub watchdog: Wish,
    /// Where it is.
    pub watchdog_device: PathBuf,
    /// When it fires; `None` is the longest time that fits.
    pub watchdog_timeout: Option<Duration>,
    /// Where load balancers and monitors ask.
    pub http: Option<SocketAddr>,
    /// The directory of the control socket; emptied by a reboot.
    pub runtime: PathBuf,
    /// The group, besides root, that may use the control socket.
    pub group: Option<String>,
    /// A cgroup that the service runs in and that is killed with it, when others start it (a systemd unit, say).
    pub cgroup: Option<PathBuf>,
    /// The node that is to lead if both can.
    pub preferred: Option<NodeId>,
    /// For how long both have to be well before the preferred node gets the service back; `None` is never.
    pub fail_back: Option<Duration>,
    /// This node never runs the service as leader by itself.
    pub no_failover: bool,
}

impl AgentConfig {
    /// What is taken unless configured, for a cluster with this configuration.
    pub fn of(replica: &ReplicaConfig, service: ServiceConfig) -> AgentConfig {
        AgentConfig {
            service,
            times: Times::of(replica.lease, replica.solo_after),
            watchdog: Wish::Off,
            watchdog_device: "/dev/watchdog".into(),
            watchdog_timeout: None,
            http: None,
            runtime: PathBuf::from("/run/tiebreak").join(replica.cluster.as_str()),
            group: None,
            cgroup: None,
            preferred: None,
            fail_back: None,
            no_failover: false,
        }
    }

    /// What the supervisor needs of it.
    pub fn plan(&self) -> Plan {
        Plan {
            times: self.times.clone(),
            hooks: match &self.service {
                ServiceConfig::Hooks(hooks) => hooks.keys().copied().collect(),
                ServiceConfig::Command(_) => Vec::new(),
            },
            killing_is_enough: matches!(self.service, ServiceConfig::Command(_)),
            no_failover: self.no_failover,
        }
    }

    /// When the watchdog is to fire: as configured, or the longest time that fits, whole seconds if there is one.
    pub fn watchdog_fires(&self) -> Option<Duration> {
        let longest = self.times.watchdog_max();
        let whole = Duration::from_secs(longest.as_secs());
        let fits = if whole.is_zero() { longest } else { whole };
        (self.watchdog != Wish::Off).then(|| self.watchdog_timeout.unwrap_or(fits))
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("agent.sock")
    }
}
