//! The host side while the layer `fault` makes the driver fail: the failure is reported once, nothing
//! is half done, and later calls work.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::tests::host::bindings::*;
use outrigger_device::Code;

use super::{
    Refused, alloc, begin, download, end, event, fill, finished, held, instantiate, made, otr,
    refused, replay, start_under, stream, upload,
};
use crate::test::tests;
use crate::tests::kit::until;
use crate::verdict::{check, equal};
use crate::{Context, Verdict};

tests! { "fault.calls":
    /// A copy that the driver refuses moves nothing, and the stream goes on.
    refused_copy: H2 H19;
    /// A fill that the driver refuses writes nothing, and the stream goes on.
    refused_fill: H2 H19;
    /// An event whose record the driver refuses is as it was.
    refused_record: H2 H20;
    /// A wait that the driver refuses leaves the stream usable.
    refused_wait: H2 H20;
    /// A stream that the driver cannot make is an error; others are made and work.
    refused_stream: H2 H13;
    /// The part of a replay before a node that the driver refuses runs, and is waited for; the refusal is the failure of the stream.
    replay_refused_half_way: H2 H13 H18 H28, needs HostReach;
}

/// Some work of a stream, and its result.
fn healthy(stream: u64) -> Verdict {
    let address = alloc(4096, stream)?;
    fill(stream, address, 4096, &[0x5a])?;
    equal!(
        download::<u8>(stream, address, 4096)?,
        vec![0x5a; 4096],
        "what works after the fault"
    );
    Ok(otr!(memory_free, 0, address)?)
}

/// The one of these outcomes that is refused, with its place.
fn the_refused(outcomes: Vec<Result<(), Refused>>, code: Code) -> Verdict<usize> {
    let places: Vec<usize> = (0..outcomes.len())
        .filter(|&at| outcomes[at].is_err())
        .collect();
    equal!(places.len(), 1, "refused calls, by their places {places:?}");
    for outcome in outcomes {
        if outcome.is_err() {
            refused(outcome, code, "the call that was made to fail")?;
        }
    }
    Ok(places[0])
}

fn refused_copy(context: &Context) -> Verdict {
    start_under(context, "fault:copy@3=call:EXECUTION")?;
    let stream = stream()?;
    let address = alloc(6 * 64, stream)?;
    fill(stream, address, 6 * 64, &[9])?;
    let sources: Vec<[u8; 64]> = (0..6).map(|value| [value; 64]).collect();
    let copy = |at: usize| {
        let (to, from) = (address + 64 * at as u64, sources[at].as_ptr() as u64);
        otr!(
            copy,
            stream,
            to,
            from,
            64,
            outrigger_device::CopyKind::HostToDevice.raw()
        )
    };
    let failed = the_refused((0..6).map(copy).collect(), Code::EXECUTION)?;
    otr!(stream_synchronize, stream)?;
    for (at, source) in sources.iter().enumerate() {
        let expected = if at == failed { &[9; 64] } else { source };
        let found = download::<u8>(stream, address + 64 * at as u64, 64)?;
        equal!(found, expected, "copy {at}");
    }
    healthy(stream)
}

fn refused_fill(context: &Context) -> Verdict {
    start_under(context, "fault:fill@3=call:EXECUTION")?;
    let stream = stream()?;
    let address = alloc(6 * 64, stream)?;
    upload(stream, address, &[9u8; 6 * 64])?;
    let write = |at: u64| {
        let value = [at as u8];
        otr!(
            fill,
            stream,
            address + 64 * at,
            64,
            value.as_ptr().cast::<c_void>(),
            1
        )
    };
    let failed = the_refused((0..6).map(write).collect(), Code::EXECUTION)?;
    for at in 0..6 {
        let expected = if at == failed { 9 } else { at as u8 };
        let found = download::<u8>(stream, address + 64 * at as u64, 64)?;
        equal!(found, vec![expected; 64], "fill {at}");
    }
    healthy(stream)
}

