//! The allocator itself: locks, the device, and what to do when memory runs out.
//!
//! Two locks, taken in this order. The *growth* lock is held by whoever asks the device for memory,
//! gives memory back or asks whether fences have passed; the *heap* lock guards the state, is held for
//! some ten nanoseconds, and never over a call of the backend. So an allocation that the cache can
//! serve, and a free, never wait for the device, while two threads that both need a new segment take
//! turns: what one gets or gives back counts for the other. (The lock of the pending queues is a leaf.)
//! Nobody waits for a fence with any of them held.

mod graphs;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::config::Request;
use crate::heap::{Heap, Next, Place, Release};
use crate::pending::{Pending, Use, Waiter};
use crate::{
    AllocError, Allocation, Backend, BlockInfo, Config, Event, EventKind, FreeError, Freed,
    OutOfMemory, Snapshot, Stats, StreamId,
};

/// A caching allocator over a [`Backend`].
///
/// Memory belongs to the stream that it was allocated for: freed while that stream still works on it,
/// it is handed out again at once, to that stream only, whose order keeps old and new use apart.
/// [`record_stream`](Self::record_stream) announces a use on another stream: such memory is reused
/// only after what that stream had been given at the time of [`free`](Self::free) has finished.
///
/// When neither cache nor device can serve a request, these are tried in turn: giving back all idle
/// segments, after a fence behind the work of their streams; a segment that just fits, in place of a
/// roomy one; waiting for all pending frees, and giving back again. Then it is an error.
///
/// A private pool has segments that serve nobody else and are not given back before the pool is
/// released: a graph of work that is run again and again finds its memory as it was. A hold keeps one
/// block out of reuse, whoever frees it: so a graph keeps the memory of others that it uses.
///
/// Dropping the allocator releases all private pools and gives idle segments back as
/// [`empty_cache`](Self::empty_cache) does; memory still in use stays with whoever uses it.
pub struct Allocator<B: Backend> {
    backend: B,
    config: Config,
    growth: Mutex<()>,
    heap: Mutex<Heap>,
    pending: Mutex<Pending<B::Fence>>,
}

impl<B: Backend> Allocator<B> {
    /// An allocator that holds nothing yet.
    pub fn new(backend: B, config: Config) -> Self {
        Self {
            backend,
            heap: Mutex::new(Heap::new(config.clone())),
            config,
            growth: Mutex::new(()),
            pending: Mutex::new(Pending::new()),
        }
    }

    /// The device below.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Allocates at least `size` bytes for work on `stream`. A size of 0 gets the smallest block.
    #[inline]
    pub fn alloc(&self, size: u64, stream: StreamId) -> Result<Allocation, AllocError<B::Error>> {
        let Some(request) = self.config.request(size) else {
            return Err(self.out_of_memory(size, stream));
        };
        let found = self.heap.lock().alloc(&request, stream);
        if let Some(found) = found {
            return Ok(found);
        }
        self.alloc_slow(&request, Place { pool: None, stream })
    }

    /// Takes memory back, at any time: also while work that uses it is pending on its own stream or on
    /// recorded ones.
    #[inline]
    pub fn free(&self, address: u64) -> Result<Freed, FreeError> {
        let mut heap = self.heap.lock();
        match heap.free(address)? {
            Release::Reusable(freed) => Ok(freed),
            Release::Pending(freed, block) => {
                let next = heap.let_go(block);
                drop(heap);
                self.go_on(next);
                Ok(freed)
            }
        }
    }

    /// Announces that `stream` uses the memory at `address`, beside the stream that it was allocated
    /// for: once freed, it is reused only after what `stream` had been given by then has finished. For
    /// memory under a [`hold`](Self::hold), which may have been freed, that is by the end of its last
    /// hold.
    pub fn record_stream(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        self.heap.lock().record(address, stream)
    }

    /// The block around any address, in use or not; `None` if the address is not held from the device.
    pub fn lookup(&self, any_address: u64) -> Option<BlockInfo> {
        self.heap.lock().lookup(any_address)
    }

    /// Waits for pending frees, gives all idle segments back to the device, but for those of private
    /// pools that are not released, and returns how many bytes that were.
    pub fn empty_cache(&self) -> u64 {
        let retired = self.wait_pending().unwrap_or(0);
        retired + self.give_back()
    }

    /// The figures of now.
    pub fn stats(&self) -> Stats {
        self.heap.lock().gauges().stats()
    }

    /// Makes every peak the current value.
    pub fn reset_peak(&self) {
        self.heap.lock().gauges_mut().reset_peak();
    }

