//! Graphs: which calls of CUDA they are. That they do what the contract says is what the conformance suite tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::bench::{Bench, block, free, read, refusal};
use outrigger_device::{Code, CopyKind, Driver, Kernel, NativeGraph, NativeGraphs, Queue, sys};
use serial_test::serial;

const TEXT: &str = "extern \"C\" __global__ void add(unsigned* p, unsigned n, unsigned value) {}
extern \"C\" __global__ void add_slowly(unsigned* p, unsigned n, unsigned value) {}";

fn graphs(driver: &Driver) -> NativeGraphs<'_> {
    driver.native_graphs().unwrap()
}

fn recorded(queue: &Queue, record: impl FnOnce()) -> NativeGraph {
    graphs(queue.driver()).record_begin(queue).unwrap();
    record();
    graphs(queue.driver()).record_end(queue).unwrap()
}

fn launch(queue: &Queue, graph: &NativeGraph) {
    // SAFETY: the tests wait for their queues before memory and modules go.
    unsafe { queue.launch_graph(graph) }.unwrap();
}

fn fill(queue: &Queue, address: u64, size: u64, pattern: &[u8]) {
    // SAFETY: as for `launch`, within an allocation of the test.
    unsafe { queue.fill(address, size, pattern) }.unwrap();
}

fn copy(queue: &Queue, dst: u64, src: u64, size: u64, kind: CopyKind) {
    // SAFETY: as for `launch`, between two ranges of the test.
    unsafe { queue.copy(dst, src, size, kind) }.unwrap();
}

/// Adds to one number.
fn add(queue: &Queue, kernel: &Kernel, memory: u64, value: u32) {
    let block = [
        memory.to_le_bytes(),
        (1 | u64::from(value) << 32).to_le_bytes(),
    ]
    .concat();
    // SAFETY: as for `launch`.
    unsafe { queue.launch(kernel, &block, 0, c"add") }.unwrap();
}

fn number(queue: &Queue, memory: u64) -> u32 {
    u32::from_le_bytes(read(queue, memory, 4).try_into().unwrap())
}

/// A host call, as often as it is launched.
fn count(queue: &Queue, counter: &Arc<AtomicU32>) {
    unsafe extern "C" fn call(user: *mut std::ffi::c_void, upstream: i32) -> i32 {
        // SAFETY: the counter below, which is never freed.
        unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
        upstream
    }
    let user = Arc::into_raw(Arc::clone(counter)).cast_mut().cast();
    // SAFETY: the counter lives for ever, and may be used by any thread.
    unsafe { queue.host_call_raw(call, user, sys::OTR_HOST_CALL_CANNOT_FAIL) }.unwrap();
}

#[test]
#[serial]
fn a_recording_makes_no_call_and_a_launch_makes_one() {
    let bench = Bench::new();
    let driver = bench.open();
    let (queue, other) = (
        driver.queue_create(0, 0).unwrap(),
        driver.queue_create(0, 0).unwrap(),
    );
    let (forked, joined) = (
        driver.event_create(0, false).unwrap(),
        driver.event_create(0, false).unwrap(),
    );
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let host = driver.pinned().unwrap().alloc(64).unwrap() as u64;
    let module = (driver.module_load(0, sys::OTR_CODE_CUDA_C, TEXT.as_bytes(), None)).unwrap();
    let kernel = module.kernel(Some(c"add")).unwrap();
    bench.calls();
    graphs(&driver).record_begin(&queue).unwrap();
    fill(&queue, memory, 64, &[0]);
    forked.record(&queue).unwrap();
    other.wait_event(&forked).unwrap();
    add(&other, &kernel, memory, 5);
    add(&queue, &kernel, memory + 4, 6);
    joined.record(&other).unwrap();
    queue.wait_event(&joined).unwrap();
    copy(&queue, memory + 64, memory, 64, CopyKind::DeviceToDevice);
    copy(&queue, host, memory + 64, 64, CopyKind::DeviceToHost);
    // Two columns of words.
    fill(&queue, memory, 64, &1.5_f64.to_le_bytes());
    assert_eq!(bench.calls(), [""; 0]);
    let graph = graphs(&driver).record_end(&queue).unwrap();
    let (kernel_node, copy_node) = ("cuGraphAddKernelNode", "cuGraphAddMemcpyNode");
    let fill_node = "cuGraphAddMemsetNode";
    let expected = [
        "cuGraphCreate",
        fill_node,
        kernel_node,
        kernel_node,
        copy_node,
        copy_node,
        fill_node,
        fill_node,
        "cuGraphInstantiateWithFlags",
    ];
    assert_eq!(bench.calls(), expected);
    for _ in 0..2 {
        launch(&queue, &graph);
        assert_eq!(bench.calls(), ["cuGraphLaunch"]);
        queue.synchronize().unwrap();
        // SAFETY: pinned memory, which no work uses now.
        let found = unsafe { std::slice::from_raw_parts(host as *const u32, 3) };
        assert_eq!(found, [5, 6, 0]);
        bench.calls();
    }
    drop(graph);
    assert_eq!(bench.calls(), ["cuGraphExecDestroy", "cuGraphDestroy"]);
    // SAFETY: no work uses it.
    unsafe { driver.pinned().unwrap().free(host as *mut _) }.unwrap();
    free(&driver, memory);
    drop((kernel, module, forked, joined, queue, other));
    bench.finish(driver);
}

