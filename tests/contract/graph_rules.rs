//! R31 to R36: what a recording keeps, which queues belong to it, and what its graph does when it is
//! launched, updated and destroyed.

use outrigger_device::{Code, Driver, NativeGraph, Queue, Result};
use outrigger_tests::Gate;

use crate::support::{
    Log, Memory, Target, block, count_kernel, event, fail, fill, note, queue, read, write,
};

crate::cases! {
    Graphs:
        r31_nothing_runs_before_the_launch,
        r31_arguments_and_patterns_are_copied,
        r31_a_graph_in_a_graph_keeps_what_it_was,
        r32_queues_fork_and_join,
        r32_work_that_is_not_joined_fails_the_recording,
        r33_what_would_wait_is_refused_and_the_recording_goes_on,
        r33_points_outside_of_the_recording_are_refused,
        r33_a_destroyed_queue_gives_its_recording_up,
        r34_a_launch_keeps_its_place_in_the_queue,
        r34_a_failure_skips_the_rest_but_host_calls,
        r34_an_empty_graph_is_launched,
        r36_a_destroyed_graph_still_runs;
    GraphUpdate:
        r35_an_update_is_for_later_launches,
        r35_other_commands_are_refused;
    TwoDevicesWithGraphs:
        r34_a_graph_stays_on_its_device;
}

fn code_of<T>(result: Result<T>) -> Code {
    result.map_or_else(|error| error.code(), |_| Code::OK)
}

fn begin(queue: &Queue) {
    let driver = queue.driver();
    driver.native_graphs().unwrap().record_begin(queue).unwrap();
}

fn try_end(queue: &Queue) -> Result<NativeGraph> {
    queue.driver().native_graphs().unwrap().record_end(queue)
}

fn end(queue: &Queue) -> NativeGraph {
    try_end(queue).unwrap()
}

fn launch(queue: &Queue, graph: &NativeGraph) {
    // SAFETY: each test waits for its launches before its memory goes out of scope.
    unsafe { queue.launch_graph(graph) }.unwrap();
}

fn copy(queue: &Queue, dst: u64, src: u64, size: u64) {
    let kind = outrigger_device::CopyKind::DeviceToDevice;
    // SAFETY: the test's own memory; the ranges do not overlap.
    unsafe { queue.copy(dst, src, size, kind) }.unwrap();
}

/// A graph of one fill.
fn filling(driver: &Driver, address: u64, value: u8) -> NativeGraph {
    let queue = queue(driver);
    begin(&queue);
    fill(&queue, address, 64, &[value]);
    end(&queue)
}

fn r31_nothing_runs_before_the_launch(target: &Target) {
    let driver = target.open();
    let (queue, log) = (queue(&driver), Log::default());
    let memory = Memory::new(&driver, 0, 128);
    fill(&queue, memory.address, 128, &[1]);
    begin(&queue);
    fill(&queue, memory.address, 64, &[2]);
    copy(&queue, memory.address + 64, memory.address, 64);
    queue.flush().unwrap();
    let graph = end(&queue);
    assert_eq!(read(&queue, memory.address, 128), [1; 128]);
    launch(&queue, &graph);
    assert_eq!(read(&queue, memory.address, 128), [2; 128]);
    // A host call is called once for each launch.
    let counted = recorded_note(&queue, &log, 7);
    assert!(log.values().is_empty());
    launch(&queue, &counted);
    launch(&queue, &counted);
    queue.synchronize().unwrap();
    assert_eq!(log.values(), [7, 7]);
}

/// A graph of one host call that notes a value, however often. What it notes in is never freed.
fn recorded_note(queue: &Queue, log: &Log, value: u64) -> NativeGraph {
    begin(queue);
    keep_note(queue, log, value);
    end(queue)
}

