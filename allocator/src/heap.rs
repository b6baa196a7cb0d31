//! The arithmetic of the allocator: finding, splitting and joining blocks, and counting.
//!
//! It knows no device, no lock and no fence: memory comes in by [`Heap::add_segment`] and leaves by
//! [`Heap::take_idle`] and [`Heap::remove_segment`]. Every call leaves it consistent, whatever it
//! returns. It must never hand out a block that is not free.

mod holds;
mod pools;
mod view;

use std::collections::HashMap;

use self::holds::Note;
use self::pools::Pools;
use crate::arena::Arenas;
use crate::block::{Block, Blocks};
use crate::config::Request;
use crate::segment::{Segment, Segments, Starts};
use crate::stats::Gauges;
use crate::table::{NONE, Table};
use crate::{Allocation, BlockState, Config, Event, EventKind, FreeError, Freed, PoolId, StreamId};

/// Whom an allocation is for.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// `None` is the memory that all share.
    pub(crate) pool: Option<PoolId>,
    pub(crate) stream: StreamId,
}

/// What became of a block that was freed.
pub(crate) enum Release {
    /// It can be used again.
    Reusable(Freed),
    /// It has notes or is of a private pool: what this block waits for, [`Heap::let_go`] says.
    Pending(Freed, u32),
}

/// What the heap, which knows no fence, leaves to its caller.
#[must_use]
pub(crate) enum Next {
    /// Nothing.
    Done,
    /// [`Heap::pass`] for this block, once for each stream, behind all its work of now.
    Wait { block: u32, streams: Vec<StreamId> },
    /// What [`Heap::take_retired`] says.
    Retire,
}

/// Segments, blocks and figures.
pub(crate) struct Heap {
    config: Config,
    limit: u64,
    blocks: Blocks,
    segments: Segments,
    arenas: Arenas,
    pools: Pools,
    by_address: Table,         // blocks in any state, by where they start
    notes: HashMap<u32, Note>, // by block
    clock: u64,                // counts segments that became idle
    gauges: Gauges,
}

