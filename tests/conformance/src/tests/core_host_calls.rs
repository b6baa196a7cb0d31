//! R17 and R27: host calls are called exactly once, in order, with the right arguments. Their result is
//! the outcome of the command.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use outrigger_device::{Code, CopyKind, params};

use super::graph_recording::{begin, end, launch};
use super::kit::{
    Bench, HostBytes, Log, block, copy, fail, fails_once, fill, holds, note, note_upstream,
    pattern, read, threads, until, write,
};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "core.host_call":
    /// Each of thousands of host calls is called once, in the order of the queue.
    once_and_in_order: R16 R27;
    /// The pointer is passed on as it is, NULL too.
    the_pointer_is_passed_on: R27;
    /// `upstream` is OTR_OK where nothing has failed.
    upstream_is_ok: R27;
    /// A host call sees what the copy before it brought to the host.
    sees_what_was_copied: R16 R27;
    /// A copy takes what the host call before it has written.
    is_seen_by_copies: R16 R27;
    /// Submitting does not wait for the call: it may wait for the submitter.
    submitting_does_not_wait: R17 R27;
    /// A call that takes long holds its own queue only.
    a_long_call_holds_its_queue_only: R17 R27;
    /// Calls of one queue never overlap.
    calls_of_a_queue_do_not_overlap: R16 R27, limit 60;
    /// A call that fails is called once, and so are those behind it.
    failing_calls_are_called_once: R20 R27;
    /// OTR_NOT_READY is no failure, and counts as OTR_ERR_EXECUTION.
    not_ready_is_no_outcome: R27;
    /// The data of a call may be changed until the call is made: it is passed by pointer.
    the_data_is_the_callers: R10 R27;
    /// A failed submission calls nothing.
    a_refused_call_is_not_called: R4 R27;
    /// Calls are made on threads that are allowed to wait, lock and allocate.
    a_call_may_do_what_threads_do: R27;
}

pub(super) mod outcome {
    use super::*;

    tests! { "core.host_call_outcome":
        /// OTR_OK is a success.
        ok: R27, run |c| outcome(c, 0, Code::OK);
        /// OTR_NOT_READY counts as OTR_ERR_EXECUTION.
        not_ready: R27, run |c| outcome(c, Code::NOT_READY.0, Code::EXECUTION);
        /// OTR_ERR_EXECUTION is reported as it is.
        execution: R20 R27, run |c| outcome(c, Code::EXECUTION.0, Code::EXECUTION);
        /// OTR_ERR_OUT_OF_RANGE is reported as it is.
        out_of_range: R20 R27, run |c| outcome(c, Code::OUT_OF_RANGE.0, Code::OUT_OF_RANGE);
        /// OTR_ERR_INVALID_ARGUMENT of a call is the outcome of the command.
        invalid_argument: R20 R27, run |c| outcome(c, Code::INVALID_ARGUMENT.0, Code::INVALID_ARGUMENT);
        /// OTR_ERR_OUT_OF_MEMORY of a call is the outcome of the command.
        out_of_memory: R20 R27, run |c| outcome(c, Code::OUT_OF_MEMORY.0, Code::OUT_OF_MEMORY);
        /// OTR_ERR_UNSUPPORTED of a call is the outcome of the command.
        unsupported: R20 R27, run |c| outcome(c, Code::UNSUPPORTED.0, Code::UNSUPPORTED);
        /// OTR_ERR_CANCELLED is reported as it is.
        cancelled: R20 R27, run |c| outcome(c, Code::CANCELLED.0, Code::CANCELLED);
        /// OTR_ERR_INTERNAL is reported as it is.
        internal: R20 R27, run |c| outcome(c, Code::INTERNAL.0, Code::INTERNAL);
        /// OTR_ERR_DEVICE_LOST of a call is the outcome of the command, and the queue takes work again.
        device_lost: R20 R27, run |c| outcome(c, Code::DEVICE_LOST.0, Code::DEVICE_LOST);
        /// A code that this version does not know is reported as it is.
        unknown: R20 R27, run |c| outcome(c, 1234, Code(1234));
        /// A negative code is reported as it is.
        negative: R20 R27, run |c| outcome(c, -7, Code(-7));
        /// The greatest code is reported as it is.
        greatest: R20 R27, run |c| outcome(c, i32::MAX, Code(i32::MAX));
    }

