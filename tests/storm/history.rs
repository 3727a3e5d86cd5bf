//! What clients saw, and what must be true of it.
//!
//! The values that are written are unique, so that each read names the write that it saw. For such histories it can be
//! decided exactly, and fast, whether a register was linearizable (Gibbons and Korach, *Testing shared memories*,
//! 1997): the operations on one value form a *zone* of time, from the first end to the last beginning among them.
//! Where the former comes first, the register must have held that value for the whole zone (*forward*); otherwise it
//! need have held it for one instant within it (*backward*). The register was linearizable if and only if no two
//! forward zones overlap, no backward one lies within a forward one, and no read ended before its write began.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// One operation of a client. Times are nanoseconds on the machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub key: u8,
    /// What was written or read; 0 is "nothing yet".
    pub value: u64,
    pub write: bool,
    pub start: u64,
    /// `None`: a write whose outcome is unknown. It may take effect at any time, or never.
    pub end: Option<u64>,
    /// Who answered.
    pub node: usize,
    /// Of an acknowledgement.
    pub term: u32,
}

#[derive(Clone, Copy)]
struct Zone {
    value: u64,
    first_end: u64,
    last_start: u64,
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (first end {}, last beginning {})", self.value, self.first_end, self.last_start)
    }
}

#[derive(Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
}

impl History {
    pub fn acknowledged(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(|operation| operation.write && operation.end.is_some())
    }

    /// Whether a write that began later than that was acknowledged.
    pub fn acknowledged_after(&self, start: u64) -> bool {
        let latest = self.operations.iter().rev().take_while(|one| one.end.is_none_or(|end| end > start));
        latest.into_iter().any(|one| one.write && one.end.is_some() && one.start > start)
    }

    pub fn reads(&self) -> usize {
        self.operations.iter().filter(|operation| !operation.write).count()
    }

    /// Writes that were acknowledged within the first `operations` and are not among `kept`.
    pub fn lost(&self, operations: usize, kept: &HashSet<u64>) -> Vec<Operation> {
        let acknowledged = self.operations[..operations].iter().filter(|one| one.write && one.end.is_some());
        acknowledged.filter(|write| !kept.contains(&write.value)).copied().collect()
    }

