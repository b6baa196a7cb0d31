//! Legal calls between which other threads, or callbacks of the host, make their own calls: nothing
//! hangs, nothing that is in use goes away, and each call succeeds or says why not. Every test fails
//! after a time limit instead of hanging.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI, with pointers to locals or to what lives as long as the process"
)]

use std::ffi::{CStr, CString, c_void};
use std::ptr::{from_ref, null};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outrigger::ffi::*;
use outrigger::runtime::{Code, CopyKind, DType};
use outrigger_device::sys::{otr_operator_call_t, otr_tensor_t};
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;

/// Rounds of a race: each is short, and has two sides that meet at different moments.
const ROUNDS: u32 = 3_000;

/// Signatures of driver operators that a device keeps before it forgets all, and a few more.
const MORE_THAN_KEPT: i64 = 16_384 + 100;

/// A device of its own for a test.
fn device(options: &str) -> u32 {
    let device = made(|out| unsafe { otr_device_count(out) });
    let spec = CString::new(format!("host?devices=1&{options}")).expect("no NUL");
    ok(unsafe { otr_driver_load(spec.as_ptr()) });
    device
}

/// A device whose operators are the driver's own.
static OPERATORS: LazyLock<u32> = LazyLock::new(|| device("operators=native&memory=256M"));

fn add_of(stream: u64, address: u64, count: i64) -> *mut otr_status_t {
    with_add(
        DType::F32,
        (address, address, address),
        count,
        1,
        |id, call| unsafe { otr_operator_call(stream, id, call) },
    )
}

/// The call succeeded, or its stream had gone.
#[track_caller]
fn ok_or_gone(status: *mut otr_status_t) {
    if let Err((code, message)) = outcome(status) {
        assert_eq!(code, Code::INVALID_HANDLE, "{message}");
    }
}

/// Runs `call` on ever new streams while another thread destroys each of them.
fn beside_destroy(device: u32, call: impl Fn(u64)) {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=u64::from(ROUNDS) {
                let stream = loop {
                    match next.swap(0, Ordering::AcqRel) {
                        0 => thread::yield_now(),
                        stream => break stream,
                    }
                };
                for _ in 0..round * 37 % 1_000 {
                    std::hint::spin_loop();
                }
                match outcome(unsafe { otr_stream_destroy(stream) }) {
                    Ok(()) => done.store(round << 1, Ordering::Release),
                    // The stream captures by now.
                    Err((Code::BUSY, _)) => done.store(round << 1 | 1, Ordering::Release),
                    Err((code, message)) => panic!("{code}: {message}"),
                }
            }
        });
        for round in 1..=u64::from(ROUNDS) {
            let stream = stream(device);
            next.store(stream, Ordering::Release);
            call(stream);
            let destroyed = loop {
                match done.load(Ordering::Acquire) {
                    now if now >> 1 == round => break now & 1 == 0,
                    _ => thread::yield_now(),
                }
            };
            if !destroyed {
                let _ = outcome(unsafe { otr_stream_destroy(stream) });
            }
        }
    });
}

#[test]
fn a_stream_is_destroyed_while_an_operator_is_called_on_it() {
    within_limit(|| {
        let device = *OPERATORS;
        let memory = alloc(device, 1 << 12, stream(device));
        beside_destroy(device, |stream| ok_or_gone(add_of(stream, memory, 64)));
    });
}

#[test]
fn a_stream_is_destroyed_while_it_joins_a_capture() {
    within_limit(|| {
        let (first, fork) = (stream(0), event(0));
        beside_destroy(0, |joins| {
            ok(unsafe { otr_capture_begin(first, OTR_CAPTURE_THREAD_LOCAL, 0) });
            ok(unsafe { otr_event_record(fork, first) });
            ok_or_gone(unsafe { otr_stream_wait_event(joins, fork) });
            let mut graph = 0;
            if outcome(unsafe { otr_capture_end(first, &mut graph) }).is_ok() {
                ok(unsafe { otr_graph_destroy(graph) });
            }
        });
    });
}

