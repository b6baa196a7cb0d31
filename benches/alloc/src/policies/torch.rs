//! PyTorch's caching allocator: segments of fixed sizes, or segments that expand (`expandable_segments`) by
//! pages mapped behind each other. Each stream has blocks of its own, small and large ones apart.

use std::collections::{HashMap, VecDeque};

use super::Device;
use super::blocks::{Block, Blocks, State};
use crate::calls::Calls;
use crate::replay::Subject;
use crate::trace::STREAMS;

const MIB: u64 = 1 << 20;
const ROUNDING: u64 = 512;
const SMALL: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;
const LARGE_SEGMENT: u64 = 20 * MIB;
/// Larger requests get a segment of their own.
const SHARED: u64 = 10 * MIB;

/// The allocator.
pub(crate) struct Torch {
    device: Device,
    blocks: Blocks,
    expandable: bool,
    /// Streams that were recorded on blocks in use.
    recorded: HashMap<u64, Vec<u16>>,
    /// By stream: operation and block.
    pending: Vec<VecDeque<(u64, u64)>>,
}

impl Torch {
    pub(crate) fn new(capacity: u64, lag: u64, expandable: bool) -> Self {
        Self {
            device: Device::new(capacity, lag),
            blocks: Blocks::default(),
            expandable,
            recorded: HashMap::new(),
            pending: vec![VecDeque::new(); STREAMS],
        }
    }

    fn find(&self, class: usize, size: u64) -> Option<u64> {
        let mut fitting = self.blocks.fitting(class, size);
        let mut best = fitting.next()?;
        if self.expandable {
            // Of blocks alike, the one with the least to expand into.
            for other in fitting {
                if self.room(other) >= self.room(best) {
                    break;
                }
                best = other;
            }
        }
        Some(best)
    }

    /// Bytes of a block with the unmapped ones behind it.
    fn room(&self, address: u64) -> u64 {
        let block = self.blocks.get(address);
        let after = self.blocks.after(address, &block);
        let unmapped = after.filter(|(_, other)| other.state == State::Unmapped);
        block.size + unmapped.map_or(0, |(_, other)| other.size)
    }

    fn grow(&mut self, class: usize, size: u64) -> Option<u64> {
        if self.expandable {
            return self.expand(class, size);
        }
        let segment = if is_small(class) {
            SMALL_SEGMENT
        } else if size < SHARED {
            LARGE_SEGMENT
        } else {
            size.next_multiple_of(2 * MIB)
        };
        if !self.device.take(segment) {
            return None;
        }
        let region = self.device.reserve(segment);
        let block = Block {
            size: segment,
            class,
            region,
            state: State::Free,
        };
        self.blocks.insert(region, block);
        Some(region)
    }

    fn expand(&mut self, class: usize, size: u64) -> Option<u64> {
        let start = self.expandable_at(class, size).unwrap_or_else(|| {
            let page = page(class);
            let room = (self.device.capacity / 8 * 9).next_multiple_of(page);
            let region = self.device.reserve(room);
            let block = Block {
                size: room,
                class,
                region,
                state: State::Unmapped,
            };
            self.blocks.insert(region, block);
            region
        });
        let mut block = self.blocks.get(start);
        if block.state == State::Unmapped {
            self.map(start, size)?;
            block = self.blocks.get(start);
        }
        while block.size < size {
            let (next, _) = self.blocks.after(start, &block)?;
            self.map(next, size - block.size)?;
            block = self.blocks.get(start);
        }
        Some(start)
    }

    /// The first place where free and unmapped blocks behind each other would do.
    fn expandable_at(&self, class: usize, size: u64) -> Option<u64> {
        self.blocks
            .unmapped(class)
            .into_iter()
            .find_map(|unmapped| {
                let block = self.blocks.get(unmapped);
                let before = self.blocks.before(unmapped, &block);
                let before = before.filter(|(_, other)| other.state == State::Free);
                let start = before.map_or(unmapped, |(start, _)| start);
                let (mut at, mut block) = (start, self.blocks.get(start));
                let mut room = block.size;
                while room < size {
                    let (next, other) = self.blocks.after(at, &block)?;
                    if !matches!(other.state, State::Free | State::Unmapped) {
                        return None;
                    }
                    room += other.size;
                    (at, block) = (next, other);
                }
                Some(start)
            })
    }

