//! The group `operators` of a driver with kernels: the driver's own operators first, then ours.

use std::any::Any;
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_device::{Code, DType, Driver, Error, RawDriver, sys};
use outrigger_ops::{Call, OperatorId, Tensor, check};

use crate::call::{self, Refusal};
use crate::device::{self, Device};
use crate::entries::Calls;
use crate::kernel::Below;
use crate::operators;
use crate::recording::Recorder;
use crate::slots::{Slot, say, say_nothing};
use crate::source::SourceFormat;
use crate::work::{Launch, Prepared};

/// A driver with kernels.
pub(crate) struct Library {
    pub(crate) below: Arc<Below>,
    devices: Vec<Offer>,
}

/// The operators of a device.
struct Offer {
    /// The driver's own operators.
    own: HashSet<CString>,
    /// All names: the driver's own, then those of ours that it does not have.
    names: Vec<*const c_char>,
    /// The device as operators see it, which compiles kernels; `None` if it takes no source.
    device: Option<Device>,
    /// Whether the host has opened the device, and not closed it (R58).
    is_open: AtomicBool,
}

// SAFETY: the pointers lead to texts of the driver, which live until it is closed (R45), and to constants.
unsafe impl Send for Offer {}
// SAFETY: as above.
unsafe impl Sync for Offer {}

/// The first word of an operator, by which a foreign handle is known.
const MARK: u64 = 0x6f70_6572_6174_6f72;

/// An operator of the table.
#[repr(C)]
struct Operator {
    mark: u64,
    slot: usize,
    library: Arc<Library>,
    made: Made,
}

enum Made {
    /// One of the driver's own.
    Own(NonNull<sys::otr_operator>),
    /// Work for kernels, and the numbers of inputs and outputs.
    Ours {
        prepared: Prepared,
        counts: [usize; 2],
    },
}

/// Gives a driver that loads source the group `operators`, made from kernels. A driver whose devices take no source is
/// given back as it is, and so is one if the variable `OUTRIGGER_DEVICE_OPERATORS` is 0.
///
/// # Errors
/// `INVALID_ARGUMENT` for any other value of the variable than 0 or 1; `BUSY` while clones, queues, events or kernels of
/// the driver live; what the driver answers to `names`, after which it is closed.
pub fn with_kernels(driver: Driver) -> outrigger_device::Result<Driver> {
    match std::env::var(crate::VARIABLE).as_deref() {
        Ok("0") => return Ok(driver),
        Ok("1" | "") | Err(std::env::VarError::NotPresent) => {}
        other => {
            let text = format!("{}={other:?} is neither 0 nor 1", crate::VARIABLE);
            return Err(Error::new(Code::INVALID_ARGUMENT, text));
        }
    }
    let mut properties = Vec::new();
    for device in 0..driver.device_count() {
        properties.push(driver.properties(device)?);
    }
    let takes = |format: SourceFormat| {
        move |one: &outrigger_device::DeviceProperties| one.limits.takes(format.number())
    };
    let formats = SourceFormat::ALL.map(|format| properties.iter().any(takes(format)));
    if !formats.contains(&true) {
        return Ok(driver);
    }
    let raw = driver.into_raw().map_err(|driver| {
        let text = format!(
            "the driver {} is in use: its kernels are put over it before anything is created",
            driver.name()
        );
        Error::new(Code::BUSY, text)
    })?;
    let mut owns = Vec::new();
    for device in 0..properties.len() as u32 {
        owns.push(names_below(&raw, device)?);
    }
    let calls = match properties.iter().all(device::has_tasks) && raw.graph().is_none() {
        true => Calls::below(raw.api(), &raw),
        false => None,
    };
    let mut api = Box::new(*raw.api());
    let Some(handle) = NonNull::new(raw.handle()) else {
        return Err(Error::new(Code::INTERNAL, "the driver's handle is NULL"));
    };
    let below = Below::new(Driver::from_raw(raw)?, calls.map(Recorder::new))?;
    let devices = properties
        .iter()
        .zip(owns)
        .zip(0..)
        .map(|((one, own), ordinal)| {
            let device = Device::new(&below, ordinal, one);
            let own_names: HashSet<CString> =
            // SAFETY: R45: names of the driver end with a NUL, and live until it is closed.
            own.iter().map(|name| unsafe { CStr::from_ptr(*name) }.to_owned()).collect();
            let mut names = own;
            if let Some(device) = &device {
                let ours = operators::names(device).filter(|name| !own_names.contains(*name));
                names.extend(ours.map(CStr::as_ptr));
            }
            Offer {
                own: own_names,
                names,
                device,
                is_open: AtomicBool::new(false),
            }
        });
    let library = Arc::new(Library {
        devices: devices.collect(),
        below: Arc::clone(&below),
    });
    let Some(slot) = Slot::take(&library) else {
        let text = "too many drivers with kernels are open";
        return Err(Error::new(Code::OUT_OF_HOST_MEMORY, text));
    };
    let entries = slot.entries();
    let group = Box::new(sys::otr_operator_api {
        struct_size: size_of::<sys::otr_operator_api>(),
        names: Some(entries.names),
        prepare: Some(entries.prepare),
        release: Some(release),
        launch: Some(launch),
    });
    api.struct_size = size_of::<sys::otr_driver_api>();
    api.operators = &raw const *group;
    api.close = Some(entries.close);
    api.device_open = Some(entries.device_open);
    api.device_close = Some(entries.device_close);
    api.last_error = Some(entries.last_error);
    let recording = below.recorder.is_some().then(|| {
        let entries = Calls::of(slot.number());
        let groups = Box::new(Recording::over(below.raw(), entries));
        groups.put(&mut api, entries);
        api.graph = &raw const slot.entries().graph;
        groups
    });
    let table = &raw const *api;
    let owner: Box<dyn Any + Send + Sync> = Box::new(Owner {
        _slot: slot,
        _library: library,
        _api: api,
        _group: group,
        _recording: recording,
    });
    // SAFETY: the table is the driver's own, with entries that keep the contract in place of some. All of it lies in
    // the owner, which also keeps the driver below.
    Driver::from_raw(unsafe { RawDriver::from_parts(table, handle, Some(owner)) }?)
}

