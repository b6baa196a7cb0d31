//! A replay that changes few nodes of a driver's graph gives the driver these nodes again, and no others. This is a
//! separate program, because its driver fails at calls of given numbers: that is how the calls are counted.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI, with pointers to locals"
)]

use std::sync::atomic::Ordering;

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;

/// Fills of 16 bytes each, in a buffer of their own but for those of `BOUND`.
const NODES: usize = 200;
/// The nodes that fill the buffer which is bound: the first two are recorded together.
const BOUND: [usize; 3] = [10, 12, 150];
/// The commands that are recorded: all nodes; then nodes 10 to 12, and 150; then 10 to 12 and all nodes.
const RECORDED: usize = NODES + 4 + 3 + NODES;

#[test]
fn changed_nodes_alone_are_recorded_again() {
    within_limit(|| {
        // The third update of a part fails, and so does the fill behind all that are expected. Host functions are no
        // kernels, so operators are host calls.
        let faults = format!(
            "fault:graph_update_part@3=call:UNSUPPORTED&fill@{}=call:OUT_OF_HOST_MEMORY&module_load@1..=call:UNSUPPORTED",
            RECORDED + 1
        );
        // SAFETY: this is the only test of the program, and no other thread reads the environment yet.
        unsafe {
            std::env::set_var("OUTRIGGER_DRIVER", "host?graphs=native");
            std::env::set_var("OUTRIGGER_LAYERS", faults);
        }
        let s = stream(0);
        fills(s);
        operators(s);
    });
}

fn fills(s: u64) {
    let size = 16 * NODES as u64;
    let zeros = vec![0_u8; size as usize];
    let buffers = [(); 4].map(|()| alloc(0, size, s));
    for buffer in buffers {
        upload(s, buffer, &zeros);
    }
    let [all, x, second, third] = buffers;
    begin(s);
    for node in 0..NODES {
        let buffer = if BOUND.contains(&node) { x } else { all };
        let value = [node as u8];
        let at = buffer + 16 * node as u64;
        ok(unsafe { otr_fill(s, at, 16, value.as_ptr().cast(), 1) });
    }
    let graph = end(s);
    ok(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), x, size) });
    let exec = instantiate(graph, OTR_GRAPH_NATIVE);
    let expected = |bound: bool| -> Vec<u8> {
        let filled = |node| BOUND.contains(&node) == bound;
        let value = |node| if filled(node) { node as u8 } else { 0 };
        (0..NODES).flat_map(|node| [value(node); 16]).collect()
    };
    // Nothing changes for the first replay. The second one updates parts, and the third one falls back to all.
    for (round, buffer) in [x, second, third].into_iter().enumerate() {
        if round > 0 {
            ok(unsafe { otr_graph_bind(exec, 0, buffer) });
        }
        replay(exec, s);
        assert_eq!(download::<u8>(s, all, zeros.len()), expected(false));
        assert_eq!(download::<u8>(s, buffer, zeros.len()), expected(true));
        for other in [x, second, third].into_iter().filter(|&one| one != buffer) {
            assert_eq!(
                download::<u8>(s, other, zeros.len()),
                zeros,
                "round {round}"
            );
        }
        upload(s, all, &zeros);
        upload(s, buffer, &zeros);
    }
    let next = unsafe { otr_fill(s, all, 16, [0_u8].as_ptr().cast(), 1) };
    fails(next, Code::OUT_OF_HOST_MEMORY, &[]);
    ok(unsafe { otr_graph_exec_destroy(exec) });
    ok(unsafe { otr_graph_destroy(graph) });
    for buffer in buffers {
        ok(unsafe { otr_memory_free(0, buffer) });
    }
}

/// Host calls are updated while launches wait that need what they had before.
fn operators(s: u64) {
    let buffers = [(); 4].map(|()| alloc(0, 64, s));
    let [x, y, more, kept] = buffers;
    for (buffer, value) in [(x, 1.0_f32), (y, 0.0), (more, 10.0), (kept, 0.0)] {
        upload(s, buffer, &[value; 16]);
    }
    begin(s);
    add(s, (kept, kept, kept), 16, 1);
    add(s, (y, y, x), 16, 1); // y += x
    let graph = end(s);
    ok(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), x, 64) });
    let exec = instantiate(graph, OTR_GRAPH_NATIVE);
    let open = hold_back(s);
    for buffer in [x, more, x] {
        ok(unsafe { otr_graph_bind(exec, 0, buffer) });
        replay(exec, s);
    }
    // Memory that was given back too early has other contents now.
    ok(unsafe { otr_memory_empty_cache(0) });
    let other: Vec<_> = (0..4096).map(|i| vec![0xff_u8; 16 + i % 512]).collect();
    open.store(true, Ordering::SeqCst);
    assert_eq!(download::<f32>(s, y, 16), [12.0; 16]);
    drop(other);
    ok(unsafe { otr_graph_exec_destroy(exec) });
    ok(unsafe { otr_graph_destroy(graph) });
    for buffer in buffers {
        ok(unsafe { otr_memory_free(0, buffer) });
    }
}
