//! Device memory over the caching allocator, with its accounting, and observers told of what happens.
//! It must never give memory back to a driver while work that was submitted may still use it.

use std::sync::Arc;

use outrigger_allocator::{
    AllocError, Allocation, Backend, Event, EventKind, FreeError, Freed, MemoryInfo,
    PoolAllocError, Snapshot, Stats, StreamId,
};
use outrigger_device::{Code, Driver};

use crate::device::Timelines;
use crate::graph::{CaptureEnd, PoolRef};
use crate::observer::{self, Observation, ObservationKinds};
use crate::{Device, Error, Result, current_device, runtime, stream, with_stream};

/// What is known of an address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// Where the allocation starts.
    pub base: u64,
    /// Its usable size in bytes: what was asked for, rounded up.
    pub size: u64,
    /// The stream that it was allocated on.
    pub stream: u64,
    /// The device.
    pub device: u32,
}

/// After which memory is free.
pub(crate) enum Fence {
    /// It is free already.
    Passed,
    /// The point of a stream.
    Event(Arc<outrigger_device::Event>),
    /// The end of a capture that has recorded a use of it: until then nothing else of the capture may
    /// get it, and replays are ordered by the graph.
    Capture(CaptureEnd),
}

impl From<Option<Arc<outrigger_device::Event>>> for Fence {
    fn from(event: Option<Arc<outrigger_device::Event>>) -> Self {
        event.map_or(Self::Passed, Self::Event)
    }
}

impl Fence {
    pub(crate) fn done(&self) -> bool {
        match self {
            Self::Passed => true,
            Self::Event(event) => !matches!(event.query(), Ok(false)),
            Self::Capture(end) => end.passed(),
        }
    }

    pub(crate) fn may_wait(&self) -> bool {
        !matches!(self, Self::Capture(_))
    }

    pub(crate) fn wait(&self) {
        if let Self::Event(event) = self {
            // A failure is reported to those who wait for the stream; the memory is free either way.
            let _ = event.synchronize();
        }
    }
}

/// A device's memory, as its allocator sees it.
pub(crate) struct DeviceMemory {
    device: u32,
    driver: Driver,
    ordinal: u32,
    timelines: Arc<Timelines>,
}

impl DeviceMemory {
    pub(crate) fn new(
        device: u32,
        driver: Driver,
        ordinal: u32,
        timelines: Arc<Timelines>,
    ) -> Self {
        Self {
            device,
            driver,
            ordinal,
            timelines,
        }
    }
}

impl Backend for DeviceMemory {
    type Error = Error;
    type Fence = Fence;

    fn segment_alloc(&self, size: u64) -> Result<u64> {
        Ok(self.driver.memory_alloc(self.ordinal, size)?)
    }

    fn segment_free(&self, address: u64) {
        // SAFETY: the allocator gives back what `segment_alloc` returned, once, when no block is in
        // use and fences behind all streams that used it have passed.
        if let Err(error) = unsafe { self.driver.memory_free(address) } {
            tracing::error!(target: "outrigger::memory", %error, address, "the driver refused to free");
        }
    }

    fn is_out_of_memory(&self, error: &Error) -> bool {
        error.code() == Code::OUT_OF_MEMORY
    }

    fn fence(&self, stream: StreamId) -> Result<Fence> {
        fence_of(&self.timelines, stream)
    }

    fn fence_done(&self, fence: &Fence) -> bool {
        fence.done()
    }

    fn fence_may_wait(&self, fence: &Fence) -> bool {
        fence.may_wait()
    }

    fn fence_wait(&self, fence: &Fence) {
        fence.wait();
    }

    fn memory_info(&self) -> Option<MemoryInfo> {
        let (free, total) = self.driver.memory_info(self.ordinal).ok()??;
        Some(MemoryInfo { free, total })
    }

    fn observe(&self, event: &Event) {
        let kind = match event.kind {
            EventKind::SegmentAlloc => ObservationKinds::SEGMENT_ALLOC,
            EventKind::SegmentFree => ObservationKinds::SEGMENT_FREE,
            EventKind::OutOfMemory => ObservationKinds::OUT_OF_MEMORY,
        };
        if observer::listening(kind) {
            observer::observe(&Observation {
                kind,
                device: self.device,
                address: event.address,
                size: event.size,
                allocated_bytes: event.allocated_bytes,
                reserved_bytes: event.reserved_bytes,
                name: "",
                nanoseconds: 0,
            });
        }
    }
}

