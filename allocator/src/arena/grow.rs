//! Memory that comes from the device and goes back to it: whole segments, and chunks in spans of addresses.
//!
//! The caller talks to the device. Between a plan and its end no other thread may grow the same arena; other
//! threads may still allocate from it and free.

use std::collections::HashSet;

use super::Arena;
use crate::arenas::ArenaId;
use crate::block::{Block, NONE, State};
use crate::config::{Class, Request};
use crate::segment::{Chunk, Segment, SegmentKind, Span, Starts};
use crate::{Allocation, Event, EventKind};

/// A plan: where memory must be mapped.
#[derive(Debug)]
pub(crate) struct Growth {
    segment: u32,
    hole: u32,
    /// The free block before the hole, kept from others until the growth ends, or [`NONE`].
    head: u32,
    /// The first address of the hole.
    pub(crate) address: u64,
    /// Bytes that must be mapped there.
    pub(crate) missing: u64,
    /// Bytes that can be mapped there.
    pub(crate) room: u64,
}

/// Memory that leaves for the device once the work of a stream has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// A segment that the device gave whole.
    Segment(u32),
    /// The chunk at this home.
    Chunk(u64),
    /// The mappings of a view.
    View(u32),
}

impl Arena {
    /// Adds a segment that the device gave whole, and serves the request that it was made for.
    pub(crate) fn add_fixed(&mut self, address: u64, size: u64, request: &Request) -> Allocation {
        let block = self.add_segment(
            address,
            size,
            request.class,
            State::Free,
            SegmentKind::Fixed,
        );
        self.reserved += size;
        self.tally(request.class).gained(size);
        self.hand_out(block, request)
    }

    /// Adds reserved addresses.
    pub(crate) fn add_span(&mut self, address: u64, size: u64, class: Class) {
        let kind = SegmentKind::Span(Span::default());
        let hole = self.add_segment(address, size, class, State::Unmapped, kind);
        let segment = self.blocks[hole].segment;
        if let Some(span) = self.segments[segment].span_mut() {
            span.holes.push(hole);
        }
    }

    /// Adds a segment of one block, which is in no list.
    pub(super) fn add_segment(
        &mut self,
        address: u64,
        size: u64,
        class: Class,
        state: State,
        kind: SegmentKind,
    ) -> u32 {
        let id = self.segments.next_id();
        let first = self.blocks.add(Block::new(address, size, id, class, state));
        let mut starts = Starts::new(class);
        starts.insert(&self.blocks, 0, first);
        self.segments.add(Segment {
            address,
            size,
            class,
            first,
            starts,
            kind,
        });
        self.index.insert(&self.blocks, first);
        first
    }

    /// Plans where the least has to be mapped to get `need` bytes in one piece. With `extend`, this may be behind
    /// a free block that has some of them; the block is then kept from others.
    pub(crate) fn plan(
        &mut self,
        class: Class,
        need: u64,
        granularity: u64,
        extend: bool,
    ) -> Option<Growth> {
        let growth = self.find_room(class, need, granularity, extend)?;
        if growth.head != NONE {
            self.keep(growth.head);
        }
        Some(growth)
    }

    /// The number of bytes that would have to be mapped for a block of `need` bytes behind a free one.
    pub(crate) fn missing(&self, class: Class, need: u64, granularity: u64) -> u64 {
        let growth = self.find_room(class, need, granularity, true);
        growth.map_or(need.next_multiple_of(granularity), |growth| growth.missing)
    }

    /// The decision of [`plan`](Self::plan).
    fn find_room(&self, class: Class, need: u64, granularity: u64, extend: bool) -> Option<Growth> {
        let mut best: Option<Growth> = None;
        for segment in self.segments.ids() {
            let record = &self.segments[segment];
            let Some(span) = record.span().filter(|_| record.class == class) else {
                continue;
            };
            for &hole in &span.holes {
                let room = self.blocks[hole].size;
                let before = self.blocks[hole].before;
                // A free block that has enough is one that must not be split for this.
                let free = before != NONE
                    && self.blocks[before].state == State::Free
                    && self.blocks[before].size < need;
                let head = if extend && free { before } else { NONE };
                let has = if head == NONE {
                    0
                } else {
                    self.blocks[head].size
                };
                let missing = need.saturating_sub(has).next_multiple_of(granularity);
                if missing > room || best.as_ref().is_some_and(|best| best.missing <= missing) {
                    continue;
                }
                best = Some(Growth {
                    segment,
                    hole,
                    head,
                    address: self.blocks[hole].address,
                    missing,
                    room,
                });
            }
        }
        best
    }

    /// Takes a free block out of use.
    pub(super) fn keep(&mut self, id: u32) {
        self.unlist(id);
        let block = &mut self.blocks[id];
        block.state = State::Lent;
        let (class, size) = (block.class, block.size);
        self.tally(class).lost(size);
    }

    /// Reverses [`keep`](Self::keep), and joins the block with its free neighbours.
    pub(super) fn give(&mut self, id: u32) {
        let (class, size) = (self.blocks[id].class, self.blocks[id].size);
        self.tally(class).gained(size);
        self.recycle(id);
    }

    /// Ends a plan for which nothing was mapped.
    pub(crate) fn give_up(&mut self, growth: &Growth) {
        if growth.head != NONE {
            self.give(growth.head);
        }
    }

