//! R19 and R21 for the group `timing`: timestamps of events, the clock of a device, and what a driver
//! without the group answers.

use std::ptr::null_mut;
use std::time::Duration;

use outrigger_device::{Code, NO_OUTCOME, params, sys};

use super::kit::{Bench, Log, block, delay, note, until};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Gate, Need, Verdict};

tests! { "stream.timing":
    /// The clock of a device never runs backwards.
    the_clock_runs_forwards: R8, needs Timing;
    /// The clock counts nanoseconds.
    the_clock_counts_nanoseconds: R8, needs Timing;
    /// Times of events follow the order of their points, and lie between readings of the clock.
    times_follow_the_points: R16 R21, needs Timing;
    /// The time between two events is at least that of the work between them.
    times_are_as_far_apart_as_the_work: R21, needs Timing;
    /// Before the event's point the outcome is OTR_NOT_READY, and no time is written.
    a_time_is_not_ready_before: R4 R21, needs Timing;
    /// A time stays the same until the event is recorded again.
    a_time_stays: R21, needs Timing;
    /// Times of two queues are ordered by a wait.
    times_of_two_queues: R24, needs Timing;
    /// An event without OTR_EVENT_TIMING has no time.
    an_event_without_the_flag: R7, needs Timing;
    /// An event that was never recorded has no time.
    an_event_without_a_record: R7 R22, needs Timing;
    /// An event with a timestamp orders work as any other.
    a_timed_event_orders_work: R21 R24, needs Timing;
    /// NULL and devices that do not exist are refused.
    wrong_arguments_are_refused: R4 R7, needs Timing;
    /// A driver without the group refuses the flag OTR_EVENT_TIMING, and gives no event.
    the_flag_without_the_group: R4 R7, absent Timing;
}

fn now(bench: &Bench) -> Verdict<u64> {
    bench
        .device_time_ns(0)?
        .ok_or_else(|| Failure::new("the driver has the group timing"))
}

fn time(event: &outrigger_device::Event) -> Verdict<u64> {
    event
        .time_ns()?
        .ok_or_else(|| Failure::new("the event's point has passed"))
}

fn the_clock_runs_forwards(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for device in 0..bench.device_count() {
        let mut last = 0;
        for _ in 0..2000 {
            let now = bench.device_time_ns(device)?.unwrap_or(0);
            check!(now >= last, "{now} after {last} on device {device}");
            last = now;
        }
        check!(last > 0, "the clock is not at 0");
    }
    bench.finish()
}

fn the_clock_counts_nanoseconds(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (host, start) = (std::time::Instant::now(), now(&bench)?);
    std::thread::sleep(Duration::from_millis(60));
    let (device, host) = (now(&bench)? - start, host.elapsed().as_nanos() as u64);
    // Ticks of another unit would be far off; a tenth is room for calibration.
    check!(
        device >= 50_000_000,
        "{device} ns on the device in {host} ns"
    );
    check!(
        device <= host + host / 10,
        "{device} ns on the device in {host} ns"
    );
    bench.finish()
}

fn times_follow_the_points(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate) = (bench.queue()?, Gate::new());
    let events: Vec<_> = (0..3)
        .map(|_| bench.event_create(0, true))
        .collect::<Result<_, _>>()?;
    let before = now(&bench)?;
    events[0].record(&queue)?;
    block(&queue, &gate)?;
    events[1].record(&queue)?;
    note(&queue, &Log::default(), 0)?;
    events[2].record(&queue)?;
    events[0].synchronize()?;
    let opened = now(&bench)?;
    gate.open();
    queue.synchronize()?;
    let after = now(&bench)?;
    let order = [
        before,
        time(&events[0])?,
        opened,
        time(&events[1])?,
        time(&events[2])?,
        after,
    ];
    check!(
        order.is_sorted(),
        "readings of the clock around times of events: {order:?}"
    );
    bench.finish()
}

