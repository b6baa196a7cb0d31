//! A device's memory as its allocator sees it: memory of the driver, and fences of streams.
//!
//! The allocator frees memory here only after all submitted work that may use it has finished. Nothing is cached here:
//! that is the allocator's job.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use outrigger_allocator::{
    Backend, Config, Event, EventKind, MemoryInfo, Physical, StreamId, VirtualMemory,
};
use outrigger_device::{Code, Driver, Tail};
use outrigger_graph::CapturedUse;
use outrigger_locks::{Mutex, Rank};

use crate::memory::limit;
use crate::memory::sleeping::Sleeping;
use crate::observer::{self, Observation, ObservationKinds, Pressure};
use crate::timelines::{self, StreamEnd, Timelines};
use crate::{Error, Result};

/// The point after which memory is free.
pub(crate) enum Fence {
    /// The memory is free now.
    Passed,
    /// The work that a stream was given.
    Tail(Arc<Tail>),
    /// A use of the memory that was recorded, and the work that the stream was given before its capture, unless that is over.
    Capture(CapturedUse, Option<Arc<Tail>>),
}

impl From<Option<Arc<Tail>>> for Fence {
    fn from(tail: Option<Arc<Tail>>) -> Self {
        tail.map_or(Self::Passed, Self::Tail)
    }
}

impl Fence {
    pub(crate) fn done(&self) -> bool {
        match self {
            Self::Passed => true,
            Self::Tail(tail) => tail.is_over(),
            Self::Capture(recorded, before) => {
                recorded.over() && before.as_ref().is_none_or(|before| before.is_over())
            }
        }
    }

    pub(crate) fn may_wait(&self) -> bool {
        !matches!(self, Self::Capture(..))
    }

    /// Waits until the fence is [`done`](Self::done).
    ///
    /// # Errors
    /// Those of [`Tail::wait`].
    pub(crate) fn wait(&self) -> Result<()> {
        match self {
            Self::Tail(tail) => Ok(tail.wait()?),
            Self::Passed | Self::Capture(..) => Ok(()),
        }
    }
}

/// A device's memory as its allocator sees it.
pub(crate) struct DeviceMemory {
    device: u32,
    driver: Driver,
    ordinal: u32,
    timelines: Arc<Timelines>,
    /// A copy of the device's limit for callers that ask. The allocator enforces it.
    pub(crate) limit: AtomicU64,
    /// Whether streams may be made to wait for each other to get memory.
    stream_waits: bool,
    /// Pools of the device that sleep.
    pub(crate) sleeping: Sleeping,
    // The bytes that count for the process: segments by address, physical memory by handle.
    held: Mutex<HashMap<u64, u64>>,
    paging: Option<Paging>,
}

impl DeviceMemory {
    pub(crate) fn new(
        device: u32,
        driver: Driver,
        ordinal: u32,
        timelines: Arc<Timelines>,
        config: &Config,
        total: u64,
    ) -> Self {
        // If the driver has virtual memory, but cannot tell its granularity for this device, it is used without.
        let paging = driver.virtual_memory().and_then(|memory| {
            let granularity = memory.granularity(ordinal).ok()?;
            Some(Paging {
                granularity,
                address_space: (total + total / 8).next_multiple_of(granularity),
            })
        });
        Self {
            paging,
            device,
            driver,
            ordinal,
            timelines,
            limit: AtomicU64::new(config.limit()),
            stream_waits: config.stream_waits(),
            sleeping: Sleeping::default(),
            held: Mutex::new(Rank::HeldBytes, HashMap::new()),
        }
    }
}

/// A device's virtual memory.
struct Paging {
    granularity: u64,
    address_space: u64,
}

impl DeviceMemory {
    /// Asks for memory elsewhere: the caches of other devices, if the limit of the process is reached, and the host.
    /// Returns true if anybody released some.
    pub(crate) fn relieve(&self, needed: u64) -> bool {
        let given = limit::relieve(self.device, needed);
        let pressure = Pressure {
            device: self.device,
            needed,
        };
        observer::relieve(&pressure) || given > 0
    }
}

