//! What a follower does with what arrives: only what bears the present link and the leader's present term counts.

use std::time::Duration;

use crate::cli::demo::messages::{Copied, Copy, Stamped};
use crate::ids::{Position, Term};
use crate::{Cluster, LinkStamp, Role};

use super::log::Log;
use super::service::FromLeader;

/// The connection from whoever says that it leads.
pub(super) struct Following {
    wire: FromLeader,
    /// Arrived before the cluster told of the term or the link that it belongs to: TCP and QUIC overtake each other.
    early: Option<Stamped<Copy>>,
    early_for: Duration,
    stamp: Option<(LinkStamp, Term)>,
}

/// Whether a stamp counts.
#[derive(PartialEq, Eq)]
enum Counts {
    Yes,
    NotYet,
    NoMore,
}

fn counts(role: &Role, link: LinkStamp, term: Term) -> Counts {
    match role {
        Role::Standby(standby) if standby.link == Some(link) && standby.leader_term == term => Counts::Yes,
        Role::Standby(standby) if standby.leader_term <= term => Counts::NotYet,
        Role::Leader(leader) if leader.term < term => Counts::NotYet,
        _ => Counts::NoMore,
    }
}

/// The connection is of no use any more.
pub(super) struct Over;

impl Following {
    pub(super) fn new(wire: FromLeader) -> Following {
        Following { wire, early: None, early_for: Duration::ZERO, stamp: None }
    }

    /// The next message; `None` when the connection is over. Never, without one, or while an early one waits.
    pub(super) async fn message(following: &mut Option<Following>) -> Option<Stamped<Copy>> {
        match following.as_mut().filter(|following| following.early.is_none()) {
            Some(following) => following.wire.from.recv().await,
            None => std::future::pending().await,
        }
    }

    /// What waited for the cluster to tell of its term, if it did not wait too long.
    pub(super) fn retry(
        &mut self,
        span: Duration,
        patience: Duration,
    ) -> Result<Option<Stamped<Copy>>, Over> {
        self.early_for = if self.early.is_some() { self.early_for + span } else { Duration::ZERO };
        if self.early_for > patience { Err(Over) } else { Ok(self.early.take()) }
    }

    /// Takes one message: makes it durable, and answers.
    pub(super) async fn take(
        &mut self,
        message: Stamped<Copy>,
        cluster: &Cluster,
        log: &mut Log,
    ) -> std::io::Result<Result<(), Over>> {
        let (link, term) = (message.link, message.term);
        match counts(&cluster.role(), link, term) {
            Counts::Yes => {}
            Counts::NotYet => {
                self.early = Some(message);
                return Ok(Ok(()));
            }
            Counts::NoMore => return Ok(Err(Over)),
        }
        match message.body {
            Copy::Begin { runs, length } => {
                let common = log.common(&runs, length);
                if common < log.length() {
                    // What is about to go may be all that is left of something acknowledged: the cluster has to
                    // have it on record before.
                    if let Err(error) = cluster.resync().await {
                        tracing::info!(%error, "not the time to drop anything");
                        return Ok(Err(Over));
                    }
                    tracing::info!(from = log.length(), to = common, "drops what the leader does not have");
                    log.truncate(common).await?;
                }
                self.stamp = Some((link, term));
            }
            Copy::Append { after, entries } => {
                if self.stamp != Some((link, term)) || after != log.length() {
                    return Ok(Err(Over));
                }
                log.append(entries).await?;
            }
        }
        let position = log.length();
        if cluster.durable(Position(position)).await.is_err() {
            return Ok(Err(Over));
        }
        // The disk took its time: whoever leads somebody else by now owes no answer to this one.
        if counts(&cluster.role(), link, term) != Counts::Yes {
            return Ok(Err(Over));
        }
        let answer = Stamped { link, term, body: Copied { position } };
        Ok(self.wire.to.try_send(answer).map_err(|_| Over))
    }
}

/// Takes up the leader's offer once everything that it asks for is durable, the mark of the term included.
pub(super) async fn join_if_due(role: &Role, cluster: &Cluster, log: &Log) {
    let Role::Standby(standby) = role else { return };
    let Some(offer) = &standby.offer else { return };
    if log.term() == offer.term && Position(log.length()) >= offer.position {
        // A refusal means that the offer is over; another one will come.
        match cluster.joined(offer, Position(log.length())).await {
            Ok(()) => tracing::info!(term = %offer.term, position = %offer.position, "joined"),
            Err(error) => tracing::info!(%error, "the offer is over"),
        }
    }
}
