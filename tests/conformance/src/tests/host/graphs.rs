//! H25 to H28: captures, graphs and replays over the driver under test.

use std::ffi::{CStr, c_void};
use std::ptr::null;

use crate::tests::host::bindings::*;
use outrigger_device::Code;

use super::work::hold;
use super::{
    alloc, begin, capture_info, copy, download, end, event, executable, fill, finished,
    instantiate, made, otr, refused, replay, start, stream, ways,
};
use crate::test::tests;
use crate::tests::kit::threads;
use crate::verdict::{check, equal};
use crate::{Context, Gate, Verdict};

tests! { "host-abi.graph":
    /// Work that is captured does not run before it is replayed.
    a_capture_runs_nothing: H25;
    /// A stream that waits for an event of the capture joins it.
    a_stream_joins: H20 H25;
    /// A call that would wait is refused in a capture, which then fails; the stream is usable.
    what_would_wait_is_refused: H26;
    /// Another thread's work cannot break a capture.
    other_threads_cannot_break_it: H14 H26;
    /// Threads capture, replay and destroy while others work and wait in every way.
    captures_beside_other_work: H13 H14 H26, limit 60;
    /// An event of a capture is waited for within it alone, and is of no use afterwards until it is recorded again.
    events_of_a_capture: H2 H20 H26;
    /// An executable graph lives on when its graph is destroyed, and keeps its memory alive.
    an_executable_graph_keeps_what_it_needs: H13 H27;
    /// Bindings are for later replays.
    bindings_are_for_later_replays: H28;
    /// An update is for later replays.
    updates_are_for_later_replays: H28;
    /// Replays on several streams run one after the other.
    replays_run_one_after_the_other: H18 H28, needs HostReach;
    /// A replay waits for the one before it, also for one on a stream that was destroyed.
    replays_follow_a_stream_that_is_gone: H13 H28;
    /// A kernel that fails in a replay fails the stream, which names it, and the next replay is sound.
    a_failure_in_a_replay: H3 H19, needs HostReach;
}

unsafe extern "C" fn nothing(_args: *const c_void, _size: u32, _bias: i64) -> i32 {
    0
}

/// A kernel that does nothing.
pub(super) fn kernel() -> otr_host_kernel_call_t {
    otr_host_kernel_call_t {
        struct_size: size_of::<otr_host_kernel_call_t>(),
        next: null(),
        function: Some(nothing),
        args: null(),
        args_size: 0,
        cost_ns: 0,
        label: null(),
        address_offsets: null(),
        address_count: 0,
        reserved: 0,
        address_ranges: std::ptr::null(),
    }
}

/// A graph that fills 64 bytes once or more often.
fn filling(stream: u64, address: u64, value: u8, nodes: usize) -> Verdict<u64> {
    begin(stream)?;
    for _ in 0..nodes {
        fill(stream, address, 64, &[value])?;
    }
    end(stream)
}

fn a_capture_runs_nothing(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[1])?;
    otr!(stream_synchronize, stream)?;
    let exec = executable(filling(stream, address, 2, 1)?)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [1; 64],
        "memory before the replay"
    );
    otr!(graph_replay, exec, stream)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [2; 64],
        "memory after the replay"
    );
    Ok(())
}

fn a_stream_joins(context: &Context) -> Verdict {
    start(context)?;
    let (first, second, forked, joined) = (stream()?, stream()?, event()?, event()?);
    let address = alloc(128, first)?;
    fill(first, address, 128, &[0])?;
    otr!(stream_synchronize, first)?;
    begin(first)?;
    fill(first, address, 64, &[3])?;
    otr!(event_record, forked, first)?;
    otr!(stream_wait_event, second, forked)?;
    fill(second, address + 64, 64, &[4])?;
    otr!(event_record, joined, second)?;
    otr!(stream_wait_event, first, joined)?;
    let exec = executable(end(first)?)?;
    equal!(
        download::<u8>(second, address, 128)?,
        [0; 128],
        "memory before the replay"
    );
    otr!(graph_replay, exec, first)?;
    equal!(
        download::<u8>(first, address, 128)?,
        [[3; 64], [4; 64]].concat(),
        "memory after the replay"
    );
    Ok(())
}

