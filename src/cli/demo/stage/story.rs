//! The story, act by act. Each step waits for a condition with a deadline, and each act ends with a look at the whole
//! log: whatever was acknowledged has to be there.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::task::JoinSet;

use crate::cli::demo::messages::{Answer, Request};
use crate::edge::clock::Clock;
use crate::ids::Term;
use crate::time::Moment;

use super::clients;
use super::nodes::{A, B, WITNESS, other};
use super::picture::{Interruption, Outcome};
use super::scene::{LOOK, Scene};

/// Acknowledgements that count as "service goes on".
const GOES_ON: usize = 200;
/// Between the check of the lease and the write that a pause falls into.
const IN_FLIGHT: Duration = Duration::from_millis(500);

pub(super) struct Story {
    scene: Scene,
    interruptions: Vec<Interruption>,
    lost: BTreeSet<u64>,
    writers: JoinSet<()>,
}

impl Story {
    pub(super) fn new(scene: Scene) -> Story {
        Story { scene, interruptions: Vec::new(), lost: BTreeSet::new(), writers: JoinSet::new() }
    }

    /// Plays all of it. Whether nothing was lost and no term had two leaders.
    pub(super) async fn play(&mut self) -> anyhow::Result<bool> {
        self.three_begin().await?;
        self.leader_dies().await?;
        self.witness_dies().await?;
        self.stale_replica_returns().await?;
        self.last_one_standing().await?;
        self.leader_is_paused().await?;
        self.leader_hands_over().await?;
        self.writers.shutdown().await;
        self.check().await?;
        Ok(self.outcome())
    }

    /// Ends all processes.
    pub(super) async fn end(&mut self) {
        self.writers.abort_all();
        self.scene.nodes.end().await;
    }

    async fn three_begin(&mut self) -> anyhow::Result<()> {
        self.scene.picture.act("1. A has the data, B and the witness W are blank");
        let lease = humantime::format_duration(self.scene.lease);
        self.scene
            .picture
            .say(&format!("three processes on loopback, a lease of {lease}, four clients that write"));
        let from = Clock.now();
        for name in [WITNESS, B, A] {
            self.scene.nodes.start(name)?;
        }
        self.writers = clients::start(self.scene.nodes.servers(), &self.scene.tally);
        self.scene.until("a first acknowledgement", |seen| !seen.acknowledged.is_empty()).await?;
        self.leadership_from("the first start", from, Term::ZERO);
        self.scene.until_well().await?;
        self.goes_on_from(Clock.now()).await?;
        self.check().await
    }

    async fn leader_dies(&mut self) -> anyhow::Result<()> {
        self.scene.picture.act("2. kill -9 of the leader");
        let (old, term) = self.scene.leader()?;
        self.scene.picture.say(&format!("kill -9 {old}, which leads term {term}"));
        let from = Clock.now();
        self.scene.nodes.kill(old).await?;
        self.scene
            .until("another leader that acknowledges", |seen| seen.first_acknowledgement(term).is_some())
            .await?;
        self.leadership_from("kill -9 of the leader", from, term);
        self.goes_on_from(Clock.now()).await?;
        self.scene.picture.say(&format!("{old} returns and copies what it missed"));
        let from = Clock.now();
        self.scene.nodes.start(old)?;
        self.scene.until_well().await?;
        self.goes_on_from(Clock.now()).await?;
        self.pause_from("its return", from);
        self.check().await
    }

    async fn witness_dies(&mut self) -> anyhow::Result<()> {
        self.scene.picture.act("3. kill -9 of the witness, under load");
        let from = Clock.now();
        self.scene.nodes.kill(WITNESS).await?;
        self.goes_on_from(from).await?;
        // Longer than a lease: leases need no witness.
        let lease = self.scene.lease;
        self.scene.until("a lease's time", |_| Clock.now().since(from) > lease).await?;
        ensure!(self.scene.tally.seen().leader().is_some(), "the leader lost its lease with the witness");
        self.scene.picture.say("two replicas go on as a pair; the witness returns");
        self.scene.nodes.start(WITNESS)?;
        self.scene.until_well().await?;
        self.goes_on_from(Clock.now()).await?;
        self.pause_from("kill -9 of the witness and its return", from);
        self.check().await
    }

