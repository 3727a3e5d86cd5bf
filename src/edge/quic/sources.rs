//! How much each source may knock: its handshakes under way, and those that came to nothing.
//!
//! Invariants:
//! 1. What is held against a source, it has done: an address that is not proved is only asked to prove itself. So nobody
//!    shuts others out by knocking in their name.
//! 2. A source that shows pinned keys is never shut out, however often it comes.
//! 3. The table is bounded; sources that find no place in it share one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::edge::meter::{Allowance, Meter};
use crate::limits::SOURCES_MAX;
use crate::time::Moment;

/// Between two searches for places in a full table.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// What becomes of somebody who knocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Let it try. [`Sources::done`] has to follow.
    Try,
    /// Let it prove its address first.
    Prove,
    /// Tell it to come again.
    Later,
    /// Say nothing.
    Silence,
}

/// What each source may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerSource {
    /// Handshakes under way before an address has to prove itself.
    pub(super) before_proof_max: u32,
    /// Handshakes under way.
    pub(super) handshakes_max: u32,
    /// Handshakes that came to nothing.
    pub(super) strays: Allowance,
}

#[derive(Default, Debug)]
struct Source {
    under_way: u32,
    strays: Meter,
}

/// An IPv4 address, or the network of an IPv6 host; `None` for all that found no place.
type Place = Option<(bool, u64)>;

#[derive(Debug)]
pub(super) struct Sources {
    may: PerSource,
    known: HashMap<Place, Source>,
    tidied: Moment,
}

impl Sources {
    pub(super) fn new(may: PerSource) -> Sources {
        Sources { may, known: HashMap::new(), tidied: Moment::default() }
    }

    /// Somebody knocks from an address that is proved or not. With the verdict comes the place that it counts for.
    pub(super) fn knock(&mut self, now: Moment, from: IpAddr, proved: bool) -> (Verdict, Place) {
        let place = self.place(now, from);
        let may = self.may;
        let source = self.known.entry(place).or_default();
        let verdict = if !source.strays.has(now, may.strays) {
            if proved { Verdict::Silence } else { Verdict::Prove }
        } else if source.under_way >= may.before_proof_max && !proved {
            Verdict::Prove
        } else if source.under_way >= may.handshakes_max {
            Verdict::Later
        } else {
            source.under_way += 1;
            Verdict::Try
        };
        (verdict, place)
    }

    /// A handshake is over; `strayed` if the source has proved its address and came to nothing.
    pub(super) fn done(&mut self, now: Moment, place: Place, strayed: bool) {
        let strays = self.may.strays;
        let Some(source) = self.known.get_mut(&place) else { return };
        source.under_way = source.under_way.saturating_sub(1);
        if strayed {
            source.strays.charge(now, strays);
        } else if source.under_way == 0 && source.strays.is_new(now) {
            self.known.remove(&place);
        }
    }

    fn place(&mut self, now: Moment, from: IpAddr) -> Place {
        let place = Some(match from.to_canonical() {
            IpAddr::V4(address) => (false, u64::from(address.to_bits())),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments().map(u64::from);
                (true, a << 48 | b << 32 | c << 16 | d)
            }
        });
        if self.known.contains_key(&place) {
            return place;
        }
        if self.known.len() >= SOURCES_MAX && now.since(self.tidied) >= TIDY_EVERY {
            self.tidied = now;
            self.known.retain(|_, source| source.under_way > 0 || !source.strays.is_new(now));
        }
        if self.known.len() < SOURCES_MAX { place } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const MAY: PerSource =
        PerSource { before_proof_max: 2, handshakes_max: 4, strays: Allowance { at_once: 3, a_second: 1 } };
    const NOW: Moment = Moment(1);
    const BAD: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const GOOD: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    fn strays(sources: &mut Sources, times: usize) {
        for _ in 0..times {
            let (verdict, place) = sources.knock(NOW, BAD, true);
            if verdict == Verdict::Try {
                sources.done(NOW, place, true);
            }
        }
    }

    #[test]
    fn who_strays_too_often_is_not_heard_for_a_while_and_others_are() {
        let mut sources = Sources::new(MAY);
        strays(&mut sources, 3);
        assert_eq!(sources.knock(NOW, BAD, true).0, Verdict::Silence);
        assert_eq!(sources.knock(NOW, GOOD, true).0, Verdict::Try);
        assert_eq!(sources.knock(NOW + Duration::from_secs(1), BAD, true).0, Verdict::Try);
    }

    #[test]
    fn knocking_in_anothers_name_shuts_nobody_out() {
        let mut sources = Sources::new(MAY);
        for _ in 0..1000 {
            // Nothing follows the first packet: the handshake is given up, unproved.
            if let (Verdict::Try, place) = sources.knock(NOW, GOOD, false) {
                sources.done(NOW, place, false);
            }
        }
        for _ in 0..2 {
            assert_eq!(sources.knock(NOW, GOOD, false).0, Verdict::Try);
        }
        // Those are still under way: whoever is really there proves it, and gets in.
        assert_eq!(sources.knock(NOW, GOOD, false).0, Verdict::Prove);
        assert_eq!(sources.knock(NOW, GOOD, true).0, Verdict::Try);
    }

    #[test]
    fn one_source_never_takes_all_handshakes() {
        let mut sources = Sources::new(MAY);
        let tried = (0..10).filter(|_| sources.knock(NOW, BAD, true).0 == Verdict::Try).count();
        assert_eq!(tried, 4);
        assert_eq!(sources.knock(NOW, BAD, true).0, Verdict::Later);
        assert_eq!(sources.knock(NOW, GOOD, true).0, Verdict::Try);
    }

    #[test]
    fn who_shows_pinned_keys_comes_as_often_as_it_likes() {
        let mut sources = Sources::new(MAY);
        for _ in 0..1000 {
            let (verdict, place) = sources.knock(NOW, GOOD, false);
            assert_eq!(verdict, Verdict::Try);
            sources.done(NOW, place, false);
        }
        assert!(sources.known.is_empty(), "nothing is remembered of it");
    }

    #[test]
    fn the_table_is_bounded_and_finds_places_again() {
        let mut sources = Sources::new(MAY);
        let host = |n: usize| IpAddr::V6(Ipv6Addr::from_bits((n as u128 + 1) << 64 | 7));
        let knock = |sources: &mut Sources, now, n| {
            let (verdict, place) = sources.knock(now, host(n), true);
            if verdict == Verdict::Try {
                sources.done(now, place, true);
            }
            place
        };
        for n in 0..2 * SOURCES_MAX {
            knock(&mut sources, NOW, n);
        }
        assert_eq!(sources.known.len(), SOURCES_MAX + 1, "one more for all that found no place");
        assert_eq!(knock(&mut sources, NOW, 3 * SOURCES_MAX), None);
        let later = NOW + Duration::from_secs(10);
        assert!(knock(&mut sources, later, 3 * SOURCES_MAX).is_some());
        assert_eq!(sources.known.len(), 1);
        // Hosts of one network count as one.
        let neighbour = IpAddr::V6(Ipv6Addr::from_bits((3 * SOURCES_MAX as u128 + 1) << 64 | 8));
        assert_eq!(sources.knock(later, neighbour, true).1, Some((true, 3 * SOURCES_MAX as u64 + 1)));
    }
}
