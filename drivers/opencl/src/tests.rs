//! Through the table as the host sees it: what `open` refuses, which the conformance suite cannot ask for.

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};

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

/// Opens the driver, or gives code and text of the refusal.
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
            c::OTR_OK => Ok(handle),
            code => {
                let text = CStr::from_ptr(table.last_error.unwrap()());
                Err((code, text.to_string_lossy().into_owned()))
            }
        }
    }
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
    let cl = Box::leak(Box::new(cl));
    let Ok(open) = Open::over(cl, &Choice::parse("").unwrap()) else {
        return;
    };
    let (table, driver) = (table(), handle::give(Driver(Arc::new(open))));
    let pattern: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
    // SAFETY: R7, R10: live handles, and memory that lives until the queue was waited for.
    unsafe {
        let (mut queue, mut at) = (std::ptr::null_mut(), 0);
        let params = std::ptr::null();
        assert_eq!(
            table.queue_create.unwrap()(driver, 0, params, &mut queue),
            0
        );
        assert_eq!(table.memory_alloc.unwrap()(driver, 0, 64, &mut at), 0);
        // Not aligned to its pattern, it takes three fills of OpenCL's.
        let fill = || table.fill.unwrap()(queue, at + 8, 48, pattern.as_ptr().cast(), 16);
        let synchronize = || table.queue_synchronize.unwrap()(queue);
        TAKES.store(0, Ordering::SeqCst);
        assert_eq!(fill(), c::OTR_ERR_OUT_OF_HOST_MEMORY);
        assert_eq!(synchronize(), c::OTR_OK, "nothing was submitted");
        TAKES.store(1, Ordering::SeqCst);
        assert_eq!(fill(), c::OTR_OK);
        assert_eq!(synchronize(), c::OTR_ERR_OUT_OF_HOST_MEMORY);
        let text = CStr::from_ptr(table.last_error.unwrap()()).to_string_lossy();
        assert!(text.ends_with(" [label= submission=1]"), "{text}");
        assert_eq!((fill(), synchronize()), (c::OTR_OK, c::OTR_OK));
        assert_eq!(table.memory_free.unwrap()(driver, at), c::OTR_OK);
        assert_eq!(table.queue_destroy.unwrap()(queue), c::OTR_OK);
        assert_eq!(table.close.unwrap()(driver), c::OTR_OK);
    }
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
        ok(table.memory_alloc.unwrap()(driver, 0, 64, &mut at));
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
        ok(table.copy.unwrap()(queue, to, at, 4, kind));
        ok(table.queue_synchronize.unwrap()(queue));
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
        ok(table.memory_alloc.unwrap()(driver, 0, 64, &mut at));
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
        ok(table.host_call.unwrap()(queue, Some(wait), user, 0));
        let behind = refusals();
        assert_eq!(launch(&[to, value, room], 1), Ok(()));
        drop(open_gate);
        assert_eq!(behind, at_once);
        let mut found = 0_u32;
        let (to, kind) = ((&raw mut found) as u64, c::OTR_COPY_DEVICE_TO_HOST);
        ok(table.copy.unwrap()(queue, to, at, 4, kind));
        ok(table.queue_synchronize.unwrap()(queue));
        assert_eq!(found, 77);
        ok(table.memory_free.unwrap()(driver, at));
        ok(table.queue_destroy.unwrap()(queue));
        ok(group.module_unload.unwrap()(module));
        ok(table.close.unwrap()(driver));
    }
}
