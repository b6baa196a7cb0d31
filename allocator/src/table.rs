//! A hash table from 64-bit keys to 32-bit ids: open addressing, linear probing, no tombstones.
//!
//! Keys are addresses and stream numbers, which no attacker chooses: one multiplication spreads them.
//! It grows, never shrinks, and must never be more than half full.

/// The value that no id has: it marks empty slots and the ends of lists.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    key: u64,
    id: u32,
}

const EMPTY: Slot = Slot { key: 0, id: NONE };

/// The table.
pub(crate) struct Table {
    slots: Box<[Slot]>, // a power of two of them
    shift: u32,         // 64 - log2(slots)
    len: usize,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self::with_slots(64)
    }

    fn with_slots(slots: usize) -> Self {
        Self {
            slots: vec![EMPTY; slots].into(),
            shift: 64 - slots.ilog2(),
            len: 0,
        }
    }

    /// Where a key belongs: the upper bits of its product with 2^64 divided by the golden ratio.
    #[inline]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    #[inline]
    fn find(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while self.slots[at].id != NONE && self.slots[at].key != key {
            at = (at + 1) & mask;
        }
        at
    }

    /// The id of a key, or [`NONE`].
    #[inline]
    pub(crate) fn get(&self, key: u64) -> u32 {
        self.slots[self.find(key)].id
    }

    /// Adds a key, which is not there; `id` is not [`NONE`].
    #[inline]
    pub(crate) fn insert(&mut self, key: u64, id: u32) {
        if self.len * 2 >= self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while self.slots[at].id != NONE {
            at = (at + 1) & mask;
        }
        self.len += 1;
        self.slots[at] = Slot { key, id };
    }

    /// Forgets a key, if it is there.
    #[inline]
    pub(crate) fn remove(&mut self, key: u64) {
        let mask = self.slots.len() - 1;
        let mut hole = self.find(key);
        if self.slots[hole].id == NONE {
            return;
        }
        self.len -= 1;
        // Later keys of the same run move up, unless they would come before their home.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.id == NONE {
                break;
            }
            let from_home = at.wrapping_sub(self.home(slot.key)) & mask;
            if from_home >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
    }

    #[cold]
    fn grow(&mut self) {
        let grown = Self::with_slots(self.slots.len() * 2);
        let old = std::mem::replace(self, grown);
        for slot in old.slots.iter().filter(|slot| slot.id != NONE) {
            self.insert(slot.key, slot.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_map(steps in prop::collection::vec((any::<bool>(), 0_u64..200), 0..600)) {
            let (mut table, mut model) = (Table::new(), HashMap::new());
            for (at, (insert, key)) in steps.into_iter().enumerate() {
                let key = key << 9; // like addresses
                if insert && !model.contains_key(&key) {
                    table.insert(key, at as u32);
                    model.insert(key, at as u32);
                } else if !insert {
                    table.remove(key);
                    model.remove(&key);
                }
            }
            prop_assert_eq!(table.len, model.len());
            for key in (0..200).map(|key| key << 9) {
                prop_assert_eq!(table.get(key), model.get(&key).copied().unwrap_or(NONE));
            }
        }
    }
}