fn times_are_as_far_apart_as_the_work(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let (start, end) = (bench.event_create(0, true)?, bench.event_create(0, true)?);
    start.record(&queue)?;
    delay(&queue, Duration::from_millis(20))?;
    end.record(&queue)?;
    queue.synchronize()?;
    let between = time(&end)? - time(&start)?;
    check!(between >= 19_000_000, "{between} ns around work of 20 ms");
    bench.finish()
}

fn a_time_is_not_ready_before(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bench = Bench::of(raw.driver().clone())?;
    // SAFETY: the group is there, and as large as the loader has found.
    let group: &sys::otr_timing_api = unsafe { &*raw.api().timing };
    let (queue, mut event) = (raw.queue()?, null_mut());
    raw.takes(
        call!(
            raw.api(),
            event_create,
            raw.handle(),
            0,
            &params::event(sys::OTR_EVENT_TIMING),
            &mut event
        ),
        "event_create",
    )?;
    let (gate, blocker, point) = (Gate::new(), bench.queue()?, bench.event()?);
    block(&blocker, &gate)?;
    point.record(&blocker)?;
    // The raw queue waits for the blocked one by a raw event.
    let mut held = null_mut();
    raw.takes(
        call!(
            raw.api(),
            event_create,
            raw.handle(),
            0,
            std::ptr::null(),
            &mut held
        ),
        "event_create",
    )?;
    unsafe extern "C" fn wait(user: *mut std::ffi::c_void, upstream: i32) -> i32 {
        // SAFETY: the waiter below, which is called once.
        let waiter = unsafe { Box::from_raw(user.cast::<Box<dyn FnOnce() + Send>>()) };
        waiter();
        upstream
    }
    let waiter: Box<dyn FnOnce() + Send> = Box::new(gate.waiter());
    let user = Box::into_raw(Box::new(waiter)).cast();
    raw.takes(
        call!(
            raw.api(),
            host_call,
            queue,
            &params::host_call(Some(wait), user, 0)
        ),
        "host_call",
    )?;
    raw.takes(call!(raw.api(), event_record, event, queue), "event_record")?;
    let mut nanoseconds = 0x5a5a;
    let mut outcome = NO_OUTCOME;
    outcome.code = Code::OK.0;
    let answer = call!(group, event_time, event, &mut outcome, &mut nanoseconds);
    raw.takes(answer, "event_time before the point")?;
    answers!(
        outcome.code,
        Code::NOT_READY,
        "the outcome before the point"
    );
    equal!(nanoseconds, 0x5a5a, "the output");
    gate.open();
    raw.synchronize(queue)?;
    let answer = call!(group, event_time, event, &mut outcome, &mut nanoseconds);
    raw.takes(answer, "event_time")?;
    answers!(outcome.code, Code::OK, "the outcome behind the point");
    check!(nanoseconds != 0x5a5a, "the output was written");
    blocker.synchronize()?;
    raw.destroy(queue, event)?;
    raw.destroy(null_mut(), held)
}

fn a_time_stays(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event_create(0, true)?);
    event.record(&queue)?;
    queue.synchronize()?;
    let first = time(&event)?;
    std::thread::sleep(Duration::from_millis(2));
    note(&queue, &Log::default(), 0)?;
    queue.synchronize()?;
    equal!(time(&event)?, first, "the time, asked later");
    event.record(&queue)?;
    queue.synchronize()?;
    check!(
        time(&event)? >= first + 1_000_000,
        "recorded again, it is later"
    );
    bench.finish()
}

fn times_of_two_queues(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second) = (bench.queue()?, bench.queue()?);
    let events = [bench.event_create(0, true)?, bench.event_create(0, true)?];
    for _ in 0..50 {
        delay(&first, Duration::from_micros(100))?;
        events[0].record(&first)?;
        second.wait_event(&events[0])?;
        events[1].record(&second)?;
        second.synchronize()?;
        let (one, two) = (time(&events[0])?, time(&events[1])?);
        check!(
            one <= two,
            "an event behind a wait is not earlier: {one} and {two}"
        );
    }
    bench.finish()
}