    /// Makes every accumulated figure and counter 0.
    pub fn reset_accumulated(&self) {
        self.heap.lock().gauges_mut().reset_accumulated();
    }

    /// Sets the most bytes that may be held from the device; `u64::MAX` is no limit. What is held
    /// already stays; below it, memory is given back as it becomes idle and more is needed.
    pub fn set_limit(&self, bytes: u64) {
        self.heap.lock().set_limit(bytes);
    }

    /// All segments and blocks.
    pub fn snapshot(&self) -> Snapshot {
        self.heap.lock().snapshot()
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(
        &self,
        request: &Request,
        place: Place,
    ) -> Result<Allocation, AllocError<B::Error>> {
        let [roomy, exact] = self.config.segment_sizes(request);
        if let Some(found) = self.grow(request, place, &[roomy])? {
            return Ok(found);
        }
        self.heap.lock().gauges_mut().alloc_retries += 1;
        self.give_back();
        if let Some(found) = self.grow(request, place, &[roomy, exact])? {
            return Ok(found);
        }
        if self.wait_pending().is_some() {
            self.give_back();
            if let Some(found) = self.grow(request, place, &[roomy, exact])? {
                return Ok(found);
            }
        }
        Err(self.out_of_memory(request.requested, place.stream))
    }

    /// Serves a request by memory that has become free meanwhile, or by a new segment of one of these
    /// sizes. `None` if there is not enough memory.
    fn grow(
        &self,
        request: &Request,
        place: Place,
        sizes: &[u64],
    ) -> Result<Option<Allocation>, AllocError<B::Error>> {
        self.poll_and_tell();
        let growth = self.growth.lock();
        for &size in sizes {
            {
                let mut heap = self.heap.lock();
                if let Some(found) = heap.alloc_at(request, place) {
                    return Ok(Some(found));
                }
                if !heap.has_room(size) {
                    continue;
                }
            }
            let address = match self.backend.segment_alloc(size) {
                Ok(address) => address,
                Err(error) if self.backend.is_out_of_memory(&error) => continue,
                Err(error) => return Err(AllocError::Backend(error)),
            };
            let (added, event) = {
                let mut heap = self.heap.lock();
                let added = heap.add_segment(address, size, request, place);
                (
                    added,
                    heap.event(EventKind::SegmentAlloc, address, size, place.stream),
                )
            };
            drop(growth);
            // Memory that cannot be is not given back: it may be another's.
            let found = added.ok_or(AllocError::BadSegment { address, size })?;
            self.backend.observe(&event);
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Does what the heap left to do.
    #[cold]
    fn go_on(&self, next: Next) {
        match next {
            Next::Done => {}
            Next::Wait { block, streams } => self.defer(block, &streams),
            Next::Retire => self.poll_if_free(),
        }
    }

    /// Records fences for a block that was freed.
    fn defer(&self, block: u32, streams: &[StreamId]) {
        for &stream in streams {
            // Without a fence now, `poll` asks for one later.
            let fence = self.backend.fence(stream).ok().map(Arc::new);
            let waiter = Waiter::Block(block);
            self.pending.lock().push(stream, Use { waiter, fence });
        }
        // Frees like this one pay for each other, so that pending blocks do not pile up while the
        // cache serves all requests.
        self.poll_if_free();
    }

    fn poll_if_free(&self) {
        if let Some(growth) = self.growth.try_lock() {
            let events = self.poll(&growth);
            drop(growth);
            self.tell(&events);
        }
    }

    /// [`poll`](Self::poll), telling observers. Returns how many bytes were given back.
    fn poll_and_tell(&self) -> u64 {
        let events = self.poll(&self.growth.lock());
        self.tell(&events);
        events.iter().map(|event| event.size).sum()
    }

    /// Makes the blocks reusable whose fences have passed, and gives the segments of released pools
    /// back whose fences have. The growth lock keeps others from taking uses out of the queues
    /// meanwhile: what is first stays first.
    fn poll(&self, _growth: &MutexGuard<'_, ()>) -> Vec<Event> {
        let mut events = Vec::new();
        let mut again = true;
        while again {
            again = false;
            let unfenced = self.pending.lock().unfenced();
            for (stream, count) in unfenced {
                // Only uses that were there before are behind this fence.
                if let Ok(fence) = self.backend.fence(stream) {
                    self.pending
                        .lock()
                        .set_fence(stream, count, &Arc::new(fence));
                }
            }
            self.fence_retired();
            let streams = self.pending.lock().streams();
            for stream in streams {
                loop {
                    let fence = self.pending.lock().first_fence(stream);
                    if !fence.is_some_and(|fence| self.backend.fence_done(&fence)) {
                        break;
                    }
                    let entry = self.pending.lock().pop(stream);
                    match entry.map(|entry| entry.waiter) {
                        None => {}
                        // The last block of a segment may retire it, whose fence may be done, too.
                        Some(Waiter::Block(block)) => again |= self.heap.lock().pass(block),
                        Some(Waiter::Segment(segment)) => {
                            let event = self.heap.lock().remove_segment(segment);
                            self.backend.segment_free(event.address);
                            events.push(event);
                        }
                    }
                }
            }
        }
        events
    }

    /// Queues the retired segments behind fences, one for all of a stream.
    fn fence_retired(&self) {
        let retired = self.heap.lock().take_retired();
        for segments in retired.chunk_by(|a, b| a.0 == b.0) {
            let stream = segments[0].0;
            let fence = self.backend.fence(stream).ok().map(Arc::new);
            let mut pending = self.pending.lock();
            for &(_, segment) in segments {
                let entry = Use {
                    waiter: Waiter::Segment(segment),
                    fence: fence.clone(),
                };
                pending.push(stream, entry);
            }
        }
    }

    /// Waits until all blocks that are pending now are reusable, and all retired segments are given
    /// back, but for those behind fences that cannot be waited for. Returns how many bytes were given
    /// back, or `None` if there was nothing to wait for.
    fn wait_pending(&self) -> Option<u64> {
        let retired = self.heap.lock().has_retired();
        if !retired && self.pending.lock().is_empty() {
            return None;
        }
        self.heap.lock().gauges_mut().sync_all_streams += 1;
        // This also records the fences that could not be recorded before.
        let mut bytes = self.poll_and_tell();
        // Twice: blocks that have passed may retire their segment, which waits for a fence of its own.
        for _ in 0..2 {
            let fences = self.pending.lock().fences();
            self.wait_for(&fences);
            bytes += self.poll_and_tell();
        }
        Some(bytes)
    }

    /// Gives back what was retired, after a fence, if anything was.
    fn give_back_retired(&self, next: Next) {
        if !matches!(next, Next::Retire) {
            return;
        }
        self.poll_and_tell();
        let fences = self.pending.lock().segment_fences();
        if !fences.is_empty() {
            self.wait_for(&fences);
            self.poll_and_tell();
        }
    }

    fn wait_for(&self, fences: &[Arc<B::Fence>]) {
        for fence in fences {
            if self.backend.fence_may_wait(fence) {
                self.backend.fence_wait(fence);
            }
        }
    }

    fn tell(&self, events: &[Event]) {
        for event in events {
            self.backend.observe(event);
        }
    }

    /// Gives all segments back that are idle now and stay so until the work of their streams has
    /// finished. Returns how many bytes that were.
    fn give_back(&self) -> u64 {
        let (time, mut streams) = self.heap.lock().idle_streams();
        let fences: Vec<_> = streams
            .iter()
            .map(|&stream| {
                let fence = self.backend.fence(stream).ok();
                fence.filter(|fence| self.backend.fence_may_wait(fence))
            })
            .collect();
        for fence in fences.iter().flatten() {
            self.backend.fence_wait(fence);
        }
        // Without a fence it is unknown whether a stream still touches its memory.
        let mut fences = fences.iter();
        streams.retain(|_| fences.next().is_some_and(Option::is_some));
        let events = {
            let _growth = self.growth.lock();
            let events = self.heap.lock().take_idle(time, &streams);
            for event in &events {
                self.backend.segment_free(event.address);
            }
            events
        };
        self.tell(&events);
        events.iter().map(|event| event.size).sum()
    }

    #[cold]
    fn out_of_memory(&self, requested: u64, stream: StreamId) -> AllocError<B::Error> {
        let device = self.backend.memory_info();
        let (error, event) = {
            let mut heap = self.heap.lock();
            heap.gauges_mut().ooms += 1;
            let gauges = heap.gauges();
            let reserved = gauges.reserved.bytes.current();
            let error = OutOfMemory {
                requested,
                reserved,
                allocated: gauges.allocated.bytes.current(),
                free: reserved - gauges.active.bytes.current(),
                largest_free_block: heap.largest_free_block(),
                limit: heap.limit(),
                device,
            };
            (
                error,
                heap.event(EventKind::OutOfMemory, 0, requested, stream),
            )
        };
        self.backend.observe(&event);
        AllocError::OutOfMemory(Box::new(error))
    }
}

impl<B: Backend> Drop for Allocator<B> {
    fn drop(&mut self) {
        self.heap.get_mut().release_all_pools();
        self.empty_cache();
    }
}
