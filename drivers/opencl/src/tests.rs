//! Tests through the table as the host sees it: what `open` refuses, which the conformance suite cannot ask for.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};

use outrigger_contract as c;
use outrigger_driver_kit::handle;

use crate::cl::{self, Cl, Present};
use crate::driver::{self, Driver, Open};
use crate::platform::Choice;
use crate::table::otr_driver_get_api;

fn table() -> &'static c::otr_driver_api {
    let host = c::otr_host_info {
        struct_size: size_of::<c::otr_host_info>(),
        next: std::ptr::null(),
        api_major: c::OTR_DRIVER_API_MAJOR,
        api_minor: c::OTR_DRIVER_API_MINOR,
        version: c"0".as_ptr(),
        log: None,
    };
    let mut table = std::ptr::null();
    // SAFETY: both live through the call, and the table for ever.
    unsafe {
        assert_eq!(otr_driver_get_api(&host, &mut table), c::OTR_OK);
        &*table
    }
}

/// Opens the driver with its devices, or gives code and text of the refusal.
fn open(options: &str) -> Result<*mut c::otr_driver, (i32, String)> {
    let (table, options) = (table(), CString::new(options).unwrap());
    let params = c::otr_open_params {
        struct_size: size_of::<c::otr_open_params>(),
        next: std::ptr::null(),
        options: options.as_ptr(),
    };
    let mut handle = std::ptr::null_mut();
    // SAFETY: the parameters live through the call, and the text is this thread's last (R5).
    unsafe {
        match table.open.unwrap()(&params, &mut handle) {
            c::OTR_OK => {
                let devices = driver::get(handle).unwrap().devices.len() as u32;
                for device in 0..devices {
                    let opened = table.device_open.unwrap()(handle, device, std::ptr::null());
                    assert_eq!(opened, c::OTR_OK);
                }
                Ok(handle)
            }
            code => {
                let text = CStr::from_ptr(table.last_error.unwrap()());
                Err((code, text.to_string_lossy().into_owned()))
            }
        }
    }
}

/// The outcome of a call that gives one.
fn told(ask: impl FnOnce(*mut c::otr_outcome) -> i32) -> c::otr_outcome {
    let mut outcome = c::otr_outcome {
        struct_size: size_of::<c::otr_outcome>(),
        next: std::ptr::null_mut(),
        code: c::OTR_NOT_READY,
        reserved: 0,
        submission: 0,
        label: [0; c::OTR_LABEL_BYTES as usize],
        message: [0; c::OTR_MESSAGE_BYTES as usize],
    };
    assert_eq!(ask(&mut outcome), c::OTR_OK);
    outcome
}

/// The label and the number of the command that an outcome is of, and its message.
fn place(outcome: &c::otr_outcome) -> (String, u64, String) {
    let text = |field: &[c_char]| {
        let bytes = field.iter().map(|byte| *byte as u8);
        let bytes = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8(bytes).unwrap()
    };
    (
        text(&outcome.label),
        outcome.submission,
        text(&outcome.message),
    )
}

/// An open driver of a test that needs a device; `None` on a machine without OpenCL, where there is nothing to test.
pub(crate) fn opened(options: &str) -> Option<Arc<driver::Open>> {
    match open(options) {
        // SAFETY: a live handle; the object outlives it, and the test's process outlives both.
        Ok(handle) => Some(Arc::clone(unsafe { driver::get(handle) }.unwrap())),
        Err((code, text)) => {
            assert_eq!(code, c::OTR_ERR_NOT_FOUND, "{text}");
            None
        }
    }
}

#[test]
fn an_unknown_option_is_refused_by_its_name() {
    let (code, text) = open("colour=red").unwrap_err();
    assert_eq!(code, c::OTR_ERR_INVALID_ARGUMENT);
    assert!(
        text.contains("`colour`") && text.contains("host_visible"),
        "{text}"
    );
}

