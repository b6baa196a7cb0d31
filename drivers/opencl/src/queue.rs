//! Queues: OpenCL's in-order queues as lanes of the kit, and the commands that need no kernel.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use outrigger_contract as c;
use outrigger_driver_kit::given::{self, Out, null};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::origin::{Label, Origin};
use outrigger_driver_kit::queue as kit;
use outrigger_driver_kit::{Fault, Progress, Result, Sequence, field};

use crate::cl::{self, Cl};
use crate::device::{Device, create_queue};
use crate::driver::{Open, get as get_driver};
use crate::exit::{self, Unfinished};
use crate::kernel::Launch;
use crate::unseen::{Event, Of, Place, Unseen};

/// A hardware queue of the kit, over this driver.
pub(crate) type Ordered = kit::Queue<Lane>;

/// A queue of OpenCL's.
pub(crate) struct Lane {
    open: Arc<Open>,
    device: u32,
    plain: cl::cl_command_queue,
    /// The queue that takes the place of the plain one when a timestamp is asked for: OpenCL takes timestamps at every
    /// command of such a queue, for which those who need none should not pay.
    timing: OnceLock<Timing>,
    /// Others use the queue (R55, R56), so that no other one may take its place: timestamps are taken beside it.
    fixed: AtomicBool,
    beside: OnceLock<Timing>,
    /// The plain queue takes timestamps itself: its library has made it so.
    profiled: bool,
    unseen: Arc<Unseen>,
}

struct Timing(cl::cl_command_queue);

// SAFETY: OpenCL's queues may be used by any thread.
unsafe impl Send for Lane {}
// SAFETY: as above.
unsafe impl Sync for Lane {}
// SAFETY: as above.
unsafe impl Send for Timing {}
// SAFETY: as above.
unsafe impl Sync for Timing {}

impl Drop for Lane {
    fn drop(&mut self) {
        self.unseen.forget_waits();
        let release = self.open.cl.clReleaseCommandQueue;
        // SAFETY: made or retained with the lane, or made by `new_timing`; OpenCL keeps what work needs that has not finished.
        unsafe {
            for timing in [&self.timing, &self.beside] {
                if let Some(timing) = timing.get() {
                    release(timing.0);
                }
            }
            release(self.plain);
        }
    }
}

/// A command that waits in a list.
pub(crate) enum Command {
    Copy { dst: u64, src: u64, size: u64 },
    Fill(Fill),
    Launch(Box<Launch>),
}

/// A fill, with a pattern of `length` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    dst: u64,
    size: u64,
    pattern: [u8; 16],
    length: u32,
}

/// A place in a queue of OpenCL's: the event of a marker, and how the work before it ended.
pub(crate) struct Marker {
    context: cl::cl_context,
    event: Event,
    place: Place,
}

// SAFETY: OpenCL's contexts may be used by any thread.
unsafe impl Send for Marker {}
// SAFETY: as above.
unsafe impl Sync for Marker {}

/// A number that OpenCL tells of a queue.
fn number_of<T: Default>(cl: &Cl, raw: cl::cl_command_queue, what: cl::cl_uint) -> Option<T> {
    // SAFETY: R56: a live queue; the size is that of the place.
    cl::number(|size, to| unsafe {
        (cl.clGetCommandQueueInfo)(raw, what, size, to, std::ptr::null_mut())
    })
}

/// Puts a marker into a queue, and gives its event.
fn mark(cl: &'static Cl, queue: cl::cl_command_queue) -> Result<Event> {
    let mut raw = std::ptr::null_mut();
    // SAFETY: a live queue, and a place for the event.
    let status = unsafe { (cl.clEnqueueMarkerWithWaitList)(queue, 0, std::ptr::null(), &mut raw) };
    cl::check(status, "clEnqueueMarkerWithWaitList")?;
    Ok(Event { cl, raw })
}

