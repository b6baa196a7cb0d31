//! Two drivers in one runtime: the driver under test, opened once more, is another one. What reaches from one to the other,
//! and what does not.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::tests::host::bindings::*;
use outrigger_device::{Code, DType};

use super::work::hold;
use super::{
    alloc, begin, capture_info, download, end, event, executable, fill, made, nodes, otr, refused,
    replay, start, stream, upload,
};
use crate::test::tests;
use crate::tests::kit::threads;
use crate::verdict::{check, equal};
use crate::{Context, Gate, Verdict};

tests! { "host-abi.driver":
    /// Events order streams of two drivers.
    events_order_streams: H18 H20;
    /// A failure goes with an event to a stream of another driver, and not to the call that waits.
    failures_go_with_events: H19 H20;
    /// A copy between drivers is in the order of its stream, and concerns neither captures nor failures of other streams.
    copies_between_drivers: H18 H19 H22 H25;
    /// A stream, an event, a graph or memory of another device is refused where one of the own is needed.
    objects_stay_on_their_device: H2 H3 H8 H22;
}

/// The first device of the driver, which is opened once more.
fn far(context: &Context) -> Verdict<u32> {
    start(context)?;
    let far = made(|out| otr!(device_count, out))?;
    let spec = CString::new(context.spec())?;
    otr!(driver_load, spec.as_ptr())?;
    Ok(far)
}

fn stream_of(device: u32) -> Verdict<u64> {
    made(|out| otr!(stream_create, device, 0, out))
}

fn event_of(device: u32) -> Verdict<u64> {
    made(|out| otr!(event_create, device, 0, out))
}

unsafe extern "C" fn fails(_: *mut c_void, _: i32) -> i32 {
    Code::EXECUTION.0
}

/// Notes the failure that it is told of.
unsafe extern "C" fn hears(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: a number that is never freed.
    unsafe { &*user.cast::<AtomicI32>() }.store(upstream, Ordering::SeqCst);
    upstream
}

fn events_order_streams(context: &Context) -> Verdict {
    let far = far(context)?;
    for [first, second] in [[0, far], [far, 0]] {
        let (from, to, point) = (stream_of(first)?, stream_of(second)?, event_of(first)?);
        let (gate, heard) = (Gate::new(), Box::leak(Box::<AtomicI32>::default()));
        let address = made(|out| otr!(memory_alloc, first, 64, from, out))?;
        hold(from, &gate)?;
        fill(from, address, 64, &[1])?;
        otr!(event_record, point, from)?;
        // The call may wait for the event.
        threads(2, |thread| {
            if thread == 0 {
                std::thread::sleep(std::time::Duration::from_millis(10));
                gate.open();
                return Ok(());
            }
            otr!(stream_wait_event, to, point)?;
            let user = std::ptr::from_ref(&*heard).cast_mut().cast();
            otr!(host_call, to, Some(hears), user)?;
            otr!(stream_synchronize, to)?;
            let passed = made(|out: *mut u32| otr!(event_query, point, out))?;
            equal!(passed, 1, "whether the event has passed for who waited");
            Ok(())
        })?;
        equal!(
            download::<u8>(from, address, 64)?,
            [1; 64],
            "the work before"
        );
    }
    Ok(())
}

fn failures_go_with_events(context: &Context) -> Verdict {
    let far = far(context)?;
    for [first, second] in [[0, far], [far, 0]] {
        let (from, to, point) = (stream_of(first)?, stream_of(second)?, event_of(first)?);
        let heard = Box::leak(Box::<AtomicI32>::default());
        otr!(host_call, from, Some(fails), null_mut())?;
        otr!(event_record, point, from)?;
        otr!(stream_wait_event, to, point)?;
        let user = std::ptr::from_ref(&*heard).cast_mut().cast();
        otr!(host_call, to, Some(hears), user)?;
        for (what, stream) in [
            ("the stream that waits", to),
            ("the stream that failed", from),
        ] {
            let outcome = otr!(stream_synchronize, stream);
            refused(outcome, Code::EXECUTION, what)?;
            otr!(stream_synchronize, stream)?;
        }
        equal!(
            heard.load(Ordering::SeqCst),
            Code::EXECUTION.0,
            "what a host function behind the wait is told"
        );
    }
    Ok(())
}

