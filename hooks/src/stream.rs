//! Streams: in-order queues of a device. The runtime owns a default stream and a pool of streams for each device, and a
//! host may make others. Work of a stream takes effect in the order of submission (H18).

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_device::{Code, CopyKind, Queue, profile};
use outrigger_graph::Timeline;
use outrigger_locks::{Mutex, Rank};

use crate::current::MAX_DEVICES;
use crate::{Device, Error, Result};
use outrigger_handles::{Kind, Ref, Table};

/// The number of streams of one priority in a device's pool: the same as PyTorch has for CUDA.
const POOL_STREAMS: usize = 32;

static TABLE: Table<Stream> = Table::new(Kind::Stream);

/// The streams that the runtime owns, by device.
static OWNED: [Owned; MAX_DEVICES] = [const { Owned::new() }; MAX_DEVICES];

/// The default stream of a device, and its pool of streams.
struct Owned {
    default: OnceLock<Ref<Stream>>,
    /// The streams of the pool, by priority.
    pools: Mutex<BTreeMap<i32, Vec<Ref<Stream>>>>,
    next: AtomicUsize,
}

impl Owned {
    const fn new() -> Self {
        Self {
            default: OnceLock::new(),
            pools: Mutex::new(Rank::PoolStreams, BTreeMap::new()),
            next: AtomicUsize::new(0),
        }
    }
}

/// A stream of a device.
pub struct Stream {
    inner: Arc<outrigger_graph::Stream>,
    device: &'static Device,
    priority: i32,
    owner: StreamOwner,
}

/// The owner of a stream, who alone destroys it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamOwner {
    Runtime,
    Host,
}

impl Deref for Stream {
    type Target = Arc<outrigger_graph::Stream>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

/// The default stream of a device; `None` until the device is open.
pub(crate) fn default_stream(device: u32) -> Option<&'static Ref<Stream>> {
    OWNED[device as usize].default.get()
}

impl Device {
    /// Makes the default stream of a device that is being opened.
    pub(crate) fn begin_streams(&'static self, queue: Queue) -> Result<()> {
        let stream = Stream::over(self, queue, 0, StreamOwner::Runtime)?;
        OWNED[self.index() as usize].default.get_or_init(|| stream);
        Ok(())
    }

    /// The stream that work goes to unless another one is named.
    #[inline]
    pub fn default_stream(&self) -> &'static Ref<Stream> {
        OWNED[self.index() as usize]
            .default
            .get()
            .expect("made before the device is published")
    }

    /// The next stream of a priority in the device's pool, in turn. The runtime owns it.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn pool_stream(&'static self, priority: i32) -> Result<Ref<Stream>> {
        let range = self.properties();
        let priority = priority.clamp(range.priority_highest, range.priority_lowest);
        let owned = &OWNED[self.index() as usize];
        if let Some(pool) = owned.pools.lock().get(&priority)
            && pool.len() >= POOL_STREAMS
        {
            let turn = owned.next.fetch_add(1, Ordering::Relaxed);
            return Ok(pool[turn % pool.len()].clone());
        }
        // The pool is not locked here, because the driver makes the queue. Threads that ask at the same moment may add
        // a few more streams.
        let stream = Stream::make(self, priority, StreamOwner::Runtime)?;
        let mut pools = owned.pools.lock();
        pools.entry(priority).or_default().push(stream.clone());
        Ok(stream)
    }

    /// Makes a stream, which the host owns until [`destroy_stream`]. A lower priority number is more urgent, and is
    /// clamped to the device's range.
    ///
    /// # Errors
    /// What the driver reports; `OUT_OF_HOST_MEMORY` if too many are alive.
    pub fn create_stream(&'static self, priority: i32) -> Result<Ref<Stream>> {
        Stream::make(self, priority, StreamOwner::Host)
    }

    /// Makes a stream over a native queue of the driver's own interface, which another library has made. The host owns
    /// it until [`destroy_stream`].
    ///
    /// # Safety
    /// `native` is a native queue of the driver, which lives until the stream was destroyed and its work has finished (R56).
    ///
    /// # Errors
    /// `UNSUPPORTED` if the driver shares no queues; what the driver reports; `OUT_OF_HOST_MEMORY` if too many streams are
    /// alive.
    pub unsafe fn adopt_stream(&'static self, native: u64) -> Result<Ref<Stream>> {
        // SAFETY: this function's contract.
        let queue = unsafe { self.driver().queue_adopt(self.ordinal(), native) }?;
        Stream::over(self, queue, 0, StreamOwner::Host)
    }
}

