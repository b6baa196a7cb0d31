//! A device that cannot be opened: the others are there all the same, and nothing of it stays for the next device with its
//! number. The test has its own process because of its driver.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

use libloading::Library;
use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::*;
use outrigger_tests::broken_driver;

#[test]
fn a_device_that_cannot_be_opened_is_reported_and_leaves_the_others() {
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
    let load = |specs: &str| {
        let specs = CString::new(specs).expect("no NUL");
        outcome(unsafe { otr_driver_load(specs.as_ptr()) })
    };
    let count = || made(|out| unsafe { otr_device_count(out) });
    let first = count();

    // The first device of three has no queue; the driver behind it is loaded too.
    fail_at(c"queue_create", 0);
    let specs = format!("{}?devices=3,host?devices=1", path.display());
    let (code, message) = load(&specs).expect_err("a device is missing");
    assert_eq!(code, Code::LOAD);
    for word in ["device 0", "queue_create", "fails_on_demand"] {
        assert!(message.contains(word), "{word} is missing in: {message}");
    }
    assert_eq!(count(), first + 3);
    let mut json = null_mut();
    ok(unsafe { otr_load_report(&mut json) });
    let report = text(json);
    unsafe { otr_string_free(json) };
    assert!(
        report.contains("refused") && report.contains("queue_create"),
        "{report}"
    );

    // A driver of which no device can be opened is not among those that were taken.
    fail_at(c"queue_create", 0);
    let (_, message) = load(&format!("{}?devices=1", path.display())).expect_err("no device");
    assert!(message.contains("queue_create"), "{message}");
    assert_eq!(count(), first + 3);

    // The next device with the number has a default stream and a generator of its own.
    load("host?devices=1").expect("sound");
    for device in first..first + 4 {
        let stream = made(|out| unsafe { otr_stream_default(device, out) });
        let address = alloc(device, 64, stream);
        ok(unsafe { otr_fill(stream, address, 64, [1_u8].as_ptr().cast(), 1) });
        ok(unsafe { otr_stream_synchronize(stream) });
        ok(unsafe { otr_memory_free(device, address) });
        let generator = made(|out| unsafe { otr_generator_default(device, out) });
        ok(unsafe { otr_generator_seed(generator, 7) });
    }
}
