//! R31 to R33: what a recording keeps, which queues belong to it, and what it refuses.

use std::sync::atomic::Ordering;

use outrigger_device::{Code, CopyKind, Driver, NativeGraph, Queue, Result};

use super::kernels::{arguments, count, counter};
use super::kit::{
    Bench, HostBytes, Log, block, copy, fail, fails_once, fill, holds, note, pattern, read, within,
    write,
};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Gate, Verdict};

tests! { "graph.record":
    /// Nothing that is recorded runs before the launch.
    nothing_runs_before_the_launch: R31, needs Graphs;
    /// A flush of a recording queue starts nothing.
    a_flush_starts_nothing: R31 R33, needs Graphs Flush;
    /// A fill is kept.
    a_fill_is_kept: R31, needs Graphs, run |c| kept(c, |_, queue, at, _| fill(queue, at, 64, &[9, 8]));
    /// A copy from the host is kept; its bytes are taken when it runs.
    a_copy_from_the_host_is_kept: R31, needs Graphs, run |c| kept(c, |_, queue, at, host| copy(queue, at, host.at(0), 64, CopyKind::HostToDevice));
    /// A copy to the host is kept.
    a_copy_to_the_host_is_kept: R31, needs Graphs, run |c| kept(c, |_, queue, at, host| copy(queue, host.at(0), at, 64, CopyKind::DeviceToHost));
    /// A copy within a device is kept.
    a_copy_within_a_device_is_kept: R31, needs Graphs, run |c| kept(c, |_, queue, at, _| within(queue, at, at + 64, 64));
    /// A copy on the host is kept.
    a_copy_on_the_host_is_kept: R31, needs Graphs, run |c| kept(c, |_, queue, _, host| copy(queue, host.at(0), host.at(64), 64, CopyKind::HostToHost));
    /// A command of 0 bytes is recorded as any other, and does nothing.
    an_empty_command_is_kept: R25 R31, needs Graphs;
    /// A host call is kept, and called once for each launch.
    a_host_call_is_kept: R31 R34, needs Graphs;
    /// A kernel is kept, with its arguments.
    a_kernel_is_kept: R30 R31, needs Graphs HostKernels;
    /// The pattern of a fill is copied.
    a_pattern_is_copied: R10 R31, needs Graphs;
    /// A launch of a graph is recorded with the commands that the graph has then.
    a_graph_in_a_graph_keeps_what_it_was: R31, needs Graphs;
    /// A refused command is no part of the recording, which goes on.
    a_refused_command_is_left_out: R4 R31, needs Graphs;
    /// A recording may have no commands.
    a_recording_may_be_empty: R31 R34, needs Graphs;
    /// Thousands of commands are recorded.
    thousands_of_commands_are_kept: R31, needs Graphs;
    /// A queue works as ever behind a recording.
    a_queue_works_behind_a_recording: R31, needs Graphs;
    /// Work that was submitted before a recording still runs, and is no part of it.
    what_was_submitted_before_runs: R31, needs Graphs;
    /// Recordings come and go, and leave nothing.
    recordings_come_and_go: R10 R31, needs Graphs;
}

#[track_caller]
pub(super) fn begin(queue: &Queue) -> Verdict {
    match queue.driver().native_graphs() {
        Some(graphs) => Ok(graphs.record_begin(queue)?),
        None => Err(Failure::new("the driver has the group graph")),
    }
}

#[track_caller]
pub(super) fn try_end(queue: &Queue) -> Verdict<Result<NativeGraph>> {
    match queue.driver().native_graphs() {
        Some(graphs) => Ok(graphs.record_end(queue)),
        None => Err(Failure::new("the driver has the group graph")),
    }
}

#[track_caller]
pub(super) fn end(queue: &Queue) -> Verdict<NativeGraph> {
    Ok(try_end(queue)??)
}

#[track_caller]
pub(super) fn launch(queue: &Queue, graph: &NativeGraph) -> Verdict {
    // SAFETY: each test waits for its launches before its memory goes.
    unsafe { queue.launch_graph(graph) }?;
    Ok(())
}

/// A graph of one fill of 64 bytes.
pub(super) fn filling(driver: &Driver, address: u64, value: u8) -> Verdict<NativeGraph> {
    let queue = driver.queue_create(0, 0)?;
    begin(&queue)?;
    fill(&queue, address, 64, &[value])?;
    end(&queue)
}

/// Submits a host call that notes a value, and 1000 more where it is called with a failure. What it notes
/// in is never freed: a recorded call may be made for ever.
pub(super) fn keep_note(queue: &Queue, log: &Log, value: u64) -> Verdict {
    unsafe extern "C" fn call(user: *mut std::ffi::c_void, upstream: i32) -> i32 {
        // SAFETY: the leaked pair below.
        let (log, value) = unsafe { &*user.cast::<(Log, u64)>() };
        log.push(value + 1000 * u64::from(upstream != Code::OK.0));
        upstream
    }
    let pair = Box::leak(Box::new((log.clone(), value)));
    // SAFETY: the pair lives for ever, and may be used by any thread.
    unsafe { queue.host_call_raw(call, std::ptr::from_mut(pair).cast(), 0) }?;
    Ok(())
}

