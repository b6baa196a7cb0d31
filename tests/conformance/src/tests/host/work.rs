//! H13 to H24: order, failures, events, memory and threads of the host side.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::tests::host::bindings::OTR_CAPTURE_RELAXED;
use outrigger_device::{Code, CopyKind};

use super::{alloc, download, event, fill, finished, made, otr, refused, start, stream, upload};
use crate::test::tests;
use crate::tests::kit::{pattern, threads, until};
use crate::verdict::{check, equal};
use crate::{Context, Gate, Verdict};

tests! { "host-abi.work":
    /// Work of a stream takes effect in its order.
    order_of_a_stream: H18;
    /// Submitting does not wait, and streams are independent.
    streams_are_independent: H18;
    /// Events order streams.
    events_order_streams: H18 H20;
    /// An event that was never recorded counts as passed; recording again moves it.
    events_move: H20;
    /// A failure skips later work but host functions, is reported and cleared.
    failures: H3 H19;
    /// A failure goes with an event to other streams.
    failures_go_with_events: H19 H20;
    /// Destroying a stream and an event does not wait; the work still runs.
    destroying_does_not_wait: H13;
    /// Host functions are called once each, in order.
    host_functions: H16 H18;
    /// Each thread has its current device and streams, and starts on the default.
    current_is_per_thread: H15;
    /// Threads share streams and events.
    threads_share_streams: H14 H18;
    /// After a fork the child's calls fail with OTR_ERR_FORKED, and the parent goes on.
    a_fork_is_refused: H17;
}

pub(in crate::tests) mod memory {
    use super::*;

    tests! { "host-abi.memory":
        /// Memory can be offset; 0 bytes are address 0, and freeing 0 does nothing.
        addresses: H21;
        /// A range that is not within one live allocation is refused: by copies, fills and frees.
        ranges_are_checked: H2 H22;
        /// Memory is freed while work uses it, and reused in the order of its stream.
        freed_while_in_use: H23;
        /// Memory that another stream was said to use is not reused before it is done.
        recorded_streams_hold_memory: H23;
        /// A request that cannot be met is out of memory, and what is there stays usable.
        out_of_memory: H2 H24;
        /// Cached memory is given back before a request is refused.
        caches_are_given_back: H24;
        /// Bytes stay what they were through thousands of allocations on several streams.
        contents_stay: H18 H23;
    }

    fn addresses(context: &Context) -> Verdict {
        start(context)?;
        let stream = stream()?;
        let address = alloc(1000, stream)?;
        check!(address != 0, "an allocation has an address");
        for at in [0u64, 1, 63, 999] {
            upload(stream, address + at, &[at as u8])?;
            equal!(
                download::<u8>(stream, address + at, 1)?,
                [at as u8],
                "the byte at {at}"
            );
        }
        equal!(alloc(0, stream)?, 0, "the address of 0 bytes");
        otr!(memory_free, 0, 0)?;
        otr!(memory_free, 0, address)?;
        Ok(())
    }

    fn ranges_are_checked(context: &Context) -> Verdict {
        start(context)?;
        let stream = stream()?;
        let address = alloc(4096, stream)?;
        fill(stream, address, 4096, &[3])?;
        let bytes = [1u8; 64];
        let host = bytes.as_ptr() as u64;
        let kind = CopyKind::HostToDevice.raw();
        let pattern = bytes.as_ptr().cast();
        let all = [
            (
                "a fill beyond the end",
                otr!(fill, stream, address + 4096 - 32, 64, pattern, 1),
            ),
            (
                "a fill in front of it",
                otr!(fill, stream, address - 64, 128, pattern, 1),
            ),
            ("a fill of address 0", otr!(fill, stream, 0, 64, pattern, 1)),
            (
                "a fill of host memory",
                otr!(fill, stream, host, 64, pattern, 1),
            ),
            (
                "a copy beyond the end",
                otr!(copy, stream, address + 4095, host, 64, kind),
            ),
            ("a copy to nowhere", otr!(copy, stream, 64, host, 64, kind)),
            (
                "a copy of all numbers",
                otr!(copy, stream, address, host, u64::MAX, kind),
            ),
            ("a free of an offset", otr!(memory_free, 0, address + 64)),
            ("a free of host memory", otr!(memory_free, 0, host)),
            ("a free of all ones", otr!(memory_free, 0, u64::MAX)),
        ];
        for (what, answer) in all {
            refused(answer, Code::INVALID_ARGUMENT, what)?;
        }
        equal!(
            download::<u8>(stream, address, 4096)?,
            vec![3; 4096],
            "the memory"
        );
        otr!(memory_free, 0, address)?;
        for (what, answer, says) in [
            (
                "a second free",
                otr!(memory_free, 0, address),
                "already free",
            ),
            (
                "a fill of freed memory",
                otr!(fill, stream, address, 64, pattern, 1),
                "freed",
            ),
        ] {
            let told = refused(answer, Code::INVALID_ARGUMENT, what)?;
            check!(told.text.contains(says), "H3: {says} in {}", told.text);
        }
        Ok(())
    }