fn what_would_wait_is_refused(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    begin(stream)?;
    fill(stream, address, 64, &[9])?;
    refused(
        otr!(stream_synchronize, stream),
        Code::CAPTURE,
        "to wait for a stream that captures",
    )?;
    refused(
        otr!(capture_end, stream, &mut 0),
        Code::CAPTURE,
        "the end of a capture in which a call failed",
    )?;
    fill(stream, address, 64, &[1])?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [1; 64],
        "work of the stream afterwards"
    );
    refused(
        otr!(capture_end, stream, &mut 0),
        Code::INVALID_ARGUMENT,
        "the end of no capture",
    )?;
    Ok(())
}

fn other_threads_cannot_break_it(context: &Context) -> Verdict {
    start(context)?;
    let capturing = stream()?;
    let address = alloc(64, capturing)?;
    begin(capturing)?;
    fill(capturing, address, 64, &[7])?;
    crate::tests::kit::threads(2, |_| {
        let own = stream()?;
        let memory = alloc(4096, own)?;
        fill(own, memory, 4096, &[1])?;
        equal!(
            download::<u8>(own, memory, 8)?,
            [1; 8],
            "work of another thread"
        );
        otr!(memory_free, 0, memory)?;
        Ok(otr!(stream_synchronize, own)?)
    })?;
    let exec = executable(end(capturing)?)?;
    otr!(graph_replay, exec, capturing)?;
    equal!(
        download::<u8>(capturing, address, 64)?,
        [7; 64],
        "what was captured"
    );
    Ok(())
}

fn an_executable_graph_keeps_what_it_needs(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (inner, outer) = (alloc(64, stream)?, alloc(64, stream)?);
    begin(stream)?;
    fill(stream, inner, 64, &[5])?;
    let kind = outrigger_device::CopyKind::DeviceToDevice.raw();
    otr!(copy, stream, outer, inner, 64, kind)?;
    let graph = end(stream)?;
    let exec = executable(graph)?;
    otr!(graph_destroy, graph)?;
    otr!(memory_free, 0, inner)?;
    for _ in 0..5 {
        let other = alloc(64, stream)?;
        fill(stream, other, 64, &[0xee])?;
        fill(stream, outer, 64, &[0])?;
        otr!(graph_replay, exec, stream)?;
        equal!(
            download::<u8>(stream, outer, 64)?,
            [5; 64],
            "what a replay copies from memory that the host freed"
        );
        equal!(
            download::<u8>(stream, other, 64)?,
            [0xee; 64],
            "memory of others"
        );
    }
    otr!(graph_exec_destroy, exec)?;
    Ok(())
}

/// A round of a thread that captures: two streams, memory of the graph, and two replays.
fn capture_round(streams: [u64; 2], points: [u64; 2], result: u64, value: u8) -> Verdict {
    let [first, second] = streams;
    begin(first)?;
    let inner = alloc(4096, first)?;
    fill(first, inner, 4096, &[value])?;
    otr!(event_record, points[0], first)?;
    otr!(stream_wait_event, second, points[0])?;
    copy(second, result, inner + 4032)?;
    otr!(event_record, points[1], second)?;
    otr!(stream_wait_event, first, points[1])?;
    otr!(memory_free, 0, inner)?;
    let graph = end(first)?;
    let exec = executable(graph)?;
    otr!(graph_destroy, graph)?;
    for stream in streams {
        replay(exec, stream)?;
    }
    otr!(graph_exec_destroy, exec)?;
    equal!(
        download::<u8>(second, result, 64)?,
        [value; 64],
        "the result of a replay"
    );
    Ok(())
}

