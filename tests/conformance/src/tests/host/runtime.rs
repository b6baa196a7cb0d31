//! The runtime itself: its start, versions and drivers, the contents of a status, devices, priorities,
//! timed events, generators, traces, and the threads of host kernels.

use std::ffi::c_void;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::tests::host::bindings::*;
use outrigger_device::Code;
use serde_json::Value;

use super::history::Scratch;
use super::work::hold;
use super::{
    add, alloc, download, environment, event, fill, filled, finished, json, made, near, otr, raw,
    refused, start, stream, string, text, tried, upload,
};
use crate::test::tests;
use crate::tests::kit::threads;
use crate::verdict::{check, equal};
use crate::{Context, Gate, Need, Verdict};

tests! { "host-abi.runtime":
    /// The runtime starts by its first call, or by the call for it, and once.
    it_starts_once: H1 H14;
    /// Without a device it does not start, and says why; a driver that is loaded then brings some.
    it_needs_a_device: H3 H8;
    /// A host names the drivers of a runtime that the environment gives none, before it starts and not after.
    default_drivers: H2 H3;
    /// The version and the report of what was loaded tell what there is.
    what_was_loaded: H11;
    /// One more driver adds its devices behind those that are there; one that cannot be loaded changes nothing.
    one_more_driver: H2 H3 H8;
    /// A status tells code, text, stream and submission, and NULL stands for success.
    what_a_status_tells: H1 H3 H19;
    /// Waiting for a device waits for all its streams, and clears the failures of all.
    waiting_for_a_device: H14 H18 H19;
    /// Waiting for a device waits for streams that were destroyed, and for what a stream was given before it captures.
    waiting_for_streams_that_are_gone: H13 H18 H26;
    /// A priority is clamped to the device's range, also of streams of the runtime.
    priorities: H2 H12;
    /// Timed events tell how much time passed between them; others have none.
    timed_events: H2 H20, needs Timing;
    /// A device without timestamps makes no timed events, and one with them does.
    timed_or_unsupported: H2, absent Timing;
    /// A generator counts what is drawn, from the start of its seed, alone.
    generators: H5 H12 H14;
    /// A trace is written from its begin to its end, one at a time.
    traces: H2 H11;
    /// Results are the same on any number of threads, and 0 means as many as there are cores.
    threads_of_kernels: H14;
}

fn it_starts_once(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[3])?;
    threads(3, |_| Ok(otr!(runtime_init)?))?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [3; 64],
        "memory from before"
    );
    Ok(())
}

fn it_needs_a_device(context: &Context) -> Verdict {
    environment("/nowhere/liboutrigger_none.so", "");
    let told = refused(
        otr!(runtime_init),
        Code::INVALID_DEVICE,
        "a start without a driver",
    )?;
    check!(
        told.text.contains("/nowhere/liboutrigger_none.so"),
        "the text names what was refused: {}",
        told.text
    );
    equal!(made::<u32>(|out| otr!(device_count, out))?, 0, "devices");
    let spec = std::ffi::CString::new(context.spec())?;
    otr!(driver_load, spec.as_ptr())?;
    otr!(runtime_init)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[3])?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [3; 64],
        "work of a driver that came later"
    );
    Ok(())
}

fn default_drivers(context: &Context) -> Verdict {
    let spec = std::ffi::CString::new(context.spec())?;
    refused(
        otr!(driver_default, c"".as_ptr()),
        Code::INVALID_ARGUMENT,
        "no driver",
    )?;
    otr!(driver_default, c"/nowhere/liboutrigger_none.so".as_ptr())?;
    otr!(driver_default, spec.as_ptr())?;
    // SAFETY: nothing else runs yet in the process of this test.
    unsafe { std::env::remove_var("OUTRIGGER_DRIVER") };
    otr!(runtime_init)?;
    let report = json(|out| otr!(load_report, out))?;
    let asked = &report["candidates"][0]["spec"];
    equal!(
        asked.as_str(),
        Some(context.spec()),
        "the driver that was loaded"
    );
    refused(
        otr!(driver_default, spec.as_ptr()),
        Code::BUSY,
        "default drivers behind the start",
    )?;
    Ok(())
}