fn an_event_without_the_flag(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    answers!(
        event.time_ns(),
        Code::INVALID_ARGUMENT,
        "the time of an event without the flag"
    );
    event.record(&queue)?;
    queue.synchronize()?;
    answers!(
        event.time_ns(),
        Code::INVALID_ARGUMENT,
        "the same, recorded"
    );
    bench.finish()
}

fn an_event_without_a_record(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let event = bench.event_create(0, true)?;
    answers!(
        event.time_ns(),
        Code::INVALID_ARGUMENT,
        "the time of an event that was never recorded"
    );
    check!(event.query()?, "it counts as finished all the same");
    bench.finish()
}

fn a_timed_event_orders_work(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second, gate, log) = (bench.queue()?, bench.queue()?, Gate::new(), Log::default());
    let event = bench.event_create(0, true)?;
    block(&first, &gate)?;
    note(&first, &log, 1)?;
    event.record(&first)?;
    second.wait_event(&event)?;
    note(&second, &log, 2)?;
    check!(!event.query()?, "its point has not come");
    gate.open();
    second.synchronize()?;
    equal!(log.values(), [1, 2], "calls");
    until(|| Ok(event.query()?))?;
    bench.finish()
}

fn wrong_arguments_are_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    // SAFETY: the group is there, and as large as the loader has found.
    let group: &sys::otr_timing_api = unsafe { &*raw.api().timing };
    let (queue, mut event, mut time) = (raw.queue()?, null_mut(), 0x5a5a);
    raw.takes(
        call!(
            raw.api(),
            event_create,
            raw.handle(),
            0,
            &params::event(sys::OTR_EVENT_TIMING),
            &mut event
        ),
        "event_create",
    )?;
    raw.takes(call!(raw.api(), event_record, event, queue), "event_record")?;
    raw.synchronize(queue)?;
    let mut outcome = NO_OUTCOME;
    raw.refuses(
        call!(group, event_time, null_mut(), &mut outcome, &mut time),
        Code::INVALID_HANDLE,
        "event_time of NULL",
    )?;
    raw.refuses(
        call!(group, event_time, event, &mut outcome, null_mut()),
        Code::INVALID_ARGUMENT,
        "event_time without a place",
    )?;
    raw.refuses(
        call!(group, event_time, event, null_mut(), &mut time),
        Code::INVALID_ARGUMENT,
        "event_time without a place for the outcome",
    )?;
    raw.refuses(
        call!(group, device_time, null_mut(), 0, &mut time),
        Code::INVALID_HANDLE,
        "device_time of NULL",
    )?;
    raw.refuses(
        call!(group, device_time, raw.handle(), 0, null_mut()),
        Code::INVALID_ARGUMENT,
        "device_time without a place",
    )?;
    for device in [raw.driver().device_count(), u32::MAX] {
        raw.refuses(
            call!(group, device_time, raw.handle(), device, &mut time),
            Code::INVALID_DEVICE,
            "device_time of no device",
        )?;
    }
    equal!(
        (time, outcome.code),
        (0x5a5a, Code::NOT_READY.0),
        "R4: outputs of failed calls"
    );
    raw.destroy(queue, event)
}

fn the_flag_without_the_group(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    if context.has(raw.driver(), Need::Timing) {
        return Ok(());
    }
    let marker = std::ptr::without_provenance_mut(0x5a5a);
    let mut event = marker;
    let answer = call!(
        raw.api(),
        event_create,
        raw.handle(),
        0,
        &params::event(sys::OTR_EVENT_TIMING),
        &mut event
    );
    // The flag is known and the feature absent: both say so (R7).
    let code = Code(answer);
    check!(
        code == Code::UNSUPPORTED || code == Code::INVALID_ARGUMENT,
        "event_create with OTR_EVENT_TIMING and without the group answered {code:?}"
    );
    check!(!raw.text()?.is_empty(), "R5: it has a text");
    check!(event == marker, "R4: the output of a failed call");
    Ok(())
}
