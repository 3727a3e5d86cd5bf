//! A small replicated log on the public library: the data layer of the replicas under test.
//!
//! The leader begins its term with a mark, writes a value whenever it may acknowledge, and sends what the follower
//! lacks. The follower answers what it has durably and in common with the leader. Every message bears the link's stamp
//! and the term, and datagrams may be lost, doubled or late.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tiebreak::ids::{Position, Term};
use tiebreak::testing::clock::Clock;
use tiebreak::time::Moment;
use tiebreak::{Cluster, Leader, LinkStamp, PeerDurable, Right, Role, Standby};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::child::{now, tell};
use super::log::{Entry, Log};

const TICK: Duration = Duration::from_millis(5);
const ENTRIES_PER_DATAGRAM_MAX: usize = 128;
/// What one exchange carries: a peer that lacks no more has caught up.
const EXCHANGE: u64 = 64;

/// What the two data layers say to each other.
#[derive(Debug, Serialize, Deserialize)]
enum Talk {
    /// Leader: these entries follow `after`, whose last entry is of `after_term`.
    Append { link: LinkStamp, term: u32, after: u64, after_term: u32, entries: Vec<Entry> },
    /// Follower: durable here, and the same as at the leader, up to `position`.
    Holds { link: LinkStamp, term: u32, position: u64 },
    /// Follower: what it has at `position` is something else, or nothing.
    Lacks { link: LinkStamp, term: u32, position: u64 },
}

/// How far the other end is, on one link in one term.
#[derive(Clone, Copy, Debug)]
struct Progress {
    link: LinkStamp,
    term: Term,
    /// Leader: where to go on. Follower: what is in common with the leader.
    next: u64,
    /// Leader: what the follower said that it has.
    held: Option<u64>,
    /// Leader: when that last rose, or nothing was lacking.
    moved: Moment,
}

pub struct Data {
    cluster: Cluster,
    log: Log,
    socket: UdpSocket,
    peer: SocketAddr,
    patience: Duration,
    role: Role,
    progress: Option<Progress>,
    offered: Option<(LinkStamp, Term, Moment)>,
    /// Leader: acknowledged up to here.
    acknowledged: u64,
    /// The last moment at which the right to act was seen.
    last_valid: u64,
    value: u64,
    may_receive: bool,
    may_write: bool,
}

impl Data {
    pub fn new(cluster: Cluster, log: Log, socket: UdpSocket, peer: SocketAddr, lease: Duration) -> Data {
        let role = cluster.role();
        Data {
            cluster,
            log,
            socket,
            peer,
            patience: lease / 2,
            role,
            progress: None,
            offered: None,
            acknowledged: 0,
            last_valid: 0,
            // Values are never reused: nanoseconds since boot rise faster than they are written.
            value: now(),
            may_receive: true,
            may_write: true,
        }
    }

    /// Until the replica fails. What made it fail.
    pub async fn run(mut self, mut commands: mpsc::UnboundedReceiver<String>) -> String {
        let mut roles = self.cluster.roles();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut buffer = vec![0; 65_536];
        loop {
            tokio::select! {
                role = roles.next() => match role {
                    Some(role) => self.take(role),
                    None => return self.cluster.failed().await.to_string(),
                },
                Some(command) = commands.recv() => self.command(&command).await,
                got = self.socket.recv_from(&mut buffer) => {
                    // An error is the answer to an earlier datagram that nobody wanted.
                    let Ok((length, _)) = got else { continue };
                    let Ok(talk) = serde_json::from_slice(&buffer[..length]) else { continue };
                    if self.may_receive {
                        self.hear(talk).await;
                    }
                }
                _ = tick.tick() => self.may_write = true,
            }
            self.work().await;
        }
    }

    fn take(&mut self, role: Role) {
        let told = match &role {
            Role::Leader(leader) => json!({
                "event": "role", "at": now(), "role": "leader", "term": leader.term.0, "token": leader.token.0,
                "right": leader.right.to_string(), "acts": leader.lease.is_some(), "link": leader.link,
                "may_offer": leader.may_offer,
                "last_valid": self.last_valid,
            }),
            Role::Standby(standby) => json!({
                "event": "role", "at": now(), "role": "standby", "term": standby.term.0, "right": "none",
                "acts": false, "joined": standby.joined, "leader": standby.leader.map(|node| node.to_string()),
                "leader_term": standby.leader_term.0, "link": standby.link,
                "refused": standby.refused.map(|(by, why)| format!("{by}: {why:?}: {why}")),
                "last_valid": self.last_valid,
            }),
            _ => json!({ "event": "role", "role": "unknown" }),
        };
        tell(told);
        self.role = role;
    }