    /// Ends a plan for which chunks were mapped from the start of the hole on: they serve their request.
    pub(crate) fn grown(
        &mut self,
        growth: &Growth,
        chunks: &[Chunk],
        request: &Request,
    ) -> Allocation {
        let mut id = self.fill(growth, chunks);
        if growth.head != NONE {
            self.join(growth.head, id);
            id = growth.head;
        }
        // The block is not looked up in the lists: joined with its neighbours, it may be a block that
        // is kept whole.
        let found = self.blocks[id].size;
        if (self.config).splits(request, found - request.size, false) {
            let rest = self.split(id, request.size);
            self.give(rest);
        }
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = request.requested;
        let (address, size) = (block.address, block.size);
        let tally = self.tally(request.class);
        tally.gained(size);
        tally.used(size, request.requested);
        Allocation { address, size }
    }

    /// Ends a plan for which chunks were mapped from the start of the hole on: they are lent.
    pub(crate) fn grown_lent(&mut self, growth: &Growth, chunks: &[Chunk]) {
        self.fill(growth, chunks);
    }

    /// Turns the start of a hole into a block that is lent.
    fn fill(&mut self, growth: &Growth, chunks: &[Chunk]) -> u32 {
        let size = chunks.iter().map(|chunk| chunk.size).sum();
        let least = chunks.iter().map(|chunk| chunk.size).min();
        self.least_chunk = self.least_chunk.min(least.unwrap_or(u64::MAX));
        let block = growth.hole;
        let rest = (size < self.blocks[block].size).then(|| self.split(block, size));
        self.blocks[block].state = State::Lent;
        self.reserved += size;
        if let Some(span) = self.segments[growth.segment].span_mut() {
            span.insert(chunks);
            span.holes.retain(|&hole| hole != block);
            span.holes.extend(rest);
        }
        block
    }

    /// Takes idle memory out of use, up to a number of bytes: it leaves when the present work of the stream has
    /// finished. Views of chunks that leave must leave, too. Chunks that are `shown` by views in use (by arena
    /// and home) stay. Also returns the bytes.
    pub(crate) fn leave(
        &mut self,
        most: u64,
        shown: &HashSet<(ArenaId, u64)>,
    ) -> (Vec<Leaving>, u64) {
        let (mut leaving, mut sent) = (Vec::new(), 0);
        let ids: Vec<u32> = self.segments.ids().collect();
        for id in ids {
            let segment = &self.segments[id];
            let first = segment.first;
            let idle = self.blocks[first].is_whole() && self.blocks[first].state == State::Free;
            if matches!(segment.kind, SegmentKind::Fixed) && idle && sent < most {
                sent += segment.size;
                self.keep(first);
                self.blocks[first].state = State::Leaving;
                leaving.push(Leaving::Segment(id));
            }
        }
        for chunk in self.idle_chunks().concat() {
            if sent >= most {
                break;
            }
            if shown.contains(&(self.id, chunk.home)) {
                continue;
            }
            if let Some(block) = self.carve(chunk.home, chunk.size) {
                self.blocks[block].state = State::Leaving;
                sent += chunk.size;
                leaving.push(Leaving::Chunk(chunk.home));
            }
        }
        (leaving, sent)
    }

    /// Forgets a segment that is the device's again.
    pub(crate) fn segment_left(&mut self, id: u32) -> Option<(u64, u64, Class)> {
        let segment = self.segments.remove(id)?;
        self.index.remove(&self.blocks, segment.first);
        self.blocks.remove(segment.first);
        self.reserved -= segment.size;
        Some((segment.address, segment.size, segment.class))
    }

    /// Forgets a chunk that is the device's again. The caller must unmap it at its home.
    pub(crate) fn chunk_left(&mut self, home: u64) -> Option<(Chunk, Class)> {
        let mut block = self.index.get(&self.blocks, home);
        let segment = self.segments.around(home)?;
        let end = home + self.blocks[block].size;
        let span = self.segments[segment].span_mut()?;
        let chunk = span.remove(home, end).pop()?;
        if !self.forget_away(home) {
            self.reserved -= chunk.size;
        }
        self.blocks[block].state = State::Unmapped;
        let (before, after) = (self.blocks[block].before, self.blocks[block].after);
        let mut joined = [NONE; 2];
        if after != NONE && self.blocks[after].state == State::Unmapped {
            joined[0] = after;
            self.join(block, after);
        }
        if before != NONE && self.blocks[before].state == State::Unmapped {
            joined[1] = before;
            self.join(before, block);
            block = before;
        }
        if let Some(span) = self.segments[segment].span_mut() {
            span.holes.retain(|hole| !joined.contains(hole));
            span.holes.push(block);
        }
        Some((chunk, self.blocks[block].class))
    }

    /// Forgets the spans that have no memory. Returns their addresses and sizes.
    pub(crate) fn take_empty_spans(&mut self) -> Vec<(u64, u64)> {
        let empty = |&id: &u32| {
            let span = self.segments[id].span();
            span.is_some_and(|span| span.chunks.is_empty())
        };
        let ids: Vec<u32> = self.segments.ids().filter(empty).collect();
        let taken = ids.into_iter().filter_map(|id| {
            let segment = self.segments.remove(id)?;
            self.index.remove(&self.blocks, segment.first);
            self.blocks.remove(segment.first);
            Some((segment.address, segment.size))
        });
        taken.collect()
    }

    /// An event, without the figures of the device.
    pub(crate) fn event(&self, kind: EventKind, address: u64, size: u64) -> Option<Event> {
        Some(Event {
            kind,
            address,
            size,
            stream: self.owner?.stream,
            allocated_bytes: 0,
            reserved_bytes: 0,
        })
    }
}
