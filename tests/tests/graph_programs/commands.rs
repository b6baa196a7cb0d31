//! One act of a program as one call of the C ABI: on a stream, which may capture, or as a node.

use std::ffi::{CStr, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicI64, Ordering};

use outrigger::ffi::*;
use outrigger::runtime::{CopyKind, DType};
use outrigger_tests::abi::{made, ok, with_add};

use super::model::{self, SENT};
use super::program::{Buffer, COUNT, FLOATS, PREDICATES, Work};

/// Bytes of a number of a type.
pub(crate) fn width(dtype: DType) -> u64 {
    if dtype == DType::F32 { 4 } else { 8 }
}

/// The stream or the graph that a command goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To<'a> {
    Stream(u64),
    Graph(u64, &'a [u32]),
}

impl To<'_> {
    fn kernel(self, call: &otr_host_kernel_call_t) -> u32 {
        match self {
            To::Stream(stream) => done(unsafe { otr_host_kernel_launch(stream, call) }),
            To::Graph(graph, deps) => made(|node| unsafe {
                otr_graph_add_host_kernel(graph, deps.as_ptr(), deps.len() as u32, call, node)
            }),
        }
    }

    fn copy(self, to: u64, from: u64, size: u64, kind: CopyKind) -> u32 {
        let kind = kind.raw();
        match self {
            To::Stream(stream) => done(unsafe { otr_copy(stream, to, from, size, kind) }),
            To::Graph(graph, deps) => made(|node| unsafe {
                let count = deps.len() as u32;
                otr_graph_add_copy(graph, deps.as_ptr(), count, to, from, size, kind, node)
            }),
        }
    }

    fn fill(self, to: u64, size: u64, pattern: &[u8]) -> u32 {
        let (bytes, length) = (pattern.as_ptr().cast(), pattern.len() as u32);
        match self {
            To::Stream(stream) => done(unsafe { otr_fill(stream, to, size, bytes, length) }),
            To::Graph(graph, deps) => made(|node| unsafe {
                let count = deps.len() as u32;
                otr_graph_add_fill(graph, deps.as_ptr(), count, to, size, bytes, length, node)
            }),
        }
    }
}

/// Success of a call that gives no node.
#[track_caller]
fn done(status: *mut otr_status_t) -> u32 {
    ok(status);
    0
}

/// The block of all kernels here.
#[repr(C)]
struct Block {
    to: u64,
    from: u64,
    k: i64,
}

/// Reads all, lets other threads go on, and writes all: whoever is not ordered is seen to be.
///
/// # Safety
/// `to` and `from` are of `COUNT` numbers.
unsafe fn each<T: Copy, F: Copy>(to: *mut T, from: *const F, with: impl Fn(T, F) -> T) {
    let (old, from) = unsafe {
        (
            to.cast::<[T; COUNT]>().read(),
            from.cast::<[F; COUNT]>().read(),
        )
    };
    std::thread::yield_now();
    let new: [T; COUNT] = std::array::from_fn(|index| with(old[index], from[index]));
    unsafe { to.cast::<[T; COUNT]>().write(new) };
}

unsafe fn block(args: *const c_void, bias: i64) -> Block {
    let mut block = unsafe { args.cast::<Block>().read_unaligned() };
    block.to = block.to.wrapping_add(bias as u64);
    block.from = block.from.wrapping_add(bias as u64);
    block
}

unsafe extern "C" fn mix(args: *const c_void, _size: u32, bias: i64) -> i32 {
    unsafe {
        let Block { to, from, k } = block(args, bias);
        each(to as *mut i64, from as *const i64, |to, from| {
            model::mix(to, from, k)
        });
    }
    0
}

unsafe extern "C" fn to_float(args: *const c_void, _size: u32, bias: i64) -> i32 {
    unsafe {
        let Block { to, from, .. } = block(args, bias);
        each(to as *mut f32, from as *const i64, |_, from| {
            model::to_float(from)
        });
    }
    0
}

unsafe extern "C" fn to_integer(args: *const c_void, _size: u32, bias: i64) -> i32 {
    unsafe {
        let Block { to, from, .. } = block(args, bias);
        each(to as *mut i64, from as *const f32, model::to_integer);
    }
    0
}

/// Counts the predicate at place `k` down.
unsafe extern "C" fn down(args: *const c_void, _size: u32, bias: i64) -> i32 {
    unsafe {
        let Block { to, k, .. } = block(args, bias);
        *(to as *mut i64).add(k as usize) -= 1;
    }
    0
}

/// As `mix`, but it begins with a pause: what does not wait for it comes before it.
unsafe extern "C" fn slow_mix(args: *const c_void, size: u32, bias: i64) -> i32 {
    std::thread::sleep(std::time::Duration::from_millis(3));
    unsafe { mix(args, size, bias) }
}

/// Adds `slow_mix` to a graph, as work that is worth a thread of its own.
pub(crate) fn add_slow_mix(graph: u64, deps: &[u32], to: u64, from: u64, k: i64) -> u32 {
    let block = Block { to, from, k };
    launch(
        To::Graph(graph, deps),
        slow_mix,
        c"slow mix",
        &block,
        3_000_000,
    )
}