#[test]
#[serial]
fn host_calls_and_pageable_memory_are_between_graphs_of_cuda() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    let counter = Arc::new(AtomicU32::new(0));
    let mut bytes = vec![7_u8; 64];
    let host = bytes.as_mut_ptr() as u64;
    let graph = recorded(&queue, || {
        fill(&queue, memory, 64, &[1]);
        copy(&queue, memory, host, 8, CopyKind::HostToDevice);
        fill(&queue, memory + 4, 4, &[2]);
        count(&queue, &counter);
        copy(&queue, host, memory, 64, CopyKind::DeviceToHost);
    });
    bench.calls();
    launch(&queue, &graph);
    queue.synchronize().unwrap();
    let calls = bench.calls();
    let launches = calls.iter().filter(|call| *call == "cuGraphLaunch");
    assert_eq!(launches.count(), 2, "{calls:?}");
    assert_eq!(bytes[..9], [7, 7, 7, 7, 2, 2, 2, 2, 1]);
    assert_eq!(counter.load(Ordering::SeqCst), 1);
    drop(graph);
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn an_update_sets_what_has_changed_and_makes_anew_what_cuda_refuses() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let module = (driver.module_load(0, sys::OTR_CODE_CUDA_C, TEXT.as_bytes(), None)).unwrap();
    let (kernel, other) = (
        module.kernel(Some(c"add")).unwrap(),
        module.kernel(Some(c"add_slowly")).unwrap(),
    );
    let make = |at: u64, value: u32| {
        recorded(&queue, || {
            fill(&queue, memory + at, 64, &[0]);
            add(&queue, &kernel, memory + at, value);
            copy(
                &queue,
                memory + at + 64,
                memory + at,
                64,
                CopyKind::DeviceToDevice,
            );
        })
    };
    let graph = make(0, 3);
    let set = [
        "cuGraphExecMemsetNodeSetParams",
        "cuGraphExecKernelNodeSetParams",
        "cuGraphExecMemcpyNodeSetParams",
    ];
    let next = make(256, 4);
    bench.calls();
    graph.update(&next).unwrap();
    assert_eq!(bench.calls(), set);
    launch(&queue, &graph);
    assert_eq!(number(&queue, memory + 256 + 64), 4);
    // A launch that CUDA does not have yet keeps its arguments: what is behind the update is another graph.
    let gate = block(&queue);
    // The driver copies pageable memory by itself, when what is before has ended.
    let mut pageable = [0_u8; 8];
    let host = pageable.as_mut_ptr() as u64;
    copy(&queue, host, memory, 8, CopyKind::DeviceToHost);
    launch(&queue, &graph);
    let later = make(512, 5);
    bench.calls();
    graph
        .update_part(
            1,
            &recorded(&queue, || add(&queue, &kernel, memory + 256, 9)),
        )
        .unwrap();
    assert!(
        bench
            .calls()
            .contains(&"cuGraphInstantiateWithFlags".to_owned())
    );
    gate.open();
    assert_eq!(number(&queue, memory + 256 + 64), 4);
    launch(&queue, &graph);
    assert_eq!(number(&queue, memory + 256 + 64), 9);
    // A graph whose update CUDA refuses half-way is made anew, and if that fails, all is as before.
    for (name, code) in [(set[2], 910), (set[0], 1)] {
        bench.fail(name, 0, code);
        graph.update(&later).unwrap();
        launch(&queue, &graph);
        assert_eq!(number(&queue, memory + 512 + 64), 5, "{name}");
        graph.update(&next).unwrap();
    }
    // Fills of several columns cannot be set.
    let wide = recorded(&queue, || fill(&queue, memory, 64, &1.5_f64.to_le_bytes()));
    bench.calls();
    wide.update(&recorded(&queue, || {
        fill(&queue, memory + 64, 64, &2.5_f64.to_le_bytes())
    }))
    .unwrap();
    assert!(
        bench
            .calls()
            .contains(&"cuGraphInstantiateWithFlags".to_owned())
    );
    launch(&queue, &wide);
    assert_eq!(read(&queue, memory + 64, 8), 2.5_f64.to_le_bytes());
    // Another kernel is another command.
    let foreign = recorded(&queue, || add(&queue, &other, memory, 1));
    let (code, text) = refusal(graph.update_part(1, &foreign));
    assert_eq!(code, Code::INVALID_ARGUMENT);
    assert!(text.contains("command 1 (from 0)"), "{text}");
    drop((graph, next, later, wide, foreign));
    free(&driver, memory);
    drop((kernel, other, module, queue));
    bench.finish(driver);
}