impl Backend for DeviceMemory {
    type Error = Error;
    type Fence = Fence;

    fn segment_alloc(&self, size: u64) -> Result<u64> {
        limit::take(size)?;
        let taken = self.driver.memory_alloc(self.ordinal, size);
        let address = taken.inspect_err(|_| limit::give(size))?;
        self.held.lock().insert(address, size);
        Ok(address)
    }

    fn segment_free(&self, address: u64) {
        // SAFETY: R12: the allocator frees what `segment_alloc` returned, once, when no block of it is in use and the
        // fences of all streams that used it have passed.
        if let Err(error) = unsafe { self.driver.memory_free(address) } {
            // The driver keeps the memory, so it still counts.
            tracing::error!(target: "outrigger::memory", %error, address, "the driver refused to free");
            return;
        }
        if let Some(size) = self.held.lock().remove(&address) {
            limit::give(size);
        }
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Error = Error>> {
        self.paging.is_some().then_some(self as _)
    }

    fn order(&self, id: StreamId, fence: &Fence) -> bool {
        match fence {
            Fence::Passed => true,
            // The work that a capture records runs at another time, so a wait now would order nothing.
            Fence::Capture(..) => false,
            Fence::Tail(_) if !self.stream_waits => false,
            Fence::Tail(tail) => match find(Some(&self.timelines), id) {
                Some(StreamEnd::Stream(stream)) => {
                    !stream.is_capturing() && stream.queue().wait_event(tail.event()).is_ok()
                }
                _ => false,
            },
        }
    }

    fn pressure(&self, needed: u64) -> bool {
        self.relieve(needed)
    }

    fn is_out_of_memory(&self, error: &Error) -> bool {
        // Addresses and page tables take host memory, and giving device memory back frees those, too.
        matches!(error.code(), Code::OUT_OF_MEMORY | Code::OUT_OF_HOST_MEMORY)
    }

    fn fence(&self, stream: StreamId) -> Result<Fence> {
        fence_of(Some(&self.timelines), stream, None)
    }

    fn fence_before(&self, next: StreamId, stream: StreamId) -> Result<Fence> {
        fence_of(Some(&self.timelines), stream, Some(next))
    }

    fn submitted(&self, stream: StreamId) -> Result<Fence> {
        self.timelines.fence(stream.0).map(Fence::from)
    }

    fn fence_done(&self, fence: &Fence) -> bool {
        fence.done()
    }

    fn fence_may_wait(&self, fence: &Fence) -> bool {
        fence.may_wait()
    }

    fn fence_wait(&self, fence: &Fence) -> Result<()> {
        fence.wait()
    }

    fn memory_info(&self) -> Option<MemoryInfo> {
        let (free, total) = self.driver.memory_info(self.ordinal).ok()??;
        Some(MemoryInfo { free, total })
    }

    fn observe(&self, event: &Event) {
        let kind = match event.kind {
            EventKind::SegmentAlloc => ObservationKinds::SEGMENT_ALLOC,
            EventKind::SegmentFree => ObservationKinds::SEGMENT_FREE,
            // `alloc_failed` tells this with the text of the error.
            EventKind::OutOfMemory => return,
        };
        if observer::listening(kind) {
            observer::observe(&Observation {
                kind,
                device: self.device,
                address: event.address,
                size: event.size,
                allocated_bytes: event.allocated_bytes,
                reserved_bytes: event.reserved_bytes,
                ..Observation::default()
            });
        }
    }
}

impl DeviceMemory {
    /// The driver's virtual memory. Called only if there is some.
    fn driver_memory(&self) -> Result<outrigger_device::VirtualMemory<'_>> {
        self.driver
            .virtual_memory()
            .ok_or_else(|| Error::new(Code::UNSUPPORTED, "the driver has no virtual memory"))
    }

    /// Logs a refusal by the driver that the contract does not allow. Returns whether the call succeeded.
    fn gave_back(&self, what: &str, outcome: Result<()>) -> bool {
        outcome.inspect_err(|error| refused_to(what, error)).is_ok()
    }
}