    /// Maps pages at the start of an unmapped block, for `wanted` bytes or all that it has.
    fn map(&mut self, address: u64, wanted: u64) -> Option<()> {
        let block = self.blocks.get(address);
        let bytes = wanted.next_multiple_of(page(block.class)).min(block.size);
        if !self.device.take(bytes) {
            return None;
        }
        if bytes < block.size {
            self.blocks.split(address, bytes);
        }
        self.blocks.set(address, State::Free);
        Some(())
    }

    /// Out of memory: waits for everything, and gives back what is free: whole segments or whole pages.
    fn flush(&mut self) {
        self.release_passed(true);
        for address in self.blocks.all_free() {
            if self.expandable {
                self.unmap(address);
            } else if self.blocks.is_alone(address) {
                let block = self.blocks.remove(address);
                self.device.give(block.size);
            }
        }
    }

    fn unmap(&mut self, address: u64) {
        let block = self.blocks.get(address);
        let page = page(block.class);
        let from_region = address - block.region;
        let first = block.region + from_region.next_multiple_of(page);
        let end = block.region + (from_region + block.size) / page * page;
        if first >= end {
            return;
        }
        if first > address {
            self.blocks.split(address, first - address);
        }
        if end < address + block.size {
            self.blocks.split(first, end - first);
        }
        self.blocks.set(first, State::Unmapped);
        self.device.give(end - first);
    }

    fn release_passed(&mut self, all: bool) {
        for stream in 0..self.pending.len() {
            while let Some(&(at, address)) = self.pending[stream].front()
                && (all || self.device.has_passed(at))
            {
                self.pending[stream].pop_front();
                let state = match self.blocks.get(address).state {
                    State::Pending(more) if more > 1 => State::Pending(more - 1),
                    _ => State::Free,
                };
                self.blocks.set(address, state);
            }
        }
    }
}

fn page(class: usize) -> u64 {
    if is_small(class) {
        SMALL_SEGMENT
    } else {
        LARGE_SEGMENT
    }
}

/// Blocks for one stream, small or large.
fn class(stream: u16, size: u64) -> usize {
    2 * usize::from(stream) + usize::from(size > SMALL)
}

fn is_small(class: usize) -> bool {
    class.is_multiple_of(2)
}

impl Subject for Torch {
    fn tick(&mut self, now: u64) {
        self.device.now = now;
    }

    fn alloc(&mut self, size: u64, stream: u16) -> Option<u64> {
        self.release_passed(false);
        let size = size.max(1).next_multiple_of(ROUNDING);
        let class = class(stream, size);
        let found = self
            .find(class, size)
            .or_else(|| self.grow(class, size))
            .or_else(|| {
                self.flush();
                self.grow(class, size)
            })?;
        let rest = self.blocks.get(found).size - size;
        let least = if is_small(class) || self.expandable {
            ROUNDING
        } else {
            SMALL + 1
        };
        if rest >= least {
            self.blocks.split(found, size);
        }
        self.blocks.set(found, State::Used);
        Some(found)
    }

    fn free(&mut self, memory: u64) {
        let streams = self.recorded.remove(&memory).unwrap_or_default();
        if streams.is_empty() {
            self.blocks.set(memory, State::Free);
            return;
        }
        self.blocks
            .set(memory, State::Pending(streams.len() as u32));
        for stream in streams {
            self.pending[usize::from(stream)].push_back((self.device.now, memory));
        }
    }

    fn record(&mut self, memory: u64, stream: u16) {
        let streams = self.recorded.entry(memory).or_default();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
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
