//! Streams: in-order queues of a device. Each device has a default stream and a pool that the runtime
//! owns; a host makes others. Work of a stream runs in the order of submission, and nothing here runs
//! anything ahead of it.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_device::{Code, CopyKind};
use outrigger_graph::{Timeline, check_pattern};
use outrigger_locks::{Mutex, Rank};

use crate::current::MAX_DEVICES;
use crate::{Device, Error, Result};
use outrigger_handles::{Kind, Ref, Table};

/// Streams of one priority in a device's pool: as many as PyTorch has for CUDA.
const POOL_STREAMS: usize = 32;

static TABLE: Table<Stream> = Table::new(Kind::Stream);

/// The streams of each device that the runtime owns.
static OWNED: [Owned; MAX_DEVICES] = [const { Owned::new() }; MAX_DEVICES];

struct Owned {
    default: OnceLock<Ref<Stream>>,
    /// By priority.
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
    owner: Owner,
}

/// Who decides when a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
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

impl Device {
    /// Makes the default stream of a device that is being opened.
    pub(crate) fn begin_streams(&'static self) -> Result<()> {
        let stream = Stream::make(self, 0, Owner::Runtime)?;
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

    /// A stream of the device's pool, which the runtime owns: the next one in turn of that priority.
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
        // Without the lock: the driver makes it. Threads that ask at the same moment may add a few more.
        let stream = Stream::make(self, priority, Owner::Runtime)?;
        let mut pools = owned.pools.lock();
        pools.entry(priority).or_default().push(stream.clone());
        Ok(stream)
    }

    /// Makes a stream, the host's until [`destroy_stream`]. A lower priority number is more urgent; it is clamped to
    /// the device's range.
    ///
    /// # Errors
    /// What the driver reports; `OUT_OF_HOST_MEMORY` if too many are alive.
    pub fn create_stream(&'static self, priority: i32) -> Result<Ref<Stream>> {
        Stream::make(self, priority, Owner::Host)
    }
}

impl Stream {
    fn make(device: &'static Device, priority: i32, owner: Owner) -> Result<Ref<Self>> {
        let range = device.properties();
        let priority = priority.clamp(range.priority_highest, range.priority_lowest);
        let queue = device.driver().queue_create(device.ordinal(), priority)?;
        let stream = TABLE.insert(|id| Self {
            inner: outrigger_graph::Stream::new(Timeline::new(id, device, queue)),
            device,
            priority,
            owner,
        })?;
        device.timelines().add(&stream.inner);
        Ok(stream)
    }

    /// The device that runs it.
    #[inline]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The priority that it got: the asked one within the device's range.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// True if all work submitted before has finished. Never waits.
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

    /// Sees to it that what was submitted starts by itself.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn flush(&self) -> Result<()> {
        if self.is_capturing() {
            return Ok(());
        }
        self.queue().flush().map_err(|error| self.failed(error))
    }

    /// Copies `size` bytes in stream order. Device ranges must lie in live allocations of this
    /// stream's device; host memory stays valid and untouched until the copy has finished.
    ///
    /// # Safety
    /// The host ranges are valid for `size` bytes until the stream has passed this point, and nothing
    /// else writes to what the copy reads or touches what it writes until then.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that names the range that is not in a live allocation; what the driver reports.
    pub unsafe fn copy(&self, dst: u64, src: u64, size: u64, kind: CopyKind) -> Result<()> {
        if kind.writes_device() {
            self.check_range("destination", dst, size)?;
        }
        if kind.reads_device() {
            self.check_range("source", src, size)?;
        }
        if self.is_capturing() {
            return self.record_copy(dst, src, size, kind);
        }
        // SAFETY: device ranges are live, as just checked, and the allocator reuses them in stream
        // order only; the host ranges are the caller's promise.
        unsafe { self.queue().copy(dst, src, size, kind) }.map_err(|error| self.failed(error))
    }

    #[inline]
    fn check_range(&self, what: &str, address: u64, size: u64) -> Result<()> {
        let outcome = self.device.check_range(what, address, size);
        outcome.map_err(|error| self.not_recorded(error))
    }

    /// Fills `size` bytes with a repeated pattern of 1, 2, 4, 8 or 16 bytes, in stream order.
    ///
    /// # Safety
    /// The allocation is not freed before the stream has passed this point, unless it was allocated on this
    /// stream, or the stream is recorded on it before it is freed (H23); nor does anything unordered with
    /// this stream use the range.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the range is not in a live allocation, or size and pattern do not fit.
    pub unsafe fn fill(&self, dst: u64, size: u64, pattern: &[u8]) -> Result<()> {
        check_pattern(size, pattern).map_err(|error| self.not_recorded(error))?;
        self.check_range("destination", dst, size)?;
        if self.is_capturing() {
            return self.record_fill(dst, size, pattern);
        }
        // SAFETY: the range is live, as just checked, and stays so until the fill has run (H23).
        unsafe { self.queue().fill(dst, size, pattern) }.map_err(|error| self.failed(error))
    }

    /// Runs a function on the host in stream order, exactly once. It gets the failure of the work
    /// before it, if any, and its own failure makes the stream fail. It must not call the runtime.
    ///
    /// # Errors
    /// What the driver reports; the function is dropped without having run.
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

    /// As [`host_call`](Self::host_call) for a C function. Where the stream captures, it is called at
    /// every replay.
    ///
    /// # Safety
    /// `function` may be called with `user` from any thread at any later time.
    ///
    /// # Errors
    /// What the driver reports; the function was not and will not be called.
    pub unsafe fn host_call_raw(
        &self,
        function: outrigger_device::HostFn,
        user: *mut c_void,
    ) -> Result<()> {
        if self.is_capturing() {
            return self.record_host_call(function, user);
        }
        // SAFETY: as the caller promises.
        unsafe { self.queue().host_call_raw(function, user) }.map_err(|error| self.failed(error))
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

/// The stream with this id, which lives as long as what is returned.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live stream.
#[inline]
pub fn stream(id: u64) -> Result<Ref<Stream>> {
    Ok(TABLE.get(id)?)
}

/// Destroys a stream without waiting: work that was submitted still runs, and memory that it uses is
/// not reused before.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live stream; `INVALID_ARGUMENT` for a stream that the
/// runtime owns.
pub fn destroy_stream(id: u64) -> Result<()> {
    let found = stream(id)?;
    if found.is_capturing() {
        return Err(Error::new(
            Code::BUSY,
            "the stream captures: end the capture before the stream is destroyed",
        )
        .on_stream(id));
    }
    if found.owner == Owner::Runtime {
        return Err(Error::new(
            Code::INVALID_ARGUMENT,
            "default and pool streams belong to the runtime and are not destroyed",
        )
        .on_stream(id));
    }
    let device = found.device;
    drop(found);
    drop(TABLE.remove(id)?);
    // Now, unless another thread is in a call on it.
    device.timelines().settle();
    Ok(())
}