fn what_was_loaded(context: &Context) -> Verdict {
    start(context)?;
    // SAFETY: it takes nothing.
    let [version, again] = [(); 2].map(|()| unsafe { raw!(version) });
    check!(std::ptr::eq(version, again), "it stays");
    let version = text(version).unwrap_or_default();
    let parts: Vec<&str> = version.split('.').collect();
    check!(
        parts.len() == 3 && parts[0].parse::<u32>().is_ok() && parts[1].parse::<u32>().is_ok(),
        "a version of three parts: {version}"
    );
    let report = json(|out| otr!(load_report, out))?.to_string();
    let name = context.spec().split('?').next().unwrap_or_default();
    check!(
        report.contains(name),
        "the driver {name} is in the report: {report}"
    );
    let info: otr_device_info_t = filled(|out| otr!(device_info, 0, out))?;
    let driver = context.open()?;
    equal!(
        (
            text(info.driver.as_ptr()).as_deref(),
            text(info.driver_version.as_ptr()).as_deref()
        ),
        (Some(driver.name()), Some(driver.version())),
        "name and version of the driver"
    );
    let properties = driver.properties(0)?;
    equal!(
        (
            text(info.name.as_ptr()),
            info.total_memory,
            info.host_visible,
            info.driver_ordinal
        ),
        (
            Some(properties.name.clone()),
            properties.total_memory,
            properties.host_visible().into(),
            0
        ),
        "name, memory, visibility and number of the device"
    );
    Ok(())
}

fn one_more_driver(context: &Context) -> Verdict {
    start(context)?;
    let count = || made::<u32>(|out| otr!(device_count, out));
    let before = count()?;
    for wrong in [c"/nowhere/liboutrigger_none.so", c"no_such_driver", c""] {
        refused(
            otr!(driver_load, wrong.as_ptr()),
            Code::LOAD,
            "a driver that there is not",
        )?;
        equal!(count()?, before, "devices after a refused driver");
    }
    let spec = std::ffi::CString::new(context.spec())?;
    otr!(driver_load, spec.as_ptr())?;
    equal!(count()?, 2 * before, "devices of the driver, opened twice");
    let last = 2 * before - 1;
    let stream = made(|out| otr!(stream_create, last, 0, out))?;
    equal!(
        made(|out| otr!(stream_device, stream, out))?,
        last,
        "the device of a stream of the last device"
    );
    let address = made(|out| otr!(memory_alloc, last, 64, stream, out))?;
    fill(stream, address, 64, &[9])?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [9; 64],
        "work of the last device"
    );
    let report = string(|out| otr!(load_report, out))?;
    check!(
        report.contains("/nowhere/liboutrigger_none.so"),
        "what was refused is in the report: {report}"
    );
    Ok(())
}

unsafe extern "C" fn fails(_: *mut c_void, _: i32) -> i32 {
    Code::EXECUTION.0
}

unsafe extern "C" fn passes(_: *mut c_void, upstream: i32) -> i32 {
    upstream
}

fn what_a_status_tells(context: &Context) -> Verdict {
    start(context)?;
    // SAFETY: NULL is taken by all of these.
    unsafe {
        equal!(raw!(status_code, null()), Code::OK.0, "the code of success");
        check!(
            !raw!(status_message, null()).is_null(),
            "success has a text"
        );
        check!(raw!(status_operator, null()).is_null(), "and no operator");
        equal!(
            (raw!(status_stream, null()), raw!(status_submission, null())),
            (0, 0),
            "stream and submission of success"
        );
        raw!(status_free, std::ptr::null_mut());
    }
    let stream = stream()?;
    for function in [passes, passes, fails, passes] {
        let function: unsafe extern "C" fn(*mut c_void, i32) -> i32 = function;
        otr!(host_call, stream, Some(function), std::ptr::null_mut())?;
    }
    // SAFETY: an id, which is checked.
    let status = unsafe { raw!(stream_synchronize, stream) };
    check!(!status.is_null(), "the stream has failed");
    // SAFETY: a status that was handed out just now, and is freed below.
    let (code, of, submission, message) = unsafe {
        (
            raw!(status_code, status),
            raw!(status_stream, status),
            raw!(status_submission, status),
            raw!(status_message, status),
        )
    };
    let message = text(message).unwrap_or_default();
    // SAFETY: freed once.
    unsafe { raw!(status_free, status) };
    equal!(
        (code, of),
        (Code::EXECUTION.0, stream),
        "code and stream of the failure"
    );
    check!(!message.is_empty(), "it has a text");
    check!(
        [0, 3].contains(&submission),
        "the third command has failed, or the driver does not tell: {submission}"
    );
    // A failure that is of no work of a stream has neither.
    // SAFETY: 0 is no stream, which is checked.
    unsafe {
        let status = raw!(stream_synchronize, 0);
        equal!(
            (raw!(status_submission, status), raw!(status_stream, status)),
            (0, 0),
            "submission and stream of a wrong call"
        );
        raw!(status_free, status);
    }
    Ok(())
}