/// An owner of all that lives as long as the driver.
struct Owner {
    _slot: Slot,
    _library: Arc<Library>,
    _api: Box<sys::otr_driver_api>,
    _group: Box<sys::otr_operator_api>,
    _recording: Option<Box<Recording>>,
}

/// Groups of a driver with entries that recordings see.
struct Recording {
    kernel: Option<sys::otr_kernel_api>,
    timing: Option<sys::otr_timing_api>,
    peer: Option<sys::otr_peer_api>,
    native_queue: Option<sys::otr_native_queue_api>,
}

impl Recording {
    fn over(raw: &RawDriver, entries: &Calls) -> Self {
        Self {
            kernel: raw.kernel().map(|group| sys::otr_kernel_api {
                struct_size: size_of::<sys::otr_kernel_api>(),
                module_load: Some(entries.module_load),
                module_unload: Some(entries.module_unload),
                kernel_get: Some(entries.kernel_get),
                launch: Some(entries.launch),
                module_binary: group.module_binary.map(|_| entries.module_binary),
            }),
            timing: raw.timing().map(|group| sys::otr_timing_api {
                event_time: Some(entries.event_time),
                ..*group
            }),
            peer: raw.peer().map(|group| sys::otr_peer_api {
                copy: Some(entries.peer_copy),
                ..*group
            }),
            // In front of the driver's own records: the first of a type counts (R3).
            native_queue: raw.native_queue().map(|_| sys::otr_native_queue_api {
                ext: sys::otr_ext {
                    struct_size: size_of::<sys::otr_native_queue_api>(),
                    type_: sys::OTR_EXT_NATIVE_QUEUE,
                    reserved: 0,
                    next: raw.api().next,
                },
                major: sys::OTR_NATIVE_QUEUE_MAJOR,
                minor: sys::OTR_NATIVE_QUEUE_MINOR,
                handle: Some(entries.native_handle),
                adopt: Some(entries.native_adopt),
            }),
        }
    }