/// Submits a host call that fails each time.
pub(super) fn keep_failure(queue: &Queue, code: Code) -> Verdict {
    unsafe extern "C" fn call(user: *mut std::ffi::c_void, _upstream: i32) -> i32 {
        user.addr() as i32
    }
    // SAFETY: the code stands in for the pointer, which is not followed.
    unsafe { queue.host_call_raw(call, std::ptr::without_provenance_mut(code.0 as usize), 0) }?;
    Ok(())
}

pub(super) mod join;

pub(super) mod refused;

fn nothing_runs_before_the_launch(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at, log) = (bench.queue()?, bench.memory(128)?, Log::default());
    fill(&queue, at, 128, &[1])?;
    queue.synchronize()?;
    begin(&queue)?;
    fill(&queue, at, 64, &[2])?;
    within(&queue, at + 64, at, 64)?;
    keep_note(&queue, &log, 1)?;
    std::thread::sleep(std::time::Duration::from_millis(5));
    holds(&bench.queue()?, at, 128, 1, "memory while it is recorded")?;
    let graph = end(&queue)?;
    queue.synchronize()?;
    holds(&queue, at, 128, 1, "memory when it was recorded")?;
    equal!(log.values().len(), 0, "calls");
    launch(&queue, &graph)?;
    holds(&queue, at, 128, 2, "memory after the launch")?;
    equal!(log.values(), [1], "calls");
    drop(graph);
    bench.finish()
}

fn a_flush_starts_nothing(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    begin(&queue)?;
    keep_note(&queue, &log, 1)?;
    queue.flush()?;
    std::thread::sleep(std::time::Duration::from_millis(5));
    equal!(log.values().len(), 0, "calls after a flush");
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    queue.synchronize()?;
    equal!(log.values(), [1], "calls after the launch");
    drop(graph);
    bench.finish()
}

type Submit = fn(&Bench, &Queue, u64, HostBytes) -> Verdict;

/// Records a command, launches it twice on fresh bytes, and compares with what it does by itself.
fn kept(context: &Context, submit: Submit) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at, host) = (bench.queue()?, bench.memory(128)?, HostBytes::of(128, 0));
    let fresh = |seed| {
        host.set(&pattern(128, seed));
        write(&queue, at, &pattern(128, seed + 1))?;
        queue.synchronize()?;
        Verdict::Ok(())
    };
    let state = || Verdict::Ok((read(&queue, at, 128)?, host.get()));
    fresh(1)?;
    begin(&queue)?;
    submit(&bench, &queue, at, host)?;
    let graph = end(&queue)?;
    equal!(
        state()?,
        (pattern(128, 2), pattern(128, 1)),
        "memory before the launch"
    );
    for seed in [10, 20] {
        fresh(seed)?;
        submit(&bench, &queue, at, host)?;
        let expected = state()?;
        fresh(seed)?;
        launch(&queue, &graph)?;
        equal!(state()?, expected, "memory after the launch");
    }
    drop(graph);
    bench.finish()
}

fn an_empty_command_is_kept(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at, log) = (bench.queue()?, bench.memory(64)?, Log::default());
    fill(&queue, at, 64, &[1])?;
    begin(&queue)?;
    fill(&queue, 0, 0, &[2])?;
    copy(&queue, at, 0, 0, CopyKind::HostToDevice)?;
    keep_note(&queue, &log, 1)?;
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    holds(&queue, at, 64, 1, "memory")?;
    equal!(log.values(), [1], "calls");
    drop(graph);
    bench.finish()
}

fn a_host_call_is_kept(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    begin(&queue)?;
    keep_note(&queue, &log, 7)?;
    keep_note(&queue, &log, 8)?;
    let graph = end(&queue)?;
    for launches in 1..=5 {
        launch(&queue, &graph)?;
        queue.synchronize()?;
        equal!(
            log.values(),
            [7, 8].repeat(launches),
            "calls after {launches} launches"
        );
    }
    drop(graph);
    bench.finish()
}

fn a_kernel_is_kept(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, total) = (bench.queue()?, counter());
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(Failure::new("the driver takes host kernels"));
    };
    begin(&queue)?;
    for step in [5, 7] {
        let mut args = arguments(total, step);
        // SAFETY: what the kernel expects.
        unsafe { queue.launch(&kernel, &args, 0, c"count") }?;
        args.fill(0xff);
        std::hint::black_box(&mut args);
    }
    let graph = end(&queue)?;
    equal!(
        total.load(Ordering::SeqCst),
        0,
        "what kernels added before the launch"
    );
    for launches in 1..=4 {
        launch(&queue, &graph)?;
        queue.synchronize()?;
        equal!(
            total.load(Ordering::SeqCst),
            12 * launches,
            "what kernels added"
        );
    }
    drop(graph);
    bench.finish()
}

