//! TensorFlow's best-fit allocator with coalescing, whose regions grow (`allow_growth`): each new one is
//! twice as large as the last. One arena serves all streams; what another stream uses comes back when its
//! event has passed.

use std::collections::{HashSet, VecDeque};

use super::Device;
use super::blocks::{Block, Blocks, State};
use crate::calls::Calls;
use crate::replay::Subject;

const ROUNDING: u64 = 256;
const FIRST_REGION: u64 = 2 << 20;
/// A block is split if this much would be left unused, or as much as is used.
const MOST_WASTE: u64 = 128 << 20;

/// The allocator.
pub(crate) struct Bfc {
    device: Device,
    blocks: Blocks,
    next_region: u64,
    /// True once a region had to be smaller than it should have been.
    was_short: bool,
    recorded: HashSet<u64>,
    pending: VecDeque<(u64, u64)>,
}

impl Bfc {
    pub(crate) fn new(capacity: u64, lag: u64) -> Self {
        Self {
            device: Device::new(capacity, lag),
            blocks: Blocks::default(),
            next_region: FIRST_REGION,
            was_short: false,
            recorded: HashSet::new(),
            pending: VecDeque::new(),
        }
    }

    fn find(&mut self, rounded: u64, size: u64) -> Option<u64> {
        let address = self.blocks.fitting(0, rounded).next()?;
        let found = self.blocks.get(address).size;
        if found >= 2 * rounded || found - size >= MOST_WASTE {
            self.blocks.split(address, rounded);
        }
        self.blocks.set(address, State::Used);
        Some(address)
    }

    fn extend(&mut self, rounded: u64) -> bool {
        let available = (self.device.capacity - self.device.used) / ROUNDING * ROUNDING;
        if available < rounded {
            return false;
        }
        let before = self.next_region;
        while !self.was_short && rounded > self.next_region {
            self.next_region *= 2;
        }
        let size = self.next_region.min(available).max(rounded);
        self.was_short |= size < self.next_region;
        if !self.device.take(size) {
            return false;
        }
        if self.next_region == before && !self.was_short {
            self.next_region *= 2;
        }
        let region = self.device.reserve(size);
        let block = Block {
            size,
            class: 0,
            region,
            state: State::Free,
        };
        self.blocks.insert(region, block);
        true
    }

    /// Gives back the regions that nobody uses.
    fn collect(&mut self) {
        for address in self.blocks.all_free() {
            if self.blocks.is_alone(address) {
                let block = self.blocks.remove(address);
                self.device.give(block.size);
            }
        }
    }

    fn release_passed(&mut self, all: bool) {
        while let Some(&(at, address)) = self.pending.front()
            && (all || self.device.has_passed(at))
        {
            self.pending.pop_front();
            self.blocks.set(address, State::Free);
        }
    }
}

impl Subject for Bfc {
    fn tick(&mut self, now: u64) {
        self.device.now = now;
    }

    fn alloc(&mut self, size: u64, _: u16) -> Option<u64> {
        self.release_passed(false);
        let rounded = size.max(1).next_multiple_of(ROUNDING);
        if let Some(found) = self.find(rounded, size) {
            return Some(found);
        }
        if !self.extend(rounded) {
            self.release_passed(true);
            if let Some(found) = self.find(rounded, size) {
                return Some(found);
            }
            self.collect();
            self.extend(rounded);
        }
        self.find(rounded, size)
    }

    fn free(&mut self, memory: u64) {
        if self.recorded.remove(&memory) {
            self.blocks.set(memory, State::Pending(1));
            self.pending.push_back((self.device.now, memory));
        } else {
            self.blocks.set(memory, State::Free);
        }
    }

    fn record(&mut self, memory: u64, _: u16) {
        self.recorded.insert(memory);
    }

    fn idle(&mut self) {
        self.device.idle = self.device.now;
    }

    fn peak(&self) -> u64 {
        self.device.peak
    }

    fn calls(&self) -> Calls {
        Calls::default()
    }
}