#[test]
fn a_stream_is_destroyed_while_a_graph_is_replayed_on_it() {
    within_limit(|| {
        let device = device("virtual_memory=on&memory=256M");
        let (s, other) = (stream(device), stream(device));
        let size = 8 << 20;
        let x = alloc(device, size, s);
        begin(s);
        let inner = alloc(device, size, s);
        fill(s, inner, 64);
        ok(unsafe { otr_copy(s, x, inner, 64, CopyKind::DeviceToDevice.raw()) });
        ok(unsafe { otr_memory_free(device, inner) });
        let exec = instantiate(end(s), 0);
        beside_destroy(device, |stream| {
            // The free memory of the graph serves others, so that a replay has to bring it back.
            let block = alloc(device, size, other);
            fill(other, block, 64);
            ok(unsafe { otr_memory_free(device, block) });
            ok_or_gone(unsafe { otr_graph_replay(exec, stream) });
        });
    });
}

fn fill(stream: u64, address: u64, size: u64) {
    ok(unsafe { otr_fill(stream, address, size, [0_u8].as_ptr().cast(), 1) });
}

#[test]
fn what_the_driver_said_of_operators_is_forgotten_while_graphs_are_recorded() {
    within_limit(|| {
        let device = *OPERATORS;
        let memory = alloc(device, 1 << 20, stream(device));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Other threads cannot break a capture by what they do elsewhere.
            scope.spawn(|| {
                for mode in [
                    OTR_CAPTURE_GLOBAL,
                    OTR_CAPTURE_THREAD_LOCAL,
                    OTR_CAPTURE_RELAXED,
                ]
                .into_iter()
                .cycle()
                {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let s = stream(device);
                    ok(unsafe { otr_capture_begin(s, mode, 0) });
                    (1..50).for_each(|count| ok(add_of(s, memory, count)));
                    ok(unsafe { otr_graph_destroy(end(s)) });
                    ok(unsafe { otr_stream_destroy(s) });
                }
            });
            let s = stream(device);
            for round in 0..3 {
                for count in 1..=MORE_THAN_KEPT / 3 {
                    ok(add_of(s, memory, round * MORE_THAN_KEPT / 3 + count));
                }
            }
            stop.store(true, Ordering::Relaxed);
            synchronize(s);
        });
    });
}

/// The objects that an observer is told to ask, and how often it has.
#[derive(Default)]
struct Asks {
    stream: AtomicU64,
    graph: AtomicU64,
    exec: AtomicU64,
    asked: AtomicUsize,
}

impl Asks {
    fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    fn user(&'static self) -> *mut c_void {
        from_ref(self).cast_mut().cast()
    }

    /// Asks about the stream, the graph and the executable graph, if there are any: each answers at once.
    fn ask(&self) {
        let [stream, graph, exec] =
            [&self.stream, &self.graph, &self.exec].map(|id| id.load(Ordering::Relaxed));
        if stream != 0 {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if capture_info(stream).status == OTR_CAPTURE_NONE {
                let mut finished = 0;
                ok(unsafe { otr_stream_query(stream, &mut finished) });
            }
        }
        if graph != 0 {
            self.asked.fetch_add(1, Ordering::Relaxed);
            nodes(graph);
        }
        if exec != 0 {
            self.asked.fetch_add(1, Ordering::Relaxed);
            exec_info(exec);
            let mut slot = 0;
            let missing = unsafe { otr_graph_slot(exec, c"none".as_ptr(), &mut slot) };
            fails(missing, Code::NOT_FOUND, &["none"]);
        }
    }
}

unsafe extern "C" fn hears(user: *mut c_void, _seen: *const otr_observation_t) {
    unsafe { &*user.cast::<Asks>() }.ask();
}

unsafe extern "C" fn releases_nothing(user: *mut c_void, _device: u32, _needed: u64) -> u32 {
    unsafe { &*user.cast::<Asks>() }.ask();
    0
}