fn waiting_for_a_device(context: &Context) -> Verdict {
    start(context)?;
    let (first, second, third) = (stream()?, stream()?, stream()?);
    let gate = Gate::new();
    hold(first, &gate)?;
    let address = alloc(1 << 20, second)?;
    fill(second, address, 1 << 20, &[1])?;
    otr!(host_call, third, Some(fails), std::ptr::null_mut())?;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let outcome = otr!(device_synchronize, 0);
            (outcome, finished(first))
        });
        gate.open();
        let (outcome, first_finished) = waits.join().expect("no panic");
        refused(
            outcome,
            Code::EXECUTION,
            "the device of a stream that failed",
        )?;
        check!(
            first_finished?,
            "the stream that was held back has finished"
        );
        Verdict::Ok(())
    })?;
    for stream in [first, second, third] {
        check!(
            finished(stream)?,
            "each stream has finished, and none fails"
        );
    }
    Ok(otr!(device_synchronize, 0)?)
}

fn waiting_for_streams_that_are_gone(context: &Context) -> Verdict {
    start(context)?;
    for captures in [false, true] {
        let (held, gate, waited) = (stream()?, Gate::new(), AtomicBool::new(false));
        hold(held, &gate)?;
        match captures {
            true => otr!(capture_begin, held, OTR_CAPTURE_RELAXED, 0)?,
            false => otr!(stream_destroy, held)?,
        }
        let early = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let outcome = otr!(device_synchronize, 0);
                waited.store(true, Ordering::SeqCst);
                outcome
            });
            // Long enough for a call that does not wait to return.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let early = waited.load(Ordering::SeqCst);
            gate.open();
            waits.join().expect("no panic")?;
            Verdict::Ok(early)
        })?;
        check!(
            !early,
            "the device was waited for while its work was held back"
        );
        if captures {
            otr!(graph_destroy, super::end(held)?)?;
        }
    }
    Ok(())
}

fn priorities(context: &Context) -> Verdict {
    start(context)?;
    let info: otr_device_info_t = filled(|out| otr!(device_info, 0, out))?;
    let (low, high) = (info.priority_lowest, info.priority_highest);
    check!(
        high <= low,
        "a lower number is more urgent: {high} to {low}"
    );
    let of = |stream| made::<i32>(|out| otr!(stream_priority, stream, out));
    for asked in [i32::MIN, high, 0, low, i32::MAX] {
        let expected = asked.clamp(high, low);
        let made_one = made(|out| otr!(stream_create, 0, asked, out))?;
        let pooled = made(|out| otr!(stream_from_pool, 0, asked, out))?;
        equal!(of(made_one)?, expected, "priority {asked} of a new stream");
        equal!(of(pooled)?, expected, "priority {asked} of a pool's stream");
    }
    let default = made(|out| otr!(stream_default, 0, out))?;
    let priority = of(default)?;
    check!(
        (high..=low).contains(&priority),
        "the default stream has a priority of the range: {priority}"
    );
    Ok(())
}

fn timed() -> Verdict<u64> {
    made(|out| otr!(event_create, 0, OTR_EVENT_TIMED, out))
}

