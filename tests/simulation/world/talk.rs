//! A transcript that people read.

use tiebreak::ids::Term;
use tiebreak::message::{Candidacy, Hello, Refusal, Reply, Request, Standing};
use tiebreak::testing::{Input, Right, RoleView, View};

use super::NAMES;
use super::data::Body;
use super::net::Packet;

/// Lines of what was said and decided. Renewals after the first of a term are counted, not printed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) lines: Vec<String>,
    renewed: Option<(usize, usize, Term)>,
    elided: u64,
    roles: [String; 4],
    data: bool,
}

impl Transcript {
    fn push(&mut self, now: u64, text: &str) {
        if self.elided > 0 {
            self.lines.push(format!("            … {} more renewals and answers", self.elided));
            self.elided = 0;
        }
        let seconds = now as f64 / 1e9;
        self.lines.push(format!("{seconds:>8.3}s  {text}").trim_end().to_owned());
    }

    pub(crate) fn heading(&mut self, text: &str) {
        if self.elided > 0 {
            self.lines.push(format!("            … {} more renewals and answers", self.elided));
            self.elided = 0;
        }
        self.lines.push(String::new());
        self.lines.push(format!("== {text}"));
    }

    pub(crate) fn note(&mut self, now: u64, node: usize, what: &str) {
        self.roles[node].clear();
        self.push(now, &format!("{}        {what}", NAMES[node]));
    }

    pub(crate) fn said(&mut self, now: u64, from: usize, to: usize, packet: &Packet, lost: bool) {
        let arrow = if lost { "-x" } else { "->" };
        let text = match packet {
            Packet::Ask { request, .. } => {
                if let Request::Renew { term, .. } = request {
                    let this = (from, to, *term);
                    if self.renewed == Some(this) {
                        self.elided += 1;
                        return;
                    }
                    self.renewed = Some(this);
                }
                request_words(request)
            }
            Packet::Answer { reply: Reply::Renewed { sequence, .. }, .. } if *sequence > 1 => {
                self.elided += 1;
                return;
            }
            Packet::Answer { reply, .. } => reply_words(reply),
            Packet::Data { term, body, .. } => {
                self.data = true;
                data_words(*term, body)
            }
        };
        self.push(now, &format!("{} {arrow} {}   {text}", NAMES[from], NAMES[to]));
    }

    pub(crate) fn commanded(&mut self, now: u64, node: usize, command: &Input, taken: Result<(), Refusal>) {
        let what = match command {
            Input::Offer(position) => format!("its data layer wants the peer to join at {position}"),
            Input::Join(term) => format!("its data layer holds what was offered in term {term}"),
            Input::Resync => "its data layer asks to destroy what is not the leader's".into(),
            Input::Stalled => "its data layer finds that the peer makes nothing durable".into(),
            Input::Resign => "is asked to hand over".into(),
            Input::Stopped => "has stopped its service, the peer has everything".into(),
            other => format!("{other:?}"),
        };
        let outcome = match taken {
            Ok(()) => String::new(),
            Err(refusal) => format!("; refused: {}", refusal_words(&refusal)),
        };
        self.push(now, &format!("{}        {what}{outcome}", NAMES[node]));
    }

    pub(crate) fn showed(&mut self, now: u64, node: usize, view: &View) {
        let role = role_words(view);
        if self.roles[node] != role {
            self.roles[node].clone_from(&role);
            self.push(now, &format!("{}        IS {role}", NAMES[node]));
        }
    }
}

fn role_words(view: &View) -> String {
    let sole = if view.sole { ", sole" } else { "" };
    match view.role {
        RoleView::Follower { leader: Some((leader, term)), joined, .. } => {
            let part = if joined { "and takes part" } else { "not joined" };
            format!("follower of {leader} in term {term}, {part}{sole}")
        }
        RoleView::Follower { leader: None, .. } => {
            let standing = match view.standing {
                Standing::Blank => "blank, ",
                Standing::Resyncing(_) => "resyncing, ",
                Standing::Member => "",
                Standing::Unvalidated => " unvalidated",
            };
            format!("{standing}without a leader, term {}{sole}", view.term)
        }
        RoleView::Candidate => format!("candidate for term {}", view.term),
        RoleView::Leader { token, right, acts_until, resigning, .. } => {
            let right = match right {
                Right::Blocked => "BLOCKED",
                Right::Paired => "PAIRED",
                Right::Solo => "SOLO",
            };
            let acts = if acts_until.is_some() { "acts" } else { "does not act" };
            let resigning = if resigning { ", resigning" } else { "" };
            format!("LEADER of term {}, {right}, {acts}{resigning}", token.term())
        }
    }
}

