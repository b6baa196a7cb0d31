//! The C ABI for the tests of graphs: statuses become results, and outputs become values. It checks
//! that calls succeed or fail as expected; the tests check what the calls do.

#![expect(
    clippy::undocumented_unsafe_blocks,
    clippy::not_unsafe_ptr_arg_deref,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outrigger::ffi::*;
use outrigger::runtime::{Code, CopyKind, DType};
use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};

/// A device of each driver under test, all in one runtime: `host` unified, `host` discrete, the C
/// template.
pub static DEVICES: LazyLock<[u32; 3]> = LazyLock::new(|| {
    let c_driver = crate::c_driver();
    for spec in ["host?face=discrete", c_driver.to_str().expect("UTF-8")] {
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
    }
    [0, 2, 4]
});

/// A string of Outrigger's.
pub fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

/// A status as a result: code, and message with the operator before it. Frees it.
pub fn outcome(status: *mut otr_status_t) -> Result<(), (Code, String)> {
    if status.is_null() {
        return Ok(());
    }
    let code = Code(unsafe { otr_status_code(status) });
    let operator = unsafe { otr_status_operator(status) };
    let mut message = text(unsafe { otr_status_message(status) });
    if !operator.is_null() {
        message = format!("{}: {message}", text(operator));
    }
    unsafe { otr_status_free(status) };
    Err((code, message))
}

/// The call succeeds.
#[track_caller]
pub fn ok(status: *mut otr_status_t) {
    if let Err((code, message)) = outcome(status) {
        panic!("{code}: {message}");
    }
}

/// The call fails with this code, and a message that contains all of `needles`.
#[track_caller]
pub fn fails(status: *mut otr_status_t, code: Code, needles: &[&str]) {
    let (found, message) = outcome(status).expect_err("the call must fail");
    assert_eq!(found, code, "{message}");
    for needle in needles {
        assert!(message.contains(needle), "no {needle:?} in {message:?}");
    }
}

/// The output of a call that succeeds.
#[track_caller]
pub fn made<T: Default>(make: impl FnOnce(*mut T) -> *mut otr_status_t) -> T {
    let mut value = T::default();
    ok(make(&raw mut value));
    value
}

/// A new stream.
pub fn stream(device: u32) -> u64 {
    made(|out| unsafe { otr_stream_create(device, 0, out) })
}

/// A new event.
pub fn event(device: u32) -> u64 {
    made(|out| unsafe { otr_event_create(device, 0, out) })
}

/// New memory.
pub fn alloc(device: u32, size: u64, stream: u64) -> u64 {
    made(|out| unsafe { otr_memory_alloc(device, size, stream, out) })
}

/// Waits for a stream.
#[track_caller]
pub fn synchronize(stream: u64) {
    ok(unsafe { otr_stream_synchronize(stream) });
}

/// Copies numbers to a device, and waits.
pub fn upload<T: Copy>(stream: u64, to: u64, from: &[T]) {
    let kind = CopyKind::HostToDevice.raw();
    let size = size_of_val(from) as u64;
    ok(unsafe { otr_copy(stream, to, from.as_ptr() as u64, size, kind) });
    synchronize(stream);
}

/// Copies numbers from a device, and waits.
pub fn download<T: Copy + Default>(stream: u64, from: u64, count: usize) -> Vec<T> {
    // Whoever goes on after a wait that failed must not meet a copy that still writes.
    let mut to = ManuallyDrop::new(vec![T::default(); count]);
    let kind = CopyKind::DeviceToHost.raw();
    let size = size_of_val(&to[..]) as u64;
    ok(unsafe { otr_copy(stream, to.as_mut_ptr() as u64, from, size, kind) });
    synchronize(stream);
    ManuallyDrop::into_inner(to)
}

/// What a device's memory counts.
#[track_caller]
pub fn stats(device: u32) -> otr_memory_stats_t {
    let mut stats = otr_memory_stats_t {
        struct_size: size_of::<otr_memory_stats_t>(),
        ..Default::default()
    };
    ok(unsafe { otr_memory_stats(device, &mut stats) });
    stats
}

/// Bytes that a device's cache holds, and bytes in use, once all work is done and nothing is cached.
pub fn held(device: u32) -> (u64, u64) {
    ok(unsafe { otr_device_synchronize(device) });
    ok(unsafe { otr_memory_empty_cache(device) });
    let stats = stats(device);
    (stats.reserved_bytes.current, stats.active_bytes.current)
}

/// A number, as the ABI takes it: an integer for i64, else a float.
pub fn scalar(dtype: DType, value: i64) -> otr_scalar_t {
    let mut scalar: otr_scalar_t = unsafe { std::mem::zeroed() };
    if dtype == DType::I64 {
        scalar.dtype = DType::I64.0;
        scalar.value.i64_ = value;
    } else {
        scalar.dtype = DType::F64.0;
        scalar.value.f64_ = value as f64;
    }
    scalar
}

/// Hands `call` the operator `add` on vectors of `dtype`: out = a + alpha * b.
pub fn with_add<R>(
    dtype: DType,
    (out, a, b): (u64, u64, u64),
    count: i64,
    alpha: i64,
    call: impl FnOnce(u32, &otr_operator_call_t) -> R,
) -> R {
    static ADD: LazyLock<u32> =
        LazyLock::new(|| made(|out| unsafe { otr_operator_find(c"add".as_ptr(), out) }));
    const ONE: [i64; 1] = [1];
    let sizes = [count];
    let vector = |address| otr_tensor_t {
        address,
        dtype: dtype.0,
        rank: 1,
        sizes: sizes.as_ptr(),
        strides: ONE.as_ptr(),
    };
    let (inputs, outputs) = ([vector(a), vector(b)], [vector(out)]);
    let scalar = scalar(dtype, alpha);
    let body = otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: inputs.as_ptr(),
        outputs: outputs.as_ptr(),
        scalars: &scalar,
        input_count: 2,
        output_count: 1,
        scalar_count: 1,
        flags: 0,
    };
    call(*ADD, &body)
}