    fn freed_while_in_use(context: &Context) -> Verdict {
        start(context)?;
        let (stream, gate) = (stream()?, Gate::new());
        let kept = alloc(1 << 16, stream)?;
        hold(stream, &gate)?;
        for round in 0..50u8 {
            let address = alloc(1 << 16, stream)?;
            fill(stream, address, 1 << 16, &[round])?;
            let kind = CopyKind::DeviceToDevice.raw();
            otr!(
                copy,
                stream,
                kept + u64::from(round) * 64,
                address,
                64,
                kind
            )?;
            otr!(memory_free, 0, address)?;
        }
        gate.open();
        let expected: Vec<u8> = (0..50u8).flat_map(|round| [round; 64]).collect();
        equal!(
            download::<u8>(stream, kept, expected.len())?,
            expected,
            "what was copied from memory that was freed in between"
        );
        Ok(())
    }

    fn recorded_streams_hold_memory(context: &Context) -> Verdict {
        start(context)?;
        let (first, second) = (stream()?, stream()?);
        let kept = alloc(1 << 16, second)?;
        for round in 1..10u8 {
            let (address, gate) = (alloc(1 << 16, first)?, Gate::new());
            fill(first, address, 1 << 16, &[round])?;
            otr!(stream_synchronize, first)?;
            hold(second, &gate)?;
            let kind = CopyKind::DeviceToDevice.raw();
            otr!(copy, second, kept, address, 1 << 16, kind)?;
            otr!(memory_record_stream, 0, address, second)?;
            otr!(memory_free, 0, address)?;
            // Were the same memory given out now, this is what would be copied.
            let another = alloc(1 << 16, first)?;
            fill(first, another, 1 << 16, &[0xee])?;
            otr!(stream_synchronize, first)?;
            gate.open();
            equal!(
                download::<u8>(second, kept, 1 << 16)?,
                vec![round; 1 << 16],
                "what the second stream copied"
            );
            otr!(memory_free, 0, another)?;
        }
        Ok(())
    }

    fn out_of_memory(context: &Context) -> Verdict {
        start(context)?;
        let stream = stream()?;
        let address = alloc(4096, stream)?;
        fill(stream, address, 4096, &[5])?;
        for size in [1 << 50, u64::MAX / 2, u64::MAX] {
            let told = refused(
                otr!(memory_alloc, 0, size, stream, &mut 0),
                Code::OUT_OF_MEMORY,
                &format!("{size} bytes"),
            )?;
            check!(
                size > 1 << 50
                    || ["1.00 PiB", "device 0"]
                        .iter()
                        .all(|part| told.text.contains(part)),
                "H3: the text says how much of which device: {}",
                told.text
            );
        }
        equal!(
            download::<u8>(stream, address, 4096)?,
            vec![5; 4096],
            "what is there"
        );
        let another = alloc(4096, stream)?;
        fill(stream, another, 4096, &[6])?;
        equal!(
            download::<u8>(stream, another, 4096)?,
            vec![6; 4096],
            "new memory"
        );
        Ok(())
    }

