//! Captures that begin and end while other calls use the stream: each call is before the begin or behind it, as a whole.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or to what lives as long as the process"
)]

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use outrigger::ffi::*;
use outrigger::runtime::{CaptureMode, Code};
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;
use serial_test::serial;

#[test]
#[serial]
fn a_stream_that_was_destroyed_begins_no_capture() {
    let id = stream(0);
    // The stream is held as by a call that is under way on another thread.
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
