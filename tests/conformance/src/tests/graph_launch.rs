//! R34 to R36: what a graph does when it is launched, updated and destroyed, and what its entries refuse.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use outrigger_device::{Code, sys};

use super::graph_recording::{begin, end, filling, keep_failure, keep_note, launch};
use super::kernels::{arguments, count, counter};
use super::kit::{
    Bench, Log, block, fail, fails_once, fill, holds, note, read, threads, within, write,
};
use super::raw::{Bare, Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Gate, Need, Verdict};

tests! { "graph.launch":
    /// A launch keeps its place among the work of its queue.
    a_launch_keeps_its_place: R16 R34, needs Graphs;
    /// The commands take effect in the order in which they were recorded.
    commands_keep_their_order: R34, needs Graphs;
    /// A graph is launched a thousand times.
    a_thousand_launches: R34, needs Graphs;
    /// A graph is launched on other queues than the one that recorded it.
    on_other_queues: R34, needs Graphs;
    /// Launches on two queues are ordered by events.
    on_two_queues_by_events: R24 R34, needs Graphs;
    /// Several threads launch one graph, each on its queue.
    by_many_threads: R8 R34, needs Graphs;
    /// An event behind a launch stands for all of it.
    an_event_behind_it: R21 R34, needs Graphs;
    /// A query sees a launch as work that has not finished.
    a_query_counts_it: R19 R34, needs Graphs;
    /// A launch on a queue of another device is refused.
    a_graph_stays_on_its_device: R34, needs Graphs TwoDevices;
    /// A failure within a graph skips the rest but host calls, at each launch.
    a_failure_within_skips_the_rest: R20 R34, needs Graphs;
    /// A failure in front of a launch skips it, but for its host calls.
    a_failure_in_front_skips_it: R20 R34, needs Graphs;
    /// A failure within a graph names the launch's submission.
    a_failure_names_the_launch: R19 R34, needs Graphs;
    /// A failed kernel of a graph is named by its label.
    a_failed_kernel_is_named: R19 R34, needs Graphs HostKernels;
    /// Graphs of fills, copies, kernels and calls do what the same commands do by themselves.
    all_kinds_together: R31 R34, needs Graphs HostKernels;
}

pub(super) mod update;

pub(super) mod lifetime;

fn a_launch_keeps_its_place(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other, gate, done) = (bench.queue()?, bench.queue()?, Gate::new(), bench.event()?);
    let at = bench.memory(128)?;
    begin(&other)?;
    within(&other, at + 64, at, 64)?;
    let graph = end(&other)?;
    block(&queue, &gate)?;
    fill(&queue, at, 64, &[1])?;
    launch(&queue, &graph)?;
    fill(&queue, at, 64, &[2])?;
    done.record(&queue)?;
    other.wait_event(&done)?;
    check!(!queue.query()?, "the queue has not finished");
    gate.open();
    equal!(
        read(&other, at, 128)?,
        [[2; 64], [1; 64]].concat(),
        "the work around the launch"
    );
    drop(graph);
    bench.finish()
}

fn commands_keep_their_order(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at, log) = (bench.queue()?, bench.memory(1 << 16)?, Log::default());
    begin(&queue)?;
    for i in 0..40u64 {
        fill(&queue, at, 1 << 15, &[i as u8])?;
        within(&queue, at + (1 << 15), at, 1 << 15)?;
        keep_note(&queue, &log, i)?;
    }
    let graph = end(&queue)?;
    for launches in 1..=5 {
        fill(&queue, at, 1 << 16, &[0xff])?;
        launch(&queue, &graph)?;
        holds(&queue, at, 1 << 16, 39, "the last of forty steps")?;
        equal!(log.values().len(), 40 * launches, "calls");
    }
    equal!(log.values(), (0..40).collect::<Vec<_>>().repeat(5), "calls");
    drop(graph);
    bench.finish()
}

fn a_thousand_launches(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    begin(&queue)?;
    keep_note(&queue, &log, 1)?;
    let graph = end(&queue)?;
    for _ in 0..1000 {
        launch(&queue, &graph)?;
    }
    queue.synchronize()?;
    equal!(log.values().len(), 1000, "calls");
    drop(graph);
    bench.finish()
}

