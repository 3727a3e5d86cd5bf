//! `tiebreak status`: ask all three, and say in words how the cluster is.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::config::{NodeConfig, OtherConfig, ReplicaConfig};
use crate::edge::identity::Identity;
use crate::edge::quic::{Connection, Endpoint, HostPort, Pins, Timing};
use crate::ids::{Boot, ClusterId, ClusterName, Incarnation, NodeId, Term, Token, VoterId};
use crate::message::{Kind, Part, Refusal, Reply, Report, Request, RoleName, Sender, Standing};
use crate::wire;

/// All three are well.
const WELL: u8 = 0;
/// There is a leader, and something is missing: redundancy is lost.
const DEGRADED: u8 = 1;
/// There is no leader.
const NO_LEADER: u8 = 2;
/// It could not be found out.
pub(super) const UNKNOWN: u8 = 3;

/// How long the sockets may take to say goodbye.
pub(super) const GOODBYE: Duration = Duration::from_millis(200);

/// Show how the cluster is
#[derive(Args, Debug)]
#[command(
    after_help = "Exit code: 0 all three are well; 1 degraded (redundancy is lost); 2 there is no leader; \
                        3 it could not be found out."
)]
pub struct Status {
    /// The configuration file of the replica to ask from
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// One JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// How long to wait for an answer
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration, value_name = "SPAN")]
    pub timeout: Duration,
}

/// What was found out about the cluster.
#[derive(Serialize, Debug)]
struct Picture {
    cluster: ClusterName,
    /// What it protects, as a full member says.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    verdict: &'static str,
    exit_code: u8,
    why: Vec<String>,
    nodes: Vec<Asked>,
}

/// What was found out about one node.
#[derive(Serialize, Debug)]
struct Asked {
    node: NodeId,
    part: Part,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreachable: Option<String>,
}

impl Status {
    /// Asks and prints.
    ///
    /// # Errors
    /// If the configuration or the key cannot be used.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let NodeConfig::Replica(config) = NodeConfig::load(&self.config)? else {
            bail!(
                "{} is a witness's configuration, which knows no addresses to ask; run this with a replica's",
                self.config.display()
            );
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let nodes = runtime.block_on(ask_all(&config, self.timeout))?;
        let picture =
            judge(config.cluster, nodes.into_iter().map(|asked| of_cluster(config.cluster, asked)).collect());
        if self.json {
            writeln!(io::stdout(), "{}", serde_json::to_string(&picture)?)?;
        } else {
            print(&picture, &mut io::stdout().lock())?;
        }
        Ok(ExitCode::from(picture.exit_code))
    }
}

async fn ask_all(config: &ReplicaConfig, patience: Duration) -> anyhow::Result<Vec<Asked>> {
    let identity = Identity::load(&config.own.key)?;
    let own_key = identity.fingerprint();
    let keys = config.peer.keys.iter().chain(&config.witness.keys).copied().chain([own_key]);
    let endpoint = Endpoint::bind(&identity, &[], Pins::new(keys), Timing::default())?;
    let own = OtherConfig {
        node: config.own.node,
        addresses: config.own.listen.iter().map(|address| reachable(*address)).collect(),
        keys: vec![own_key],
    };
    let ask = |part, other: &OtherConfig| {
        let (endpoint, other, me) = (endpoint.clone(), other.clone(), config.own.node);
        async move {
            let asked = tokio::time::timeout(patience, ask(&endpoint, me, &other)).await;
            let (report, unreachable) = match asked {
                Ok(Ok(report)) => (Some(report), None),
                Ok(Err(why)) => (None, Some(why)),
                Err(_) => (None, Some(format!("no answer in {patience:?}"))),
            };
            Asked { node: other.node, part, report, unreachable }
        }
    };
    let (own, peer, witness) = tokio::join!(
        ask(Part::Replica, &own),
        ask(Part::Replica, &config.peer),
        ask(Part::Witness, &config.witness)
    );
    // Those who answered get to know; nobody waits for those who did not.
    let _ = tokio::time::timeout(GOODBYE, endpoint.shutdown("status was asked")).await;
    Ok(vec![own, peer, witness])
}