/// A round of a thread that knows nothing of captures.
fn plain_round(stream: u64, point: u64, round: u8) -> Verdict {
    let size = 64 << (round % 5);
    let address = alloc(size, stream)?;
    fill(stream, address, size, &[round])?;
    otr!(event_record, point, stream)?;
    match round % 4 {
        0 => otr!(event_synchronize, point)?,
        1 => otr!(device_synchronize, 0)?,
        2 => otr!(memory_empty_cache, 0)?,
        _ => otr!(stream_synchronize, stream)?,
    }
    equal!(
        download::<u8>(stream, address, size as usize)?,
        vec![round; size as usize],
        "work of another thread"
    );
    Ok(otr!(memory_free, 0, address)?)
}

fn captures_beside_other_work(context: &Context) -> Verdict {
    start(context)?;
    threads(5, |thread| {
        let (streams, points) = ([stream()?, stream()?], [event()?, event()?]);
        let result = alloc(64, streams[0])?;
        (0..60).try_for_each(|round| match thread {
            0 | 1 => capture_round(streams, points, result, round),
            _ => plain_round(streams[0], points[0], round),
        })
    })
}

fn events_of_a_capture(context: &Context) -> Verdict {
    start(context)?;
    let (stream, other, point) = (stream()?, stream()?, event()?);
    let address = alloc(64, stream)?;
    let mut out = 0x5a;
    for case in 0..3 {
        begin(stream)?;
        fill(stream, address, 64, &[1])?;
        otr!(event_record, point, stream)?;
        threads(1, |_| {
            let answer = otr!(event_synchronize, point);
            refused(answer, Code::CAPTURE, "a wait on another thread")?;
            Ok(())
        })?;
        equal!(
            capture_info(stream)?.status,
            OTR_CAPTURE_ACTIVE,
            "the capture after another thread was refused"
        );
        let (what, answer) = match case {
            0 => ("a query", otr!(event_query, point, &mut out)),
            1 => ("a wait", otr!(event_synchronize, point)),
            _ => ("a time", otr!(event_elapsed, point, point, &mut 0.0)),
        };
        refused(answer, Code::CAPTURE, what)?;
        refused(
            otr!(capture_end, stream, &mut 0),
            Code::CAPTURE,
            "the end of a capture in which its thread waited",
        )?;
    }
    for (what, answer) in [
        ("a query", otr!(event_query, point, &mut out)),
        ("a wait", otr!(event_synchronize, point)),
        ("a wait of a stream", otr!(stream_wait_event, other, point)),
    ] {
        refused(answer, Code::CAPTURE, what)?;
    }
    equal!(out, 0x5a, "H2: the output of failed calls");
    equal!(
        capture_info(other)?.status,
        OTR_CAPTURE_NONE,
        "a stream that was refused"
    );
    otr!(event_record, point, other)?;
    otr!(event_synchronize, point)?;
    // A capture waits for no other one.
    begin(stream)?;
    begin(other)?;
    otr!(event_record, point, stream)?;
    refused(
        otr!(stream_wait_event, other, point),
        Code::CAPTURE,
        "a wait for another capture",
    )?;
    refused(
        otr!(capture_end, other, &mut 0),
        Code::CAPTURE,
        "the end of the capture that was to wait",
    )?;
    // An event that is created in the place of the old one is none of a capture.
    otr!(event_destroy, point)?;
    let next = event()?;
    otr!(graph_destroy, end(stream)?)?;
    Ok(otr!(event_synchronize, next)?)
}

fn slot(exec: u64, name: &CStr) -> Verdict<u32> {
    made(|out| otr!(graph_slot, exec, name.as_ptr(), out))
}

