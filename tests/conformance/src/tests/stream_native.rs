//! R55 and R56: queues that other libraries use too. The other library is a second queue of the driver over the same
//! native one: what it needs of the driver is what any library needs.

use std::ptr::null_mut;

use outrigger_device::{Code, Queue};

use super::kit::{Bench, Log, block, fail, fails_once, fill, holds, note, read, until, within};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "stream.native":
    /// The native queue of a queue is the same each time, and another one for another queue.
    the_handle_stays: R55, needs NativeQueue;
    /// Work of two users of a native queue takes effect in the order in which they hand it over.
    two_users_keep_one_order: R55 R56, needs NativeQueue;
    /// Work that was kept back behind a host call is in the native queue when that is handed out.
    what_was_kept_back_comes_first: R55, needs NativeQueue;
    /// Queries, waits and events of a queue whose native one was handed out are about the other user's work, too.
    waits_and_events_see_the_other_user: R19 R21 R55, needs NativeQueue;
    /// Host calls of both users are called in the order of the native queue.
    host_calls_keep_the_order: R27 R55 R56, needs NativeQueue;
    /// Events with times work on both queues.
    times_are_taken: R55 R56, needs NativeQueue Timing;
    /// A queue that was adopted can be destroyed with work in it; that still runs, and the other user goes on.
    an_adopted_queue_comes_and_goes: R11 R56, needs NativeQueue;
    /// A queue that has failed is refused with OTR_ERR_CANCELLED, until its failure was reported.
    a_failed_queue_is_not_handed_out: R20 R55, needs NativeQueue;
    /// A queue that records answers OTR_ERR_CAPTURE.
    a_recording_queue_is_not_handed_out: R33 R55, needs NativeQueue Graphs;
    /// NULL, devices that do not exist and queues of another device are refused, and nothing is written.
    wrong_arguments_are_refused: R4 R7 R56, needs NativeQueue;
}

const SIZE: u64 = 1 << 18;

/// A second user of a queue.
fn second(bench: &Bench, queue: &Queue) -> Verdict<Queue> {
    let native = queue.native()?;
    check!(native != 0, "a native queue is not 0");
    // SAFETY: R56: the queue lives longer than what is made of it here, whose work is waited for.
    Ok(unsafe { bench.driver().queue_adopt(queue.device(), native) }?)
}

fn the_handle_stays(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other) = (bench.queue()?, bench.queue()?);
    let memory = bench.memory(SIZE)?;
    let native = queue.native()?;
    for value in 0..3 {
        fill(&queue, memory, SIZE, &[value])?;
        equal!(queue.native()?, native, "asked again");
    }
    check!(
        other.native()? != native,
        "two queues have two native queues"
    );
    queue.synchronize()?;
    equal!(queue.native()?, native, "asked when all has finished");
    bench.finish()
}

fn two_users_keep_one_order(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let (first, last) = (bench.memory(SIZE)?, bench.memory(SIZE)?);
    let other = second(&bench, &queue)?;
    for round in 0..24u8 {
        // Each waits for the one before it, and nothing but the native queue says so.
        fill(&queue, first, SIZE, &[round])?;
        queue.native()?;
        within(&other, last, first, SIZE)?;
        other.native()?;
        fill(&queue, first, SIZE, &[0xee])?;
        queue.native()?;
        if round % 8 == 7 {
            holds(
                &other,
                last,
                SIZE as usize,
                round,
                "what the other user copied",
            )?;
        }
    }
    holds(&queue, first, SIZE as usize, 0xee, "the last fill")?;
    drop(other);
    bench.finish()
}

fn what_was_kept_back_comes_first(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let memory = bench.memory(SIZE)?;
    let other = second(&bench, &queue)?;
    let gate = Gate::new();
    block(&queue, &gate)?;
    fill(&queue, memory, SIZE, &[1])?;
    std::thread::scope(|scope| -> Verdict {
        // The call may wait for the host call.
        let handing = scope.spawn(|| queue.native());
        gate.open();
        let handed = handing.join();
        answers!(
            handed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Code::OK,
            "the native queue of a queue with a host call"
        );
        Ok(())
    })?;
    fill(&other, memory, SIZE / 2, &[2])?;
    other.synchronize()?;
    holds(
        &queue,
        memory,
        SIZE as usize / 2,
        2,
        "what the other user filled",
    )?;
    holds(
        &queue,
        memory + SIZE / 2,
        SIZE as usize / 2,
        1,
        "what was kept back",
    )?;
    drop(other);
    bench.finish()
}

fn waits_and_events_see_the_other_user(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let (large, small) = (bench.memory(64 * SIZE)?, bench.memory(64)?);
    let other = second(&bench, &queue)?;
    let elsewhere = bench.queue()?;
    for value in 1..6 {
        // The queue knows that all of its own work has finished.
        queue.synchronize()?;
        queue.native()?;
        for _ in 0..4 {
            fill(&other, large, 64 * SIZE, &[value])?;
        }
        fill(&other, small, 64, &[value])?;
        other.native()?;
        match value % 3 {
            0 => queue.synchronize()?,
            1 => {
                let event = bench.event()?;
                event.record(&queue)?;
                event.synchronize()?;
            }
            _ => {
                let event = bench.event()?;
                event.record(&queue)?;
                elsewhere.wait_event(&event)?;
            }
        }
        equal!(
            read(&elsewhere, small, 64)?,
            vec![value; 64],
            "the other user's work, which was waited for"
        );
    }
    other.synchronize()?;
    drop(other);
    bench.finish()
}

