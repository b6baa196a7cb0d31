//! Quick blocks: free blocks that are kept unjoined for a request of exactly their size.
//!
//! Programs ask for the same sizes again and again. A quick block can be freed and handed out without
//! joining or splitting. It is joined with its neighbours only if another size is requested and nothing
//! else fits: the arena must empty these lists before it says that it has no memory.

use crate::block::{Blocks, NONE};

/// The number of sizes that are remembered. If there are more, emptying the lists forgets all of them.
const SIZES_MAX: usize = 1 << 12;

/// The list of the blocks of one size.
#[derive(Clone, Copy)]
struct SizeList {
    size: u64,    // 0: none
    head: u32,    // the block that came last
    listed: bool, // in `filled`
}

const EMPTY: SizeList = SizeList {
    size: 0,
    head: NONE,
    listed: false,
};

/// The lists: one per size, found by hashing, last in first out.
pub(crate) struct Quick {
    slots: Vec<SizeList>, // a power of two of them, at most half used; none before the first block
    shift: u32,           // 64 - log2(slots)
    sizes: usize,
    blocks: usize,
    /// Slots that got blocks since the lists were emptied last. Emptying looks only at these.
    filled: Vec<u32>,
}

impl Quick {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            shift: 63,
            sizes: 0,
            blocks: 0,
            filled: Vec::new(),
        }
    }

    #[inline]
    fn find(&self, size: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (size.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize;
        while self.slots[at].size != size && self.slots[at].size != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    /// Takes the block of exactly this size that came last.
    #[inline]
    pub(crate) fn pop(&mut self, blocks: &Blocks, size: u64) -> Option<u32> {
        if self.blocks == 0 {
            return None;
        }
        let at = self.find(size);
        let slot = &mut self.slots[at];
        let id = slot.head;
        if id == NONE {
            return None;
        }
        slot.head = blocks[id].down;
        self.blocks -= 1;
        Some(id)
    }

    #[inline]
    pub(crate) fn push(&mut self, blocks: &mut Blocks, id: u32) {
        if self.sizes * 2 >= self.slots.len() {
            self.grow();
        }
        let size = blocks[id].size;
        let at = self.find(size);
        let slot = &mut self.slots[at];
        if slot.size == 0 {
            slot.size = size;
            self.sizes += 1;
        }
        blocks[id].down = slot.head;
        slot.head = id;
        self.blocks += 1;
        if !std::mem::replace(&mut slot.listed, true) {
            self.filled.push(at as u32);
        }
    }

    /// Takes a block out, of the sizes that came first; `None` if there is none.
    #[inline]
    pub(crate) fn take(&mut self, blocks: &Blocks) -> Option<u32> {
        while let Some(&at) = self.filled.last() {
            let slot = &mut self.slots[at as usize];
            if slot.head != NONE {
                let id = slot.head;
                slot.head = blocks[id].down;
                self.blocks -= 1;
                return Some(id);
            }
            slot.listed = false;
            self.filled.pop();
        }
        if self.sizes > SIZES_MAX {
            *self = Self::new();
        }
        None
    }

    #[cold]
    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(64);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots]);
        self.shift = 64 - slots.ilog2();
        for slot in old.into_iter().filter(|slot| slot.size != 0) {
            let at = self.find(slot.size);
            self.slots[at] = slot;
        }
        let listed = self.slots.iter().enumerate();
        let listed = listed.filter(|(_, slot)| slot.listed);
        self.filled = listed.map(|(at, _)| at as u32).collect();
    }
}
