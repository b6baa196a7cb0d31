//! A stand-in for `libcuda`, NVRTC and cuBLASLt, for tests on machines without a device. It is no emulator: it has two devices whose
//! memory is the host's, a thread for each stream, and a handful of kernels by name. What it does in earnest is the order of
//! streams and events, contexts of threads, and the life of handles: a call that CUDA would not bear is noted as misuse.
//!
//! Beside the functions of CUDA it exports some of its own, `standin_*`, by which a test sees the calls and breaks things.

mod calls;
mod code;
mod graphs;
mod machine;
mod memory;
mod nvrtc;
mod products;
mod streams;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

use calls::api;
use machine::{Context, DEVICES, context, current};

static HOST_FUNCTIONS: Mutex<()> = Mutex::new(());

api! {
    fn cuInit(flags: c_uint) {
        if flags == 0 { 0 } else { 1 }
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        *version = calls::version();
        0
    }

    fn cuGetErrorName(status: c_int, text: *mut *const c_char) {
        *text = match status {
            1 => c"CUDA_ERROR_INVALID_VALUE",
            2 => c"CUDA_ERROR_OUT_OF_MEMORY",
            218 => c"CUDA_ERROR_INVALID_PTX",
            700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
            _ => c"CUDA_ERROR_OF_THE_STANDIN",
        }
        .as_ptr();
        0
    }

    fn cuGetErrorString(_status: c_int, text: *mut *const c_char) {
        *text = c"the stand-in says so".as_ptr();
        0
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        *count = DEVICES as c_int;
        0
    }

    fn cuDeviceGet(device: *mut c_int, index: c_int) {
        *device = index;
        if (0..DEVICES as c_int).contains(&index) { 0 } else { 101 }
    }

    fn cuDeviceGetName(name: *mut c_char, size: c_int, device: c_int) {
        let text = format!("stand-in {device}\0");
        assert!(text.len() <= size as usize);
        std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len());
        0
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        *uuid = [device as u8 + 1; 16];
        0
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) {
        *bytes = memory::CAPACITY as usize;
        0
    }

    fn cuDeviceGetAttribute(value: *mut c_int, what: c_int, device: c_int) {
        *value = match what {
            1 => 1024,
            2 | 3 => 1024,
            4 => 64,
            8 => 48 << 10,
            10 => 32,
            13 => 1_000_000,
            16 => 4,
            33 => device + 1,
            34 | 50 => 0,
            36 => 1_000_000,
            37 => 256,
            // The second device is newer than the compiler.
            75 if device == 1 => 10,
            75 => calls::capability() / 10,
            76 => if device == 1 { 0 } else { calls::capability() % 10 },
            97 => 64 << 10,
            102 => 1,
            _ => return 1,
        };
        0
    }

    fn cuDeviceCanAccessPeer(yes: *mut c_int, _device: c_int, _peer: c_int) {
        *yes = 1;
        0
    }

    fn cuCtxEnablePeerAccess(peer: *mut Context, flags: c_uint) {
        let Some(context) = current() else { return calls::NO_CONTEXT };
        if flags != 0 || std::ptr::eq(peer, context) {
            return 1;
        }
        // As where another library of the process has done it before.
        if machine::enable_peer(context, peer) { 0 } else { 704 }
    }

    fn cuDevicePrimaryCtxRetain(place: *mut *const Context, device: c_int) {
        *place = context(device as usize);
        (*(*place)).retain();
        0
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        (*context(device as usize)).release();
        0
    }

    fn cuCtxGetCurrent(place: *mut *const Context) {
        *place = current().map_or(std::ptr::null(), |context| context as *const Context);
        0
    }

    fn cuCtxPushCurrent_v2(context: *const Context) {
        machine::push(&*context)
    }

    fn cuCtxPopCurrent_v2(place: *mut *const Context) {
        machine::pop(&mut *place)
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        if current().is_none() { return calls::NO_CONTEXT; }
        *least = 0;
        *greatest = -5;
        0
    }

    fn cuLaunchHostFunc(stream: *mut streams::Stream, function: unsafe extern "C" fn(*mut c_void), user: *mut c_void) {
        let user = user as usize;
        streams::submit(stream, move || {
            // As CUDA may: there is one thread for the functions of all streams, and one that blocks it blocks all.
            let _turn = HOST_FUNCTIONS.lock().unwrap();
            // SAFETY: the driver promises that the function may be called with its pointer.
            unsafe { function(user as *mut c_void) }
        })
    }
}
