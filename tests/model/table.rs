//! Everything that can be, once each: states of replicas and witnesses, messages, logs. A world is then a handful of
//! small numbers, and what a voter does with an input is computed once, by the shipped code, and looked up after that.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Multiplies and folds: the keys are our own, so nobody chooses them to collide.
#[derive(Default)]
pub(crate) struct Folded(u64);

const FOLD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let wide = u128::from((self.0 ^ word).wrapping_add(FOLD)) * u128::from(FOLD | 1);
        #[allow(clippy::cast_possible_truncation, reason = "the two halves are folded together")]
        let folded = wide as u64 ^ (wide >> 64) as u64;
        self.0 = folded;
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word.cast_unsigned() as u64);
    }
}

pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Folded>>;

/// Numbers things from zero in the order in which they turn up.
pub(crate) struct Table<T> {
    numbers: Map<T, u32>,
    things: Vec<T>,
}

impl<T: Clone + Eq + Hash> Table<T> {
    pub(crate) fn new() -> Table<T> {
        Table { numbers: Map::default(), things: Vec::new() }
    }

    /// The number of a thing, and whether it is new.
    pub(crate) fn number(&mut self, thing: T) -> (u32, bool) {
        if let Some(number) = self.numbers.get(&thing) {
            return (*number, false);
        }
        let number = u32::try_from(self.things.len()).expect("fewer than four thousand million");
        self.things.push(thing.clone());
        self.numbers.insert(thing, number);
        (number, true)
    }

    pub(crate) fn get(&self, number: u32) -> &T {
        &self.things[number as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.things.len()
    }
}
