//! What systemd is told, if it is who started this process: that it is ready, that it stops, and that it is alive.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::edge::clock::Clock;
use crate::time::Moment;

/// The service serves.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// It is about to end.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(&state)) {
        tracing::warn!("systemd cannot be told {state}: {error}");
    }
}

/// The sign of life that a unit with `WatchdogSec` waits for, given by the loop that does the work.
#[derive(Debug)]
pub struct Pulse {
    /// Between two signs; `None` if nobody waits for them.
    every: Option<Duration>,
    next: Moment,
}

impl Pulse {
    /// A third of the time after which systemd takes this process for dead, so that two may be late.
    pub fn new() -> Pulse {
        Pulse { every: sd_notify::watchdog_enabled().map(|span| span / 3), next: Clock.now() }
    }

    /// Gives a sign if it is time for one.
    pub fn beat(&mut self, now: Moment) {
        if let Some(every) = self.every
            && now >= self.next
        {
            tell(NotifyState::Watchdog);
            self.next = now + every;
        }
    }

    /// Gives signs for ever, as long as the runtime that this runs in turns.
    pub async fn run(mut self) {
        if self.every.is_none() {
            return std::future::pending().await;
        }
        loop {
            self.beat(Clock.now());
            Clock.until(self.next).await;
        }
    }
}