fn on_other_queues(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let at = bench.memory(64)?;
    let graph = filling(bench.driver(), at, 9)?;
    for _ in 0..20 {
        let queue = bench.queue()?;
        fill(&queue, at, 64, &[0])?;
        launch(&queue, &graph)?;
        holds(&queue, at, 64, 9, "what the graph fills")?;
    }
    drop(graph);
    bench.finish()
}

fn on_two_queues_by_events(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queues, event, log) = (bench.queues(2)?, bench.event()?, Log::default());
    begin(&queues[0])?;
    keep_note(&queues[0], &log, 0)?;
    let graph = end(&queues[0])?;
    for i in 0..100 {
        let queue = &queues[i % 2];
        queue.wait_event(&event)?;
        launch(queue, &graph)?;
        note(queue, &log, 1)?;
        event.record(queue)?;
    }
    event.synchronize()?;
    equal!(
        log.values(),
        [0, 1].repeat(100),
        "calls of graphs on two queues"
    );
    drop(graph);
    bench.finish()
}

fn by_many_threads(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    begin(&queue)?;
    keep_note(&queue, &log, 1)?;
    let graph = end(&queue)?;
    threads(4, |_| {
        let queue = bench.queue()?;
        for _ in 0..100 {
            launch(&queue, &graph)?;
        }
        queue.synchronize()?;
        Ok(())
    })?;
    equal!(log.values().len(), 400, "calls");
    drop(graph);
    bench.finish()
}

fn an_event_behind_it(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event, log) = (bench.queue()?, bench.event()?, Log::default());
    begin(&queue)?;
    for i in 0..10 {
        keep_note(&queue, &log, i)?;
    }
    let graph = end(&queue)?;
    for launches in 1..=20 {
        launch(&queue, &graph)?;
        event.record(&queue)?;
        event.synchronize()?;
        equal!(
            log.values().len(),
            10 * launches,
            "calls in front of the event"
        );
    }
    drop(graph);
    bench.finish()
}

fn a_query_counts_it(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate, log) = (bench.queue()?, Gate::new(), Log::default());
    begin(&queue)?;
    keep_note(&queue, &log, 1)?;
    let graph = end(&queue)?;
    block(&queue, &gate)?;
    launch(&queue, &graph)?;
    check!(
        !queue.query()?,
        "a queue with a launch to come has not finished"
    );
    gate.open();
    super::kit::until(|| Ok(queue.query()?))?;
    equal!(log.values(), [1], "calls, when it has finished");
    drop(graph);
    bench.finish()
}

fn a_graph_stays_on_its_device(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let at = bench.memory(64)?;
    let graph = filling(bench.driver(), at, 1)?;
    let elsewhere = bench.queue_on(1)?;
    // SAFETY: it is refused, so that nothing is executed.
    let answer = unsafe { elsewhere.launch_graph(&graph) };
    answers!(answer, Code::INVALID_DEVICE, "a launch on another device");
    elsewhere.synchronize()?;
    let queue = bench.queue()?;
    launch(&queue, &graph)?;
    holds(&queue, at, 64, 1, "a launch on its own device")?;
    drop(graph);
    bench.finish()
}

fn a_failure_within_skips_the_rest(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log, at) = (bench.queue()?, Log::default(), bench.memory(64)?);
    fill(&queue, at, 64, &[1])?;
    begin(&queue)?;
    keep_note(&queue, &log, 1)?;
    keep_failure(&queue, Code::OUT_OF_RANGE)?;
    fill(&queue, at, 64, &[2])?;
    keep_note(&queue, &log, 2)?;
    let graph = end(&queue)?;
    for _ in 0..3 {
        launch(&queue, &graph)?;
        note(&queue, &log, 3)?;
        fill(&queue, at, 64, &[4])?;
        fails_once(&queue, Code::OUT_OF_RANGE, "the queue")?;
        holds(&queue, at, 64, 1, "memory")?;
    }
    equal!(
        log.values(),
        [1, 1002, 3].repeat(3),
        "calls, with 1000 more behind the failure"
    );
    drop(graph);
    bench.finish()
}

