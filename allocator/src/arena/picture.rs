//! Pictures of an arena for others: the block around an address, and pictures of everything.
//!
//! The module must never change the arena.

use super::Arena;
use crate::block::{NONE, State};
use crate::config::Class;
use crate::segment::{Chunk, SegmentKind};
use crate::{Backing, BlockInfo, BlockState, Recorded, SegmentBlock, SegmentInfo};

impl Arena {
    /// The size of the largest free block of a class.
    pub(crate) fn largest_free_block(&self, class: Class) -> u64 {
        self.parts[class as usize].lists.largest(&self.blocks)
    }

    /// The block around an address, if there is memory.
    pub(crate) fn lookup(&self, address: u64) -> Option<BlockInfo> {
        let block = &self.blocks[self.around(address)?];
        let owner = self.owner?;
        if block.state == State::Unmapped {
            return None;
        }
        Some(BlockInfo {
            base: block.address,
            size: block.size,
            requested: block.requested,
            stream: owner.stream,
            pool: owner.pool,
            free: block.state != State::Allocated,
            asleep: self.is_asleep(),
        })
    }

    /// A block as it is recorded, if it can be used again.
    pub(crate) fn if_reusable(&self, block: u32) -> Option<Recorded> {
        let block = &self.blocks[block];
        let owner = self.owner?;
        matches!(block.state, State::Free | State::Quick).then_some(Recorded {
            address: block.address,
            size: block.size,
            requested: 0,
            stream: owner.stream,
            pool: owner.pool,
        })
    }

    /// The memory behind the block in use around an address.
    pub(crate) fn backing(&self, address: u64) -> Option<(BlockInfo, Backing)> {
        let here = |block: &BlockInfo| !block.free && !block.asleep;
        let info = self.lookup(address).filter(here)?;
        let segment = &self.segments[self.segments.around(address)?];
        let end = info.base + info.size;
        let pieces: Vec<(u64, Chunk)> = match &segment.kind {
            SegmentKind::Fixed => {
                let address = segment.address;
                return Some((info, Backing::Segment { address }));
            }
            SegmentKind::Span(span) => span.chunks.iter().map(|it| (it.home, *it)).collect(),
            SegmentKind::View(view) => {
                let slots = view.slots.iter();
                slots.map(|slot| (slot.address, slot.piece.chunk)).collect()
            }
        };
        let mut pieces = pieces
            .into_iter()
            .filter(|(at, chunk)| *at < end && at + chunk.size > info.base)
            .peekable();
        let backing = Backing::Pieces {
            address: pieces.peek()?.0,
            pieces: pieces.map(|(_, it)| (it.physical, it.size)).collect(),
        };
        Some((info, backing))
    }

    /// All memory in which blocks can lie: the mapped parts of spans, segments, and views in use. Views
    /// have no memory of their own.
    pub(crate) fn picture(&self) -> Vec<SegmentInfo> {
        let mut all: Vec<SegmentInfo> = Vec::new();
        let Some(owner) = self.owner.filter(|_| !self.is_asleep()) else {
            return all;
        };
        for id in self.segments.ids() {
            let segment = &self.segments[id];
            let blocks = std::iter::successors(Some(segment.first), |&id| {
                Some(self.blocks[id].after).filter(|&after| after != NONE)
            });
            let mut open = false;
            for block in blocks.map(|id| &self.blocks[id]) {
                let state = match block.state {
                    State::Free | State::Quick => BlockState::Free,
                    State::Allocated => BlockState::Allocated,
                    State::Pending => BlockState::Pending,
                    State::Lent | State::Leaving if self.is_away(block.address) => {
                        open = false;
                        continue;
                    }
                    State::Lent | State::Leaving | State::Tail => BlockState::Lent,
                    State::Unmapped => {
                        open = false;
                        continue;
                    }
                };
                if !open {
                    all.push(SegmentInfo {
                        address: block.address,
                        size: 0,
                        stream: owner.stream,
                        pool: owner.pool,
                        large: segment.class == Class::Large,
                        view: matches!(segment.kind, SegmentKind::View(_)),
                        expandable: matches!(segment.kind, SegmentKind::Span(_)),
                        blocks: Vec::new(),
                    });
                    open = true;
                }
                if let Some(info) = all.last_mut() {
                    info.size += block.size;
                    info.blocks.push(SegmentBlock {
                        address: block.address,
                        size: block.size,
                        requested: block.requested,
                        state,
                    });
                }
            }
        }
        all
    }
}