    /// A host call that returns a number: what the queue, an event and the next call see of it.
    fn outcome(context: &Context, returned: i32, expected: Code) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, event, log) = (bench.queue()?, bench.event()?, Log::default());
        // SAFETY: the number stands in for the pointer, which is not followed.
        unsafe {
            queue.host_call_raw(
                answer,
                std::ptr::without_provenance_mut(returned as u32 as usize),
                0,
            )
        }?;
        note_upstream(&queue, &log)?;
        event.record(&queue)?;
        answers!(
            event.synchronize(),
            expected,
            "event_synchronize behind a call that returned {returned}"
        );
        answers!(queue.synchronize(), expected, "queue_synchronize");
        answers!(
            queue.synchronize(),
            Code::OK,
            "queue_synchronize, once it was reported"
        );
        answers!(event.synchronize(), expected, "event_synchronize, later");
        equal!(
            log.values(),
            [expected.0 as u32 as u64],
            "the upstream of the next call"
        );
        bench.finish()
    }

    unsafe extern "C" fn answer(user: *mut c_void, _upstream: i32) -> i32 {
        user.addr() as u32 as i32
    }
}

pub(super) mod flag {
    use outrigger_device::{Queue, sys};

    use super::*;

    tests! { "core.host_call_flag":
        /// A call that cannot fail has no outcome of its own: what it returns is not looked at.
        what_it_returns_is_ignored: R27;
        /// A host call is made after a failure too, is told of it, and the failure is reported.
        it_is_told_of_failures: R20 R27;
        /// A host call keeps its place among copies and other host calls.
        it_keeps_its_place: R16 R27;
        /// Submitting it does not wait for work before it, nor for the call.
        submitting_does_not_wait: R17 R27;
        /// An event behind a host call has passed when the call has returned.
        an_event_behind_it: R21 R27;
        /// A host call in a graph is made at each launch, and does not fail.
        in_a_graph: R27 R31, needs Graphs;
    }

    /// Notes a value in a log, and 1000 more with a failure before it, and returns a code.
    struct Told {
        log: Log,
        value: u64,
        returned: i32,
    }

    /// Submits a call that cannot fail, whatever it returns. What it needs lives as long as the process.
    fn tell(queue: &Queue, log: &Log, value: u64, returned: i32) -> Verdict {
        unsafe extern "C" fn told_of(user: *mut c_void, upstream: i32) -> i32 {
            // SAFETY: what was leaked below.
            let told = unsafe { &*user.cast::<Told>() };
            let failed = u64::from(upstream != Code::OK.0);
            told.log.push(told.value + 1000 * failed);
            told.returned
        }
        let log = log.clone();
        let told = Box::leak(Box::new(Told {
            log,
            value,
            returned,
        }));
        let user = std::ptr::from_mut(told).cast();
        // SAFETY: the data lives as long as the process, and any thread may use it.
        unsafe { queue.host_call_raw(told_of, user, sys::OTR_HOST_CALL_CANNOT_FAIL) }?;
        Ok(())
    }