    async fn command(&mut self, command: &str) {
        let done = match command {
            "report" => match self.cluster.report().await {
                Ok(report) => json!({ "event": "report", "report": report }),
                Err(error) => json!({ "event": "report", "error": error.to_string() }),
            },
            "dump" => json!({ "event": "dump", "values": self.log.values() }),
            "stall" => {
                self.may_receive = false;
                json!({ "event": "stalls" })
            }
            "flow" => {
                self.may_receive = true;
                json!({ "event": "flows" })
            }
            "resign" => {
                let taken = self.cluster.resign().await.map_err(|error| error.to_string());
                json!({ "event": "resigns", "at": now(), "taken": format!("{taken:?}") })
            }
            other => json!({ "event": "bug", "why": format!("unknown command {other}") }),
        };
        tell(done);
    }

    async fn append(&mut self, entries: &[Entry]) {
        if let Err(error) = self.log.append(entries) {
            tell(json!({ "event": "bug", "why": format!("the log: {error}") }));
            std::process::exit(3);
        }
        let _ = self.cluster.durable(Position(self.log.position())).await;
    }

    async fn say(&self, talk: &Talk) {
        let bytes = serde_json::to_vec(talk).expect("plain data");
        let _ = self.socket.send_to(&bytes, self.peer).await;
    }

    async fn work(&mut self) {
        match self.role.clone() {
            Role::Leader(leader) => self.lead(&leader).await,
            Role::Standby(standby) => self.follow(&standby).await,
            _ => {}
        }
    }
}

// The leader.
impl Data {
    async fn lead(&mut self, leader: &Leader) {
        if self.log.last_term() < leader.term.0 {
            self.append(&[Entry { term: leader.term.0, value: 0 }]).await;
            self.acknowledged = self.log.position();
        }
        self.write(leader).await;
        self.acknowledge(leader);
        let Some(link) = leader.link else { return };
        let fresh =
            Progress { link, term: leader.term, next: self.log.position(), held: None, moved: Clock.now() };
        let progress = *self.progress.get_or_insert(fresh);
        if (progress.link, progress.term) != (link, leader.term) {
            self.progress = Some(fresh);
        }
        self.send_what_is_lacking().await;
        let progress = self.progress.unwrap_or(fresh);
        let held = progress.held.unwrap_or(0);
        if leader.right == Right::Paired && Clock.now().since(progress.moved) > self.patience {
            let _ = self.cluster.stalled().await;
        }
        if leader.resigning && held == self.log.position() {
            let _ = self.cluster.stopped().await;
        }
        let caught_up = progress.held.is_some() && held + EXCHANGE >= self.log.position();
        if leader.may_offer && leader.right != Right::Paired && caught_up {
            self.offer(link, leader.term).await;
        }
    }

    async fn write(&mut self, leader: &Leader) {
        let Some(lease) = &leader.lease else { return };
        let waiting = self.log.position() - self.acknowledged;
        let blocked = lease.right() == Right::Blocked || leader.resigning || !lease.is_valid();
        if blocked || waiting > EXCHANGE || !std::mem::take(&mut self.may_write) {
            return;
        }
        self.value += 1;
        self.append(&[Entry { term: leader.term.0, value: self.value }]).await;
    }

    fn acknowledge(&mut self, leader: &Leader) {
        let Some(lease) = &leader.lease else { return };
        // Read before the lease is asked: so what is told below was within the right to act.
        let at = now();
        if !lease.is_valid() {
            return;
        }
        self.last_valid = at;
        let peer = self.progress.filter(|progress| progress.term == leader.term).and_then(|progress| {
            Some(PeerDurable { link: progress.link, position: Position(progress.held?) })
        });
        let Some(upto) = lease.acknowledge(Position(self.log.position()), peer) else { return };
        while self.acknowledged < upto.0 {
            self.acknowledged += 1;
            let entry = self.log.get(self.acknowledged).expect("what is acknowledged is here");
            if entry.value != 0 {
                let right = lease.right().to_string();
                tell(json!({
                    "event": "ack", "at": at, "value": entry.value, "token": lease.token().0, "right": right,
                }));
            }
        }
    }

