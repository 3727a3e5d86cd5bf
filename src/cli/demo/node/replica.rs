//! One replica: a loop that follows the roles that the cluster gives it, and does what they allow.
//!
//! The rules of an embedding data layer, and where each is kept here:
//! - A new leader first makes the mark of its term durable (`role_changed`).
//! - It takes writes only under a valid lease (`put`), and acknowledges only what the lease says (`acknowledge` in
//!   `leading.rs`).
//! - It offers its term once the follower lacks one exchange at most (`offer_if_due`).
//! - A follower takes only what bears the present link and term, and drops nothing before the cluster knows
//!   (`following.rs`).
//! - A follower that no longer makes data durable is reported (`beat`).
//! - Leadership that ends on purpose is handed over (`hand_over`).
//! - When the cluster's own state fails, the process ends (`run`).

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::cli::demo::accounts;
use crate::cli::demo::messages::{Answer, Copy, Entry, Request, Stamped, Status, Touch};
use crate::ids::{LinkId, NodeId, Position, Term, Token};
use crate::message::{Part, Refusal};
use crate::{Cluster, Leader, LinkStamp, Role, Roles};

use super::following::{self, Following};
use super::leading::{BATCH_ENTRIES_MAX, Leading};
use super::log::Log;
use super::service::{self, Asked, Ports, Remote, ToFollower};

/// How often it looks after itself when nothing happens.
const BEAT: Duration = Duration::from_millis(20);
/// Beats between two writes to the protected resource, and between two lines of status.
const BEATS_PER_TOUCH: u32 = 5;

/// A dialled connection to the follower, and for which link and term it was dialled.
type Dialled = (LinkStamp, Term, Option<ToFollower>);

pub(super) struct Replica {
    node: NodeId,
    lease: Duration,
    cluster: Cluster,
    roles: Roles,
    role: Role,
    log: Log,
    remote: Remote,
    leading: Option<Leading>,
    following: Option<Following>,
    /// The table: the log's entries up to `applied`, which were all acknowledged.
    table: BTreeMap<String, String>,
    applied: u64,
    dialling: bool,
    dialled: (mpsc::Sender<Dialled>, mpsc::Receiver<Dialled>),
    /// For how long it has been handing over.
    handing_over: Option<Duration>,
    /// Lets the change of balances that was begun be written.
    begun: Option<oneshot::Sender<oneshot::Sender<Answer>>>,
    said: Status,
    /// The link to the witness, and the length of the log, at the last look.
    looked: (Option<LinkId>, u64),
    beats: u32,
}

impl Replica {
    pub(super) fn new(node: NodeId, lease: Duration, cluster: Cluster, log: Log, remote: Remote) -> Replica {
        Replica {
            node,
            lease,
            roles: cluster.roles(),
            role: cluster.role(),
            cluster,
            log,
            remote,
            leading: None,
            following: None,
            table: BTreeMap::new(),
            applied: 0,
            dialling: false,
            dialled: mpsc::channel(1),
            handing_over: None,
            begun: None,
            said: Status::default(),
            looked: (None, 0),
            beats: 0,
        }
    }

    /// Until SIGTERM.
    pub(super) async fn run(mut self, mut ports: Ports, mut terminate: Signal) -> anyhow::Result<()> {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut leaving = false;
        loop {
            tokio::select! {
                role = self.roles.next() => match role {
                    Some(role) => {
                        self.role = role;
                        self.retry_early(Duration::ZERO).await?;
                    }
                    None => bail!("the cluster is over: {}", self.cluster.failed().await),
                },
                failure = self.cluster.failed() => bail!("the cluster failed: {failure}"),
                answer = Leading::answer(&mut self.leading) => if let Some(leading) = &mut self.leading {
                    match answer {
                        Some(answer) => leading.copied(&answer, &self.log),
                        None => leading.follower = None,
                    }
                },
                message = Following::message(&mut self.following) => match message {
                    Some(message) => self.follow(message).await?,
                    None => self.following = None,
                },
                Some(wire) = ports.leaders.recv() => self.following = Some(Following::new(wire)),
                Some(dialled) = self.dialled.1.recv() => self.connected(dialled),
                Some(asked) = ports.requests.recv() => {
                    let mut asked = vec![asked];
                    while asked.len() < BATCH_ENTRIES_MAX && let Ok(more) = ports.requests.try_recv() {
                        asked.push(more);
                    }
                    self.asked(asked).await?;
                },
                _ = terminate.recv() => {
                    leaving = true;
                    self.handing_over = Some(Duration::ZERO);
                },
                _ = beat.tick() => self.beat().await?,
            }
            self.go_on().await?;
            if leaving && self.handing_over.is_none() {
                self.cluster.shutdown().await;
                return Ok(());
            }
        }
    }