#[test]
fn an_unknown_platform_is_refused_with_those_that_are_there() {
    for options in ["platform=Nobody's", "platform=99"] {
        let (code, text) = open(options).unwrap_err();
        assert_eq!(code, c::OTR_ERR_NOT_FOUND, "{text}");
        let missing = text.contains("not installed") || text.contains("install the OpenCL runtime");
        assert!(missing || text.contains("there are: 0: "), "{text}");
    }
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    for options in ["device=99", "device=accelerator"] {
        let (code, text) = open(options).unwrap_err();
        assert_eq!(code, c::OTR_ERR_NOT_FOUND, "{text}");
    }
}

#[test]
fn the_devices_are_those_of_the_options() {
    let Some(all) = opened("") else { return };
    let one = opened("device=0,host_visible=0").unwrap();
    assert_eq!(one.devices.len(), 1);
    assert!(!one.devices[0].visible && !all.devices.is_empty());
}

/// A driver over these functions of OpenCL; `None` if there is no device.
fn open_over(cl: Cl) -> Option<*mut c::otr_driver_t> {
    let cl = Box::leak(Box::new(cl));
    let open = Open::over(cl, &Choice::parse("").unwrap()).ok()?;
    (open.devices.iter()).for_each(|device| device.open().unwrap());
    Some(handle::give(Driver(Arc::new(open))))
}

/// OpenCL's own fill, and how many fills it takes before it refuses one.
static FILL: OnceLock<<cl::cl_function_types::clEnqueueSVMMemFill_t as Present>::Function> =
    OnceLock::new();
static TAKES: AtomicU32 = AtomicU32::new(u32::MAX);

unsafe extern "C" fn fill_or_refuse(
    queue: cl::cl_command_queue,
    to: *mut c_void,
    pattern: *const c_void,
    length: usize,
    size: usize,
    count: cl::cl_uint,
    list: *const cl::cl_event,
    event: *mut cl::cl_event,
) -> cl::cl_int {
    if TAKES.fetch_sub(1, Ordering::SeqCst) == 0 {
        return cl::CL_OUT_OF_RESOURCES;
    }
    // SAFETY: the arguments of the caller, handed on.
    unsafe { FILL.get().unwrap()(queue, to, pattern, length, size, count, list, event) }
}

#[test]
fn a_fill_of_which_opencl_refuses_a_part_has_failed() {
    let Ok(mut cl) = Cl::load(cl::LIBRARY) else {
        return;
    };
    FILL.set(cl.clEnqueueSVMMemFill).unwrap();
    cl.clEnqueueSVMMemFill = fill_or_refuse;
    let Some(driver) = open_over(cl) else {
        return;
    };
    let table = table();
    let pattern: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
    // SAFETY: R7, R10: live handles, and memory that lives until the queue was waited for.
    unsafe {
        let (mut queue, mut at) = (std::ptr::null_mut(), 0);
        let params = std::ptr::null();
        assert_eq!(
            table.queue_create.unwrap()(driver, 0, params, &mut queue),
            0
        );
        assert_eq!(
            table.memory_alloc.unwrap()(driver, 0, &c::params::memory(64), &mut at),
            0
        );
        // Not aligned to its pattern, it takes three fills of OpenCL's.
        let fill = || {
            table.fill.unwrap()(
                queue,
                &c::params::fill(at + 8, 48, pattern.as_ptr().cast(), 16),
            )
        };
        let waited = || told(|outcome| table.queue_synchronize.unwrap()(queue, outcome));
        let synchronize = || waited().code;
        TAKES.store(0, Ordering::SeqCst);
        assert_eq!(fill(), c::OTR_ERR_OUT_OF_HOST_MEMORY);
        assert_eq!(synchronize(), c::OTR_OK, "nothing was submitted");
        TAKES.store(1, Ordering::SeqCst);
        assert_eq!(fill(), c::OTR_OK);
        let failed = waited();
        assert_eq!(failed.code, c::OTR_ERR_OUT_OF_HOST_MEMORY);
        let (label, number, _) = place(&failed);
        assert_eq!((label.as_str(), number), ("", 1));
        assert_eq!((fill(), synchronize()), (c::OTR_OK, c::OTR_OK));
        assert_eq!(table.memory_free.unwrap()(driver, at), c::OTR_OK);
        assert_eq!(table.queue_destroy.unwrap()(queue), c::OTR_OK);
        assert_eq!(table.close.unwrap()(driver), c::OTR_OK);
    }
}

