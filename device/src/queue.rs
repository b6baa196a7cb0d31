//! In-order queues of a device. The module is thin on purpose: a submission is one call through the
//! table, and only a failure costs more.
//!
//! Behind a host call that may fail a queue holds: what is submitted is kept, in `held`, until the call has been made.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::fork::{forked, refuse_fork};
use crate::held::{self, Call, Command, Held, HeldPoint, Mark, OperatorCall, Under};
use crate::kernel::{Kernel, Operator};
use crate::profile::{self, Lane, Stream, What, WorkKind};
use crate::table::{entry, hole};
use crate::{Code, Driver, Error, Event, Result, params, sys};

/// What profiles call a host call that has no name.
const HOST_CALL: &CStr = c"host call";

/// A function that a queue calls on the host, as in `base.h`: user data and upstream code in, outcome
/// out.
pub type HostFn = unsafe extern "C" fn(user: *mut c_void, upstream: i32) -> i32;

/// What a copy moves: from where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyKind {
    /// Host memory to device memory.
    HostToDevice,
    /// Device memory to host memory.
    DeviceToHost,
    /// Within one device.
    DeviceToDevice,
    /// Both ends host memory, in stream order.
    HostToHost,
}

impl CopyKind {
    /// The number of `base.h`.
    #[inline]
    pub const fn raw(self) -> u32 {
        match self {
            Self::HostToDevice => sys::OTR_COPY_HOST_TO_DEVICE,
            Self::DeviceToHost => sys::OTR_COPY_DEVICE_TO_HOST,
            Self::DeviceToDevice => sys::OTR_COPY_DEVICE_TO_DEVICE,
            Self::HostToHost => sys::OTR_COPY_HOST_TO_HOST,
        }
    }

    /// The kind of a number of `base.h`; `None` for any other number.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            sys::OTR_COPY_HOST_TO_DEVICE => Some(Self::HostToDevice),
            sys::OTR_COPY_DEVICE_TO_HOST => Some(Self::DeviceToHost),
            sys::OTR_COPY_DEVICE_TO_DEVICE => Some(Self::DeviceToDevice),
            sys::OTR_COPY_HOST_TO_HOST => Some(Self::HostToHost),
            _ => None,
        }
    }

    /// What profiles call the copy.
    const fn name(self) -> &'static str {
        match self {
            Self::HostToDevice => "copy host to device",
            Self::DeviceToHost => "copy device to host",
            Self::DeviceToDevice => "copy",
            Self::HostToHost => "copy host to host",
        }
    }

    /// Whether the destination is device memory.
    #[inline]
    pub const fn writes_device(self) -> bool {
        matches!(self, Self::HostToDevice | Self::DeviceToDevice)
    }

    /// Whether the source is device memory.
    #[inline]
    pub const fn reads_device(self) -> bool {
        matches!(self, Self::DeviceToHost | Self::DeviceToDevice)
    }
}

/// An in-order queue. Dropping it does not wait: work that was submitted still runs (R11).
pub struct Queue {
    handle: NonNull<sys::otr_queue>,
    device: u32,
    lane: Option<Arc<Lane>>,
    /// The queue of the driver, which goes when this and all that it holds has gone.
    order: Arc<Held>,
    // Declared last: the driver stays open until the queue is destroyed.
    driver: Driver,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if !forked() && !self.order.is_open() && self.order.standing().is_none() {
            self.order.lane().leave();
            self.order.ask();
        }
    }
}

/// How a kernel is spread over a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Work-groups in each dimension.
    pub groups: [u32; 3],
    /// Work-items of a group in each dimension.
    pub items: [u32; 3],
    /// Bytes of local memory of a group, besides those of arguments.
    pub shared_bytes: u32,
}

impl Grid {
    /// One work-item, as host functions have.
    pub const ONE: Self = Self {
        groups: [1; 3],
        items: [1; 3],
        shared_bytes: 0,
    };
}