    fn what_it_returns_is_ignored(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, at, log) = (bench.queue()?, bench.memory(64)?, Log::default());
        let codes = [Code::EXECUTION.0, Code::NOT_READY.0, 1234, -7];
        for (value, code) in (1..).zip(codes) {
            tell(&queue, &log, value, code)?;
            fill(&queue, at, 64, &[value as u8])?;
            note(&queue, &log, 100 + value)?;
        }
        queue.synchronize()?;
        equal!(
            log.values(),
            [1, 101, 2, 102, 3, 103, 4, 104],
            "calls, none of which was told of a failure"
        );
        holds(&queue, at, 64, 4, "what was filled last")?;
        bench.finish()
    }

    fn it_is_told_of_failures(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, at, log) = (bench.queue()?, bench.memory(64)?, Log::default());
        write(&queue, at, &[1; 64])?;
        fail(&queue, Code::OUT_OF_RANGE)?;
        for value in 0..3 {
            tell(&queue, &log, value, Code::OK.0)?;
            fill(&queue, at, 64, &[9])?;
        }
        fails_once(&queue, Code::OUT_OF_RANGE, "queue_synchronize")?;
        equal!(log.values(), [1000, 1001, 1002], "calls after the failure");
        holds(&queue, at, 64, 1, "memory, which no later fill has reached")?;
        tell(&queue, &log, 3, Code::OK.0)?;
        queue.synchronize()?;
        equal!(
            log.values()[3..],
            [3],
            "a call once the failure was reported"
        );
        bench.finish()
    }

    fn it_keeps_its_place(context: &Context) -> Verdict {
        const CALLS: u64 = 200;
        unsafe extern "C" fn increment(user: *mut c_void, upstream: i32) -> i32 {
            // SAFETY: the word below, which is leaked; the copies around this call do not overlap it.
            unsafe { *user.cast::<u64>() += 1 };
            upstream
        }
        let bench = Bench::new(context)?;
        let (queue, at, log) = (bench.queue()?, bench.memory(64)?, Log::default());
        let word: *mut u64 = Box::leak(Box::new(0));
        write(&queue, at, &[0; 8])?;
        for round in 0..CALLS {
            // SAFETY: the word lives as long as the process, and nothing else uses it.
            unsafe {
                queue.copy(word as u64, at, 8, CopyKind::DeviceToHost)?;
                let flags = sys::OTR_HOST_CALL_CANNOT_FAIL;
                queue.host_call_raw(increment, word.cast(), flags)?;
                queue.copy(at, word as u64, 8, CopyKind::HostToDevice)?;
            }
            match round % 2 {
                0 => note(&queue, &log, round)?,
                _ => tell(&queue, &log, round, 0)?,
            }
        }
        let found = read(&queue, at, 8)?;
        equal!(found, CALLS.to_ne_bytes(), "the word that went to and fro");
        equal!(
            log.values(),
            (0..CALLS).collect::<Vec<_>>(),
            "calls of both kinds"
        );
        bench.finish()
    }

    fn submitting_does_not_wait(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, gate, log) = (bench.queue()?, Gate::new(), Log::default());
        block(&queue, &gate)?;
        for value in 0..100 {
            tell(&queue, &log, value, 0)?;
        }
        queue.flush()?;
        check!(log.values().is_empty(), "nothing overtakes the queue");
        check!(!queue.query()?, "the calls have not run");
        gate.open();
        queue.synchronize()?;
        equal!(log.values().len(), 100, "calls");
        bench.finish()
    }

    fn an_event_behind_it(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, other, event) = (bench.queue()?, bench.queue()?, bench.event()?);
        let log = Log::default();
        for round in 0..50 {
            tell(&queue, &log, 2 * round, 0)?;
            event.record(&queue)?;
            other.wait_event(&event)?;
            tell(&other, &log, 2 * round + 1, 0)?;
            event.synchronize()?;
            check!(
                log.values().contains(&(2 * round)),
                "the event of round {round} is behind the call"
            );
            other.synchronize()?;
        }
        equal!(log.values(), (0..100).collect::<Vec<_>>(), "calls");
        bench.finish()
    }

    fn in_a_graph(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, at, log) = (bench.queue()?, bench.memory(64)?, Log::default());
        begin(&queue)?;
        tell(&queue, &log, 1, Code::EXECUTION.0)?;
        fill(&queue, at, 64, &[5])?;
        let graph = end(&queue)?;
        equal!(log.values(), Vec::<u64>::new(), "calls of the recording");
        for _ in 0..3 {
            launch(&queue, &graph)?;
        }
        holds(&queue, at, 64, 5, "what was filled behind the call")?;
        equal!(log.values(), [1, 1, 1], "calls of the launches");
        bench.finish()
    }
}

fn once_and_in_order(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    for i in 0..5000 {
        note(&queue, &log, i)?;
    }
    queue.synchronize()?;
    equal!(log.values(), (0..5000).collect::<Vec<_>>(), "the calls");
    bench.finish()
}