fn timed_events(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (begin, middle, end) = (timed()?, timed()?, timed()?);
    let between = |from, to| tried::<f64>(|out| otr!(event_elapsed, from, to, out));
    refused(
        between(begin, end),
        Code::INVALID_ARGUMENT,
        "the time of events that were never recorded",
    )?;
    let (gate, address) = (Gate::new(), alloc(1 << 20, stream)?);
    otr!(event_record, begin, stream)?;
    otr!(stream_synchronize, stream)?;
    hold(stream, &gate)?;
    fill(stream, address, 1 << 20, &[1])?;
    otr!(event_record, middle, stream)?;
    refused(
        between(begin, middle),
        Code::NOT_READY,
        "the time of an event that has not passed",
    )?;
    std::thread::sleep(std::time::Duration::from_millis(2));
    gate.open();
    fill(stream, address, 1 << 20, &[2])?;
    otr!(event_record, end, stream)?;
    otr!(event_synchronize, end)?;
    let (first, second, all) = (
        between(begin, middle)?,
        between(middle, end)?,
        between(begin, end)?,
    );
    check!(first > 0.0 && second >= 0.0, "{first} ms and {second} ms");
    check!(
        near(first + second, all, 1e-3 * all.max(1.0)),
        "{first} ms and {second} ms are {all} ms"
    );
    equal!(
        between(end, begin)?,
        -all,
        "the time from the end to the begin"
    );
    let plain = event()?;
    otr!(event_record, plain, stream)?;
    otr!(event_synchronize, plain)?;
    refused(
        between(begin, plain),
        Code::INVALID_ARGUMENT,
        "the time of an event that has none",
    )?;
    Ok(())
}

fn timed_or_unsupported(context: &Context) -> Verdict {
    start(context)?;
    let declared = context.has(&context.open()?, Need::Timing);
    let mut event = 0x5a;
    let answer = otr!(event_create, 0, OTR_EVENT_TIMED, &mut event);
    if declared {
        answer?;
        return Ok(otr!(event_destroy, event)?);
    }
    refused(
        answer,
        Code::UNSUPPORTED,
        "a timed event without timestamps",
    )?;
    equal!(event, 0x5a, "H2: the output of a failed call");
    // Plain ones are events all the same, but have no time.
    let (plain, stream) = (super::event()?, stream()?);
    otr!(event_record, plain, stream)?;
    otr!(event_synchronize, plain)?;
    let mut time = -1.0;
    check!(
        otr!(event_elapsed, plain, plain, &mut time).is_err() && time == -1.0,
        "a plain event has no time"
    );
    Ok(())
}

fn generators(context: &Context) -> Verdict {
    start(context)?;
    let (one, two) = (
        made(|out| otr!(generator_create, 0, out))?,
        made(|out| otr!(generator_create, 0, out))?,
    );
    let state = |generator| {
        let (mut seed, mut offset) = (0, 0);
        otr!(generator_state, generator, &mut seed, &mut offset)?;
        Verdict::Ok((seed, offset))
    };
    let reserve = |generator, count| {
        let (mut seed, mut offset) = (0, 0);
        otr!(generator_reserve, generator, count, &mut seed, &mut offset)?;
        Verdict::Ok((seed, offset))
    };
    otr!(generator_seed, one, 99)?;
    let other = state(two)?;
    equal!(reserve(one, 10)?, (99, 0), "where the first ten start");
    equal!(reserve(one, 0)?, (99, 10), "where none start");
    equal!(reserve(one, 5)?, (99, 10), "where the next five start");
    equal!(state(one)?, (99, 15), "what comes next");
    otr!(generator_set_state, one, 7, 1 << 40)?;
    equal!(reserve(one, 1)?, (7, 1 << 40), "after its state was set");
    otr!(generator_seed, one, 8)?;
    equal!(state(one)?, (8, 0), "after it was seeded");
    equal!(state(two)?, other, "another generator");
    // Threads draw each number once.
    let starts = std::sync::Mutex::new(Vec::new());
    threads(4, |_| {
        for _ in 0..100 {
            let start = reserve(one, 3)?.1;
            starts.lock().expect("no panic").push(start);
        }
        Ok(())
    })?;
    let mut starts = starts.into_inner().expect("no panic");
    starts.sort_unstable();
    let expected: Vec<u64> = (0..400).map(|at| 3 * at).collect();
    equal!(starts, expected, "where the numbers of four threads start");

    let default = || made::<u64>(|out| otr!(generator_default, 0, out));
    let generator = default()?;
    equal!(default()?, generator, "the default generator, asked twice");
    let drawn = state(generator)?.1;
    reserve(generator, 2)?;
    equal!(state(default()?)?.1, drawn + 2, "what was drawn of it");
    for destroyed in [one, two] {
        otr!(generator_destroy, destroyed)?;
    }
    Ok(())
}

