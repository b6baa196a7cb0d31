//! Memory that is away: its blocks and addresses stay as they are, but its chunks belong to the device
//! or to another arena.
//!
//! An arena that sleeps must never hand out a block. Frees still work: they are arithmetic. In an arena
//! that is awake, the block of a chunk that is away counts as lent.

use super::Arena;
use crate::Physical;
use crate::block::{NONE, State};
use crate::config::Class;
use crate::segment::{Chunk, SegmentKind};

impl Arena {
    /// Whether all of its memory could be given away: it is mapped chunk by chunk, at home.
    pub(crate) fn can_sleep(&self) -> bool {
        let mut kinds = self.segments.ids().map(|id| &self.segments[id].kind);
        kinds.all(|kind| matches!(kind, SegmentKind::Span(_)))
    }

    /// Whether the memory of the arena sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Puts it to sleep, or wakes it.
    pub(crate) fn set_asleep(&mut self, asleep: bool) {
        self.asleep = asleep;
    }

    /// The addresses in use, with their bytes. Neighbours are joined.
    pub(crate) fn in_use(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for id in self.segments.ids() {
            let first = Some(self.segments[id].first);
            let blocks = std::iter::successors(first, |&id| {
                Some(self.blocks[id].after).filter(|&after| after != NONE)
            });
            for block in blocks.map(|id| &self.blocks[id]) {
                if !matches!(block.state, State::Allocated | State::Pending) {
                    continue;
                }
                match runs.last_mut() {
                    Some((address, size)) if *address + *size == block.address => {
                        *size += block.size;
                    }
                    _ => runs.push((block.address, block.size)),
                }
            }
        }
        runs
    }

    /// The chunks that have memory, or those that have none, with their classes.
    pub(crate) fn chunks_away(&self, away: bool) -> Vec<(Chunk, Class)> {
        let spans = self.segments.ids().filter_map(|id| {
            let segment = &self.segments[id];
            Some((segment.span()?, segment.class))
        });
        let chunks = spans.flat_map(|(span, class)| span.chunks.iter().map(move |it| (*it, class)));
        chunks
            .filter(|(chunk, _)| self.is_away(chunk.home) == away)
            .collect()
    }

    /// Notes that a chunk has no memory any more.
    pub(crate) fn went_away(&mut self, chunk: &Chunk) {
        if self.away.insert(chunk.home) {
            self.reserved -= chunk.size;
        }
        if self.is_lent(chunk.home) {
            self.part_lent(chunk.home, chunk.size);
        }
    }

    /// Notes that a chunk has memory again, which is mapped at its home. If it was lent, it is free
    /// now.
    pub(crate) fn came_back(&mut self, chunk: &Chunk, physical: Physical) {
        if !self.forget_away(chunk.home) {
            return;
        }
        self.reserved += chunk.size;
        let segment = self.segments.around(chunk.home);
        let span = segment.and_then(|id| self.segments[id].span_mut());
        let found = span.and_then(|span| {
            let mut chunks = span.chunks.iter_mut();
            chunks.find(|other| other.home == chunk.home)
        });
        if let Some(found) = found {
            found.physical = physical;
        }
        if self.is_lent(chunk.home) {
            self.come_home(chunk.home, chunk.size);
        }
    }

    /// The number of chunks that are away.
    pub(super) fn count_away(&self) -> u64 {
        self.away.len() as u64
    }

    /// Whether the chunk at a home is away.
    pub(crate) fn is_away(&self, home: u64) -> bool {
        self.away.contains(&home)
    }

    /// Notes that the chunk at a home is gone, or is no longer away. Returns whether it was away.
    pub(super) fn forget_away(&mut self, home: u64) -> bool {
        self.away.remove(&home)
    }
}
