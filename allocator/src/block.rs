//! Blocks: the pieces that segments are cut into, and the store that holds their records.
//!
//! Records refer to each other by 32-bit ids. An id is used again after its record was removed: the
//! heap must forget it first.

use std::ops::{Index, IndexMut};

use crate::BlockState;
use crate::table::NONE;

/// A block's record.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Bytes asked for; 0 if free.
    pub(crate) requested: u64,
    pub(crate) segment: u32,
    /// The neighbours in the segment, by address.
    pub(crate) before: u32,
    pub(crate) after: u32,
    /// The neighbours in the free list; for a record without a block, `down` is the next such.
    pub(crate) up: u32,
    pub(crate) down: u32,
    /// Recorded streams that must still pass, if pending.
    pub(crate) waits: u32,
    pub(crate) state: BlockState,
    /// Has holds or recorded streams.
    pub(crate) noted: bool,
}

impl Block {
    /// A free block that makes up a whole segment.
    pub(crate) fn whole(address: u64, size: u64, segment: u32) -> Self {
        Self {
            address,
            size,
            requested: 0,
            segment,
            before: NONE,
            after: NONE,
            up: NONE,
            down: NONE,
            waits: 0,
            state: BlockState::Free,
            noted: false,
        }
    }

    /// Has no neighbours: it is its segment.
    pub(crate) fn is_whole(&self) -> bool {
        self.before == NONE && self.after == NONE
    }
}

/// All records.
pub(crate) struct Blocks {
    records: Vec<Block>,
    spare: u32,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        Self {
            records: Vec::new(),
            spare: NONE,
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, block: Block) -> u32 {
        if self.spare == NONE {
            let id =
                u32::try_from(self.records.len()).expect("fewer than 2^32 blocks fit in memory");
            self.records.push(block);
            return id;
        }
        let id = self.spare;
        self.spare = self[id].down;
        self[id] = block;
        id
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: u32) {
        self[id].down = self.spare;
        self.spare = id;
    }
}

impl Index<u32> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: u32) -> &Block {
        &self.records[id as usize]
    }
}

impl IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Block {
        &mut self.records[id as usize]
    }
}