/// OpenCL's own functions, and how many fills it takes before one that fails when it runs.
static LATE: OnceLock<(Fills, Launches, Infos)> = OnceLock::new();
static TAKES_LATE: AtomicU32 = AtomicU32::new(u32::MAX);
static LAUNCH_IS_LATE: AtomicBool = AtomicBool::new(false);
/// Whether commands are said not to have ended.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// The events of commands that have failed.
static FAILED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

type Fills = <cl::cl_function_types::clEnqueueSVMMemFill_t as Present>::Function;
type Launches = <cl::cl_function_types::clEnqueueNDRangeKernel_t as Present>::Function;
type Infos = <cl::cl_function_types::clGetEventInfo_t as Present>::Function;

unsafe extern "C" fn fill_late(
    queue: cl::cl_command_queue,
    to: *mut c_void,
    pattern: *const c_void,
    length: usize,
    size: usize,
    count: cl::cl_uint,
    list: *const cl::cl_event,
    event: *mut cl::cl_event,
) -> cl::cl_int {
    // SAFETY: the arguments of the caller, handed on.
    unsafe {
        let enqueue = LATE.get().unwrap().0;
        let status = enqueue(queue, to, pattern, length, size, count, list, event);
        if TAKES_LATE.fetch_sub(1, Ordering::SeqCst) == 0 && !event.is_null() {
            FAILED.lock().unwrap().push(*event as usize);
        }
        status
    }
}

unsafe extern "C" fn launch_late(
    queue: cl::cl_command_queue,
    kernel: cl::cl_kernel,
    dimensions: cl::cl_uint,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    count: cl::cl_uint,
    list: *const cl::cl_event,
    event: *mut cl::cl_event,
) -> cl::cl_int {
    // SAFETY: the arguments of the caller, handed on.
    unsafe {
        let enqueue = LATE.get().unwrap().1;
        let status = enqueue(
            queue, kernel, dimensions, offset, global, local, count, list, event,
        );
        if LAUNCH_IS_LATE.swap(false, Ordering::SeqCst) && !event.is_null() {
            FAILED.lock().unwrap().push(*event as usize);
        }
        status
    }
}

unsafe extern "C" fn info_late(
    event: cl::cl_event,
    what: cl::cl_uint,
    size: usize,
    to: *mut c_void,
    got: *mut usize,
) -> cl::cl_int {
    // SAFETY: the arguments of the caller, handed on; a status is a number.
    unsafe {
        let status = LATE.get().unwrap().2(event, what, size, to, got);
        if what == cl::CL_EVENT_COMMAND_EXECUTION_STATUS && size == 4 {
            let (to, mut failed) = (to.cast::<cl::cl_int>(), FAILED.lock().unwrap());
            if RUNNING.load(Ordering::SeqCst) {
                *to = cl::CL_RUNNING;
            }
            let found = failed.iter().position(|one| *one == event as usize);
            if let (Some(index), cl::CL_COMPLETE) = (found, *to) {
                // Asked once: another event may have its address later.
                failed.swap_remove(index);
                *to = cl::CL_OUT_OF_RESOURCES;
            }
        }
        status
    }
}

