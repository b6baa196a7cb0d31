//! R20, R23 and R24: what a failed command does to its queue, to events, and to queues and threads that
//! wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outrigger_device::{Code, CopyKind};

use super::kit::{
    Bench, HostBytes, Log, block, copy, delay, fail, fails_once, fill, holds, note, note_upstream,
    pattern, read, threads, until, within, write,
};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "stream.failure":
    /// A fill behind a failure is not executed.
    a_fill_is_skipped: R20, run |c| skipped(c, |_, queue, at, _| fill(queue, at, 64, &[9]));
    /// A copy from the host behind a failure is not executed.
    a_copy_from_the_host_is_skipped: R20, run |c| skipped(c, |_, queue, at, host| copy(queue, at, host.at(0), 64, CopyKind::HostToDevice));
    /// A copy to the host behind a failure is not executed.
    a_copy_to_the_host_is_skipped: R20, run |c| skipped(c, |_, queue, at, host| copy(queue, host.at(0), at, 64, CopyKind::DeviceToHost));
    /// A copy within a device behind a failure is not executed.
    a_copy_within_a_device_is_skipped: R20, run |c| skipped(c, |_, queue, at, _| within(queue, at, at + 64, 64));
    /// A copy on the host behind a failure is not executed.
    a_copy_on_the_host_is_skipped: R20, run |c| skipped(c, |_, queue, _, host| copy(queue, host.at(0), host.at(64), 64, CopyKind::HostToHost));
    /// A kernel behind a failure is not executed.
    a_kernel_is_skipped: R20, needs HostKernels, run a_kernel_is_skipped;
    /// Host calls behind a failure are called, with the failure as `upstream`.
    host_calls_get_the_failure: R20 R27;
    /// Commands in front of a failure are executed.
    what_is_before_is_executed: R16 R20;
    /// The first of several failures is reported.
    the_first_one_is_reported: R20;
    /// `queue_query` reports a failure and does not clear it.
    a_query_does_not_clear: R20;
    /// `queue_query` answers OTR_NOT_READY until all has finished, and only then the failure.
    a_query_waits_its_turn: R20;
    /// `queue_synchronize` clears the failure, and the queue works as before.
    a_synchronize_clears: R20;
    /// A queue fails and recovers a hundred times.
    a_queue_recovers_every_time: R20;
    /// A failure of one queue is none of another.
    queues_fail_for_themselves: R17 R20;
    /// A failed queue still waits where it was told to, before its host calls.
    a_failed_queue_still_waits: R20 R24;
    /// A failed queue that nobody asks takes any amount of work.
    a_failed_queue_takes_work: R17 R20;
    /// A failure has a message.
    a_failure_has_a_message: R19 R20;
    /// A destroyed queue's failure harms nobody.
    a_destroyed_queue_may_have_failed: R11 R20;
    /// Of two threads that wait for a failed queue, at least one gets the failure, and the queue recovers.
    two_threads_wait: R8 R20;
    /// A failure that happens while a thread waits reaches this thread.
    a_failure_under_a_wait: R20;
}

pub(super) mod event;
pub(super) mod outcome;

type Submit = fn(&Bench, &outrigger_device::Queue, u64, HostBytes) -> Verdict;

/// Submits a command behind a failure, and then again when the queue is sound.
fn skipped(context: &Context, submit: Submit) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(128)?);
    let (device, bytes) = (pattern(128, 1), pattern(128, 2));
    let host = HostBytes::new(bytes.clone());
    write(&queue, memory, &device)?;
    queue.synchronize()?;
    fail(&queue, Code::EXECUTION)?;
    for _ in 0..5 {
        submit(&bench, &queue, memory, host)?;
    }
    fails_once(&queue, Code::EXECUTION, "the queue")?;
    equal!(
        read(&queue, memory, 128)?,
        device,
        "device memory, which the skipped commands would write"
    );
    equal!(
        host.get(),
        bytes,
        "host memory, which the skipped commands would write"
    );
    submit(&bench, &queue, memory, host)?;
    queue.synchronize()?;
    let changed = read(&queue, memory, 128)? != device || host.get() != bytes;
    check!(
        changed,
        "the same command works once the failure was reported"
    );
    bench.finish()
}

fn a_kernel_is_skipped(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let Some(kernel) = bench.host_kernel(0, super::kernels::count)? else {
        return Err(crate::Failure::new("the driver takes host kernels"));
    };
    let counter = super::kernels::counter();
    fail(&queue, Code::EXECUTION)?;
    for _ in 0..5 {
        super::kernels::launch_count(&queue, &kernel, counter, 1)?;
    }
    fails_once(&queue, Code::EXECUTION, "the queue")?;
    equal!(
        counter.load(Ordering::SeqCst),
        0,
        "kernels that ran behind a failure"
    );
    super::kernels::launch_count(&queue, &kernel, counter, 1)?;
    queue.synchronize()?;
    equal!(
        counter.load(Ordering::SeqCst),
        1,
        "kernels that ran afterwards"
    );
    bench.finish()
}