    async fn stale_replica_returns(&mut self) -> anyhow::Result<()> {
        self.scene.picture.act("4. One dies, the other goes on alone and dies, and the first returns: stale");
        let (stale, term) = self.scene.leader()?;
        let survivor = other(stale);
        let from = Clock.now();
        self.scene.picture.say(&format!("kill -9 {stale}"));
        self.scene.nodes.kill(stale).await?;
        self.scene
            .until("the survivor to go on alone", |seen| {
                seen.first_acknowledgement(term).is_some()
                    && seen.status.get(survivor).is_some_and(|status| status.right == "solo")
            })
            .await?;
        self.leadership_from("kill -9 of the leader, again", from, term);
        self.goes_on_from(Clock.now()).await?;
        let alone = self.scene.tally.seen().term();
        self.scene
            .picture
            .say(&format!("{survivor} went on alone in term {alone}; kill -9 {survivor} as well"));
        self.scene.nodes.kill(survivor).await?;
        let down = Clock.now();
        self.scene.picture.say(&format!("{stale} returns, and misses what {survivor} acknowledged alone"));
        self.scene.nodes.start(stale)?;
        self.scene
            .until("the stale replica to be refused", |seen| {
                seen.status.get(stale).is_some_and(|status| status.stale.is_some())
            })
            .await?;
        let why = self.scene.tally.seen().status.get(stale).and_then(|status| status.stale.clone());
        let (by, words) = why.context("it was refused a moment ago")?;
        self.scene.picture.say(&format!("{by} refuses {stale}: {words}"));
        ensure!(self.scene.tally.seen().first_lease(alone).is_none(), "the stale replica leads");
        ensure!(self.scene.tally.seen().acknowledged_since(down) == 0, "the stale replica acknowledges");
        self.scene.picture.say(&format!("{survivor} returns"));
        let from = Clock.now();
        self.scene.nodes.start(survivor)?;
        self.scene
            .until("the one that holds everything to lead", |seen| {
                seen.first_acknowledgement(alone).is_some()
            })
            .await?;
        self.leadership_from("return of the one that went on alone", from, alone);
        self.scene.until_well().await?;
        self.goes_on_from(Clock.now()).await?;
        self.check().await
    }

    async fn last_one_standing(&mut self) -> anyhow::Result<()> {
        self.scene.picture.act("5. The follower dies, and then the witness too: the last one goes on");
        let (leader, _) = self.scene.leader()?;
        let follower = other(leader);
        self.scene
            .picture
            .say(&format!("kill -9 {follower}; {leader} asks the witness whether it may go on alone"));
        let from = Clock.now();
        self.scene.nodes.kill(follower).await?;
        self.scene
            .until("the leader to go on alone", |seen| {
                seen.leader().is_some_and(|(_, status)| status.right == "solo")
            })
            .await?;
        self.goes_on_from(Clock.now()).await?;
        self.pause_from("kill -9 of the follower", from);
        self.scene.picture.say("kill -9 w: nobody is left to ask, and nobody else can be elected");
        let from = Clock.now();
        self.scene.nodes.kill(WITNESS).await?;
        self.goes_on_from(from).await?;
        let lease = self.scene.lease;
        self.scene.until("a lease's time", |_| Clock.now().since(from) > lease).await?;
        self.pause_from("kill -9 of the witness, while alone", from);
        self.scene.picture.say("both return");
        let from = Clock.now();
        self.scene.nodes.start(WITNESS)?;
        self.scene.nodes.start(follower)?;
        self.scene.until_well().await?;
        self.goes_on_from(Clock.now()).await?;
        self.pause_from("return of both", from);
        self.check().await
    }

    async fn leader_is_paused(&mut self) -> anyhow::Result<()> {
        self.scene.picture.act("6. The leader is paused past its lease, in the middle of a write");
        let (old, term) = self.scene.leader()?;
        let millis = u64::try_from(IN_FLIGHT.as_millis())?;
        let touch = Request::TouchAfter { millis };
        let answer = clients::ask(self.scene.nodes.server(old), &touch, self.scene.patience()).await?;
        let Answer::Checked { token } = answer else { bail!("the leader has no lease to check: {answer:?}") };
        let from = Clock.now();
        self.scene.nodes.pause(old)?;
        self.scene.picture.say(&format!("{old} has checked its lease, and stops (SIGSTOP) before it writes"));
        self.scene
            .until("the other to lead and to write to the resource", |seen| {
                seen.first_acknowledgement(term).is_some() && seen.highest_token > token
            })
            .await?;
        self.leadership_from("the leader is paused", from, term);
        self.scene.picture.say(&format!("{} leads; {old} goes on (SIGCONT), and writes", other(old)));
        self.scene.nodes.go_on(old)?;
        self.scene
            .until("the late write to be refused", |seen| {
                seen.refused_touches.iter().any(|touch| touch.by == old && touch.offered == token)
            })
            .await?;
        let refused = self.scene.tally.seen().refused_touches.iter().find(|t| t.offered == token).cloned();
        let refused = refused.context("it was refused a moment ago")?;
        self.scene.picture.say(&format!(
            "the resource refuses {}: it offers token {:?}, and {:?} was here",
            refused.by, refused.offered, refused.highest
        ));
        self.scene.until_well().await?;
        self.goes_on_from(Clock.now()).await?;
        self.check().await
    }