/// The runtime lets all that waits for the queue succeed, as PoCL does: the event of the command alone tells of it.
#[test]
fn a_command_that_fails_when_it_runs_is_reported() {
    let Ok(mut cl) = Cl::load(cl::LIBRARY) else {
        return;
    };
    let own = (
        cl.clEnqueueSVMMemFill,
        cl.clEnqueueNDRangeKernel,
        cl.clGetEventInfo,
    );
    LATE.set(own).unwrap();
    cl.clEnqueueSVMMemFill = fill_late;
    cl.clEnqueueNDRangeKernel = launch_late;
    cl.clGetEventInfo = info_late;
    let Some(driver) = open_over(cl) else {
        return;
    };
    let table = table();
    const FAILS: i32 = c::OTR_ERR_OUT_OF_HOST_MEMORY;
    // SAFETY: R7, R10: live handles, and memory that lives until the queue was waited for.
    unsafe {
        let text = || CStr::from_ptr(table.last_error.unwrap()()).to_string_lossy();
        let ok = |code| assert_eq!(code, c::OTR_OK, "{}", text());
        let new_queue = || {
            let mut queue = null_mut();
            let create = table.queue_create.unwrap();
            ok(create(driver, 0, std::ptr::null(), &mut queue));
            queue
        };
        let new_event = || {
            let mut event = null_mut();
            ok(table.event_create.unwrap()(
                driver,
                0,
                std::ptr::null(),
                &mut event,
            ));
            event
        };
        let (queue, other, mut at) = (new_queue(), new_queue(), 0);
        let events: [_; 4] = std::array::from_fn(|_| new_event());
        let [before, behind, later, elsewhere] = events;
        ok(table.memory_alloc.unwrap()(
            driver,
            0,
            &c::params::memory(64),
            &mut at,
        ));
        let fill = || {
            ok(table.fill.unwrap()(
                queue,
                &c::params::fill(at, 64, c"x".as_ptr().cast(), 1),
            ))
        };
        let waited = |queue| told(|outcome| table.queue_synchronize.unwrap()(queue, outcome));
        let synchronize = |queue| waited(queue).code;
        let query = |event| told(|outcome| table.event_query.unwrap()(event, outcome)).code;
        let record = |event, queue| ok(table.event_record.unwrap()(event, queue));
        // The failure is told by a wait. Events keep what they were behind.
        fill();
        record(before, queue);
        TAKES_LATE.store(1, Ordering::SeqCst);
        fill();
        fill();
        record(behind, queue);
        RUNNING.store(true, Ordering::SeqCst);
        ok(table.queue_wait_event.unwrap()(other, behind));
        RUNNING.store(false, Ordering::SeqCst);
        record(elsewhere, other);
        let failed = waited(queue);
        let (label, number, _) = place(&failed);
        assert_eq!((failed.code, label.as_str(), number), (FAILS, "", 3));
        let awaited = |event| told(|outcome| table.event_synchronize.unwrap()(event, outcome));
        let synchronize_event = |event| awaited(event).code;
        for _ in 0..2 {
            assert_eq!(synchronize(queue), c::OTR_OK, "it is cleared");
            record(later, queue);
            assert_eq!(query(before), c::OTR_OK);
            assert_eq!((query(behind), synchronize_event(behind)), (FAILS, FAILS));
            assert_eq!(query(later), c::OTR_OK);
            fill();
        }
        // A thread that has waited for the event fails, and so does one that waits when the failure is known.
        let failed = awaited(elsewhere);
        let (label, number, message) = place(&failed);
        assert_eq!((failed.code, label.as_str(), number), (FAILS, "", 3));
        assert!(message.contains("waited for"), "{message}");
        assert_eq!((synchronize(other), synchronize(other)), (FAILS, c::OTR_OK));
        for queue in [other, queue] {
            ok(table.queue_wait_event.unwrap()(queue, behind));
            ok(table.fill.unwrap()(
                queue,
                &c::params::fill(at, 64, c"y".as_ptr().cast(), 1),
            ));
            assert_eq!((synchronize(queue), synchronize(queue)), (FAILS, c::OTR_OK));
            let mut found = 0_u8;
            let (to, kind) = ((&raw mut found) as u64, c::OTR_COPY_DEVICE_TO_HOST);
            ok(table.copy.unwrap()(
                queue,
                &c::params::copy(to, at, 1, kind),
            ));
            assert_eq!(synchronize(queue), c::OTR_OK);
            assert_eq!(found, b'x', "what came behind is not executed");
        }
        // The failure is told by a query, which clears nothing.
        TAKES_LATE.store(0, Ordering::SeqCst);
        fill();
        let answer = || loop {
            match told(|outcome| table.queue_query.unwrap()(queue, outcome)).code {
                c::OTR_NOT_READY => std::thread::yield_now(),
                code => break code,
            }
        };
        assert_eq!((answer(), answer()), (FAILS, FAILS));
        assert_eq!((synchronize(queue), answer()), (FAILS, c::OTR_OK));
        // A host call behind the failure is told of it, also with more commands between the two than are kept.
        TAKES_LATE.store(0, Ordering::SeqCst);
        (0..1000).for_each(|_| fill());
        let upstream = AtomicI32::new(0);
        let user = std::ptr::from_ref(&upstream).cast_mut().cast();
        ok(table.host_call.unwrap()(
            queue,
            &c::params::host_call(Some(note), user, 0),
        ));
        assert_eq!((synchronize(queue), upstream.into_inner()), (FAILS, FAILS));
        assert_eq!(synchronize(queue), c::OTR_OK);
        // A launch has its label.
        let group = &*table.kernel;
        let (mut module, mut kernel) = (null_mut(), null_mut());
        let code = c"kernel void nothing() {}";
        let (source, bytes) = (code.as_ptr().cast(), code.to_bytes().len());
        let (load, format) = (group.module_load.unwrap(), c::OTR_CODE_OPENCL_C);
        ok(load(
            driver,
            0,
            format,
            source,
            bytes,
            std::ptr::null(),
            &mut module,
        ));
        ok(group.kernel_get.unwrap()(
            module,
            c"nothing".as_ptr(),
            &mut kernel,
        ));
        let mut launch: c::otr_launch = std::mem::zeroed();
        launch.struct_size = size_of_val(&launch);
        (launch.grid, launch.block) = ([1; 3], [1; 3]);
        launch.label = c"nothing".as_ptr();
        LAUNCH_IS_LATE.store(true, Ordering::SeqCst);
        ok(group.launch.unwrap()(queue, kernel, &launch));
        let failed = waited(queue);
        assert_eq!((failed.code, place(&failed).0.as_str()), (FAILS, "nothing"));
        assert_eq!(synchronize(queue), c::OTR_OK);
        ok(group.module_unload.unwrap()(module));
        (events.into_iter()).for_each(|event| ok(table.event_destroy.unwrap()(event)));
        ok(table.memory_free.unwrap()(driver, at));
        ok(table.queue_destroy.unwrap()(queue));
        ok(table.queue_destroy.unwrap()(other));
        ok(table.close.unwrap()(driver));
    }
}