/// An event after the work of a stream, which may be one of another device.
fn fence_of(timelines: &Timelines, id: StreamId) -> Result<Fence> {
    let event = match stream(id.0) {
        Ok(stream) => match stream.captured_by() {
            Some(end) => return Ok(Fence::Capture(end)),
            None => stream.device().timelines().fence(id.0),
        },
        Err(_) => timelines.fence(id.0),
    };
    event.map(Fence::from)
}

impl Device {
    /// Hands out at least `size` bytes, ordered for `stream`: memory that was freed may be handed out
    /// again while the work before the free is still running on that stream. 0 bytes are address 0.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` with a summary of where the memory is; `INVALID_HANDLE`, or
    /// `INVALID_ARGUMENT` if the stream is of another device.
    #[inline]
    pub fn alloc(&self, size: u64, stream: u64) -> Result<u64> {
        let capturing = with_stream(stream, |found| {
            if found.device().index() == self.index() {
                return Ok(found.is_capturing());
            }
            Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "memory of device {} cannot be allocated on a stream of device {}",
                    self.index(),
                    found.device().index()
                ),
            ))
        })?;
        if size == 0 {
            return Ok(0);
        }
        let allocation = if capturing {
            crate::stream(stream)?.alloc_captured(|pool, stream| {
                let allocation = self.alloc_in(pool, size, stream)?;
                Ok((allocation.address, allocation))
            })?
        } else {
            self.allocator()
                .alloc(size, StreamId(stream))
                .map_err(|error| self.alloc_failed(error))?
        };
        if observer::listening(ObservationKinds::ALLOC) {
            self.tell(ObservationKinds::ALLOC, allocation.address, allocation.size);
        }
        Ok(allocation.address)
    }

    /// Allocates from a pool of graphs.
    pub(crate) fn alloc_in(
        &self,
        pool: &PoolRef,
        size: u64,
        stream: StreamId,
    ) -> Result<Allocation> {
        match self.allocator().alloc_in(pool.pool(), size, stream) {
            Ok(allocation) => Ok(allocation),
            Err(PoolAllocError::Alloc(error)) => Err(self.alloc_failed(error)),
            Err(PoolAllocError::Pool(error)) => Err(Error::new(Code::INTERNAL, error.to_string())),
        }
    }

    /// Keeps the allocation around an address alive, whoever frees it; gives its base.
    pub(crate) fn hold(&self, address: u64) -> Result<u64> {
        self.allocator().hold(address).map_err(not_allocated)
    }

    /// Gives a hold back.
    pub(crate) fn unhold(&self, base: u64) {
        if let Err(error) = self.allocator().unhold(base) {
            tracing::error!(target: "outrigger::graph", %error, "memory was held less often than thought");
        }
    }

    /// Frees a block that a graph has allocated.
    pub(crate) fn free_block(&self, address: u64) {
        if let Err(error) = self.allocator().free(address) {
            tracing::error!(target: "outrigger::graph", %error, "memory of a graph was freed by another");
        }
    }

    /// Frees an address, also one of the pool of a capture, which then learns of it.
    fn free_address(&self, address: u64) -> Result<Freed, FreeError> {
        if self.captures().any()
            && let Some(block) = self.allocator().lookup(address)
            && let Some(pool) = block.pool
            && let Some(capture) = self.captures().of_pool(pool)
        {
            return capture.free(address, || self.allocator().free(address));
        }
        self.allocator().free(address)
    }

    #[cold]
    fn alloc_failed(&self, error: AllocError<Error>) -> Error {
        let code = match error {
            AllocError::Backend(error) => return error,
            AllocError::OutOfMemory(_) => Code::OUT_OF_MEMORY,
            AllocError::BadSegment { .. } => Code::INTERNAL,
        };
        Error::new(code, format!("device {}: {error}", self.index()))
    }

    /// Tells observers that memory was handed out or came back.
    #[cold]
    fn tell(&self, kind: ObservationKinds, address: u64, size: u64) {
        let stats = self.allocator().stats();
        observer::observe(&Observation {
            kind,
            device: self.index(),
            address,
            size,
            allocated_bytes: stats.allocated_bytes.current,
            reserved_bytes: stats.reserved_bytes.current,
            name: "",
            nanoseconds: 0,
        });
    }

    /// Says that work of another stream uses the allocation at `address`: after it is freed it is
    /// reused only when what that stream had been given by then has finished.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is not one that was allocated; `INVALID_HANDLE`.
    pub fn record_stream(&self, address: u64, stream: u64) -> Result<()> {
        with_stream(stream, |_| Ok(()))?;
        self.allocator()
            .record_stream(address, StreamId(stream))
            .map_err(not_allocated)
    }

    /// What is known of an address within an allocation.
    pub fn pointer_info(&self, address: u64) -> Option<PointerInfo> {
        let block = self
            .allocator()
            .lookup(address)
            .filter(|block| !block.free)?;
        Some(PointerInfo {
            base: block.base,
            size: block.size,
            stream: block.stream.0,
            device: self.index(),
        })
    }

    /// Gives all cached memory that is not in use back to the driver. Returns how many bytes.
    pub fn empty_cache(&self) -> u64 {
        self.sweep_retired();
        self.allocator().empty_cache()
    }

    /// Free and total bytes of the device. Where the driver does not know: what the cache has not
    /// taken of the whole.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        if let Some(known) = self.driver().memory_info(self.ordinal())? {
            return Ok(known);
        }
        let total = self.properties().total_memory;
        Ok((
            total.saturating_sub(self.memory_stats().reserved_bytes.current),
            total,
        ))
    }

    /// Statistics of the device's memory.
    pub fn memory_stats(&self) -> Stats {
        self.allocator().stats()
    }

    /// Starts all peaks anew from the current values.
    pub fn reset_peak_memory(&self) {
        self.allocator().reset_peak();
    }

    /// Starts all accumulated counts anew from 0.
    pub fn reset_accumulated_memory(&self) {
        self.allocator().reset_accumulated();
    }

    /// Limits the bytes that the cache may take from the device; `u64::MAX` lifts the limit.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.allocator().set_limit(bytes);
    }

    /// All segments and their blocks, now.
    pub fn memory_snapshot(&self) -> Snapshot {
        self.allocator().snapshot()
    }
}

