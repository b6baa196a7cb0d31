//! Calls that wait for work return when it is over: also the work of streams that were destroyed or are of another device,
//! and whatever captures other threads and streams begin.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or to what lives as long as the process"
)]

use std::ffi::{CString, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use outrigger::ffi::*;
use outrigger::runtime::{Code, CopyKind};
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;
use serial_test::serial;

/// A host call that goes on until another call has returned, but not for ever.
#[derive(Default)]
struct Lasting {
    returned: AtomicBool,
    over: AtomicBool,
}

/// Whether `call` returns after work of a stream. If it does not wait, the work sees it return, and is still running.
fn waits_for(stream: u64, call: impl FnOnce()) -> bool {
    unsafe extern "C" fn last(user: *mut c_void, upstream: i32) -> i32 {
        let lasting = unsafe { &*user.cast::<Lasting>() };
        for _ in 0..300 {
            if lasting.returned.load(Ordering::Acquire) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        lasting.over.store(true, Ordering::Release);
        upstream
    }
    let lasting: &'static Lasting = Box::leak(Box::default());
    let user = from_ref(lasting).cast_mut().cast();
    ok(unsafe { otr_host_call(stream, Some(last), user) });
    ok(unsafe { otr_stream_flush(stream) });
    call();
    let waited = lasting.over.load(Ordering::Acquire);
    lasting.returned.store(true, Ordering::Release);
    waited
}

/// Memory of device 0, imported there again.
fn imported(stream: u64) -> u64 {
    let address = alloc(0, 1 << 20, stream);
    let mut exported = null_mut();
    ok(unsafe { otr_memory_export(address, &mut exported) });
    let told = CString::new(text(exported)).expect("no NUL");
    unsafe { otr_string_free(exported) };
    let (mut imported, mut size) = (0, 0);
    ok(unsafe { otr_memory_import(0, told.as_ptr(), &mut imported, &mut size) });
    imported
}

#[test]
#[serial]
fn a_wait_for_a_device_includes_streams_that_were_destroyed() {
    within_limit(|| {
        for device in *DEVICES {
            let s = stream(device);
            let waited = waits_for(s, || {
                ok(unsafe { otr_stream_destroy(s) });
                ok(unsafe { otr_device_synchronize(device) });
            });
            assert!(waited, "device {device}");
        }
    });
}

#[test]
#[serial]
fn a_wait_for_a_device_includes_what_a_stream_was_given_before_it_captures() {
    within_limit(|| {
        let s = stream(0);
        let waited = waits_for(s, || {
            ok(unsafe { otr_capture_begin(s, OTR_CAPTURE_RELAXED, 0) });
            ok(unsafe { otr_device_synchronize(0) });
        });
        ok(unsafe { otr_graph_destroy(end(s)) });
        assert!(waited);
    });
}

#[test]
#[serial]
fn memory_is_closed_behind_work_of_streams_that_were_destroyed() {
    within_limit(|| {
        let (own, s) = (stream(0), stream(0));
        let address = imported(own);
        let waited = waits_for(s, || {
            ok(unsafe { otr_stream_destroy(s) });
            ok(unsafe { otr_memory_close(0, address) });
        });
        assert!(waited);
    });
}

#[test]
#[serial]
fn memory_is_closed_behind_work_while_the_thread_captures() {
    within_limit(|| {
        let (own, s) = (stream(0), stream(0));
        let address = imported(own);
        begin(own);
        let waited = waits_for(s, || ok(unsafe { otr_memory_close(0, address) }));
        // The wait belongs to no stream, so the capture is as good as before.
        ok(unsafe { otr_graph_destroy(end(own)) });
        assert!(waited);
    });
}

#[test]
#[serial]
fn memory_is_closed_behind_work_of_other_devices() {
    within_limit(|| {
        let (own, far) = (stream(0), stream(1));
        let address = imported(own);
        let waited = waits_for(far, || ok(unsafe { otr_memory_close(0, address) }));
        assert!(waited);
    });
}

#[test]
#[serial]
fn closing_memory_leaves_the_failures_of_streams_to_their_owners() {
    unsafe extern "C" fn fail(_user: *mut c_void, _upstream: i32) -> i32 {
        Code::EXECUTION.0
    }
    within_limit(|| {
        let (own, s) = (stream(0), stream(0));
        let address = imported(own);
        ok(unsafe { otr_host_call(s, Some(fail), null_mut()) });
        ok(unsafe { otr_memory_close(0, address) });
        fails(
            unsafe { otr_memory_close(0, address) },
            Code::INVALID_ARGUMENT,
            &["imported"],
        );
        fails(unsafe { otr_stream_synchronize(s) }, Code::EXECUTION, &[]);
    });
}

/// A node of a graph that lets another thread go on, and waits for it.
#[derive(Default)]
struct Meeting {
    here: AtomicBool,
    there: AtomicBool,
}

impl Meeting {
    fn reach(mine: &AtomicBool, theirs: &AtomicBool) {
        mine.store(true, Ordering::Release);
        while !theirs.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
#[serial]
fn a_graph_is_inspected_although_another_thread_begins_a_capture() {
    unsafe extern "C" fn meet(user: *mut c_void, _bias: i64, upstream: i32) -> i32 {
        let meeting = unsafe { &*user.cast::<Meeting>() };
        Meeting::reach(&meeting.here, &meeting.there);
        upstream
    }
    within_limit(|| {
        for inspect in ["check", "cost", "profile"] {
            let meeting: &'static Meeting = Box::leak(Box::default());
            let s = stream(0);
            let x = alloc(0, 65536, s);
            upload(s, x, &[7_u8; 65536]);
            let node = otr_host_node_t {
                function: Some(meet),
                user: from_ref(meeting).cast_mut().cast(),
                destroy: None,
                writes: &x,
                write_count: 1,
                ..host_node(counter())
            };
            begin(s);
            ok(unsafe { otr_host_node(s, &node) });
            let graph = end(s);
            let exec = instantiate(graph, 0);
            thread::scope(|scope| {
                let captures = scope.spawn(|| {
                    while !meeting.here.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                    begin(s);
                    meeting.there.store(true, Ordering::Release);
                });
                let mut told = null_mut();
                match inspect {
                    "check" => ok(unsafe { otr_graph_check(exec, s) }),
                    "cost" => ok(unsafe { otr_graph_cost(exec, s, &mut told) }),
                    _ => ok(unsafe { otr_graph_profile(exec, s, &mut told) }),
                }
                unsafe { otr_string_free(told) };
                captures.join().expect("it begins");
            });
            let captured = end(s);
            assert_eq!(nodes(captured), 0, "{inspect}");
            ok(unsafe { otr_graph_destroy(captured) });
            let kind = CopyKind::DeviceToHost.raw();
            let mut byte = 0_u8;
            ok(unsafe { otr_copy(s, (&raw mut byte) as u64, x, 1, kind) });
            synchronize(s);
            assert_eq!(byte, 7, "{inspect}");
            ok(unsafe { otr_graph_exec_destroy(exec) });
            ok(unsafe { otr_graph_destroy(graph) });
        }
    });
}
