//! Queues and kernels: the entries of the table. They make the cheap checks (R7) and turn device
//! addresses into host pointers; the queue does the rest.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use super::command::{Command, Launch, Pattern, Rows};
use super::driver::{Device, Host, give, writable};
use super::event::queue;
use super::fault::{Fault, done, params, tell};
use super::queue::Queue;
use crate::{Code, HostKernelFn, sys};

pub(super) unsafe extern "C" fn create(
    driver: *mut sys::otr_driver,
    device: u32,
    params: *const sys::otr_queue_params,
    place: *mut *mut sys::otr_queue,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let device = host.device(device)?;
        if place.is_null() {
            return Err(Fault::null(
                "the place for the queue",
                Code::INVALID_ARGUMENT,
            ));
        }
        // SAFETY: not NULL, so a struct of the size that stands in it (R1). The range of priorities
        // is 0 to 0, to which every one is clamped.
        let flags = match unsafe { params.as_ref() } {
            Some(params) if params.struct_size >= size_of::<sys::otr_queue_params>() => {
                params.flags
            }
            _ => 0,
        };
        if flags != 0 {
            return Err(Fault::argument(format!(
                "queue flags {flags:#x}; none are known"
            )));
        }
        let queue = Queue::create(&host, device)?;
        device.queues.fetch_add(1, Ordering::Relaxed);
        // SAFETY: not NULL, so writable.
        unsafe { give(place, std::ptr::from_ref(queue).cast_mut().cast()) }
    })
}

pub(super) unsafe extern "C" fn destroy(handle: *mut sys::otr_queue) -> i32 {
    // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
    done(|| unsafe { queue(handle)? }.destroy_of(Queue::user_of(handle.addr())))
}

pub(super) unsafe extern "C" fn query(
    handle: *mut sys::otr_queue,
    outcome: *mut sys::otr_outcome,
) -> i32 {
    // SAFETY: R1: the outcome is NULL, or that of version 1.0 or later. R8: no call uses a queue that the host destroys, so it is NULL or
    // live.
    unsafe { tell(outcome, || queue(handle)?.query_all()) }
}

pub(super) unsafe extern "C" fn synchronize(
    handle: *mut sys::otr_queue,
    outcome: *mut sys::otr_outcome,
) -> i32 {
    // SAFETY: as above.
    unsafe { tell(outcome, || queue(handle)?.synchronize().map(|()| Code::OK)) }
}

pub(super) unsafe extern "C" fn flush(handle: *mut sys::otr_queue) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let queue = unsafe { queue(handle)? };
        if !queue.idle() {
            queue.worker().wake(queue);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn host_call(
    handle: *mut sys::otr_queue,
    call: *const sys::otr_host_call,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let queue = unsafe { queue(handle)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let call = unsafe { params(call, "the host call")? };
        let Some(function) = call.function else {
            return Err(Fault::null("the function", Code::INVALID_ARGUMENT));
        };
        let (user, flags) = (call.user, call.flags);
        if flags & !sys::OTR_HOST_CALL_CANNOT_FAIL != 0 {
            return Err(Fault::argument(format!(
                "the flags of a host call are {flags:#x}; the only one is OTR_HOST_CALL_CANNOT_FAIL"
            )));
        }
        let can_fail = flags == 0;
        queue.submit(Command::HostCall {
            function,
            user,
            can_fail,
        })
    })
}

// ---- Other users of a queue --------------------------------------------------------------------

/// The native queue of this driver is its own queue, which has its number already.
pub(super) unsafe extern "C" fn native_handle(
    handle: *mut sys::otr_queue,
    native: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let queue = unsafe { queue(handle)? };
        queue.refuse_failed()?;
        // SAFETY: `give` refuses NULL (R7); the host makes any other place writable.
        unsafe { give(native, queue.native()) }
    })
}