    /// After anything happened: whatever the present role asks for.
    async fn go_on(&mut self) -> anyhow::Result<()> {
        self.role_changed().await?;
        if let (Role::Leader(leader), Some(leading)) = (&self.role, &mut self.leading) {
            leading.acknowledge(leader, &self.log);
            leading.stream(&self.log);
        }
        self.apply();
        self.dial_if_due();
        self.offer_if_due().await?;
        following::join_if_due(&self.role, &self.cluster, &self.log).await;
        self.hand_over().await;
        self.say();
        Ok(())
    }

    async fn role_changed(&mut self) -> anyhow::Result<()> {
        let Role::Leader(leader) = &self.role else {
            // Whoever waits for an acknowledgement learns that the outcome is unknown.
            self.leading = None;
            return Ok(());
        };
        let (term, link) = (leader.term, leader.link);
        if self.leading.as_ref().is_none_or(|leading| leading.term != term) {
            // Before anything of this term: its mark, so that two logs that have the same term at the same place are
            // known to be the same up to there.
            self.log.append(vec![Entry::Mark { term }]).await.context("the log")?;
            self.report_durable().await?;
            self.following = None;
            self.leading = Some(match self.leading.take() {
                Some(leading) => leading.next(term, self.log.length()),
                None => Leading::new(term, self.log.length()),
            });
        }
        if let Some(leading) = &mut self.leading
            && leading.follower.as_ref().is_some_and(|follower| Some(follower.link) != link)
        {
            leading.follower = None;
        }
        Ok(())
    }

    async fn report_durable(&self) -> anyhow::Result<()> {
        Ok(self.cluster.durable(Position(self.log.length())).await?)
    }

    /// One connection for each link and term.
    fn dial_if_due(&mut self) {
        let (Role::Leader(Leader { link: Some(link), term, .. }), Some(leading)) =
            (&self.role, &self.leading)
        else {
            return;
        };
        if self.dialling || leading.follower.is_some() || leading.term != *term {
            return;
        }
        self.dialling = true;
        let (link, term, peer, to) = (*link, *term, self.remote.peer, self.dialled.0.clone());
        tokio::spawn(async move {
            let wire = service::dial(peer).await;
            if wire.is_none() {
                tokio::time::sleep(BEAT).await;
            }
            let _ = to.send((link, term, wire)).await;
        });
    }

    fn connected(&mut self, (link, term, wire): Dialled) {
        self.dialling = false;
        if let (Some(wire), Some(leading)) = (wire, &mut self.leading)
            && leading.term == term
        {
            leading.connected(link, wire, &self.log);
        }
    }

    async fn offer_if_due(&mut self) -> anyhow::Result<()> {
        let (Role::Leader(leader), Some(leading)) = (&self.role, &mut self.leading) else { return Ok(()) };
        let Some(position) = leading.due_offer(leader, &self.log) else { return Ok(()) };
        match self.cluster.offer(position).await {
            Ok(()) => {
                if let Some(follower) = &mut leading.follower {
                    follower.offered = Some(position.0);
                }
                // A solo leader has begun a new term by it: its mark comes next, and then the offer that covers it.
                self.role = self.cluster.role();
                Box::pin(self.role_changed()).await
            }
            Err(error) => {
                // It is made again at the next beat.
                tracing::debug!(%error, "the offer was not taken");
                Ok(())
            }
        }
    }

    async fn follow(&mut self, message: Stamped<Copy>) -> anyhow::Result<()> {
        let Some(following) = &mut self.following else { return Ok(()) };
        let taken = following.take(message, &self.cluster, &mut self.log).await.context("the log")?;
        if taken.is_err() {
            self.following = None;
        }
        if self.log.length() < self.applied {
            self.table.clear();
            self.applied = 0;
        }
        Ok(())
    }