unsafe extern "C" fn pass(_: *mut c_void, upstream: i32) -> i32 {
    upstream
}

fn refused_record(context: &Context) -> Verdict {
    start_under(context, "fault:event_record@2=call:OUT_OF_HOST_MEMORY")?;
    let (stream, point) = (stream()?, event()?);
    let record = |_| otr!(event_record, point, stream);
    the_refused((0..4).map(record).collect(), Code::OUT_OF_HOST_MEMORY)?;
    otr!(event_synchronize, point)?;
    healthy(stream)
}

fn refused_wait(context: &Context) -> Verdict {
    start_under(context, "fault:queue_wait_event@2=call:OUT_OF_HOST_MEMORY")?;
    let (first, second) = (stream()?, stream()?);
    let wait = |_| {
        let point = event().map_err(|_| ()).unwrap_or_default();
        otr!(event_record, point, first)?;
        otr!(stream_wait_event, second, point)
    };
    the_refused((0..4).map(wait).collect(), Code::OUT_OF_HOST_MEMORY)?;
    healthy(first)?;
    healthy(second)
}

fn refused_stream(context: &Context) -> Verdict {
    start_under(context, "fault:queue_create@3=call:OUT_OF_HOST_MEMORY")?;
    let mut streams = Vec::new();
    let mut failures = Vec::new();
    for _ in 0..6 {
        let mut made = 0;
        let outcome = otr!(stream_create, 0, 0, &mut made);
        // A stream may get its queue with its first work.
        let outcome = outcome.and_then(|()| otr!(host_call, made, Some(pass), null_mut()));
        streams.extend(outcome.is_ok().then_some(made));
        failures.push(outcome);
    }
    the_refused(failures, Code::OUT_OF_HOST_MEMORY)?;
    streams.into_iter().try_for_each(healthy)
}

/// A node that waits until it is let go, and sees whether it runs beside itself.
#[derive(Default)]
struct Held {
    open: AtomicBool,
    running: AtomicU64,
    most: AtomicU64,
    ran: AtomicU64,
    destroyed: AtomicU64,
}

unsafe extern "C" fn held_node(user: *mut c_void, _: i64, upstream: i32) -> i32 {
    // SAFETY: what is never freed.
    let held = unsafe { &*user.cast::<Held>() };
    let running = held.running.fetch_add(1, Ordering::SeqCst) + 1;
    held.most.fetch_max(running, Ordering::SeqCst);
    while !held.open.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    held.running.fetch_sub(1, Ordering::SeqCst);
    held.ran.fetch_add(1, Ordering::SeqCst);
    upstream
}

unsafe extern "C" fn given_back(user: *mut c_void) {
    // SAFETY: as above.
    let held = unsafe { &*user.cast::<Held>() };
    held.destroyed.fetch_add(1, Ordering::SeqCst);
}

