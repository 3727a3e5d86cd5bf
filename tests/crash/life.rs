//! Random lives of a ledger: whatever happened, every acknowledged vote is found again.

use super::*;

/// A long life with every kind of failure. One seed gives one life.
#[test]
fn in_any_life_every_acknowledged_vote_is_found_again_and_none_goes_back() {
    for seed in 0..8000 {
        live(seed);
    }
}

struct Life {
    random: u64,
    /// The last acknowledged term of each cluster.
    acknowledged: Vec<u32>,
    /// The last term that was put.
    put: Vec<u32>,
}

impl Life {
    fn below(&mut self, end: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    fn pick(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap()
    }

    /// Works until the disk fails or the day is over.
    fn work(&mut self, ledger: &mut Ledger, slots: &mut Vec<Slot>) -> Result<(), LedgerError> {
        for _ in 0..6 {
            let mut sealed = Vec::new();
            for _ in 0..=self.below(3) {
                if slots.len() < 4 && self.below(8) == 0 {
                    let cluster = slots.len();
                    self.put.truncate(cluster);
                    self.acknowledged.truncate(cluster);
                    self.put.push(1);
                    self.acknowledged.push(0);
                    let slot = ledger.allot(&vote(cluster, 1))?;
                    slots.push(slot);
                    sealed.push(ledger.seal(slot, None, (cluster, 1))?);
                } else {
                    let cluster = self.pick(slots.len());
                    self.put[cluster] += 1;
                    let term = self.put[cluster];
                    let record = vote(cluster, term);
                    sealed.push(ledger.seal(slots[cluster], Some(&record), (cluster, term))?);
                }
            }
            let proof = ledger.sync()?;
            for sealed in sealed {
                let (cluster, term) = sealed.release(&proof).expect("a sync covers what was put before it");
                self.acknowledged[cluster] = term;
            }
        }
        Ok(())
    }

    /// What a crash and at most one bad block per slot have left must be what was acknowledged, or newer.
    fn check(&mut self, records: &[(Slot, Record)], seed: u64) {
        let must = self.acknowledged.iter().filter(|term| **term > 0).count();
        assert!(records.len() >= must, "seed {seed}: {} slots of {must}", records.len());
        for (cluster, (_, record)) in records.iter().enumerate() {
            let (term, acknowledged, put) = (term_of(record), self.acknowledged[cluster], self.put[cluster]);
            assert_eq!(*record, vote(cluster, term), "seed {seed}");
            assert!((acknowledged..=put).contains(&term), "seed {seed}: {acknowledged}..={put} gave {term}");
            // It may be spoken of from now on.
            self.acknowledged[cluster] = term;
        }
    }
}

fn live(seed: u64) {
    let mut life = Life { random: seed, acknowledged: vec![1, 1], put: vec![1, 1] };
    let disk = FaultyDisk::new();
    create(&disk, &[vote(0, 1), vote(1, 1)]).unwrap();
    let mut whole = true;
    for _ in 0..12 {
        match life.below(4) {
            0 => disk.cut_power_after(life.below(24)),
            1 => disk.fail_next_sync(Crash::Seed(life.below(1 << 30))),
            2 => disk.fail_next_write(Errno::IO, life.pick(2 * BLOCK_BYTES)),
            _ => {}
        }
        match open(&disk) {
            Ok((mut ledger, records)) => {
                life.check(&records, seed);
                whole = true;
                let mut slots = records.into_iter().map(|(slot, _)| slot).collect();
                // How it ends is not the point.
                let _ = life.work(&mut ledger, &mut slots);
            }
            Err(LedgerError::Io { .. }) => {}
            Err(other) => panic!("seed {seed}: {other}"),
        }
        if life.below(2) == 0 {
            // Only the process dies.
            disk.restart();
            continue;
        }
        disk.crash(Crash::Seed(life.below(1 << 30)));
        // A second bad block beside one that no opening has repaired yet is outside of the promise.
        if std::mem::take(&mut whole) {
            for slot in 0..=life.acknowledged.iter().filter(|term| **term > 0).count() {
                if life.below(3) == 0 {
                    damage(&disk, 2 + slot * 4 + life.pick(4), life.below(2) == 0);
                }
            }
            if life.below(3) == 0 {
                damage(&disk, life.pick(2), life.below(2) == 0);
            }
        }
    }
}