fn keep_note(queue: &Queue, log: &Log, value: u64) {
    unsafe extern "C" fn call(user: *mut std::ffi::c_void, upstream: i32) -> i32 {
        // SAFETY: the leaked pair below.
        let (log, value) = unsafe { &*user.cast::<(Log, u64)>() };
        log.push(value + 1000 * u64::from(upstream != Code::OK.0));
        upstream
    }
    let pair = Box::leak(Box::new((log.clone(), value)));
    // SAFETY: the pair lives for ever, and may be used by any thread.
    unsafe { queue.host_call_raw(call, std::ptr::from_mut(pair).cast()) }.unwrap();
}

fn keep_failure(queue: &Queue, code: Code) {
    unsafe extern "C" fn call(user: *mut std::ffi::c_void, _upstream: i32) -> i32 {
        user as usize as i32
    }
    // SAFETY: the code stands in for the pointer, which is not followed.
    unsafe { queue.host_call_raw(call, code.0 as usize as *mut std::ffi::c_void) }.unwrap();
}

fn r31_arguments_and_patterns_are_copied(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 64);
    begin(&queue);
    let mut pattern = [3u8; 4];
    fill(&queue, memory.address, 64, &pattern);
    pattern.fill(9);
    let graph = end(&queue);
    launch(&queue, &graph);
    assert_eq!(read(&queue, memory.address, 64), [3; 64]);
    let Some(kernel) = driver.host_kernel(0, count_kernel).unwrap() else {
        return;
    };
    let mut counter = 0u64;
    let mut args = [&raw mut counter as u64, 5];
    begin(&queue);
    // SAFETY: the kernel's arguments; the counter outlives the launches, which are waited for.
    unsafe { queue.launch(&kernel, bytes(&args), 0, c"count") }.unwrap();
    args[1] = 1000;
    std::hint::black_box(&args);
    let graph = end(&queue);
    for _ in 0..3 {
        launch(&queue, &graph);
    }
    queue.synchronize().unwrap();
    // SAFETY: nobody writes to it any more.
    assert_eq!(unsafe { (&raw const counter).read() }, 15);
}

fn bytes(words: &[u64; 2]) -> &[u8] {
    // SAFETY: plain numbers.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

fn r31_a_graph_in_a_graph_keeps_what_it_was(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 64);
    let inner = filling(&driver, memory.address, 4);
    begin(&queue);
    launch(&queue, &inner);
    let outer = end(&queue);
    if driver.native_graphs().unwrap().can_update() {
        inner.update(&filling(&driver, memory.address, 5)).unwrap();
    }
    drop(inner);
    launch(&queue, &outer);
    assert_eq!(read(&queue, memory.address, 64), [4; 64]);
}

fn r32_queues_fork_and_join(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let (forked, joined) = (event(&driver), event(&driver));
    let memory = Memory::new(&driver, 0, 192);
    let at = memory.address;
    begin(&first);
    fill(&first, at, 64, &[6]);
    forked.record(&first).unwrap();
    second.wait_event(&forked).unwrap();
    copy(&second, at + 64, at, 64);
    joined.record(&second).unwrap();
    first.wait_event(&joined).unwrap();
    copy(&first, at + 128, at + 64, 64);
    let graph = end(&first);
    // Both queues take work again, and nothing of the recording has run.
    fill(&second, at, 192, &[0]);
    second.synchronize().unwrap();
    assert_eq!(read(&first, at, 192), [0; 192]);
    launch(&first, &graph);
    assert_eq!(read(&first, at, 192), [6; 192]);
}

fn r32_work_that_is_not_joined_fails_the_recording(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let (forked, early) = (event(&driver), event(&driver));
    let memory = Memory::new(&driver, 0, 64);
    fill(&first, memory.address, 64, &[1]);
    begin(&first);
    forked.record(&first).unwrap();
    second.wait_event(&forked).unwrap();
    fill(&second, memory.address, 64, &[2]);
    early.record(&second).unwrap();
    fill(&second, memory.address, 64, &[3]);
    first.wait_event(&early).unwrap();
    let other = try_end(&second);
    assert_eq!(
        code_of(other),
        Code::INVALID_ARGUMENT,
        "it began on another"
    );
    assert_eq!(code_of(try_end(&first)), Code::INVALID_ARGUMENT);
    second.synchronize().unwrap();
    assert_eq!(read(&first, memory.address, 64), [1; 64], "it is lost");
    assert_eq!(code_of(try_end(&first)), Code::INVALID_ARGUMENT);
}