impl Marker {
    /// When it was reached, on the clock of the device.
    pub(crate) fn time(&self) -> Result<u64> {
        // SAFETY: a live event; the size is that of the place.
        let time = cl::number(|size, to| unsafe {
            let what = cl::CL_PROFILING_COMMAND_END;
            (self.event.cl.clGetEventProfilingInfo)(
                self.event.raw,
                what,
                size,
                to,
                std::ptr::null_mut(),
            )
        });
        time.ok_or_else(|| {
            cl::fault(
                cl::CL_PROFILING_INFO_NOT_AVAILABLE,
                "clGetEventProfilingInfo",
            )
        })
    }
}

impl kit::Marker for Marker {
    fn is_done(&self) -> Result<bool> {
        match self.event.status() {
            Some(status) if status < 0 => {
                // The command that failed says more.
                self.place.outcome()?;
                Err(cl::fault(status, "a command failed").ended())
            }
            Some(status) if status > cl::CL_COMPLETE => Ok(false),
            Some(_) => self.place.outcome().map(|()| true),
            None => Err(cl::fault(cl::CL_INVALID_EVENT, "clGetEventInfo")),
        }
    }

    fn has_failed(&self) -> bool {
        self.place.failure().is_some()
    }

    fn wait(&self) -> Result {
        // SAFETY: one live event.
        let status = unsafe { (self.event.cl.clWaitForEvents)(1, &self.event.raw) };
        if status == cl::CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST {
            // The event itself says more.
            self.is_done()?;
        }
        cl::check(status, "clWaitForEvents")?;
        self.place.outcome()
    }
}

impl kit::Lane for Lane {
    type Command = Command;
    type Marker = Marker;

    fn issue(&self, command: Command, origin: Origin) -> Result {
        match command {
            Command::Copy { dst, src, size } => self.copy(dst, src, size, origin),
            Command::Fill(fill) => self.fill(&fill, origin),
            Command::Launch(launch) => launch.issue(self.raw(), &self.unseen, origin),
        }
    }

    fn mark(&self, timed: bool) -> Result<Marker> {
        if timed && !self.profiled && self.timing.get().is_none() {
            if self.fixed.load(Ordering::Acquire) {
                return self.mark_beside();
            }
            self.take_timestamps()?;
        }
        self.mark_in(self.raw())
    }

    fn has_timestamps(&self) -> bool {
        self.profiled || self.timing.get().is_some() || self.fixed.load(Ordering::Acquire)
    }

    fn join(&self, marker: &Marker) -> Result<bool> {
        // A known failure needs no join: all who wait for the marker are told of it.
        if marker.context != self.device().context().raw || marker.place.failure().is_some() {
            return Ok(false);
        }
        let barrier = self.open.cl.clEnqueueBarrierWithWaitList;
        let (wait, what) = (
            Of::Wait(marker.place.clone()),
            "clEnqueueBarrierWithWaitList",
        );
        let put = self.unseen.put(wait, what, |event| {
            // SAFETY: a live queue, one live event of its context, and a place for the new one.
            unsafe { barrier(self.raw(), 1, &marker.event.raw, event) }
        });
        put.map(|()| true)
    }

    fn flush(&self) -> Result {
        // SAFETY: a live queue.
        cl::check(unsafe { (self.open.cl.clFlush)(self.raw()) }, "clFlush")
    }

    fn finish(&self) -> Result {
        let place = self.unseen.place();
        // SAFETY: a live queue.
        let finished = cl::check(unsafe { (self.open.cl.clFinish)(self.raw()) }, "clFinish");
        let finished = finished.or_else(|refusal| {
            // The call does not say whether work has failed or the wait was refused. A marker does.
            let marker = kit::Lane::mark(self, false).map_err(|_| refusal)?;
            kit::Marker::wait(&marker)
        });
        match &finished {
            Err(refusal) if !refusal.is_end() => finished,
            _ => place.report().and(finished),
        }
    }
}

impl Lane {
    #[inline]
    pub(crate) fn raw(&self) -> cl::cl_command_queue {
        self.timing.get().map_or(self.plain, |timing| timing.0)
    }

    fn device(&self) -> &Device {
        &self.open.devices[self.device as usize]
    }

    /// The commands whose end has not been seen, and how those before them ended.
    #[inline]
    pub(crate) fn unseen(&self) -> &Unseen {
        &self.unseen
    }