fn host_calls_keep_the_order(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let log = Log::default();
    let other = second(&bench, &queue)?;
    for value in 0..20 {
        let user = if value % 2 == 0 { &queue } else { &other };
        note(user, &log, value)?;
        user.native()?;
    }
    queue.synchronize()?;
    other.synchronize()?;
    equal!(log.values(), (0..20).collect::<Vec<_>>(), "the host calls");
    drop(other);
    bench.finish()
}

fn times_are_taken(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let memory = bench.memory(SIZE)?;
    let other = second(&bench, &queue)?;
    let native = queue.native()?;
    let mut last = 0;
    for user in [&queue, &other, &queue] {
        fill(user, memory, SIZE, &[1])?;
        let event = bench.driver().event_create(0, true)?;
        event.record(user)?;
        event.synchronize()?;
        let Some(time) = event.time_ns()? else {
            return Err(crate::Failure::new("an event that has passed has no time"));
        };
        check!(
            time >= last,
            "times run forward: {time} ns behind {last} ns"
        );
        last = time;
        user.native()?;
    }
    equal!(
        queue.native()?,
        native,
        "the native queue, after times were taken"
    );
    drop(other);
    bench.finish()
}

fn an_adopted_queue_comes_and_goes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let memory = bench.memory(SIZE)?;
    for value in 1..5 {
        let other = second(&bench, &queue)?;
        fill(&other, memory, SIZE, &[value])?;
        other.native()?;
        drop(other);
        fill(&queue, memory, 64, &[0x77])?;
        holds(
            &queue,
            memory,
            64,
            0x77,
            "what the queue that is left filled",
        )?;
        holds(
            &queue,
            memory + 64,
            SIZE as usize - 64,
            value,
            "the last work of the adopted queue",
        )?;
    }
    bench.finish()
}

fn a_failed_queue_is_not_handed_out(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    fail(&queue, Code::EXECUTION)?;
    until(|| Ok(!matches!(queue.query(), Ok(false))))?;
    for _ in 0..2 {
        answers!(queue.native(), Code::CANCELLED, "the native queue");
    }
    fails_once(&queue, Code::EXECUTION, "the queue")?;
    queue.native()?;
    bench.finish()
}

fn a_recording_queue_is_not_handed_out(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let raw = Raw::of(bench.driver());
    let native = raw.native_queue()?;
    // SAFETY: the group is there, and as large as the loader has found.
    let graph = unsafe { &*raw.api().graph };
    raw.takes(call!(graph, record_begin, queue.raw()), "record_begin")?;
    let mut number = 0x5a5a;
    raw.refuses(
        call!(native, handle, queue.raw(), &mut number),
        Code::CAPTURE,
        "handle of a recording queue",
    )?;
    equal!(number, 0x5a5a, "R4: the output of the failed call");
    let mut made = null_mut();
    raw.takes(
        call!(graph, record_end, queue.raw(), &mut made),
        "record_end",
    )?;
    raw.takes(call!(graph, destroy, made), "destroy")?;
    queue.native()?;
    bench.finish()
}

fn wrong_arguments_are_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let group = raw.native_queue()?;
    let queue = raw.queue()?;
    let (mut number, known) = (0, 0x5a5a_usize);
    let mut place = std::ptr::with_exposed_provenance_mut(known);
    raw.takes(call!(group, handle, queue, &mut number), "handle")?;
    let count = raw.driver().device_count();
    let driver = raw.handle();
    raw.refuses(
        call!(group, handle, null_mut(), &mut 0),
        Code::INVALID_HANDLE,
        "handle of NULL",
    )?;
    raw.refuses(
        call!(group, handle, queue, null_mut()),
        Code::INVALID_ARGUMENT,
        "handle without a place",
    )?;
    raw.refuses(
        call!(group, adopt, null_mut(), 0, number, &mut place),
        Code::INVALID_HANDLE,
        "adopt of NULL",
    )?;
    raw.refuses(
        call!(group, adopt, driver, count, number, &mut place),
        Code::INVALID_DEVICE,
        "adopt for no device",
    )?;
    raw.refuses(
        call!(group, adopt, driver, 0, 0, &mut place),
        Code::INVALID_ARGUMENT,
        "adopt of the queue 0",
    )?;
    raw.refuses(
        call!(group, adopt, driver, 0, number, null_mut()),
        Code::INVALID_ARGUMENT,
        "adopt without a place",
    )?;
    if count > 1 {
        raw.refuses(
            call!(group, adopt, driver, 1, number, &mut place),
            Code::INVALID_DEVICE,
            "adopt for another device",
        )?;
    }
    equal!(place.addr(), known, "R4: the output of failed calls");
    raw.destroy(queue, null_mut())
}