#[test]
#[serial]
fn an_update_that_fails_half_way_changes_nothing() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let make = |at: u64, value: u8| {
        recorded(&queue, || {
            fill(&queue, memory + at, 64, &[value]);
            let (to, from) = (memory + at + 64, memory + at);
            copy(&queue, to, from, 64, CopyKind::DeviceToDevice);
        })
    };
    let (graph, next) = (make(0, 1), make(128, 2));
    // The second node cannot be set, and there is no memory for another graph.
    bench.fail("cuGraphExecMemcpyNodeSetParams", 0, 1);
    bench.fail("cuGraphCreate", 0, 2);
    assert_eq!(refusal(graph.update(&next)).0, Code::OUT_OF_MEMORY);
    fill(&queue, memory, 256, &[0]);
    launch(&queue, &graph);
    assert_eq!(read(&queue, memory + 64, 1), [1]);
    assert_eq!(read(&queue, memory + 128, 1), [0]);
    free(&driver, memory);
    drop((graph, next, queue));
    bench.finish(driver);
}

#[test]
#[serial]
fn a_graph_that_cannot_be_made_is_an_error_and_leaves_nothing() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    for name in [
        "cuGraphCreate",
        "cuGraphAddMemsetNode",
        "cuGraphInstantiateWithFlags",
    ] {
        graphs(&driver).record_begin(&queue).unwrap();
        fill(&queue, memory, 64, &[1]);
        bench.fail(name, 0, 2);
        let (code, text) = refusal(graphs(&driver).record_end(&queue));
        assert_eq!(code, Code::OUT_OF_MEMORY, "{name}");
        assert!(text.contains(name.trim_end_matches("WithFlags")), "{text}");
    }
    bench.calls();
    let graph = recorded(&queue, || fill(&queue, memory, 64, &[1]));
    bench.fail("cuGraphLaunch", 0, 700);
    // SAFETY: refused.
    let (code, _) = refusal(unsafe { queue.launch_graph(&graph) });
    assert_eq!(code, Code::DEVICE_LOST);
    drop(graph);
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn queues_of_two_devices_do_not_share_a_recording() {
    let bench = Bench::new();
    let driver = bench.open();
    let (queue, far) = (
        driver.queue_create(0, 0).unwrap(),
        driver.queue_create(1, 0).unwrap(),
    );
    let point = driver.event_create(0, false).unwrap();
    let graph = recorded(&queue, || {
        point.record(&queue).unwrap();
        let (code, text) = refusal(far.wait_event(&point));
        assert_eq!(code, Code::UNSUPPORTED);
        assert!(text.contains("device 1 cannot join"), "{text}");
    });
    launch(&queue, &graph);
    far.synchronize().unwrap();
    drop((graph, point, queue, far));
    bench.finish(driver);
}

#[test]
#[serial]
fn threads_share_a_graph() {
    let bench = Bench::new();
    let driver = bench.open();
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let recorder = driver.queue_create(0, 0).unwrap();
    let make = |value| recorded(&recorder, || fill(&recorder, memory, 4096, &[value]));
    let (graph, next) = (make(1), make(2));
    // CUDA wants one thread at a time to use a graph; the stand-in notes any other as misuse.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let queue = driver.queue_create(0, 0).unwrap();
                for _ in 0..300 {
                    launch(&queue, &graph);
                }
                queue.synchronize().unwrap();
            });
        }
        scope.spawn(|| (0..100).for_each(|_| graph.update(&next).unwrap()));
    });
    launch(&recorder, &graph);
    assert_eq!(read(&recorder, memory, 4096), [2; 4096]);
    free(&driver, memory);
    drop((graph, next, recorder));
    bench.finish(driver);
}