pub(super) unsafe extern "C" fn native_adopt(
    driver: *mut sys::otr_driver,
    device: u32,
    native: u64,
    place: *mut *mut sys::otr_queue,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let device = host.device(device)?;
        writable(place)?;
        let (queue, user) = Queue::share(&host, device, native)?;
        device.queues.fetch_add(1, Ordering::Relaxed);
        let handle: *mut sys::otr_queue = std::ptr::from_ref(queue).cast_mut().cast();
        // SAFETY: not NULL, so writable.
        unsafe { give(place, handle.map_addr(|address| address + user)) }
    })
}

// ---- Copies and fills --------------------------------------------------------------------------

pub(super) unsafe extern "C" fn copy(
    handle: *mut sys::otr_queue,
    copy: *const sys::otr_copy,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let queue = unsafe { queue(handle)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let copy = unsafe { params(copy, "the copy")? };
        let (to_device, from_device) = match copy.kind {
            sys::OTR_COPY_HOST_TO_DEVICE => (true, false),
            sys::OTR_COPY_DEVICE_TO_HOST => (false, true),
            sys::OTR_COPY_DEVICE_TO_DEVICE => (true, true),
            sys::OTR_COPY_HOST_TO_HOST => (false, false),
            kind => {
                return Err(Fault::argument(format!(
                    "copy kind {kind}; known are 1 to 4"
                )));
            }
        };
        let side = |device: bool| device.then(|| queue.device());
        submit_copy(queue, copy, (side(to_device), side(from_device)))
    })
}

/// Submits a copy between devices, or the host without one.
#[inline]
fn submit_copy(
    queue: &'static Queue,
    copy: &sys::otr_copy,
    (to, from): (Option<&Device>, Option<&Device>),
) -> Result<(), Fault> {
    let end = |device: Option<&Device>, what: &str, address: u64, bytes: u64| match device {
        Some(device) => on_device(device, what, address, bytes),
        None => on_host(what, address, bytes),
    };
    let size = copy.size;
    // Rows of nothing are nothing, wherever they begin (R25).
    if copy.rows <= 1 || size == 0 {
        let dst = end(to, "destination", copy.dst, size)?;
        let src = end(from, "source", copy.src, size)?;
        return queue.submit(Command::Copy { dst, src, size });
    }
    let rows = Rows {
        dst: end(to, "destination", copy.dst, span(copy, copy.dst_pitch)?)?,
        src: end(from, "source", copy.src, span(copy, copy.src_pitch)?)?,
        size,
        count: copy.rows.into(),
        dst_pitch: copy.dst_pitch,
        src_pitch: copy.src_pitch,
    };
    queue.submit_launch(rows.launch(), rows.as_bytes())
}

/// The bytes from the first row of a copy to the end of its last one.
fn span(copy: &sys::otr_copy, pitch: u64) -> Result<u64, Fault> {
    if pitch < copy.size {
        return Err(Fault::argument(format!(
            "rows of {} bytes that begin {pitch} bytes apart: a pitch is at least a row",
            copy.size
        )));
    }
    let before = u64::from(copy.rows - 1).checked_mul(pitch);
    before
        .and_then(|before| before.checked_add(copy.size))
        .ok_or_else(|| {
            Fault::argument(format!(
                "{} rows that begin {pitch} bytes apart have more bytes than there are addresses",
                copy.rows
            ))
        })
}

pub(super) unsafe extern "C" fn peer_copy(
    handle: *mut sys::otr_queue,
    copy: *const sys::otr_copy,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let queue = unsafe { queue(handle)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let copy = unsafe { params(copy, "the copy")? };
        if copy.kind != sys::OTR_COPY_DEVICE_TO_DEVICE {
            return Err(Fault::argument(format!(
                "a copy of kind {} between devices; it is OTR_COPY_DEVICE_TO_DEVICE ({})",
                copy.kind,
                sys::OTR_COPY_DEVICE_TO_DEVICE
            )));
        }
        let host = queue
            .owner()
            .ok_or_else(|| Fault::new(Code::INVALID_HANDLE, "this queue was destroyed before"))?;
        let ends = (host.device(copy.dst_device)?, host.device(copy.src_device)?);
        submit_copy(queue, copy, (Some(ends.0), Some(ends.1)))
    })
}