fn r33_what_would_wait_is_refused_and_the_recording_goes_on(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let (point, memory) = (event(&driver), Memory::new(&driver, 0, 64));
    begin(&queue);
    fill(&queue, memory.address, 64, &[8]);
    point.record(&queue).unwrap();
    assert_eq!(code_of(queue.query()), Code::CAPTURE);
    assert_eq!(code_of(queue.synchronize()), Code::CAPTURE);
    let again = driver.native_graphs().unwrap().record_begin(&queue);
    assert_eq!(code_of(again), Code::CAPTURE);
    assert_eq!(code_of(point.query()), Code::CAPTURE);
    assert_eq!(code_of(point.synchronize()), Code::CAPTURE);
    let graph = end(&queue);
    assert!(point.query().unwrap(), "it counts as never recorded");
    queue.wait_event(&point).unwrap();
    launch(&queue, &graph);
    assert_eq!(read(&queue, memory.address, 64), [8; 64]);
    // The event serves as ever.
    let gate = Gate::new();
    block(&queue, &gate);
    point.record(&queue).unwrap();
    assert!(!point.query().unwrap());
    gate.open();
    point.synchronize().unwrap();
}

fn r33_points_outside_of_the_recording_are_refused(target: &Target) {
    let driver = target.open();
    let (first, second, busy) = (queue(&driver), queue(&driver), queue(&driver));
    let (past, ahead, inner) = (event(&driver), event(&driver), event(&driver));
    let gate = Gate::new();
    past.record(&busy).unwrap();
    block(&busy, &gate);
    ahead.record(&busy).unwrap();
    begin(&first);
    begin(&second);
    first.wait_event(&event(&driver)).unwrap();
    first.wait_event(&past).unwrap();
    assert_eq!(code_of(first.wait_event(&ahead)), Code::CAPTURE);
    inner.record(&first).unwrap();
    assert_eq!(code_of(second.wait_event(&inner)), Code::CAPTURE);
    let _ = (end(&first), end(&second));
    gate.open();
    busy.synchronize().unwrap();
}

fn r33_a_destroyed_queue_gives_its_recording_up(target: &Target) {
    let driver = target.open();
    let (first, second) = (queue(&driver), queue(&driver));
    let (forked, log) = (event(&driver), Log::default());
    begin(&first);
    forked.record(&first).unwrap();
    second.wait_event(&forked).unwrap();
    drop(first);
    note(&second, &log, 1);
    second.synchronize().unwrap();
    assert_eq!(log.values(), [1], "it no longer records");
    assert!(forked.query().unwrap());
    let first = queue(&driver);
    begin(&first);
    forked.record(&first).unwrap();
    second.wait_event(&forked).unwrap();
    drop(second);
    assert_eq!(code_of(try_end(&first)), Code::INVALID_ARGUMENT);
    first.synchronize().unwrap();
}

fn r34_a_launch_keeps_its_place_in_the_queue(target: &Target) {
    let driver = target.open();
    let (queue, other) = (queue(&driver), queue(&driver));
    let (gate, done) = (Gate::new(), event(&driver));
    let memory = Memory::new(&driver, 0, 128);
    let at = memory.address;
    begin(&other);
    copy(&other, at + 64, at, 64);
    let graph = end(&other);
    block(&queue, &gate);
    fill(&queue, at, 64, &[1]);
    launch(&queue, &graph);
    fill(&queue, at, 64, &[2]);
    done.record(&queue).unwrap();
    other.wait_event(&done).unwrap();
    assert!(!queue.query().unwrap());
    gate.open();
    let bytes = read(&other, at, 128);
    assert_eq!((&bytes[..64], &bytes[64..]), (&[2; 64][..], &[1; 64][..]));
}

