//! What every story needs: the three processes, who sees them, and waiting for what is to happen.

use std::time::Duration;

use anyhow::{Context, bail};

use crate::edge::clock::Clock;
use crate::ids::Term;

use super::nodes::{Nodes, other};
use super::picture::Picture;
use super::tally::{Seen, Tally};

/// Between two looks at a condition.
pub(super) const LOOK: Duration = Duration::from_millis(2);
/// Looks between two pictures.
const LOOKS_PER_PICTURE: u32 = 50;

pub(super) struct Scene {
    pub(super) nodes: Nodes,
    pub(super) tally: Tally,
    pub(super) picture: Picture,
    pub(super) lease: Duration,
}

impl Scene {
    /// Time in which any step has to happen.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(20) + self.lease * 10
    }

    /// Waits for a condition, with the picture running.
    pub(super) async fn until(&mut self, what: &str, holds: impl Fn(&Seen) -> bool) -> anyhow::Result<()> {
        let deadline = Clock.now() + self.patience();
        let mut looks = 0_u32;
        while !holds(&self.tally.seen()) {
            if let Some(fallen) = self.nodes.fallen() {
                bail!("{fallen}, while waiting for {what}");
            }
            if Clock.now() > deadline {
                bail!("waited in vain for {what}; {}", self.stand());
            }
            if looks.is_multiple_of(LOOKS_PER_PICTURE) {
                self.picture.draw();
            }
            looks = looks.wrapping_add(1);
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// What the replicas said last, for who has to find out what went wrong.
    pub(super) fn stand(&self) -> String {
        serde_json::to_string(&self.tally.seen().status).unwrap_or_default()
    }

    /// Until there is a leader with a follower that has joined, and both see the witness.
    pub(super) async fn until_well(&mut self) -> anyhow::Result<()> {
        self.until("a pair with a witness", |seen| {
            let Some((leader, status)) = seen.leader() else { return false };
            let follower = seen.status.get(other(leader));
            status.right == "paired"
                && seen.sees_witness(leader)
                && seen.sees_witness(other(leader))
                && follower.is_some_and(|it| it.joined && it.term == status.term)
        })
        .await?;
        let (leader, term) = self.leader()?;
        self.picture.say(&format!("{leader} leads term {term}, {} follows, w is there", other(leader)));
        Ok(())
    }

    pub(super) fn leader(&self) -> anyhow::Result<(&'static str, Term)> {
        let seen = self.tally.seen();
        let leader = seen.leader().map(|(name, status)| (name, status.term));
        leader.context("there is no leader at this moment")
    }
}
