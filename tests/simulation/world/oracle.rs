//! The invariants of the protocol, checked from outside after every step.
//!
//! 1. One leader per term.
//! 2. A leader of term T holds every write acknowledged in any term below T.
//! 3. Acknowledged writes are never overwritten; at most one replica can acknowledge alone.
//! 4. Durable terms, promises, confirmations, `holds` and adoptions never go back; confirmed <= promised.
//! 5. No message states what a crash right after it could undo.
//! 6. One actor at any instant; the tokens of successive actors rise.

use std::collections::BTreeMap;

use tiebreak::ids::{Incarnation, Term, Token, VoterId};
use tiebreak::message::{Record, ReplicaRecord, Reply, Request, Sender, Standing, WitnessRecord};
use tiebreak::testing::{Right, RoleView, View};

use super::data::Entry;

/// An acknowledged entry and the term in which it was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) entry: Entry,
    pub(crate) term: Term,
}

/// What it knows about a replica at this instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) name: &'a str,
    pub(crate) node: usize,
    pub(crate) run: u64,
    pub(crate) view: &'a View,
    /// As far as it is durable.
    pub(crate) log: &'a [Entry],
    /// The commit that it would read at, if it may read now.
    pub(crate) reads: Option<usize>,
    /// It has asked to open a term, and acknowledges nothing alone.
    pub(crate) frozen: bool,
    /// By its own clock it may act.
    pub(crate) acts: Option<Token>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) acknowledged: Vec<Acknowledged>,
    pub(crate) leaders: BTreeMap<Term, VoterId>,
    checked: [Option<(Term, u64)>; 2],
    /// The last one that acted: which process run, and its token.
    actor: Option<(usize, u64, Token)>,
    /// Changes of the acting replica.
    pub(crate) changes: u64,
    /// Who acknowledged, one after the other: first and last time.
    pub(crate) acknowledging: Vec<(usize, u64, u64)>,
    /// Clocks err by more than the bound: what hangs on leases may break, and is counted.
    pub(crate) past_the_bound: bool,
    /// Instants at which two acted.
    pub(crate) two_acted: u64,
}

type Verdict = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($why:tt)*) => {
        if !$holds {
            return Err(format!($($why)*));
        }
    };
}

