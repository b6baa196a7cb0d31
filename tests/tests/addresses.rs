//! Two drivers that return the same address. A call means the memory of the device that it takes, and the number
//! alone is refused, with the names of both devices. The tests have their own process because of their drivers.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::{CString, c_char};
use std::ptr::null_mut;
use std::sync::LazyLock;

use outrigger::ffi::*;
use outrigger::runtime::{self, Code, CopyKind};
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

    /// The number alone is of both devices: the call says so, and no output is written.
    #[track_caller]
    fn is_ambiguous(&self, address: u64) {
        let [first, second] = self.devices.map(|device| format!("device {device}"));
        let mut found = u32::MAX;
        let status = unsafe { otr_memory_find(address, &mut found) };
        fails(status, Code::INVALID_ARGUMENT, &[&first, &second]);
        assert_eq!(found, u32::MAX, "the output is left alone");
    }

    /// The number alone is of this device.
    #[track_caller]
    fn is_of(device: u32, address: u64) {
        let found: u32 = made(|out| unsafe { otr_memory_find(address, out) });
        assert_eq!(found, device);
    }

    /// Bytes in use on each device.
    fn in_use(&self) -> [u64; 2] {
        self.devices
            .map(|device| stats(device).allocated_bytes.current)
    }

    fn free_both(&self) {
        for device in self.devices {
            ok(unsafe { otr_memory_free(device, self.address) });
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
    let inside = unsafe { otr_memory_free(b, address + 64) };
    let named = format!("device {b}");
    fails(inside, Code::INVALID_ARGUMENT, &[&named, "not its start"]);
    assert_eq!(pair.in_use(), [SIZE, SIZE], "nothing was freed");

    ok(unsafe { otr_memory_free(b, address) });
    assert_eq!(pair.in_use(), [SIZE, 0]);
    let again = unsafe { otr_memory_free(b, address) };
    fails(again, Code::INVALID_ARGUMENT, &[&named, "already free"]);
    assert_eq!(pair.in_use(), [SIZE, 0], "the other device keeps its own");
    let another = alloc(a, SIZE, on_a);
    assert_ne!(another, address, "memory in use is not handed out again");

    ok(unsafe { otr_memory_free(a, address) });
    ok(unsafe { otr_memory_free(a, another) });
    assert_eq!(pair.in_use(), [0, 0]);
    ok(unsafe { otr_memory_free(a, 0) });
}

#[test]
#[serial]
fn a_number_is_of_the_one_device_that_has_it() {
    let pair = Pair::new();
    let ([a, b], address) = (pair.devices, pair.address);
    for within in [0, 700, SIZE - 1] {
        pair.is_ambiguous(address + within);
    }
    // One of them has it, and the number suffices.
    ok(unsafe { otr_memory_free(b, address) });
    Pair::is_of(a, address + 700);
    ok(unsafe { otr_memory_free(a, address) });
    for nowhere in [address, 0, 1, u64::MAX] {
        let mut found = u32::MAX;
        let none = unsafe { otr_memory_find(nowhere, &mut found) };
        fails(none, Code::NOT_FOUND, &[&format!("{nowhere:#x}")]);
        assert_eq!(found, u32::MAX, "the output is left alone");
    }
    // The current device is no hint: memory of another one is found all the same.
    let of_host = alloc(0, 64, stream(0));
    ok(unsafe { otr_device_set_current(b) });
    Pair::is_of(0, of_host + 63);
    ok(unsafe { otr_device_set_current(0) });
    ok(unsafe { otr_memory_free(0, of_host) });
}

#[test]
#[serial]
fn facts_of_an_address_are_those_of_the_device_that_is_named() {
    let pair = Pair::new();
    let address = pair.address;
    for (device, stream) in pair.devices.into_iter().zip(pair.streams) {
        let mut known = info();
        ok(unsafe { otr_memory_pointer_info(device, address + 700, &mut known) });
        assert_eq!((known.base, known.stream), (address, stream));
    }
    let [a, b] = pair.devices;
    let mut text: *mut c_char = null_mut();
    let shared = unsafe { otr_memory_export(b, address, &mut text) };
    fails(shared, Code::UNSUPPORTED, &["does not share"]);

    ok(unsafe { otr_memory_free(a, address) });
    let mut known = info();
    let none = unsafe { otr_memory_pointer_info(a, address, &mut known) };
    fails(none, Code::NOT_FOUND, &[&format!("device {a}")]);
    assert_eq!(known.base, 0, "outputs are left alone");
    ok(unsafe { otr_memory_pointer_info(b, address, &mut known) });
    assert_eq!(known.stream, pair.streams[1]);
    ok(unsafe { otr_memory_free(b, address) });
}

/// Keeps a stream of a device busy, and says that it uses memory of the device `recorded`.
fn used_elsewhere(device: u32, recorded: u32, address: u64) -> (u64, Gate) {
    let side = stream(device);
    let gate = Gate::new();
    let wait = gate.waiter();
    let held = runtime::stream(side).expect("it lives").host_call(|_| {
        wait();
        Ok(())
    });
    held.expect("the driver has host calls");
    ok(unsafe { otr_memory_record_stream(recorded, address, side) });
    (side, gate)
}

#[test]
#[serial]
fn a_stream_is_recorded_on_the_memory_of_the_device_that_is_named() {
    for recorded in 0..2 {
        // A stream of either device may use the memory of either.
        for of_stream in 0..2 {
            let pair = Pair::new();
            let (device, address) = (pair.devices[recorded], pair.address);
            let (side, gate) = used_elsewhere(pair.devices[of_stream], device, address);
            // The other device's memory is not used by the stream: it is handed out again at once.
            let other = pair.devices[1 - recorded];
            ok(unsafe { otr_memory_free(other, address) });
            let again = alloc(other, SIZE, pair.streams[1 - recorded]);
            assert_eq!(again, address);
            ok(unsafe { otr_memory_free(device, address) });
            let next = alloc(device, SIZE, pair.streams[recorded]);
            assert_ne!(next, address, "the stream still uses it");
            gate.open();
            synchronize(side);
            ok(unsafe { otr_memory_free(device, next) });
            ok(unsafe { otr_memory_free(other, again) });
            ok(unsafe { otr_stream_destroy(side) });
        }
    }
    let pair = Pair::new();
    let elsewhere = stream(0);
    let not_there = unsafe { otr_memory_record_stream(0, pair.address, elsewhere) };
    fails(not_there, Code::INVALID_ARGUMENT, &["device 0"]);
    pair.free_both();
    ok(unsafe { otr_memory_record_stream(pair.devices[0], 0, elsewhere) });
    ok(unsafe { otr_stream_destroy(elsewhere) });
}

#[test]
#[serial]
fn copies_go_between_the_devices_that_are_named() {
    let pair = Pair::new();
    let ([a, b], [on_a, on_b], address) = (pair.devices, pair.streams, pair.address);
    upload(on_a, address, &[1u8; 300]);
    upload(on_b, address, &[2u8; 300]);
    ok(unsafe { otr_copy_peer(on_a, a, address, b, address, 200) });
    synchronize(on_a);
    let seen: Vec<u8> = download(on_a, address, 300);
    assert_eq!(seen, [[2; 200].as_slice(), &[1; 100]].concat());
    let seen: Vec<u8> = download(on_b, address, 300);
    assert_eq!(seen, [2; 300]);
    let far = unsafe { otr_copy_peer(on_a, a, address, b, address + SIZE, 16) };
    fails(far, Code::INVALID_ARGUMENT, &[&format!("device {b}")]);
    pair.free_both();
}

#[test]
#[serial]
fn an_address_with_another_device_is_refused_by_its_name_and_changes_nothing() {
    let pair = Pair::new();
    let ([a, _], [on_a, _]) = (pair.devices, pair.streams);
    // Memory of `a` at an address that no other device has.
    let ours = alloc(a, 2 * SIZE, on_a);
    Pair::is_of(a, ours);
    upload(on_a, ours, &[7u8; 64]);
    let before = stats(a).allocated_bytes.current;
    let (on_host, host) = (stream(0), alloc(0, 64, stream(0)));
    let of_host = stats(0).allocated_bytes.current;

    let (mut known, mut text) = (info(), null_mut());
    let named = ["device 0".to_owned(), format!("{ours:#x}")];
    let needles = named.each_ref().map(String::as_str);
    for (status, code) in unsafe {
        [
            (otr_memory_free(0, ours), Code::INVALID_ARGUMENT),
            (
                otr_memory_record_stream(0, ours, on_a),
                Code::INVALID_ARGUMENT,
            ),
            (
                otr_memory_pointer_info(0, ours, &mut known),
                Code::NOT_FOUND,
            ),
            (otr_memory_export(0, ours, &mut text), Code::NOT_FOUND),
            (otr_memory_close(0, ours), Code::INVALID_ARGUMENT),
            (
                otr_copy_peer(on_a, a, ours, 0, ours, 64),
                Code::INVALID_ARGUMENT,
            ),
            (
                otr_copy_peer(on_a, 0, ours, a, ours, 64),
                Code::INVALID_ARGUMENT,
            ),
            // The stream is of device 0, and so are its addresses.
            (
                otr_copy(on_host, host, ours, 64, CopyKind::DeviceToDevice.raw()),
                Code::INVALID_ARGUMENT,
            ),
            (
                otr_fill(on_host, ours, 64, [0_u8].as_ptr().cast(), 1),
                Code::INVALID_ARGUMENT,
            ),
        ]
    } {
        fails(status, code, &needles);
    }
    assert_eq!(
        (known.base, text),
        (0, null_mut()),
        "outputs are left alone"
    );
    assert_eq!(stats(a).allocated_bytes.current, before);
    assert_eq!(stats(0).allocated_bytes.current, of_host);
    assert_eq!(download::<u8>(on_a, ours, 64), [7; 64]);

    ok(unsafe { otr_memory_free(0, host) });
    ok(unsafe { otr_memory_free(a, ours) });
    ok(unsafe { otr_stream_destroy(on_host) });
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
            otr_memory_free(none, address),
            otr_memory_record_stream(none, address, on_a),
            otr_memory_pointer_info(none, address, &mut info()),
            otr_memory_export(none, address, &mut text),
            otr_copy_peer(on_a, none, address, b, address, 16),
            otr_copy_peer(on_a, b, address, none, address, 16),
            otr_copy_peer(on_a, b, address, none, address, 0),
        ]
    } {
        fails(status, Code::INVALID_DEVICE, &[&none.to_string()]);
    }
    pair.free_both();
}
