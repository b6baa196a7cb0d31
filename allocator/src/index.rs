//! Blocks by their start: a hash table of ids with open addressing, linear probing and no tombstones.
//!
//! The keys are in the records of the blocks, so a slot takes 4 bytes. One multiplication spreads the
//! addresses, because drivers choose them, not attackers. The table grows and never shrinks. It must
//! never be more than half full.

use crate::block::{Blocks, NONE};

/// The table of blocks by their start.
pub(crate) struct Index {
    slots: Box<[u32]>, // a power of two of them
    shift: u32,        // 64 - log2(slots)
    len: usize,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self::with_slots(64)
    }

    fn with_slots(slots: usize) -> Self {
        Self {
            slots: vec![NONE; slots].into(),
            shift: 64 - slots.ilog2(),
            len: 0,
        }
    }

    /// The slot of an address: the upper bits of its product with 2^64 divided by the golden ratio.
    #[inline]
    fn home(&self, address: u64) -> usize {
        (address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    #[inline]
    fn find(&self, blocks: &Blocks, address: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(address);
        while self.slots[at] != NONE && blocks[self.slots[at]].address != address {
            at = (at + 1) & mask;
        }
        at
    }

    /// The block that starts at an address, or [`NONE`].
    #[inline]
    pub(crate) fn get(&self, blocks: &Blocks, address: u64) -> u32 {
        self.slots[self.find(blocks, address)]
    }

    /// Adds a block, where none starts yet.
    #[inline]
    pub(crate) fn insert(&mut self, blocks: &Blocks, id: u32) {
        if self.len * 2 >= self.slots.len() {
            self.grow(blocks);
        }
        let mask = self.slots.len() - 1;
        let mut at = self.home(blocks[id].address);
        while self.slots[at] != NONE {
            at = (at + 1) & mask;
        }
        self.len += 1;
        self.slots[at] = id;
    }

    /// Forgets a block that was added. Its record must still be there.
    #[inline]
    pub(crate) fn remove(&mut self, blocks: &Blocks, id: u32) {
        let mask = self.slots.len() - 1;
        let mut hole = self.home(blocks[id].address);
        while self.slots[hole] != id {
            debug_assert!(self.slots[hole] != NONE, "every block stands here");
            hole = (hole + 1) & mask;
        }
        self.len -= 1;
        // Later blocks of the same run move up, unless they would come before their home.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let id = self.slots[at];
            if id == NONE {
                break;
            }
            let from_home = at.wrapping_sub(self.home(blocks[id].address)) & mask;
            if from_home >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = id;
                hole = at;
            }
        }
        self.slots[hole] = NONE;
    }

    #[cold]
    fn grow(&mut self, blocks: &Blocks) {
        let grown = Self::with_slots(self.slots.len() * 2);
        let old = std::mem::replace(self, grown);
        for &id in old.slots.iter().filter(|&&id| id != NONE) {
            self.insert(blocks, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::block::{Block, State};
    use crate::config::Class;

    proptest! {
        #[test]
        fn behaves_as_a_map(steps in prop::collection::vec((any::<bool>(), 0_u64..200), 0..600)) {
            let (mut blocks, mut index, mut model) = (Blocks::new(), Index::new(), HashMap::new());
            for (insert, address) in steps {
                let address = address << 9;
                if insert && !model.contains_key(&address) {
                    let id = blocks.add(Block::new(address, 512, 0, Class::Small, State::Free));
                    index.insert(&blocks, id);
                    model.insert(address, id);
                } else if !insert && let Some(id) = model.remove(&address) {
                    index.remove(&blocks, id);
                    blocks.remove(id);
                }
            }
            prop_assert_eq!(index.len, model.len());
            for address in (0..200).map(|address| address << 9) {
                let known = model.get(&address).copied().unwrap_or(NONE);
                prop_assert_eq!(index.get(&blocks, address), known);
            }
        }
    }
}