    fn caches_are_given_back(context: &Context) -> Verdict {
        start(context)?;
        let stream = stream()?;
        let (mut free, mut total) = (0u64, 0u64);
        if otr!(memory_info, 0, &mut free, &mut total).is_err() {
            return Ok(());
        }
        // All memory is taken in small pieces, which stay in the cache; then one piece of half, or the largest that
        // there is.
        let pieces: Vec<u64> = (0..8)
            .map(|_| alloc(free / 16, stream))
            .collect::<Verdict<_>>()?;
        for address in pieces {
            otr!(memory_free, 0, address)?;
        }
        let info: crate::tests::host::bindings::otr_device_info_t =
            super::super::filled(|out| otr!(device_info, 0, out))?;
        let size = (free / 2).min(info.largest_allocation);
        let large = alloc(size, stream)?;
        fill(stream, large + size - 64, 64, &[1])?;
        Ok(otr!(stream_synchronize, stream)?)
    }

    fn contents_stay(context: &Context) -> Verdict {
        start(context)?;
        let streams: Vec<u64> = (0..4).map(|_| stream()).collect::<Verdict<_>>()?;
        let (mut rng, mut live) = (context.rng(), Vec::new());
        for round in 0..600u64 {
            if live.len() > 30 || (!live.is_empty() && rng.u8(..) < 90) {
                let (address, size, seed, stream): (u64, usize, u64, u64) =
                    live.swap_remove(rng.usize(..live.len()));
                equal!(
                    download::<u8>(stream, address, size)?,
                    pattern(size, seed),
                    "{size} bytes, before they are freed"
                );
                otr!(memory_free, 0, address)?;
            } else {
                let (size, stream) = (rng.usize(1..30_000), streams[rng.usize(..4)]);
                let address = alloc(size as u64, stream)?;
                upload(stream, address, &pattern(size, round))?;
                live.push((address, size, round, stream));
            }
        }
        Ok(())
    }
}

/// Holds a stream back until the gate opens.
pub(super) fn hold(stream: u64, gate: &Gate) -> Verdict {
    unsafe extern "C" fn wait(user: *mut c_void, upstream: i32) -> i32 {
        // SAFETY: the waiter below, which is called once.
        let waiter = unsafe { Box::from_raw(user.cast::<Box<dyn FnOnce() + Send>>()) };
        waiter();
        upstream
    }
    let waiter: Box<dyn FnOnce() + Send> = Box::new(gate.waiter());
    let user = Box::into_raw(Box::new(waiter)).cast();
    Ok(otr!(host_call, stream, Some(wait), user)?)
}

/// Counts its calls, and 1000 for each with a failure.
unsafe extern "C" fn tick(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: a counter that is never freed.
    let count = unsafe { &*user.cast::<AtomicU64>() };
    count.fetch_add(if upstream == 0 { 1 } else { 1000 }, Ordering::SeqCst);
    upstream
}

unsafe extern "C" fn fails(_: *mut c_void, _: i32) -> i32 {
    Code::EXECUTION.0
}

fn count(stream: u64, counter: &'static AtomicU64) -> Verdict {
    let user = std::ptr::from_ref(counter).cast_mut().cast();
    Ok(otr!(host_call, stream, Some(tick), user)?)
}

fn counter() -> &'static AtomicU64 {
    Box::leak(Box::default())
}

fn order_of_a_stream(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(8192, stream)?;
    for round in 1..60u8 {
        fill(stream, address, 4096, &[round])?;
        otr!(
            copy,
            stream,
            address + 4096,
            address,
            4096,
            CopyKind::DeviceToDevice.raw()
        )?;
        fill(stream, address, 4096, &[0])?;
        let expected = [vec![0; 4096], vec![round; 4096]].concat();
        equal!(
            download::<u8>(stream, address, 8192)?,
            expected,
            "round {round}"
        );
    }
    Ok(())
}

fn streams_are_independent(context: &Context) -> Verdict {
    start(context)?;
    let (held, free, gate) = (stream()?, stream()?, Gate::new());
    hold(held, &gate)?;
    let address = alloc(4096, free)?;
    for round in 0..50u8 {
        fill(free, address, 4096, &[round])?;
        equal!(
            download::<u8>(free, address, 64)?,
            [round; 64],
            "work of the free stream"
        );
    }
    check!(!finished(held)?, "the held stream has not finished");
    gate.open();
    Ok(otr!(stream_synchronize, held)?)
}

