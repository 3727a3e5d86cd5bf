//! The `[agent]` table of a replica's file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, NodeConfig, ReplicaConfig, Source, Text};
use crate::agent::config::{AgentConfig, ServiceConfig};
use crate::agent::supervisor::Hook;
use crate::agent::watchdog::Wish;
use crate::ids::NodeId;

type Paths = BTreeMap<String, Spanned<PathBuf>>;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawAgent {
    http: Option<Text>,
    runtime: Option<PathBuf>,
    group: Option<String>,
    cgroup: Option<PathBuf>,
    preferred: Option<Text>,
    fail_back: Option<Text>,
    no_failover: bool,
    watchdog: Wish,
    watchdog_device: Option<PathBuf>,
    watchdog_timeout: Option<Text>,
    check_failures: Option<Spanned<u32>>,
    hooks: Option<Spanned<Paths>>,
    times: RawTimes,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawTimes {
    demote: Option<Text>,
    kill: Option<Text>,
    promote: Option<Text>,
    follow: Option<Text>,
    switch: Option<Text>,
    check: Option<Text>,
    check_every: Option<Text>,
    on_event: Option<Text>,
    retry_min: Option<Text>,
    retry_max: Option<Text>,
}

/// Enough of the file to find the table.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    agent: RawAgent,
}

/// Reads a replica's file together with its agent; `command` is that of `tiebreak run`, which needs no hooks.
///
/// # Errors
/// If it cannot be read, or something in it is wrong.
pub fn load(
    path: &Path,
    command: Option<Vec<OsString>>,
) -> Result<(ReplicaConfig, AgentConfig), ConfigError> {
    let failed = |what: &str, help: &str| ConfigError {
        path: path.into(),
        place: None,
        what: what.into(),
        help: Some(help.into()),
    };
    let NodeConfig::Replica(replica) = NodeConfig::load(path)? else {
        return Err(failed("is a witness's, which runs no agent", "give the configuration of a replica"));
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| failed(&format!("cannot be read: {error}"), "try again"))?;
    let agent = parse(&text, path, &replica, command)?;
    Ok((replica, agent))
}

/// Where the witness with this file, which was checked before, answers monitors.
pub fn witness_http(path: &Path) -> Option<std::net::SocketAddr> {
    #[derive(Deserialize)]
    struct File {
        http: Option<std::net::SocketAddr>,
    }
    toml::from_str::<File>(&std::fs::read_to_string(path).ok()?).ok()?.http
}

/// Checks the text of a file.
///
/// # Errors
/// If something in it is wrong.
pub fn parse(
    text: &str,
    path: &Path,
    replica: &ReplicaConfig,
    command: Option<Vec<OsString>>,
) -> Result<AgentConfig, ConfigError> {
    let source = Source { text, path };
    let file: File = toml::from_str(text).map_err(|error| source.toml(&error))?;
    source.agent(file.agent, replica, command)
}

