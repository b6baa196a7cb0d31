//! Things that wait for streams, in one queue per stream: freed blocks, chunks that return home, and
//! memory that leaves for the device.
//!
//! The fences of a stream pass in the order in which they were recorded, so only the first of a queue
//! is asked, except where a stream records its work. This is bookkeeping only: it must never call the device, and never wait.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::StreamId;
use crate::arena::Leaving;
use crate::arenas::ArenaId;

/// A thing that waits for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A freed block of an arena, to be used again.
    Block {
        /// The arena of the block.
        arena: ArenaId,
        /// The number of the block within the arena.
        block: u32,
    },
    /// Chunks that a view has shown, and that become free at home, where they follow each other.
    Home {
        /// The arena that owns the chunks.
        arena: ArenaId,
        /// The home address of the first chunk.
        home: u64,
        /// The bytes of all chunks.
        size: u64,
    },
    /// Memory that an arena gives back to the device.
    Leaving(ArenaId, Leaving),
}

/// A waiter for one stream.
pub(crate) struct Use<F> {
    pub(crate) waiter: Waiter,
    /// A fence behind the last work that may touch it. `None` if the device could not record one; a
    /// later fence serves as well.
    pub(crate) fence: Option<Arc<F>>,
    /// Whether the fence is such a later one. Later uses in the queue may have earlier fences.
    late: bool,
}

impl<F> Use<F> {
    pub(crate) fn new(waiter: Waiter, fence: Option<Arc<F>>) -> Self {
        let late = false;
        Self {
            waiter,
            fence,
            late,
        }
    }
}

/// The queue of one stream: all that waits for it, in order.
struct StreamQueue<F> {
    stream: StreamId,
    uses: VecDeque<Use<F>>,
    unfenced: usize, // uses without a fence
}

/// The queues. A stream for which nothing waits has none, because streams come and go.
pub(crate) struct Pending<F> {
    queues: Vec<StreamQueue<F>>,
    leaving: Vec<ArenaId>, // arenas of released pools with idle memory
}