pub(super) unsafe extern "C" fn fill(
    handle: *mut sys::otr_queue,
    fill: *const sys::otr_fill,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let queue = unsafe { queue(handle)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let fill = unsafe { params(fill, "the fill")? };
        let (dst, size) = (fill.dst, fill.size);
        let (pattern, pattern_size) = (fill.pattern, fill.pattern_size);
        if pattern.is_null() {
            return Err(Fault::null("the pattern", Code::INVALID_ARGUMENT));
        }
        let known = matches!(pattern_size, 1 | 2 | 4 | 8 | 16);
        if !known || !size.is_multiple_of(u64::from(pattern_size)) {
            return Err(Fault::argument(format!(
                "a fill of {size} bytes with a pattern of {pattern_size}: a pattern has 1, 2, 4, 8 or 16 \
                 bytes, and the size is a multiple of it"
            )));
        }
        // SAFETY: not NULL, so `pattern_size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(pattern.cast(), pattern_size as usize) };
        let Some(pattern) = Pattern::new(bytes) else {
            return Err(Fault::new(
                Code::INTERNAL,
                "a pattern of a checked size was refused",
            ));
        };
        let dst = on_device(queue.device(), "destination", dst, size)?;
        queue.submit(Command::Fill { dst, size, pattern })
    })
}

/// The host pointer to a range of a device.
#[inline]
pub(super) fn on_device(
    device: &Device,
    what: &str,
    address: u64,
    size: u64,
) -> Result<u64, Fault> {
    match device.memory.resolve(address, size) {
        Some(pointer) => Ok(pointer),
        // R25: nothing is touched, so that no address is wrong.
        None if size == 0 => Ok(address),
        None => Err(outside(device, what, address, size)),
    }
}

#[cold]
fn outside(device: &Device, what: &str, address: u64, size: u64) -> Fault {
    let (start, end) = device.memory.range();
    Fault::argument(format!(
        "the {what} of {size} bytes at {address:#x} is not memory of device {}, whose addresses are \
         {start:#x} to {end:#x}; for memory of two devices there is a peer copy",
        device.index
    ))
}

#[inline]
fn on_host(what: &str, address: u64, size: u64) -> Result<u64, Fault> {
    if address == 0 && size != 0 {
        return Err(Fault::argument(format!(
            "the {what} of {size} bytes is a NULL host pointer"
        )));
    }
    Ok(address)
}

// ---- Kernels -----------------------------------------------------------------------------------

/// A module and its one kernel: a function of the process.
struct Module {
    function: HostKernelFn,
}

pub(super) unsafe extern "C" fn module_load(
    driver: *mut sys::otr_driver,
    device: u32,
    format: u32,
    code: *const c_void,
    size: usize,
    _options: *const c_char,
    place: *mut *mut sys::otr_drv_module,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        if format != sys::OTR_CODE_HOST_FUNCTION {
            return Err(Fault::new(
                Code::UNSUPPORTED,
                format!(
                    "code of format {format}; this driver takes host functions ({}) only",
                    sys::OTR_CODE_HOST_FUNCTION
                ),
            ));
        }
        if code.is_null() || place.is_null() {
            return Err(Fault::null(
                "the function or the place",
                Code::INVALID_ARGUMENT,
            ));
        }
        if size != 0 {
            return Err(Fault::argument(format!(
                "a host function has size 0, not {size}"
            )));
        }
        // SAFETY: for this format `code` is a function of this type, by the contract.
        let function = unsafe { std::mem::transmute::<*const c_void, HostKernelFn>(code) };
        // SAFETY: not NULL, so writable.
        unsafe { give(place, Box::into_raw(Box::new(Module { function })).cast()) }
    })
}

