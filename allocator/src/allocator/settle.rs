//! Lets things go on whose fences have passed: blocks that are pending, chunks that return home, and
//! memory that goes back to the device.

use std::collections::HashSet;
use std::sync::Arc;

use outrigger_locks::MutexGuard;

use super::Allocator;
use crate::arena::{Leaving, Next};
use crate::arenas::ArenaId;
use crate::pending::{Use, Waiter};
use crate::segment::{Piece, homes};
use crate::{Backend, Event, EventKind, HistoryKind, Recorded, StreamId};

impl<B: Backend> Allocator<B> {
    /// Records fences for a block that was freed, and that its owner gets again.
    pub(super) fn defer(&self, block: Waiter, streams: &[StreamId], owner: Option<StreamId>) {
        for &stream in streams {
            let fence = match owner {
                Some(owner) => self.backend.fence_before(owner, stream),
                None => self.backend.fence(stream),
            };
            self.push(stream, &[block], fence.ok());
        }
        // Frees like this one pay for each other, so that pending blocks do not pile up while the
        // cache serves all requests.
        self.poll_if_free();
    }

    /// Queues waiters behind all work that a stream has been given.
    fn wait_for_stream(&self, stream: StreamId, waiters: &[Waiter]) {
        if waiters.is_empty() {
            return;
        }
        self.push(stream, waiters, self.backend.fence(stream).ok());
    }

    /// Queues waiters behind a fence of a stream. Without one, `poll` asks for one later.
    fn push(&self, stream: StreamId, waiters: &[Waiter], fence: Option<B::Fence>) {
        let fence = fence.map(Arc::new);
        let mut pending = self.pending.lock();
        for &waiter in waiters {
            let fence = fence.clone();
            pending.push(stream, Use::new(waiter, fence));
        }
    }

    pub(super) fn poll_if_free(&self) {
        if let Some(growth) = self.growth.try_lock() {
            let events = self.poll(&growth);
            drop(growth);
            self.tell(&events);
        }
    }

    /// [`poll`](Self::poll), telling observers. Returns how many bytes were given back.
    pub(super) fn poll_and_tell(&self) -> u64 {
        let events = self.poll(&self.growth.lock());
        self.tell(&events);
        events.iter().map(|event| event.size).sum()
    }

    /// Continues what waits for fences that have passed: blocks become reusable, chunks are home, and
    /// memory goes back to the device. The growth lock keeps other threads from taking uses out of the
    /// queues meanwhile, so that the first use stays the first.
    pub(super) fn poll(&self, growth: &MutexGuard<'_, ()>) -> Vec<Event> {
        let mut events = Vec::new();
        if self.pending.lock().is_empty() {
            return events;
        }
        let mut again = true;
        while again {
            again = false;
            let leaving = self.pending.lock().take_leaving();
            let shown = if leaving.is_empty() {
                HashSet::new()
            } else {
                self.settle_and_show(growth)
            };
            for arena in leaving {
                // The memory of the arena may have left since, and the arena with it.
                if self.arenas.find(arena).is_none() {
                    continue;
                }
                let lent = self.has_lent(arena);
                let sent = self.send_idle(growth, arena, u64::MAX, &shown);
                if lent && sent > 0 {
                    self.send_all_views(growth);
                }
                self.forget_if_empty(arena);
            }
            let unfenced = self.pending.lock().unfenced();
            for (stream, count) in unfenced {
                // Only uses that were there before are behind this fence.
                if let Ok(fence) = self.backend.fence(stream).map(Arc::new) {
                    self.pending.lock().set_fence(stream, count, &fence);
                }
            }
            let streams = self.pending.lock().streams();
            for stream in streams {
                while let Some(waiter) = self.next_passed(stream) {
                    match waiter {
                        Waiter::Block { arena, block } => {
                            let mut waiting = self.arenas.lock(arena);
                            let next = waiting.pass(block);
                            self.record_completed(&waiting, block);
                            drop(waiting);
                            if next == Next::Leave {
                                // Memory that leaves waits for a fence of its own, which may be done,
                                // too.
                                self.pending.lock().leave(arena);
                                again = true;
                            }
                        }
                        Waiter::Home { arena, home, size } => {
                            let mut waiting = self.arenas.lock(arena);
                            waiting.come_home(home, size);
                            let closed = waiting.closed;
                            drop(waiting);
                            if closed {
                                self.pending.lock().leave(arena);
                                again = true;
                            }
                        }
                        Waiter::Leaving(arena, leaving) => {
                            events.extend(self.left(arena, leaving));
                        }
                    }
                }
            }
        }
        events
    }

