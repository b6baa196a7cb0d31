//! R17 and R27: host calls are called exactly once, in order, with the right arguments. Their result is
//! the outcome of the command.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use outrigger_device::{Code, CopyKind};

use super::kit::{
    Bench, HostBytes, Log, block, copy, fail, fails_once, fill, note, note_upstream, pattern,
    threads, until, write,
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
    /// OTR_NOT_READY is no outcome, and counts as OTR_ERR_EXECUTION.
    not_ready_is_no_outcome: R27;
    /// What a call was submitted with may be changed until it is called: it is passed by pointer.
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
        unsafe { queue.host_call_raw(look, std::ptr::without_provenance_mut(number)) }?;
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
        unsafe { queue.host_call_raw(look, std::ptr::null_mut()) }?;
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
        queue.host_call(move |upstream| {
            log.push(bytes.get().iter().filter(|byte| **byte != round).count() as u64);
            upstream
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
        queue.host_call(move |upstream| {
            bytes.set(&pattern(SIZE, round));
            upstream
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
            queue.host_call(move |upstream| {
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                upstream
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
    unsafe { queue.host_call_raw(not_ready, std::ptr::null_mut()) }?;
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
    unsafe { queue.host_call_raw(double, std::ptr::from_ref(counter).cast_mut().cast()) }?;
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
            Some(never),
            std::ptr::null_mut()
        );
        raw.refuses(answer, Code::INVALID_HANDLE, "host_call on no queue")?;
        let answer = call!(raw.api(), host_call, queue, None, std::ptr::null_mut());
        raw.refuses(answer, Code::INVALID_ARGUMENT, "host_call of no function")?;
    }
    raw.takes(
        call!(raw.api(), queue_synchronize, queue),
        "queue_synchronize",
    )?;
    raw.destroy(queue, std::ptr::null_mut())
}

fn a_call_may_do_what_threads_do(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address, log) = (bench.queue()?, bench.memory(64)?, Log::default());
    write(&queue, address, &[1; 64])?;
    let inner = log.clone();
    queue.host_call(move |upstream| {
        // A deep stack, much memory, a thread, and a panic that is caught.
        let deep = recurse(200);
        let much = vec![1u8; 8 << 20]
            .iter()
            .map(|b| u64::from(*b))
            .sum::<u64>();
        let thread = std::thread::spawn(|| 7u64).join().unwrap_or(0);
        inner.push(deep + much + thread);
        upstream
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
