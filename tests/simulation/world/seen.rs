//! What was exercised, by name: a storm that never asks for a confirmation proves nothing about confirmations.

use std::collections::BTreeMap;

use tiebreak::message::{Refusal, Reply, Request, Standing};
use tiebreak::testing::{Input, Right, RoleView, View};

use super::net::Packet;

/// How often each named thing happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(pub(crate) BTreeMap<&'static str, u64>);

impl Seen {
    pub(crate) fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Seen) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }
}

pub(super) fn packet(seen: &mut Seen, packet: &Packet) {
    match packet {
        Packet::Ask { request, .. } => seen.note(asked(request)),
        Packet::Answer { reply: Reply::Refused(refusal), .. } => seen.note(refused(refusal)),
        Packet::Answer { reply, .. } => seen.note(answered(reply)),
        Packet::Data { .. } => {}
    }
}

fn asked(request: &Request) -> &'static str {
    match request {
        Request::Hello(_) => "ask: hello",
        Request::PreVote(_) => "ask: pre-vote",
        Request::Vote(_) => "ask: vote",
        Request::Confirm { .. } => "ask: confirm",
        Request::Offer { admits: Some(_), .. } => "ask: offer that takes a life in",
        Request::Offer { .. } => "ask: offer",
        Request::Joined { .. } => "ask: joined",
        Request::Renew { .. } => "ask: renew",
        Request::Release { .. } => "ask: release",
        Request::Adopt { .. } => "ask: adopt",
        Request::Admit { solo: true, .. } => "ask: admit, confirmed",
        Request::Admit { .. } => "ask: admit",
        Request::Validate { .. } => "ask: validate",
        Request::Vouch { .. } => "ask: vouch",
        Request::Linked => "ask: linked",
        Request::Status => "ask: status",
        // The simulated nodes lock nothing: `tests/names` does.
        Request::Name(_) => "ask: name",
    }
}

fn answered(reply: &Reply) -> &'static str {
    match reply {
        Reply::Hello(_) => "answer: hello",
        Reply::PreVoted { .. } => "answer: would vote",
        Reply::Voted { .. } => "answer: voted",
        Reply::Confirmed { .. } => "answer: confirmed",
        Reply::Offered { .. } => "answer: offered",
        Reply::Settled { .. } => "answer: settled",
        Reply::Renewed { .. } => "answer: renewed",
        Reply::Released { .. } => "answer: released",
        Reply::Adopted { .. } => "answer: adopted",
        Reply::Admitted { .. } => "answer: admitted",
        Reply::Validated { .. } => "answer: validated",
        Reply::Vouched { .. } => "answer: vouched",
        Reply::Linked => "answer: linked",
        Reply::Status(_) => "answer: status",
        Reply::Name(_) => "answer: name",
        Reply::Refused(_) | Reply::Versions { .. } => "answer: other",
    }
}

fn refused(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Stale { .. } => "refused: stale",
        Refusal::TermSpent { .. } => "refused: term spent",
        Refusal::Behind { .. } => "refused: behind",
        Refusal::LeaseRuns { .. } => "refused: lease runs",
        Refusal::Sole => "refused: sole",
        Refusal::Busy { .. } => "refused: busy",
        Refusal::HoldOff { .. } => "refused: hold-off",
        Refusal::Blank => "refused: blank",
        Refusal::Resyncing => "refused: resyncing",
        Refusal::HoldsNothing => "refused: holds nothing",
        Refusal::OtherWitness => "refused: other witness",
        Refusal::Void => "refused: void",
        Refusal::NotLeader { .. } => "refused: not leader",
        Refusal::Crossing => "refused: crossing",
        Refusal::Restored { .. } => "refused: restored",
        Refusal::Copied { .. } => "refused: copied",
        Refusal::Banned { .. } => "refused: banned",
        Refusal::Unvalidated => "refused: unvalidated",
        _ => "refused: other",
    }
}

pub(super) fn command(seen: &mut Seen, command: &Input, taken: Result<(), Refusal>) {
    seen.note(match (command, taken.is_ok()) {
        (Input::Offer(_), true) => "command: offer",
        (Input::Offer(_), false) => "command refused: offer",
        (Input::Join(_), true) => "command: join",
        (Input::Join(_), false) => "command refused: join",
        (Input::Resync, true) => "command: resync",
        (Input::Resync, false) => "command refused: resync",
        (Input::Stalled, _) => "command: stalled",
        (Input::Resign, true) => "command: resign",
        (Input::Resign, false) => "command refused: resign",
        (Input::Stopped, true) => "command: stopped",
        (Input::Stopped, false) => "command refused: stopped",
        _ => "command: other",
    });
}

pub(super) fn role(seen: &mut Seen, before: Option<&View>, now: &View) {
    let Some(before) = before else {
        return seen.note(match now.standing {
            Standing::Blank => "starts blank",
            Standing::Resyncing(_) => "starts resyncing",
            Standing::Member if now.sole => "starts sole",
            Standing::Member | Standing::Unvalidated => "starts as a member",
        });
    };
    let rank = |view: &View| match view.role {
        RoleView::Follower { .. } => None,
        RoleView::Candidate => Some(None),
        RoleView::Leader { right, .. } => Some(Some(right)),
    };
    let (was, is) = (rank(before), rank(now));
    let term_rose = now.term > before.term;
    let what = match (was, is) {
        (None, Some(None)) => "role: follower to candidate",
        (Some(None), None) => "role: candidate to follower",
        (Some(None), Some(Some(Right::Blocked))) => "role: candidate to blocked",
        (None, Some(Some(Right::Solo))) => "role: sole one resumes",
        (Some(Some(Right::Blocked)), Some(Some(Right::Paired))) => "role: blocked to paired",
        (Some(Some(Right::Blocked)), Some(Some(Right::Solo))) => "role: blocked to solo",
        (Some(Some(Right::Paired)), Some(Some(Right::Blocked))) => "role: paired to blocked",
        (Some(Some(Right::Paired)), Some(Some(Right::Solo))) => "role: paired to solo",
        (Some(Some(Right::Solo)), Some(Some(Right::Blocked))) => "role: solo opens a term",
        (Some(Some(Right::Solo)), Some(Some(Right::Solo))) if term_rose => "role: solo rises above its peer",
        (Some(Some(Right::Blocked)), None) => "role: blocked to follower",
        (Some(Some(Right::Paired)), None) => "role: paired to follower",
        (Some(Some(Right::Solo)), None) => "role: solo to follower",
        _ => "role: as it was",
    };
    seen.note(what);
    let acts = |view: &View| view.authority().is_some_and(|(.., until)| until.is_some());
    if was == Some(Some(Right::Solo)) && is == was {
        match (acts(before), acts(now)) {
            (true, false) => seen.note("alone: it stops"),
            (false, true) => seen.note("alone: it goes on again"),
            _ => {}
        }
    }
    if matches!(now.role, RoleView::Leader { resigning: true, .. }) {
        seen.note("role: resigning");
    }
    match (before.standing, now.standing) {
        (Standing::Blank, Standing::Member) => seen.note("standing: blank to member"),
        (Standing::Member, Standing::Resyncing(_)) => seen.note("standing: member to resyncing"),
        (Standing::Resyncing(_), Standing::Member) => seen.note("standing: resyncing to member"),
        _ => {}
    }
}
