//! Streams: in-order queues of a device. Each device has a default stream and a pool that the runtime
//! owns; a host makes others. Work of a stream runs in the order of submission, and nothing here runs
//! anything ahead of it.

use std::borrow::Cow;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use outrigger_device::{Code, CopyKind, Queue, foreign_call};
use outrigger_locks::{Mutex, Rank};

use crate::graph::{CaptureSlot, HostNode, KernelCall};
use crate::table::{Kind, Ref, Table};
use crate::{Device, Error, Event, Result, runtime};

static TABLE: Table<Stream> = Table::new(Kind::Stream);

/// A stream of a device.
pub struct Stream {
    id: u64,
    device: &'static Device,
    queue: Queue,
    priority: i32,
    owner: Owner,
    failed_operator: Arc<FailedOperator>,
    capture: CaptureSlot,
}

/// The first operator that failed as a host call since the last report: to a driver all host calls
/// look alike.
#[derive(Debug)]
pub(crate) struct FailedOperator(Mutex<Option<Cow<'static, CStr>>>);

impl Default for FailedOperator {
    fn default() -> Self {
        Self(Mutex::new(Rank::FailedOperator, None))
    }
}

impl FailedOperator {
    pub(crate) fn set(&self, name: Cow<'static, CStr>) {
        self.0.lock().get_or_insert(name);
    }
}

/// Who decides when a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Runtime,
    Host,
}

impl Stream {
    pub(crate) fn make(device: &'static Device, priority: i32, owner: Owner) -> Result<Ref<Self>> {
        let range = device.properties();
        let priority = priority.clamp(range.priority_highest, range.priority_lowest);
        let queue = device.driver().queue_create(device.ordinal(), priority)?;
        let stream = TABLE.insert(|id| Self {
            id,
            device,
            queue,
            priority,
            owner,
            failed_operator: Arc::default(),
            capture: CaptureSlot::default(),
        })?;
        device.timelines().add(&stream);
        Ok(stream)
    }

    /// The id, as C hosts hold it.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
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

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    #[inline]
    pub(crate) fn capture(&self) -> &CaptureSlot {
        &self.capture
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
        self.queue.query().map_err(|error| self.failed(error))
    }

    /// Waits for all work submitted before.
    ///
    /// # Errors
    /// The first failure of the stream's work, which is thereby cleared: the stream takes work again;
    /// `CAPTURE` while it captures.
    pub fn synchronize(&self) -> Result<()> {
        if self.is_capturing() {
            return Err(self.refuse_capturing("a wait"));
        }
        self.synchronize_now()
    }

    /// Waits for all work submitted before, also of a stream that has begun to capture meanwhile.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize), but for captures.
    pub(crate) fn synchronize_now(&self) -> Result<()> {
        self.queue.synchronize().map_err(|error| {
            let error = self.failed(error);
            self.failed_operator.0.lock().take();
            error
        })
    }