fn candidacy_words(c: &Candidacy) -> String {
    format!("term {} holds {} pos {}", c.term, c.holds, c.position)
}

fn hello_words(h: &Hello) -> String {
    let standing = match h.standing {
        Standing::Blank => " blank",
        Standing::Member => "",
        Standing::Unvalidated => " unvalidated",
        Standing::Resyncing(_) => " resyncing",
    };
    let sole = if h.sole { " sole" } else { "" };
    let leads = if h.leads { " leads" } else { "" };
    match h.part {
        tiebreak::message::Part::Replica => {
            format!("Hello{standing}{sole}{leads} holds {} pos {}", h.holds, h.position)
        }
        tiebreak::message::Part::Witness => format!("Hello witness{standing} confirmed {}", h.holds),
    }
}

fn request_words(request: &Request) -> String {
    match request {
        Request::Hello(hello) => hello_words(hello),
        Request::PreVote(c) => format!("PreVote {}", candidacy_words(c)),
        Request::Vote(c) => format!("Vote {}", candidacy_words(c)),
        Request::Confirm { term, .. } => format!("Confirm term {term}"),
        Request::Offer { term, position, admits, .. } => {
            let admits = if admits.is_some() { " (takes in a new one)" } else { "" };
            format!("Offer term {term} pos {position}{admits}")
        }
        Request::Joined { term, position } => format!("Joined term {term} pos {position}"),
        Request::Renew { term, lease, .. } => format!("Renew term {term} for {} ms", lease.0),
        Request::Release { term, position } => format!("Release term {term} pos {position}"),
        Request::Adopt { term, .. } => format!("Adopt term {term}"),
        Request::Admit { term, solo, .. } => {
            format!("Admit term {term}{}", if *solo { " confirmed" } else { "" })
        }
        Request::Validate { term, .. } => format!("Validate term {term}"),
        Request::Linked => "Linked".into(),
        Request::Vouch { term, .. } => format!("Vouch term {term}"),
        Request::Status => "Status".into(),
        Request::Name(request) => format!("{request:?}"),
    }
}

fn reply_words(reply: &Reply) -> String {
    match reply {
        Reply::Hello(hello) => hello_words(hello),
        Reply::PreVoted { term } => format!("would vote in term {term}"),
        Reply::Voted { term } => format!("voted in term {term}"),
        Reply::Confirmed { term } => format!("confirmed term {term}"),
        Reply::Offered { term } => format!("heard the offer of term {term}"),
        Reply::Settled { term } => format!("settled term {term}"),
        Reply::Renewed { term, .. } => format!("promised in term {term}"),
        Reply::Released { term } => format!("released term {term}"),
        Reply::Adopted { .. } => "adopted".into(),
        Reply::Admitted { term } => format!("admitted in term {term}"),
        Reply::Validated { term } => format!("validated in term {term}"),
        Reply::Linked => "linked".into(),
        Reply::Vouched { term, .. } => format!("vouched for term {term}"),
        Reply::Status(_) => "status".into(),
        Reply::Name(reply) => format!("{reply:?}"),
        Reply::Refused(refusal) => format!("refused: {}", refusal_words(refusal)),
        Reply::Versions { lowest, highest } => format!("speaks {lowest} to {highest}"),
    }
}

fn refusal_words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Stale { holds, confirmed, to } => {
            format!("stale (holds {holds}, term {confirmed} was confirmed to {to})")
        }
        Refusal::TermSpent { term } => format!("term spent (ask for {term} or more)"),
        Refusal::Behind { holds, position } => format!("behind (I hold {holds} pos {position})"),
        Refusal::LeaseRuns { left } => format!("a lease runs ({} ms left)", left.0),
        Refusal::Sole => "sole".into(),
        Refusal::Busy { left } => format!("busy ({} ms left)", left.0),
        Refusal::HoldOff { left } => format!("just started ({} ms left)", left.0),
        other => format!("{other:?}"),
    }
}

fn data_words(term: Term, body: &Body) -> String {
    match body {
        Body::Begin => format!("  data[{term}] send me everything"),
        Body::Append { start, entries, .. } => {
            format!("  data[{term}] {}..{}", start, start + entries.len())
        }
        Body::Has(upto) => format!("  data[{term}] durable to {upto}"),
    }
}
