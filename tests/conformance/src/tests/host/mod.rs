//! The host contract over the driver under test: the C ABI, called as a C host calls it.

pub(super) mod accounting;
pub(super) mod arguments;
#[rustfmt::skip] // generated
#[allow(dead_code, reason = "it has the whole contract")]
pub(super) mod bindings;
pub(super) mod building;
pub(super) mod code;
pub(super) mod drivers;
pub(super) mod faults;
pub(super) mod graphs;
pub(super) mod history;
pub(super) mod inspection;
pub(super) mod observers;
pub(super) mod operators;
pub(super) mod pinned;
pub(super) mod pools;
pub(super) mod random;
pub(super) mod registrations;
pub(super) mod runtime;
pub(super) mod sharing;
pub(super) mod together;
pub(super) mod tuning;
pub(super) mod unwinding;
pub(super) mod work;

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};
use outrigger_device::{Code, CopyKind, DType};
use serde_json::Value;

use self::bindings::*;
use crate::verdict::{check, equal};
use crate::{Context, Failure, Need, Verdict};

static LIBRARY: OnceLock<&'static otr_host_api_t> = OnceLock::new();

/// Says which library the tests of the host contract call: what `otr_host_api` returned. Comes before the test.
///
/// # Safety
/// `table` is a table of the host contract as the header has it, for as long as the process lives.
pub unsafe fn use_library(table: *const c_void) {
    // SAFETY: this function's contract.
    LIBRARY.get_or_init(|| unsafe { &*table.cast() });
}

/// The functions of the library under test.
pub(super) fn library() -> &'static otr_host_api_t {
    LIBRARY
        .get()
        .expect("a program that runs tests of the host contract calls `use_library` first")
}

/// Calls an entry of the C ABI.
macro_rules! raw {
    ($entry:ident $(, $argument:expr)* $(,)?) => {
        ($crate::tests::host::library().$entry.expect("a library fills its table"))($($argument),*)
    };
}
pub(super) use raw;

/// Calls an entry of the C ABI, and gives its status as a result.
macro_rules! otr {
    ($entry:ident $(, $argument:expr)* $(,)?) => {
        // SAFETY: pointers to what outlives the call, or NULL, or ids, all of which are checked (H5, H6).
        $crate::tests::host::outcome(unsafe { $crate::tests::host::raw!($entry $(, $argument)*) })
    };
}
pub(super) use otr;

/// The code and the text of a failed call.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) code: Code,
    pub(super) text: String,
    pub(super) stream: u64,
    pub(super) operator: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.text)
    }
}

impl std::error::Error for Refused {}

fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: a string of the library, which is terminated (H7).
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

/// Reads and frees a status.
pub(super) fn outcome(status: *mut otr_status_t) -> Result<(), Refused> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: a status that was just handed out, and is freed once.
    unsafe {
        let refused = Refused {
            code: Code(raw!(status_code, status)),
            text: text(raw!(status_message, status)).unwrap_or_default(),
            stream: raw!(status_stream, status),
            operator: text(raw!(status_operator, status)),
        };
        raw!(status_free, status);
        Err(refused)
    }
}

/// Makes the driver under test the one that the runtime loads. Comes before any other call of the library.
pub(super) fn start(context: &Context) -> Verdict {
    start_under(context, "")
}

/// Sets what the runtime reads when it starts: the driver that it loads, and layers over it.
pub(super) fn environment(driver: &str, layers: &str) {
    // SAFETY: this process has one thread as yet, and reads its environment through this library only.
    unsafe {
        std::env::set_var("OUTRIGGER_DRIVER", driver);
        std::env::set_var("OUTRIGGER_LAYERS", layers);
        for name in ["OUTRIGGER_FALLBACK", "OUTRIGGER_ALLOC"] {
            std::env::remove_var(name);
        }
    }
}

/// As [`start`], with layers over the driver, as in `OUTRIGGER_LAYERS`.
pub(super) fn start_under(context: &Context, layers: &str) -> Verdict {
    environment(context.spec(), layers);
    let mut count = 0;
    otr!(device_count, &mut count)?;
    equal!(
        count,
        context.open()?.device_count(),
        "devices of the runtime"
    );
    Ok(())
}