impl Heap {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            limit: config.limit(),
            config,
            blocks: Blocks::new(),
            segments: Segments::new(),
            arenas: Arenas::new(),
            pools: Pools::default(),
            by_address: Table::new(),
            notes: HashMap::new(),
            clock: 0,
            gauges: Gauges::default(),
        }
    }

    /// Serves a request from a free block of the shared memory, if one fits.
    #[inline]
    pub(crate) fn alloc(&mut self, request: &Request, stream: StreamId) -> Option<Allocation> {
        let arena = self.arenas.shared(stream);
        self.alloc_from(arena, request)
    }

    /// Serves a request from a free block of whom it is for, if one fits.
    pub(crate) fn alloc_at(&mut self, request: &Request, place: Place) -> Option<Allocation> {
        let Some(pool) = place.pool else {
            return self.alloc(request, place.stream);
        };
        let arena = self.pools.arena(pool, place.stream, &self.arenas);
        let found = self.alloc_from(arena, request)?;
        self.pools.allocated(pool).add(found.size);
        Some(found)
    }

    #[inline]
    fn alloc_from(&mut self, arena: u32, request: &Request) -> Option<Allocation> {
        if arena == NONE {
            return None;
        }
        let lists = &self.arenas[arena].lists[request.class as usize];
        let block = lists.best_fit(&self.blocks, request.size)?;
        self.config
            .accepts(request, self.blocks[block].size)
            .then(|| self.hand_out(block, arena, request))
    }

    /// Adds a segment that was made for this request, and serves it from there. `None` if the
    /// segment is impossible: it overlaps another one or leaves the address space.
    pub(crate) fn add_segment(
        &mut self,
        address: u64,
        size: u64,
        request: &Request,
        place: Place,
    ) -> Option<Allocation> {
        address.checked_add(size)?;
        if self.segments.overlap(address, size) {
            return None;
        }
        let arena = self.arena_or_new(place);
        let id = self.segments.next_id();
        let first = self.blocks.add(Block::whole(address, size, id));
        let class = request.class;
        let mut starts = Starts::new(size, class, self.config.rounding());
        starts.insert(0, first);
        self.segments.add(Segment {
            address,
            size,
            arena,
            class,
            first,
            starts,
            idle_since: 0,
        });
        self.by_address.insert(address, first);
        let owner = &mut self.arenas[arena];
        owner.segments += 1;
        owner.lists[class as usize].insert(&mut self.blocks, first);
        self.gauges.reserved.add(size);
        self.gauges.device_allocs += 1;
        let found = self.hand_out(first, arena, request);
        if let Some(pool) = place.pool {
            self.pools.add_segment(pool, size);
            self.pools.allocated(pool).add(found.size);
        }
        Some(found)
    }

    /// Makes a free block of an arena one in use, and cuts off what is not needed.
    #[inline]
    fn hand_out(&mut self, id: u32, arena: u32, request: &Request) -> Allocation {
        let lists = &mut self.arenas[arena].lists[request.class as usize];
        lists.remove(&mut self.blocks, id);
        let block = &mut self.blocks[id];
        let (address, found, after) = (block.address, block.size, block.after);
        let was_split = !block.is_whole();
        block.state = BlockState::Allocated;
        block.requested = request.requested;
        let mut size = found;
        if self.config.splits(request, found - request.size) {
            size = request.size;
            block.size = size;
            let segment = block.segment;
            let rest = Block {
                address: address + size,
                size: found - size,
                before: id,
                after,
                ..Block::whole(0, 0, segment)
            };
            let rest_id = self.blocks.add(rest);
            self.blocks[id].after = rest_id;
            if after != NONE {
                self.blocks[after].before = rest_id;
            }
            lists.insert(&mut self.blocks, rest_id);
            self.by_address.insert(address + size, rest_id);
            let segment = &mut self.segments[segment];
            segment
                .starts
                .insert(address + size - segment.address, rest_id);
        }
        let rest = found - size;
        let gauges = &mut self.gauges;
        gauges
            .inactive_split
            .count
            .replace(u64::from(was_split), u64::from(rest != 0));
        gauges
            .inactive_split
            .bytes
            .replace(if was_split { found } else { 0 }, rest);
        gauges.allocated.add(size);
        gauges.requested.add(request.requested);
        gauges.active.add(size);
        Allocation { address, size }
    }

    /// Takes back a block in use. With [`Release::Pending`], [`let_go`](Self::let_go) comes next.
    #[inline]
    pub(crate) fn free(&mut self, address: u64) -> Result<Release, FreeError> {
        let id = self.in_use(address)?;
        let block = &mut self.blocks[id];
        let size = block.size;
        self.gauges.allocated.sub(size);
        self.gauges.requested.sub(block.requested);
        block.requested = 0;
        let noted = block.noted;
        let arena = &self.arenas[self.segments[block.segment].arena];
        let freed = Freed {
            size,
            stream: arena.stream,
            pool: arena.pool,
        };
        if noted || freed.pool.is_some() {
            self.set_pending(id, &freed);
            return Ok(Release::Pending(freed, id));
        }
        self.recycle(id);
        Ok(Release::Reusable(freed))
    }

    #[inline(never)]
    fn set_pending(&mut self, id: u32, freed: &Freed) {
        self.blocks[id].state = BlockState::Pending;
        if let Some(pool) = freed.pool {
            self.pools.allocated(pool).sub(freed.size);
        }
    }

    /// One of the streams that a pending block waits for has passed. Returns whether a segment was
    /// retired.
    pub(crate) fn pass(&mut self, id: u32) -> bool {
        self.blocks[id].waits -= 1;
        self.blocks[id].waits == 0 && matches!(self.let_go(id), Next::Retire)
    }

    /// Makes a block free, joined with its free neighbours.
    #[inline]
    fn recycle(&mut self, mut id: u32) {
        let Block {
            segment: segment_id,
            before,
            after,
            size,
            ..
        } = self.blocks[id];
        self.gauges.active.sub(size);
        let segment = &mut self.segments[segment_id];
        let lists = &mut self.arenas[segment.arena].lists[segment.class as usize];
        let (mut joined, mut joined_bytes) = (0, 0);
        if after != NONE && self.blocks[after].state == BlockState::Free {
            lists.remove(&mut self.blocks, after);
            joined += 1;
            joined_bytes += self.blocks[after].size;
            join(&mut self.blocks, &mut self.by_address, segment, id, after);
        }
        if before != NONE && self.blocks[before].state == BlockState::Free {
            lists.remove(&mut self.blocks, before);
            joined += 1;
            joined_bytes += self.blocks[before].size;
            join(&mut self.blocks, &mut self.by_address, segment, before, id);
            id = before;
        }
        let block = &mut self.blocks[id];
        block.state = BlockState::Free;
        let split = !block.is_whole();
        let split_bytes = if split { block.size } else { 0 };
        if !split {
            segment.idle_since = self.clock;
            self.clock += 1;
        }
        lists.insert(&mut self.blocks, id);
        self.gauges
            .inactive_split
            .count
            .replace(joined, u64::from(split));
        self.gauges
            .inactive_split
            .bytes
            .replace(joined_bytes, split_bytes);
    }

    /// The streams that have idle segments of the shared memory, and a time: what is idle since
    /// before it will have been used only by work submitted before now.
    pub(crate) fn idle_streams(&self) -> (u64, Vec<StreamId>) {
        let shared = self
            .segments
            .ids()
            .filter(|&id| self.is_idle(id))
            .map(|id| &self.arenas[self.segments[id].arena])
            .filter(|arena| arena.pool.is_none());
        let mut streams: Vec<StreamId> = shared.map(|arena| arena.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        (self.clock, streams)
    }

    /// Removes the segments of the shared memory of these streams that are idle since before a time,
    /// and returns an event for each.
    pub(crate) fn take_idle(&mut self, before: u64, streams: &[StreamId]) -> Vec<Event> {
        let taken: Vec<u32> = self
            .segments
            .ids()
            .filter(|&id| {
                let segment = &self.segments[id];
                let arena = &self.arenas[segment.arena];
                self.is_idle(id)
                    && segment.idle_since < before
                    && arena.pool.is_none()
                    && streams.contains(&arena.stream)
            })
            .collect();
        let events = taken.iter().map(|&id| self.take_segment(id)).collect();
        self.segments.remove(&taken);
        events
    }

    /// Removes an idle segment, and returns an event for it.
    pub(crate) fn remove_segment(&mut self, id: u32) -> Event {
        let event = self.take_segment(id);
        self.segments.remove(&[id]);
        event
    }

    /// All that removing an idle segment takes, but for its record.
    fn take_segment(&mut self, id: u32) -> Event {
        let Segment {
            address,
            size,
            arena,
            class,
            first,
            ..
        } = self.segments[id];
        let owner = &mut self.arenas[arena];
        let (stream, pool) = (owner.stream, owner.pool);
        owner.lists[class as usize].remove(&mut self.blocks, first);
        owner.segments -= 1;
        if owner.segments == 0 {
            self.arenas.remove(arena);
        }
        if let Some(pool) = pool {
            self.pools.remove_segment(pool, size);
        }
        self.by_address.remove(address);
        self.blocks.remove(first);
        self.gauges.reserved.sub(size);
        self.gauges.device_frees += 1;
        self.event(EventKind::SegmentFree, address, size, stream)
    }

    fn is_idle(&self, segment: u32) -> bool {
        let first = &self.blocks[self.segments[segment].first];
        first.state == BlockState::Free && first.is_whole()
    }

    /// Whether the limit leaves room for another segment.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        self.gauges
            .reserved
            .bytes
            .current()
            .checked_add(size)
            .is_some_and(|all| all <= self.limit)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    pub(crate) fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    pub(crate) fn gauges_mut(&mut self) -> &mut Gauges {
        &mut self.gauges
    }

    #[inline]
    fn in_use(&self, address: u64) -> Result<u32, FreeError> {
        let id = self.by_address.get(address);
        if id != NONE && self.blocks[id].state == BlockState::Allocated {
            return Ok(id);
        }
        Err(self.why_not_in_use(address))
    }

    #[cold]
    fn why_not_in_use(&self, address: u64) -> FreeError {
        match self.lookup(address) {
            None => FreeError::Unknown { address },
            Some(block) if block.free => FreeError::AlreadyFreed { address },
            Some(block) => FreeError::Interior {
                address,
                base: block.base,
            },
        }
    }

    fn arena_or_new(&mut self, place: Place) -> u32 {
        let known = match place.pool {
            None => self.arenas.shared(place.stream),
            Some(pool) => self.pools.arena(pool, place.stream, &self.arenas),
        };
        if known != NONE {
            return known;
        }
        let rounding = self.config.rounding();
        let id = self.arenas.add(place.pool, place.stream, rounding);
        if let Some(pool) = place.pool {
            self.pools.add_arena(pool, id);
        }
        id
    }
}