    /// Puts the groups and the entries into a table.
    fn put(&self, api: &mut sys::otr_driver_api, entries: &Calls) {
        api.kernel = self.kernel.as_ref().map_or(null(), std::ptr::from_ref);
        api.timing = self.timing.as_ref().map_or(null(), std::ptr::from_ref);
        api.peer = self.peer.as_ref().map_or(null(), std::ptr::from_ref);
        if let Some(table) = &self.native_queue {
            api.next = &raw const table.ext;
        }
        api.queue_create = Some(entries.queue_create);
        api.queue_destroy = Some(entries.queue_destroy);
        api.queue_query = Some(entries.queue_query);
        api.queue_synchronize = Some(entries.queue_synchronize);
        api.queue_wait_event = Some(entries.queue_wait_event);
        api.event_destroy = Some(entries.event_destroy);
        api.event_record = Some(entries.event_record);
        api.event_query = Some(entries.event_query);
        api.event_synchronize = Some(entries.event_synchronize);
        api.copy = Some(entries.copy);
        api.fill = Some(entries.fill);
        api.host_call = Some(entries.host_call);
    }
}

// SAFETY: tables are not written after they were made; R8: their functions may be called from any thread.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

/// The names of the driver's own operators.
fn names_below(raw: &RawDriver, device: u32) -> outrigger_device::Result<Vec<*const c_char>> {
    let Some(names) = raw.operators().and_then(|group| group.names) else {
        return Ok(Vec::new());
    };
    let (mut list, mut count) = (std::ptr::null(), 0);
    // SAFETY: the driver is open, and both outputs live through the call.
    let code = unsafe { names(raw.handle(), device, &mut list, &mut count) };
    if code != Code::OK.0 {
        let text = format!("the driver does not say which operators device {device} has");
        return Err(Error::new(Code(code), text));
    }
    // SAFETY: R45: the list has `count` names, each NUL-terminated, while the driver is open.
    let name = |at: u32| unsafe { *list.add(at as usize) };
    Ok((0..count)
        .map(name)
        .filter(|name| !name.is_null())
        .collect())
}

impl Library {
    /// Closes the driver. Its kernels go first, because the driver counts them.
    ///
    /// # Safety
    /// R12: nothing uses the driver any more.
    pub(crate) unsafe fn close(&self, driver: *mut sys::otr_driver) -> i32 {
        let raw = self.below.raw();
        let is_ours = driver == raw.handle();
        if is_ours {
            self.devices
                .iter()
                .filter_map(|offer| offer.device.as_ref())
                .for_each(Device::forget);
            if let Some(recorder) = &self.below.recorder {
                recorder.gone.clear();
            }
        }
        let Some(close) = raw.api().close else {
            return Code::INTERNAL.0;
        };
        // SAFETY: this function's contract.
        let code = unsafe { close(driver) };
        if is_ours && code == Code::OK.0 {
            raw.set_closed();
        }
        code
    }

    /// Opens a device below.
    ///
    /// # Safety
    /// R1: the parameters are NULL or a struct of their size.
    pub(crate) unsafe fn open_device(
        &self,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_device_params,
    ) -> i32 {
        let Some(open) = self.below.raw().api().device_open else {
            return Code::INTERNAL.0;
        };
        // SAFETY: this function's contract; the driver below checks the handle.
        let code = unsafe { open(driver, device, params) };
        if code == Code::OK.0
            && let Ok(offer) = self.offer(driver, device)
        {
            offer.is_open.store(true, Ordering::Release);
        }
        code
    }

    /// Closes a device below. Its kernels go first, because the driver counts them.
    ///
    /// # Safety
    /// R8: nothing uses the device any more.
    pub(crate) unsafe fn close_device(&self, driver: *mut sys::otr_driver, device: u32) -> i32 {
        let offer = self.offer(driver, device).ok();
        if let Some(kernels) = offer.and_then(|offer| offer.device.as_ref()) {
            kernels.forget();
        }
        let Some(close) = self.below.raw().api().device_close else {
            return Code::INTERNAL.0;
        };
        // SAFETY: this function's contract; the driver below checks the handle.
        let code = unsafe { close(driver, device) };
        if code == Code::OK.0
            && let Some(offer) = offer
        {
            offer.is_open.store(false, Ordering::Release);
        }
        code
    }