fn events_order_streams(context: &Context) -> Verdict {
    start(context)?;
    let (first, second, point, gate) = (stream()?, stream()?, event()?, Gate::new());
    let address = alloc(4096, first)?;
    hold(first, &gate)?;
    fill(first, address, 4096, &[1])?;
    otr!(event_record, point, first)?;
    otr!(stream_wait_event, second, point)?;
    fill(second, address, 2048, &[2])?;
    check!(!finished(second)?, "the waiting stream has not finished");
    gate.open();
    let expected = [vec![2; 2048], vec![1; 2048]].concat();
    equal!(
        download::<u8>(second, address, 4096)?,
        expected,
        "the second stream's work on top of the first's"
    );
    Ok(())
}

fn events_move(context: &Context) -> Verdict {
    start(context)?;
    let (stream, point, gate) = (stream()?, event()?, Gate::new());
    let passed = |id| Verdict::Ok(made(|out: *mut u32| otr!(event_query, id, out))? == 1);
    check!(
        passed(point)?,
        "an event that was never recorded has passed"
    );
    otr!(event_synchronize, point)?;
    otr!(event_record, point, stream)?;
    otr!(event_synchronize, point)?;
    hold(stream, &gate)?;
    check!(passed(point)?, "it stands for the old point");
    otr!(event_record, point, stream)?;
    check!(!passed(point)?, "it has moved to the new one");
    gate.open();
    otr!(event_synchronize, point)?;
    Ok(())
}

fn failures(context: &Context) -> Verdict {
    start(context)?;
    let (stream, calls) = (stream()?, counter());
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[1])?;
    for _ in 0..5 {
        otr!(host_call, stream, Some(fails), null_mut())?;
        fill(stream, address, 64, &[2])?;
        count(stream, calls)?;
        let failure = refused(
            otr!(stream_synchronize, stream),
            Code::EXECUTION,
            "the stream",
        )?;
        equal!(failure.stream, stream, "H3: the stream of the status");
        otr!(stream_synchronize, stream)?;
        equal!(
            download::<u8>(stream, address, 64)?,
            [1; 64],
            "the skipped fill"
        );
    }
    equal!(
        calls.load(Ordering::SeqCst),
        5000,
        "host functions that were told of the failure"
    );
    Ok(())
}

fn failures_go_with_events(context: &Context) -> Verdict {
    start(context)?;
    let (first, second, point) = (stream()?, stream()?, event()?);
    otr!(host_call, first, Some(fails), null_mut())?;
    otr!(event_record, point, first)?;
    otr!(stream_wait_event, second, point)?;
    refused(otr!(event_synchronize, point), Code::EXECUTION, "the event")?;
    refused(
        otr!(stream_synchronize, second),
        Code::EXECUTION,
        "the stream that waits",
    )?;
    refused(
        otr!(stream_synchronize, first),
        Code::EXECUTION,
        "the stream that failed",
    )?;
    refused(
        otr!(event_synchronize, point),
        Code::EXECUTION,
        "the event, later",
    )?;
    otr!(stream_synchronize, second)?;
    otr!(event_record, point, first)?;
    Ok(otr!(event_synchronize, point)?)
}

fn destroying_does_not_wait(context: &Context) -> Verdict {
    start(context)?;
    let (gate, calls) = (Gate::new(), counter());
    for _ in 0..10 {
        let (stream, point) = (stream()?, event()?);
        hold(stream, &gate)?;
        count(stream, calls)?;
        otr!(event_record, point, stream)?;
        otr!(stream_destroy, stream)?;
        otr!(event_destroy, point)?;
    }
    equal!(
        calls.load(Ordering::SeqCst),
        0,
        "calls behind a closed gate"
    );
    gate.open();
    until(|| Ok(calls.load(Ordering::SeqCst) == 10))
}

fn host_functions(context: &Context) -> Verdict {
    start(context)?;
    let (stream, calls) = (stream()?, counter());
    for round in 1..=2000 {
        count(stream, calls)?;
        if round % 500 == 0 {
            otr!(stream_synchronize, stream)?;
            equal!(calls.load(Ordering::SeqCst), round, "calls");
        }
    }
    Ok(())
}