/// The device whose memory holds an address.
fn owner(address: u64) -> Result<&'static Device> {
    runtime()?
        .by_likelihood()
        .find(|device| device.allocator().lookup(address).is_some())
        .ok_or_else(|| nowhere(address))
}

#[cold]
fn nowhere(address: u64) -> Error {
    Error::new(
        Code::NOT_FOUND,
        format!("{address:#x} is not in the live memory of any device"),
    )
}

impl crate::Runtime {
    /// All devices, the current one first: memory mostly is of that one.
    fn by_likelihood(&self) -> impl Iterator<Item = &'static Device> {
        let current = self.device(current_device()).ok();
        let rest = self
            .devices()
            .filter(move |one| Some(one.index()) != current.map(Device::index));
        current.into_iter().chain(rest)
    }

    /// Frees an allocation, at any time: it is reused in stream order. Address 0 is ignored.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says whether the address was never allocated or was freed before.
    pub fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let mut refusal = None;
        for device in self.by_likelihood() {
            match device.free_address(address) {
                Ok(freed) => {
                    if observer::listening(ObservationKinds::FREE) {
                        device.tell(ObservationKinds::FREE, address, freed.size);
                    }
                    return Ok(());
                }
                Err(FreeError::Unknown { .. }) => {}
                Err(error) => refusal = Some(error),
            }
        }
        Err(not_allocated(
            refusal.unwrap_or(FreeError::Unknown { address }),
        ))
    }

    /// Says that work of `stream` uses the allocation at `address`; see [`Device::record_stream`].
    ///
    /// # Errors
    /// `NOT_FOUND` if no device has the address; `INVALID_HANDLE`.
    pub fn record_stream(&self, address: u64, stream: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        owner(address)?.record_stream(address, stream)
    }

    /// What is known of an address within an allocation of any device.
    ///
    /// # Errors
    /// `NOT_FOUND` if it is in no live allocation.
    pub fn pointer_info(&self, address: u64) -> Result<PointerInfo> {
        self.by_likelihood()
            .find_map(|device| device.pointer_info(address))
            .ok_or_else(|| nowhere(address))
    }
}

#[cold]
pub(crate) fn not_allocated(error: FreeError) -> Error {
    Error::new(Code::INVALID_ARGUMENT, error.to_string())
}