/// Notes the outcome that a host call is told of the work before it.
unsafe extern "C" fn note(place: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: the test gives a number that outlives the queue.
    unsafe { &*place.cast::<AtomicI32>() }.store(upstream, Ordering::SeqCst);
    upstream
}

/// `kernel void set(global uint* to, uint value) { *to = value; }`, as a module of SPIR-V 1.0.
#[rustfmt::skip]
const SPIRV: &[u32] = &[
    0x0723_0203, 0x0001_0000, 0, 9, 0, // the head: nine ids
    2 << 16 | 17, 4, 2 << 16 | 17, 6, // capabilities: addresses, kernels
    3 << 16 | 14, 2, 2, // the memory model of OpenCL, with 64 bits
    4 << 16 | 15, 6, 1, u32::from_le_bytes(*b"set\0"), // the kernel
    2 << 16 | 19, 2, 4 << 16 | 21, 3, 32, 0, // void, uint
    4 << 16 | 32, 4, 5, 3, 5 << 16 | 33, 5, 2, 4, 3, // the pointer, the type of the function
    5 << 16 | 54, 2, 1, 0, 5, 3 << 16 | 55, 4, 6, 3 << 16 | 55, 3, 7, // the function and its parameters
    2 << 16 | 248, 8, 5 << 16 | 62, 6, 7, 2, 4, 1 << 16 | 253, 1 << 16 | 56, // a store, and the end
];

