//! Freed blocks, and segments of released pools, that wait for streams, in a queue per stream.
//!
//! A stream's fences pass in the order in which they were recorded, so that only the first of a queue
//! is asked. This is bookkeeping alone: it must never call the device, and never waits.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::StreamId;

/// What waits, by its id in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A freed block, to be used again.
    Block(u32),
    /// An idle segment, to be given back to the device.
    Segment(u32),
}

/// A waiter for one stream.
pub(crate) struct Use<F> {
    pub(crate) waiter: Waiter,
    /// Behind the last work that may touch it. `None` if the device could not record one: a later one
    /// does as well.
    pub(crate) fence: Option<Arc<F>>,
}

struct Queue<F> {
    stream: StreamId,
    uses: VecDeque<Use<F>>,
    unfenced: usize, // uses without a fence
}

/// The queues. A stream that nothing waits for has none, since streams come and go.
pub(crate) struct Pending<F> {
    queues: Vec<Queue<F>>,
}

impl<F> Pending<F> {
    pub(crate) fn new() -> Self {
        Self { queues: Vec::new() }
    }

    pub(crate) fn push(&mut self, stream: StreamId, entry: Use<F>) {
        let place = self.place(stream).unwrap_or_else(|| {
            self.queues.push(Queue {
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

    /// All fences, to wait for.
    pub(crate) fn fences(&self) -> Vec<Arc<F>> {
        self.fences_of(|_| true)
    }

    /// The fences that segments wait for.
    pub(crate) fn segment_fences(&self) -> Vec<Arc<F>> {
        self.fences_of(|waiter| matches!(waiter, Waiter::Segment(_)))
    }

    fn fences_of(&self, counts: impl Fn(Waiter) -> bool) -> Vec<Arc<F>> {
        let uses = self.queues.iter().flat_map(|queue| &queue.uses);
        uses.filter(|entry| counts(entry.waiter))
            .filter_map(|entry| entry.fence.clone())
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    fn place(&self, stream: StreamId) -> Option<usize> {
        self.queues.iter().position(|queue| queue.stream == stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_fence_serves_only_uses_that_it_is_behind() {
        let stream = StreamId(3);
        let mut pending = Pending::new();
        pending.push(
            stream,
            Use {
                waiter: Waiter::Block(0),
                fence: None,
            },
        );
        pending.push(
            stream,
            Use {
                waiter: Waiter::Block(1),
                fence: Some(Arc::new('a')),
            },
        );
        pending.push(
            stream,
            Use {
                waiter: Waiter::Block(2),
                fence: None,
            },
        );
        assert_eq!(pending.unfenced(), [(stream, 3)]);
        pending.push(
            stream,
            Use {
                waiter: Waiter::Block(3),
                fence: None,
            },
        ); // after the fence below was recorded
        pending.set_fence(stream, 3, &Arc::new('b'));
        assert_eq!(pending.unfenced(), [(stream, 4)]);
        let uses: Vec<_> = std::iter::from_fn(|| pending.pop(stream))
            .map(|entry| (entry.waiter, entry.fence.as_deref().copied()))
            .collect();
        assert_eq!(
            uses,
            [
                (Waiter::Block(0), Some('b')),
                (Waiter::Block(1), Some('a')),
                (Waiter::Block(2), Some('b')),
                (Waiter::Block(3), None)
            ]
        );
        assert!(pending.is_empty());
    }
}