    /// Sees to it that what was submitted starts by itself.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn flush(&self) -> Result<()> {
        if self.is_capturing() {
            return Ok(());
        }
        self.queue.flush().map_err(|error| self.failed(error))
    }

    /// Lets later work of this stream start after the point at which `event` was last recorded. Does
    /// not wait, unless the event is of another driver: no driver can wait for another one's work.
    ///
    /// # Errors
    /// What the driver reports. A failure that the event carries fails the stream, not this call.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        if self.wait_event_on_device(event)? {
            Ok(())
        } else {
            event.synchronize()
        }
    }

    /// As [`wait_event`](Self::wait_event), which never waits itself: `false` if the event is of another
    /// driver, so that the host has to wait for it.
    ///
    /// # Errors
    /// As [`wait_event`](Self::wait_event).
    #[inline]
    pub fn wait_event_on_device(&self, event: &Event) -> Result<bool> {
        if self.is_capturing() || event.captured().active() {
            self.wait_captured(event)?;
            return Ok(true);
        }
        let Some(inner) = event.inner() else {
            return Ok(true);
        };
        if !event.device().driver().same_as(self.device.driver()) {
            return Ok(false);
        }
        let waits = self.queue.wait_event(inner);
        waits.map(|()| true).map_err(|error| self.failed(error))
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
        unsafe { self.queue.copy(dst, src, size, kind) }.map_err(|error| self.failed(error))
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
        unsafe { self.queue.fill(dst, size, pattern) }.map_err(|error| self.failed(error))
    }

    /// Launches a host kernel in stream order, through the driver's launch where it takes host
    /// functions, else as a host call where the memory is visible to the host.
    ///
    /// # Safety
    /// The kernel may run with this block, and the memory that it names is live until it has.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the device can do neither; `INVALID_ARGUMENT` for a wrong place of an address.
    #[inline]
    pub unsafe fn launch(&self, call: &KernelCall<'_>) -> Result<()> {
        if self.is_capturing() {
            return self.record_kernel(call);
        }
        // SAFETY: the caller's promise.
        unsafe { self.launch_host(call.function, call.args, call.cost_ns, call.label) }
    }

    /// Runs a function on the host in stream order: once, or at every replay where the stream captures.
    ///
    /// # Safety
    /// The function may be called with its user data, from any thread, until `destroy` is called.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the host cannot reach the device's memory. The function was not and will not be
    /// called then, nor `destroy`.
    pub unsafe fn host_node(&self, node: &HostNode<'_>) -> Result<()> {
        if self.is_capturing() {
            return self.record_host_node(node);
        }
        let bias = self
            .device
            .host_bias()
            .map_err(|error| error.on_stream(self.id))?;
        let (function, user, destroy) = (node.function, node.user as usize, node.destroy);
        self.host_call_now(move |upstream| {
            let upstream = upstream.err().unwrap_or(Code::OK);
            // SAFETY: the caller's promise.
            let code = unsafe { foreign_call!(function, user as *mut c_void, bias, upstream.0) };
            if let Some(destroy) = destroy {
                // SAFETY: as above, and this is the only call of it.
                unsafe { foreign_call!(destroy, user as *mut c_void) };
            }
            if code == Code::OK.0 {
                Ok(())
            } else {
                Err(Code(code))
            }
        })
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
            .on_stream(self.id));
        }
        self.host_call_now(function)
    }

    /// As [`host_call`](Self::host_call), also while the stream captures.
    pub(crate) fn host_call_now(
        &self,
        function: impl FnOnce(Result<(), Code>) -> Result<(), Code> + Send + 'static,
    ) -> Result<()> {
        self.queue
            .host_call(function)
            .map_err(|error| self.failed(error))
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
        unsafe { self.queue.host_call_raw(function, user) }.map_err(|error| self.failed(error))
    }

    #[cold]
    pub(crate) fn failed(&self, error: outrigger_device::Error) -> Error {
        let error = Error::from(error).on_stream(self.id);
        match &*self.failed_operator.0.lock() {
            Some(name) => error.in_operator(name.to_string_lossy()),
            _ => error,
        }
    }

    pub(crate) fn failed_operator(&self) -> &Arc<FailedOperator> {
        &self.failed_operator
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("id", &format_args!("{:#x}", self.id))
            .field("device", &self.device.index())
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

/// Makes a stream. A lower priority number is more urgent; it is clamped to the device's range.
///
/// # Errors
/// `INVALID_DEVICE`; what the driver reports.
pub fn create_stream(device: u32, priority: i32) -> Result<Ref<Stream>> {
    Stream::make(runtime()?.device(device)?, priority, Owner::Host)
}

/// The stream with this id, which lives as long as what is returned.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live stream.
#[inline]
pub fn stream(id: u64) -> Result<Ref<Stream>> {
    TABLE.get(id)
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

/// Whether a fill's size and pattern fit.
pub(crate) fn check_pattern(size: u64, pattern: &[u8]) -> Result<()> {
    if matches!(pattern.len(), 1 | 2 | 4 | 8 | 16) && size.is_multiple_of(pattern.len() as u64) {
        return Ok(());
    }
    Err(Error::new(
        Code::INVALID_ARGUMENT,
        format!(
            "a fill of {size} bytes with a pattern of {} bytes: the pattern has 1, 2, 4, 8 or 16 bytes, \
             and the size is a multiple of it",
            pattern.len()
        ),
    ))
}
