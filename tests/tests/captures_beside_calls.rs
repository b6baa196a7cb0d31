//! Captures that begin and end while other calls use the stream: each call is before the begin or behind it, as a whole.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or to what lives as long as the process"
)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::LazyLock;

use outrigger::ffi::*;
use outrigger::runtime::Code;
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