    /// Takes what waits for a stream, and whose fence has passed, out of its queue.
    fn next_passed(&self, stream: StreamId) -> Option<Waiter> {
        let first = self.pending.lock().first_fence(stream)?;
        if self.backend.fence_done(&first) {
            let entry = self.pending.lock().pop(stream);
            return entry.map(|entry| entry.waiter);
        }
        if self.backend.fence_may_wait(&first) {
            return None;
        }
        // Recorded work has an order of its own for each stream that gets memory, so the first fence of
        // each arena is asked.
        let fences = self.pending.lock().fences_of_blocks(stream);
        let passed = fences.iter().find(|fence| self.backend.fence_done(fence))?;
        self.pending.lock().take(stream, passed)
    }

    /// Gives memory to the device that nobody uses any more.
    fn left(&self, id: ArenaId, leaving: Leaving) -> Option<Event> {
        let (event, class) = match leaving {
            Leaving::Segment(segment) => {
                let mut arena = self.arenas.lock(id);
                let (address, size, class) = arena.segment_left(segment)?;
                let event = arena.event(EventKind::SegmentFree, address, size)?;
                drop(arena);
                self.arenas.remove_route(address);
                self.backend.segment_free(address);
                (event, class)
            }
            Leaving::Chunk(home) => {
                let mut arena = self.arenas.lock(id);
                let away = arena.is_away(home);
                let (chunk, class) = arena.chunk_left(home)?;
                let event = arena.event(EventKind::SegmentFree, home, chunk.size)?;
                let spans = arena.take_empty_spans();
                drop(arena);
                if away {
                    self.release_spans(&spans);
                    self.forget_if_empty(id);
                    return None;
                }
                let memory = self.memory()?;
                memory.unmap(home, chunk.size);
                memory.destroy(chunk.physical);
                self.release_spans(&spans);
                self.ledger.lock().counts.unmaps += 1;
                (event, class)
            }
            Leaving::View(view) => {
                let (address, size) = self.arenas.lock(id).view_left(view)?;
                self.arenas.remove_route(address);
                let memory = self.memory()?;
                memory.unmap(address, size);
                memory.release(address, size);
                self.ledger.lock().counts.unmaps += 1;
                self.forget_if_empty(id);
                return None;
            }
        };
        self.ledger.lock().release(class, event.size);
        self.forget_if_empty(id);
        Some(self.with_figures(event))
    }

    /// Adds the current figures to an event, and records it.
    pub(super) fn with_figures(&self, event: Event) -> Event {
        if self.history.is_on() {
            let kind = match (event.kind, self.memory().is_some()) {
                (EventKind::SegmentAlloc, false) => HistoryKind::SegmentAlloc,
                (EventKind::SegmentAlloc, true) => HistoryKind::SegmentMap,
                (EventKind::SegmentFree, false) => HistoryKind::SegmentFree,
                (EventKind::SegmentFree, true) => HistoryKind::SegmentUnmap,
                (EventKind::OutOfMemory, _) => HistoryKind::OutOfMemory,
            };
            let segment = Recorded {
                address: event.address,
                size: event.size,
                requested: event.size,
                stream: event.stream,
                pool: None,
            };
            self.history.segment(kind, &segment);
        }
        let mut ledger = self.ledger.lock();
        ledger.take_over(&self.sums());
        Event {
            allocated_bytes: ledger.allocated(),
            reserved_bytes: ledger.reserved(),
            ..event
        }
    }

    /// Joins the free blocks of all arenas. Returns the chunks that views in use have mapped, by arena
    /// and home: giving these up would not return memory to the device. While the growth lock is held,
    /// no chunk is added.
    pub(super) fn settle_and_show(&self, _: &MutexGuard<'_, ()>) -> HashSet<(ArenaId, u64)> {
        let mut shown = HashSet::new();
        for mut arena in self.arenas.all() {
            arena.settle_all();
            shown.extend(arena.shown());
        }
        shown
    }