fn traces(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(4096, stream)?;
    refused(
        otr!(trace_end),
        Code::INVALID_ARGUMENT,
        "the end of no trace",
    )?;
    refused(
        otr!(trace_begin, c"/nowhere/at/all/trace.json".as_ptr()),
        Code::INVALID_ARGUMENT,
        "a trace that cannot be written",
    )?;
    let mut fallbacks = Vec::new();
    for round in 0..2 {
        let (file, other) = (Scratch::new("trace.json"), Scratch::new("other.json"));
        otr!(trace_begin, file.path()?.as_ptr())?;
        refused(
            otr!(trace_begin, other.path()?.as_ptr()),
            Code::BUSY,
            "a second trace at a time",
        )?;
        check!(other.text().is_err(), "H2: it has left a file");
        for _ in 0..20 * round {
            otr!(fallback_end, c"a fallback".as_ptr(), 1000, 0)?;
        }
        fill(stream, address, 4096, &[1])?;
        otr!(stream_synchronize, stream)?;
        otr!(trace_end)?;
        let written = file.text()?;
        let events: Vec<Value> = serde_json::from_str(&written)?;
        let fallback = |event: &&Value| {
            let operator = event["args"]["operator"].as_str();
            operator.is_some_and(|operator| operator.contains("a fallback"))
        };
        fallbacks.push(events.iter().filter(fallback).count());
        otr!(fallback_end, c"a fallback".as_ptr(), 1000, 0)?;
        fill(stream, address, 4096, &[2])?;
        otr!(stream_synchronize, stream)?;
        equal!(file.text()?, written, "the file after the trace has ended");
    }
    equal!(fallbacks, [0, 20], "fallbacks in each trace");
    refused(otr!(trace_end), Code::INVALID_ARGUMENT, "a second end")?;
    Ok(())
}

static LENT: AtomicU64 = AtomicU64::new(0);

/// Runs all of a range on the calling thread, and counts.
extern "C" fn lent(
    begin: i64,
    end: i64,
    grain: i64,
    body: otr_parallel_body_fn,
    context: *mut c_void,
) {
    LENT.fetch_add(1, Ordering::SeqCst);
    let Some(body) = body else { return };
    let grain = grain.max(1);
    let mut at = begin;
    while at < end {
        let next = (at + grain).min(end);
        // SAFETY: the library's function, with its context, for a part of the range.
        unsafe { body(context, at, next) };
        at = next;
    }
}

fn threads_of_kernels(context: &Context) -> Verdict {
    start(context)?;
    const COUNT: usize = 1 << 20;
    let stream = stream()?;
    let (x, y) = (alloc(4 << 20, stream)?, alloc(4 << 20, stream)?);
    let numbers: Vec<f32> = (0..COUNT).map(|at| at as f32).collect();
    upload(stream, x, &numbers)?;
    let expected: Vec<f32> = numbers.iter().map(|number| number * 3.0).collect();
    let run = || {
        LENT.store(0, Ordering::SeqCst);
        fill(stream, y, 4 << 20, &[0])?;
        add(stream, (y, x, x), COUNT as i64, 2)?;
        equal!(
            download::<f32>(stream, y, COUNT)?,
            expected,
            "a sum on any threads"
        );
        Verdict::Ok(LENT.load(Ordering::SeqCst))
    };
    for count in [1, 2, 3, 0] {
        otr!(set_threads, count)?;
        equal!(run()?, 0, "ranges that were given to nobody's threads");
    }
    // A driver may have the operator as its own, and then no host kernel runs.
    let own = context.has(&context.open()?, Need::Operators);
    otr!(set_parallel_for, Some(lent))?;
    otr!(set_threads, 1)?;
    equal!(run()?, 0, "ranges that were lent for one thread");
    otr!(set_threads, 4)?;
    check!(run()? > 0 || own, "a large range is lent");
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    otr!(set_threads, 0)?;
    check!(
        run()? > 0 || own || cores == 1,
        "a large range is lent on {cores} cores"
    );
    otr!(set_parallel_for, None)?;
    equal!(run()?, 0, "ranges after the threads were taken back");
    Ok(())
}