impl Stream {
    fn make(device: &'static Device, priority: i32, owner: StreamOwner) -> Result<Ref<Self>> {
        let range = device.properties();
        let priority = priority.clamp(range.priority_highest, range.priority_lowest);
        let queue = device.driver().queue_create(device.ordinal(), priority)?;
        Self::over(device, queue, priority, owner)
    }

    fn over(
        device: &'static Device,
        mut queue: Queue,
        priority: i32,
        owner: StreamOwner,
    ) -> Result<Ref<Self>> {
        let stream = TABLE.insert(|id| {
            queue.profile_as(profile::Stream {
                device: device.index(),
                id,
            });
            Self {
                inner: outrigger_graph::Stream::new(Timeline::new(id, device, queue)),
                device,
                priority,
                owner,
            }
        })?;
        device.timelines().add(&stream.inner);
        Ok(stream)
    }

    /// The device of the stream.
    #[inline]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The stream's priority: the requested one, clamped to the device's range.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Whether all work submitted before has finished. Never waits.
    ///
    /// # Errors
    /// The first failure of the stream's work since it was last synchronized; `CAPTURE` while it
    /// captures.
    #[inline]
    pub fn query(&self) -> Result<bool> {
        if self.is_capturing() {
            return Err(self.refuse_capturing("a query"));
        }
        self.queue().query().map_err(|error| self.failed(error))
    }

    /// The handle of the stream's queue in the driver's own interface, for another library that puts work into it. All
    /// that was submitted before is in the queue when this call returns, so that the work of the library comes behind
    /// it (R55).
    ///
    /// # Errors
    /// `UNSUPPORTED` if the driver shares no queues; `CANCELLED` for a stream that has failed; `CAPTURE` while it captures.
    pub fn native(&self) -> Result<u64> {
        if self.is_capturing() {
            return Err(self.refuse_capturing("handing out the native queue"));
        }
        self.queue().native().map_err(|error| self.failed(error))
    }

    /// Starts what was submitted, for drivers that keep work back (R18).
    ///
    /// # Errors
    /// What the driver reports.
    pub fn flush(&self) -> Result<()> {
        if self.is_capturing() {
            return Ok(());
        }
        self.queue().flush().map_err(|error| self.failed(error))
    }

    /// Copies `size` bytes in stream order. Device ranges lie in live allocations of this stream's device.
    ///
    /// # Safety
    /// The host ranges are valid for `size` bytes until the stream has passed this point (R26). The device ranges are
    /// as [`fill`](Self::fill) has it. Until then nothing unordered with this stream uses either range.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that names the range that is not in a live allocation; what the driver reports.
    pub unsafe fn copy(&self, dst: u64, src: u64, size: u64, kind: CopyKind) -> Result<()> {
        let device = self.device;
        if self.is_capturing()
            && let Some(recorded) = self.record(|steps| {
                device.check_copy(dst, src, size, kind)?;
                steps.copy(dst, src, size, kind)
            })
        {
            return recorded;
        }
        // SAFETY: this function's contract.
        unsafe { self.copy_now(dst, src, size, kind) }
    }

    /// Does what [`copy`](Self::copy) does, but never records: for a step of a call that runs.
    ///
    /// # Safety
    /// The contract of [`copy`](Self::copy).
    ///
    /// # Errors
    /// Those of [`copy`](Self::copy).
    #[inline(always)] // the whole of an eager copy
    pub(crate) unsafe fn copy_now(
        &self,
        dst: u64,
        src: u64,
        size: u64,
        kind: CopyKind,
    ) -> Result<()> {
        self.device.check_copy(dst, src, size, kind)?;
        // SAFETY: the device ranges were checked, and the allocator reuses them only in stream order (H23). This
        // function's contract: the host ranges are valid until the copy has finished.
        unsafe { self.queue().copy(dst, src, size, kind) }.map_err(|error| self.failed(error))
    }