fn the_pointer_is_passed_on(context: &Context) -> Verdict {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn look(user: *mut c_void, upstream: i32) -> i32 {
        SEEN.store(user.addr(), Ordering::SeqCst);
        upstream
    }
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for number in [0, 1, 0x1234_5678, usize::MAX, usize::MAX / 2] {
        SEEN.store(!number, Ordering::SeqCst);
        // SAFETY: the pointer is not followed.
        unsafe { queue.host_call_raw(look, std::ptr::without_provenance_mut(number), 0) }?;
        queue.synchronize()?;
        equal!(SEEN.load(Ordering::SeqCst), number, "the pointer");
    }
    bench.finish()
}

fn upstream_is_ok(context: &Context) -> Verdict {
    static SEEN: AtomicI32 = AtomicI32::new(-1);
    unsafe extern "C" fn look(_: *mut c_void, upstream: i32) -> i32 {
        SEEN.store(upstream, Ordering::SeqCst);
        0
    }
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(64)?);
    for _ in 0..100 {
        SEEN.store(-1, Ordering::SeqCst);
        fill(&queue, address, 64, &[1])?;
        // SAFETY: the function takes nothing.
        unsafe { queue.host_call_raw(look, std::ptr::null_mut(), 0) }?;
        queue.synchronize()?;
        equal!(SEEN.load(Ordering::SeqCst), 0, "upstream");
    }
    bench.finish()
}

fn sees_what_was_copied(context: &Context) -> Verdict {
    const SIZE: usize = 1 << 20;
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(SIZE as u64)?);
    let bytes = HostBytes::of(SIZE, 0);
    let log = Log::default();
    for round in 1..=20u8 {
        fill(&queue, address, SIZE as u64, &[round])?;
        copy(
            &queue,
            bytes.at(0),
            address,
            SIZE as u64,
            CopyKind::DeviceToHost,
        )?;
        let log = log.clone();
        queue.callback(move |_| {
            log.push(bytes.get().iter().filter(|byte| **byte != round).count() as u64);
        })?;
    }
    queue.synchronize()?;
    equal!(
        log.values(),
        vec![0; 20],
        "bytes that each call missed of the copy before it"
    );
    bench.finish()
}

fn is_seen_by_copies(context: &Context) -> Verdict {
    const SIZE: usize = 65536;
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(SIZE as u64)?);
    let bytes = HostBytes::of(SIZE, 0);
    for round in 1..=20u64 {
        queue.callback(move |_| {
            bytes.set(&pattern(SIZE, round));
        })?;
        copy(
            &queue,
            address,
            bytes.at(0),
            SIZE as u64,
            CopyKind::HostToDevice,
        )?;
        equal!(
            super::kit::read(&queue, address, SIZE)?,
            pattern(SIZE, round),
            "what the call wrote"
        );
    }
    bench.finish()
}

fn submitting_does_not_wait(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    let gates: Vec<_> = (0..10).map(|_| Gate::new()).collect();
    for (i, gate) in gates.iter().enumerate() {
        block(&queue, gate)?;
        note(&queue, &log, i as u64)?;
    }
    equal!(log.values().len(), 0, "calls behind a closed gate");
    for gate in &gates {
        gate.open();
    }
    queue.synchronize()?;
    equal!(
        log.values(),
        (0..10).collect::<Vec<_>>(),
        "calls behind open gates"
    );
    bench.finish()
}

fn a_long_call_holds_its_queue_only(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (held, free, log) = (bench.queue()?, bench.queue()?, Log::default());
    let gate = Gate::new();
    block(&held, &gate)?;
    for i in 0..200 {
        note(&free, &log, i)?;
        free.synchronize()?;
    }
    equal!(log.values().len(), 200, "calls of the other queue");
    check!(!held.query()?, "the held queue has not finished");
    gate.open();
    held.synchronize()?;
    bench.finish()
}

fn calls_of_a_queue_do_not_overlap(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let inside = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    threads(4, |_| {
        for _ in 0..100 {
            let (inside, most) = (inside.clone(), most.clone());
            queue.callback(move |_| {
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
            })?;
        }
        queue.synchronize()?;
        Ok(())
    })?;
    equal!(
        most.load(Ordering::SeqCst),
        1,
        "calls of one queue at a time"
    );
    bench.finish()
}