fn replay_refused_half_way(context: &Context) -> Verdict {
    start_under(context, "fault:fill@1=call:OUT_OF_HOST_MEMORY")?;
    let (first, second) = (stream()?, stream()?);
    let held: &'static Held = Box::leak(Box::default());
    let writes = [alloc(4096, first)?];
    let node = otr_host_node_t {
        function: Some(held_node),
        destroy: Some(given_back),
        writes: writes.as_ptr(),
        write_count: 1,
        ..super::building::functions::host_node(std::ptr::from_ref(held).cast_mut().cast())
    };
    begin(first)?;
    otr!(host_node, first, &node)?;
    fill(first, writes[0], 4096, &[0])?;
    let graph = end(first)?;
    let exec = instantiate(graph, OTR_GRAPH_SUBMIT)?;
    // The driver gets the second node when the first has been called: that it refuses it is the failure of the work.
    replay(exec, first)?;
    // The next one waits for what of the first is running.
    replay(exec, second)?;
    otr!(graph_destroy, graph)?;
    otr!(graph_exec_destroy, exec)?;
    for stream in [first, second] {
        otr!(stream_flush, stream)?;
    }
    std::thread::sleep(Duration::from_millis(20));
    otr!(memory_empty_cache, 0)?;
    let early = held.destroyed.load(Ordering::SeqCst);
    held.open.store(true, Ordering::SeqCst);
    equal!(early, 0, "how often data of a running node was given back");
    for stream in [first, second] {
        refused(
            otr!(stream_synchronize, stream),
            Code::OUT_OF_HOST_MEMORY,
            "a stream behind a replay whose second node the driver refuses",
        )?;
    }
    until(|| {
        otr!(device_synchronize, 0)?;
        otr!(memory_empty_cache, 0)?;
        Ok(held.destroyed.load(Ordering::SeqCst) == 1)
    })?;
    equal!(held.ran.load(Ordering::SeqCst), 2, "runs of the node");
    equal!(held.most.load(Ordering::SeqCst), 1, "most at a time");
    healthy(first)
}

pub(in crate::tests) mod work {
    use super::*;

    tests! { "fault.work":
        /// A fill that fails when it runs is reported once, and the stream takes work again.
        failed_fill: H3 H19;
        /// A copy of which half arrives is reported.
        torn_copy: H3 H19;
        /// Work that begins late is finished when it is said to be.
        delayed_fill: H18;
        /// A device that is lost stays lost, and can be given back.
        lost_device: H13 H19;
        /// A failure goes with an event to the stream that waits for it.
        failed_work_behind_an_event: H19 H20;
    }

    fn failed_fill(context: &Context) -> Verdict {
        start_under(context, "fault:fill@2=work:EXECUTION")?;
        let stream = stream()?;
        let address = alloc(64, stream)?;
        fill(stream, address, 64, &[1])?;
        fill(stream, address, 64, &[2])?;
        fill(stream, address, 64, &[3])?;
        let outcome = otr!(stream_synchronize, stream);
        refused(outcome, Code::EXECUTION, "the stream of the fill")?;
        otr!(stream_synchronize, stream)?;
        equal!(
            download::<u8>(stream, address, 64)?,
            [1; 64],
            "what was before"
        );
        healthy(stream)
    }

    fn torn_copy(context: &Context) -> Verdict {
        start_under(context, "fault:copy@1=torn:EXECUTION")?;
        let stream = stream()?;
        let address = alloc(4096, stream)?;
        let outcome = upload(stream, address, &[7u8; 4096]);
        check!(outcome.is_err(), "a torn copy was told as a whole one");
        healthy(stream)
    }

    fn delayed_fill(context: &Context) -> Verdict {
        start_under(context, "fault:fill@1=delay:200")?;
        let stream = stream()?;
        let address = alloc(4096, stream)?;
        fill(stream, address, 4096, &[8])?;
        check!(
            !finished(stream)?,
            "work that has not begun counts as finished"
        );
        equal!(
            download::<u8>(stream, address, 4096)?,
            vec![8; 4096],
            "the late fill"
        );
        healthy(stream)
    }

    fn lost_device(context: &Context) -> Verdict {
        start_under(context, "fault:fill@2=lost")?;
        let stream = stream()?;
        let address = alloc(4096, stream)?;
        fill(stream, address, 4096, &[1])?;
        for _ in 0..3 {
            let value = [2u8];
            let outcome = otr!(
                fill,
                stream,
                address,
                4096,
                value.as_ptr().cast::<c_void>(),
                1
            );
            refused(outcome, Code::DEVICE_LOST, "a fill on a lost device")?;
        }
        otr!(memory_free, 0, address)?;
        Ok(otr!(stream_destroy, stream)?)
    }