fn a_failure_in_front_skips_it(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log, at) = (bench.queue()?, Log::default(), bench.memory(64)?);
    fill(&queue, at, 64, &[1])?;
    begin(&queue)?;
    keep_note(&queue, &log, 1)?;
    fill(&queue, at, 64, &[2])?;
    let graph = end(&queue)?;
    fail(&queue, Code::EXECUTION)?;
    launch(&queue, &graph)?;
    fails_once(&queue, Code::EXECUTION, "the queue")?;
    equal!(log.values(), [1001], "calls behind the failure");
    holds(&queue, at, 64, 1, "memory")?;
    launch(&queue, &graph)?;
    holds(&queue, at, 64, 2, "memory, after a sound launch")?;
    drop(graph);
    bench.finish()
}

fn a_failure_names_the_launch(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, recorder, at) = (bench.queue()?, bench.queue()?, bench.memory(64)?);
    begin(&recorder)?;
    for _ in 0..5 {
        fill(&recorder, at, 64, &[1])?;
    }
    keep_failure(&recorder, Code::EXECUTION)?;
    let graph = end(&recorder)?;
    fill(&queue, at, 64, &[1])?;
    fill(&queue, at, 64, &[2])?;
    launch(&queue, &graph)?;
    match queue.synchronize() {
        Err(error) => {
            equal!(error.code(), Code::EXECUTION, "the failure");
            check!(
                error.submission().is_none_or(|n| n == 3),
                "the launch is submission 3: {error}"
            );
        }
        Ok(()) => return Err(Failure::new("the launch has to fail")),
    }
    drop(graph);
    bench.finish()
}

fn a_failed_kernel_is_named(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(Failure::new("the driver takes host kernels"));
    };
    begin(&queue)?;
    super::kernels::launch_labelled(&queue, &kernel, counter(), 1, c"sound")?;
    super::kernels::launch_labelled(&queue, &kernel, counter(), u64::MAX, c"recorded_culprit")?;
    let graph = end(&queue)?;
    note(&queue, &Log::default(), 0)?;
    launch(&queue, &graph)?;
    match queue.synchronize() {
        Err(error) => {
            equal!(error.code(), Code::OUT_OF_RANGE, "the failure");
            equal!(error.label(), Some("recorded_culprit"), "the label");
            check!(
                error.submission().is_none_or(|n| n == 2),
                "the launch is submission 2: {error}"
            );
        }
        Ok(()) => return Err(Failure::new("the launch has to fail")),
    }
    drop(graph);
    bench.finish()
}

fn all_kinds_together(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, at, log, total) = (
        bench.queue()?,
        bench.memory(256)?,
        Log::default(),
        counter(),
    );
    let Some(kernel) = bench.host_kernel(0, count)? else {
        return Err(Failure::new("the driver takes host kernels"));
    };
    let host = super::kit::HostBytes::new(super::kit::pattern(64, 1));
    begin(&queue)?;
    fill(&queue, at, 64, &[7])?;
    super::kit::copy(
        &queue,
        at + 64,
        host.at(0),
        64,
        outrigger_device::CopyKind::HostToDevice,
    )?;
    within(&queue, at + 128, at, 128)?;
    super::kernels::launch_count(&queue, &kernel, total, 2)?;
    keep_note(&queue, &log, 1)?;
    fill(&queue, at, 128, &[0])?;
    let graph = end(&queue)?;
    for launches in 1..=3 {
        launch(&queue, &graph)?;
        let expected = [vec![0; 128], vec![7; 64], super::kit::pattern(64, 1)].concat();
        equal!(read(&queue, at, 256)?, expected, "memory");
        equal!(
            (log.values().len(), total.load(Ordering::SeqCst)),
            (launches, 2 * launches as u64),
            "calls and launches"
        );
    }
    drop(graph);
    bench.finish()
}
