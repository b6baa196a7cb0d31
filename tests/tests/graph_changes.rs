//! Changes under a program: a graph that another one updates, and a capture that is over before a call for it is.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals"
)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::*;
use serial_test::serial;

#[test]
#[serial]
fn an_updated_graph_computes_what_the_new_one_computes() {
    /// The last act of a capture on memory of its own, where it writes `2 x`: frees it unread, reads it, or leaves it.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Then {
        Free,
        Read,
        Leave,
    }
    for device in *DEVICES {
        let s = stream(device);
        let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
        upload(s, x, &[3.0_f32; 16]);
        let before = held(device);
        // Both additions are nodes in each case; the first one is needed unless its result is freed unread.
        let captured = |then: Then| {
            begin(s);
            let t = alloc(device, 64, s);
            add(s, (t, x, x), 16, 1);
            let read = if then == Then::Read { t } else { x };
            add(s, (y, read, x), 16, 1);
            if then != Then::Leave {
                ok(unsafe { otr_memory_free(device, t) });
            }
            (end(s), t)
        };
        for flags in [0, OTR_GRAPH_SERIAL, OTR_GRAPH_SUBMIT] {
            for (old, new) in [
                (Then::Free, Then::Leave),
                (Then::Leave, Then::Free),
                (Then::Free, Then::Read),
                (Then::Read, Then::Free),
                (Then::Read, Then::Leave),
            ] {
                let (first, left) = captured(old);
                let (second, t) = captured(new);
                let exec = instantiate(first, flags);
                ok(unsafe { otr_graph_update(exec, second) });
                upload(s, y, &[0.0_f32; 16]);
                replay(exec, s);
                let sum = if new == Then::Read { 9.0 } else { 6.0 };
                assert_eq!(download::<f32>(s, y, 16), [sum; 16], "{old:?} to {new:?}");
                if new == Then::Leave {
                    assert_eq!(download::<f32>(s, t, 16), [6.0; 16], "{old:?} to {new:?}");
                }
                for (then, address) in [(old, left), (new, t)] {
                    if then == Then::Leave {
                        ok(unsafe { otr_memory_free(device, address) });
                    }
                }
                ok(unsafe { otr_graph_exec_destroy(exec) });
                for graph in [first, second] {
                    ok(unsafe { otr_graph_destroy(graph) });
                }
            }
        }
        assert_eq!(held(device), before);
    }
}

/// The stream of a capture that an observer is to stop; 0 afterwards.
type Stopped = AtomicU64;

unsafe extern "C" fn give_up(stream: *mut c_void, _seen: *const otr_observation_t) {
    match unsafe { &*stream.cast::<Stopped>() }.swap(0, Ordering::Relaxed) {
        0 => {}
        stream => ok(unsafe { otr_capture_abort(stream, c"given up".as_ptr()) }),
    }
}

unsafe extern "C" fn finish(stream: *mut c_void, _seen: *const otr_observation_t) {
    match unsafe { &*stream.cast::<Stopped>() }.swap(0, Ordering::Relaxed) {
        0 => {}
        stream => ok(unsafe { otr_graph_destroy(end(stream)) }),
    }
}

#[test]
#[serial]
fn memory_for_a_capture_that_is_over_meanwhile_is_given_back() {
    for device in *DEVICES {
        let s = stream(device);
        let before = held(device);
        for aborts in [true, false] {
            begin(s);
            // The capture fails or ends while the first memory for it is made.
            let function = if aborts { give_up } else { finish };
            let stopped = Stopped::new(s);
            let user = std::ptr::from_ref(&stopped).cast_mut().cast();
            let observer = made(|out| unsafe {
                otr_observer_add(OTR_OBSERVE_SEGMENT_ALLOC, Some(function), user, out)
            });
            let mut address = 0;
            let answer = unsafe { otr_memory_alloc(device, 64, s, &mut address) };
            ok(unsafe { otr_observer_remove(observer) });
            assert_eq!(stopped.into_inner(), 0, "the observer was called");
            if aborts {
                fails(answer, Code::CAPTURE, &["given up"]);
                fails(
                    unsafe { otr_capture_end(s, &mut 0) },
                    Code::CAPTURE,
                    &["given up"],
                );
            } else {
                ok(answer);
                ok(unsafe { otr_memory_free(device, address) });
            }
            assert_eq!(held(device), before, "device {device}, aborts: {aborts}");
        }
    }
}