    /// What arrived before the cluster told of its term may count now.
    async fn retry_early(&mut self, span: Duration) -> anyhow::Result<()> {
        let Some(following) = &mut self.following else { return Ok(()) };
        match following.retry(span, self.lease) {
            Ok(Some(early)) => self.follow(early).await?,
            Ok(None) => {}
            Err(following::Over) => self.following = None,
        }
        Ok(())
    }

    /// Requests of clients that came together: the writes among them share a sync.
    async fn asked(&mut self, asked: Vec<Asked>) -> anyhow::Result<()> {
        let mut entries = Vec::new();
        for Asked { request, answer } in asked {
            let serves = self.serves();
            let answered = match request {
                Request::Put { id, key, value } => {
                    if let Some(leading) = self
                        .leading
                        .as_mut()
                        .filter(|leading| serves && self.handing_over.is_none() && leading.has_room())
                    {
                        entries.push(Entry::Put { id, key, value });
                        leading.wait(self.log.length() + entries.len() as u64, answer);
                        continue;
                    }
                    Answer::Elsewhere
                }
                Request::Get { key } if serves && self.knows_all() => {
                    Answer::Value(self.table.get(&key).cloned())
                }
                Request::Ids if serves && self.knows_all() => Answer::Ids(self.ids()),
                Request::TouchAfter { millis } => match self.token_to_act() {
                    Some(token) => {
                        self.touch(token, Duration::from_millis(millis));
                        Answer::Checked { token }
                    }
                    None => Answer::Elsewhere,
                },
                Request::Begin { accounts, add } => match self.token_to_act() {
                    Some(token) => {
                        let (finish, finished) = oneshot::channel();
                        self.begun = Some(finish);
                        tokio::spawn(accounts::change(accounts, add, token, answer, finished));
                        continue;
                    }
                    None => Answer::Elsewhere,
                },
                // As a process does that was paused between its look at the lease and its write.
                Request::Finish => match self.begun.take() {
                    Some(finish) => {
                        let _ = finish.send(answer);
                        continue;
                    }
                    None => Answer::Elsewhere,
                },
                Request::HandOver if serves => {
                    self.handing_over = Some(Duration::ZERO);
                    Answer::HandingOver
                }
                _ => Answer::Elsewhere,
            };
            let _ = answer.send(answered);
        }
        if !entries.is_empty() {
            self.log.append(entries).await.context("the log")?;
            self.report_durable().await?;
            self.role = self.cluster.role();
        }
        Ok(())
    }