    /// A marker in one of its queues, behind all commands so far.
    fn mark_in(&self, queue: cl::cl_command_queue) -> Result<Marker> {
        let place = self.unseen.place();
        Ok(Marker {
            context: self.device().context().raw,
            event: mark(self.open.cl, queue)?,
            place,
        })
    }

    /// A lane over a queue that another library has made.
    ///
    /// # Safety
    /// R56: `raw` is a live queue.
    unsafe fn over(open: &Arc<Open>, index: u32, raw: cl::cl_command_queue) -> Result<Self> {
        let (cl, device) = (open.cl, open.device(index)?);
        let of_context = number_of::<usize>(cl, raw, cl::CL_QUEUE_CONTEXT);
        let of_device = number_of::<usize>(cl, raw, cl::CL_QUEUE_DEVICE);
        let properties = number_of::<u64>(cl, raw, cl::CL_QUEUE_PROPERTIES);
        let (Some(of_context), Some(of_device), Some(properties)) =
            (of_context, of_device, properties)
        else {
            let text = format!("{raw:p} is no cl_command_queue: clGetCommandQueueInfo refuses it");
            return Err(Fault::argument(text));
        };
        if of_device != device.id as usize {
            let text = format!("the cl_command_queue {raw:p} is not of device {index}");
            return Err(Fault::new(c::OTR_ERR_INVALID_DEVICE, text));
        }
        if of_context != device.context().raw as usize {
            return Err(Fault::argument(format!(
                "the cl_command_queue {raw:p} is of another context, which does not see the device's memory: make it in \
                 the context of a queue whose native handle was asked for (CL_QUEUE_CONTEXT)"
            )));
        }
        if properties & cl::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0 {
            return Err(Fault::argument(format!(
                "the cl_command_queue {raw:p} runs out of order: make it without \
                 CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE"
            )));
        }
        // SAFETY: a live queue, which `drop` releases.
        let retained = unsafe { (cl.clRetainCommandQueue)(raw) };
        cl::check(retained, "clRetainCommandQueue")?;
        Ok(Self {
            open: Arc::clone(open),
            device: index,
            plain: raw,
            timing: OnceLock::new(),
            fixed: AtomicBool::new(true),
            beside: OnceLock::new(),
            profiled: properties & cl::CL_QUEUE_PROFILING_ENABLE != 0,
            unseen: Unseen::new(cl),
        })
    }

    /// A marker with a timestamp, in a queue of its own that comes behind the plain one here.
    fn mark_beside(&self) -> Result<Marker> {
        let (cl, device) = (self.open.cl, self.device());
        let here = self.mark_in(self.plain)?;
        kit::Lane::flush(self)?;
        let beside = match self.beside.get() {
            Some(beside) => beside,
            None => {
                let new = Timing(create_queue(cl, device.id, device.context(), true)?);
                self.beside.get_or_init(|| new)
            }
        };
        let barrier = cl.clEnqueueBarrierWithWaitList;
        // SAFETY: a live queue, and one live event of its context.
        let status = unsafe { barrier(beside.0, 1, &here.event.raw, std::ptr::null_mut()) };
        cl::check(status, "clEnqueueBarrierWithWaitList")?;
        let marker = Marker {
            event: mark(cl, beside.0)?,
            ..here
        };
        // SAFETY: a live queue.
        cl::check(unsafe { (cl.clFlush)(beside.0) }, "clFlush")?;
        Ok(marker)
    }

    /// Puts a queue with timestamps in the place of the plain one. Nobody else uses the lane meanwhile.
    fn take_timestamps(&self) -> Result {
        let (cl, device) = (self.open.cl, self.device());
        let event = mark(cl, self.plain)?;
        kit::Lane::flush(self)?;
        let timing = Timing(create_queue(cl, device.id, device.context(), true)?);
        // Later commands come behind all that went before. The new queue takes the place last, so that none comes
        // otherwise.
        let barrier = cl.clEnqueueBarrierWithWaitList;
        // SAFETY: a live queue, and one live event of its context.
        let status = unsafe { barrier(timing.0, 1, &event.raw, std::ptr::null_mut()) };
        cl::check(status, "clEnqueueBarrierWithWaitList").inspect_err(|_| {
            // SAFETY: made above, and used by nobody.
            unsafe { (cl.clReleaseCommandQueue)(timing.0) };
        })?;
        self.timing.get_or_init(|| timing);
        Ok(())
    }

