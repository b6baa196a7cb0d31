//! Loading of code over a real compiler: that of the driver `opencl`, where the environment says which it is.

#![expect(clippy::print_stdout, reason = "what was skipped is said")]

use outrigger_device::{Code, Driver, sys};
use outrigger_modules::{Counts, Modules, Source};
use outrigger_store::{Settings, Store};

/// The driver that the environment names. It must open.
fn driver() -> Option<Driver> {
    let Some(path) = std::env::var_os("OUTRIGGER_TEST_OPENCL") else {
        println!("skipped: OUTRIGGER_TEST_OPENCL names no driver for OpenCL");
        return None;
    };
    let spec = path.to_str().unwrap().parse().unwrap();
    Some(Driver::open(&spec).unwrap())
}

#[test]
fn a_second_process_compiles_nothing() {
    let Some(driver) = driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = "kernel void twice(global float* x) { x[get_global_id(0)] *= 2; }";
    let source = Source::new(sys::OTR_CODE_OPENCL_C, text.as_bytes());
    let process = || {
        let modules = Modules::new(Store::open(Settings::at(folder.path())), None);
        let module = modules
            .load_async(&driver, 0, &source)
            .unwrap()
            .wait()
            .unwrap();
        module.kernel(Some(c"twice")).unwrap();
        modules.counts()
    };
    let first = Counts {
        compiled: 1,
        ..Counts::default()
    };
    assert_eq!(process(), first);
    let second = Counts {
        restored: 1,
        ..Counts::default()
    };
    assert_eq!(process(), second);
}

#[test]
fn an_error_shows_its_line() {
    let Some(driver) = driver() else { return };
    let modules = Modules::new(Store::open(Settings::off("for a test")), None);
    let text = "kernel void f(global int* x) {\n\tx[0] = unknown;\n}\n";
    let source = Source::new(sys::OTR_CODE_OPENCL_C, text.as_bytes());
    let error = modules.load(&driver, 0, &source).unwrap_err();
    assert_eq!(error.code(), Code::INVALID_ARGUMENT);
    assert!(
        error
            .message()
            .ends_with("2 | \tx[0] = unknown;\n  | \t       ^"),
        "{error}"
    );
}