    async fn send_what_is_lacking(&mut self) {
        let Some(progress) = &mut self.progress else { return };
        if progress.held == Some(self.log.position()) {
            progress.moved = Clock.now();
            return;
        }
        let after = progress.next.min(self.log.position());
        let append = Talk::Append {
            link: progress.link,
            term: progress.term.0,
            after,
            after_term: self.log.term_at(after).expect("within the log"),
            entries: self.log.after(after, ENTRIES_PER_DATAGRAM_MAX),
        };
        self.say(&append).await;
    }

    async fn offer(&mut self, link: LinkStamp, term: Term) {
        if let Some((on, of, at)) = self.offered
            && (on, of) == (link, term)
            && Clock.now().since(at) < self.patience
        {
            return;
        }
        let taken = self.cluster.offer(Position(self.log.position())).await;
        let term = match self.cluster.role() {
            Role::Leader(leader) => leader.term,
            _ => term,
        };
        self.offered = Some((link, term, Clock.now()));
        tell(json!({ "event": "offers", "term": term.0, "taken": format!("{taken:?}") }));
    }
}

// The follower.
impl Data {
    async fn follow(&mut self, standby: &Standby) {
        let (Some(offer), Some(common)) = (standby.offer, self.progress) else { return };
        // Not before the mark of the term is here: what an earlier leader left behind it is gone by then.
        let here = common.link == offer.link
            && common.term == offer.term
            && common.next >= offer.position.0
            && self.log.last_term() == offer.term.0;
        if here {
            let taken = self.cluster.joined(&offer, Position(self.log.position())).await;
            tell(json!({ "event": "joins", "term": offer.term.0, "taken": format!("{taken:?}") }));
            self.take(self.cluster.role());
        }
    }

    async fn hear(&mut self, talk: Talk) {
        match (self.role.clone(), talk) {
            (Role::Standby(standby), Talk::Append { link, term, after, after_term, entries }) => {
                let of_leader =
                    standby.leader_term.0 == term || standby.offer.is_some_and(|o| o.term.0 == term);
                if standby.link == Some(link) && of_leader {
                    self.receive(&standby, (link, Term(term)), (after, after_term), &entries).await;
                }
            }
            (Role::Leader(leader), Talk::Holds { link, term, position }) => {
                if let Some(progress) = &mut self.progress
                    && (progress.link, progress.term.0) == (link, term)
                    && leader.term.0 == term
                {
                    if progress.held.is_none_or(|held| held < position) {
                        progress.held = Some(position);
                        progress.moved = Clock.now();
                    }
                    progress.next = progress.next.max(position);
                }
            }
            (Role::Leader(_), Talk::Lacks { link, term, position }) => {
                if let Some(progress) = &mut self.progress
                    && (progress.link, progress.term.0) == (link, term)
                    && progress.held.is_none()
                {
                    progress.next = progress.next.min(position);
                }
            }
            _ => {}
        }
    }

    async fn receive(
        &mut self,
        standby: &Standby,
        (link, term): (LinkStamp, Term),
        (after, after_term): (u64, u32),
        entries: &[Entry],
    ) {
        if self.log.term_at(after) != Some(after_term) {
            let position = self.log.position().min(after.saturating_sub(EXCHANGE));
            return self.say(&Talk::Lacks { link, term: term.0, position }).await;
        }
        let mut at = after;
        let mut new = entries;
        while let Some((entry, rest)) = new.split_first() {
            match self.log.get(at + 1) {
                Some(mine) if mine == *entry => {}
                Some(_) => {
                    // What an earlier leader wrote and nobody acknowledged. It is destroyed only once that is on
                    // record.
                    if standby.joined {
                        tell(json!({ "event": "bug", "why": "a joined follower differs from its leader" }));
                    }
                    if self.cluster.resync().await.is_err() {
                        return;
                    }
                    self.log.truncate(at).expect("the disk of the test works");
                    let _ = self.cluster.durable(Position(at)).await;
                    break;
                }
                None => break,
            }
            at += 1;
            new = rest;
        }
        if !new.is_empty() {
            self.append(new).await;
            at += new.len() as u64;
        }
        let common = match self.progress {
            Some(known) if (known.link, known.term) == (link, term) => known.next.max(at),
            _ => at,
        };
        self.progress = Some(Progress { link, term, next: common, held: None, moved: Clock.now() });
        self.say(&Talk::Holds { link, term: term.0, position: common }).await;
    }
}