/// out = a + alpha * b on f32, in order of a stream.
#[track_caller]
pub fn add(stream: u64, operands: (u64, u64, u64), count: i64, alpha: i64) {
    ok(with_add(
        DType::F32,
        operands,
        count,
        alpha,
        |id, call| unsafe { otr_operator_call(stream, id, call) },
    ));
}

/// Begins a capture in global mode, with a pool of its own.
#[track_caller]
pub fn begin(stream: u64) {
    ok(unsafe { otr_capture_begin(stream, OTR_CAPTURE_GLOBAL, 0) });
}

/// Ends a capture.
#[track_caller]
pub fn end(stream: u64) -> u64 {
    made(|out| unsafe { otr_capture_end(stream, out) })
}

/// Makes a graph executable.
#[track_caller]
pub fn instantiate(graph: u64, flags: u32) -> u64 {
    made(|out| unsafe { otr_graph_instantiate(graph, flags, out) })
}

/// Replays once.
#[track_caller]
pub fn replay(exec: u64, stream: u64) {
    ok(unsafe { otr_graph_replay(exec, stream) });
}

/// Keeps what is submitted to a stream from here on waiting until the door that is returned is set to true, for
/// 30 seconds at most.
#[track_caller]
pub fn hold_back(stream: u64) -> &'static AtomicBool {
    unsafe extern "C" fn wait(user: *mut c_void, upstream: i32) -> i32 {
        let (door, begun) = (unsafe { &*user.cast::<AtomicBool>() }, Instant::now());
        while !door.load(Ordering::Acquire) {
            if begun.elapsed() > Duration::from_secs(30) {
                return Code::INTERNAL.0;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        upstream
    }
    let door: &'static AtomicBool = Box::leak(Box::default());
    let user = std::ptr::from_ref(door).cast_mut().cast();
    ok(unsafe { otr_host_call(stream, Some(wait), user) });
    ok(unsafe { otr_stream_flush(stream) });
    door
}

/// Figures of an executable graph.
pub fn exec_info(exec: u64) -> otr_graph_exec_info_t {
    let mut info = otr_graph_exec_info_t {
        struct_size: size_of::<otr_graph_exec_info_t>(),
        ..Default::default()
    };
    ok(unsafe { otr_graph_exec_info(exec, &mut info) });
    info
}

unsafe extern "C" fn nothing(_args: *const c_void, _size: u32, _bias: i64) -> i32 {
    0
}

unsafe extern "C" fn counted(user: *mut c_void, _bias: i64, upstream: i32) -> i32 {
    unsafe { &*user.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
    upstream
}

unsafe extern "C" fn destroyed(user: *mut c_void) {
    unsafe { &*user.cast::<AtomicUsize>() }.fetch_add(1000, Ordering::Relaxed);
}

/// A kernel that does nothing, without arguments.
pub fn kernel() -> otr_host_kernel_call_t {
    otr_host_kernel_call_t {
        struct_size: size_of::<otr_host_kernel_call_t>(),
        next: null(),
        function: Some(nothing),
        args: null(),
        args_size: 0,
        cost_ns: 0,
        label: null(),
        address_offsets: null(),
        address_count: 0,
        reserved: 0,
        address_ranges: std::ptr::null(),
    }
}

/// A host function that counts its calls in `user`, and 1000 for its end.
pub fn host_node(user: &'static AtomicUsize) -> otr_host_node_t {
    otr_host_node_t {
        function: Some(counted),
        destroy: Some(destroyed),
        label: c"counted".as_ptr(),
        ..node_of(user)
    }
}

/// A node without a function, for this user data.
fn node_of<T>(user: &'static T) -> otr_host_node_t {
    otr_host_node_t {
        struct_size: size_of::<otr_host_node_t>(),
        next: null(),
        function: None,
        user: std::ptr::from_ref(user).cast_mut().cast(),
        destroy: None,
        label: null(),
        reads: null(),
        writes: null(),
        read_count: 0,
        write_count: 0,
        cost_ns: 0,
        reserved: 0,
    }
}

/// A count that lives as long as the process.
pub fn counter() -> &'static AtomicUsize {
    Box::leak(Box::new(AtomicUsize::new(0)))
}

/// What is known of a stream's capture.
pub fn capture_info(stream: u64) -> otr_capture_info_t {
    let mut info = otr_capture_info_t {
        struct_size: size_of::<otr_capture_info_t>(),
        ..Default::default()
    };
    ok(unsafe { otr_capture_info(stream, &mut info) });
    info
}

/// How many nodes a graph has.
pub fn nodes(graph: u64) -> u32 {
    let mut info = otr_graph_info_t {
        struct_size: size_of::<otr_graph_info_t>(),
        ..Default::default()
    };
    ok(unsafe { otr_graph_info(graph, &mut info) });
    info.nodes
}

/// An empty graph, instantiated.
pub fn empty(device: u32) -> (u64, u64) {
    let graph = made(|out| unsafe { otr_graph_create(device, 0, out) });
    (graph, instantiate(graph, 0))
}
