//! Captures that begin and end while other calls use the stream: each call is before the begin or behind it, as a whole.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or to what lives as long as the process"
)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::LazyLock;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use outrigger::ffi::*;
use outrigger::runtime::{CaptureMode, Code};
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;
use serial_test::serial;

/// A device of a driver of its own: nothing copies between it and device 0 but the host.
static FAR: LazyLock<u32> = LazyLock::new(|| {
    let device = made(|out| unsafe { otr_device_count(out) });
    ok(unsafe { otr_driver_load(c"host?devices=1".as_ptr()) });
    device
});

/// Memory of device 0 and of the far device, and a stream of device 0.
fn two_devices() -> (u64, u64, u64) {
    let here = stream(0);
    let from = alloc(0, 4096, here);
    upload(here, from, &[5_u8; 4096]);
    let to = alloc(*FAR, 4096, stream(*FAR));
    (here, from, to)
}

fn default_stream(device: u32) -> u64 {
    made(|out| unsafe { otr_stream_default(device, out) })
}

#[test]
#[serial]
fn a_copy_through_the_host_is_no_part_of_a_capture_of_the_other_device() {
    within_limit(|| {
        let (here, from, to) = two_devices();
        let theirs = default_stream(*FAR);
        begin(theirs);
        ok(unsafe { otr_copy_peer_on(here, *FAR, to, 0, from, 4096) });
        assert_eq!(capture_info(theirs).node_count, 0);
        ok(unsafe { otr_graph_destroy(end(theirs)) });
        assert_eq!(download::<u8>(theirs, to, 4096), [5; 4096]);
    });
}

#[test]
#[serial]
fn a_copy_through_the_host_takes_no_failure_of_the_other_device() {
    unsafe extern "C" fn fail(_user: *mut c_void, _upstream: i32) -> i32 {
        Code::EXECUTION.0
    }
    within_limit(|| {
        let (here, from, to) = two_devices();
        let theirs = default_stream(*FAR);
        ok(unsafe { otr_host_call(theirs, Some(fail), null_mut()) });
        ok(unsafe { otr_copy_peer_on(here, *FAR, to, 0, from, 4096) });
        fails(
            unsafe { otr_stream_synchronize(theirs) },
            Code::EXECUTION,
            &[],
        );
        assert_eq!(download::<u8>(theirs, to, 4096), [5; 4096]);
    });
}

#[test]
#[serial]
fn a_stream_that_was_destroyed_begins_no_capture() {
    let id = stream(0);
    // As a call has it that is under way on another thread.
    let used = outrigger::runtime::stream(id).expect("it lives");
    ok(unsafe { otr_stream_destroy(id) });
    let error = used.capture_begin(CaptureMode::Relaxed, None).unwrap_err();
    assert_eq!(error.code(), Code::INVALID_HANDLE, "{error}");
    assert!(!used.is_capturing());
    // Nor does it join one.
    let (s, mark) = (stream(0), event(0));
    begin(s);
    ok(unsafe { otr_event_record(mark, s) });
    let mark = outrigger::runtime::event(mark).expect("it lives");
    let error = used.wait_event(mark).unwrap_err();
    assert_eq!(error.code(), Code::INVALID_HANDLE, "{error}");
    ok(unsafe { otr_graph_destroy(end(s)) });
    ok(unsafe { otr_device_synchronize(0) });
}

#[test]
#[serial]
fn a_stream_that_captures_is_destroyed_after_the_capture() {
    let s = stream(0);
    begin(s);
    fails(unsafe { otr_stream_destroy(s) }, Code::BUSY, &["captures"]);
    ok(unsafe { otr_graph_destroy(end(s)) });
    begin(s);
    ok(unsafe { otr_graph_destroy(end(s)) });
    ok(unsafe { otr_stream_destroy(s) });
    fails(unsafe { otr_stream_destroy(s) }, Code::INVALID_HANDLE, &[]);
}

#[test]
#[serial]
fn a_join_leaves_a_capture_that_was_begun_before_it() {
    within_limit(|| {
        let (first, second) = (stream(0), stream(0));
        let mark = event(0);
        begin(first);
        ok(unsafe { otr_event_record(mark, first) });
        let (held, is_held) = channel();
        let (let_go, go) = channel::<()>();
        thread::scope(|scope| {
            // A generator that is asked for keeps the first capture busy.
            scope.spawn(move || {
                let stream = outrigger::runtime::stream(first).expect("it lives");
                let wait = || {
                    held.send(()).expect("heard");
                    go.recv().expect("let go");
                    None
                };
                assert_eq!(stream.reserve(u64::MAX, wait, 1), None);
            });
            is_held.recv().expect("held");
            let joins =
                scope.spawn(move || outcome(unsafe { otr_stream_wait_event(second, mark) }));
            // Time for the join to see that its stream does not capture. Without, the test sees less.
            thread::sleep(Duration::from_millis(50));
            begin(second);
            let_go.send(()).expect("heard");
            let (code, message) = joins.join().expect("it returns").unwrap_err();
            assert_eq!(code, Code::CAPTURE, "{message}");
            assert!(message.contains("another capture"), "{message}");
        });
        // The second capture has failed, because one of its calls has. It ends all the same, on its own stream.
        let mut graph = 0;
        fails(
            unsafe { otr_capture_end(second, &mut graph) },
            Code::CAPTURE,
            &["another capture"],
        );
        ok(unsafe { otr_graph_destroy(end(first)) });
        ok(unsafe { otr_device_synchronize(0) });
    });
}