    fn copy(&self, dst: u64, src: u64, size: u64, origin: Origin) -> Result {
        let (to, from) = (dst as *mut c_void, src as *const c_void);
        let copy = self.open.cl.clEnqueueSVMMemcpy;
        let (wait, size, none) = (cl::CL_FALSE, size as usize, std::ptr::null());
        let of = Of::Submission(origin);
        self.unseen.put(of, "clEnqueueSVMMemcpy", |event| {
            // SAFETY: R26: both ranges are live until the copy has finished, and do not overlap.
            unsafe { copy(self.raw(), wait, to, from, size, 0, none, event) }
        })
    }

    /// OpenCL wants the destination aligned to the pattern, which the contract does not. So a fill may take some
    /// smaller ones at its ends, with the pattern turned to where they begin.
    fn fill(&self, fill: &Fill, origin: Origin) -> Result {
        let (mut at, end, length) = (fill.dst, fill.dst + fill.size, u64::from(fill.length));
        let mut calls = Sequence::default();
        while at < end {
            let mut step = length;
            while at % step != 0 || step > end - at {
                step /= 2;
            }
            let size = if step < length {
                step
            } else {
                (end - at) / length * length
            };
            let mut piece = fill.pattern;
            for (index, byte) in piece[..step as usize].iter_mut().enumerate() {
                *byte = fill.pattern[((at - fill.dst + index as u64) % length) as usize];
            }
            let (enqueue, none) = (self.open.cl.clEnqueueSVMMemFill, std::ptr::null());
            let (to, pattern) = (at as *mut c_void, piece.as_ptr().cast());
            let (step, bytes) = (step as usize, size as usize);
            let of = Of::Submission(origin);
            calls.next(self.unseen.put(of, "clEnqueueSVMMemFill", |event| {
                // SAFETY: R12: the range is live until the fill has finished; OpenCL copies the pattern.
                unsafe { enqueue(self.raw(), to, pattern, step, bytes, 0, none, event) }
            }))?;
            at += size;
        }
        Ok(())
    }
}

