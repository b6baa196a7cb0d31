//! Code that one process has compiled, the next one loads. The processes are this test itself, with the role that
//! [`ROLE`] names.

use std::path::Path;
use std::process::Command;

use outrigger_device::{DType, Driver};
use outrigger_device_ops::with_kernels;
use outrigger_modules::{Counts, Modules};
use outrigger_ops::catalog::samples::Sample;
use outrigger_ops::{OperatorId, with_raw};

const ROLE: &str = "OUTRIGGER_TEST_STORE";

/// Prepares operators of several texts, and says where their modules came from.
fn prepare(driver: Driver) -> Counts {
    let driver = with_kernels(driver).unwrap();
    let operators = driver.operators().unwrap();
    for name in [c"add", c"mm", c"softmax"] {
        let id = OperatorId::find(name).unwrap();
        let sample = Sample::new(id, DType::F32).unwrap();
        // SAFETY: the raw call points to what lives in the closures.
        let made =
            sample.with(|call| with_raw(id, call, |raw| unsafe { operators.prepare(0, raw) }));
        assert!(made.unwrap().is_some(), "{name:?}");
    }
    Modules::of_process().unwrap().counts()
}

/// The driver `opencl` that the environment names.
#[expect(clippy::print_stdout, reason = "what was skipped is said")]
fn opencl() -> Option<String> {
    let named = std::env::var("OUTRIGGER_TEST_OPENCL").ok();
    if named.is_none() {
        println!("in part skipped: OUTRIGGER_TEST_OPENCL names no driver for OpenCL");
    }
    named
}

/// The work of the started processes; the test does nothing in the process that runs the tests.
#[test]
#[expect(
    clippy::print_stdout,
    reason = "the process that started this one reads it"
)]
fn role() {
    let Ok(spec) = std::env::var(ROLE) else {
        return;
    };
    let driver = match spec.as_str() {
        "dialect" => outrigger_dialect_driver::driver("devices=1,memory=64M"),
        path => Driver::open(&path.parse().unwrap()),
    };
    let counts = prepare(driver.unwrap());
    println!("counts: {counts:?}");
}

/// A process that prepares operators of a driver, over a store.
fn process(spec: &str, store: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::role", "--nocapture"])
        .env(ROLE, spec)
        .env("OUTRIGGER_CACHE", store)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{spec}: {output:?}");
    let line = text.lines().find_map(|line| line.split_once("counts: "));
    line.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

fn judge(spec: &str) {
    let store = tempfile::tempdir().unwrap();
    let compiled = Counts {
        compiled: 3,
        ..Counts::default()
    };
    assert_eq!(process(spec, store.path()), format!("{compiled:?}"));
    let restored = Counts {
        restored: 3,
        ..Counts::default()
    };
    assert_eq!(process(spec, store.path()), format!("{restored:?}"));
}

#[test]
fn a_second_process_compiles_nothing() {
    judge("dialect");
}

#[test]
fn a_second_process_compiles_nothing_over_opencl() {
    if let Some(spec) = opencl() {
        judge(&spec);
    }
}