    /// Whether it serves clients at this moment: it leads, under a valid lease, and its mark is in the log.
    fn serves(&self) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let marked = self.leading.as_ref().is_some_and(|leading| leading.term == leader.term);
        marked && leader.lease.as_ref().is_some_and(crate::Lease::is_valid)
    }

    /// A new leader does not know which of the entries it inherited were acknowledged, until its own mark is. Then
    /// all of them are, and reads can be answered.
    fn knows_all(&self) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.acknowledged >= leading.mark)
    }

    fn token_to_act(&self) -> Option<Token> {
        let Role::Leader(leader) = &self.role else { return None };
        leader.lease.as_ref().filter(|lease| lease.is_valid()).map(crate::Lease::token)
    }

    /// Writes to the protected resource. Between the check of the lease and this write, a process can be paused for
    /// any time; so the token goes along, and the resource refuses it when a later leader was there.
    fn touch(&self, token: Token, after: Duration) {
        let (resource, by) = (self.remote.resource, self.node.to_string());
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            service::touch(resource, Touch { token, by }).await;
        });
    }

    fn apply(&mut self) {
        let Some(leading) = &self.leading else { return };
        while self.applied < leading.acknowledged {
            let entries = self.log.entries(self.applied, BATCH_ENTRIES_MAX);
            let upto = leading.acknowledged.min(self.applied + entries.len() as u64);
            for entry in entries.iter().take(usize::try_from(upto - self.applied).unwrap_or(0)) {
                if let Entry::Put { key, value, .. } = entry {
                    self.table.insert(key.clone(), value.clone());
                }
            }
            self.applied = upto;
        }
    }

    fn ids(&self) -> Vec<u64> {
        let acknowledged = usize::try_from(self.applied).unwrap_or(usize::MAX);
        let id = |entry: &Entry| match entry {
            Entry::Put { id, .. } => Some(*id),
            Entry::Mark { .. } => None,
        };
        self.log.entries(0, acknowledged).iter().filter_map(id).collect()
    }

    /// Time passed.
    async fn beat(&mut self) -> anyhow::Result<()> {
        self.beats = self.beats.wrapping_add(1);
        self.retry_early(BEAT).await?;
        if let (Role::Leader(leader), Some(leading)) = (&self.role, &mut self.leading) {
            let owes_for = leading.beat(BEAT);
            if leader.right == crate::Right::Paired && owes_for > self.lease / 2 && !leading.told_stalled {
                tracing::warn!("the follower makes nothing durable");
                leading.told_stalled = true;
                self.cluster.stalled().await?;
            }
            if leader.right != crate::Right::Paired {
                leading.told_stalled = false;
            }
        }
        if let Some(spent) = &mut self.handing_over {
            *spent += BEAT;
        }
        if self.beats.is_multiple_of(BEATS_PER_TOUCH) {
            if let Some(token) = self.token_to_act() {
                self.touch(token, Duration::ZERO);
            }
            self.look().await?;
        }
        Ok(())
    }

    /// Hands over, one step after the other; `handing_over` is `None` again when there is nothing left to do.
    async fn hand_over(&mut self) {
        let Some(spent) = self.handing_over else { return };
        let too_long = spent > self.lease * 2;
        match (&self.role, &self.leading) {
            (Role::Leader(leader), _) if too_long => {
                self.handing_over = None;
                if leader.resigning {
                    // The follower does not get everything: go on without it.
                    let _ = self.cluster.stalled().await;
                    self.role = self.cluster.role();
                }
            }
            (Role::Leader(leader), Some(leading)) if leader.resigning => {
                // Nothing is taken any more, and the follower is about to have everything.
                if leading.follower_has_all(&self.log) {
                    let _ = self.cluster.stopped().await;
                    self.role = self.cluster.role();
                }
            }
            (Role::Leader(leader), Some(leading)) => {
                // Those who wait are answered first. A sole leader hands over to nobody.
                if (leading.nobody_waits() || spent > self.lease / 2)
                    && (leader.right == crate::Right::Solo || self.cluster.resign().await.is_err())
                {
                    self.handing_over = None;
                }
                self.role = self.cluster.role();
            }
            (Role::Leader(_), None) => {}
            (Role::Standby(standby), _) => {
                // Stay until the other leads, and has this one as its follower: it need not begin alone.
                if standby.joined || too_long || spent.is_zero() && standby.link.is_none() {
                    self.handing_over = None;
                }
            }
        }
    }

    /// Looks at what only a report tells.
    async fn look(&mut self) -> anyhow::Result<()> {
        let report = self.cluster.report().await?;
        // A blank witness counts once the cluster has taken it in, and this replica knows of it.
        let witness =
            report.others.iter().flatten().find(|other| {
                other.part == Part::Witness && other.incarnation == report.adoption.incarnation
            });
        self.looked = (witness.and_then(|witness| witness.link), self.log.length());
        Ok(())
    }

    /// Tells whoever started this process what it is, when that has changed.
    fn say(&mut self) {
        let mut status = Status {
            node: self.node.to_string(),
            witness: self.looked.0,
            position: self.looked.1,
            ..Status::default()
        };
        match &self.role {
            Role::Leader(leader) => {
                status.leads = true;
                status.term = leader.term;
                status.token = Some(leader.token);
                status.right = leader.right.to_string();
                status.lease = leader.lease.as_ref().is_some_and(crate::Lease::is_valid);
                status.peer = leader.link.is_some();
            }
            Role::Standby(standby) => {
                status.term = standby.leader_term;
                status.follows = standby.leader.map(|leader| leader.to_string());
                status.joined = standby.joined;
                status.peer = standby.link.is_some();
                status.stale = standby
                    .refused
                    .filter(|(_, refusal)| matches!(refusal, Refusal::Stale { .. }))
                    .map(|(by, refusal)| (by.to_string(), refusal.to_string()));
            }
        }
        if status != self.said {
            if let Ok(line) = serde_json::to_string(&status) {
                let _ = writeln!(std::io::stdout(), "{line}");
            }
            self.said = status;
        }
    }
}
