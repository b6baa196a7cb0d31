//! Freed blocks that wait for streams, in a queue per stream.
//!
//! A stream's fences pass in the order in which they were recorded, so that only the first of a queue
//! is asked. This is bookkeeping alone: it must never call the device, and never waits.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::StreamId;

/// A block that waits for one stream.
pub(crate) struct Use<F> {
    /// The block's id in the heap.
    pub(crate) block: u32,
    /// Behind the last work that may touch it. `None` if the device could not record one: a later one
    /// does as well.
    pub(crate) fence: Option<Arc<F>>,
}

/// The queues. A stream without a pending block has none, since streams come and go.
pub(crate) struct Pending<F> {
    queues: Vec<(StreamId, VecDeque<Use<F>>)>,
}

impl<F> Pending<F> {
    pub(crate) fn new() -> Self {
        Self { queues: Vec::new() }
    }

    pub(crate) fn push(&mut self, stream: StreamId, entry: Use<F>) {
        match self.queues.iter_mut().find(|(other, _)| *other == stream) {
            Some((_, queue)) => queue.push_back(entry),
            None => self.queues.push((stream, VecDeque::from([entry]))),
        }
    }

    /// The streams that blocks wait for.
    pub(crate) fn streams(&self) -> Vec<StreamId> {
        self.queues.iter().map(|&(stream, _)| stream).collect()
    }

    /// The first use of a stream's queue.
    pub(crate) fn first(&mut self, stream: StreamId) -> Option<&mut Use<F>> {
        let (_, queue) = self.queues.iter_mut().find(|(other, _)| *other == stream)?;
        queue.front_mut()
    }

    /// Takes the first use out of a stream's queue.
    pub(crate) fn pop(&mut self, stream: StreamId) -> Option<Use<F>> {
        let place = self.queues.iter().position(|(other, _)| *other == stream)?;
        let queue = &mut self.queues[place].1;
        let entry = queue.pop_front();
        if queue.is_empty() {
            self.queues.swap_remove(place);
        }
        entry
    }

    /// All fences, to wait for.
    pub(crate) fn fences(&self) -> Vec<Arc<F>> {
        let uses = self.queues.iter().flat_map(|(_, queue)| queue);
        uses.filter_map(|entry| entry.fence.clone()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}
