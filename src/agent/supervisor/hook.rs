//! The words of the contract between agent and hooks.

use std::fmt;

use crate::ids::NodeId;
use crate::time::Moment;

/// The executables of a service, by what they do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hook {
    /// Says whether the service is well, and whether the standby holds everything.
    Check,
    /// Makes the service act.
    Promote,
    /// Makes the service stop acting.
    Demote,
    /// Makes the service copy from a leader.
    Follow,
    /// The leader may acknowledge alone from now on.
    Solo,
    /// The leader acknowledges only what is on both from now on.
    Paired,
    /// Keeps the other node away from what both could reach, before `promote`.
    Fence,
    /// Is told what happened.
    OnEvent,
}

impl Hook {
    /// All of them.
    pub const ALL: [Hook; 8] = [
        Hook::Check,
        Hook::Promote,
        Hook::Demote,
        Hook::Follow,
        Hook::Solo,
        Hook::Paired,
        Hook::Fence,
        Hook::OnEvent,
    ];

    /// Its name in the configuration, in logs and as its first argument.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Check => "check",
            Hook::Promote => "promote",
            Hook::Demote => "demote",
            Hook::Follow => "follow",
            Hook::Solo => "solo",
            Hook::Paired => "paired",
            Hook::Fence => "fence",
            Hook::OnEvent => "on_event",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the acting service may acknowledge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// What is durable on both nodes.
    Both,
    /// What is durable on this one.
    Alone,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Both => "both",
            Mode::Alone => "alone",
        })
    }
}

/// How a hook ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// By itself, with this code.
    Code(i32),
    /// By a signal, the agent's own included.
    Signal(i32),
    /// It could not be started.
    NotStarted(String),
}

impl Outcome {
    /// Done.
    pub fn good(&self) -> bool {
        *self == Outcome::Code(0)
    }

    /// Of `check`: the service is well, and the standby does not hold everything.
    pub fn lags(&self) -> bool {
        *self == Outcome::Code(1)
    }

    /// Of `demote`: the service does not act, and this node has no data that it could act on.
    pub fn has_no_data(&self) -> bool {
        *self == Outcome::Code(66)
    }

    /// Of `follow`: it can only go on by destroying data.
    pub fn needs_copy(&self) -> bool {
        *self == Outcome::Code(3)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Code(code) => write!(f, "exit code {code}"),
            Outcome::Signal(signal) => write!(f, "killed by signal {signal}"),
            Outcome::NotStarted(why) => write!(f, "not started: {why}"),
        }
    }
}

/// Whether the service has data here that it could act on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// Nothing was demoted yet.
    Unknown,
    /// As far as its votes say.
    Usable,
    /// `demote` has found none.
    Missing,
}

impl Data {
    /// `demote` has found nothing amiss: what was found missing is missing until a leader's term was joined.
    pub(super) fn or_usable(self) -> Data {
        if self == Data::Missing { self } else { Data::Usable }
    }
}

/// Why a hook runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The agent has just started: nothing acts without a lease.
    Start,
    /// This node was elected.
    Elected,
    /// The lease is about to end.
    LeaseEnds,
    /// This node leads no longer.
    NotLeading,
    /// An operator asked for a switchover.
    Switchover(String),
    /// An operator asked this node to step down.
    Resign(String),
    /// The preferred node is back.
    Preferred,
    /// The checks failed.
    Unhealthy,
    /// `promote` failed or took too long.
    PromoteFailed,
    /// `fence` failed or took too long.
    FenceFailed,
    /// A hook hangs, and cannot be killed.
    HookHangs,
    /// The command ended by itself.
    Exited,
    /// The agent ends.
    Shutdown,
    /// This node never runs the service as leader.
    NoFailover,
    /// This node has no usable data.
    NoData,
    /// An earlier attempt failed.
    Again,
    /// Another node leads.
    Follows,
    /// The right to acknowledge has changed.
    Right,
    /// It is time.
    Time,
    /// Something happened.
    Event,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |f: &mut fmt::Formatter<'_>, word: &str, why: &str| {
            if why.is_empty() { f.write_str(word) } else { write!(f, "{word}: {why}") }
        };
        match self {
            Reason::Switchover(why) => with(f, "switchover", why),
            Reason::Resign(why) => with(f, "resign", why),
            other => f.write_str(match other {
                Reason::Start => "start",
                Reason::Elected => "elected",
                Reason::LeaseEnds => "lease ends",
                Reason::NotLeading => "not leading",
                Reason::Preferred => "preferred node",
                Reason::Unhealthy => "unhealthy",
                Reason::PromoteFailed => "promote failed",
                Reason::FenceFailed => "fence failed",
                Reason::HookHangs => "a hook hangs",
                Reason::Exited => "command ended",
                Reason::Shutdown => "shutdown",
                Reason::NoFailover => "no failover to this node",
                Reason::NoData => "no usable data",
                Reason::Again => "again",
                Reason::Follows => "another node leads",
                Reason::Right => "right changed",
                Reason::Time => "time",
                _ => "event",
            }),
        }
    }
}

/// One run of a hook.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Which.
    pub hook: Hook,
    /// Why.
    pub reason: Reason,
    /// Killed then.
    pub deadline: Moment,
    /// How the service may acknowledge, or is to.
    pub mode: Mode,
    /// The leader to follow.
    pub leader: Option<NodeId>,
    /// `follow` may destroy data: the loss is on record.
    pub may_destroy: bool,
    /// What `on_event` is told.
    pub event: Option<(&'static str, String)>,
}