fn host_calls_get_the_failure(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    note_upstream(&queue, &log)?;
    fail(&queue, Code::OUT_OF_RANGE)?;
    for _ in 0..10 {
        note_upstream(&queue, &log)?;
    }
    // A call that forgives does not undo the failure.
    queue.host_call(|_| Ok(()))?;
    note_upstream(&queue, &log)?;
    fails_once(&queue, Code::OUT_OF_RANGE, "the queue")?;
    note_upstream(&queue, &log)?;
    queue.synchronize()?;
    let failure = Code::OUT_OF_RANGE.0 as u64;
    let expected = [vec![0], vec![failure; 11], vec![0]].concat();
    equal!(log.values(), expected, "what the calls were told");
    bench.finish()
}

fn what_is_before_is_executed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory, log) = (bench.queue()?, bench.memory(4096)?, Log::default());
    for round in 1..=30u8 {
        fill(&queue, memory, 4096, &[round])?;
        note(&queue, &log, u64::from(round))?;
        fail(&queue, Code::EXECUTION)?;
        fails_once(&queue, Code::EXECUTION, "the queue")?;
        holds(
            &queue,
            memory,
            4096,
            round,
            "what was filled in front of the failure",
        )?;
    }
    equal!(log.values().len(), 30, "calls in front of failures");
    bench.finish()
}

fn the_first_one_is_reported(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let codes = [
        Code::OUT_OF_RANGE,
        Code::EXECUTION,
        Code::INTERNAL,
        Code::OUT_OF_MEMORY,
    ];
    for first in 0..codes.len() {
        for i in 0..codes.len() {
            fail(&queue, codes[(first + i) % codes.len()])?;
        }
        // A call that gets the failure and returns another.
        queue.host_call(|_| Err(Code::UNSUPPORTED))?;
        fails_once(&queue, codes[first], "the first of five failures")?;
    }
    bench.finish()
}

fn a_query_does_not_clear(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory) = (bench.queue()?, bench.memory(64)?);
    fill(&queue, memory, 64, &[1])?;
    fail(&queue, Code::EXECUTION)?;
    queue.flush()?;
    until(|| Ok(!matches!(queue.query(), Ok(false))))?;
    for _ in 0..5 {
        answers!(
            queue.query(),
            Code::EXECUTION,
            "queue_query of a failed queue"
        );
    }
    fill(&queue, memory, 64, &[2])?;
    queue.flush()?;
    until(|| Ok(!matches!(queue.query(), Ok(false))))?;
    answers!(
        queue.query(),
        Code::EXECUTION,
        "queue_query, with more work"
    );
    fails_once(&queue, Code::EXECUTION, "queue_synchronize")?;
    check!(queue.query()?, "a cleared queue has finished");
    holds(
        &queue,
        memory,
        64,
        1,
        "what was filled behind the failure is not there",
    )?;
    bench.finish()
}

fn a_query_waits_its_turn(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate, log) = (bench.queue()?, Gate::new(), Log::default());
    fail(&queue, Code::EXECUTION)?;
    note(&queue, &log, 1)?;
    block(&queue, &gate)?;
    queue.flush()?;
    until(|| Ok(log.values() == [1]))?;
    for _ in 0..100 {
        let answer = queue.query();
        check!(
            matches!(answer, Ok(false)),
            "a failed queue with work left is not ready: {answer:?}"
        );
    }
    gate.open();
    until(|| Ok(!matches!(queue.query(), Ok(false))))?;
    answers!(
        queue.query(),
        Code::EXECUTION,
        "queue_query, once all has finished"
    );
    fails_once(&queue, Code::EXECUTION, "queue_synchronize")?;
    bench.finish()
}

fn a_synchronize_clears(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory, event) = (bench.queue()?, bench.memory(64)?, bench.event()?);
    fail(&queue, Code::EXECUTION)?;
    fails_once(&queue, Code::EXECUTION, "queue_synchronize")?;
    check!(queue.query()?, "the queue has finished");
    fill(&queue, memory, 64, &[3])?;
    event.record(&queue)?;
    event.synchronize()?;
    holds(&queue, memory, 64, 3, "work after the failure")?;
    bench.finish()
}

fn a_queue_recovers_every_time(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    for i in 0..100 {
        note_upstream(&queue, &log)?;
        fail(&queue, Code(100 + i))?;
        fails_once(&queue, Code(100 + i), "the queue")?;
    }
    equal!(
        log.values(),
        vec![0; 100],
        "what calls in front of the failures were told"
    );
    bench.finish()
}

