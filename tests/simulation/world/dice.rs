//! The only source of chance: a seed.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed ^ 0x7469_6562_7265_616b)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        if high <= low { low } else { low + self.roll() % (high - low + 1) }
    }

    /// True in this many of a thousand.
    pub(crate) fn per_mille(&mut self, chance: u64) -> bool {
        chance > 0 && self.roll() % 1000 < chance
    }

    /// A random 128-bit number that is not nil.
    pub(crate) fn wide(&mut self) -> u128 {
        (u128::from(self.roll()) << 64) | u128::from(self.roll()) | 1
    }
}