impl Oracle {
    /// After every event.
    pub(crate) fn look(&mut self, replicas: &[Shown<'_>]) -> Verdict {
        let mut acting: Option<&Shown<'_>> = None;
        let mut alone: Option<&Shown<'_>> = None;
        for shown in replicas {
            if let RoleView::Leader { right, token, .. } = shown.view.role {
                self.leads(shown, token.term())?;
                if right == Right::Solo && !shown.frozen {
                    if let Some(other) = alone {
                        return Err(format!(
                            "3: {} and {} can both acknowledge alone",
                            other.name, shown.name
                        ));
                    }
                    alone = Some(shown);
                }
            }
            if let Some(commit) = shown.reads {
                let all = self.acknowledged.len();
                ensure!(
                    commit >= all || self.past_the_bound,
                    "6: {} acts and reads at {commit}, {all} are acknowledged",
                    shown.name
                );
            }
            if let Some(token) = shown.acts {
                if let Some(other) = acting {
                    self.two_acted += 1;
                    ensure!(
                        self.past_the_bound,
                        "6: {} and {} act at the same instant",
                        other.name,
                        shown.name
                    );
                }
                acting = Some(shown);
                self.acts(shown, token)?;
            }
        }
        Ok(())
    }

    fn leads(&mut self, shown: &Shown<'_>, term: Term) -> Verdict {
        if self.checked[shown.node] == Some((term, shown.run)) {
            return Ok(());
        }
        self.checked[shown.node] = Some((term, shown.run));
        let me =
            VoterId { node: shown.name.parse().expect("names are valid"), incarnation: shown_life(shown) };
        let known = *self.leaders.entry(term).or_insert(me);
        ensure!(known.node == me.node, "1: {} and {} both lead term {term}", known.node, me.node);
        for (place, acknowledged) in self.acknowledged.iter().enumerate() {
            ensure!(
                acknowledged.term >= term || shown.log.get(place) == Some(&acknowledged.entry),
                "2: {} leads term {term} without {:?} at {place}, acknowledged in term {}",
                shown.name,
                acknowledged.entry,
                acknowledged.term
            );
        }
        Ok(())
    }

    fn acts(&mut self, shown: &Shown<'_>, token: Token) -> Verdict {
        let now = (shown.node, shown.run, token);
        if let Some((node, run, before)) = self.actor {
            let same = (node, run) == (shown.node, shown.run);
            ensure!(
                token > before || (same && token == before) || self.past_the_bound,
                "6: {} acts with token {token:?} after one with {before:?}",
                shown.name
            );
            if node != shown.node {
                self.changes += 1;
            }
        }
        self.actor = Some(now);
        Ok(())
    }

    /// Notes when.
    pub(crate) fn acknowledges(&mut self, node: usize, at: u64) {
        match self.acknowledging.last_mut() {
            Some((last, _, until)) if *last == node => *until = at,
            _ => self.acknowledging.push((node, at, at)),
        }
    }

    /// A leader tells its clients that this log is safe.
    pub(crate) fn acknowledge(
        &mut self,
        name: &str,
        term: Term,
        log: &[Entry],
        others: &[Shown<'_>],
    ) -> Verdict {
        for (place, entry) in log.iter().enumerate() {
            if let Some(known) = self.acknowledged.get(place) {
                ensure!(
                    known.entry == *entry,
                    "3: {name} acknowledges {entry:?} at {place} in term {term}, where {:?} is",
                    known.entry
                );
                continue;
            }
            for other in others {
                if let RoleView::Leader { token, .. } = other.view.role {
                    ensure!(
                        token.term() <= term || other.log.get(place) == Some(entry),
                        "2: {name} acknowledges {entry:?} in term {term}, unknown to {} that leads term {}",
                        other.name,
                        token.term()
                    );
                }
            }
            self.acknowledged.push(Acknowledged { entry: *entry, term });
        }
        Ok(())
    }

    /// Everything that was ever acknowledged is there.
    pub(crate) fn has_everything(&self, node: usize, log: &[Entry]) -> Verdict {
        for (place, acknowledged) in self.acknowledged.iter().enumerate() {
            ensure!(
                log.get(place) == Some(&acknowledged.entry),
                "3: {:?} at {place}, acknowledged in term {}, is lost at {}",
                acknowledged.entry,
                acknowledged.term,
                super::NAMES[node]
            );
        }
        Ok(())
    }

    /// A follower destroyed data: what was acknowledged has to be with the other one.
    pub(crate) fn truncated(&self, name: &str, keeps: &[Entry], other: &[Entry]) -> Verdict {
        for (place, acknowledged) in self.acknowledged.iter().enumerate() {
            let entry = Some(&acknowledged.entry);
            ensure!(
                keeps.get(place) == entry || other.get(place) == entry,
                "3: {name} destroyed the last copy of {:?} at {place}",
                acknowledged.entry
            );
        }
        Ok(())
    }

    /// What lay on a disk and what lies there now.
    pub(crate) fn recorded(before: &Record, after: &Record) -> Verdict {
        match (before, after) {
            (Record::Replica(old), Record::Replica(new)) => replica_recorded(old, new),
            (Record::Witness(old), Record::Witness(new)) => witness_recorded(old, new),
            _ => Err("5: a record of another kind".into()),
        }
    }

    /// A message of `sender` leaves, and this is what is durable.
    pub(crate) fn said(
        durable: &Record,
        sender: &Sender,
        to: Option<VoterId>,
        asks: Option<&Request>,
        answer: Option<&Reply>,
    ) -> Verdict {
        let life = match durable {
            Record::Replica(record) => record.incarnation,
            Record::Witness(record) => record.incarnation,
            Record::Gate(_) | Record::Resource(_) => return Ok(()),
        };
        if life != sender.voter.incarnation {
            // The last words of a life that turned out to be an old image, handled together with its end.
            return Ok(());
        }
        match durable {
            Record::Replica(record) => replica_said(record, sender, to, asks, answer),
            Record::Witness(record) => witness_said(record, sender, to, answer),
            Record::Gate(_) | Record::Resource(_) => Ok(()),
        }
    }

    /// What a data layer is shown.
    pub(crate) fn showed(name: &str, durable: &ReplicaRecord, view: &View) -> Verdict {
        if let RoleView::Leader { right, token, .. } = view.role {
            ensure!(token.term() == durable.term, "5: {name} leads {} unsynced", token.term());
            ensure!((right != Right::Solo) || durable.sole, "5: {name} is solo before sole is durable");
            ensure!(
                (right != Right::Paired) || durable.holds == durable.term,
                "5: {name} is paired, not settled"
            );
        }
        Ok(())
    }
}

fn shown_life(shown: &Shown<'_>) -> Incarnation {
    // One name is one leader here: lives are told apart by the records.
    Incarnation(u128::from(shown.node as u64) + 1)
}

fn replica_recorded(old: &ReplicaRecord, new: &ReplicaRecord) -> Verdict {
    let name = new.node;
    if old.incarnation != new.incarnation {
        return Ok(());
    }
    ensure!(new.boot >= old.boot, "4: the boot counter of {name} went back");
    ensure!(new.term >= old.term, "4: the term of {name} went from {} to {}", old.term, new.term);
    let resyncing = matches!(new.standing, Standing::Resyncing(_));
    ensure!(
        new.holds >= old.holds || (resyncing && new.holds == Term::ZERO && !old.sole),
        "4: holds of {name} went from {} to {}",
        old.holds,
        new.holds
    );
    ensure!(new.holds <= new.term, "4: {name} holds {} above its term {}", new.holds, new.term);
    ensure!(new.adoption >= old.adoption, "4: the adoption of {name} went back");
    ensure!(
        new.term > old.term || old.voted_for.is_none() || new.voted_for == old.voted_for,
        "4: {name} changed its vote in term {}",
        new.term
    );
    ensure!(
        old.standing == Standing::Blank || new.standing != Standing::Blank,
        "4: {name} became blank by itself"
    );
    ensure!(!old.sole || new.sole || new.term > old.term, "5: {name} gave up sole without a new term");
    Ok(())
}

fn witness_recorded(old: &WitnessRecord, new: &WitnessRecord) -> Verdict {
    if old.incarnation != new.incarnation {
        return Ok(());
    }
    ensure!(new.boot >= old.boot, "4: the boot counter of the witness went back");
    let (before, after) = (old.promised, new.promised);
    ensure!(after.term >= before.term, "4: the promise went from {before:?} to {after:?}");
    ensure!(
        after.term > before.term || after.to == before.to,
        "4: the promise of term {} went from {before:?} to {after:?}",
        after.term
    );
    ensure!(new.confirmed.term >= old.confirmed.term, "4: the confirmation went back");
    ensure!(new.confirmed.term <= new.promised.term, "4: confirmed above promised");
    Ok(())
}

fn replica_said(
    record: &ReplicaRecord,
    sender: &Sender,
    to: Option<VoterId>,
    asks: Option<&Request>,
    answer: Option<&Reply>,
) -> Verdict {
    let name = record.node;
    ensure!(sender.term <= record.term, "5: {name} states term {} unsynced", sender.term);
    ensure!(sender.boot == record.boot, "5: {name} states boot {} unsynced", sender.boot);
    match asks {
        Some(Request::Vote(c)) => {
            let own = Some(VoterId { node: record.node, incarnation: record.incarnation });
            ensure!(
                record.term > c.term || (record.term == c.term && record.voted_for == own),
                "5: {name} asks votes for {} before its own is durable",
                c.term
            );
        }
        Some(Request::Offer { term, .. }) => {
            ensure!(record.term >= *term, "5: {name} offers an unsynced term");
        }
        Some(Request::Joined { term, .. }) => {
            let undone = matches!(record.standing, Standing::Resyncing(_));
            ensure!(record.holds >= *term || undone, "5: {name} joined {term} unsynced");
        }
        Some(Request::Admit { adoption, .. }) => {
            ensure!(record.adoption >= *adoption, "5: {name} admits before it has adopted");
        }
        _ => {}
    }
    match answer {
        Some(Reply::Voted { term }) => {
            ensure!(
                record.term > *term || (record.term == *term && record.voted_for == to),
                "5: {name} says that it voted for {to:?} in {term}, unsynced"
            );
        }
        Some(Reply::Renewed { .. }) => {
            ensure!(record.longest_lease.0 > 0, "5: {name} promised a lease before it noted it");
        }
        Some(Reply::Settled { term }) => {
            let undone = matches!(record.standing, Standing::Resyncing(_));
            ensure!(record.holds >= *term || undone, "5: {name} settled {term} unsynced");
        }
        _ => {}
    }
    Ok(())
}

fn witness_said(
    record: &WitnessRecord,
    sender: &Sender,
    to: Option<VoterId>,
    answer: Option<&Reply>,
) -> Verdict {
    ensure!(sender.term <= record.promised.term, "5: the witness states term {} unsynced", sender.term);
    match answer {
        Some(Reply::Voted { term }) => ensure!(
            record.promised.term > *term || (record.promised.term == *term && record.promised.to == to),
            "5: the witness says that it voted in {term}, unsynced"
        ),
        Some(Reply::Confirmed { term }) => ensure!(
            record.confirmed.term > *term || (record.confirmed.term == *term && record.confirmed.to == to),
            "5: the witness says that it confirmed {term}, unsynced"
        ),
        Some(Reply::Admitted { term }) => ensure!(
            record.standing == Standing::Member && record.promised.term >= *term,
            "5: the witness says that it was admitted, unsynced"
        ),
        _ => {}
    }
    Ok(())
}
