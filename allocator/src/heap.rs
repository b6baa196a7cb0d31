//! The arithmetic of the allocator: finding, splitting and joining blocks, and counting.
//!
//! It knows no device, no lock and no fence: memory comes in by [`Heap::add_segment`] and leaves by
//! [`Heap::take_idle`]. Every call leaves it consistent, whatever it returns. It must never hand out
//! a block that is not free.

use std::collections::HashMap;

use crate::block::{Block, Blocks};
use crate::config::{Class, Request};
use crate::lists::FreeLists;
use crate::segment::{Segment, Segments, Starts};
use crate::stats::Gauges;
use crate::table::{NONE, Table};
use crate::{
    Allocation, BlockInfo, BlockState, Config, Event, EventKind, FreeError, Freed, SegmentBlock,
    SegmentInfo, Snapshot, StreamId,
};

/// Free blocks of a stream.
struct Pool {
    stream: StreamId,
    lists: [FreeLists; 2], // by class
    segments: usize,
}

/// What became of a block that was freed.
pub(crate) enum Release {
    /// It can be used again.
    Reusable(Freed),
    /// It can be used again once [`Heap::pass`] was called for each of these streams.
    Pending {
        freed: Freed,
        block: u32,
        streams: Vec<StreamId>,
    },
}

/// Segments, blocks and figures.
pub(crate) struct Heap {
    config: Config,
    limit: u64,
    blocks: Blocks,
    segments: Segments,
    pools: Vec<Pool>,
    spare_pools: Vec<u32>,
    pool_of: Table,                        // by stream
    latest: (StreamId, u32),               // the stream that was looked up last, and its pool
    by_address: Table,                     // blocks in any state, by where they start
    recorded: HashMap<u32, Vec<StreamId>>, // by block
    clock: u64,                            // counts segments that became idle
    gauges: Gauges,
}