/// Pieces of memory of one size that lie apart, as the lines of a matrix do within a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where the first one goes: a device address or a host pointer.
    pub dst: u64,
    /// Where it comes from.
    pub src: u64,
    /// The bytes of each.
    pub size: u64,
    /// How many there are.
    pub count: u32,
    /// Bytes from one to the next where they go.
    pub dst_pitch: u64,
    /// Bytes from one to the next where they come from.
    pub src_pitch: u64,
}

/// The argument block of a launch, and what stands where in it, in the order of the kernel's parameters. Host
/// functions need no parts.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// The packed block.
    pub block: &'a [u8],
    /// Its parts.
    pub parts: &'a [sys::otr_argument],
}

impl Queue {
    pub(crate) fn create(driver: &Driver, device: u32, priority: i32) -> Result<Self> {
        let params = sys::otr_queue_params {
            struct_size: size_of::<sys::otr_queue_params>(),
            next: std::ptr::null(),
            priority,
            flags: 0,
        };
        let mut handle = std::ptr::null_mut();
        let create = entry!(driver.table().api, queue_create);
        // SAFETY: the driver is open; params and handle live through the call.
        driver.check(unsafe { create(driver.handle(), device, &params, &mut handle) })?;
        match NonNull::new(handle) {
            Some(handle) => Ok(Self::of(driver, device, handle)),
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for a queue",
            )),
        }
    }

    /// A queue that the driver has made.
    pub(crate) fn of(driver: &Driver, device: u32, handle: NonNull<sys::otr_queue>) -> Self {
        Self {
            handle,
            device,
            lane: None,
            order: Under::of(driver, device, handle),
            driver: driver.clone(),
        }
    }

    /// The index of the device within its driver.
    #[inline]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The driver of the queue.
    #[inline]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Lets profiles show the queue's work, as that of a stream. The queue never records a graph.
    pub fn profile_as(&mut self, stream: Stream) {
        self.lane = Some(Arc::new(Lane::new(stream)));
    }

    /// Gives the queue a command, by a call that answers with its code. While the queue holds, it is given what `kept`
    /// makes: the same command with copies of all that it needs (R30). Where a profile runs, the command is noted there.
    #[inline]
    pub(crate) fn submit(
        &self,
        what: impl FnOnce() -> What,
        command: impl FnOnce() -> i32,
        kept: impl FnOnce() -> Command,
    ) -> Result<()> {
        let submit = || {
            if self.order.is_open() {
                return self.driver.check(command());
            }
            self.hold(kept())
        };
        if profile::is_on()
            && let Some(lane) = &self.lane
        {
            return lane.submit(self, what(), submit);
        }
        submit()
    }

    /// The same for a call that owns what it needs.
    #[inline]
    pub(crate) fn submit_owned(
        &self,
        what: impl FnOnce() -> What,
        command: impl FnOnce() -> i32 + Copy + 'static,
    ) -> Result<()> {
        self.submit(what, command, move || Command::new(command))
    }

    #[cold]
    fn hold(&self, command: Command) -> Result<()> {
        let place = self.order.keep(command);
        self.held_at(place);
        Ok(())
    }

    /// Something is held. A queue that another library uses holds nothing when a call returns, unless the driver refuses
    /// something: then it stays, and the call has submitted it all the same.
    fn held_at(&self, place: u64) {
        if self.order.lane().is_shared() {
            let _ = held::wait(&self.order, place);
        }
    }

    /// A point behind all that the queue was given, while it holds.
    pub(crate) fn keep_mark(&self, mark: Mark) -> Arc<HeldPoint> {
        let (place, point) = self.order.keep_mark(mark);
        self.held_at(place);
        point
    }

    /// The order around host calls.
    pub(crate) fn order(&self) -> &Arc<Held> {
        &self.order
    }

    /// Waits until the queue holds nothing.
    ///
    /// # Errors
    /// `CANCELLED` for a queue that has failed by a host call; what the driver refuses.
    pub(crate) fn settle(&self) -> Result<()> {
        if self.order.is_open() {
            return Ok(());
        }
        held::wait(&self.order, self.order.end())?;
        match self.order.standing() {
            Some(Some(failure)) => Err(Error::new(
                Code::CANCELLED,
                format!("the queue has failed before: {failure}"),
            )),
            _ => Ok(()),
        }
    }

    /// The handle, for who calls the driver's table itself.
    #[inline]
    pub fn raw(&self) -> *mut sys::otr_queue {
        self.handle.as_ptr()
    }

    /// Copies `size` bytes. Each end is a device address or a host pointer, as `kind` says.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a range that the driver can see is wrong.
    ///
    /// # Safety
    /// Both ranges are live and otherwise untouched until the copy has finished, and do not overlap.
    #[inline]
    pub unsafe fn copy(&self, dst: u64, src: u64, size: u64, kind: CopyKind) -> Result<()> {
        refuse_fork()?;
        let copy = entry!(self.driver.table().api, copy);
        let params = params::copy(dst, src, size, kind.raw());
        let queue = self.raw();
        self.submit_owned(
            move || What::new(WorkKind::Copy, kind.name(), size),
            // SAFETY: the queue is live; R26: both ranges stay valid until the copy has finished, and do
            // not overlap.
            move || unsafe { copy(queue, &params) },
        )
    }

    /// Copies rows that lie apart. A driver that does not copy rows is given a copy for each of them; then a failure in
    /// between leaves the rows before it submitted.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a pitch that is less than a row, and for a range that the driver can see is wrong.
    ///
    /// # Safety
    /// All rows are live and otherwise untouched until the copy has finished, and do not overlap.
    pub unsafe fn copy_rows(&self, rows: &Rows, kind: CopyKind) -> Result<()> {
        refuse_fork()?;
        if rows.count > 1 && rows.dst_pitch.min(rows.src_pitch) < rows.size {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "rows of {} bytes that begin {} and {} bytes apart: a pitch is at least a row",
                    rows.size, rows.dst_pitch, rows.src_pitch
                ),
            ));
        }
        let copy = entry!(self.driver.table().api, copy);
        let (rows, queue) = (*rows, self.raw());
        let params = sys::otr_copy {
            rows: rows.count,
            dst_pitch: rows.dst_pitch,
            src_pitch: rows.src_pitch,
            ..params::copy(rows.dst, rows.src, rows.size, kind.raw())
        };
        self.submit_owned(
            move || {
                let bytes = rows.size.saturating_mul(u64::from(rows.count));
                What::new(WorkKind::Copy, kind.name(), bytes)
            },
            // SAFETY: the queue is live; R26: all rows stay valid until the copy has finished, and do not overlap.
            move || unsafe {
                let whole = copy(queue, &params);
                if whole != Code::UNSUPPORTED.0 || rows.count <= 1 {
                    return whole;
                }
                // A row that begins behind all addresses is for the driver to refuse.
                let row = |row: u64| {
                    let (dst, src) = (
                        rows.dst.wrapping_add(row.wrapping_mul(rows.dst_pitch)),
                        rows.src.wrapping_add(row.wrapping_mul(rows.src_pitch)),
                    );
                    copy(queue, &params::copy(dst, src, rows.size, kind.raw()))
                };
                let mut codes = (0..u64::from(rows.count)).map(row);
                codes.find(|code| *code != Code::OK.0).unwrap_or(Code::OK.0)
            },
        )
    }

    /// Fills `size` bytes with a pattern of 1, 2, 4, 8 or 16 bytes, of which the size is a multiple.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for another pattern or size, or a range that the driver can see is wrong.
    ///
    /// # Safety
    /// The range is live device memory until the fill has finished.
    #[inline]
    pub unsafe fn fill(&self, dst: u64, size: u64, pattern: &[u8]) -> Result<()> {
        refuse_fork()?;
        let fill = entry!(self.driver.table().api, fill);
        // The driver refuses a length that R28 does not know, so that saturation is as good as any.
        let length = u32::try_from(pattern.len()).unwrap_or(u32::MAX);
        let params = params::fill(dst, size, pattern.as_ptr().cast(), length);
        let params = &params;
        let queue = self.raw();
        self.submit(
            move || What::new(WorkKind::Fill, "fill", size),
            // SAFETY: queue and pattern are live; the range is live device memory until the fill has
            // finished (R12).
            move || unsafe { fill(queue, params) },
            || {
                let pattern = Box::<[u8]>::from(pattern);
                Command::new(move || {
                    let params = params::fill(dst, size, pattern.as_ptr().cast(), length);
                    // SAFETY: as above.
                    unsafe { fill(queue, &params) }
                })
            },
        )
    }

    /// Calls `function` on a thread of the driver's choice, in queue order and exactly once.
    ///
    /// It gets the failure of the work before it, if there is one: then it only cleans up. What it
    /// returns is the outcome of the command; a panic in it counts as `EXECUTION`. It must not call
    /// into a driver (R27).
    ///
    /// # Errors
    /// What the driver answers; then `function` is dropped without having been called.
    pub fn host_call<F>(&self, function: F) -> Result<()>
    where
        F: FnOnce(Result<(), Code>) -> Result<(), Code> + Send + 'static,
    {
        self.host_call_named(HOST_CALL, function)
    }

    /// The same; `label` names the call in profiles.
    ///
    /// # Errors
    /// Those of [`host_call`](Self::host_call).
    pub fn host_call_named<F>(&self, label: &'static CStr, function: F) -> Result<()>
    where
        F: FnOnce(Result<(), Code>) -> Result<(), Code> + Send + 'static,
    {
        self.call_once(label, function, 0)
    }

    fn call_once<F>(&self, label: &'static CStr, function: F, flags: u32) -> Result<()>
    where
        F: FnOnce(Result<(), Code>) -> Result<(), Code> + Send + 'static,
    {
        let user = Box::into_raw(Box::new(function));
        // SAFETY: `call_boxed::<F>` is called at most once with this pointer, and takes it over.
        let submitted = unsafe { self.call(label, call_boxed::<F>, user.cast(), flags) };
        if submitted.is_err() {
            // SAFETY: R4: a failed submission has changed nothing, so the pointer is still ours.
            drop(unsafe { Box::from_raw(user) });
        }
        submitted
    }

    /// Calls a function that cannot fail, in queue order and exactly once: the driver gets it as it is, and the queue does
    /// not hold. It is told of the failure of the work before it, if there is one. It must not call into a driver (R27).
    ///
    /// # Errors
    /// What the driver answers; `CAPTURE` on a queue that records, whose graph would call it more than once. Then
    /// `function` is dropped without having been called.
    pub fn callback<F>(&self, function: F) -> Result<()>
    where
        F: FnOnce(Result<(), Code>) + Send + 'static,
    {
        if self.order.lane().is_recording() {
            return Err(Error::new(
                Code::CAPTURE,
                "a function that is called once is no part of a graph: use `host_call_raw`",
            ));
        }
        let boxed = |upstream| {
            function(upstream);
            Ok(())
        };
        self.call_once(HOST_CALL, boxed, sys::OTR_HOST_CALL_CANNOT_FAIL)
    }

    /// Calls `function(user, upstream)` in queue order and exactly once. `flags` are `OTR_HOST_CALL_*`.
    ///
    /// # Errors
    /// What the driver answers; then `function` is never called.
    ///
    /// # Safety
    /// `function` may be called with `user` on any thread, at any time until it has been, and does not
    /// unwind.
    #[inline]
    pub unsafe fn host_call_raw(
        &self,
        function: HostFn,
        user: *mut c_void,
        flags: u32,
    ) -> Result<()> {
        // SAFETY: this function's contract.
        unsafe { self.call(HOST_CALL, function, user, flags) }
    }

    /// # Safety
    /// The contract of [`host_call_raw`](Self::host_call_raw).
    #[inline]
    unsafe fn call(
        &self,
        label: &'static CStr,
        function: HostFn,
        user: *mut c_void,
        flags: u32,
    ) -> Result<()> {
        refuse_fork()?;
        // SAFETY: this function's contract.
        let submit = || unsafe { self.call_unprofiled(function, user, flags) };
        if profile::is_on()
            && let Some(lane) = &self.lane
        {
            let what = What::new(WorkKind::HostCall, label.to_string_lossy(), 0);
            return lane.submit(self, what, submit);
        }
        submit()
    }

    /// # Safety
    /// The contract of [`host_call_raw`](Self::host_call_raw).
    pub(crate) unsafe fn call_unprofiled(
        &self,
        function: HostFn,
        user: *mut c_void,
        flags: u32,
    ) -> Result<()> {
        if flags & !sys::OTR_HOST_CALL_CANNOT_FAIL != 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "the flags of a host call are {flags:#x}; the only one is OTR_HOST_CALL_CANNOT_FAIL"
                ),
            ));
        }
        let cannot_fail = flags != 0;
        if self.order.is_open() {
            if cannot_fail {
                let host_call = entry!(self.driver.table().api, host_call);
                let params = params::host_call(Some(function), user, flags);
                // SAFETY: the queue is live; R27: this function's contract.
                return self.driver.check(unsafe { host_call(self.raw(), &params) });
            }
            if self.order.lane().is_recording() {
                return Err(Error::new(
                    Code::UNSUPPORTED,
                    "a host call that may fail is no part of a driver's graph: submit it between two graphs",
                ));
            }
        }
        self.order.lane().drained()?;
        let place = self.order.keep_call(Call {
            function,
            user,
            cannot_fail,
        });
        self.held_at(place);
        Ok(())
    }

    /// Launches a kernel. The argument block is copied during the call.
    ///
    /// `cost_ns` is an estimate of its run time, 0 if unknown; `label` names it in failures and traces.
    ///
    /// # Errors
    /// What the driver answers. Failures of the kernel itself come with later queries and waits.
    ///
    /// # Safety
    /// `args` is what the kernel expects, and the memory that it names is live until it has finished.
    #[inline]
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        args: &[u8],
        cost_ns: u32,
        label: &'static CStr,
    ) -> Result<()> {
        let args = Arguments {
            block: args,
            parts: &[],
        };
        // SAFETY: this function's contract is that of `launch_grid`.
        unsafe { self.launch_grid(kernel, &Grid::ONE, args, cost_ns, label) }
    }

    /// Launches a kernel over a grid. Everything else is as in [`launch`](Self::launch).
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch).
    ///
    /// # Safety
    /// The contract of [`launch`](Self::launch).
    #[inline]
    pub unsafe fn launch_grid(
        &self,
        kernel: &Kernel,
        grid: &Grid,
        args: Arguments<'_>,
        cost_ns: u32,
        label: &'static CStr,
    ) -> Result<()> {
        refuse_fork()?;
        let Some(group) = &self.driver.table().kernel else {
            return Err(hole("kernel"));
        };
        let launch = entry!(group, launch);
        let (args, parts) = (args.block, args.parts);
        let (Ok(args_size), Ok(argument_count)) =
            (u32::try_from(args.len()), u32::try_from(parts.len()))
        else {
            return Err(too_many_arguments());
        };
        let params = sys::otr_launch {
            struct_size: size_of::<sys::otr_launch>(),
            next: std::ptr::null(),
            grid: grid.groups,
            block: grid.items,
            shared_bytes: grid.shared_bytes,
            args_size,
            args: args.as_ptr().cast(),
            arguments: if parts.is_empty() {
                std::ptr::null()
            } else {
                parts.as_ptr()
            },
            argument_count,
            cost_ns,
            label: label.as_ptr(),
        };
        let params = &params;
        let (queue, kernel) = (self.raw(), kernel.raw());
        self.submit(
            move || What::new(WorkKind::Kernel, label.to_string_lossy(), 0),
            // SAFETY: queue, kernel and params are live; R7: the memory that `args` names is live until the
            // kernel has finished.
            move || unsafe { launch(queue, kernel, params) },
            || {
                let (args, parts) = (Box::<[u8]>::from(args), Box::<[_]>::from(parts));
                let params = *params;
                Command::new(move || {
                    let arguments = match parts.is_empty() {
                        true => std::ptr::null(),
                        false => parts.as_ptr(),
                    };
                    let params = sys::otr_launch {
                        args: args.as_ptr().cast(),
                        arguments,
                        ..params
                    };
                    // SAFETY: as above.
                    unsafe { launch(queue, kernel, &params) }
                })
            },
        )
    }

    /// Launches an operator of the driver.
    ///
    /// # Errors
    /// What the driver answers. Failures of the work itself come with later queries and waits.
    ///
    /// # Safety
    /// `call` has the signature that `operator` was prepared for; its pointers are valid during the
    /// call, and its memory and the workspace are live until the work has finished.
    pub unsafe fn launch_operator(
        &self,
        operator: &Operator,
        call: &sys::otr_operator_call,
        workspace: u64,
    ) -> Result<()> {
        refuse_fork()?;
        let Some(group) = &self.driver.table().operators else {
            return Err(hole("operators"));
        };
        let launch = entry!(group, launch);
        let name = || {
            // SAFETY: a call has a name, which is valid during the call.
            let name = unsafe { CStr::from_ptr(call.name) };
            name.to_string_lossy().into_owned()
        };
        let (queue, operator) = (self.raw(), operator.raw());
        self.submit(
            move || What::new(WorkKind::Operator, name(), 0),
            // SAFETY: queue and operator are live; R46, R47: `call` is of the prepared signature, and
            // workspace and operands are live until the work has finished.
            move || unsafe { launch(queue, operator, call, workspace) },
            || {
                // SAFETY: this function's contract.
                let call = unsafe { OperatorCall::of(call) };
                // SAFETY: as above, with copies of what the call leads to.
                let launch =
                    move || call.with(|call| unsafe { launch(queue, operator, call, workspace) });
                Command::new(launch)
            },
        )
    }

    /// Lets later work of this queue start after the event's point. Returns at once.
    ///
    /// An event of another driver is waited for on the host, by whoever runs what the queue holds.
    ///
    /// # Errors
    /// What the driver answers.
    #[inline]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        refuse_fork()?;
        if event.is_plain() && self.order.is_open() && event.driver().same_as(&self.driver) {
            let wait = entry!(self.driver.table().api, queue_wait_event);
            // SAFETY: queue and event are live and of the same driver.
            return self.driver.check(unsafe { wait(self.raw(), event.raw()) });
        }
        self.wait_held(event)
    }

    #[cold]
    fn wait_held(&self, event: &Event) -> Result<()> {
        match event.query() {
            Ok(true) => return Ok(()),
            // A failure is handed on.
            Err(error) if !error.is_outcome() && error.code() != Code::CAPTURE => {
                return Err(error);
            }
            _ => {}
        }
        let is_own = event.driver().same_as(&self.driver);
        let Some(point) = event.lend() else {
            // Other processes see the event, so nothing stands for it.
            self.settle()?;
            if !is_own {
                return event.synchronize();
            }
            let wait = entry!(self.driver.table().api, queue_wait_event);
            // SAFETY: queue and event are live and of the same driver.
            return self.driver.check(unsafe { wait(self.raw(), event.raw()) });
        };
        if is_own && self.order.is_open() && matches!(point.reached(), Some(None)) {
            return point.mark().hold_back(self.raw());
        }
        self.wait_point(point);
        Ok(())
    }

    /// Lets later work start behind a point, by the list.
    pub(crate) fn wait_point(&self, point: Arc<HeldPoint>) {
        let place = self.order.keep_wait(point);
        self.held_at(place);
    }

    /// Whether all that was submitted before the call has finished.
    ///
    /// # Errors
    /// The first failure of the queue's work, once all of it is over; why there is no outcome.
    #[inline]
    pub fn query(&self) -> Result<bool> {
        refuse_fork()?;
        let query = entry!(self.driver.table().api, queue_query);
        // SAFETY: the queue is live, and the outcome lives through the call.
        let ask = |outcome| unsafe { query(self.raw(), outcome) };
        if self.order.is_open() {
            return self.driver.ask(ask);
        }
        let Some(failure) = self.order.standing() else {
            self.order.ask();
            return Ok(false);
        };
        match (self.driver.ask(ask), failure) {
            (Ok(false), _) => Ok(false),
            (Err(error), _) if !error.is_outcome() => Err(error),
            (_, Some(failure)) => Err(failure.again()),
            (told, None) => told,
        }
    }

    /// Waits until all that was submitted before the call has finished.
    ///
    /// # Errors
    /// The first failure of the queue's work, which this call clears; why there is no outcome, as `WOULD_DEADLOCK`.
    #[inline]
    pub fn synchronize(&self) -> Result<()> {
        refuse_fork()?;
        let synchronize = entry!(self.driver.table().api, queue_synchronize);
        // SAFETY: the queue is live, and the outcome lives through the call.
        let wait = |outcome| unsafe { synchronize(self.raw(), outcome) };
        if self.order.is_open() {
            return self.driver.wait(wait);
        }
        let begun = self.order.begin();
        held::wait(&self.order, begun.end())?;
        let told = match self.driver.wait(wait) {
            Err(error) if !error.is_outcome() => return Err(error),
            told => told.err().map(Arc::new),
        };
        // Only what is reported as an outcome is cleared.
        let failure = self
            .order
            .report(begun, told, |failure| failure.is_outcome());
        failure.map_or(Ok(()), |failure| Err(failure.again()))
    }

    /// Starts what was submitted.
    ///
    /// # Errors
    /// What the driver answers.
    #[inline]
    pub fn flush(&self) -> Result<()> {
        refuse_fork()?;
        if !self.order.is_open() {
            self.order.ask();
        }
        match self.driver.table().api.queue_flush {
            // SAFETY: the queue is live.
            Some(flush) => self.driver.check(unsafe { flush(self.raw()) }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("driver", &self.driver.name())
            .field("device", &self.device)
            .field("handle", &self.handle)
            .finish()
    }
}

#[cold]
fn too_many_arguments() -> Error {
    Error::new(
        Code::INVALID_ARGUMENT,
        "an argument block of 4 GiB or more; put it into memory",
    )
}

/// Calls a boxed closure as a host call.
///
/// # Safety
/// `user` comes from `Box::<F>::into_raw` and is passed here once.
unsafe extern "C" fn call_boxed<F>(user: *mut c_void, upstream: i32) -> i32
where
    F: FnOnce(Result<(), Code>) -> Result<(), Code>,
{
    // SAFETY: R27: called once, with what `Box::<F>::into_raw` gave.
    let function = unsafe { Box::from_raw(user.cast::<F>()) };
    let upstream = if upstream == Code::OK.0 {
        Ok(())
    } else {
        Err(Code(upstream))
    };
    // Whatever the closure left half done is its own; only the outcome is used here.
    match catch_unwind(AssertUnwindSafe(|| function(upstream))) {
        Ok(Ok(())) => Code::OK.0,
        // Codes that are no failures would read as success further on.
        Ok(Err(Code::OK | Code::NOT_READY)) => Code::EXECUTION.0,
        Ok(Err(code)) => code.0,
        Err(payload) => {
            // Dropping what was thrown could throw again, across the C boundary.
            std::mem::forget(payload);
            Code::EXECUTION.0
        }
    }
}
