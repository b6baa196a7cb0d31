//! Pinned host memory. It is cached like device memory, and reused only after the streams that use it have passed.
//!
//! The memory comes from the first driver that pins, of which a device is opened for that. If no driver pins, it is plain pages of the process: copies take
//! those like any host memory, and callers see no difference. Memory goes back only after all submitted work that may
//! use it has finished.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Once, OnceLock};

use outrigger_allocator::{
    AllocError, Allocator, Backend, Config, FreeError, History, Snapshot, Stats, StreamId,
};
use outrigger_device::{Code, Driver};
use outrigger_locks::{Mutex, Rank};

use crate::labels::follow;
use crate::memory::backend::{Fence, fence_of};
use crate::{Error, Found, Result, Runtime, Stream, current_device, runtime, stream};

/// The alignment of plain pages: it suits copies and direct I/O on all machines.
const PAGE: usize = 4096;

/// Pinned host memory: host memory that devices reach fast and asynchronously.
pub struct HostMemory(Allocator<PinnedMemory>);

/// Pinned memory is not allocated on a stream. So freed memory that no stream was recorded on is free at once.
const NO_STREAM: StreamId = StreamId(0);

static MEMORY: OnceLock<HostMemory> = OnceLock::new();
static FOLLOWED: Once = Once::new();

/// The pinned host memory of the process; `None` if nobody has asked for it yet.
pub(crate) fn made_host_memory() -> Option<&'static HostMemory> {
    MEMORY.get()
}

/// The pinned host memory of the process.
///
/// # Errors
/// Those of [`runtime()`].
pub fn host_memory() -> Result<&'static HostMemory> {
    if let Some(memory) = MEMORY.get() {
        return Ok(memory);
    }
    let runtime = runtime()?;
    let driver = runtime.find_driver(|driver| driver.pinned().is_some());
    let driver = driver.map(Found::driver);
    if let Some(driver) = driver {
        open_one(runtime, driver)?;
    }
    let memory = MEMORY.get_or_init(|| {
        let source = driver.map_or_else(PinnedMemory::pages, |driver| {
            PinnedMemory::Driver(driver.clone())
        });
        HostMemory(Allocator::new(source, Config::default()))
    });
    FOLLOWED.call_once(|| follow(memory.history()));
    Ok(memory)
}

/// Opens a device of a driver, if none of them is open: the thread's current one, if it is one of them.
fn open_one(runtime: &Runtime, driver: &Driver) -> Result<()> {
    if runtime
        .devices()
        .any(|device| device.driver().same_as(driver))
    {
        return Ok(());
    }
    let current = current_device();
    if runtime.found(current)?.driver().same_as(driver) {
        runtime.device(current)?;
    }
    Ok(())
}

/// Whether a pointer lies in live pinned memory. Does not start the runtime: without a runtime nothing is pinned.
pub fn is_pinned(pointer: *const c_void) -> bool {
    made_host_memory().is_some_and(|memory| memory.lookup(pointer).is_some())
}

/// The source of segments of pinned memory.
enum PinnedMemory {
    /// A driver that pins.
    Driver(Driver),
    /// Pages of the process, by address, if no driver pins.
    Pages(Mutex<HashMap<u64, Layout>>),
}

impl PinnedMemory {
    fn pages() -> Self {
        Self::Pages(Mutex::new(Rank::PinnedPages, HashMap::new()))
    }
}

impl Backend for PinnedMemory {
    type Error = Error;
    type Fence = Fence;

    fn segment_alloc(&self, size: u64) -> Result<u64> {
        match self {
            Self::Driver(driver) => {
                let pinned = driver
                    .pinned()
                    .ok_or_else(|| Error::new(Code::UNSUPPORTED, "no pinned memory"))?;
                Ok(pinned.alloc(size)? as u64)
            }
            Self::Pages(live) => {
                let layout = usize::try_from(size)
                    .ok()
                    .filter(|size| *size != 0)
                    .and_then(|size| Layout::from_size_align(size, PAGE).ok())
                    .ok_or_else(|| out_of_host_memory(size))?;
                // SAFETY: `filter` left no layout of size 0.
                let pointer = unsafe { std::alloc::alloc(layout) };
                if pointer.is_null() {
                    return Err(out_of_host_memory(size));
                }
                live.lock().insert(pointer as u64, layout);
                Ok(pointer as u64)
            }
        }
    }

    fn segment_free(&self, address: u64) {
        match self {
            Self::Driver(driver) => {
                let Some(pinned) = driver.pinned() else {
                    return;
                };
                // SAFETY: the allocator frees what `segment_alloc` returned, once, after the fences of all streams that
                // used it have passed (R12).
                if let Err(error) = unsafe { pinned.free(address as *mut c_void) } {
                    tracing::error!(target: "outrigger::memory", %error, address, "the driver refused to free");
                }
            }
            Self::Pages(live) => {
                let Some(layout) = live.lock().remove(&address) else {
                    tracing::error!(target: "outrigger::memory", address, "freed pages that were not allocated");
                    return;
                };
                // SAFETY: the map had the address, so `segment_alloc` made it with this layout, and it was not freed
                // since. The allocator frees it after the fences of all streams that used it have passed.
                unsafe { std::alloc::dealloc(address as *mut u8, layout) };
            }
        }
    }