fn failing_calls_are_called_once(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log) = (bench.queue()?, Log::default());
    fail(&queue, Code::EXECUTION)?;
    for i in 0..100 {
        let log = log.clone();
        queue.host_call(move |_| {
            log.push(i);
            Err(Code::INTERNAL)
        })?;
    }
    fails_once(&queue, Code::EXECUTION, "the first of 101 failures")?;
    equal!(
        log.values(),
        (0..100).collect::<Vec<_>>(),
        "the calls behind a failure"
    );
    bench.finish()
}

fn not_ready_is_no_outcome(context: &Context) -> Verdict {
    unsafe extern "C" fn not_ready(_: *mut c_void, _: i32) -> i32 {
        Code::NOT_READY.0
    }
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    // SAFETY: the function takes nothing.
    unsafe { queue.host_call_raw(not_ready, std::ptr::null_mut(), 0) }?;
    queue.flush()?;
    let mut answer = queue.query();
    until(|| {
        answer = queue.query();
        Ok(!matches!(answer, Ok(false)))
    })?;
    answers!(answer, Code::EXECUTION, "queue_query");
    fails_once(&queue, Code::EXECUTION, "queue_synchronize")?;
    bench.finish()
}

fn the_data_is_the_callers(context: &Context) -> Verdict {
    unsafe extern "C" fn double(user: *mut c_void, upstream: i32) -> i32 {
        // SAFETY: the counter below, which is leaked.
        unsafe { &*user.cast::<AtomicU64>() }.fetch_add(1, Ordering::SeqCst);
        upstream
    }
    let bench = Bench::new(context)?;
    let (queue, gate) = (bench.queue()?, Gate::new());
    let counter: &'static AtomicU64 = Box::leak(Box::default());
    block(&queue, &gate)?;
    // SAFETY: the counter lives as long as the process.
    unsafe { queue.host_call_raw(double, std::ptr::from_ref(counter).cast_mut().cast(), 0) }?;
    counter.store(41, Ordering::SeqCst);
    gate.open();
    queue.synchronize()?;
    equal!(
        counter.load(Ordering::SeqCst),
        42,
        "what the call found and changed"
    );
    bench.finish()
}

fn a_refused_call_is_not_called(context: &Context) -> Verdict {
    unsafe extern "C" fn never(_: *mut c_void, _: i32) -> i32 {
        std::process::abort()
    }
    let raw = Raw::open(context)?;
    let queue = raw.queue()?;
    for _ in 0..10 {
        let answer = call!(
            raw.api(),
            host_call,
            std::ptr::null_mut(),
            &params::host_call(Some(never), std::ptr::null_mut(), 0)
        );
        raw.refuses(answer, Code::INVALID_HANDLE, "host_call on no queue")?;
        let answer = call!(
            raw.api(),
            host_call,
            queue,
            &params::host_call(None, std::ptr::null_mut(), 0)
        );
        raw.refuses(answer, Code::INVALID_ARGUMENT, "host_call of no function")?;
    }
    raw.synchronize(queue)?;
    raw.destroy(queue, std::ptr::null_mut())
}

fn a_call_may_do_what_threads_do(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address, log) = (bench.queue()?, bench.memory(64)?, Log::default());
    write(&queue, address, &[1; 64])?;
    let inner = log.clone();
    queue.callback(move |_| {
        // A deep stack, much memory, a thread, and a panic that is caught.
        let deep = recurse(200);
        let much = vec![1u8; 8 << 20]
            .iter()
            .map(|b| u64::from(*b))
            .sum::<u64>();
        let thread = std::thread::spawn(|| 7u64).join().unwrap_or(0);
        inner.push(deep + much + thread);
    })?;
    queue.synchronize()?;
    equal!(
        log.values(),
        [200 + (8 << 20) + 7],
        "what the call computed"
    );
    bench.finish()
}

/// A few hundred bytes of stack for each level.
#[inline(never)]
fn recurse(level: u64) -> u64 {
    let room = std::hint::black_box([level; 32]);
    if level == 0 {
        0
    } else {
        1 + recurse(room[31] - 1)
    }
}