#[test]
fn spirv_runs_where_the_runtime_takes_it() {
    let Ok(driver) = open("") else { return };
    let table = table();
    // SAFETY: R7, R10: live handles, and memory that lives until the queue was waited for.
    unsafe {
        let ok = |code| {
            let text = CStr::from_ptr(table.last_error.unwrap()()).to_string_lossy();
            assert_eq!(code, c::OTR_OK, "{text}");
        };
        let group = &*table.kernel;
        let load = |code: *const u32, bytes, module: *mut *mut c::otr_drv_module| {
            let (load, format) = (group.module_load.unwrap(), c::OTR_CODE_SPIRV);
            load(
                driver,
                0,
                format,
                code.cast(),
                bytes,
                std::ptr::null(),
                module,
            )
        };
        let takes = driver::get(driver).unwrap().devices[0].takes(c::OTR_CODE_SPIRV);
        let (mut module, bytes) = (std::ptr::null_mut(), size_of_val(SPIRV));
        if !takes {
            assert_eq!(
                load(SPIRV.as_ptr(), bytes, &mut module),
                c::OTR_ERR_UNSUPPORTED
            );
            return;
        }
        let refused = load(SPIRV[1..].as_ptr(), bytes - 4, &mut module);
        assert_eq!(
            refused,
            c::OTR_ERR_INVALID_ARGUMENT,
            "what does not begin as SPIR-V"
        );
        ok(load(SPIRV.as_ptr(), bytes, &mut module));
        let (mut kernel, mut queue, mut at) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        ok(group.kernel_get.unwrap()(
            module,
            c"set".as_ptr(),
            &mut kernel,
        ));
        ok(table.queue_create.unwrap()(
            driver,
            0,
            std::ptr::null(),
            &mut queue,
        ));
        ok(table.memory_alloc.unwrap()(
            driver,
            0,
            &c::params::memory(64),
            &mut at,
        ));
        let mut block = [0; 12];
        block[..8].copy_from_slice(&at.to_ne_bytes());
        block[8..].copy_from_slice(&77_u32.to_ne_bytes());
        let part = |offset, size, kind| c::otr_argument { offset, size, kind };
        let parts = [
            part(0, 8, c::OTR_ARGUMENT_ADDRESS),
            part(8, 4, c::OTR_ARGUMENT_VALUE),
        ];
        let mut launch: c::otr_launch = std::mem::zeroed();
        launch.struct_size = size_of_val(&launch);
        (launch.grid, launch.block) = ([1; 3], [1; 3]);
        (launch.args, launch.args_size) = (block.as_ptr().cast(), 12);
        (launch.arguments, launch.argument_count) = (parts.as_ptr(), 2);
        ok(group.launch.unwrap()(queue, kernel, &launch));
        let mut found = 0_u32;
        let (to, kind) = ((&raw mut found) as u64, c::OTR_COPY_DEVICE_TO_HOST);
        ok(table.copy.unwrap()(
            queue,
            &c::params::copy(to, at, 4, kind),
        ));
        let waited = told(|outcome| table.queue_synchronize.unwrap()(queue, outcome));
        assert_eq!(waited.code, c::OTR_OK);
        assert_eq!(found, 77);
        ok(table.memory_free.unwrap()(driver, at));
        ok(table.queue_destroy.unwrap()(queue));
        assert_eq!(
            table.close.unwrap()(driver),
            c::OTR_ERR_BUSY,
            "a module is left"
        );
        ok(group.module_unload.unwrap()(module));
        ok(table.close.unwrap()(driver));
    }
}

/// Waits until the other end of a channel is gone.
unsafe extern "C" fn wait(gate: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: the test gives a receiver that outlives the queue.
    let gate = unsafe { &*gate.cast::<Receiver<()>>() };
    assert!(gate.recv().is_err(), "nothing is sent");
    upstream
}

