//! The device as the allocator sees it: memory in segments, and fences on streams.
//!
//! A backend does what it is asked and nothing else. It must never call back into the allocator. It
//! never caches: the allocator above it does.

/// Names a stream. The allocator only compares these numbers; what they mean is the backend's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A source of segments and fences: one device, or pinned host memory.
///
/// No method is called under a lock of the allocator other than the growth lock.
///
/// The following methods are called under the growth lock: [`segment_alloc`](Self::segment_alloc),
/// [`segment_free`](Self::segment_free), [`fence_done`](Self::fence_done),
/// [`fence_may_wait`](Self::fence_may_wait), and sometimes [`fence`](Self::fence) (to repeat one that
/// failed, or for a segment of a released pool). They must not wait for a thread that allocates.
///
/// The following methods are called without any lock: [`fence_wait`](Self::fence_wait), which may wait,
/// [`memory_info`](Self::memory_info) and [`observe`](Self::observe).
pub trait Backend: Send + Sync {
    /// The reason why the device refused.
    type Error: Send;
    /// A point in a stream: done once all work submitted before it has finished.
    type Fence: Send + Sync;

    /// Allocates `size` bytes of device memory, with the alignment of the device, and returns the
    /// address. It may take long: the cache serves other threads meanwhile.
    fn segment_alloc(&self, size: u64) -> Result<u64, Self::Error>;

    /// Gives a segment back. All work on the segment's stream, and on every stream recorded on one of
    /// its blocks, has finished. If the device fails here, it keeps the memory.
    fn segment_free(&self, address: u64);

    /// The device's virtual memory. If it has some, the allocator uses it instead of segments.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Error = Self::Error>> {
        None
    }

    /// Makes later work of a stream wait for a fence, on the device. `false` if it cannot: the
    /// allocator then does not rely on an order.
    fn order(&self, stream: StreamId, fence: &Self::Fence) -> bool {
        let _ = (stream, fence);
        false
    }

    /// Asks others to release memory, because a request of this size cannot be met. Returns whether any
    /// of them released some. The allocator may be used from here.
    fn pressure(&self, needed: u64) -> bool {
        let _ = needed;
        false
    }

    /// Whether an error of [`segment_alloc`](Self::segment_alloc) says that the device has not enough
    /// memory. The allocator then gives back cached memory and tries again.
    fn is_out_of_memory(&self, error: &Self::Error) -> bool;

    /// Records a fence behind all work submitted to `stream` so far. If the stream no longer exists and
    /// its work has finished, or if its order means nothing, the fence has passed already. After an
    /// error the memory that waits for this stream stays unused, and the allocator asks again.
    ///
    /// The fences of a stream are asked in the order in which they were recorded: a fence that does not
    /// pass holds up the memory behind later fences, unless it [cannot be waited for](Self::fence_may_wait).
    fn fence(&self, stream: StreamId) -> Result<Self::Fence, Self::Error>;

    /// As [`fence`](Self::fence), for memory that only later work of the stream `next` gets. It may pass as soon as all that
    /// this stream is given from now on is known to run after the work, whether or not the work has finished.
    fn fence_before(&self, next: StreamId, stream: StreamId) -> Result<Self::Fence, Self::Error> {
        let _ = next;
        self.fence(stream)
    }

    /// As [`fence`](Self::fence), but it can always be waited for: if the stream captures, the fence is
    /// behind the work that was really submitted.
    fn submitted(&self, stream: StreamId) -> Result<Self::Fence, Self::Error> {
        self.fence(stream)
    }

    /// Whether the fence has passed; never waits. A fence of work that failed has passed.
    fn fence_done(&self, fence: &Self::Fence) -> bool;

    /// Whether [`fence_wait`](Self::fence_wait) would return without help of the caller. It answers
    /// false for a fence whose work was not started, as on a stream that captures. The allocator never
    /// waits for such a fence; it asks now and then whether the fence has passed.
    fn fence_may_wait(&self, fence: &Self::Fence) -> bool {
        let _ = fence;
        true
    }

    /// Waits until the fence has passed. Called only if [`fence_may_wait`](Self::fence_may_wait)
    /// answered true.
    ///
    /// # Errors
    /// The device cannot be waited for. The fence may not have passed.
    fn fence_wait(&self, fence: &Self::Fence) -> Result<(), Self::Error>;

    /// Free and total bytes of the device, if it tells them, for the text of an out-of-memory error.
    fn memory_info(&self) -> Option<MemoryInfo> {
        None
    }

    /// Observes an event, on the thread that caused it. The allocator may be used from here.
    fn observe(&self, event: &Event) {
        let _ = event;
    }
}

/// Virtual memory: addresses and physical memory are separate. These calls are made under the same
/// locks as [`Backend::segment_alloc`].
pub trait VirtualMemory {
    /// The reason why the device refused.
    type Error;

    /// Addresses and sizes are multiples of this many bytes, a power of two.
    fn granularity(&self) -> u64;

    /// Bytes of addresses to reserve for one stream. They are more than the device has memory, so that
    /// they always suffice.
    fn address_space(&self) -> u64;

    /// Reserves a range of addresses without memory.
    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, Self::Error>;

    /// Gives reserved addresses back. Nothing is mapped there.
    fn release(&self, address: u64, size: u64);

    /// Makes a piece of physical memory.
    fn create(&self, size: u64) -> Result<Physical, Self::Error>;

    /// Gives physical memory up. It goes back to the device when it is mapped nowhere.
    fn destroy(&self, physical: Physical);

    /// Maps whole pieces of physical memory one after another, from a reserved address on: all of them
    /// or none. They may also be mapped elsewhere.
    fn map(&self, address: u64, pieces: &[Physical]) -> Result<(), Self::Error>;

    /// Unmaps a range that starts and ends where pieces do. All work that uses it has finished.
    fn unmap(&self, address: u64, size: u64);

    /// As [`unmap`](Self::unmap), but returns an error if the device refused; everything is then mapped
    /// as before. A device that never refuses needs only this default.
    fn try_unmap(&self, address: u64, size: u64) -> Result<(), Self::Error> {
        self.unmap(address, size);
        Ok(())
    }
}

/// A piece of physical memory, by the number that the backend gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Physical(pub u64);

/// Free and total bytes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// The bytes that nobody holds.
    pub free: u64,
    /// The bytes of the device in all.
    pub total: u64,
}

/// The kind of an event between allocator and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment was given back to the device.
    SegmentFree,
    /// An allocation failed after everything was tried.
    OutOfMemory,
}

/// An event for observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub kind: EventKind,
    /// The segment's address; 0 when out of memory.
    pub address: u64,
    /// Bytes of the segment, or bytes asked for when out of memory.
    pub size: u64,
    /// The stream that the segment serves, or that the allocation was for.
    pub stream: StreamId,
    /// Bytes in use after the event.
    pub allocated_bytes: u64,
    /// Bytes held from the device after the event.
    pub reserved_bytes: u64,
}