    /// A device that takes source.
    pub(crate) fn device(&self, ordinal: u32) -> Option<&Device> {
        self.devices.get(ordinal as usize)?.device.as_ref()
    }

    /// The operators of a device of a driver of ours.
    fn offer(
        &self,
        driver: *mut sys::otr_driver,
        device: u32,
    ) -> std::result::Result<&Offer, Refusal> {
        if driver != self.below.raw().handle() {
            return Err(Refusal::new(
                Code::INVALID_HANDLE,
                "the driver is NULL, or another one than the one with these operators",
            ));
        }
        self.devices.get(device as usize).ok_or_else(|| {
            let count = self.devices.len();
            let text = format!("there is no device {device}: the driver has {count} of them");
            Refusal::new(Code::INVALID_DEVICE, text)
        })
    }
}

/// The entry `names`.
///
/// # Safety
/// `list` and `count` are NULL or writable.
pub(crate) unsafe fn names(
    slot: usize,
    library: &Arc<Library>,
    driver: *mut sys::otr_driver,
    device: u32,
    list: *mut *const *const c_char,
    count: *mut u32,
) -> i32 {
    let offer = match library.offer(driver, device) {
        Ok(offer) => offer,
        Err(refusal) => return say(slot, library, refusal.code, &refusal.text),
    };
    if list.is_null() || count.is_null() {
        return say(
            slot,
            library,
            Code::INVALID_ARGUMENT,
            "a place for the names is NULL",
        );
    }
    // SAFETY: neither is NULL, so both are writable.
    unsafe {
        *list = offer.names.as_ptr();
        *count = offer.names.len() as u32;
    }
    Code::OK.0
}

/// The entry `prepare`.
///
/// # Safety
/// `call` is NULL or as the contract has it (R10); `answer` is NULL or a struct of the size that stands in it, and
/// `place` NULL or writable.
pub(crate) unsafe fn prepare(
    slot: usize,
    library: &Arc<Library>,
    driver: *mut sys::otr_driver,
    device: u32,
    call: *const sys::otr_operator_call,
    answer: *mut sys::otr_operator_answer,
    place: *mut *mut sys::otr_operator,
) -> i32 {
    let offer = match library.offer(driver, device) {
        Ok(offer) => offer,
        Err(refusal) => return say(slot, library, refusal.code, &refusal.text),
    };
    if !offer.is_open.load(Ordering::Acquire) {
        let text = format!("device {device} is not open: device_open comes first");
        return say(slot, library, Code::INVALID_DEVICE, &text);
    }
    // SAFETY: R1: NULL, or a struct of the size that stands in it.
    let has_room = unsafe { answer.as_ref() }
        .is_some_and(|answer| answer.struct_size >= size_of::<sys::otr_operator_answer>());
    if !has_room || place.is_null() {
        let text = "the place for the answer or the operator is NULL or too small";
        return say(slot, library, Code::INVALID_ARGUMENT, text);
    }
    // SAFETY: this function's contract.
    let made = unsafe {
        call::read(call, |name, read| {
            if offer.own.contains(name) {
                match own(library, driver, device, call) {
                    Err(Code::UNSUPPORTED) => {}
                    other => return Ok(other),
                }
            }
            make(offer, name, read).map(Ok)
        })
    };
    let (made, workspace_bytes, cost_ns) = match made {
        Ok(Ok(made)) => made,
        // The text is the driver's own.
        Ok(Err(code)) => return say_nothing(code.0),
        Err(refusal) => return say(slot, library, refusal.code, &refusal.text),
    };
    let operator = Box::new(Operator {
        mark: MARK,
        slot,
        library: Arc::clone(library),
        made,
    });
    // SAFETY: neither is NULL, and the answer has room.
    unsafe {
        (*answer).workspace_bytes = workspace_bytes;
        (*answer).cost_ns = cost_ns;
        *place = Box::into_raw(operator).cast();
    }
    Code::OK.0
}

