//! Devices are opened when they are used, and not when they are listed. One that cannot be opened says why at each call,
//! leaves the others, and is tried again. The test has its own process because of its driver.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::{CStr, CString, c_char};

use libloading::Library;
use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::*;
use outrigger_tests::broken_driver;

#[test]
fn a_device_is_opened_when_it_is_used() {
    let path = broken_driver("fails_on_demand");
    // SAFETY: the initializers of a driver of these tests, which is opened once more below.
    let library = unsafe { Library::new(&path) }.expect("it loads");
    let fail_at = |entry: &CStr, passes: u32| {
        // SAFETY: the function has this type.
        unsafe {
            let function = library.get::<unsafe extern "C" fn(*const c_char, u32)>(b"fail_at");
            function.expect("it is exported")(entry.as_ptr(), passes);
        }
    };
    let open = || {
        // SAFETY: the function has this type.
        unsafe {
            let function = library.get::<unsafe extern "C" fn() -> i64>(b"live_devices");
            function.expect("it is exported")()
        }
    };
    let count = || made(|out| unsafe { otr_device_count(out) });
    let first = count();
    let specs = CString::new(format!("{}?devices=3", path.display())).expect("no NUL");
    ok(unsafe { otr_driver_load(specs.as_ptr()) });
    assert_eq!(count(), first + 3);

    // A call that asks for devices opens none, and neither does one that has nothing to do for a device that was not
    // used.
    for device in first..first + 3 {
        let mut info: otr_device_info_t = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<otr_device_info_t>();
        ok(unsafe { otr_device_info(device, &mut info) });
        assert!(info.total_memory > 0 && info.name[0] != 0);
        ok(unsafe { otr_device_set_current(device) });
        ok(unsafe { otr_device_synchronize(device) });
        ok(unsafe { otr_memory_empty_cache(device) });
        assert_eq!(stats(device).reserved_bytes.current, 0);
        let generator = made(|out| unsafe { otr_generator_default(device, out) });
        ok(unsafe { otr_generator_seed(generator, 7) });
    }
    ok(unsafe { otr_device_set_current(0) });
    assert_eq!(open(), 0);

    // The device and its default stream: each call says why, and nothing stays open.
    for entry in [c"device_open", c"queue_create"] {
        for _ in 0..2 {
            fail_at(entry, 0);
            let stream = outcome(unsafe { otr_stream_default(first, &mut 0) });
            let (code, message) = stream.expect_err("it cannot be opened");
            assert_eq!(code, Code::DEVICE_LOST);
            let device = format!("device {first} ");
            for word in [device.as_str(), "cannot be opened", entry.to_str().unwrap()] {
                assert!(message.contains(word), "{word} is missing in: {message}");
            }
            assert_eq!(open(), 0);
        }
    }
    let works = |device| {
        let stream = made(|out| unsafe { otr_stream_default(device, out) });
        let address = alloc(device, 64, stream);
        ok(unsafe { otr_fill(stream, address, 64, [1_u8].as_ptr().cast(), 1) });
        ok(unsafe { otr_stream_synchronize(stream) });
        ok(unsafe { otr_memory_free(device, address) });
    };
    // The others are as they were, and the next use of the device finds it well.
    works(first + 2);
    assert_eq!(open(), 1);
    works(first);
    assert_eq!(open(), 2);
}