fn bindings_are_for_later_replays(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let sources = [alloc(64, stream)?, alloc(64, stream)?];
    let targets = [alloc(64, stream)?, alloc(64, stream)?, alloc(64, stream)?];
    fill(stream, sources[0], 64, &[1])?;
    fill(stream, sources[1], 64, &[2])?;
    begin(stream)?;
    copy(stream, targets[0], sources[0])?;
    let graph = end(stream)?;
    for (name, address) in [(c"source", sources[0]), (c"target", targets[0])] {
        otr!(graph_name_buffer, graph, name.as_ptr(), address, 64)?;
    }
    for way in ways(context)? {
        for target in targets {
            fill(stream, target, 64, &[0])?;
        }
        let exec = instantiate(graph, way)?;
        let (source, target) = (slot(exec, c"source")?, slot(exec, c"target")?);
        let gate = Gate::new();
        hold(stream, &gate)?;
        replay(exec, stream)?;
        // Memory that is freed while it is bound is the graph's until then.
        let freed = alloc(64, stream)?;
        fill(stream, freed, 64, &[3])?;
        otr!(graph_bind, exec, source, freed)?;
        otr!(graph_bind, exec, target, targets[1])?;
        otr!(memory_free, 0, freed)?;
        let another = alloc(64, stream)?;
        fill(stream, another, 64, &[0xee])?;
        replay(exec, stream)?;
        otr!(graph_bind, exec, source, sources[1])?;
        otr!(graph_bind, exec, target, targets[2])?;
        replay(exec, stream)?;
        gate.open();
        for (at, value) in [1, 3, 2].into_iter().enumerate() {
            equal!(
                download::<u8>(stream, targets[at], 64)?,
                [value; 64],
                "what replay {at} by flags {way:#x} has copied"
            );
        }
        // Address 0 stands for what was recorded.
        otr!(graph_bind, exec, source, 0)?;
        replay(exec, stream)?;
        equal!(
            download::<u8>(stream, targets[2], 64)?,
            [1; 64],
            "what is recorded, in what is bound"
        );
        refused(
            otr!(graph_slot, exec, c"no such buffer".as_ptr(), &mut 0),
            Code::NOT_FOUND,
            "a name that there is not",
        )?;
        otr!(memory_free, 0, another)?;
        otr!(graph_exec_destroy, exec)?;
    }
    Ok(())
}

fn updates_are_for_later_replays(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (first, second) = (alloc(64, stream)?, alloc(64, stream)?);
    let graph = filling(stream, first, 1, 3)?;
    otr!(graph_name_buffer, graph, c"it".as_ptr(), first, 64)?;
    let (other, longer) = (
        filling(stream, second, 2, 3)?,
        filling(stream, second, 9, 4)?,
    );
    for way in ways(context)? {
        fill(stream, first, 64, &[0])?;
        fill(stream, second, 64, &[0])?;
        let exec = instantiate(graph, way)?;
        let gate = Gate::new();
        hold(stream, &gate)?;
        replay(exec, stream)?;
        otr!(graph_update, exec, other)?;
        let told = refused(
            otr!(graph_update, exec, longer),
            Code::INVALID_ARGUMENT,
            "an update to a graph of another shape",
        )?;
        for part in ["node 3", "same shape"] {
            check!(told.text.contains(part), "H3: {part} in {}", told.text);
        }
        replay(exec, stream)?;
        gate.open();
        equal!(
            [
                download::<u8>(stream, first, 64)?,
                download::<u8>(stream, second, 64)?
            ],
            [[1; 64], [2; 64]],
            "what was filled before and after the update by flags {way:#x}"
        );
        // The name follows its buffer into the graph that was taken over.
        otr!(graph_bind, exec, slot(exec, c"it")?, first)?;
        fill(stream, second, 64, &[0])?;
        replay(exec, stream)?;
        equal!(
            [
                download::<u8>(stream, first, 64)?,
                download::<u8>(stream, second, 64)?
            ],
            [[2; 64], [0; 64]],
            "what is filled by the name"
        );
        otr!(graph_exec_destroy, exec)?;
    }
    Ok(())
}

