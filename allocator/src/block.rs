//! Blocks, the pieces into which segments are cut, and the store of their records.
//!
//! Records refer to each other by 32-bit ids. An id is used again when its record was removed: the
//! arena must forget it before.

use std::ops::{Index, IndexMut};

use crate::config::Class;

/// The id that no block and no segment has: it marks empty slots and the ends of lists.
pub(crate) const NONE: u32 = u32::MAX;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Joined with its free neighbours, in a list for best fit.
    Free,
    /// Free and not joined, in a list for requests of exactly its size.
    Quick,
    /// A caller has the block.
    Allocated,
    /// Freed, but held, or a recorded stream may still touch it.
    Pending,
    /// Whole chunks that a view shows, or memory that comes from the device.
    Lent,
    /// Memory on its way to the device.
    Leaving,
    /// The end of a view's last piece, behind the block that the view serves. It becomes free together
    /// with this block: another block there would keep the view's chunks from home.
    Tail,
    /// Addresses without memory.
    Unmapped,
}

/// A block's record.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Bytes asked for; 0 if not in use.
    pub(crate) requested: u64,
    /// The neighbours in the segment, by address.
    pub(crate) before: u32,
    pub(crate) after: u32,
    /// If free, the neighbours in the free list. If pending, `up` counts the recorded streams that must
    /// still pass. In a spare record, `down` is the next spare record.
    pub(crate) up: u32,
    pub(crate) down: u32,
    pub(crate) segment: u32,
    pub(crate) state: State,
    pub(crate) class: Class,
    /// Has holds or recorded streams.
    pub(crate) noted: bool,
}

const _: () = assert!(size_of::<Block>() == 48, "what a live block costs");

impl Block {
    /// A block without neighbours.
    pub(crate) fn new(address: u64, size: u64, segment: u32, class: Class, state: State) -> Self {
        Self {
            address,
            size,
            requested: 0,
            before: NONE,
            after: NONE,
            up: NONE,
            down: NONE,
            segment,
            state,
            class,
            noted: false,
        }
    }

    /// Whether it has no neighbours: it fills its segment.
    pub(crate) fn is_whole(&self) -> bool {
        self.before == NONE && self.after == NONE
    }

    pub(crate) fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// The records of all blocks of an arena.
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
            return self.push(block);
        }
        let id = self.spare;
        self.spare = self[id].down;
        self[id] = block;
        id
    }

    #[cold]
    fn push(&mut self, block: Block) -> u32 {
        let id = u32::try_from(self.records.len()).expect("fewer than 2^32 blocks fit in memory");
        if self.records.len() == self.records.capacity() {
            // Records grow by a quarter, because they are what the allocator's own memory mostly is.
            self.records.reserve_exact(self.records.len() / 4 + 64);
        }
        self.records.push(block);
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
