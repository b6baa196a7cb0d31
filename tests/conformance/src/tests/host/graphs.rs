//! H25 to H28: captures, graphs and replays over the driver under test.

use std::ffi::c_void;
use std::ptr::null;

use outrigger_device::Code;
use outrigger_ffi::*;

use super::{
    alloc, begin, download, end, event, executable, fill, made, otr, refused, start, stream,
};
use crate::test::tests;
use crate::verdict::equal;
use crate::{Context, Verdict};

tests! { "host-abi.graph":
    /// What is captured does not run before it is replayed.
    a_capture_runs_nothing: H25;
    /// A stream that waits for an event of the capture joins it.
    a_stream_joins: H20 H25;
    /// What would wait is refused in a capture, which then fails; the stream is usable.
    what_would_wait_is_refused: H26;
    /// Another thread's work cannot break a capture.
    other_threads_cannot_break_it: H14 H26;
    /// An executable graph lives on when its graph is destroyed, and keeps its memory alive.
    an_executable_graph_keeps_what_it_needs: H13 H27;
    /// Bindings are for later replays.
    bindings_are_for_later_replays: H28;
    /// An update is for later replays.
    updates_are_for_later_replays: H28;
    /// Replays on several streams run one after the other.
    replays_run_one_after_the_other: H18 H28, needs HostReach;
    /// A kernel that fails in a replay fails the stream, and the next replay is sound.
    a_failure_in_a_replay: H19, needs HostReach;
}

unsafe extern "C" fn nothing(_args: *const c_void, _size: u32, _bias: i64) -> i32 {
    0
}

/// A kernel that does nothing.
pub(super) fn kernel() -> otr_kernel_call_t {
    otr_kernel_call_t {
        struct_size: size_of::<otr_kernel_call_t>(),
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

/// An executable graph that fills 64 bytes.
fn filling(stream: u64, address: u64, value: u8) -> Verdict<u64> {
    begin(stream)?;
    fill(stream, address, 64, &[value])?;
    executable(end(stream)?)
}

fn a_capture_runs_nothing(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    fill(stream, address, 64, &[1])?;
    otr!(otr_stream_synchronize, stream)?;
    let exec = filling(stream, address, 2)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [1; 64],
        "memory before the replay"
    );
    otr!(otr_graph_replay, exec, stream)?;
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
    otr!(otr_stream_synchronize, first)?;
    begin(first)?;
    fill(first, address, 64, &[3])?;
    otr!(otr_event_record, forked, first)?;
    otr!(otr_stream_wait_event, second, forked)?;
    fill(second, address + 64, 64, &[4])?;
    otr!(otr_event_record, joined, second)?;
    otr!(otr_stream_wait_event, first, joined)?;
    let exec = executable(end(first)?)?;
    equal!(
        download::<u8>(second, address, 128)?,
        [0; 128],
        "memory before the replay"
    );
    otr!(otr_graph_replay, exec, first)?;
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
        otr!(otr_stream_synchronize, stream),
        Code::CAPTURE,
        "to wait for a stream that captures",
    )?;
    refused(
        otr!(otr_capture_end, stream, &mut 0),
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
        otr!(otr_capture_end, stream, &mut 0),
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
        otr!(otr_memory_free, memory)?;
        Ok(otr!(otr_stream_synchronize, own)?)
    })?;
    let exec = executable(end(capturing)?)?;
    otr!(otr_graph_replay, exec, capturing)?;
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
    otr!(otr_copy, stream, outer, inner, 64, kind)?;
    let graph = end(stream)?;
    let exec = executable(graph)?;
    otr!(otr_graph_destroy, graph)?;
    otr!(otr_memory_free, inner)?;
    for _ in 0..5 {
        let other = alloc(64, stream)?;
        fill(stream, other, 64, &[0xee])?;
        fill(stream, outer, 64, &[0])?;
        otr!(otr_graph_replay, exec, stream)?;
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
    otr!(otr_graph_exec_destroy, exec)?;
    Ok(())
}

fn bindings_are_for_later_replays(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (first, second) = (alloc(64, stream)?, alloc(64, stream)?);
    fill(stream, first, 64, &[0])?;
    fill(stream, second, 64, &[0])?;
    otr!(otr_stream_synchronize, stream)?;
    begin(stream)?;
    fill(stream, first, 64, &[6])?;
    let graph = end(stream)?;
    otr!(otr_graph_name_buffer, graph, c"target".as_ptr(), first, 64)?;
    let exec = executable(graph)?;
    let slot = made(|out| otr!(otr_graph_slot, exec, c"target".as_ptr(), out))?;
    otr!(otr_graph_bind, exec, slot, second)?;
    otr!(otr_graph_replay, exec, stream)?;
    equal!(
        download::<u8>(stream, first, 64)?,
        [0; 64],
        "what was bound before"
    );
    equal!(
        download::<u8>(stream, second, 64)?,
        [6; 64],
        "what is bound now"
    );
    refused(
        otr!(otr_graph_slot, exec, c"no such buffer".as_ptr(), &mut 0),
        Code::NOT_FOUND,
        "a name that there is not",
    )?;
    Ok(())
}

fn updates_are_for_later_replays(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    let exec = filling(stream, address, 1)?;
    begin(stream)?;
    fill(stream, address, 64, &[2])?;
    let other = end(stream)?;
    otr!(otr_graph_replay, exec, stream)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [1; 64],
        "before the update"
    );
    otr!(otr_graph_update, exec, other)?;
    otr!(otr_graph_replay, exec, stream)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [2; 64],
        "after the update"
    );
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
    let call = otr_kernel_call_t {
        function: Some(look),
        ..kernel()
    };
    otr!(otr_kernel_launch, first, &call)?;
    let exec = executable(end(first)?)?;
    for _ in 0..30 {
        otr!(otr_graph_replay, exec, first)?;
        otr!(otr_graph_replay, exec, second)?;
    }
    otr!(otr_stream_synchronize, first)?;
    otr!(otr_stream_synchronize, second)?;
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
    otr!(otr_stream_synchronize, stream)?;
    begin(stream)?;
    let call = otr_kernel_call_t {
        function: Some(maybe),
        ..kernel()
    };
    otr!(otr_kernel_launch, stream, &call)?;
    fill(stream, address, 64, &[2])?;
    let exec = executable(end(stream)?)?;
    otr!(otr_graph_replay, exec, stream)?;
    refused(
        otr!(otr_stream_synchronize, stream),
        Code::OUT_OF_RANGE,
        "the stream of a failed replay",
    )?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [1; 64],
        "the skipped fill"
    );
    FAILS.store(false, Ordering::SeqCst);
    otr!(otr_graph_replay, exec, stream)?;
    equal!(
        download::<u8>(stream, address, 64)?,
        [2; 64],
        "the sound replay"
    );
    Ok(())
}