/// User data of host functions that are alive.
pub(crate) static JOBS: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" fn host(user: *mut c_void, bias: i64, upstream: i32) -> i32 {
    if upstream != 0 {
        return upstream;
    }
    let job = unsafe { &*user.cast::<Block>() };
    let args = std::ptr::from_ref(job).cast();
    unsafe { mix(args, 0, bias) }
}

unsafe extern "C" fn destroy(user: *mut c_void) {
    drop(unsafe { Box::from_raw(user.cast::<Block>()) });
    JOBS.fetch_sub(1, Ordering::Relaxed);
}

fn launch(
    to: To<'_>,
    function: unsafe extern "C" fn(*const c_void, u32, i64) -> i32,
    label: &'static CStr,
    block: &Block,
    cost_ns: u32,
) -> u32 {
    let offsets = [0u32, 8];
    to.kernel(&otr_host_kernel_call_t {
        struct_size: size_of::<otr_host_kernel_call_t>(),
        next: null(),
        function: Some(function),
        args: std::ptr::from_ref(block).cast(),
        args_size: size_of::<Block>() as u32,
        cost_ns,
        label: label.as_ptr(),
        address_offsets: offsets.as_ptr(),
        address_count: 2,
        reserved: 0,
        address_ranges: std::ptr::null(),
    })
}

fn host_node(to: To<'_>, block: Block) -> u32 {
    let (reads, writes) = ([block.from], [block.to]);
    JOBS.fetch_add(1, Ordering::Relaxed);
    let node = otr_host_node_t {
        struct_size: size_of::<otr_host_node_t>(),
        next: null(),
        function: Some(host),
        user: Box::into_raw(Box::new(block)).cast(),
        destroy: Some(destroy),
        label: c"mix on the host".as_ptr(),
        reads: reads.as_ptr(),
        writes: writes.as_ptr(),
        read_count: 1,
        write_count: 1,
        cost_ns: 0,
        reserved: 0,
    };
    match to {
        To::Stream(stream) => done(unsafe { otr_host_node(stream, &node) }),
        To::Graph(graph, deps) => made(|out| unsafe {
            otr_graph_add_host(graph, deps.as_ptr(), deps.len() as u32, &node, out)
        }),
    }
}

/// Submits, records or adds one work. Gives its node where there is one. `received` is where the host
/// receives numbers.
pub(crate) fn emit(
    to: To<'_>,
    work: &Work,
    place: impl Fn(Buffer) -> (u64, DType),
    received: &[AtomicI64; COUNT],
) -> u32 {
    let address = |buffer| place(buffer).0;
    let block = |to, from, k| Block {
        to: address(to),
        from: address(from),
        k,
    };
    match *work {
        Work::Fill {
            to: buffer,
            range,
            value,
        } => {
            let (start, dtype) = place(buffer);
            let (at, size) = (range.first as u64, range.count as u64);
            let width = width(dtype);
            let (start, size) = (start + at * width, size * width);
            if dtype == DType::F32 {
                to.fill(start, size, &(value as f32).to_ne_bytes())
            } else {
                to.fill(start, size, &value.to_ne_bytes())
            }
        }
        Work::Copy {
            to: dst,
            from,
            range,
        } => {
            let width = width(place(dst).1);
            let offset = range.first as u64 * width;
            let size = range.count as u64 * width;
            let kind = CopyKind::DeviceToDevice;
            to.copy(address(dst) + offset, address(from) + offset, size, kind)
        }
        Work::Add {
            out, a, b, alpha, ..
        } => {
            let dtype = place(out).1;
            let operands = (address(out), address(a), address(b));
            with_add(dtype, operands, COUNT as i64, alpha, |id, call| match to {
                To::Stream(stream) => done(unsafe { otr_operator_call(stream, id, call) }),
                To::Graph(graph, deps) => made(|node| unsafe {
                    otr_graph_add_operator(graph, deps.as_ptr(), deps.len() as u32, id, call, node)
                }),
            })
        }
        Work::Mix {
            to: dst,
            from,
            k,
            cost_ns,
        } => launch(to, mix, c"mix", &block(dst, from, k), cost_ns),
        Work::ToFloat {
            to: dst,
            from,
            cost_ns,
        } => launch(to, to_float, c"to float", &block(dst, from, 0), cost_ns),
        Work::ToInteger {
            to: dst,
            from,
            cost_ns,
        } => launch(to, to_integer, c"to integer", &block(dst, from, 0), cost_ns),
        Work::Down { place } => {
            let block = block(PREDICATES, PREDICATES, place as i64);
            launch(to, down, c"down", &block, 1)
        }
        Work::Host { to: dst, from, k } => host_node(to, block(dst, from, k)),
        Work::Upload { to: dst } => {
            let size = size_of_val(&SENT) as u64;
            to.copy(
                address(dst),
                SENT.as_ptr() as u64,
                size,
                CopyKind::HostToDevice,
            )
        }
        Work::Download { from } => {
            let size = size_of_val(received) as u64;
            let kind = CopyKind::DeviceToHost;
            to.copy(received.as_ptr() as u64, address(from), size, kind)
        }
    }
}

/// The type of a buffer that a program is given.
pub(crate) fn dtype(buffer: Buffer) -> DType {
    if buffer < FLOATS {
        DType::F32
    } else {
        DType::I64
    }
}