    fn failed_work_behind_an_event(context: &Context) -> Verdict {
        start_under(context, "fault:fill@1=work:EXECUTION")?;
        let (first, second, point) = (stream()?, stream()?, event()?);
        let address = alloc(64, first)?;
        fill(first, address, 64, &[1])?;
        otr!(event_record, point, first)?;
        otr!(stream_wait_event, second, point)?;
        for (stream, what) in [(second, "the stream that waits"), (first, "the stream")] {
            let outcome = otr!(stream_synchronize, stream);
            refused(outcome, Code::EXECUTION, what)?;
            healthy(stream)?;
        }
        Ok(())
    }
}

pub(in crate::tests) mod memory {
    use super::*;

    tests! { "fault.memory":
        /// A device that has no more is out of memory; what is there stays, and what is freed can be had again.
        exhausted: H2 H24;
        /// While calls fail by chance, each is refused or right.
        refused_or_right: H2 H24, limit 60;
    }

    const MIB: u64 = 1 << 20;

    fn exhausted(context: &Context) -> Verdict {
        start_under(context, "fault:total=32M")?;
        let stream = stream()?;
        for _ in 0..3 {
            let mut held = Vec::new();
            let outcome = loop {
                let mut address = 0;
                let outcome = otr!(memory_alloc, 0, 2 * MIB, stream, &mut address);
                if outcome.is_err() || held.len() > 32 {
                    break outcome;
                }
                fill(stream, address, 2 * MIB, &[held.len() as u8])?;
                held.push(address);
            };
            refused(outcome, Code::OUT_OF_MEMORY, "more than the device has")?;
            check!(
                held.len() > 4,
                "only {} pieces of 2 MiB in 32 MiB",
                held.len()
            );
            for (at, &address) in held.iter().enumerate() {
                let found = download::<u8>(stream, address + 2 * MIB - 16, 16)?;
                equal!(found, [at as u8; 16], "piece {at}");
                otr!(memory_free, 0, address)?;
            }
        }
        let (held, mut counted, mut limit) = (held()?, 0, 0);
        otr!(memory_process_info, &mut counted, &mut limit)?;
        equal!(
            counted,
            held,
            "bytes that the process holds after refused requests"
        );
        healthy(stream)
    }

    fn refused_or_right(context: &Context) -> Verdict {
        let mut rng = context.rng();
        let seed = rng.u32(..);
        start_under(
            context,
            &format!(
                "fault:copy%5=call:EXECUTION&fill%5=call:EXECUTION&memory_alloc%20=call:OUT_OF_MEMORY\
                 &virtual_create%20=call:OUT_OF_MEMORY&virtual_map%20=call:OUT_OF_MEMORY\
                 &event_record%5=call:OUT_OF_HOST_MEMORY&seed={seed}"
            ),
        )?;
        let stream = stream()?;
        let mut held: Vec<(u64, u64, u8)> = Vec::new();
        let (mut right, mut failed) = (0, 0);
        for _ in 0..600 {
            let value = rng.u8(..);
            if held.len() < 20 && rng.bool() {
                let size = rng.u64(1..4 * MIB);
                let Ok(address) = made(|out| otr!(memory_alloc, 0, size, stream, out)) else {
                    failed += 1;
                    continue;
                };
                match fill(stream, address, size, &[value]) {
                    Ok(()) => held.push((address, size, value)),
                    Err(_) => {
                        failed += 1;
                        otr!(memory_free, 0, address)?;
                    }
                }
            } else if !held.is_empty() {
                let (address, size, value) = held[rng.usize(..held.len())];
                match download::<u8>(stream, address + size - 1, 1) {
                    Ok(found) => {
                        equal!(found, [value], "the last of {size} bytes");
                        right += 1;
                    }
                    Err(_) => failed += 1,
                }
                if rng.bool() {
                    held.retain(|&(other, ..)| other != address);
                    otr!(memory_free, 0, address)?;
                }
            }
        }
        check!(
            right > 0 && failed > 0,
            "{right} were right, {failed} failed"
        );
        Ok(())
    }
}
