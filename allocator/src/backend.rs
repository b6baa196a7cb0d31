//! What the allocator asks of a device: memory in segments, and fences on streams.
//!
//! A backend does what it is told and nothing else: it must never call back into the allocator, and it
//! never caches, since everything that may be cached is cached above it.

/// Names a stream. The allocator only compares these numbers; what they mean is the backend's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A source of segments and fences: one device, or pinned host memory.
///
/// No method is called while the allocator's state is locked. [`segment_alloc`](Self::segment_alloc),
/// [`segment_free`](Self::segment_free) and [`fence_done`](Self::fence_done) are called under the growth
/// lock, and so is [`fence`](Self::fence) when one that failed is tried again, or for a segment of a
/// released pool: they must not wait for anybody who allocates. [`fence_wait`](Self::fence_wait) may, and is called with no lock held, as are
/// [`fence_may_wait`](Self::fence_may_wait), [`memory_info`](Self::memory_info) and
/// [`observe`](Self::observe).
pub trait Backend: Send + Sync {
    /// Why the device refused.
    type Error: Send;
    /// A point in a stream: done once all work submitted before it has finished.
    type Fence: Send + Sync;

    /// Allocates `size` bytes of device memory, aligned as the device wants it, and returns its
    /// address. It may take long: other threads are served from the cache meanwhile.
    fn segment_alloc(&self, size: u64) -> Result<u64, Self::Error>;

    /// Gives a segment back. All work on the segment's stream, and on every stream recorded on one of
    /// its blocks, has finished. A device that fails here keeps the memory: nobody could do better.
    fn segment_free(&self, address: u64);

    /// The device's virtual memory, if it has some: then memory is taken from there, not in segments.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Error = Self::Error>> {
        None
    }

    /// Makes later work of a stream wait for a fence, on the device. `false` if it cannot: then nothing
    /// is assumed.
    fn order(&self, stream: StreamId, fence: &Self::Fence) -> bool {
        let _ = (stream, fence);
        false
    }

    /// Asks others to release memory, since a request of so many bytes cannot be met. Whether anybody
    /// did something. The allocator may be used from here.
    fn pressure(&self, needed: u64) -> bool {
        let _ = needed;
        false
    }

    /// Whether an error of [`segment_alloc`](Self::segment_alloc) says that the device has not enough
    /// memory, so that giving back cached segments and trying again may help.
    fn is_out_of_memory(&self, error: &Self::Error) -> bool;

    /// Records a fence behind all work submitted to `stream` so far. For a stream that no longer
    /// exists and whose work is finished, or whose order means nothing, this is a fence that is done.
    /// After an error the memory that waits for this stream stays unused, and the allocator asks again.
    ///
    /// A stream's fences are asked in the order in which they were recorded: one that stays open holds
    /// up the memory behind later ones.
    fn fence(&self, stream: StreamId) -> Result<Self::Fence, Self::Error>;

    /// As [`fence`](Self::fence), and can be waited for: where a stream's work is being captured, behind what
    /// it was really given.
    fn submitted(&self, stream: StreamId) -> Result<Self::Fence, Self::Error> {
        self.fence(stream)
    }

    /// Whether the fence has passed; never waits. A fence of work that failed has passed.
    fn fence_done(&self, fence: &Self::Fence) -> bool;

    /// Whether [`fence_wait`](Self::fence_wait) would come back without help of the caller. A fence
    /// that stands for work that nobody has started, as of a stream whose work is being captured,
    /// answers false: it is never waited for, only asked now and then whether it is done.
    fn fence_may_wait(&self, fence: &Self::Fence) -> bool {
        let _ = fence;
        true
    }

    /// Waits until [`fence_done`](Self::fence_done) would say so. Only called for fences that
    /// [`fence_may_wait`](Self::fence_may_wait).
    ///
    /// # Errors
    /// The device cannot be waited for: the fence may not have passed.
    fn fence_wait(&self, fence: &Self::Fence) -> Result<(), Self::Error>;

    /// Free and total bytes of the device, where it tells: for the text of an out-of-memory error.
    fn memory_info(&self) -> Option<MemoryInfo> {
        None
    }

    /// Hears of an event, on the thread that caused it. The allocator may be used from here.
    fn observe(&self, event: &Event) {
        let _ = event;
    }
}

/// Addresses and memory apart. What [`Backend`] says of locks holds for these calls as for
/// [`Backend::segment_alloc`].
pub trait VirtualMemory {
    /// Why the device refused.
    type Error;

    /// Addresses and sizes are multiples of this many bytes, a power of two.
    fn granularity(&self) -> u64;

    /// Bytes of addresses to reserve for one stream: more than the device has memory, so that they
    /// suffice however they are used.
    fn address_space(&self) -> u64;

    /// Reserves a range of addresses without memory.
    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, Self::Error>;

    /// Gives reserved addresses back, into which nothing is mapped.
    fn release(&self, address: u64, size: u64);

    /// Makes a piece of physical memory.
    fn create(&self, size: u64) -> Result<Physical, Self::Error>;

    /// Gives physical memory up: it is the device's again once it is mapped nowhere.
    fn destroy(&self, physical: Physical);

    /// Maps pieces of physical memory whole, one behind the other, from a reserved address on: all or
    /// none. They may be mapped elsewhere, too.
    fn map(&self, address: u64, pieces: &[Physical]) -> Result<(), Self::Error>;

    /// Unmaps a range that starts and ends where pieces do. All work that uses it has finished.
    fn unmap(&self, address: u64, size: u64);

    /// As [`unmap`](Self::unmap), and tells if the device refused: then all is mapped as before.
    /// A device that never refuses need not say more than this.
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
    /// Bytes that nobody holds.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What happened between allocator and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment was given back to the device.
    SegmentFree,
    /// An allocation failed after everything was tried.
    OutOfMemory,
}

/// Something that observers want to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
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