    async fn leader_hands_over(&mut self) -> anyhow::Result<()> {
        self.scene.picture.act("7. A planned hand-over");
        let (old, term) = self.scene.leader()?;
        let from = Clock.now();
        let answer =
            clients::ask(self.scene.nodes.server(old), &Request::HandOver, self.scene.patience()).await?;
        ensure!(matches!(answer, Answer::HandingOver), "{old} does not hand over: {answer:?}");
        self.scene
            .until("the other to acknowledge", |seen| seen.first_acknowledgement(term).is_some())
            .await?;
        self.leadership_from("planned hand-over", from, term);
        self.scene.until_well().await?;
        self.goes_on_from(Clock.now()).await
    }

    /// Service goes on, for long enough that a person can see it.
    async fn goes_on_from(&mut self, from: Moment) -> anyhow::Result<()> {
        let pace = self.scene.picture.pace();
        self.scene
            .until("service to go on", |seen| {
                seen.acknowledged_since(from) >= GOES_ON && Clock.now().since(from) >= pace
            })
            .await
    }

    /// A change of leader: to the first lease and acknowledgement in a term above `term`.
    fn leadership_from(&mut self, what: &str, from: Moment, term: Term) {
        let (lease, acknowledgement, by) = {
            let seen = self.scene.tally.seen();
            let lease = seen.first_lease(term).map(|at| at.since(from));
            let acknowledgement = seen.first_acknowledgement(term).unwrap_or(from).since(from);
            (lease, acknowledgement, seen.leader().map_or("nobody", |(name, _)| name))
        };
        self.scene.picture.say(&format!(
            "{by} leads term {}: lease after {} ms, acknowledges after {} ms",
            self.scene.tally.seen().term(),
            lease.unwrap_or_default().as_millis(),
            acknowledgement.as_millis()
        ));
        self.interrupted(Interruption { what: what.into(), lease, acknowledgement });
    }

    /// No change of leader: the longest time without an acknowledgement.
    fn pause_from(&mut self, what: &str, from: Moment) {
        let acknowledgement = self.scene.tally.seen().longest_pause(from);
        self.scene
            .picture
            .say(&format!("longest time without an acknowledgement: {} ms", acknowledgement.as_millis()));
        self.interrupted(Interruption { what: what.into(), lease: None, acknowledgement });
    }

    fn interrupted(&mut self, interruption: Interruption) {
        self.scene.picture.interrupted(&interruption);
        self.interruptions.push(interruption);
    }

    /// Whatever was acknowledged has to be in the leader's log.
    async fn check(&mut self) -> anyhow::Result<()> {
        let acknowledged: Vec<u64> = self.scene.tally.seen().acknowledged.iter().map(|ack| ack.id).collect();
        let deadline = Clock.now() + self.scene.patience();
        let (server, held) = 'found: loop {
            for (_, server) in self.scene.nodes.servers() {
                let answer = clients::ask(server, &Request::Ids, self.scene.patience()).await;
                if let Ok(Answer::Ids(ids)) = answer {
                    break 'found (server, ids.into_iter().collect::<HashSet<u64>>());
                }
            }
            ensure!(Clock.now() < deadline, "no replica shows its log; {}", self.scene.stand());
            tokio::time::sleep(LOOK).await;
        };
        self.lost.extend(acknowledged.iter().filter(|id| !held.contains(id)));
        // And the table that clients read shows it, or something later.
        if let Some(last) = acknowledged.last() {
            let read = clients::read_back(server, *last, self.scene.patience()).await;
            if read.is_some_and(|read| read < *last) {
                self.lost.insert(*last);
            }
        }
        self.scene.picture.say(&format!(
            "acknowledged {}, of these lost {}",
            acknowledged.len(),
            self.lost.len()
        ));
        Ok(())
    }

    fn outcome(&self) -> bool {
        let seen = self.scene.tally.seen();
        let most_leaders = seen.leaders.values().map(BTreeSet::len).max().unwrap_or(0);
        let (acknowledged, terms) = (seen.acknowledged.len(), seen.leaders.len());
        drop(seen);
        let (lost, interruptions) = (&self.lost, &self.interruptions[..]);
        self.scene.picture.end(&Outcome { acknowledged, lost, terms, most_leaders, interruptions });
        self.lost.is_empty() && most_leaders == 1
    }
}