fn a_pattern_is_copied(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    begin(&queue)?;
    let mut bytes = vec![1u8, 2, 3, 4];
    fill(&queue, at, 64, &bytes)?;
    bytes.fill(9);
    std::hint::black_box(&mut bytes);
    drop(bytes);
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    equal!(
        read(&queue, at, 64)?,
        [1, 2, 3, 4].repeat(16),
        "what was filled"
    );
    drop(graph);
    bench.finish()
}

fn a_graph_in_a_graph_keeps_what_it_was(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at, log) = (bench.queue()?, bench.memory(128)?, Log::default());
    let inner = filling(bench.driver(), at, 4)?;
    begin(&queue)?;
    keep_note(&queue, &log, 1)?;
    launch(&queue, &inner)?;
    within(&queue, at + 64, at, 64)?;
    let outer = end(&queue)?;
    if bench
        .native_graphs()
        .is_some_and(|graphs| graphs.can_update())
    {
        inner.update(&filling(bench.driver(), at, 5)?)?;
    }
    drop(inner);
    for _ in 0..2 {
        fill(&queue, at, 128, &[0])?;
        launch(&queue, &outer)?;
        holds(
            &queue,
            at,
            128,
            4,
            "what the inner graph was when it was recorded",
        )?;
    }
    equal!(log.values(), [1, 1], "calls");
    drop(outer);
    bench.finish()
}

fn a_refused_command_is_left_out(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    fill(&queue, at, 64, &[0])?;
    begin(&queue)?;
    fill(&queue, at, 32, &[1])?;
    // SAFETY: refused, so that nothing is recorded.
    let answer = unsafe { queue.fill(0, 64, &[2]) };
    answers!(answer, Code::INVALID_ARGUMENT, "a fill of address 0");
    // SAFETY: as above.
    let answer = unsafe { queue.fill(at, 3, &[2, 2]) };
    answers!(answer, Code::INVALID_ARGUMENT, "a fill of half a pattern");
    fill(&queue, at + 32, 32, &[3])?;
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    equal!(
        read(&queue, at, 64)?,
        [[1; 32], [3; 32]].concat(),
        "what was recorded around them"
    );
    drop(graph);
    bench.finish()
}

fn a_recording_may_be_empty(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    begin(&queue)?;
    let graph = end(&queue)?;
    for i in 0..10 {
        note(&queue, &log, i)?;
        launch(&queue, &graph)?;
    }
    queue.synchronize()?;
    equal!(
        log.values(),
        (0..10).collect::<Vec<_>>(),
        "calls around an empty graph"
    );
    drop(graph);
    bench.finish()
}

fn thousands_of_commands_are_kept(context: &Context) -> Verdict {
    const COUNT: u64 = 4000;
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(8 * COUNT)?);
    fill(&queue, at, 8 * COUNT, &[0])?;
    begin(&queue)?;
    for i in 0..COUNT {
        fill(&queue, at + 8 * i, 8, &i.to_ne_bytes())?;
    }
    let graph = end(&queue)?;
    launch(&queue, &graph)?;
    let expected: Vec<u8> = (0..COUNT).flat_map(u64::to_ne_bytes).collect();
    equal!(
        read(&queue, at, expected.len())?,
        expected,
        "what was filled"
    );
    drop(graph);
    bench.finish()
}

fn a_queue_works_behind_a_recording(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at, event) = (bench.queue()?, bench.memory(64)?, bench.event()?);
    for round in 1..=20u8 {
        begin(&queue)?;
        fill(&queue, at, 64, &[0xee])?;
        drop(end(&queue)?);
        fill(&queue, at, 64, &[round])?;
        event.record(&queue)?;
        event.synchronize()?;
        check!(queue.query()?, "the queue has finished");
        holds(&queue, at, 64, round, "its work")?;
    }
    bench.finish()
}

fn what_was_submitted_before_runs(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log, gate) = (bench.queue()?, Log::default(), Gate::new());
    block(&queue, &gate)?;
    note(&queue, &log, 1)?;
    begin(&queue)?;
    keep_note(&queue, &log, 2)?;
    gate.open();
    let graph = end(&queue)?;
    queue.synchronize()?;
    equal!(log.values(), [1], "calls that were submitted before");
    launch(&queue, &graph)?;
    queue.synchronize()?;
    equal!(log.values(), [1, 2], "calls after the launch");
    drop(graph);
    bench.finish()
}

fn recordings_come_and_go(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at) = (bench.queue()?, bench.memory(64)?);
    for round in 0..500u32 {
        begin(&queue)?;
        fill(&queue, at, 64, &round.to_ne_bytes())?;
        let graph = end(&queue)?;
        if round % 2 == 0 {
            launch(&queue, &graph)?;
        }
    }
    equal!(
        read(&queue, at, 64)?,
        498u32.to_ne_bytes().repeat(16),
        "the last launch"
    );
    bench.finish()
}
