//! What a queue holds, and how it reaches the driver: commands with copies of all that they were given (R30), host calls,
//! and events of the driver's as marks. When which of them runs, `order` decides.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fork::forked;
use crate::order::{Job, Lane, Order, Point, Threads, Trouble};
use crate::table::entry;
use crate::{Code, Driver, Error, HostFn, RawDriver, Result, foreign_call, params, sys};

/// The order of a queue.
pub(crate) type Held = Order<Under>;
/// A point of an event that was recorded on a queue that held.
pub(crate) type HeldPoint = Point<Under>;

thread_local! {
    /// Whether the thread makes a host call that was held.
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

/// A queue of a driver's, which is destroyed with this.
pub(crate) struct Under {
    queue: NonNull<sys::otr_queue>,
    device: u32,
    threads: Threads,
    /// The event that is waited for before a host call.
    drained: OnceLock<Mark>,
    /// Whether the queue records a graph.
    records: AtomicBool,
    /// Whether another library uses the queue, which must not find it in the middle of a list.
    shared: AtomicBool,
    /// Whether the queue was dropped while there was something in its list.
    leaves: AtomicBool,
    raw: Arc<RawDriver>,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Under {}
// SAFETY: as above.
unsafe impl Sync for Under {}

impl Drop for Under {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        if let Some(destroy) = self.raw.table().api.queue_destroy {
            // SAFETY: the handle is live and nobody else holds this value.
            let destroyed = self.raw.check(unsafe { destroy(self.queue.as_ptr()) });
            if let Err(error) = destroyed {
                tracing::warn!(target: "outrigger::device", %error, "a queue could not be destroyed");
            }
        }
        if *self.leaves.get_mut() {
            self.threads.has_left();
        }
    }
}

impl Under {
    pub(crate) fn of(driver: &Driver, device: u32, queue: NonNull<sys::otr_queue>) -> Arc<Held> {
        Order::new(Self {
            queue,
            device,
            threads: driver.threads().clone(),
            drained: OnceLock::new(),
            records: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            raw: Arc::clone(driver.shared()),
        })
    }

    /// Notes whether the queue records a graph.
    pub(crate) fn set_recording(&self, records: bool) {
        self.records.store(records, Ordering::Release);
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.records.load(Ordering::Acquire)
    }

    /// From now on another library uses the queue, too.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Release);
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    /// The queue was dropped while there was something in its list.
    pub(crate) fn leave(&self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.threads.leaves();
    }

    /// The event that is waited for before a host call. It is made before the first one is kept, so that none fails for it.
    ///
    /// # Errors
    /// What the driver answers.
    pub(crate) fn drained(&self) -> Result<&Mark> {
        if let Some(mark) = self.drained.get() {
            return Ok(mark);
        }
        let mark = Mark::create(&self.raw, self.device, false)?;
        Ok(self.drained.get_or_init(|| mark))
    }
}

/// Waits until a list has come to a place.
///
/// # Errors
/// What the driver refuses; `WOULD_DEADLOCK` in a host call that was held, which must not wait for others.
pub(crate) fn wait(order: &Arc<Held>, place: u64) -> Result<()> {
    if CALLS.get() && !order.is_done(place) {
        return Err(deadlock());
    }
    order.wait(place)
}

/// The same for a point.
///
/// # Errors
/// Those of [`wait`].
pub(crate) fn wait_for(point: &HeldPoint) -> Result<()> {
    if CALLS.get() && point.reached().is_none() {
        return Err(deadlock());
    }
    point.wait()
}

#[cold]
fn deadlock() -> Error {
    Error::new(
        Code::WOULD_DEADLOCK,
        "a wait in a host call for work that has not run, which may be behind this very call: wait outside of it",
    )
}

/// An event of a driver's, which is destroyed with this.
pub(crate) struct Mark {
    event: NonNull<sys::otr_drv_event>,
    raw: Arc<RawDriver>,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Drop for Mark {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let Some(destroy) = self.raw.table().api.event_destroy else {
            return;
        };
        // SAFETY: the handle is live and nobody else holds this value.
        if let Err(error) = self.raw.check(unsafe { destroy(self.event.as_ptr()) }) {
            tracing::warn!(target: "outrigger::device", %error, "an event could not be destroyed");
        }
    }
}

impl Mark {
    /// # Errors
    /// What the driver answers.
    pub(crate) fn create(raw: &Arc<RawDriver>, device: u32, timing: bool) -> Result<Self> {
        let params = params::event(if timing { sys::OTR_EVENT_TIMING } else { 0 });
        let mut handle = std::ptr::null_mut();
        let create = entry!(raw.table().api, event_create);
        // SAFETY: the driver is open; the parameters and the handle live through the call.
        raw.check(unsafe { create(raw.handle(), device, &params, &mut handle) })?;
        match NonNull::new(handle) {
            Some(event) => Ok(Self::of(raw, event)),
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for an event",
            )),
        }
    }

    /// Takes over an event of the driver's.
    pub(crate) fn of(raw: &Arc<RawDriver>, event: NonNull<sys::otr_drv_event>) -> Self {
        Self {
            event,
            raw: Arc::clone(raw),
        }
    }

    /// # Errors
    /// What the driver answers.
    pub(crate) fn record(&self, queue: *mut sys::otr_queue) -> Result<()> {
        let record = entry!(self.raw.table().api, event_record);
        // SAFETY: event and queue are live and of the same driver.
        self.raw
            .check(unsafe { record(self.event.as_ptr(), queue) })
    }

    /// # Errors
    /// The failure of the work before the mark; why there is no outcome.
    pub(crate) fn query(&self) -> Result<bool> {
        let query = entry!(self.raw.table().api, event_query);
        // SAFETY: the event is live, and the outcome lives through the call.
        self.raw
            .ask(|outcome| unsafe { query(self.event.as_ptr(), outcome) })
    }

    /// # Errors
    /// The failure of the work before the mark; why there is no outcome.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let synchronize = entry!(self.raw.table().api, event_synchronize);
        // SAFETY: the event is live, and the outcome lives through the call.
        self.raw
            .wait(|outcome| unsafe { synchronize(self.event.as_ptr(), outcome) })
    }

    /// Lets a queue of the same driver start its later work behind the mark.
    ///
    /// # Errors
    /// What the driver answers.
    pub(crate) fn hold_back(&self, queue: *mut sys::otr_queue) -> Result<()> {
        let wait = entry!(self.raw.table().api, queue_wait_event);
        // SAFETY: queue and event are live and of the same driver.
        self.raw.check(unsafe { wait(queue, self.event.as_ptr()) })
    }

    pub(crate) fn raw(&self) -> *mut sys::otr_drv_event {
        self.event.as_ptr()
    }

    /// Leaves the event to the caller.
    pub(crate) fn into_raw(self) -> NonNull<sys::otr_drv_event> {
        let event = self.event;
        // All but the event is dropped.
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the field is read once, and nothing drops it besides.
        drop(unsafe { std::ptr::read(&this.raw) });
        event
    }
}

