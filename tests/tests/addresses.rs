//! Two drivers that return the same address. A call without a device refuses the address and names both
//! devices; a call with a device means the memory of that device. The tests have their own process
//! because of their drivers.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::{CString, c_char};
use std::ptr::null_mut;
use std::sync::LazyLock;

use outrigger::ffi::*;
use outrigger::runtime::{self, Code};
use outrigger_tests::Gate;
use outrigger_tests::abi::*;
use serial_test::serial;

const SIZE: u64 = 4 << 20;

/// A device of each of two drivers, whose first addresses are equal.
static TWINS: LazyLock<[u32; 2]> = LazyLock::new(|| {
    outrigger_tests::twin_drivers().map(|driver| {
        let next = made(|out| unsafe { otr_device_count(out) });
        let spec = format!("{}?devices=1", driver.display());
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
        next
    })
});

/// Memory of both devices at one address, with a stream of each.
struct Pair {
    devices: [u32; 2],
    streams: [u64; 2],
    address: u64,
}

impl Pair {
    fn new() -> Self {
        let devices = *TWINS;
        for device in devices {
            assert_eq!(held(device), (0, 0), "nothing is left of another test");
        }
        let streams = devices.map(stream);
        let [address, other] = [0, 1].map(|at| alloc(devices[at], SIZE, streams[at]));
        assert_eq!(address, other, "the drivers give the same addresses");
        Self {
            devices,
            streams,
            address,
        }
    }

    /// The call says that the number is of both.
    #[track_caller]
    fn refused(&self, status: *mut otr_status_t) {
        let [first, second] = self.devices.map(|device| format!("device {device}"));
        fails(status, Code::INVALID_ARGUMENT, &[&first, &second]);
    }

    /// Bytes in use on each device.
    fn in_use(&self) -> [u64; 2] {
        self.devices
            .map(|device| stats(device).allocated_bytes.current)
    }

    fn free_both(&self) {
        for device in self.devices {
            ok(unsafe { otr_memory_free_on(device, self.address) });
        }
        assert_eq!(self.in_use(), [0, 0]);
    }
}

fn info() -> otr_pointer_info_t {
    let mut info: otr_pointer_info_t = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<otr_pointer_info_t>();
    info
}

#[test]
#[serial]
fn freeing_takes_the_memory_of_the_device_that_is_named() {
    let pair = Pair::new();
    let ([a, b], [on_a, _], address) = (pair.devices, pair.streams, pair.address);
    pair.refused(unsafe { otr_memory_free(address) });
    assert_eq!(pair.in_use(), [SIZE, SIZE], "nothing was freed");
    let inside = unsafe { otr_memory_free(address + 64) };
    pair.refused(inside);

    ok(unsafe { otr_memory_free_on(b, address) });
    assert_eq!(pair.in_use(), [SIZE, 0]);
    let again = unsafe { otr_memory_free_on(b, address) };
    fails(again, Code::INVALID_ARGUMENT, &["already free"]);
    let another = alloc(a, SIZE, on_a);
    assert_ne!(another, address, "memory in use is not handed out again");

    // One of them has it now, and the number suffices.
    ok(unsafe { otr_memory_free(address) });
    ok(unsafe { otr_memory_free(another) });
    assert_eq!(pair.in_use(), [0, 0]);
    let gone = unsafe { otr_memory_free(address) };
    fails(gone, Code::INVALID_ARGUMENT, &["already free"]);
    ok(unsafe { otr_memory_free_on(a, 0) });
}