fn r34_a_failure_skips_the_rest_but_host_calls(target: &Target) {
    let driver = target.open();
    let (queue, log) = (queue(&driver), Log::default());
    let memory = Memory::new(&driver, 0, 64);
    fill(&queue, memory.address, 64, &[1]);
    begin(&queue);
    keep_note(&queue, &log, 1);
    keep_failure(&queue, Code::OUT_OF_RANGE);
    fill(&queue, memory.address, 64, &[2]);
    keep_note(&queue, &log, 2);
    let graph = end(&queue);
    for _ in 0..2 {
        launch(&queue, &graph);
        note(&queue, &log, 3);
        assert_eq!(code_of(queue.synchronize()), Code::OUT_OF_RANGE);
    }
    assert_eq!(log.values(), [1, 1002, 3, 1, 1002, 3]);
    assert_eq!(read(&queue, memory.address, 64), [1; 64]);
    // The failure of work before it goes through.
    fail(&queue, Code::EXECUTION);
    launch(&queue, &graph);
    assert_eq!(code_of(queue.synchronize()), Code::EXECUTION);
    assert_eq!(log.values()[6..], [1001, 1002]);
}

fn r34_an_empty_graph_is_launched(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    begin(&queue);
    let graph = end(&queue);
    launch(&queue, &graph);
    queue.synchronize().unwrap();
}

fn r34_a_graph_stays_on_its_device(target: &Target) {
    let driver = target.open();
    let memory = Memory::new(&driver, 0, 64);
    let graph = filling(&driver, memory.address, 1);
    let elsewhere = driver.queue_create(1, 0).unwrap();
    // SAFETY: it is refused, so that nothing is executed.
    let refused = unsafe { elsewhere.launch_graph(&graph) };
    assert_eq!(code_of(refused), Code::INVALID_DEVICE);
    elsewhere.synchronize().unwrap();
}

fn r35_an_update_is_for_later_launches(target: &Target) {
    let driver = target.open();
    let (queue, gate) = (queue(&driver), Gate::new());
    let memory = Memory::new(&driver, 0, 128);
    let at = memory.address;
    let (graph, other) = (filling(&driver, at, 1), filling(&driver, at + 64, 2));
    write(&queue, at, &[0; 128]);
    block(&queue, &gate);
    launch(&queue, &graph);
    graph.update(&other).unwrap();
    graph.update(&graph).unwrap();
    launch(&queue, &graph);
    drop(other);
    gate.open();
    let bytes = read(&queue, at, 128);
    assert_eq!((&bytes[..64], &bytes[64..]), (&[1; 64][..], &[2; 64][..]));
}

fn r35_other_commands_are_refused(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 128);
    let at = memory.address;
    let graph = filling(&driver, at, 1);
    begin(&queue);
    copy(&queue, at + 64, at, 64);
    let copying = end(&queue);
    begin(&queue);
    fill(&queue, at, 64, &[2]);
    fill(&queue, at, 64, &[3]);
    let longer = end(&queue);
    for other in [&copying, &longer] {
        assert_eq!(code_of(graph.update(other)), Code::INVALID_ARGUMENT);
    }
    launch(&queue, &graph);
    assert_eq!(read(&queue, at, 64), [1; 64], "nothing has changed");
}

fn r36_a_destroyed_graph_still_runs(target: &Target) {
    let driver = target.open();
    let (queue, gate) = (queue(&driver), Gate::new());
    let memory = Memory::new(&driver, 0, 64);
    let graph = filling(&driver, memory.address, 1);
    write(&queue, memory.address, &[0; 64]);
    block(&queue, &gate);
    launch(&queue, &graph);
    drop(graph);
    gate.open();
    assert_eq!(read(&queue, memory.address, 64), [1; 64]);
}