    /// How often the acknowledging node changed.
    pub fn failovers(&self) -> usize {
        let nodes: Vec<usize> = self.terms().values().map(|term| term.node).collect();
        nodes.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// The longest time without any acknowledgement, and how long after `from` it began.
    pub fn longest_pause(&self, from: u64) -> (u64, u64) {
        let mut ends: Vec<u64> = self.acknowledged().filter_map(|write| write.end).collect();
        ends.sort_unstable();
        let pauses = ends.windows(2).map(|pair| (pair[1] - pair[0], pair[0].saturating_sub(from)));
        pauses.max().unwrap_or((0, 0))
    }

    fn terms(&self) -> BTreeMap<u32, Term> {
        let mut terms: BTreeMap<u32, Term> = BTreeMap::new();
        for write in self.acknowledged() {
            let (start, end) = (write.start, write.end.unwrap_or(u64::MAX));
            let term = terms.entry(write.term).or_insert(Term {
                node: write.node,
                first_end: end,
                last_start: start,
                two_nodes: false,
            });
            term.first_end = term.first_end.min(end);
            term.last_start = term.last_start.max(start);
            term.two_nodes |= term.node != write.node;
        }
        terms
    }

    /// Each term acknowledged by one node, and never one after a later one had begun to.
    pub fn check_terms(&self) -> Result<usize, String> {
        let terms = self.terms();
        let mut latest = (0, 0);
        for (number, term) in &terms {
            if term.two_nodes {
                return Err(format!("two nodes acknowledged writes in term {number}"));
            }
            if term.first_end < latest.0 {
                return Err(format!(
                    "a write that began at {} was acknowledged in term {}, when one of term {number} had been \
                     acknowledged at {} already",
                    latest.0, latest.1, term.first_end
                ));
            }
            latest = latest.max((term.last_start, *number));
        }
        Ok(terms.len())
    }

    /// Each key was one linearizable register.
    pub fn check_reads(&self) -> Result<(), String> {
        let mut keys: BTreeMap<u8, Vec<&Operation>> = BTreeMap::new();
        for operation in &self.operations {
            keys.entry(operation.key).or_default().push(operation);
        }
        keys.iter().try_for_each(|(key, operations)| {
            check_register(operations).map_err(|why| format!("key {key}: {why}"))
        })
    }
}

#[derive(Debug)]
struct Term {
    node: usize,
    first_end: u64,
    last_start: u64,
    two_nodes: bool,
}

fn check_register(operations: &[&Operation]) -> Result<(), String> {
    let writes: HashMap<u64, &Operation> =
        operations.iter().filter(|one| one.write).map(|one| (one.value, *one)).collect();
    let mut zones: HashMap<u64, Zone> = HashMap::new();
    zones.insert(0, Zone { value: 0, first_end: 0, last_start: 0 });
    for one in operations {
        // A write that is in doubt and was never read need not have happened.
        let Some(end) = one.end else { continue };
        if !one.write && one.value != 0 {
            match writes.get(&one.value) {
                None => return Err(format!("a value that nobody wrote was read: {one:?}")),
                Some(write) if end < write.start => {
                    return Err(format!("read before it was written: {one:?}"));
                }
                Some(_) => {}
            }
        }
        let start = writes.get(&one.value).map_or(0, |write| write.start);
        let fresh = Zone { value: one.value, first_end: end, last_start: start };
        let zone = zones.entry(one.value).or_insert(fresh);
        zone.first_end = zone.first_end.min(end);
        zone.last_start = zone.last_start.max(one.start);
    }
    let (mut forward, backward): (Vec<Zone>, Vec<Zone>) =
        zones.into_values().partition(|zone| zone.first_end < zone.last_start);
    forward.sort_unstable_by_key(|zone| zone.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_start {
            return Err(format!("held two values at once: {:?} and {:?}", pair[0], pair[1]));
        }
    }
    for inner in backward {
        // Within a backward zone the beginning comes first.
        let (from, to) = (inner.last_start, inner.first_end);
        let before = forward.partition_point(|zone| zone.first_end < from);
        if let Some(outer) = before.checked_sub(1).map(|at| forward[at])
            && to < outer.last_start
        {
            return Err(format!("{outer:?} was read again after {inner:?} had come and gone"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: u64, start: u64, end: u64) -> Operation {
        let end = (end != 0).then_some(end);
        Operation { key: 0, value, write: true, start, end, node: 0, term: 1 }
    }

    fn read(value: u64, start: u64, end: u64) -> Operation {
        Operation { write: false, ..write(value, start, end) }
    }

    fn reads(operations: &[Operation]) -> Result<(), String> {
        History { operations: operations.to_vec() }.check_reads()
    }

    #[test]
    fn what_one_register_could_have_answered_passes() {
        reads(&[read(0, 1, 2), write(1, 3, 4), read(1, 5, 6), write(2, 7, 10), read(1, 8, 9)]).unwrap();
        // Two writes at once, in either order.
        reads(&[write(1, 1, 9), write(2, 2, 8), read(1, 10, 11)]).unwrap();
        reads(&[write(1, 1, 9), write(2, 2, 8), read(2, 10, 11)]).unwrap();
        // One in doubt takes effect after a later one.
        reads(&[write(1, 1, 0), write(2, 2, 3), read(2, 4, 5), read(1, 6, 7)]).unwrap();
    }

    #[test]
    fn what_no_register_could_have_answered_is_found() {
        let stale = [write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)];
        let back_again = [write(1, 1, 9), write(2, 2, 3), read(1, 4, 5), read(2, 6, 7), read(1, 10, 11)];
        let forgotten = [write(1, 1, 2), read(0, 3, 4)];
        let invented = [read(7, 3, 4)];
        let early = [read(1, 1, 2), write(1, 3, 4)];
        let doubt = [write(1, 1, 0), write(2, 2, 3), read(1, 4, 5), read(2, 6, 7)];
        for wrong in [&stale[..], &back_again, &forgotten, &invented, &early, &doubt] {
            reads(wrong).unwrap_err();
        }
    }

    #[test]
    fn lost_writes_and_terms_out_of_order_are_found() {
        let history = |operations: &[Operation]| History { operations: operations.to_vec() };
        let of = |node, term, operation| Operation { node, term, ..operation };
        let good = history(&[of(0, 1, write(1, 1, 2)), of(1, 2, write(2, 1, 3)), of(0, 3, write(3, 5, 6))]);
        assert_eq!(good.check_terms(), Ok(3));
        assert_eq!(good.failovers(), 2);
        assert_eq!(good.longest_pause(0), (3, 3));
        assert_eq!(good.lost(3, &HashSet::from([1, 3])).len(), 1);
        history(&[of(0, 1, write(1, 1, 2)), of(1, 1, write(2, 1, 3))]).check_terms().unwrap_err();
        history(&[of(0, 1, write(1, 4, 5)), of(1, 2, write(2, 1, 3))]).check_terms().unwrap_err();
    }
}