/// Where a process on this machine is reached that listens there.
fn reachable(listen: SocketAddr) -> HostPort {
    let host = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.to_string(),
        ip => ip.to_string(),
    };
    HostPort { host, port: listen.port() }
}

async fn ask(endpoint: &Endpoint, me: NodeId, other: &OtherConfig) -> Result<Report, String> {
    if other.addresses.is_empty() {
        return Err("no address of it is configured here".into());
    }
    let connection = endpoint.dial(&other.addresses, &other.keys).await.map_err(|error| {
        let attempts: Vec<String> = error.attempts.iter().map(ToString::to_string).collect();
        attempts.join("; ")
    })?;
    exchange(&connection, me).await
}

/// Asks on a connection that was made, which is also the proof that the other side takes this node's key.
pub(super) async fn exchange(connection: &Connection, me: NodeId) -> Result<Report, String> {
    let sender = Sender {
        cluster: ClusterId::NIL,
        voter: VoterId { node: me, incarnation: Incarnation::NIL },
        boot: Boot(0),
        term: Term::ZERO,
    };
    let bytes = connection
        .ask(&wire::encode_request(&sender, &Request::Status))
        .await
        .map_err(|error| error.to_string())?;
    match wire::decode_reply(&bytes) {
        Ok((_, Reply::Status(report))) => Ok(*report),
        Ok((_, Reply::Refused(refusal))) => Err(refusal.to_string()),
        Ok((_, Reply::Versions { lowest, highest })) => {
            Err(format!("it speaks versions {lowest} to {highest}, this program {}", wire::VERSION))
        }
        Ok((_, other)) => Err(format!("it answered {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// A node that answers for another cluster has not answered.
fn of_cluster(cluster: ClusterName, asked: Asked) -> Asked {
    match &asked.report {
        Some(report) if report.name != cluster => {
            let words = format!("it belongs to cluster {}, and {cluster} is configured here", report.name);
            Asked { report: None, unreachable: Some(words), ..asked }
        }
        _ => asked,
    }
}

/// Every replica has to have a link to the one witness that it, the other one and the witness itself mean.
fn witness_troubles(nodes: &[Asked]) -> Vec<String> {
    let mut troubles = Vec::new();
    let witness =
        nodes.iter().find(|asked| asked.part == Part::Witness).and_then(|asked| asked.report.as_ref());
    for asked in nodes.iter().filter(|asked| asked.part == Part::Replica) {
        let (node, Some(report)) = (asked.node, &asked.report) else { continue };
        let recognised = report.adoption.incarnation;
        match report.others[1] {
            None => troubles.push(format!("{node} has no link to the witness")),
            Some(link) if link.incarnation != recognised => {
                troubles.push(format!(
                    "{node} does not recognise the witness that it reaches; a leader has to take it in"
                ));
            }
            Some(_) if witness.is_some_and(|witness| witness.adoption.incarnation != recognised) => {
                troubles.push(format!("{node} recognises another witness than the one that answers here"));
            }
            Some(_) => {}
        }
    }
    troubles
}

/// Refusals that do not pass by themselves: an operator has to know of them, whoever leads.
fn is_about_a_state(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Restored { .. } | Refusal::Copied { .. } | Refusal::Banned { .. })
}

/// What the answers mean together.
fn judge(cluster: ClusterName, nodes: Vec<Asked>) -> Picture {
    let mut why = Vec::new();
    for asked in &nodes {
        if let Some(cause) = &asked.unreachable {
            why.push(format!("{} cannot be asked: {cause}", asked.node));
        }
    }
    let reports = || nodes.iter().filter_map(|asked| asked.report.as_ref().map(|report| (asked, report)));
    let replicas = || reports().filter(|(asked, _)| asked.part == Part::Replica);
    let leader = replicas().filter(|(_, report)| report.acts).max_by_key(|(_, report)| report.token);
    for (asked, report) in reports() {
        if report.standing == Standing::Blank {
            why.push(format!("{} is blank; it counts when a leader has taken it in", asked.node));
        }
        if let Standing::Resyncing(_) = report.standing {
            why.push(format!("{} is copying from its leader, and holds nothing complete", asked.node));
        }
        if report.standing == Standing::Unvalidated {
            why.push(format!("{}: {}", asked.node, Refusal::Unvalidated));
        }
        if let Some((by, refusal)) = report.refused
            && is_about_a_state(&refusal)
        {
            let words = match asked.part {
                Part::Replica => format!("{} and {by}: {refusal}", asked.node),
                Part::Witness => format!("{} refused {by}: {refusal}", asked.node),
            };
            why.push(words);
        }
    }
    let kind =
        reports().find(|(_, report)| report.standing != Standing::Blank).map(|(_, report)| report.kind);
    let exit_code = match leader {
        Some((asked, report)) => {
            match report.role {
                RoleName::Solo if kind == Some(Kind::Leadership) => why.push(format!(
                    "{} leads alone until the other replica has joined",
                    asked.node
                )),
                RoleName::Blocked if kind == Some(Kind::Leadership) => why.push(format!(
                    "{} leads by a lease of one other voter: the other replica has not joined its term",
                    asked.node
                )),
                RoleName::Solo => why.push(format!(
                    "{} goes on alone: what it acknowledges has one copy until the other replica has joined",
                    asked.node
                )),
                RoleName::Blocked => why.push(format!(
                    "{} leads and acknowledges nothing yet: the peer has not joined and the witness has not confirmed",
                    asked.node
                )),
                _ => {}
            }
            why.extend(witness_troubles(&nodes));
            let full = report.role == RoleName::Paired && why.is_empty();
            if full { WELL } else { DEGRADED }
        }
        None if replicas().count() == 0 => UNKNOWN,
        None => {
            let heard = replicas().find_map(|(asked, report)| {
                let leader = report.leader.filter(|leader| *leader != asked.node)?;
                let asked_too = replicas().any(|(other, _)| other.node == leader);
                (!asked_too).then_some((asked.node, leader))
            });
            if let Some((by, leader)) = heard {
                why.push(format!("{by} last heard {leader} lead, and {leader} cannot be asked from here"));
                UNKNOWN
            } else {
                why.push("no replica that could be asked has the right to act".into());
                NO_LEADER
            }
        }
    };
    if exit_code != WELL {
        for (asked, report) in reports() {
            if let Some((by, refusal)) = report.refused
                && !matches!(refusal, Refusal::Crossing | Refusal::Void | Refusal::Busy { .. })
                && !is_about_a_state(&refusal)
                && asked.part == Part::Replica
                && report.leader.is_none()
            {
                let words = format!("{} was last refused by {by}: {refusal}", asked.node);
                why.push(words);
            }
        }
    }
    let verdict = match exit_code {
        WELL => "well",
        DEGRADED => "degraded",
        NO_LEADER => "no leader",
        _ => "unknown",
    };
    Picture { cluster, kind, verdict, exit_code, why, nodes }
}

fn print(picture: &Picture, out: &mut impl Write) -> io::Result<()> {
    let kind = match picture.kind {
        Some(Kind::Leadership) => " (leadership)",
        _ => "",
    };
    writeln!(out, "cluster {}{kind}: {}", picture.cluster, picture.verdict)?;
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["node", "role", "term", "token", "lease", "holds", "position", "sees"]);
    for asked in &picture.nodes {
        let Some(report) = &asked.report else {
            table.add_row([asked.node.as_str(), "no answer"]);
            continue;
        };
        let role = match report.role {
            RoleName::Witness if report.standing == Standing::Blank => "witness, blank",
            RoleName::Witness if report.standing == Standing::Unvalidated => "witness, not validated",
            RoleName::Witness => "witness",
            RoleName::Follower if report.standing == Standing::Blank => "blank",
            RoleName::Follower => "follower",
            RoleName::Candidate => "candidate",
            RoleName::Blocked if report.kind == Kind::Leadership => "leads",
            RoleName::Blocked => "leads, blocked",
            RoleName::Paired => "leads, paired",
            RoleName::Solo => "leads, solo",
        };
        let lease = match (report.acts, report.lease_left) {
            (true, None) => "sole".into(),
            (true, Some(left)) => format!("{} ms", left.0),
            (false, _) => "-".into(),
        };
        let replica = asked.part == Part::Replica;
        let or_dash = |shown: bool, text: String| if shown { text } else { "-".into() };
        let sees: Vec<&str> = report.others.iter().flatten().map(|other| other.node.as_str()).collect();
        table.add_row([
            asked.node.to_string(),
            role.into(),
            report.promised.term.to_string(),
            report.token.map_or("-".into(), in_two),
            lease,
            or_dash(replica, report.holds.to_string()),
            or_dash(replica, report.position.to_string()),
            or_dash(!sees.is_empty(), sees.join(" ")),
        ]);
    }
    writeln!(out, "{table}")?;
    for reason in &picture.why {
        writeln!(out, "- {reason}")?;
    }
    Ok(())
}

/// A token as people read it, the term first; `--json` has the number that travels with writes.
fn in_two(token: Token) -> String {
    format!("{}.{}", token.term(), token.0 & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Position;
    use crate::message::{Adoption, OtherReport, Word};
    use crate::time::Millis;

    fn report(role: RoleName, acts: bool) -> Report {
        let other = |name: &str, part| {
            let node = name.parse().expect("a name");
            Some(OtherReport { node, part, link: None, incarnation: Incarnation(1), silent_for: None })
        };
        Report {
            name: "orders".parse().expect("a name"),
            kind: Kind::Replicated,
            role,
            standing: Standing::Member,
            sole: role == RoleName::Solo,
            acts,
            lease_left: acts.then_some(Millis(900)),
            token: acts.then_some(Token(1 << 32)),
            leader: None,
            holds: Term(1),
            position: Position(1),
            promised: Word::default(),
            confirmed: Word::default(),
            adoption: Adoption { incarnation: Incarnation(1), ..Adoption::NONE },
            others: [other("b", Part::Replica), other("w", Part::Witness)],
            refused: None,
        }
    }

    fn asked(name: &str, part: Part, report: Option<Report>) -> Asked {
        let unreachable = report.is_none().then(|| "no answer".to_string());
        Asked { node: name.parse().expect("a name"), part, report, unreachable }
    }

    fn code(a: Option<Report>, b: Option<Report>, w: Option<Report>) -> u8 {
        let nodes =
            vec![asked("a", Part::Replica, a), asked("b", Part::Replica, b), asked("w", Part::Witness, w)];
        judge("orders".parse().expect("a name"), nodes).exit_code
    }

    #[test]
    fn the_table_shows_the_token_with_its_term_first() {
        let leader = Report { token: Some(Token(3 << 32 | 1)), ..report(RoleName::Paired, true) };
        let picture = judge("orders".parse().expect("a name"), vec![asked("a", Part::Replica, Some(leader))]);
        let mut shown = Vec::new();
        print(&picture, &mut shown).expect("a vector takes everything");
        let shown = String::from_utf8(shown).expect("text");
        assert!(shown.contains(" 3.1 "), "{shown}");
    }

    #[test]
    fn the_exit_code_tells_well_degraded_leaderless_and_unknown_apart() {
        let paired = || Some(report(RoleName::Paired, true));
        let solo = || Some(report(RoleName::Solo, true));
        let follower = || Some(report(RoleName::Follower, false));
        let witness = || Some(report(RoleName::Witness, false));
        assert_eq!(code(paired(), follower(), witness()), WELL);
        assert_eq!(code(paired(), follower(), None), DEGRADED);
        assert_eq!(code(solo(), follower(), witness()), DEGRADED);
        assert_eq!(code(solo(), None, None), DEGRADED);
        assert_eq!(code(follower(), follower(), witness()), NO_LEADER);
        assert_eq!(code(None, None, witness()), UNKNOWN);
        let other_witness = Report {
            adoption: Adoption { incarnation: Incarnation(2), ..Adoption::NONE },
            ..report(RoleName::Follower, false)
        };
        assert_eq!(code(paired(), Some(other_witness), witness()), DEGRADED);
        let cut_off = Report { others: [None, None], ..report(RoleName::Follower, false) };
        assert_eq!(code(paired(), Some(cut_off), witness()), DEGRADED);
        let hears_b =
            Report { leader: Some("b".parse().expect("a name")), ..report(RoleName::Follower, false) };
        assert_eq!(code(Some(hears_b), None, witness()), UNKNOWN);
    }
}