fn current_is_per_thread(context: &Context) -> Verdict {
    start(context)?;
    let devices = made(|out| otr!(device_count, out))?;
    let mine = stream()?;
    otr!(stream_set_current, mine)?;
    otr!(device_set_current, devices - 1)?;
    let default = made(|out| otr!(stream_default, 0, out))?;
    threads(3, |_| {
        equal!(
            made(|out| otr!(device_current, out))?,
            0,
            "the device on which a thread starts"
        );
        equal!(
            made(|out| otr!(stream_current, 0, out))?,
            default,
            "the stream on which it starts"
        );
        let own = stream()?;
        otr!(stream_set_current, own)?;
        equal!(made(|out| otr!(stream_current, 0, out))?, own, "its own");
        Ok(())
    })?;
    equal!(
        made(|out| otr!(device_current, out))?,
        devices - 1,
        "this thread's device"
    );
    equal!(
        made(|out| otr!(stream_current, 0, out))?,
        mine,
        "this thread's stream"
    );
    Ok(())
}

fn threads_share_streams(context: &Context) -> Verdict {
    start(context)?;
    let (stream, calls) = (stream()?, counter());
    threads(6, |_| {
        for round in 0..200 {
            count(stream, calls)?;
            if round % 40 == 0 {
                otr!(stream_synchronize, stream)?;
                let point = event()?;
                otr!(event_record, point, stream)?;
                otr!(event_synchronize, point)?;
                otr!(event_destroy, point)?;
            }
        }
        Ok(())
    })?;
    otr!(stream_synchronize, stream)?;
    equal!(calls.load(Ordering::SeqCst), 1200, "calls of six threads");
    Ok(())
}

fn a_fork_is_refused(context: &Context) -> Verdict {
    start(context)?;
    let (stream, point) = (stream()?, event()?);
    let generator = made(|out| otr!(generator_create, 0, out))?;
    let address = alloc(64, stream)?;
    otr!(event_record, point, stream)?;
    otr!(stream_synchronize, stream)?;
    // SAFETY: the child calls the library, which refuses, and then ends without any clean-up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (mut word, mut long, mut text, one) = (0, 0, null_mut(), [1u8]);
        let pattern = one.as_ptr().cast::<c_void>();
        // Calls with a device, with an id, with neither, and those that destroy.
        let answers = [
            otr!(runtime_init),
            otr!(device_count, &mut word),
            otr!(device_current, &mut word),
            otr!(stream_device, stream, &mut word),
            otr!(stream_query, stream, &mut word),
            otr!(stream_synchronize, stream),
            otr!(stream_set_current, stream),
            otr!(stream_wait_event, stream, point),
            otr!(event_query, point, &mut word),
            otr!(event_record, point, stream),
            otr!(fill, stream, address, 0, pattern, 1),
            otr!(host_call, stream, Some(fails), null_mut()),
            otr!(memory_alloc, 0, 0, stream, &mut long),
            otr!(memory_free, 0, 0),
            otr!(memory_free, 0, address),
            otr!(memory_label_push, c"child".as_ptr()),
            otr!(memory_set_process_limit, 1 << 30),
            otr!(host_is_pinned, pattern, &mut word),
            otr!(host_free, null_mut()),
            otr!(generator_seed, generator, 1),
            otr!(generator_destroy, generator),
            otr!(capture_begin, stream, OTR_CAPTURE_RELAXED, 0),
            otr!(fallback_report, &mut text),
            otr!(event_destroy, point),
            otr!(stream_destroy, stream),
        ];
        let wrong = answers
            .iter()
            .position(|answer| !matches!(answer, Err(refused) if refused.code == Code::FORKED));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(wrong.map_or(0, |at| at as i32 + 1)) };
    }
    check!(child > 0, "the process could be forked");
    let mut status = 0;
    // SAFETY: the child's number, and a place for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    equal!(
        (libc::WIFEXITED(status), libc::WEXITSTATUS(status)),
        (true, 0),
        "how the child ended: 0 where all its calls were refused with OTR_ERR_FORKED, else the number of the first"
    );
    fill(stream, address, 64, &[1])?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [1; 64],
        "the parent's work goes on"
    );
    otr!(memory_free, 0, address)?;
    otr!(generator_destroy, generator)?;
    otr!(event_destroy, point)?;
    Ok(otr!(stream_destroy, stream)?)
}