fn replays_follow_a_stream_that_is_gone(context: &Context) -> Verdict {
    start(context)?;
    for way in ways(context)? {
        let (first, second) = (stream()?, stream()?);
        let [source, other, last, seen] = [(); 4].map(|()| alloc(64, second));
        let (source, other, last, seen) = (source?, other?, last?, seen?);
        for (address, value) in [(source, 1), (other, 2), (last, 3), (seen, 4)] {
            fill(second, address, 64, &[value])?;
        }
        otr!(stream_synchronize, second)?;
        // Each replay sees the bytes that the replay before has copied last.
        begin(first)?;
        copy(first, seen, last)?;
        copy(first, last, source)?;
        let graph = end(first)?;
        otr!(graph_name_buffer, graph, c"source".as_ptr(), source, 64)?;
        let exec = instantiate(graph, way)?;
        let gate = Gate::new();
        hold(first, &gate)?;
        replay(exec, first)?;
        otr!(stream_destroy, first)?;
        otr!(graph_bind, exec, slot(exec, c"source")?, other)?;
        replay(exec, second)?;
        check!(
            !finished(second)?,
            "a replay by flags {way:#x} waits for the one before"
        );
        gate.open();
        equal!(
            [
                download::<u8>(second, seen, 64)?,
                download::<u8>(second, last, 64)?
            ],
            [[1; 64], [2; 64]],
            "what two replays by flags {way:#x} have copied"
        );
        otr!(graph_exec_destroy, exec)?;
    }
    Ok(())
}

fn replays_run_one_after_the_other(context: &Context) -> Verdict {
    use std::sync::atomic::{AtomicU64, Ordering};
    static INSIDE: AtomicU64 = AtomicU64::new(0);
    static MOST: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn look(_: *const c_void, _: u32, _: i64) -> i32 {
        let now = INSIDE.fetch_add(1, Ordering::SeqCst) + 1;
        MOST.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_micros(200));
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        0
    }
    start(context)?;
    let (first, second) = (stream()?, stream()?);
    begin(first)?;
    let call = otr_host_kernel_call_t {
        function: Some(look),
        ..kernel()
    };
    otr!(host_kernel_launch, first, &call)?;
    let exec = executable(end(first)?)?;
    for _ in 0..30 {
        otr!(graph_replay, exec, first)?;
        otr!(graph_replay, exec, second)?;
    }
    otr!(stream_synchronize, first)?;
    otr!(stream_synchronize, second)?;
    equal!(
        MOST.load(Ordering::SeqCst),
        1,
        "replays of one executable graph at a time"
    );
    Ok(())
}

fn a_failure_in_a_replay(context: &Context) -> Verdict {
    use std::sync::atomic::{AtomicBool, Ordering};
    static FAILS: AtomicBool = AtomicBool::new(true);
    unsafe extern "C" fn maybe(_: *const c_void, _: u32, _: i64) -> i32 {
        if FAILS.load(Ordering::SeqCst) {
            Code::OUT_OF_RANGE.0
        } else {
            0
        }
    }
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[1])?;
    otr!(stream_synchronize, stream)?;
    begin(stream)?;
    let call = otr_host_kernel_call_t {
        function: Some(maybe),
        label: c"doubtful".as_ptr(),
        ..kernel()
    };
    otr!(host_kernel_launch, stream, &call)?;
    fill(stream, address, 64, &[2])?;
    let graph = end(stream)?;
    for way in ways(context)? {
        FAILS.store(true, Ordering::SeqCst);
        fill(stream, address, 64, &[1])?;
        let exec = instantiate(graph, way)?;
        replay(exec, stream)?;
        let told = refused(
            otr!(stream_synchronize, stream),
            Code::OUT_OF_RANGE,
            "the stream of a failed replay",
        )?;
        equal!(
            told.operator.as_deref(),
            Some("doubtful"),
            "H3: what failed in a replay by flags {way:#x}"
        );
        equal!(
            download::<u8>(stream, address, 64)?,
            [1; 64],
            "the skipped fill"
        );
        FAILS.store(false, Ordering::SeqCst);
        replay(exec, stream)?;
        equal!(
            download::<u8>(stream, address, 64)?,
            [2; 64],
            "the sound replay"
        );
        otr!(graph_exec_destroy, exec)?;
    }
    Ok(())
}