fn copies_between_drivers(context: &Context) -> Verdict {
    const SIZE: u64 = 4096;
    let far = far(context)?;
    for [source, target] in [[0, far], [far, 0]] {
        let here = stream_of(source)?;
        let theirs = made(|out| otr!(stream_default, target, out))?;
        let from = made(|out| otr!(memory_alloc, source, SIZE, here, out))?;
        let to = made(|out| otr!(memory_alloc, target, SIZE, theirs, out))?;
        let copy = || otr!(copy_peer, here, target, to, source, from, SIZE);
        let arrived = |value: u8| {
            equal!(
                download::<u8>(theirs, to, SIZE as usize)?,
                vec![value; SIZE as usize],
                "what was copied"
            );
            Verdict::Ok(())
        };
        fill(here, from, SIZE, &[1])?;
        begin(theirs)?;
        copy()?;
        equal!(
            capture_info(theirs)?.node_count,
            0,
            "nodes of a capture of the other device"
        );
        otr!(graph_destroy, end(theirs)?)?;
        otr!(stream_synchronize, here)?;
        arrived(1)?;
        fill(here, from, SIZE, &[2])?;
        otr!(host_call, theirs, Some(fails), null_mut())?;
        copy()?;
        otr!(stream_synchronize, here)?;
        refused(
            otr!(stream_synchronize, theirs),
            Code::EXECUTION,
            "the stream of the other device, whose failure is its own",
        )?;
        arrived(2)?;
        refused(
            otr!(copy_peer, here, target, to, source, from, 1 << 40),
            Code::INVALID_ARGUMENT,
            "a copy beyond the end",
        )?;
    }
    Ok(())
}

fn objects_stay_on_their_device(context: &Context) -> Verdict {
    let far = far(context)?;
    let (here, there) = (stream()?, stream_of(far)?);
    let (address, point) = (alloc(64, here)?, event()?);
    let beyond = made(|out| otr!(memory_alloc, far, 64, there, out))?;
    upload(here, address, &[3u8; 64])?;
    begin(here)?;
    fill(here, address, 64, &[4])?;
    let graph = end(here)?;
    otr!(graph_name_buffer, graph, c"x".as_ptr(), address, 64)?;
    let exec = executable(graph)?;
    let other = made(|out| otr!(graph_create, far, 0, out))?;
    let (kind, i64) = (OTR_GRAPH_IF, DType::I64.0);
    let mut out = 0x5a;
    for (what, answer) in [
        ("a record of an event", otr!(event_record, point, there)),
        (
            "memory for a stream",
            otr!(memory_alloc, 0, 64, there, &mut 0),
        ),
        ("a replay", otr!(graph_replay, exec, there)),
        ("a check", otr!(graph_check, exec, there)),
        (
            "a profile",
            otr!(graph_profile, exec, there, &mut null_mut()),
        ),
        ("a cost", otr!(graph_cost, exec, there, &mut null_mut())),
        ("an update", otr!(graph_update, exec, other)),
        (
            "a child",
            otr!(graph_add_child, graph, null(), 0, other, &mut out),
        ),
        (
            "a body",
            otr!(
                graph_add_conditional,
                graph,
                null(),
                0,
                kind,
                address,
                i64,
                &other,
                1,
                &mut out
            ),
        ),
    ] {
        let told = refused(answer, Code::INVALID_ARGUMENT, what)?;
        check!(
            told.text.contains("device"),
            "H3: {what} says why: {}",
            told.text
        );
    }
    equal!((out, nodes(graph)?), (0x5a, 1), "the output, and nodes");
    // Both devices may have memory at the same address.
    if beyond != address {
        let answer = otr!(graph_bind, exec, 0, beyond);
        refused(answer, Code::INVALID_ARGUMENT, "memory of another device")?;
    }
    // A capture does not leave its device.
    begin(here)?;
    otr!(event_record, point, here)?;
    let joined = otr!(stream_wait_event, there, point);
    check!(joined.is_err(), "a stream of another device has joined");
    equal!(
        capture_info(there)?.status,
        OTR_CAPTURE_NONE,
        "the stream of the other device"
    );
    // Whether the capture has failed of it is its own affair.
    let _ = otr!(capture_end, here, &mut 0);
    replay(exec, here)?;
    equal!(
        download::<u8>(here, address, 64)?,
        [4; 64],
        "what is filled after refused calls"
    );
    Ok(otr!(stream_synchronize, there)?)
}