#[test]
fn a_launch_that_waits_is_refused_at_once_as_any_other() {
    const CODE: &CStr =
        c"kernel void set(global uint* to, uint value, local uint* room) { *to = value; }";
    let Ok(driver) = open("") else { return };
    let (table, none) = (table(), std::ptr::null());
    // SAFETY: R7, R10: live handles, and memory that lives until the queue was waited for.
    unsafe {
        let text = || CStr::from_ptr(table.last_error.unwrap()()).to_string_lossy();
        let ok = |code| assert_eq!(code, c::OTR_OK, "{}", text());
        let group = &*table.kernel;
        let (mut module, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (source, bytes) = (CODE.as_ptr().cast(), CODE.to_bytes().len());
        let load = group.module_load.unwrap();
        let format = c::OTR_CODE_OPENCL_C;
        ok(load(driver, 0, format, source, bytes, none, &mut module));
        ok(group.kernel_get.unwrap()(
            module,
            c"set".as_ptr(),
            &mut kernel,
        ));
        let (mut queue, mut at) = (std::ptr::null_mut(), 0);
        ok(table.queue_create.unwrap()(
            driver,
            0,
            std::ptr::null(),
            &mut queue,
        ));
        ok(table.memory_alloc.unwrap()(
            driver,
            0,
            &c::params::memory(64),
            &mut at,
        ));
        let mut block = [0; 12];
        block[..8].copy_from_slice(&at.to_ne_bytes());
        block[8..].copy_from_slice(&77_u32.to_ne_bytes());
        let launch = |parts: &[(u32, u32, u32)], items: u32| {
            let part = |&(offset, size, kind)| c::otr_argument { offset, size, kind };
            let parts: Vec<_> = parts.iter().map(part).collect();
            let mut launch: c::otr_launch = std::mem::zeroed();
            launch.struct_size = size_of_val(&launch);
            (launch.grid, launch.block) = ([1; 3], [items, 1, 1]);
            (launch.args, launch.args_size) = (block.as_ptr().cast(), 12);
            (launch.arguments, launch.argument_count) = (parts.as_ptr(), parts.len() as u32);
            match group.launch.unwrap()(queue, kernel, &launch) {
                c::OTR_OK => Ok(()),
                code => Err((code, text().into_owned())),
            }
        };
        let to = (0, 8, c::OTR_ARGUMENT_ADDRESS);
        let value = (8, 4, c::OTR_ARGUMENT_VALUE);
        let room = (0, 16, c::OTR_ARGUMENT_LOCAL);
        let wrong: [&[_]; 9] = [
            &[],
            &[to, value],
            &[to, value, room, room],
            &[to, (8, 2, c::OTR_ARGUMENT_VALUE), room],
            &[to, (12, 4, c::OTR_ARGUMENT_VALUE), room],
            &[value, value, room],
            &[to, to, room],
            &[to, value, (0, 0, c::OTR_ARGUMENT_LOCAL)],
            &[to, (8, 4, 99), room],
        ];
        let refusals = || {
            let refused = wrong.map(|parts| launch(parts, 1).expect_err("it is wrong"));
            let mut all = refused.to_vec();
            all.push(launch(&[to, value, room], u32::MAX).expect_err("no group is as large"));
            all.into_iter().map(|(code, _)| code).collect::<Vec<_>>()
        };
        let at_once = refusals();
        let (open_gate, gate) = channel::<()>();
        let user = std::ptr::from_ref(&gate).cast_mut().cast();
        ok(table.host_call.unwrap()(
            queue,
            &c::params::host_call(Some(wait), user, 0),
        ));
        let behind = refusals();
        assert_eq!(launch(&[to, value, room], 1), Ok(()));
        drop(open_gate);
        assert_eq!(behind, at_once);
        let mut found = 0_u32;
        let (to, kind) = ((&raw mut found) as u64, c::OTR_COPY_DEVICE_TO_HOST);
        ok(table.copy.unwrap()(
            queue,
            &c::params::copy(to, at, 4, kind),
        ));
        let waited = told(|outcome| table.queue_synchronize.unwrap()(queue, outcome));
        assert_eq!(waited.code, c::OTR_OK);
        assert_eq!(found, 77);
        ok(table.memory_free.unwrap()(driver, at));
        ok(table.queue_destroy.unwrap()(queue));
        ok(group.module_unload.unwrap()(module));
        ok(table.close.unwrap()(driver));
    }
}