fn refused_to(what: &str, error: &Error) {
    tracing::error!(target: "outrigger::memory", %error, "the driver refused to {what}");
}

impl VirtualMemory for DeviceMemory {
    type Error = Error;

    fn granularity(&self) -> u64 {
        self.paging.as_ref().map_or(0, |paging| paging.granularity)
    }

    fn address_space(&self) -> u64 {
        self.paging
            .as_ref()
            .map_or(0, |paging| paging.address_space)
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64> {
        let memory = self.driver_memory()?;
        Ok(memory.reserve(self.ordinal, size, alignment)?)
    }

    fn release(&self, address: u64, size: u64) {
        let released = self
            .driver_memory()
            .and_then(|memory| Ok(memory.release(address, size)?));
        self.gave_back("release addresses", released);
    }

    fn create(&self, size: u64) -> Result<Physical> {
        limit::take(size)?;
        let created = self
            .driver_memory()
            .and_then(|memory| Ok(memory.create(self.ordinal, size)?));
        let physical = created.inspect_err(|_| limit::give(size))?.raw();
        self.held.lock().insert(physical, size);
        Ok(Physical(physical))
    }

    fn destroy(&self, physical: Physical) {
        let Some(handle) = outrigger_device::Physical::from_raw(physical.0) else {
            return;
        };
        let destroyed = self.driver_memory().and_then(|memory| {
            // SAFETY: R38: the allocator destroys what `create` returned, once, and maps it no more.
            Ok(unsafe { memory.destroy(handle) }?)
        });
        if self.gave_back("destroy physical memory", destroyed)
            && let Some(size) = self.held.lock().remove(&physical.0)
        {
            limit::give(size);
        }
    }

    fn map(&self, address: u64, pieces: &[Physical]) -> Result<()> {
        let handles = pieces
            .iter()
            .filter_map(|piece| outrigger_device::Physical::from_raw(piece.0));
        let handles: Vec<_> = handles.collect();
        // SAFETY: R39: `create` returned all of these objects, none was destroyed, and nothing is mapped in the range,
        // which is reserved.
        Ok(unsafe { self.driver_memory()?.map(address, &handles) }?)
    }

    fn unmap(&self, address: u64, size: u64) {
        // `try_unmap` has logged a refusal.
        let _ = self.try_unmap(address, size);
    }

    fn try_unmap(&self, address: u64, size: u64) -> Result<()> {
        let unmapped = self.driver_memory().and_then(|memory| {
            // SAFETY: R40: the allocator unmaps what it has mapped, after the fences of all streams that used it have
            // passed.
            Ok(unsafe { memory.unmap(address, size) }?)
        });
        unmapped.inspect_err(|error| refused_to("unmap memory", error))
    }
}

/// The end of the work of a stream of any device, also of a stream that was destroyed. `own` is asked first.
fn find(own: Option<&Timelines>, id: StreamId) -> Option<StreamEnd> {
    let found = own.and_then(|own| own.find(id.0));
    found.or_else(|| timelines::find(id.0))
}

/// A fence after the work of a stream of any device, for memory that goes to work of the stream `next`, if that is known.
/// `own` is asked first.
pub(crate) fn fence_of(
    own: Option<&Timelines>,
    id: StreamId,
    next: Option<StreamId>,
) -> Result<Fence> {
    let Some(end) = find(own, id) else {
        return Ok(Fence::Passed);
    };
    if let StreamEnd::Stream(stream) = &end
        && stream.is_capturing()
    {
        let recorded = match next.and_then(|next| find(own, next)) {
            Some(StreamEnd::Stream(next)) => stream.captured_use(Some(&next)),
            Some(StreamEnd::Ended(_)) | None => stream.captured_use(None),
        };
        if let Some(recorded) = recorded {
            // An idle queue stays idle until the capture ends. An event on it would pass only when the device gets to it.
            let idle = matches!(stream.queue().query(), Ok(true));
            let before = if idle { None } else { Some(end.fence()?) };
            return Ok(Fence::Capture(recorded, before));
        }
    }
    Ok(Fence::Tail(end.fence()?))
}
