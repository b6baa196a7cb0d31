//! The heap as others see it: blocks around addresses, events, and pictures of everything.
//!
//! It must never change anything.

use super::Heap;
use crate::block::Block;
use crate::config::Class;
use crate::table::NONE;
use crate::{
    BlockInfo, BlockState, Event, EventKind, SegmentBlock, SegmentInfo, Snapshot, StreamId,
};

impl Heap {
    /// An event, with the figures of now.
    pub(crate) fn event(
        &self,
        kind: EventKind,
        address: u64,
        size: u64,
        stream: StreamId,
    ) -> Event {
        Event {
            kind,
            address,
            size,
            stream,
            allocated_bytes: self.gauges.allocated.bytes.current(),
            reserved_bytes: self.gauges.reserved.bytes.current(),
        }
    }

    /// The size of the largest free block, of any arena and class.
    pub(crate) fn largest_free_block(&self) -> u64 {
        let lists = self.arenas.iter().flat_map(|arena| &arena.lists);
        lists
            .map(|lists| lists.largest(&self.blocks))
            .max()
            .unwrap_or(0)
    }

    /// The block around an address, in any state.
    pub(crate) fn lookup(&self, address: u64) -> Option<BlockInfo> {
        let block = &self.blocks[self.around(address)?];
        let arena = &self.arenas[self.segments[block.segment].arena];
        Some(BlockInfo {
            base: block.address,
            size: block.size,
            requested: block.requested,
            stream: arena.stream,
            pool: arena.pool,
            free: block.state != BlockState::Allocated,
        })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let segments = self.segments.ids().map(|id| {
            let segment = &self.segments[id];
            let first = Some(segment.first);
            let ids = std::iter::successors(first, |&id| {
                Some(self.blocks[id].after).filter(|&after| after != NONE)
            });
            let blocks = ids.map(|id| {
                let Block {
                    address,
                    size,
                    requested,
                    state,
                    ..
                } = self.blocks[id];
                SegmentBlock {
                    address,
                    size,
                    requested,
                    state,
                }
            });
            let arena = &self.arenas[segment.arena];
            SegmentInfo {
                address: segment.address,
                size: segment.size,
                stream: arena.stream,
                pool: arena.pool,
                large: segment.class == Class::Large,
                blocks: blocks.collect(),
            }
        });
        Snapshot {
            segments: segments.collect(),
        }
    }

    /// The block around an address.
    #[inline]
    pub(super) fn around(&self, address: u64) -> Option<u32> {
        let id = self.by_address.get(address);
        if id != NONE {
            return Some(id);
        }
        let segment = &self.segments[self.segments.around(address)?];
        let id = segment.starts.last_up_to(address - segment.address)?;
        let block = &self.blocks[id];
        Some(if block.address <= address {
            id
        } else {
            block.before
        })
    }
}