/// Checks that a call fails with this code and a text.
#[track_caller]
pub(super) fn refused<T>(outcome: Result<T, Refused>, code: Code, what: &str) -> Verdict<Refused> {
    match outcome {
        Ok(_) => Err(Failure::new(format!(
            "{what}: expected {code:?}, and it succeeded"
        ))),
        Err(refused) => {
            equal!(refused.code, code, "{what} (`{}`)", refused.text);
            check!(!refused.text.is_empty(), "H3: {what} has a text");
            Ok(refused)
        }
    }
}

/// The output of a call, or how it was refused.
pub(super) fn tried<T: Default>(
    make: impl FnOnce(*mut T) -> Result<(), Refused>,
) -> Result<T, Refused> {
    let mut value = T::default();
    make(&raw mut value)?;
    Ok(value)
}

/// The output of a call that succeeds.
#[track_caller]
pub(super) fn made<T: Default>(make: impl FnOnce(*mut T) -> Result<(), Refused>) -> Verdict<T> {
    Ok(tried(make)?)
}

/// A string that a call hands out, freed once it was read (H11).
#[track_caller]
pub(super) fn string(
    make: impl FnOnce(*mut *mut c_char) -> Result<(), Refused>,
) -> Verdict<String> {
    let mut string = null_mut();
    make(&raw mut string)?;
    let read = text(string).ok_or_else(|| Failure::new("the call handed out a string"))?;
    // SAFETY: handed out just now, and freed once.
    unsafe { raw!(string_free, string) };
    Ok(read)
}

/// The string that a call hands out, read as JSON.
#[track_caller]
pub(super) fn json(make: impl FnOnce(*mut *mut c_char) -> Result<(), Refused>) -> Verdict<Value> {
    Ok(serde_json::from_str(&string(make)?)?)
}

/// A struct that the library fills.
///
/// # Safety
/// It is `repr(C)`, its first member is the `usize` `struct_size`, and zeros are valid in all others.
pub(super) unsafe trait Filled: Copy {
    /// The struct with zeros behind its `struct_size`.
    fn sized(struct_size: usize) -> Self {
        // SAFETY: as the trait says.
        let mut value: Self = unsafe { std::mem::zeroed() };
        // SAFETY: the first member is a `usize`.
        unsafe { (&raw mut value).cast::<usize>().write(struct_size) };
        value
    }
}

macro_rules! filled {
    ($($name:ident)*) => {
        // SAFETY: `ffi/` declares it so, with numbers, arrays of characters and pointers.
        $(unsafe impl Filled for $name {})*
    };
}
filled! {
    otr_device_info_t otr_pointer_info_t otr_memory_stats_t otr_pool_info_t otr_capture_info_t
    otr_graph_info_t otr_graph_exec_info_t
}

/// The struct that a call fills in.
#[track_caller]
pub(super) fn filled<T: Filled>(fill: impl FnOnce(*mut T) -> Result<(), Refused>) -> Verdict<T> {
    let mut value = T::sized(size_of::<T>());
    fill(&raw mut value)?;
    Ok(value)
}

pub(super) fn stats() -> Verdict<otr_memory_stats_t> {
    filled(|out| otr!(memory_stats, 0, out))
}

/// Bytes that the cache holds when it holds as little as it can.
pub(super) fn held() -> Verdict<u64> {
    otr!(device_synchronize, 0)?;
    otr!(memory_empty_cache, 0)?;
    Ok(stats()?.reserved_bytes.current)
}

pub(super) fn stream() -> Verdict<u64> {
    made(|out| otr!(stream_create, 0, 0, out))
}

pub(super) fn event() -> Verdict<u64> {
    made(|out| otr!(event_create, 0, 0, out))
}

/// Begins a capture of a stream.
pub(super) fn begin(stream: u64) -> Verdict {
    Ok(otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, 0)?)
}

/// Ends a capture: its graph.
pub(super) fn end(stream: u64) -> Verdict<u64> {
    made(|out| otr!(capture_end, stream, out))
}

/// A graph made executable without flags.
pub(super) fn executable(graph: u64) -> Verdict<u64> {
    instantiate(graph, 0)
}

/// A graph made executable.
#[track_caller]
pub(super) fn instantiate(graph: u64, flags: u32) -> Verdict<u64> {
    made(|out| otr!(graph_instantiate, graph, flags, out))
}