pub(super) unsafe extern "C" fn module_unload(module: *mut sys::otr_drv_module) -> i32 {
    done(|| {
        if module.is_null() {
            return Err(Fault::null("the module", Code::INVALID_HANDLE));
        }
        // SAFETY: made by `Box::into_raw` in `module_load`, and given back by the host. Launches hold
        // copies of the function.
        drop(unsafe { Box::from_raw(module.cast::<Module>()) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn kernel_get(
    module: *mut sys::otr_drv_module,
    name: *const c_char,
    place: *mut *mut sys::otr_drv_kernel,
) -> i32 {
    done(|| {
        if module.is_null() {
            return Err(Fault::null("the module", Code::INVALID_HANDLE));
        }
        if !name.is_null() {
            return Err(Fault::new(
                Code::NOT_FOUND,
                "a host function has no name: ask with NULL for the only kernel of the module",
            ));
        }
        // SAFETY: `give` refuses NULL (R7); the host makes any other place writable. The kernel is the
        // module.
        unsafe { give(place, module.cast()) }
    })
}

/// A host function gets the packed block, whatever is said of its parts.
#[cold]
fn check_arguments(launch: &sys::otr_launch, arguments: &[sys::otr_argument]) -> Result<(), Fault> {
    for (index, one) in arguments.iter().enumerate() {
        let size = match one.kind {
            sys::OTR_ARGUMENT_VALUE => one.size,
            sys::OTR_ARGUMENT_ADDRESS => 8,
            sys::OTR_ARGUMENT_LOCAL => continue,
            kind => {
                return Err(Fault::argument(format!(
                    "argument {index} is of kind {kind}, not one of OTR_ARGUMENT_*"
                )));
            }
        };
        if u64::from(one.offset) + u64::from(size) > u64::from(launch.args_size) {
            return Err(Fault::argument(format!(
                "argument {index} is {size} bytes at {} of a block of {}",
                one.offset, launch.args_size
            )));
        }
    }
    Ok(())
}

pub(super) unsafe extern "C" fn launch(
    handle: *mut sys::otr_queue,
    kernel: *mut sys::otr_drv_kernel,
    launch: *const sys::otr_launch,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let queue = unsafe { queue(handle)? };
        // SAFETY: NULL, or a module of `module_load`: the host unloads it only after its last launch
        // has finished.
        let Some(module) = (unsafe { kernel.cast::<Module>().as_ref() }) else {
            return Err(Fault::null("the kernel", Code::INVALID_HANDLE));
        };
        // SAFETY: NULL or a struct of at least the size that stands in it.
        let Some(launch) = (unsafe { launch.as_ref() }) else {
            return Err(Fault::null("the launch", Code::INVALID_ARGUMENT));
        };
        // All fields were there in the first version of the contract.
        const SIZE: usize = offset_of!(sys::otr_launch, label) + size_of::<usize>();
        if launch.struct_size < SIZE {
            return Err(Fault::argument(format!(
                "a launch of {} bytes; version 1.0 has {SIZE}",
                launch.struct_size
            )));
        }
        // One by one: a wider load of what the caller has just stored in parts would stall.
        if launch
            .grid
            .iter()
            .chain(&launch.block)
            .any(|&extent| extent != 1)
        {
            return Err(grid(launch));
        }
        if launch.args.is_null() && launch.args_size > 0 {
            return Err(Fault::null("the argument block", Code::INVALID_ARGUMENT));
        }
        if !launch.arguments.is_null() {
            // SAFETY: not NULL, so `argument_count` of them.
            check_arguments(launch, unsafe {
                std::slice::from_raw_parts(launch.arguments, launch.argument_count as usize)
            })?;
        }
        let args = match launch.args_size {
            0 => &[][..],
            // SAFETY: not NULL, so `args_size` bytes.
            size => unsafe { std::slice::from_raw_parts(launch.args.cast(), size as usize) },
        };
        let launch = Launch {
            kernel: module.function,
            bias: queue.bias(),
            label: launch.label,
            estimate: launch.cost_ns,
        };
        queue.submit_launch(launch, args)
    })
}

#[cold]
fn grid(launch: &sys::otr_launch) -> Fault {
    Fault::argument(format!(
        "a host function runs once: grid {:?} and block {:?} must be [1, 1, 1]",
        launch.grid, launch.block
    ))
}