fn queues_fail_for_themselves(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queues = bench.queues(8)?;
    let memory = bench.memory(8 * 64)?;
    for round in 0..10u8 {
        for (i, queue) in queues.iter().enumerate() {
            if i % 2 == 0 {
                fail(queue, Code(200 + i as i32))?;
            }
            fill(queue, memory + 64 * i as u64, 64, &[round + 1])?;
        }
        for (i, queue) in queues.iter().enumerate() {
            if i % 2 == 0 {
                fails_once(queue, Code(200 + i as i32), "a queue that failed")?;
            } else {
                holds(
                    queue,
                    memory + 64 * i as u64,
                    64,
                    round + 1,
                    "the work of a queue that did not",
                )?;
            }
        }
    }
    bench.finish()
}

fn a_failed_queue_still_waits(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, event, gate) =
        (bench.queue()?, bench.queue()?, bench.event()?, Gate::new());
    let log = Log::default();
    block(&first, &gate)?;
    note(&first, &log, 1)?;
    event.record(&first)?;
    fail(&second, Code::EXECUTION)?;
    second.wait_event(&event)?;
    // The host call may free what the work in front of the event uses.
    note(&second, &log, 2)?;
    second.flush()?;
    std::thread::sleep(Duration::from_millis(20));
    equal!(log.values().len(), 0, "calls before the gate opened");
    gate.open();
    fails_once(&second, Code::EXECUTION, "the failed queue")?;
    equal!(log.values(), [1, 2], "the order of the calls");
    bench.finish()
}

fn a_failed_queue_takes_work(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, memory, event) = (bench.queue()?, bench.memory(64)?, bench.event()?);
    let calls = Arc::new(AtomicU64::new(0));
    fill(&queue, memory, 64, &[1])?;
    fail(&queue, Code::EXECUTION)?;
    for _ in 0..2000 {
        fill(&queue, memory, 64, &[2])?;
        event.record(&queue)?;
        queue.wait_event(&event)?;
        let calls = calls.clone();
        queue.callback(move |upstream| {
            calls.fetch_add(u64::from(upstream.is_err()), Ordering::Relaxed);
        })?;
    }
    fails_once(&queue, Code::EXECUTION, "the queue")?;
    equal!(
        calls.load(Ordering::Relaxed),
        2000,
        "calls that were told of the failure"
    );
    holds(&queue, memory, 64, 1, "memory")?;
    bench.finish()
}

fn a_failure_has_a_message(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for code in [Code::EXECUTION, Code::OUT_OF_RANGE, Code(4321), Code(-1)] {
        fail(&queue, code)?;
        queue.flush()?;
        until(|| Ok(!matches!(queue.query(), Ok(false))))?;
        check!(
            queue.query().is_err_and(|e| !e.message().is_empty()),
            "queue_query has a message for {code:?}"
        );
        let failed = queue.synchronize();
        answers!(failed, code, "queue_synchronize");
        check!(
            failed.is_err_and(|e| !e.message().is_empty()),
            "queue_synchronize has a message for {code:?}"
        );
    }
    bench.finish()
}

fn a_destroyed_queue_may_have_failed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let log = Log::default();
    for i in 0..30 {
        let queue = bench.queue()?;
        delay(&queue, Duration::from_micros(200))?;
        fail(&queue, Code::EXECUTION)?;
        note(&queue, &log, i)?;
        drop(queue);
        let next = bench.queue()?;
        next.synchronize()?;
    }
    until(|| Ok(log.values().len() == 30))?;
    bench.finish()
}

fn two_threads_wait(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for _ in 0..20 {
        let gate = Gate::new();
        block(&queue, &gate)?;
        fail(&queue, Code::EXECUTION)?;
        let failures = AtomicU64::new(0);
        threads(3, |thread| {
            if thread == 2 {
                std::thread::sleep(Duration::from_micros(300));
                gate.open();
            } else if let Err(error) = queue.synchronize() {
                equal!(error.code(), Code::EXECUTION, "the failure");
                failures.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        })?;
        check!(failures.load(Ordering::SeqCst) >= 1, "somebody was told");
        queue.synchronize()?;
    }
    bench.finish()
}

fn a_failure_under_a_wait(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for _ in 0..20 {
        queue.host_call(|_| {
            std::thread::sleep(Duration::from_micros(500));
            Err(Code::OUT_OF_RANGE)
        })?;
        fails_once(
            &queue,
            Code::OUT_OF_RANGE,
            "a queue that fails while it is waited for",
        )?;
    }
    bench.finish()
}