impl Unfinished for Ordered {
    fn wait_until(&self, deadline: Instant) -> Result {
        let marker = kit::Lane::mark(self.lane(), false)?;
        kit::Lane::flush(self.lane())?;
        while !kit::Marker::is_done(&marker)? && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

/// The handle of a queue.
pub(crate) struct Queue {
    pub(crate) open: Arc<Open>,
    pub(crate) device: u32,
    pub(crate) ordered: Arc<Ordered>,
}

impl Queue {
    /// A queue of the host's over a lane.
    fn over(lane: Lane) -> Self {
        let open = Arc::clone(&lane.open);
        let device = lane.device;
        let queue = Self {
            ordered: kit::Queue::new(lane, &open.pool),
            open,
            device,
        };
        let unfinished: Arc<dyn Unfinished> = queue.ordered.clone();
        exit::remember(&unfinished);
        queue.open.queues.fetch_add(1, Ordering::Relaxed);
        queue
    }
}

impl Object for Queue {
    type Raw = c::otr_queue;
    const KIND: u64 = 0x6f63_6c20_7175_6575;
    const NAME: &'static str = "the queue";
}

/// The queue behind a handle.
///
/// # Safety
/// R8: the handle is NULL, or one of this driver's that no other call destroys.
#[inline]
pub(crate) unsafe fn get<'a>(handle: *mut c::otr_queue) -> Result<&'a Queue> {
    // SAFETY: this function's contract.
    unsafe { handle::get::<Queue>(handle) }
}

/// # Safety
/// R1, R8, R10.
pub(crate) unsafe fn create(
    handle: *mut c::otr_driver,
    device: u32,
    params: *const c::otr_queue_params,
    place: *mut *mut c::otr_queue,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    let of = open.device(device)?;
    let place = Out::new(place, "the place for the queue")?;
    if !params.is_null() {
        // There is one priority, to which all others are clamped.
        // SAFETY: not NULL, so a struct of its size (R1).
        let flags = unsafe { field!(params, c::otr_queue_params, flags) }.unwrap_or(0);
        if flags != 0 {
            return Err(Fault::argument(format!(
                "queue flags {flags:#x} are unknown: pass 0"
            )));
        }
    }
    let lane = Lane {
        plain: create_queue(open.cl, of.id, of.context(), false)?,
        open: Arc::clone(open),
        device,
        timing: OnceLock::new(),
        fixed: AtomicBool::new(false),
        beside: OnceLock::new(),
        profiled: false,
        unseen: Unseen::new(open.cl),
    };
    place.give(handle::give(Queue::over(lane)));
    Ok(())
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn native_handle(handle: *mut c::otr_queue, place: *mut u64) -> Result {
    // SAFETY: this function's contract.
    let queue = unsafe { get(handle)? };
    let place = Out::new(place, "the place for the native queue")?;
    let lane = queue.ordered.lane();
    // First: from here on no other queue takes its place.
    lane.fixed.store(true, Ordering::Release);
    queue.ordered.begin_sharing();
    queue.ordered.settle()?;
    place.give(lane.raw() as u64);
    Ok(())
}

/// # Safety
/// R8, R10, R56.
pub(crate) unsafe fn native_adopt(
    handle: *mut c::otr_driver,
    device: u32,
    native: u64,
    place: *mut *mut c::otr_queue,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    open.device(device)?;
    let place = Out::new(place, "the place for the queue")?;
    if native == 0 {
        return Err(null("the cl_command_queue"));
    }
    // SAFETY: not NULL; R56: a live queue.
    let lane = unsafe { Lane::over(open, device, native as cl::cl_command_queue)? };
    let queue = Queue::over(lane);
    queue.ordered.begin_sharing();
    place.give(handle::give(queue));
    Ok(())
}

/// # Safety
/// R8: no other call uses the queue.
pub(crate) unsafe fn destroy(handle: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    let queue = unsafe { handle::take::<Queue>(handle)? };
    queue.ordered.retire();
    queue.open.queues.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// # Safety
/// R8.
pub(crate) unsafe fn query(handle: *mut c::otr_queue) -> Result<Progress> {
    // SAFETY: this function's contract.
    unsafe { get(handle)? }.ordered.query()
}

/// # Safety
/// R8.
pub(crate) unsafe fn synchronize(handle: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    unsafe { get(handle)? }.ordered.synchronize()
}

/// # Safety
/// R8.
pub(crate) unsafe fn flush(handle: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    unsafe { get(handle)? }.ordered.flush()
}

/// # Safety
/// R8, R26.
pub(crate) unsafe fn copy(handle: *mut c::otr_queue, copy: *const c::otr_copy) -> Result {
    // SAFETY: this function's contract.
    let (queue, copy) = unsafe { (get(handle)?, given::copy(copy)?) };
    let (from_device, to_device) = match copy.kind {
        c::OTR_COPY_HOST_TO_DEVICE => (false, true),
        c::OTR_COPY_DEVICE_TO_HOST => (true, false),
        c::OTR_COPY_DEVICE_TO_DEVICE => (true, true),
        c::OTR_COPY_HOST_TO_HOST => (false, false),
        kind => {
            return Err(Fault::argument(format!(
                "copy kind {kind} is unknown: they are 1 to 4"
            )));
        }
    };
    let side = |device| if device { Some(queue.device) } else { None };
    submit_copy(
        queue,
        (side(to_device), copy.dst),
        (side(from_device), copy.src),
        copy.size,
    )
}

/// A copy between places on a device, or on the host without one.
pub(crate) fn submit_copy(
    queue: &Queue,
    (to, dst): (Option<u32>, u64),
    (from, src): (Option<u32>, u64),
    size: u64,
) -> Result {
    if size == 0 {
        return Ok(());
    }
    if dst == 0 || src == 0 {
        return Err(null("the source or the destination of a copy"));
    }
    if dst.wrapping_sub(src) < size || src.wrapping_sub(dst) < size {
        return Err(Fault::argument(format!(
            "the {size} bytes at {src:#x} and at {dst:#x} overlap"
        )));
    }
    for (device, address) in [(from, src), (to, dst)] {
        if let Some(device) = device {
            queue.open.allocations.check(device, address, size)?;
        }
    }
    queue.ordered.submit(
        Label::NONE,
        |lane, origin| lane.copy(dst, src, size, origin),
        |_| Ok(Command::Copy { dst, src, size }),
    )
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn fill(handle: *mut c::otr_queue, fill: *const c::otr_fill) -> Result {
    // SAFETY: this function's contract.
    let (queue, given) = unsafe { (get(handle)?, given::params(fill, "the fill")?) };
    let (dst, size) = (given.dst, given.size);
    let (pattern, length) = (given.pattern, given.pattern_size);
    if !matches!(length, 1 | 2 | 4 | 8 | 16) {
        return Err(Fault::argument(format!(
            "a pattern has 1, 2, 4, 8 or 16 bytes, not {length}"
        )));
    }
    if !size.is_multiple_of(u64::from(length)) {
        return Err(Fault::argument(format!(
            "the size, {size}, is not a multiple of the {length} bytes of the pattern"
        )));
    }
    if size == 0 {
        return Ok(());
    }
    if pattern.is_null() {
        return Err(null("the pattern"));
    }
    queue.open.allocations.check(queue.device, dst, size)?;
    let mut bytes = [0; 16];
    // SAFETY: R10: not NULL, so as many bytes, of which there are at most 16.
    unsafe {
        std::ptr::copy_nonoverlapping(pattern.cast(), bytes.as_mut_ptr(), length as usize);
    }
    let fill = Fill {
        dst,
        size,
        pattern: bytes,
        length,
    };
    queue.ordered.submit(
        Label::NONE,
        |lane, origin| lane.fill(&fill, origin),
        |_| Ok(Command::Fill(fill)),
    )
}

/// # Safety
/// R8, R27.
pub(crate) unsafe fn host_call(handle: *mut c::otr_queue, call: *const c::otr_host_call) -> Result {
    // SAFETY: this function's contract.
    let (queue, call) = unsafe { (get(handle)?, given::params(call, "the host call")?) };
    queue
        .ordered
        .host_call(call.function, call.user, call.flags)
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn can_access(
    handle: *mut c::otr_driver,
    device: u32,
    peer: u32,
    yes: *mut u32,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    let (one, other) = (open.device(device)?, open.device(peer)?);
    let yes = Out::new(yes, "the place for the answer")?;
    yes.give(u32::from(reaches(one, other)));
    Ok(())
}

/// Devices of one platform share a context, and so their memory.
fn reaches(one: &Device, other: &Device) -> bool {
    Arc::ptr_eq(one.context(), other.context())
}

/// # Safety
/// R8, R26.
pub(crate) unsafe fn peer_copy(handle: *mut c::otr_queue, copy: *const c::otr_copy) -> Result {
    // SAFETY: this function's contract.
    let (queue, copy) = unsafe { (get(handle)?, given::peer_copy(copy)?) };
    let (dst_device, src_device, size) = (copy.dst_device, copy.src_device, copy.size);
    let (to, from) = (
        queue.open.device(dst_device)?,
        queue.open.device(src_device)?,
    );
    if queue.device != dst_device && queue.device != src_device {
        return Err(Fault::new(
            c::OTR_ERR_INVALID_DEVICE,
            format!(
                "a copy from device {src_device} to device {dst_device} on a queue of device {}",
                queue.device
            ),
        ));
    }
    // A copy of nothing reaches nothing (R25).
    if size > 0 && !reaches(to, from) {
        return Err(Fault::unsupported(format!(
            "device {src_device} and device {dst_device} are of two platforms: copy through the host"
        )));
    }
    submit_copy(
        queue,
        (Some(dst_device), copy.dst),
        (Some(src_device), copy.src),
        size,
    )
}
