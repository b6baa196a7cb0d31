//! The lock-free parts of the host driver under loom: all interleavings of a few threads, with the
//! reorderings that the memory model allows. It compiles the driver's own sources with loom's primitives
//! in place of those of `src/host/sync.rs`, and with segments of a few records.
//!
//! Checked are: points of events; publication of records, their hand-over from segment to segment and
//! the reuse of segments; who executes, and taking over from the one who does; parking and waking, also
//! over queues; failures at points; waking, sleeping and ending of workers, and the release of a queue;
//! back-pressure of several submitters, which begins at a few commands here.
//!
//! Not checked are: the ticker (its fence is the kernel's), all that depends on time passing (a helper's
//! patience, a worker's lingering, spinning), and recordings, which are under locks throughout.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the sources of the whole driver are compiled, with their tests, and a part of it is run"
)]

#[path = "../../src/host/board.rs"]
mod board;
#[path = "../../src/host/collectives/mod.rs"]
mod collectives;
#[path = "../../src/host/command.rs"]
mod command;
#[path = "../../src/host/driver.rs"]
mod driver;
#[path = "../../src/host/event.rs"]
mod event;
#[path = "../../src/host/exports.rs"]
mod exports;
#[path = "../../src/host/failure.rs"]
mod failure;
#[path = "../../src/host/fault.rs"]
mod fault;
#[path = "../../src/host/graph.rs"]
mod graph;
#[path = "../../src/host/mapping/mod.rs"]
mod mapping;
#[path = "../../src/host/memory.rs"]
mod memory;
#[path = "../../src/host/options.rs"]
mod options;
#[path = "../../src/host/pages.rs"]
mod pages;
#[path = "../../src/host/point.rs"]
mod point;
#[path = "../../src/properties.rs"]
mod properties;
#[path = "../../src/host/queue/mod.rs"]
mod queue;
#[path = "../../src/host/ranges.rs"]
mod ranges;
#[path = "../../src/host/recording.rs"]
mod recording;
#[path = "../../src/host/segment.rs"]
mod segment;
#[path = "../../src/host/submit.rs"]
mod submit;
mod sync;
#[path = "../../src/host/ticker.rs"]
mod ticker;
#[path = "../../src/host/worker.rs"]
mod worker;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libtest_mimic::{Arguments, Trial};
use loom::thread;
pub(crate) use outrigger_device::{
    Code, DType, HostFn, HostKernelFn, NO_OUTCOME, foreign_call, sys,
};
use properties::DeviceProperties;

use command::Launch;
use point::Point;
use queue::{Queue, WAKE_BACKLOG as BACKLOG};

