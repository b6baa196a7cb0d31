//! The C++ bridge, used by a C++ host (`cpp/bridge_host.cc`) on two faces of the host driver.

use std::ffi::{CStr, c_char};

use outrigger::runtime::runtime;
use outrigger_tests as _; // the C++ host is linked with it

unsafe extern "C" {
    fn outrigger_cpp_host(device: u32) -> *const c_char;
}

#[test]
fn a_cpp_host_uses_the_bridge() {
    runtime()
        .expect("a runtime")
        .load("host?face=discrete")
        .expect("built in");
    for device in [0, 2] {
        // SAFETY: the C++ side catches all exceptions and returns NULL or a string of its own.
        let problem = unsafe { outrigger_cpp_host(device) };
        if !problem.is_null() {
            // SAFETY: as above.
            let problem = unsafe { CStr::from_ptr(problem) };
            panic!("device {device}: {}", problem.to_string_lossy());
        }
    }
}