/// A command that is kept: a call of the driver's table with all that it needs.
pub(crate) struct Command(Box<dyn FnOnce() -> i32>);

// SAFETY: R8: the call may be made from any thread. What it needs are copies, and handles and addresses that are live
// until the command has finished.
unsafe impl Send for Command {}

impl Command {
    pub(crate) fn new(call: impl FnOnce() -> i32 + 'static) -> Self {
        Self(Box::new(call))
    }
}

/// A host call.
pub(crate) struct Call {
    pub(crate) function: HostFn,
    pub(crate) user: *mut c_void,
    /// Whether what it returns is nothing's outcome.
    pub(crate) cannot_fail: bool,
}

// SAFETY: R27: the host lets any thread call the function with its pointer.
unsafe impl Send for Call {}

impl Lane for Under {
    type Command = Command;
    type Call = Call;
    type Mark = Mark;
    type Failure = Arc<Error>;
    type Refusal = Error;

    fn issue(&self, command: Command) -> Result<(), Arc<Error>> {
        let issued = self.raw.check((command.0)());
        issued.map_err(|error| Arc::new(error.into_outcome()))
    }

    fn call(&self, call: Call, upstream: Option<&Arc<Error>>) -> Result<(), Arc<Error>> {
        let upstream = upstream.map_or(Code::OK, |failure| failure.code());
        let before = CALLS.replace(true);
        let (function, user) = (call.function, call.user);
        // SAFETY: R27: called once, in the order of the queue, with the pointer of its submission.
        let code = unsafe { foreign_call!(function, user, upstream.0) };
        CALLS.set(before);
        match Code(code) {
            _ if call.cannot_fail => Ok(()),
            Code::OK => Ok(()),
            code => {
                // R27: NOT_READY is no outcome.
                let code = match code {
                    Code::NOT_READY => Code::EXECUTION,
                    code => code,
                };
                let text = "a host call has failed".to_owned();
                Err(Arc::new(Error::of_work(code, text, String::new(), 0)))
            }
        }
    }

    fn drain(&self) -> Result<(), Trouble<Self>> {
        let mark = self.drained().map_err(refused)?;
        mark.record(self.queue.as_ptr()).map_err(refused)?;
        mark.synchronize().map_err(refused)
    }

    fn mark(&self, mark: &Mark) -> Result<()> {
        mark.record(self.queue.as_ptr())
    }

    fn join(&self, mark: &Mark) -> Result<(), Trouble<Self>> {
        if Arc::ptr_eq(&self.raw, &mark.raw) {
            return mark.hold_back(self.queue.as_ptr()).map_err(refused);
        }
        // A driver cannot wait for work of another one.
        mark.synchronize().map_err(refused)
    }