#[test]
fn an_observer_of_pressure_asks_about_the_graph_that_is_replayed() {
    within_limit(|| {
        let device = device("virtual_memory=on&memory=160M");
        let (s, other) = (stream(device), stream(device));
        let size = 24 << 20;
        let x = alloc(device, size, s);
        begin(s);
        let inner = alloc(device, size, s);
        fill(s, inner, size);
        ok(unsafe { otr_copy(s, x, inner, size, CopyKind::DeviceToDevice.raw()) });
        ok(unsafe { otr_memory_free(device, inner) });
        let exec = instantiate(end(s), 0);
        replay(exec, s);
        synchronize(s);
        // Others take all that is left, the graph's free memory included, and keep it.
        let mut block = 0;
        while outcome(unsafe { otr_memory_alloc(device, 8 << 20, other, &mut block) }).is_ok() {}
        let asks = Asks::new();
        let observer: u64 = made(|out| unsafe {
            otr_observer_add_pressure(Some(releases_nothing), asks.user(), out)
        });
        asks.exec.store(exec, Ordering::Relaxed);
        asks.stream.store(s, Ordering::Relaxed);
        fails(
            unsafe { otr_graph_replay(exec, s) },
            Code::OUT_OF_MEMORY,
            &["out of memory"],
        );
        assert!(asks.asked.load(Ordering::Relaxed) > 0, "nobody was asked");
        ok(unsafe { otr_observer_remove(observer) });
        assert_eq!(exec_info(exec).replays, 1, "a replay that failed is none");
    });
}

#[test]
fn an_observer_asks_about_the_capture_whose_memory_comes_and_goes() {
    within_limit(|| {
        let device = *OPERATORS;
        let (s, second, third) = (stream(device), stream(device), stream(device));
        let asks = Asks::new();
        let kinds = OTR_OBSERVE_SEGMENT_ALLOC | OTR_OBSERVE_SEGMENT_FREE | OTR_OBSERVE_FREE;
        let observer: u64 =
            made(|out| unsafe { otr_observer_add(kinds, Some(hears), asks.user(), out) });
        // Memory of a pool that is about to leave, when the next block is freed.
        let pool: u64 = made(|out| unsafe { otr_pool_create(device, out) });
        let leaving: u64 = made(|out| unsafe { otr_pool_alloc(pool, 24 << 20, second, out) });
        ok(unsafe { otr_memory_record_stream(device, leaving, third) });
        ok(unsafe { otr_memory_free(device, leaving) });
        ok(unsafe { otr_pool_destroy(pool) });
        asks.stream.store(s, Ordering::Relaxed);
        begin(s);
        // The memory of an operator of the driver, and a block that another stream uses.
        let block = alloc(device, 1 << 20, s);
        ok(add_of(s, block, 1 << 10));
        ok(unsafe { otr_memory_record_stream(device, block, second) });
        ok(unsafe { otr_memory_free(device, block) });
        ok(unsafe { otr_graph_destroy(end(s)) });
        assert!(asks.asked.load(Ordering::Relaxed) > 1, "nobody was asked");
        ok(unsafe { otr_observer_remove(observer) });
    });
}

/// Hands `call` an operator over matrices of 4 x 4 numbers.
fn with_matrices<R>(
    name: &CStr,
    inputs: &[u64],
    output: u64,
    call: impl FnOnce(u32, &otr_operator_call_t) -> R,
) -> R {
    let id: u32 = made(|out| unsafe { otr_operator_find(name.as_ptr(), out) });
    let matrix = |&address: &u64| otr_tensor_t {
        address,
        dtype: DType::F32.0,
        rank: 2,
        sizes: [4, 4].as_ptr(),
        strides: [4, 1].as_ptr(),
    };
    let inputs: Vec<_> = inputs.iter().map(matrix).collect();
    let output = matrix(&output);
    let body = otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: inputs.as_ptr(),
        outputs: &output,
        scalars: null(),
        input_count: inputs.len() as u32,
        output_count: 1,
        scalar_count: 0,
        flags: 0,
    };
    call(id, &body)
}

/// Adds an operator to a graph.
fn add_operator(graph: u64, name: &CStr, inputs: &[u64], output: u64) -> *mut otr_status_t {
    with_matrices(name, inputs, output, |id, call| unsafe {
        otr_graph_add_operator(graph, null(), 0, id, call, &mut 0)
    })
}