fn main() {
    let models: [(&str, usize, fn()); 13] = [
        (
            "a_point_is_never_read_half_written",
            3,
            a_point_is_never_read_half_written,
        ),
        (
            "records_are_handed_over_from_segment_to_segment",
            2,
            records_are_handed_over_from_segment_to_segment,
        ),
        (
            "two_who_wait_run_each_command_once",
            3,
            two_who_wait_run_each_command_once,
        ),
        (
            "a_wait_for_another_queue_is_met",
            3,
            a_wait_for_another_queue_is_met,
        ),
        (
            "a_failure_is_seen_by_who_waits",
            3,
            a_failure_is_seen_by_who_waits,
        ),
        (
            "a_failure_is_cleared_once_and_told_to_all",
            3,
            a_failure_is_cleared_once_and_told_to_all,
        ),
        (
            "a_failure_that_was_reported_is_not_reported_again",
            3,
            a_failure_that_was_reported_is_not_reported_again,
        ),
        (
            "what_a_point_names_is_not_forgotten",
            3,
            what_a_point_names_is_not_forgotten,
        ),
        (
            "a_worker_sees_what_it_was_woken_for",
            3,
            a_worker_sees_what_it_was_woken_for,
        ),
        (
            "a_worker_lets_who_waits_go_on",
            3,
            a_worker_lets_who_waits_go_on,
        ),
        (
            "what_a_worker_leaves_on_another_queue_is_handed_back",
            3,
            what_a_worker_leaves_on_another_queue_is_handed_back,
        ),
        (
            "a_submitter_counts_no_more_than_was_submitted",
            3,
            a_submitter_counts_no_more_than_was_submitted,
        ),
        (
            "a_submitter_helps_beside_the_worker",
            1,
            a_submitter_helps_beside_the_worker,
        ),
    ];
    let trials = models.map(|(name, preemptions, model)| {
        Trial::test(format!("model::{name}"), move || {
            let mut builder = loom::model::Builder::new();
            // All mistakes in the orderings that were tried show with two preemptions; without a bound
            // some searches take minutes.
            builder.preemption_bound = Some(preemptions);
            builder.max_branches = 20_000;
            builder.check(model);
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

// ---- What the models share ---------------------------------------------------------------------

/// What has run, as digits in the order of running.
type Log = Arc<AtomicU64>;

/// Notes its digit. Plain memory would do; it is no part of what is checked.
unsafe extern "C" fn note(args: *const c_void, _size: u32, _bias: i64) -> i32 {
    // SAFETY: the block of `submit` below, whose log the model keeps.
    let [log, digit, outcome] = unsafe { args.cast::<[u64; 3]>().read_unaligned() };
    // SAFETY: as above.
    let log = unsafe { &*(log as *const AtomicU64) };
    let before = log.load(Ordering::Relaxed);
    log.store(before * 10 + digit, Ordering::Relaxed);
    outcome as i32
}

/// A queue of nobody. It is left behind: queues live as long as the process.
fn queue() -> &'static Queue {
    let queue = Queue::new().unwrap_or_else(|_| unreachable!("there is memory"));
    let queue: &'static Queue = Box::leak(Box::new(queue));
    queue.worker().begin();
    queue
}

/// Submits a launch that notes a digit and has an outcome. Its estimate wakes no worker.
fn submit(queue: &'static Queue, log: &Log, digit: u64, outcome: Code) {
    let block = [Arc::as_ptr(log) as u64, digit, outcome.0 as u64];
    let launch = Launch {
        kernel: note,
        bias: 0,
        label: std::ptr::null(),
        estimate: 1,
    };
    // SAFETY: plain numbers.
    let args = unsafe { std::slice::from_raw_parts(block.as_ptr().cast(), size_of_val(&block)) };
    queue.submit_launch(launch, args).unwrap();
}

fn seen(log: &Log) -> u64 {
    log.load(Ordering::Relaxed)
}

// ---- The models --------------------------------------------------------------------------------

static PLACES: [u64; 2] = [0, 1];

/// One thread moves a point twice while another reads it: a value always comes with its own place. (That
/// writers exclude each other is plain: an odd version is taken by compare-exchange.)
fn a_point_is_never_read_half_written() {
    let point: Arc<Point<u64>> = Arc::new(Point::default());
    let writer = {
        let point = Arc::clone(&point);
        thread::spawn(move || {
            for place in &PLACES {
                point.write(place, || *place);
            }
        })
    };
    for _ in 0..2 {
        if let Ok(Some((place, value))) = point.try_read() {
            assert_eq!(*place, value);
        }
    }
    writer.join().unwrap();
    let last = point.read().map(|(place, value)| (*place, value));
    assert_eq!(last, Some((1, 1)));
}

/// One thread submits over several segments while another runs: each record is read after it was
/// written, and no segment is written while it is read.
fn records_are_handed_over_from_segment_to_segment() {
    let (queue, log) = (queue(), Log::default());
    submit(queue, &log, 1, Code::OK);
    let point = queue.tail();
    let runner = thread::spawn(move || {
        queue.wait(point).unwrap();
        queue.run_pending();
    });
    for digit in 2..=4 {
        submit(queue, &log, digit, Code::OK);
    }
    queue.synchronize().unwrap();
    assert_eq!(seen(&log), 1234);
    runner.join().unwrap();
    assert!(queue.idle());
}

/// Two threads wait for two points: whoever runs the commands, each runs once and both threads return.
fn two_who_wait_run_each_command_once() {
    let (queue, log) = (queue(), Log::default());
    submit(queue, &log, 1, Code::OK);
    let first = queue.tail();
    let other = thread::spawn(move || queue.wait(first).unwrap());
    submit(queue, &log, 2, Code::OK);
    queue.synchronize().unwrap();
    assert_eq!(seen(&log), 12);
    other.join().unwrap();
}

/// Work of one queue waits for another one's, which two threads run.
fn a_wait_for_another_queue_is_met() {
    let (before, after, log) = (queue(), queue(), Log::default());
    submit(before, &log, 1, Code::OK);
    after.wait_for(before, before.tail()).unwrap();
    submit(after, &log, 2, Code::OK);
    let other = thread::spawn(move || before.synchronize().unwrap());
    after.synchronize().unwrap();
    assert_eq!(seen(&log), 12);
    other.join().unwrap();
}

/// A command fails while another thread waits for it: it learns of the failure, and later work is
/// skipped.
fn a_failure_is_seen_by_who_waits() {
    let (queue, log) = (queue(), Log::default());
    submit(queue, &log, 1, Code::OUT_OF_RANGE);
    let point = queue.tail();
    let other = thread::spawn(move || {
        assert!(queue.wait(point).is_err());
        assert!(queue.query(point).is_err());
    });
    submit(queue, &log, 2, Code::OK);
    assert!(queue.wait(queue.tail()).is_err());
    other.join().unwrap();
    assert_eq!(seen(&log), 1);
}

/// Two threads synchronize a queue that has failed: both learn of it, and then the queue takes work.
fn a_failure_is_cleared_once_and_told_to_all() {
    let (queue, log) = (queue(), Log::default());
    submit(queue, &log, 1, Code::OUT_OF_RANGE);
    let point = queue.tail();
    let other = thread::spawn(move || {
        // Whatever the other thread clears, the point keeps its failure.
        assert!(queue.wait(point).is_err());
    });
    assert!(queue.synchronize().is_err());
    submit(queue, &log, 2, Code::OK);
    queue.synchronize().unwrap();
    assert_eq!(seen(&log), 12);
    other.join().unwrap();
}

/// A queue whose failure was reported fails again, while a thread asks for it: it is told of the new one.
fn a_failure_that_was_reported_is_not_reported_again() {
    let (queue, log) = (queue(), Log::default());
    submit(queue, &log, 1, Code::OUT_OF_RANGE);
    let first = queue.synchronize().unwrap_err();
    assert_eq!(first.code(), Code::OUT_OF_RANGE);
    submit(queue, &log, 2, Code::EXECUTION);
    let point = queue.tail();
    let other = thread::spawn(move || {
        let seen = queue.wait(point).unwrap_err();
        assert_eq!(seen.code(), Code::EXECUTION);
    });
    let second = queue.synchronize().unwrap_err();
    assert_eq!(second.code(), Code::EXECUTION);
    queue.synchronize().unwrap();
    other.join().unwrap();
}

/// A point is moved while its queue fails and forgets what no point names: wherever the point is then, its outcome is
/// known.
fn what_a_point_names_is_not_forgotten() {
    let (queue, log) = (queue(), Log::default());
    let point: Arc<Point<Queue>> = Arc::new(Point::default());
    let writer = {
        let point = Arc::clone(&point);
        thread::spawn(move || point.write(queue, || queue.tail()))
    };
    for digit in 1..=2 {
        submit(queue, &log, digit, Code::OUT_OF_RANGE);
        queue.synchronize().unwrap_err();
    }
    point.settle();
    let named = point.read().map(|(_, value)| value);
    queue.forget_failures(named.into_iter().collect());
    writer.join().unwrap();
    let (_, value) = point.read().unwrap();
    // The first and the third command have failed. Behind each of them is one that ends its failure.
    assert_eq!(queue.query(value).is_err(), value % 2 == 1, "at {value}");
}

/// A worker runs what was submitted before it was woken, also if it was about to sleep, and releases the
/// queue when it is destroyed.
fn a_worker_sees_what_it_was_woken_for() {
    let (queue, log) = (queue(), Log::default());
    submit(queue, &log, 1, Code::OK);
    queue.worker().wake(queue);
    submit(queue, &log, 2, Code::OK);
    queue.worker().wake(queue);
    // Nobody helps: a wake-up that is lost is a loop without end.
    while !queue.idle() {
        thread::yield_now();
    }
    assert_eq!(seen(&log), 12);
    queue.destroy().unwrap();
    assert!(queue.destroy().is_err());
}

/// A worker leaves its queue to a thread that waits, which runs what it needs and hands the rest back.
fn a_worker_lets_who_waits_go_on() {
    let (queue, log) = (queue(), Log::default());
    submit(queue, &log, 1, Code::OK);
    let point = queue.tail();
    submit(queue, &log, 2, Code::OK);
    queue.worker().wake(queue);
    queue.wait(point).unwrap();
    while !queue.idle() {
        thread::yield_now();
    }
    assert_eq!(seen(&log), 12);
    queue.destroy().unwrap();
}

/// The same where the thread waits for another queue, whose worker leaves it what comes before.
fn what_a_worker_leaves_on_another_queue_is_handed_back() {
    let (before, after, log) = (queue(), queue(), Log::default());
    submit(before, &log, 1, Code::OK);
    after.wait_for(before, before.tail()).unwrap();
    submit(before, &log, 2, Code::OK);
    before.worker().wake(before);
    after.synchronize().unwrap();
    while !before.idle() {
        thread::yield_now();
    }
    assert_eq!(seen(&log), 12);
    before.destroy().unwrap();
}

/// Two threads submit to a queue that looks at its backlog, and one runs what both have submitted while
/// the other counts: it never counts less than nothing, which would have it run what nobody submitted.
fn a_submitter_counts_no_more_than_was_submitted() {
    let (queue, log) = (queue(), Log::default());
    for digit in 1..=BACKLOG {
        submit(queue, &log, digit, Code::OK);
    }
    queue.synchronize().unwrap();
    let other = {
        let log = Arc::clone(&log);
        thread::spawn(move || submit(queue, &log, BACKLOG + 1, Code::OK))
    };
    submit(queue, &log, BACKLOG + 2, Code::OK);
    queue.synchronize().unwrap();
    other.join().unwrap();
    queue.synchronize().unwrap();
    assert!([123456, 123465].contains(&seen(&log)));
}

/// A submitter meets a backlog: it wakes the worker and helps it, and each command runs once.
fn a_submitter_helps_beside_the_worker() {
    let (queue, log) = (queue(), Log::default());
    for digit in 1..=BACKLOG + 1 {
        submit(queue, &log, digit, Code::OK);
    }
    queue.synchronize().unwrap();
    assert_eq!(seen(&log), 12345);
    queue.destroy().unwrap();
}