    fn flush(&self) {
        if let Some(flush) = self.raw.table().api.queue_flush {
            // SAFETY: the queue is live. Where the flush fails, whoever asks next tries again.
            let _ = self.raw.check(unsafe { flush(self.queue.as_ptr()) });
        }
    }

    fn start(&self, job: Job) {
        self.threads.start(job);
    }
}

/// What a call says of the work: that it has failed, or nothing. Nobody can wait for work of a device that is lost.
fn refused(error: Error) -> Trouble<Under> {
    if error.is_outcome() || matches!(error.code(), Code::DEVICE_LOST | Code::CAPTURE) {
        Trouble::Failed(Arc::new(error.into_outcome()))
    } else {
        Trouble::Refused(error)
    }
}

/// A call of an operator, with copies of all that it leads to.
pub(crate) struct OperatorCall {
    name: CString,
    tensors: Box<[sys::otr_tensor]>,
    inputs: usize,
    scalars: Box<[sys::otr_scalar]>,
    args: Option<Box<[sys::otr_value]>>,
    flags: u32,
    /// What `tensors` and `args` point to.
    _integers: Vec<Box<[i64]>>,
    _strings: Vec<Box<[u8]>>,
}

/// # Safety
/// `list` is NULL, or has as many elements.
unsafe fn copied<T: Copy>(list: *const T, count: usize) -> Box<[T]> {
    if list.is_null() {
        return Box::default();
    }
    // SAFETY: this function's contract.
    unsafe { std::slice::from_raw_parts(list, count) }.into()
}

impl OperatorCall {
    /// # Safety
    /// All pointers of the call are valid, and its counts are right.
    pub(crate) unsafe fn of(call: &sys::otr_operator_call) -> Self {
        let (mut integers, mut strings) = (Vec::new(), Vec::new());
        // SAFETY: this function's contract, for all of the block.
        unsafe {
            let mut keep = |list: *const i64, count: usize| {
                let list = copied(list, count);
                let at = list.as_ptr();
                integers.push(list);
                at
            };
            let inputs = copied(call.inputs, call.input_count as usize);
            let outputs = copied(call.outputs, call.output_count as usize);
            let mut tensors = [&*inputs, &*outputs].concat();
            for tensor in &mut tensors {
                if tensor.dtype != sys::OTR_DTYPE_INVALID {
                    tensor.sizes = keep(tensor.sizes, tensor.rank as usize);
                    tensor.strides = keep(tensor.strides, tensor.rank as usize);
                }
            }
            let record = sys::find_record(call.next, sys::OTR_EXT_OPERATOR_ARGS);
            let args = record.ok().flatten().map(|record| {
                let args = record.cast::<sys::otr_operator_args>().as_ref();
                let mut values = copied(args.values, args.count as usize);
                for value in &mut values {
                    match value.kind {
                        sys::OTR_VALUE_INTS | sys::OTR_VALUE_BOOLS => {
                            value.of.integers = keep(value.of.integers, value.count as usize);
                        }
                        sys::OTR_VALUE_STRING => {
                            // With its NUL.
                            let text =
                                copied(value.of.string.cast::<u8>(), value.count as usize + 1);
                            value.of.string = text.as_ptr().cast();
                            strings.push(text);
                        }
                        _ => {}
                    }
                }
                values
            });
            Self {
                name: CStr::from_ptr(call.name).to_owned(),
                inputs: inputs.len(),
                tensors: tensors.into(),
                scalars: copied(call.scalars, call.scalar_count as usize),
                args,
                flags: call.flags,
                _integers: integers,
                _strings: strings,
            }
        }
    }

    /// Gives the call to a function, which uses it during that.
    pub(crate) fn with<R>(&self, function: impl FnOnce(&sys::otr_operator_call) -> R) -> R {
        let args = self.args.as_ref().map(|values| sys::otr_operator_args {
            ext: sys::otr_ext {
                struct_size: size_of::<sys::otr_operator_args>(),
                type_: sys::OTR_EXT_OPERATOR_ARGS,
                reserved: 0,
                next: std::ptr::null(),
            },
            values: values.as_ptr(),
            count: values.len() as u32,
            reserved: 0,
        });
        let (inputs, outputs) = self.tensors.split_at(self.inputs);
        function(&sys::otr_operator_call {
            struct_size: size_of::<sys::otr_operator_call>(),
            next: args
                .as_ref()
                .map_or(std::ptr::null(), |args| &raw const args.ext),
            name: self.name.as_ptr(),
            inputs: inputs.as_ptr(),
            outputs: outputs.as_ptr(),
            scalars: self.scalars.as_ptr(),
            input_count: inputs.len() as u32,
            output_count: outputs.len() as u32,
            scalar_count: self.scalars.len() as u32,
            flags: self.flags,
        })
    }
}