impl<F> Pending<F> {
    pub(crate) fn new() -> Self {
        Self {
            queues: Vec::new(),
            leaving: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, stream: StreamId, entry: Use<F>) {
        let place = self.place(stream).unwrap_or_else(|| {
            self.queues.push(StreamQueue {
                stream,
                uses: VecDeque::new(),
                unfenced: 0,
            });
            self.queues.len() - 1
        });
        let queue = &mut self.queues[place];
        queue.unfenced += usize::from(entry.fence.is_none());
        queue.uses.push_back(entry);
    }

    /// The streams that are waited for.
    pub(crate) fn streams(&self) -> Vec<StreamId> {
        self.queues.iter().map(|queue| queue.stream).collect()
    }

    /// The streams that have uses without a fence, and how many uses are in their queues.
    pub(crate) fn unfenced(&self) -> Vec<(StreamId, usize)> {
        let queues = self.queues.iter().filter(|queue| queue.unfenced > 0);
        queues
            .map(|queue| (queue.stream, queue.uses.len()))
            .collect()
    }

    /// Gives a fence to those of the first `count` uses of a stream that have none.
    pub(crate) fn set_fence(&mut self, stream: StreamId, count: usize, fence: &Arc<F>) {
        let Some(place) = self.place(stream) else {
            return;
        };
        let queue = &mut self.queues[place];
        for entry in queue
            .uses
            .iter_mut()
            .take(count)
            .filter(|entry| entry.fence.is_none())
        {
            entry.fence = Some(Arc::clone(fence));
            entry.late = true;
            queue.unfenced -= 1;
        }
    }

    /// The fence of the first use in a stream's queue.
    pub(crate) fn first_fence(&self, stream: StreamId) -> Option<Arc<F>> {
        self.queues[self.place(stream)?].uses.front()?.fence.clone()
    }

    /// Takes the first use out of a stream's queue.
    pub(crate) fn pop(&mut self, stream: StreamId) -> Option<Use<F>> {
        let place = self.place(stream)?;
        let queue = &mut self.queues[place];
        let entry = queue.uses.pop_front()?;
        queue.unfenced -= usize::from(entry.fence.is_none());
        if queue.uses.is_empty() {
            self.queues.swap_remove(place);
        }
        Some(entry)
    }

    /// For each arena whose blocks wait for a stream, the fence of the first one.
    pub(crate) fn fences_of_blocks(&self, stream: StreamId) -> Vec<Arc<F>> {
        let mut arenas = Vec::new();
        let uses = self.place(stream).map(|place| &self.queues[place].uses);
        let first = uses.into_iter().flatten().filter(|entry| {
            let Waiter::Block { arena, .. } = entry.waiter else {
                return false;
            };
            let is_first = !arenas.contains(&arena);
            if is_first {
                arenas.push(arena);
            }
            is_first
        });
        first.filter_map(|entry| entry.fence.clone()).collect()
    }

    /// Takes the first use with a fence out of a stream's queue.
    pub(crate) fn take(&mut self, stream: StreamId, fence: &Arc<F>) -> Option<Waiter> {
        let place = self.place(stream)?;
        let queue = &mut self.queues[place];
        let is_it = |entry: &Use<F>| {
            let its = entry.fence.as_ref();
            its.is_some_and(|its| Arc::ptr_eq(its, fence))
        };
        let index = queue.uses.iter().position(is_it)?;
        let entry = queue.uses.remove(index)?;
        if queue.uses.is_empty() {
            self.queues.swap_remove(place);
        }
        Some(entry.waiter)
    }

    /// All fences, to wait for.
    pub(crate) fn fences(&self) -> Vec<Arc<F>> {
        self.fences_of(|_| true)
    }

    /// The fences for which leaving memory waits.
    pub(crate) fn leaving_fences(&self) -> Vec<Arc<F>> {
        self.fences_of(|waiter| matches!(waiter, Waiter::Leaving(..)))
    }

    /// The chunks of arenas that are on their way home: arena, home and bytes, and the stream for which
    /// they wait.
    pub(crate) fn homes(&self, arenas: &[ArenaId]) -> Vec<((ArenaId, u64, u64), StreamId)> {
        let uses = self.queues.iter().flat_map(|queue| {
            let stream = queue.stream;
            queue.uses.iter().map(move |entry| (entry.waiter, stream))
        });
        let homes = uses.filter_map(|(waiter, stream)| match waiter {
            Waiter::Home { arena, home, size } if arenas.contains(&arena) => {
                Some(((arena, home, size), stream))
            }
            _ => None,
        });
        homes.collect()
    }

    /// Notes that a waiting chunk, alone or among others, has another home now.
    pub(crate) fn rename_home(&mut self, from: (ArenaId, u64), to: (ArenaId, u64), bytes: u64) {
        for queue in &mut self.queues {
            let place = queue.uses.iter().position(|entry| match entry.waiter {
                Waiter::Home { arena, home, size } => {
                    arena == from.0 && (home..home + size).contains(&from.1)
                }
                _ => false,
            });
            let Some(place) = place else { continue };
            let Use {
                waiter: Waiter::Home { arena, home, size },
                ref fence,
                late,
            } = queue.uses[place]
            else {
                return;
            };
            let fence = fence.clone();
            let (behind, end) = (from.1 + bytes, home + size);
            let parts = [
                (arena, home, from.1 - home),
                (to.0, to.1, bytes),
                (arena, behind, end - behind),
            ];
            queue.uses.remove(place);
            queue.unfenced -= usize::from(fence.is_none());
            for (arena, home, size) in parts.into_iter().rev().filter(|part| part.2 > 0) {
                let waiter = Waiter::Home { arena, home, size };
                let fence = fence.clone();
                queue.unfenced += usize::from(fence.is_none());
                queue.uses.insert(
                    place,
                    Use {
                        waiter,
                        fence,
                        late,
                    },
                );
            }
            return;
        }
    }

    /// The fence of the oldest block of an arena that waits behind one, and the stream of this fence.
    /// The block stays in its queue.
    pub(crate) fn oldest_of(&self, arena: ArenaId) -> Option<(StreamId, Arc<F>)> {
        self.queues.iter().find_map(|queue| {
            let mut uses = queue.uses.iter();
            let first = uses.find(
                |entry| matches!(entry.waiter, Waiter::Block { arena: its, .. } if its == arena),
            )?;
            Some((queue.stream, first.fence.clone()?))
        })
    }

    /// Takes the blocks of an arena that wait behind this fence or an earlier one out of a stream's
    /// queue. Also returns their fences, which the caller drops without a lock.
    pub(crate) fn take_behind(
        &mut self,
        stream: StreamId,
        arena: ArenaId,
        fence: &Arc<F>,
    ) -> Vec<(u32, Option<Arc<F>>)> {
        let Some(place) = self.place(stream) else {
            return Vec::new();
        };
        let queue = &mut self.queues[place];
        let is_it = |entry: &Use<F>| {
            let its = entry.fence.as_ref();
            its.is_some_and(|its| Arc::ptr_eq(its, fence))
        };
        let Some(last) = queue.uses.iter().rposition(is_it) else {
            return Vec::new();
        };
        let late = queue.uses[last].late;
        let mut taken = Vec::new();
        let mut at = 0;
        queue.uses.retain_mut(|entry| {
            at += 1;
            let behind = at <= last + 1 && entry.fence.is_some() && (late || !entry.late);
            match entry.waiter {
                Waiter::Block { arena: its, block } if its == arena && behind => {
                    taken.push((block, entry.fence.take()));
                    false
                }
                _ => true,
            }
        });
        if queue.uses.is_empty() {
            self.queues.swap_remove(place);
        }
        taken
    }

    fn fences_of(&self, counts: impl Fn(Waiter) -> bool) -> Vec<Arc<F>> {
        let uses = self.queues.iter().flat_map(|queue| &queue.uses);
        uses.filter(|entry| counts(entry.waiter))
            .filter_map(|entry| entry.fence.clone())
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.leaving.is_empty()
    }

    /// Notes that idle memory of an arena is to leave.
    pub(crate) fn leave(&mut self, arena: ArenaId) {
        if !self.leaving.contains(&arena) {
            self.leaving.push(arena);
        }
    }

    pub(crate) fn take_leaving(&mut self) -> Vec<ArenaId> {
        std::mem::take(&mut self.leaving)
    }

    fn place(&self, stream: StreamId) -> Option<usize> {
        self.queues.iter().position(|queue| queue.stream == stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(block: u32) -> Waiter {
        Waiter::Block {
            arena: ArenaId::at(0),
            block,
        }
    }

    #[test]
    fn a_late_fence_serves_only_uses_that_it_is_behind() {
        let stream = StreamId(3);
        let mut pending = Pending::new();
        pending.push(stream, Use::new(block(0), None));
        pending.push(stream, Use::new(block(1), Some(Arc::new('a'))));
        pending.push(stream, Use::new(block(2), None));
        assert_eq!(pending.unfenced(), [(stream, 3)]);
        pending.push(stream, Use::new(block(3), None)); // after the fence below was recorded
        pending.set_fence(stream, 3, &Arc::new('b'));
        assert_eq!(pending.unfenced(), [(stream, 4)]);
        let uses: Vec<_> = std::iter::from_fn(|| pending.pop(stream))
            .map(|entry| (entry.waiter, entry.fence.as_deref().copied()))
            .collect();
        assert_eq!(
            uses,
            [
                (block(0), Some('b')),
                (block(1), Some('a')),
                (block(2), Some('b')),
                (block(3), None)
            ]
        );
        assert!(pending.is_empty());
    }

    #[test]
    fn what_has_a_later_fence_than_those_behind_it_is_not_taken_with_them() {
        let stream = StreamId(3);
        let mut pending = Pending::new();
        pending.push(stream, Use::new(block(0), None));
        let early = Arc::new('a');
        pending.push(stream, Use::new(block(1), Some(Arc::clone(&early))));
        let late = Arc::new('b');
        pending.set_fence(stream, 2, &late);
        let blocks = |taken: Vec<(u32, _)>| taken.into_iter().map(|(block, _)| block);
        let taken = pending.take_behind(stream, ArenaId::at(0), &early);
        assert_eq!(blocks(taken).collect::<Vec<_>>(), [1]);
        let taken = pending.take_behind(stream, ArenaId::at(0), &late);
        assert_eq!(blocks(taken).collect::<Vec<_>>(), [0]);
        assert!(pending.is_empty());
    }
}