    /// Fills `size` bytes with a repeated pattern of 1, 2, 4, 8 or 16 bytes, in stream order.
    ///
    /// # Safety
    /// The allocation lives until the stream has passed this point. It may be freed before only if it was allocated on
    /// this stream, or this stream was recorded on it (H23). Nothing unordered with this stream uses the range
    /// meanwhile.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the range is not in a live allocation, or size and pattern do not fit.
    pub unsafe fn fill(&self, dst: u64, size: u64, pattern: &[u8]) -> Result<()> {
        let device = self.device;
        if self.is_capturing()
            && let Some(recorded) = self.record(|steps| {
                device.check_fill(dst, size, pattern)?;
                steps.fill(dst, size, pattern)
            })
        {
            return recorded;
        }
        // SAFETY: this function's contract.
        unsafe { self.fill_now(dst, size, pattern) }
    }

    /// Does what [`fill`](Self::fill) does, but never records: for a step of a call that runs.
    ///
    /// # Safety
    /// The contract of [`fill`](Self::fill).
    ///
    /// # Errors
    /// Those of [`fill`](Self::fill).
    #[inline(always)] // the whole of an eager fill
    pub(crate) unsafe fn fill_now(&self, dst: u64, size: u64, pattern: &[u8]) -> Result<()> {
        self.device.check_fill(dst, size, pattern)?;
        // SAFETY: the range was checked just now. This function's contract: it stays live until the fill has run (H23).
        unsafe { self.queue().fill(dst, size, pattern) }.map_err(|error| self.failed(error))
    }

    /// Runs a function on the host in stream order, exactly once. The function gets the failure of the work before it,
    /// if any. If the function fails, the stream fails. It must not call the runtime (H16).
    ///
    /// # Errors
    /// What the driver reports. The function is then dropped without having run.
    pub fn host_call(
        &self,
        function: impl FnOnce(Result<(), Code>) -> Result<(), Code> + Send + 'static,
    ) -> Result<()> {
        if self.is_capturing() {
            return Err(Error::new(
                Code::CAPTURE,
                "a function that is called once cannot be captured: use a host node, which is called at \
                 every replay",
            )
            .on_stream(self.id()));
        }
        self.host_call_now(function)
    }

    /// Does what [`host_call`](Self::host_call) does with a C function. If the stream captures, the function is called
    /// at every replay.
    ///
    /// # Safety
    /// `function` may be called with `user` from any thread at any later time.
    ///
    /// # Errors
    /// What the driver reports. The function is not called then.
    pub unsafe fn host_call_raw(
        &self,
        function: outrigger_device::HostFn,
        user: *mut c_void,
    ) -> Result<()> {
        if self.is_capturing()
            && let Some(recorded) = self.record(|steps| steps.host_call(function, user))
        {
            return recorded;
        }
        // SAFETY: this function's contract: `function` may be called with `user` from any thread, at any later time.
        unsafe { self.queue().host_call_raw(function, user, 0) }.map_err(|error| self.failed(error))
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("id", &format_args!("{:#x}", self.id()))
            .field("device", &self.device.index())
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

/// The stream with this id. It lives as long as the result.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live stream.
#[inline]
pub fn stream(id: u64) -> Result<Ref<Stream>> {
    Ok(TABLE.get(id)?)
}

/// Destroys a stream without waiting. Work that was submitted still runs, and memory that it uses is not reused before
/// it has finished.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live stream; `INVALID_ARGUMENT` for a stream that the runtime owns; `BUSY`
/// for a stream that captures.
pub fn destroy_stream(id: u64) -> Result<()> {
    let found = stream(id)?;
    if found.owner == StreamOwner::Runtime {
        return Err(Error::new(
            Code::INVALID_ARGUMENT,
            "default and pool streams belong to the runtime and are not destroyed",
        )
        .on_stream(id));
    }
    found.close_to_captures()?;
    let device = found.device;
    drop(found);
    drop(TABLE.remove(id)?);
    // The queue is destroyed now, unless another thread is in a call on the stream.
    device.timelines().settle();
    Ok(())
}
