//! The two faces in C++, the bridge and `outrigger.hpp`: one text of scenarios (`cpp/scenarios.h`) compiled over
//! each, and run on two faces of the host driver.

use std::ffi::{CStr, c_char};

use outrigger::runtime::runtime;
use outrigger_tests as _; // the C++ hosts are linked with it

unsafe extern "C" {
    fn outrigger_cpp_bridge(device: u32) -> *const c_char;
    fn outrigger_cpp_face(device: u32) -> *const c_char;
}

#[test]
fn both_faces_of_cpp_pass_the_same_scenarios() {
    runtime()
        .expect("a runtime")
        .load("host?face=discrete")
        .expect("built in");
    for device in [0, 2] {
        for (name, host) in [
            (
                "the bridge",
                outrigger_cpp_bridge as unsafe extern "C" fn(u32) -> *const c_char,
            ),
            ("outrigger.hpp", outrigger_cpp_face),
        ] {
            // SAFETY: the C++ side catches all exceptions and returns NULL or a string of its own.
            let problem = unsafe { host(device) };
            if !problem.is_null() {
                // SAFETY: as above.
                let problem = unsafe { CStr::from_ptr(problem) };
                panic!("{name}, device {device}: {}", problem.to_string_lossy());
            }
        }
    }
}