#[test]
fn an_observer_of_host_kernels_asks_about_the_graph_and_the_capture_that_record_one() {
    within_limit(|| {
        let device = made(|out| unsafe { otr_device_count(out) });
        // The driver `host` is the CPU, so that its kernels are no news.
        let [driver, _] = outrigger_tests::twin_drivers();
        let spec = CString::new(format!("{}?devices=1", driver.display())).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
        let s = stream(device);
        let memory = alloc(device, 64, s);
        let asks = Asks::new();
        let kind = OTR_OBSERVE_HOST_KERNEL;
        let observer: u64 =
            made(|out| unsafe { otr_observer_add(kind, Some(hears), asks.user(), out) });
        ok(unsafe { otr_fallback_set_policy(c"host:warn".as_ptr()) });
        let graph: u64 = made(|out| unsafe { otr_graph_create(device, 0, out) });
        asks.graph.store(graph, Ordering::Relaxed);
        // No kernel takes it, so there is nothing to hear.
        let refused = add_operator(graph, c"bitwise_not", &[memory], memory);
        fails(refused, Code::UNSUPPORTED, &["bitwise_not"]);
        assert_eq!(asks.asked.load(Ordering::Relaxed), 0);
        ok(add_operator(graph, c"neg", &[memory], memory));
        assert_eq!(asks.asked.load(Ordering::Relaxed), 1);
        asks.stream.store(s, Ordering::Relaxed);
        begin(s);
        ok(with_matrices(
            c"abs",
            &[memory],
            memory,
            |id, call| unsafe { otr_operator_call(s, id, call) },
        ));
        ok(unsafe { otr_graph_destroy(end(s)) });
        assert_eq!(asks.asked.load(Ordering::Relaxed), 3);
        ok(unsafe { otr_fallback_set_policy(c"silent".as_ptr()) });
        ok(unsafe { otr_observer_remove(observer) });
    });
}

#[test]
fn memory_is_freed_while_it_is_bound() {
    /// Bytes of the named buffer, and of what comes in its place.
    const LARGE: u64 = 8 << 20;
    const SMALL: u64 = 2 << 20;
    within_limit(|| {
        let s = stream(0);
        let (y, x) = (alloc(0, LARGE, s), alloc(0, LARGE, s));
        begin(s);
        ok(unsafe { otr_copy(s, y, x, LARGE, CopyKind::DeviceToDevice.raw()) });
        let graph = end(s);
        ok(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), x, LARGE) });
        let exec = instantiate(graph, 0);
        let slot: u32 = made(|out| unsafe { otr_graph_slot(exec, c"x".as_ptr(), out) });
        let (address, stop) = (AtomicU64::new(x), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let bound = address.load(Ordering::Relaxed);
                    match outcome(unsafe { otr_graph_bind(exec, slot, bound) }) {
                        // Held from here on, whoever frees it.
                        Ok(()) => {
                            let info = pointer_info(bound);
                            assert!(
                                info.size >= LARGE,
                                "{} bytes were bound for {LARGE}",
                                info.size
                            );
                        }
                        Err((code, message)) => {
                            assert_eq!(code, Code::INVALID_ARGUMENT, "{message}");
                        }
                    }
                }
            });
            let end = Instant::now() + Duration::from_secs(5);
            while Instant::now() < end {
                let large = alloc(0, LARGE, s);
                address.store(large, Ordering::Relaxed);
                ok(unsafe { otr_memory_free(0, large) });
                let small = alloc(0, SMALL, s);
                ok(unsafe { otr_memory_free(0, small) });
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

fn pointer_info(address: u64) -> otr_pointer_info_t {
    let mut info = otr_pointer_info_t {
        struct_size: size_of::<otr_pointer_info_t>(),
        ..unsafe { std::mem::zeroed() }
    };
    // Freed but held, it is nobody's to ask about: as large as can be.
    if outcome(unsafe { otr_memory_pointer_info(0, address, &mut info) }).is_err() {
        info.size = u64::MAX;
    }
    info
}

#[test]
fn memory_waits_for_what_a_stream_was_given_before_a_capture() {
    within_limit(|| {
        let device = device("memory=64M");
        let (s, home) = (stream(device), stream(device));
        let [used, other] = [(); 2].map(|()| alloc(device, 4096, home));
        let open = hold_back(s);
        fill(s, used, 4096);
        for block in [used, other] {
            ok(unsafe { otr_memory_record_stream(device, block, s) });
        }
        begin(s);
        ok(unsafe { otr_memory_free(device, used) });
        let graph = end(s);
        // With this allocation the allocator looks what has passed.
        ok(unsafe { otr_memory_free(device, other) });
        let blocks: Vec<u64> = (0..8).map(|_| alloc(device, 4096, home)).collect();
        assert!(!blocks.contains(&used), "it is in use");
        open.store(true, Ordering::Release);
        synchronize(s);
        ok(unsafe { otr_graph_destroy(graph) });
    });
}