impl Heap {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            limit: config.limit(),
            config,
            blocks: Blocks::new(),
            segments: Segments::new(),
            pools: Vec::new(),
            spare_pools: Vec::new(),
            pool_of: Table::new(),
            latest: (StreamId(0), NONE),
            by_address: Table::new(),
            recorded: HashMap::new(),
            clock: 0,
            gauges: Gauges::default(),
        }
    }

    /// Serves a request from a free block, if one fits.
    #[inline]
    pub(crate) fn alloc(&mut self, request: &Request, stream: StreamId) -> Option<Allocation> {
        let pool = self.pool(stream);
        if pool == NONE {
            return None;
        }
        let lists = &self.pools[pool as usize].lists[request.class as usize];
        let block = lists.best_fit(&self.blocks, request.size)?;
        self.config
            .accepts(request, self.blocks[block].size)
            .then(|| self.hand_out(block, pool, request))
    }

    /// Adds a segment that was made for this request, and serves it from there. `None` if the
    /// segment is impossible: it overlaps another one or leaves the address space.
    pub(crate) fn add_segment(
        &mut self,
        address: u64,
        size: u64,
        request: &Request,
        stream: StreamId,
    ) -> Option<Allocation> {
        address.checked_add(size)?;
        if self.segments.overlap(address, size) {
            return None;
        }
        let pool = self.pool_or_new(stream);
        let id = self.segments.next_id();
        let first = self.blocks.add(Block::whole(address, size, id));
        let class = request.class;
        let mut starts = Starts::new(size, class, self.config.rounding());
        starts.insert(0, first);
        self.segments.add(Segment {
            address,
            size,
            pool,
            class,
            first,
            starts,
            idle_since: 0,
        });
        self.by_address.insert(address, first);
        let owner = &mut self.pools[pool as usize];
        owner.segments += 1;
        owner.lists[class as usize].insert(&mut self.blocks, first);
        self.gauges.reserved.add(size);
        self.gauges.device_allocs += 1;
        Some(self.hand_out(first, pool, request))
    }

    /// Makes a free block of a pool one in use, and cuts off what is not needed.
    #[inline]
    fn hand_out(&mut self, id: u32, pool: u32, request: &Request) -> Allocation {
        let lists = &mut self.pools[pool as usize].lists[request.class as usize];
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

    /// Takes back a block in use.
    #[inline]
    pub(crate) fn free(&mut self, address: u64) -> Result<Release, FreeError> {
        let id = self.in_use(address)?;
        let block = &mut self.blocks[id];
        let size = block.size;
        self.gauges.allocated.sub(size);
        self.gauges.requested.sub(block.requested);
        block.requested = 0;
        let recorded = std::mem::take(&mut block.recorded);
        let pool = self.segments[block.segment].pool;
        let freed = Freed {
            size,
            stream: self.pools[pool as usize].stream,
        };
        if recorded {
            let streams = self.recorded.remove(&id).unwrap_or_default();
            let block = &mut self.blocks[id];
            block.state = BlockState::Pending;
            block.waits = streams.len() as u32;
            return Ok(Release::Pending {
                freed,
                block: id,
                streams,
            });
        }
        self.recycle(id);
        Ok(Release::Reusable(freed))
    }

    /// One of the streams that a pending block waits for has passed.
    pub(crate) fn pass(&mut self, id: u32) {
        self.blocks[id].waits -= 1;
        if self.blocks[id].waits == 0 {
            self.recycle(id);
        }
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
        let lists = &mut self.pools[segment.pool as usize].lists[segment.class as usize];
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

    /// Notes that a stream uses a block, beside the one that it was allocated for.
    pub(crate) fn record(&mut self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        let id = self.in_use(address)?;
        let block = &mut self.blocks[id];
        let pool = self.segments[block.segment].pool;
        if self.pools[pool as usize].stream == stream {
            return Ok(());
        }
        block.recorded = true;
        let streams = self.recorded.entry(id).or_default();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        Ok(())
    }

    /// The streams that have idle segments, and a time: what is idle since before it will have been
    /// used only by work submitted before now.
    pub(crate) fn idle_streams(&self) -> (u64, Vec<StreamId>) {
        let mut pools: Vec<u32> = self
            .segments
            .ids()
            .filter(|&id| self.is_idle(id))
            .map(|id| self.segments[id].pool)
            .collect();
        pools.sort_unstable();
        pools.dedup();
        (
            self.clock,
            pools
                .into_iter()
                .map(|pool| self.pools[pool as usize].stream)
                .collect(),
        )
    }

    /// Removes the segments of these streams that are idle since before a time, and returns an event
    /// for each.
    pub(crate) fn take_idle(&mut self, before: u64, streams: &[StreamId]) -> Vec<Event> {
        let taken: Vec<u32> = self
            .segments
            .ids()
            .filter(|&id| {
                let segment = &self.segments[id];
                self.is_idle(id)
                    && segment.idle_since < before
                    && streams.contains(&self.pools[segment.pool as usize].stream)
            })
            .collect();
        let events = taken
            .iter()
            .map(|&id| {
                let Segment {
                    address,
                    size,
                    pool,
                    class,
                    first,
                    ..
                } = self.segments[id];
                let owner = &mut self.pools[pool as usize];
                let stream = owner.stream;
                owner.lists[class as usize].remove(&mut self.blocks, first);
                owner.segments -= 1;
                if owner.segments == 0 {
                    // Streams come and go: without memory, a stream leaves nothing behind.
                    self.pool_of.remove(stream.0);
                    self.spare_pools.push(pool);
                    self.latest = (stream, NONE);
                }
                self.by_address.remove(address);
                self.blocks.remove(first);
                self.gauges.reserved.sub(size);
                self.gauges.device_frees += 1;
                self.event(EventKind::SegmentFree, address, size, stream)
            })
            .collect();
        self.segments.remove(&taken);
        events
    }

    fn is_idle(&self, segment: u32) -> bool {
        let first = &self.blocks[self.segments[segment].first];
        first.state == BlockState::Free && first.is_whole()
    }

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

    /// The size of the largest free block, of any stream and class.
    pub(crate) fn largest_free_block(&self) -> u64 {
        let lists = self.pools.iter().flat_map(|pool| &pool.lists);
        lists
            .map(|lists| lists.largest(&self.blocks))
            .max()
            .unwrap_or(0)
    }

    /// The block around an address, in any state.
    pub(crate) fn lookup(&self, address: u64) -> Option<BlockInfo> {
        let block = &self.blocks[self.around(address)?];
        let pool = self.segments[block.segment].pool;
        Some(BlockInfo {
            base: block.address,
            size: block.size,
            requested: block.requested,
            stream: self.pools[pool as usize].stream,
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
            SegmentInfo {
                address: segment.address,
                size: segment.size,
                stream: self.pools[segment.pool as usize].stream,
                large: segment.class == Class::Large,
                blocks: blocks.collect(),
            }
        });
        Snapshot {
            segments: segments.collect(),
        }
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

    #[inline]
    fn around(&self, address: u64) -> Option<u32> {
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

    /// A stream's pool, or [`NONE`].
    #[inline]
    fn pool(&mut self, stream: StreamId) -> u32 {
        if self.latest.0 != stream || self.latest.1 == NONE {
            self.latest = (stream, self.pool_of.get(stream.0));
        }
        self.latest.1
    }

    fn pool_or_new(&mut self, stream: StreamId) -> u32 {
        let known = self.pool(stream);
        if known != NONE {
            return known;
        }
        let rounding = self.config.rounding();
        let lists = [FreeLists::new(rounding), FreeLists::new(rounding)];
        let pool = Pool {
            stream,
            lists,
            segments: 0,
        };
        let id = if let Some(id) = self.spare_pools.pop() {
            self.pools[id as usize] = pool;
            id
        } else {
            self.pools.push(pool);
            u32::try_from(self.pools.len() - 1).expect("fewer than 2^32 streams fit in memory")
        };
        self.pool_of.insert(stream.0, id);
        self.latest = (stream, id);
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
    fn a_pool_without_segments_serves_the_next_stream() {
        let config = Config::default();
        let request = config.request(100).unwrap();
        let mut heap = Heap::new(config);
        for number in 0..50 {
            let stream = StreamId(number);
            let block = heap
                .add_segment(1 << 30, 2 << 20, &request, stream)
                .unwrap();
            assert!(matches!(heap.free(block.address), Ok(Release::Reusable(_))));
            let (now, streams) = heap.idle_streams();
            assert_eq!(streams, [stream]);
            assert_eq!(heap.take_idle(now, &streams).len(), 1);
            assert!(heap.alloc(&request, stream).is_none());
        }
        assert_eq!((heap.pools.len(), heap.segments.ids().count()), (1, 0));
    }
}
