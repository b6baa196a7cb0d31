//! The tests from outside of the library, in one program: linked into one for each file, the library would take
//! gigabytes. Nextest gives each test a process of its own, which those that load drivers need.

mod addresses;
mod captures_beside_calls;
mod cpp_faces;
mod device_opening;
mod ends_of_work;
mod examples;
mod exports;
mod graph_changes;
mod graph_lifetimes;
mod graph_memory;
mod graph_programs;
mod headers;
mod interleavings;
mod loading;
mod memory_history;
mod memory_sleep;
mod memory_threads;
mod native_parts;
mod operators;
mod rust_face;
mod several_drivers;
mod staging;
mod store;
mod struct_sizes;
mod tuning;
mod unwinding;

use std::path::PathBuf;

/// The folder of the library that cargo built beside this test.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors()
        .skip(1)
        .find(|folder| folder.join("liboutrigger.so").exists())
        .expect("cargo builds liboutrigger.so for this package")
        .to_owned()
}