impl Source<'_> {
    fn agent(
        &self,
        raw: RawAgent,
        replica: &ReplicaConfig,
        command: Option<Vec<OsString>>,
    ) -> Result<AgentConfig, ConfigError> {
        let service = match command {
            Some(command) => ServiceConfig::Command(command),
            None => ServiceConfig::Hooks(self.hooks(raw.hooks.as_ref())?),
        };
        let mut config = AgentConfig::of(replica, service);
        let beside = self.path.parent().unwrap_or(Path::new(""));
        if let Some(http) = &raw.http {
            config.http = Some(self.value(http)?);
        }
        if let Some(runtime) = raw.runtime {
            config.runtime = beside.join(runtime);
        }
        if let Some(preferred) = &raw.preferred {
            config.preferred = Some(self.preferred(preferred, replica)?);
        }
        config.fail_back = self.optional(raw.fail_back.as_ref())?;
        config.group = raw.group;
        config.cgroup = raw.cgroup;
        config.no_failover = raw.no_failover;
        config.watchdog = raw.watchdog;
        if let Some(device) = raw.watchdog_device {
            config.watchdog_device = beside.join(device);
        }
        config.watchdog_timeout = self.optional(raw.watchdog_timeout.as_ref())?;
        let times = &mut config.times;
        let set = |to: &mut Duration, raw: &Option<Text>| -> Result<(), ConfigError> {
            if let Some(span) = self.optional(raw.as_ref())? {
                *to = span;
            }
            Ok(())
        };
        set(&mut times.demote, &raw.times.demote)?;
        set(&mut times.kill, &raw.times.kill)?;
        set(&mut times.promote, &raw.times.promote)?;
        set(&mut times.follow, &raw.times.follow)?;
        set(&mut times.switch, &raw.times.switch)?;
        set(&mut times.check, &raw.times.check)?;
        set(&mut times.check_every, &raw.times.check_every)?;
        set(&mut times.on_event, &raw.times.on_event)?;
        set(&mut times.retry_min, &raw.times.retry_min)?;
        set(&mut times.retry_max, &raw.times.retry_max)?;
        if let Some(failures) = &raw.check_failures {
            if *failures.get_ref() == 0 {
                let what = "check_failures = 0 would fail a service that was never checked";
                return Err(self.error(Some(failures.span()), what, Some("1 or more".into())));
            }
            times.check_failures = *failures.get_ref();
        }
        crate::agent::run::check(&config).map_err(|error| {
            self.error(None, error.to_string(), Some("all times are in deploy/agent/a.toml".into()))
        })?;
        Ok(config)
    }

    fn hooks(&self, raw: Option<&Spanned<Paths>>) -> Result<BTreeMap<Hook, PathBuf>, ConfigError> {
        let none = Paths::new();
        let (span, paths) = raw.map_or((None, &none), |raw| (Some(raw.span()), raw.get_ref()));
        let beside = self.path.parent().unwrap_or(Path::new(""));
        let mut hooks = BTreeMap::new();
        for (name, path) in paths {
            let Some(hook) = Hook::ALL.into_iter().find(|hook| hook.name() == name) else {
                let known: Vec<&str> = Hook::ALL.iter().map(|hook| hook.name()).collect();
                let help = match super::nearest(name, &known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("known here: {}", known.join(", ")),
                };
                return Err(self.error(Some(path.span()), format!("there is no hook `{name}`"), Some(help)));
            };
            let at = beside.join(path.get_ref());
            let at = std::path::absolute(&at).unwrap_or(at);
            let executable = std::fs::metadata(&at)
                .map(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
                .map_err(|error| error.to_string());
            let why = match executable {
                Ok(true) => {
                    hooks.insert(hook, at);
                    continue;
                }
                Ok(false) => "it is not executable".to_string(),
                Err(error) => error,
            };
            let what = format!("the hook {} cannot be run: {why}", at.display());
            return Err(self.error(Some(path.span()), what, Some("chmod +x, or correct the path".into())));
        }
        for needed in [Hook::Promote, Hook::Demote] {
            if !hooks.contains_key(&needed) {
                let what = format!("the hook `{needed}` is missing in [agent.hooks]");
                let help = "promote and demote are needed; without any hook, `tiebreak run -- COMMAND` runs a command";
                return Err(self.error(span, what, Some(help.into())));
            }
        }
        if hooks.contains_key(&Hook::Solo) != hooks.contains_key(&Hook::Paired) {
            let what = "one of the hooks `solo` and `paired` is missing";
            let help =
                "a service that is told when it may acknowledge alone has to be told when it may no longer";
            return Err(self.error(span, what, Some(help.into())));
        }
        Ok(hooks)
    }

    fn preferred(&self, raw: &Text, replica: &ReplicaConfig) -> Result<NodeId, ConfigError> {
        let node: NodeId = self.value(raw)?;
        if node == replica.own.node || node == replica.peer.node {
            return Ok(node);
        }
        let what = format!("`{node}` is neither of the two replicas");
        let help = format!("{} or {}", replica.own.node, replica.peer.node);
        Err(self.error(Some(raw.span()), what, Some(help)))
    }

    fn optional(&self, raw: Option<&Text>) -> Result<Option<Duration>, ConfigError> {
        let Some(raw) = raw else { return Ok(None) };
        let span = self.span(raw, "")?;
        if span.is_zero() {
            return Err(self.error(Some(raw.span()), "this takes time: 0 is not possible", None));
        }
        Ok(Some(span))
    }
}