/// The flags by which a graph is replayed in each way: as the library chooses, one node after the other, node by node, and as
/// a graph of the driver where it has graphs.
pub(super) fn ways(context: &Context) -> Verdict<Vec<u32>> {
    let native = context.has(&context.open()?, Need::Graphs);
    let others = [0, OTR_GRAPH_SERIAL, OTR_GRAPH_SUBMIT].into_iter();
    Ok(others.chain(native.then_some(OTR_GRAPH_NATIVE)).collect())
}

#[track_caller]
pub(super) fn replay(exec: u64, stream: u64) -> Verdict {
    Ok(otr!(graph_replay, exec, stream)?)
}

/// The number of a graph's nodes.
pub(super) fn nodes(graph: u64) -> Verdict<u32> {
    let info: otr_graph_info_t = filled(|out| otr!(graph_info, graph, out))?;
    Ok(info.nodes)
}

pub(super) fn capture_info(stream: u64) -> Verdict<otr_capture_info_t> {
    filled(|out| otr!(capture_info, stream, out))
}

pub(super) fn alloc(size: u64, stream: u64) -> Verdict<u64> {
    made(|out| otr!(memory_alloc, 0, size, stream, out))
}

#[track_caller]
pub(super) fn fill(stream: u64, address: u64, size: u64, pattern: &[u8]) -> Verdict {
    let (pattern, width) = (pattern.as_ptr().cast(), pattern.len() as u32);
    Ok(otr!(fill, stream, address, size, pattern, width)?)
}

/// Copies 64 bytes within the device.
#[track_caller]
pub(super) fn copy(stream: u64, to: u64, from: u64) -> Verdict {
    let kind = CopyKind::DeviceToDevice.raw();
    Ok(otr!(copy, stream, to, from, 64, kind)?)
}

#[track_caller]
pub(super) fn upload<T: Copy>(stream: u64, to: u64, from: &[T]) -> Verdict {
    let (size, kind) = (size_of_val(from) as u64, CopyKind::HostToDevice.raw());
    otr!(copy, stream, to, from.as_ptr() as u64, size, kind)?;
    Ok(otr!(stream_synchronize, stream)?)
}

#[track_caller]
pub(super) fn download<T: Copy + Default>(stream: u64, from: u64, count: usize) -> Verdict<Vec<T>> {
    let mut to = vec![T::default(); count];
    let (size, kind) = (size_of_val(&to[..]) as u64, CopyKind::DeviceToHost.raw());
    otr!(copy, stream, to.as_mut_ptr() as u64, from, size, kind)?;
    otr!(stream_synchronize, stream)?;
    Ok(to)
}

/// Whether a stream has finished.
pub(super) fn finished(stream: u64) -> Verdict<bool> {
    Ok(made(|out: *mut u32| otr!(stream_query, stream, out))? == 1)
}

/// Whether two numbers differ by no more than a tolerance.
pub(super) fn near(found: f64, expected: f64, tolerance: f64) -> bool {
    (found - expected).abs() <= tolerance
}

/// A number, as calls take it: an integer for i64, else a float.
pub(super) fn scalar(dtype: DType, value: i64) -> otr_scalar_t {
    // SAFETY: numbers, for which zeros are valid.
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

/// Hands `call` the operator `add` on dense vectors: out = a + alpha * b.
pub(super) fn with_add<R>(
    dtype: DType,
    (out, a, b): (u64, u64, u64),
    count: i64,
    alpha: i64,
    call: impl FnOnce(u32, &otr_operator_call_t) -> Result<R, Refused>,
) -> Verdict<R> {
    let (sizes, strides) = ([count], [1]);
    let vector = |address| otr_tensor_t {
        address,
        dtype: dtype.0,
        rank: 1,
        sizes: sizes.as_ptr(),
        strides: strides.as_ptr(),
    };
    let (inputs, outputs) = ([vector(a), vector(b)], [vector(out)]);
    let alpha = scalar(dtype, alpha);
    let body = otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: inputs.as_ptr(),
        outputs: outputs.as_ptr(),
        scalars: &raw const alpha,
        input_count: 2,
        output_count: 1,
        scalar_count: 1,
        flags: 0,
    };
    let add = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
    Ok(call(add, &body)?)
}

/// out = a + alpha * b on vectors of f32, in the order of a stream.
#[track_caller]
pub(super) fn add(stream: u64, operands: (u64, u64, u64), count: i64, alpha: i64) -> Verdict {
    with_add(DType::F32, operands, count, alpha, |add, call| {
        otr!(operator_call, stream, add, call)
    })
}