#[test]
#[serial]
fn facts_of_an_address_are_those_of_the_device_that_is_named() {
    let pair = Pair::new();
    let address = pair.address;
    let mut known = info();
    pair.refused(unsafe { otr_memory_pointer_info(address + 700, &mut known) });
    assert_eq!((known.base, known.device), (0, 0), "outputs are left alone");
    for (device, stream) in pair.devices.into_iter().zip(pair.streams) {
        ok(unsafe { otr_memory_pointer_info_on(device, address + 700, &mut known) });
        assert_eq!(
            (known.base, known.device, known.stream),
            (address, device, stream)
        );
    }
    let [a, b] = pair.devices;
    let mut text: *mut c_char = null_mut();
    pair.refused(unsafe { otr_memory_export(address, &mut text) });
    let shared = unsafe { otr_memory_export_on(b, address, &mut text) };
    fails(shared, Code::UNSUPPORTED, &["does not share"]);

    ok(unsafe { otr_memory_free_on(a, address) });
    let none = unsafe { otr_memory_pointer_info_on(a, address, &mut known) };
    fails(none, Code::NOT_FOUND, &[&format!("device {a}")]);
    ok(unsafe { otr_memory_pointer_info(address, &mut known) });
    assert_eq!(known.device, b);
    ok(unsafe { otr_memory_free(address) });
}

#[test]
#[serial]
fn a_stream_is_recorded_on_memory_of_its_own_device_first() {
    let pair = Pair::new();
    let address = pair.address;
    for (device, main) in pair.devices.into_iter().zip(pair.streams) {
        let side = stream(device);
        let gate = Gate::new();
        let wait = gate.waiter();
        let held = runtime::stream(side).expect("it lives").host_call(|_| {
            wait();
            Ok(())
        });
        held.expect("the driver has host calls");
        ok(unsafe { otr_memory_record_stream(address, side) });
        ok(unsafe { otr_memory_free_on(device, address) });
        let next = alloc(device, SIZE, main);
        assert_ne!(next, address, "the other stream still uses it");
        gate.open();
        synchronize(side);
        ok(unsafe { otr_memory_free_on(device, next) });
        ok(unsafe { otr_stream_destroy(side) });
    }
    let pair = Pair::new();
    let elsewhere = stream(0);
    pair.refused(unsafe { otr_memory_record_stream(pair.address, elsewhere) });
    for device in pair.devices {
        ok(unsafe { otr_memory_record_stream_on(device, pair.address, elsewhere) });
    }
    pair.free_both();
    ok(unsafe { otr_memory_record_stream_on(pair.devices[0], 0, elsewhere) });
    ok(unsafe { otr_stream_destroy(elsewhere) });
}

#[test]
#[serial]
fn copies_go_between_the_devices_that_are_named() {
    let pair = Pair::new();
    let ([a, b], [on_a, on_b], address) = (pair.devices, pair.streams, pair.address);
    upload(on_a, address, &[1u8; 300]);
    upload(on_b, address, &[2u8; 300]);
    pair.refused(unsafe { otr_copy_peer(on_a, address, address, 300) });
    ok(unsafe { otr_copy_peer_on(on_a, a, address, b, address, 200) });
    synchronize(on_a);
    let seen: Vec<u8> = download(on_a, address, 300);
    assert_eq!(seen, [[2; 200].as_slice(), &[1; 100]].concat());
    let seen: Vec<u8> = download(on_b, address, 300);
    assert_eq!(seen, [2; 300]);
    let far = unsafe { otr_copy_peer_on(on_a, a, address, b, address + SIZE, 16) };
    fails(far, Code::INVALID_ARGUMENT, &[&format!("device {b}")]);
    pair.free_both();
}

#[test]
#[serial]
fn devices_that_are_none_are_refused() {
    let pair = Pair::new();
    let ([_, b], [on_a, _], address) = (pair.devices, pair.streams, pair.address);
    let (none, mut text) = (b + 1, null_mut());
    for status in unsafe {
        [
            otr_memory_free_on(none, address),
            otr_memory_record_stream_on(none, address, on_a),
            otr_memory_pointer_info_on(none, address, &mut info()),
            otr_memory_export_on(none, address, &mut text),
            otr_copy_peer_on(on_a, none, address, b, address, 16),
            otr_copy_peer_on(on_a, b, address, none, address, 16),
        ]
    } {
        fails(status, Code::INVALID_DEVICE, &[&none.to_string()]);
    }
    pair.free_both();
}