    fn is_out_of_memory(&self, error: &Error) -> bool {
        matches!(error.code(), Code::OUT_OF_MEMORY | Code::OUT_OF_HOST_MEMORY)
    }

    fn fence(&self, id: StreamId) -> Result<Fence> {
        if id == NO_STREAM {
            return Ok(Fence::Passed);
        }
        fence_of(None, id, None)
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
}

#[cold]
fn not_allocated(error: FreeError) -> Error {
    Error::new(Code::INVALID_ARGUMENT, format!("pinned memory: {error}"))
}

#[cold]
fn out_of_host_memory(size: u64) -> Error {
    Error::new(
        Code::OUT_OF_HOST_MEMORY,
        format!("the process has no {size} bytes of host memory left"),
    )
}

impl HostMemory {
    /// Hands out at least `size` bytes of pinned memory; a NULL pointer for 0 bytes.
    ///
    /// # Errors
    /// `OUT_OF_HOST_MEMORY` with a summary of where the memory is.
    pub fn alloc(&self, size: u64) -> Result<*mut c_void> {
        if size == 0 {
            return Ok(std::ptr::null_mut());
        }
        match self.0.alloc(size, NO_STREAM) {
            Ok(allocation) => Ok(allocation.address as *mut c_void),
            Err(AllocError::Backend(error)) => Err(error),
            Err(error @ AllocError::OutOfMemory(_)) => Err(Error::new(
                Code::OUT_OF_HOST_MEMORY,
                format!("pinned memory: {error}"),
            )),
            Err(error) => Err(Error::new(
                Code::INTERNAL,
                format!("pinned memory: {error}"),
            )),
        }
    }

    /// Frees pinned memory, at any time. It is reused after the streams that were recorded on it have passed.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says whether the pointer was never allocated or was freed before.
    pub fn free(&self, pointer: *mut c_void) -> Result<()> {
        if pointer.is_null() {
            return Ok(());
        }
        let address = pointer as u64;
        self.0.free(address).map(drop).map_err(not_allocated)
    }

    /// Notes that work of `stream` uses the allocation around `pointer`, as a copy of a part does.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the pointer is in no allocation of this memory; `INVALID_HANDLE` if the stream is not live.
    pub fn record_stream(&self, pointer: *mut c_void, stream: u64) -> Result<()> {
        self.used_by(pointer, &*stream::stream(stream)?)
    }

    /// Does what [`record_stream`](Self::record_stream) does for a stream that the caller is in a call on, whoever has
    /// destroyed its handle meanwhile.
    pub(crate) fn used_by(&self, pointer: *mut c_void, stream: &Stream) -> Result<()> {
        let address = pointer as u64;
        self.0
            .record_stream(address, StreamId(stream.id()))
            .map_err(not_allocated)
    }

    /// The start and size of the live pinned allocation that contains a pointer.
    pub fn lookup(&self, pointer: *const c_void) -> Option<(u64, u64)> {
        let block = self.0.lookup(pointer as u64).filter(|block| !block.free)?;
        Some((block.base, block.size))
    }

    /// Gives all cached pinned memory back. Returns the number of bytes.
    pub fn empty_cache(&self) -> u64 {
        self.0.empty_cache()
    }

    /// The history of pinned memory.
    pub(crate) fn history(&self) -> &History {
        self.0.history()
    }

    /// All segments and their blocks at this moment.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    /// Statistics of pinned memory.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Sets all peaks to the current values.
    pub fn reset_peak(&self) {
        self.0.reset_peak();
    }

    /// Sets all accumulated counts to 0.
    pub fn reset_accumulated(&self) {
        self.0.reset_accumulated();
    }

    /// Limits the bytes of pinned memory that are held; `u64::MAX` lifts the limit.
    pub fn set_limit(&self, bytes: u64) {
        self.0.set_limit(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_pages_serve_where_no_driver_pins() {
        let memory = HostMemory(Allocator::new(PinnedMemory::pages(), Config::default()));
        let pointer = memory.alloc(100_000).unwrap().cast::<u8>();
        // SAFETY: the allocation has this many bytes, and nothing else uses it.
        unsafe { pointer.write_bytes(7, 100_000) };
        let inside = pointer.wrapping_add(99_999).cast::<c_void>();
        assert_eq!(memory.lookup(inside).unwrap().0, pointer as u64);
        memory.free(pointer.cast()).unwrap();
        assert!(memory.lookup(inside).is_none());
        assert!(memory.free(pointer.cast()).is_err(), "freed before");
        assert!(memory.empty_cache() >= 100_000);
        let source = PinnedMemory::pages();
        let error = source.segment_alloc(u64::MAX).unwrap_err();
        assert!(source.is_out_of_memory(&error), "{error}");
    }
}