/// Makes two neighbours one: the left one. Neither is in a free list.
#[inline]
fn join(blocks: &mut Blocks, by_address: &mut Table, segment: &mut Segment, left: u32, right: u32) {
    let Block {
        address,
        size,
        after,
        ..
    } = blocks[right];
    blocks[left].size += size;
    blocks[left].after = after;
    if after != NONE {
        blocks[after].before = left;
    }
    by_address.remove(address);
    segment.starts.remove(address - segment.address);
    blocks.remove(right);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_without_segments_serves_the_next_stream() {
        let config = Config::default();
        let request = config.request(100).unwrap();
        let mut heap = Heap::new(config);
        for number in 0..50 {
            let stream = StreamId(number);
            let place = Place { pool: None, stream };
            let block = heap.add_segment(1 << 30, 2 << 20, &request, place).unwrap();
            assert!(matches!(heap.free(block.address), Ok(Release::Reusable(_))));
            let (now, streams) = heap.idle_streams();
            assert_eq!(streams, [stream]);
            assert_eq!(heap.take_idle(now, &streams).len(), 1);
            assert!(heap.alloc(&request, stream).is_none());
        }
        assert_eq!(
            (heap.arenas.iter().count(), heap.segments.ids().count()),
            (1, 0)
        );
    }

    #[test]
    fn a_pool_leaves_nothing_behind() {
        let config = Config::default();
        let request = config.request(100).unwrap();
        let mut heap = Heap::new(config);
        for number in 0..50 {
            let pool = heap.pool_create();
            let place = Place {
                pool: Some(pool),
                stream: StreamId(number),
            };
            let block = heap.add_segment(1 << 30, 2 << 20, &request, place).unwrap();
            assert_eq!(heap.hold(block.address + 1), Ok(block.address));
            assert!(matches!(heap.pool_release(pool), Ok(Next::Done)));
            let Ok(Release::Pending(_, id)) = heap.free(block.address) else {
                panic!("held")
            };
            assert!(matches!(heap.let_go(id), Next::Done));
            assert!(matches!(heap.unhold(block.address), Ok(Next::Retire)));
            let [(stream, segment)] = heap.take_retired()[..] else {
                panic!("one segment")
            };
            assert_eq!(stream, place.stream);
            heap.remove_segment(segment);
            assert_eq!(heap.pool_stats(pool), None);
        }
        assert_eq!(
            (heap.arenas.iter().count(), heap.segments.ids().count()),
            (1, 0)
        );
        assert_eq!(heap.notes.len(), 0);
    }
}
