//! R8, R16 to R19: what queues answer, that they make progress without help and independently of each
//! other, and that they take all the work they are given.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use outrigger_device::CopyKind;

use super::kit::{
    Bench, HostBytes, Log, block, copy, delay, fill, holds, note, read, threads, until, within,
};
use super::raw::{Newer, Raw, call, queue_params, unknown_extension};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Gate, Verdict};

tests! { "stream.query":
    /// A queue without work has finished.
    an_idle_queue_has_finished: R19;
    /// A query answers OTR_NOT_READY as long as anything is left, and never waits.
    a_busy_queue_has_not: R19 R20;
    /// OTR_OK means that the effects of all that was submitted before are there.
    finished_means_done: R19;
    /// A queue that still has its last command to do has not finished.
    the_last_command_counts: R19;
    /// A query on one thread counts what another has submitted before.
    other_threads_work_counts: R8 R19;
    /// A wait for an event that has not come is work that has not finished.
    a_wait_counts: R19 R24;
    /// A query of one queue says nothing of another.
    queues_answer_for_themselves: R17 R19;
}

pub(super) mod flush;

pub(super) mod apart;

pub(super) mod pressure;

fn an_idle_queue_has_finished(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    check!(queue.query()?, "a new queue has finished");
    queue.synchronize()?;
    queue.synchronize()?;
    check!(queue.query()?, "a queue that was waited for has finished");
    bench.finish()
}

fn a_busy_queue_has_not(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory, gate) = (bench.queue()?, bench.memory(64)?, Gate::new());
    block(&queue, &gate)?;
    for _ in 0..200 {
        check!(
            !queue.query()?,
            "a queue behind a closed gate has not finished"
        );
    }
    fill(&queue, memory, 64, &[1])?;
    check!(!queue.query()?, "with more work it has not either");
    gate.open();
    until(|| Ok(queue.query()?))?;
    holds(&queue, memory, 64, 1, "its work")?;
    bench.finish()
}

fn finished_means_done(context: &Context) -> Verdict {
    const SIZE: usize = 1 << 18;
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(SIZE as u64)?);
    let bytes = HostBytes::of(SIZE, 0);
    for round in 1..=60u8 {
        fill(&queue, memory, SIZE as u64, &[round])?;
        copy(
            &queue,
            bytes.at(0),
            memory,
            SIZE as u64,
            CopyKind::DeviceToHost,
        )?;
        queue.flush()?;
        while !queue.query()? {
            std::hint::spin_loop();
        }
        let missing = bytes.get().iter().filter(|byte| **byte != round).count();
        equal!(
            missing,
            0,
            "bytes that are not there although the queue has finished, in round {round}"
        );
    }
    bench.finish()
}

fn the_last_command_counts(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    for i in 1..=500 {
        note(&queue, &log, i)?;
        if queue.query()? {
            equal!(
                log.values().last().copied(),
                Some(i),
                "finished, and its last call was made"
            );
        }
    }
    queue.synchronize()?;
    equal!(log.values().len(), 500, "calls");
    bench.finish()
}

fn other_threads_work_counts(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate) = (bench.queue()?, Gate::new());
    threads(1, |_| block(&queue, &gate))?;
    check!(
        !queue.query()?,
        "what another thread has submitted is not finished"
    );
    gate.open();
    queue.synchronize()?;
    check!(queue.query()?, "now it is");
    bench.finish()
}

fn a_wait_counts(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    block(&first, &gate)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    for _ in 0..50 {
        check!(!second.query()?, "a queue that waits has not finished");
    }
    gate.open();
    second.synchronize()?;
    first.synchronize()?;
    bench.finish()
}

fn queues_answer_for_themselves(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (busy, idle, gate) = (bench.queue()?, bench.queue()?, Gate::new());
    block(&busy, &gate)?;
    check!(idle.query()?, "the idle queue has finished");
    check!(!busy.query()?, "the busy one has not");
    idle.synchronize()?;
    check!(!busy.query()?, "the busy one still has not");
    gate.open();
    busy.synchronize()?;
    bench.finish()
}