/// The results of `prepare`: an operator, its workspace and its cost.
type Given = (Made, u64, u64);

/// Asks the driver for one of its own operators.
///
/// # Safety
/// `call` is as the contract has it (R10).
unsafe fn own(
    library: &Library,
    driver: *mut sys::otr_driver,
    device: u32,
    call: *const sys::otr_operator_call,
) -> std::result::Result<Given, Code> {
    let prepare = library
        .below
        .raw()
        .operators()
        .and_then(|group| group.prepare);
    let prepare = prepare.ok_or(Code::UNSUPPORTED)?;
    let mut answer = sys::otr_operator_answer {
        struct_size: size_of::<sys::otr_operator_answer>(),
        next: std::ptr::null(),
        workspace_bytes: 0,
        cost_ns: 0,
    };
    let mut operator = null_mut();
    // SAFETY: the driver is open, both outputs live through the call; this function's contract.
    let code = unsafe { prepare(driver, device, call, &mut answer, &mut operator) };
    if code != Code::OK.0 {
        return Err(Code(code));
    }
    let operator = NonNull::new(operator).ok_or(Code::INTERNAL)?;
    Ok((Made::Own(operator), answer.workspace_bytes, answer.cost_ns))
}

/// Makes an operator of kernels.
fn make(offer: &Offer, name: &CStr, call: &Call<'_>) -> call::Result<Given> {
    let known = offer.device.as_ref().zip(operators::find(name));
    let Some((device, maker)) = known else {
        return call::unsupported("there is no kernel for this operator");
    };
    // The checks that the caller of a driver makes too: a driver's caller may be anyone.
    let id = OperatorId::find(name);
    if let Some(Err(error)) = id.map(|id| check(id, call)) {
        return call::invalid(error.to_string());
    }
    if call.inputs.len() + call.outputs.len() > OPERANDS {
        return call::unsupported(format!("more than {OPERANDS} operands"));
    }
    let prepared = maker(device, name, call)?;
    let bytes = prepared.workspace_bytes;
    let counts = [call.inputs.len(), call.outputs.len()];
    Ok((Made::Ours { prepared, counts }, bytes, 0))
}

/// The operator behind a handle.
///
/// # Safety
/// `handle` is NULL, or leads to a readable word; one of ours was not released.
unsafe fn operator<'a>(handle: *mut sys::otr_operator) -> Option<&'a Operator> {
    let handle = handle.cast::<Operator>();
    if handle.is_null() || !handle.is_aligned() {
        return None;
    }
    // SAFETY: this function's contract: the first word of a handle is readable, and that of ours is the mark.
    unsafe { (*handle.cast::<u64>() == MARK).then(|| &*handle) }
}

/// The entry `release`.
unsafe extern "C" fn release(handle: *mut sys::otr_operator) -> i32 {
    // SAFETY: R10: NULL, or from `prepare` of this table and not released.
    let Some(found) = (unsafe { operator(handle) }) else {
        return Code::INVALID_HANDLE.0;
    };
    if let Made::Own(own) = found.made {
        let release = found
            .library
            .below
            .raw()
            .operators()
            .and_then(|group| group.release);
        let Some(release) = release else {
            return Code::INTERNAL.0;
        };
        // SAFETY: R47: the driver's operator is live, and its last launch has finished.
        let code = unsafe { release(own.as_ptr()) };
        if code != Code::OK.0 {
            return say_nothing(code);
        }
    }
    // SAFETY: made by `Box::into_raw` in `prepare`, and given back by the host.
    let mut gone = unsafe { Box::from_raw(handle.cast::<Operator>()) };
    gone.mark = 0;
    Code::OK.0
}

/// The most operands of a launch.
const OPERANDS: usize = 160;

