//! Blocks of memory by address, and lists of those that are free: what best-fit allocators share. It must
//! never join blocks of different regions or states.

use std::collections::{BTreeMap, BTreeSet};

/// The use that a block is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Used,
    /// Freed, but events of other streams have to pass: so many.
    Pending(u32),
    Free,
    /// Addresses without memory.
    Unmapped,
}

/// A piece of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) size: u64,
    /// Blocks of a class serve the same requests.
    pub(super) class: usize,
    /// The address at which its region starts.
    pub(super) region: u64,
    pub(super) state: State,
}

/// All blocks.
#[derive(Default)]
pub(super) struct Blocks {
    all: BTreeMap<u64, Block>,
    /// Free ones of each class, by size and address.
    free: Vec<BTreeSet<(u64, u64)>>,
    /// Unmapped ones of each class, by address.
    unmapped: Vec<BTreeSet<u64>>,
}

impl Blocks {
    pub(super) fn get(&self, address: u64) -> Block {
        self.all[&address]
    }

    /// Puts a block there, as it is.
    pub(super) fn insert(&mut self, address: u64, block: Block) {
        if self.free.len() <= block.class {
            self.free.resize_with(block.class + 1, BTreeSet::new);
            self.unmapped.resize_with(block.class + 1, BTreeSet::new);
        }
        match block.state {
            State::Free => {
                self.free[block.class].insert((block.size, address));
            }
            State::Unmapped => {
                self.unmapped[block.class].insert(address);
            }
            State::Used | State::Pending(_) => {}
        }
        self.all.insert(address, block);
    }

    pub(super) fn remove(&mut self, address: u64) -> Block {
        let block = self.all.remove(&address);
        let block = block.expect("callers name blocks that they have looked up");
        match block.state {
            State::Free => {
                self.free[block.class].remove(&(block.size, address));
            }
            State::Unmapped => {
                self.unmapped[block.class].remove(&address);
            }
            State::Used | State::Pending(_) => {}
        }
        block
    }

    /// Changes the state, and joins the block with neighbours of the same state if that is free or unmapped.
    /// Returns where the block starts then.
    pub(super) fn set(&mut self, address: u64, state: State) -> u64 {
        let mut block = Block {
            state,
            ..self.remove(address)
        };
        let mut start = address;
        if matches!(state, State::Free | State::Unmapped) {
            if let Some((before, other)) = self.before(address, &block)
                && other.state == state
            {
                self.remove(before);
                start = before;
                block.size += other.size;
            }
            if let Some((after, other)) = self.after(start, &block)
                && other.state == state
            {
                self.remove(after);
                block.size += other.size;
            }
        }
        self.insert(start, block);
        start
    }

    /// Cuts a block into one of `size` bytes and a rest of the same state.
    pub(super) fn split(&mut self, address: u64, size: u64) {
        let block = self.remove(address);
        let rest = block.size - size;
        self.insert(
            address + size,
            Block {
                size: rest,
                ..block
            },
        );
        self.insert(address, Block { size, ..block });
    }

    /// The block in front, of the same region.
    pub(super) fn before(&self, address: u64, block: &Block) -> Option<(u64, Block)> {
        let (&start, other) = self.all.range(..address).next_back()?;
        (other.region == block.region).then_some((start, *other))
    }

    /// The block behind, of the same region.
    pub(super) fn after(&self, address: u64, block: &Block) -> Option<(u64, Block)> {
        let (&start, other) = self.all.range(address + block.size..).next()?;
        (other.region == block.region).then_some((start, *other))
    }

    /// Free blocks of a class of at least `size` bytes, smallest and lowest first.
    pub(super) fn fitting(&self, class: usize, size: u64) -> impl Iterator<Item = u64> {
        let list = self.free.get(class).into_iter();
        list.flat_map(move |list| list.range((size, 0)..))
            .map(|&(_, address)| address)
    }

    /// All free blocks.
    pub(super) fn all_free(&self) -> Vec<u64> {
        let addresses = self.free.iter().flatten().map(|&(_, address)| address);
        addresses.collect()
    }

    /// Unmapped blocks of a class, lowest first.
    pub(super) fn unmapped(&self, class: usize) -> Vec<u64> {
        self.unmapped
            .get(class)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    /// Whether a block is all of its region.
    pub(super) fn is_alone(&self, address: u64) -> bool {
        let block = self.get(address);
        self.before(address, &block).is_none() && self.after(address, &block).is_none()
    }
}
