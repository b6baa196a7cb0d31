//! A replay that a driver refuses in the middle: the work that was submitted runs, and is waited for.
//! This is a separate program, because its driver fails.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI, with pointers to locals or to what lives as long as the process"
)]

use std::ffi::c_void;
use std::ptr::{from_ref, null};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;

/// A node that waits until it is let go, and sees whether it runs beside itself.
#[derive(Default)]
struct Held {
    open: AtomicBool,
    running: AtomicUsize,
    most: AtomicUsize,
    ran: AtomicUsize,
    destroyed: AtomicUsize,
}

unsafe extern "C" fn held_node(user: *mut c_void, _bias: i64, upstream: i32) -> i32 {
    let held = unsafe { &*user.cast::<Held>() };
    let running = held.running.fetch_add(1, Ordering::SeqCst) + 1;
    held.most.fetch_max(running, Ordering::SeqCst);
    while !held.open.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
    held.running.fetch_sub(1, Ordering::SeqCst);
    held.ran.fetch_add(1, Ordering::SeqCst);
    upstream
}

unsafe extern "C" fn held_destroyed(user: *mut c_void) {
    let held = unsafe { &*user.cast::<Held>() };
    held.destroyed.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_replay_that_fails_half_way_is_not_forgotten() {
    within_limit(|| {
        // The driver refuses the first fill, which is the second node of the first replay.
        // SAFETY: this is the only test of the program, and no other thread reads the environment yet.
        unsafe { std::env::set_var("OUTRIGGER_LAYERS", "fault:fill@1=OUT_OF_HOST_MEMORY") };
        let device = 0;
        let (s, other) = (stream(device), stream(device));
        let x = alloc(device, 4096, s);
        let held: &Held = Box::leak(Box::default());
        let node = otr_host_node_t {
            struct_size: size_of::<otr_host_node_t>(),
            next: null(),
            function: Some(held_node),
            user: from_ref(held).cast_mut().cast(),
            destroy: Some(held_destroyed),
            label: null(),
            reads: null(),
            writes: &x,
            read_count: 0,
            write_count: 1,
            cost_ns: 0,
            reserved: 0,
        };
        begin(s);
        ok(unsafe { otr_host_node(s, &node) });
        ok(unsafe { otr_fill(s, x, 4096, [0_u8].as_ptr().cast(), 1) });
        let graph = end(s);
        let exec = instantiate(graph, OTR_GRAPH_SUBMIT);
        fails(
            unsafe { otr_graph_replay(exec, s) },
            Code::OUT_OF_HOST_MEMORY,
            &[],
        );
        assert_eq!(exec_info(exec).replays, 0);
        // The next one waits for what of the first is running.
        replay(exec, other);
        ok(unsafe { otr_graph_destroy(graph) });
        ok(unsafe { otr_graph_exec_destroy(exec) });
        for stream in [s, other] {
            ok(unsafe { otr_stream_flush(stream) });
        }
        thread::sleep(Duration::from_millis(50));
        ok(unsafe { otr_memory_empty_cache(device) });
        assert_eq!(
            held.destroyed.load(Ordering::SeqCst),
            0,
            "a node that is running lost its data"
        );
        held.open.store(true, Ordering::SeqCst);
        ok(unsafe { otr_device_synchronize(device) });
        ok(unsafe { otr_memory_empty_cache(device) });
        assert_eq!(held.ran.load(Ordering::SeqCst), 2);
        assert_eq!(
            held.most.load(Ordering::SeqCst),
            1,
            "two replays of one graph ran at a time"
        );
        assert_eq!(held.destroyed.load(Ordering::SeqCst), 1);
    });
}