/// The entry `launch`.
unsafe extern "C" fn launch(
    queue: *mut sys::otr_queue,
    handle: *mut sys::otr_operator,
    call: *const sys::otr_operator_call,
    workspace: u64,
) -> i32 {
    // SAFETY: R10: NULL, or from `prepare` of this table and not released.
    let Some(found) = (unsafe { operator(handle) }) else {
        return Code::INVALID_HANDLE.0;
    };
    let library = &*found.library;
    let (prepared, counts) = match &found.made {
        Made::Ours { prepared, counts } => (prepared, *counts),
        Made::Own(own) => {
            let entry = library
                .below
                .raw()
                .operators()
                .and_then(|group| group.launch);
            if library.below.records(queue).is_some() {
                let text = "a graph keeps no operator of the driver's own";
                return say(found.slot, library, Code::UNSUPPORTED, text);
            }
            return match entry {
                // SAFETY: the host's arguments, with the driver's own operator.
                Some(entry) => say_nothing(unsafe { entry(queue, own.as_ptr(), call, workspace) }),
                None => Code::INTERNAL.0,
            };
        }
    };
    let refused = |code, text: &str| say(found.slot, library, code, text);
    if queue.is_null() {
        return refused(Code::INVALID_HANDLE, "the queue is NULL");
    }
    // SAFETY: R46: NULL, or a call with the operands of the signature.
    let outcome = unsafe {
        call::read(call, |_, call| {
            if [call.inputs.len(), call.outputs.len()] != counts {
                return call::invalid("the call has other operands than the operator was made for");
            }
            let mut operands = call.inputs.iter().chain(call.outputs);
            if operands.any(is_nowhere) {
                return call::invalid("the address of an operand is 0");
            }
            if prepared.workspace_bytes > 0 && workspace == 0 {
                return call::invalid("the operator needs a workspace, and its address is 0");
            }
            let mut addresses = [0; OPERANDS];
            let count = counts[0] + counts[1];
            let Some(places) = addresses.get_mut(..count) else {
                return call::invalid("too many operands");
            };
            for (place, tensor) in places
                .iter_mut()
                .zip(call.inputs.iter().chain(call.outputs))
            {
                *place = tensor.address();
            }
            let (inputs, outputs) = addresses[..count].split_at(counts[0]);
            let mut launch = Launch {
                inputs,
                outputs,
                scalars: call.scalars,
                workspace,
                queue,
                below: &library.below,
                submitted: 0,
            };
            let mut outcome = (prepared.work)(&mut launch);
            if outcome.is_ok() && launch.submitted == 0 {
                // The driver checks the queue (R7), and the order is kept (R25).
                outcome = launch.zero(0, 0);
            }
            Ok(outcome)
        })
    };
    match outcome {
        Ok(Ok(())) => Code::OK.0,
        Ok(Err(code)) => say_nothing(code),
        Err(refusal) => match is_foreign(library, queue) {
            true => say_nothing(Code::INVALID_HANDLE.0),
            false => refused(refusal.code, &refusal.text),
        },
    }
}

/// Whether a queue is none of the driver's. A call that is refused for something else never reaches the driver, which
/// would say so first (R7). A wait for an event that was never recorded has no effect (R22), and names both.
fn is_foreign(library: &Library, queue: *mut sys::otr_queue) -> bool {
    let (raw, mut event) = (library.below.raw(), null_mut());
    let api = raw.api();
    let (Some(create), Some(wait), Some(destroy)) =
        (api.event_create, api.queue_wait_event, api.event_destroy)
    else {
        return false;
    };
    // SAFETY: the driver is open, and has a device 0. R7: the driver checks the queue. The event is this function's.
    unsafe {
        if create(raw.handle(), 0, std::ptr::null(), &mut event) != Code::OK.0 {
            return false;
        }
        let answer = wait(queue, event);
        destroy(event);
        answer == Code::INVALID_HANDLE.0
    }
}

/// Whether an operand with elements has no address.
fn is_nowhere(tensor: &Tensor<'_>) -> bool {
    tensor.address() == 0 && tensor.dtype() != DType::INVALID && tensor.numel() > 0
}