    /// Sends idle memory of an arena to the device, up to a number of bytes, except chunks that are
    /// `shown`. Returns how many bytes it sent. If it sent any, the views of the arena must go too. The
    /// growth lock keeps leaving chunks out of new views.
    pub(super) fn send_idle(
        &self,
        _: &MutexGuard<'_, ()>,
        id: ArenaId,
        bytes: u64,
        shown: &HashSet<(ArenaId, u64)>,
    ) -> u64 {
        let mut arena = self.arenas.lock(id);
        let Some(owner) = arena.owner else {
            return 0;
        };
        let (leaving, sent) = arena.leave(bytes, shown);
        // Addresses for which the device had no memory.
        let spans = arena.take_empty_spans();
        drop(arena);
        self.send_off(owner.stream, id, leaving);
        if !spans.is_empty() {
            self.release_spans(&spans);
            self.forget_if_empty(id);
        }
        sent
    }

    /// Gives addresses back into which nothing is mapped.
    fn release_spans(&self, spans: &[(u64, u64)]) {
        let Some(memory) = self.memory() else { return };
        for &(address, size) in spans {
            self.arenas.remove_route(address);
            memory.release(address, size);
        }
    }

    /// Sends all unused views off: memory that is still mapped somewhere does not go back to the device.
    pub(super) fn send_all_views(&self, growth: &MutexGuard<'_, ()>) {
        for id in self.arenas.ids() {
            self.send_views(growth, id, 0);
        }
    }

    /// Sends unused views of an arena off, until all its views have at most `most` places.
    pub(super) fn send_views(&self, _: &MutexGuard<'_, ()>, id: ArenaId, most: usize) {
        let mut arena = self.arenas.lock(id);
        let Some(owner) = arena.owner else {
            return;
        };
        let views = arena.take_unused_views(most);
        drop(arena);
        let views = views.into_iter().map(Leaving::View).collect();
        self.send_off(owner.stream, id, views);
    }

    fn send_off(&self, stream: StreamId, id: ArenaId, leaving: Vec<Leaving>) {
        let waiters = leaving.into_iter();
        let waiters: Vec<Waiter> = waiters
            .map(|leaving| Waiter::Leaving(id, leaving))
            .collect();
        self.wait_for_stream(stream, &waiters);
    }

    /// Sends chunks home that views of a stream have shown, behind the work of this stream.
    pub(super) fn send_home(&self, stream: StreamId, pieces: &[Piece]) {
        let home = |(arena, home, size)| Waiter::Home { arena, home, size };
        let waiters: Vec<Waiter> = homes(pieces).map(home).collect();
        self.wait_for_stream(stream, &waiters);
    }

    /// Waits until all that is pending now is reusable or given back, except what is behind fences that
    /// cannot be waited for. Returns how many bytes it gave back; `None` if nothing was pending.
    pub(super) fn wait_pending(&self) -> Option<u64> {
        if self.pending.lock().is_empty() {
            return None;
        }
        self.ledger.lock().counts.sync_all_streams += 1;
        // The poll also records the fences that could not be recorded before.
        let mut bytes = self.poll_and_tell();
        // Twice: blocks that have passed may let memory leave, which waits for a fence of its own.
        for _ in 0..2 {
            let fences = self.pending.lock().fences();
            self.wait_for(&fences);
            bytes += self.poll_and_tell();
        }
        Some(bytes)
    }

    /// Waits for memory that leaves for the device. Returns how many bytes the device got.
    pub(super) fn wait_leaving(&self) -> u64 {
        let bytes = self.poll_and_tell();
        let fences = self.pending.lock().leaving_fences();
        if fences.is_empty() {
            return bytes;
        }
        self.wait_for(&fences);
        bytes + self.poll_and_tell()
    }

    fn wait_for(&self, fences: &[Arc<B::Fence>]) {
        for fence in fences {
            if self.backend.fence_done(fence) || !self.backend.fence_may_wait(fence) {
                continue;
            }
            // A fence that could not be waited for is not done when it is asked next.
            let _ = self.backend.fence_wait(fence);
            self.ledger.lock().counts.host_waits += 1;
        }
    }

    pub(super) fn tell(&self, events: &[Event]) {
        for event in events {
            self.backend.observe(event);
        }
    }
}
