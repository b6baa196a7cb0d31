//! Imported memory is closed when work is over: also the work of streams that were destroyed or are of another device, and
//! while the thread captures. The memory is imported in its own process, which not every driver can do.

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
use outrigger::runtime::Code;
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
    ok(unsafe { otr_memory_export(0, address, &mut exported) });
    let told = CString::new(text(exported)).expect("no NUL");
    unsafe { otr_string_free(exported) };
    let (mut imported, mut size) = (0, 0);
    ok(unsafe { otr_memory_import(0, told.as_ptr(), &mut imported, &mut size) });
    imported
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
