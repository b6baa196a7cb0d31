//! `outrigger tune` over the driver of the dialect, and what a program gets of it. The programs are this test itself, with
//! the role that [`ROLE`] names.

use std::path::Path;
use std::process::{Command, Output};

use outrigger_device::{DType, Driver};
use outrigger_device_ops::with_kernels;
use outrigger_ops::{Call, OperatorId, Tensor, with_raw};
use serde_json::Value;

const ROLE: &str = "OUTRIGGER_TEST_TUNE";

/// The driver, as another process can open it too.
fn driver() -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_outrigger"));
    let path = program
        .with_file_name("deps")
        .join("liboutrigger_dialect_driver.so");
    format!("{}?devices=1&memory=64M", path.display())
}

fn command(store: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command
        .arg("tune")
        .args(arguments)
        .env("OUTRIGGER_CACHE", store);
    command
        .env_remove("OUTRIGGER_TUNE")
        .env_remove("OUTRIGGER_TUNE_WORKER");
    command.output().expect("the command runs")
}

fn tune(store: &Path, arguments: &[&str]) -> String {
    let output = command(store, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn choices(store: &Path, arguments: &[&str]) -> Vec<Value> {
    let text = tune(store, &[arguments, &["--json"]].concat());
    serde_json::from_str(&text).expect("it prints JSON")
}

#[test]
fn what_was_measured_is_kept_shown_and_pinned_elsewhere() {
    let (store, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert!(tune(store.path(), &[]).starts_with("nothing was chosen"));
    let line = ["--driver", &driver(), "matmul", "64x64x64:f32"];
    let first = choices(store.path(), &line);
    let measured = first[0]["measured"].as_object().unwrap();
    assert!(
        measured.len() > 2 && measured.values().all(Value::is_u64),
        "{first:?}"
    );
    assert!(measured.contains_key(first[0]["chosen"].as_str().unwrap()));
    // The same times: it was not measured again.
    assert_eq!(choices(store.path(), &line), first);
    assert_eq!(choices(store.path(), &[]), first);
    let table = tune(store.path(), &[]);
    assert!(
        table.contains("matmul") && table.contains("64x64x64"),
        "{table}"
    );

    let file = store.path().join("choices.json");
    std::fs::write(&file, serde_json::to_string(&first).unwrap()).unwrap();
    tune(other.path(), &["--pin", file.to_str().unwrap()]);
    let pinned = choices(other.path(), &line);
    assert_eq!(pinned[0]["pinned"], true);
    assert_eq!(pinned[0]["measured"], first[0]["measured"]);
    assert!(tune(other.path(), &["--forget"]).starts_with("nothing was chosen"));
}

#[test]
fn a_convolution_is_a_question_of_its_own() {
    let store = tempfile::tempdir().unwrap();
    let line = ["--driver", &driver(), "convolution", "1x8x8x8,8x8x3x3:f32"];
    let found = choices(store.path(), &line);
    assert_eq!(found[0]["question"]["operator"], "convolution");
    assert!(
        found[0]["measured"]
            .as_object()
            .unwrap()
            .values()
            .all(Value::is_u64)
    );
}

#[test]
fn what_makes_no_sense_is_named() {
    let store = tempfile::tempdir().unwrap();
    let driver = driver();
    for (what, named) in [
        (["matmul", "64x64:f32"], "matmul 64x64"),
        (["matmul", "64x64x64"], "has no element type"),
        (["matmul", "64x0x64:f32"], "matmul 64x0x64"),
        (["matmul", "64x64x64:f33"], "no such element type"),
        (["sort", "64x64x64:f32"], "sort 64x64x64"),
        (["convolution", "1x8x8x8,8x9x3x3:f32"], "do not go together"),
    ] {
        let output = command(store.path(), &["--driver", &driver, what[0], what[1]]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(named),
            "{what:?}: {text}"
        );
    }
}

/// Sizes that no tile divides.
const SIZES: [usize; 3] = [100, 70, 130];

/// The body of the started programs; nothing in the process that runs the tests.
#[test]
fn role() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let driver = with_kernels(Driver::open(&driver().parse().unwrap()).unwrap()).unwrap();
    let [m, n, k] = SIZES;
    let number = |at: usize| (at % 7) as f32 - 3.0;
    let numbers = |count: usize| (0..count).map(number).collect::<Vec<f32>>();
    let (a, b) = (numbers(m * k), numbers(k * n));
    let place = |count: usize| driver.memory_alloc(0, (count * 4) as u64).unwrap();
    let places = [place(m * k), place(k * n), place(m * n)];
    for (place, content) in places.iter().zip([&a, &b]) {
        // SAFETY: R15: an allocation of that size, whose address is a host pointer.
        unsafe {
            std::ptr::copy_nonoverlapping(content.as_ptr(), *place as *mut f32, content.len())
        };
    }
    let sizes = [[m, k], [k, n], [m, n]].map(|size| size.map(|one| one as i64));
    let strides = sizes.map(|size| [size[1], 1]);
    let tensor = |at: usize| Tensor::new(places[at], DType::F32, &sizes[at], &strides[at]);
    let (inputs, outputs) = ([tensor(0), tensor(1)], [tensor(2)]);
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        ..Call::default()
    };
    let id = OperatorId::find(c"mm").unwrap();
    // SAFETY: the raw call points to what lives in this function.
    let made = with_raw(id, &call, |raw| unsafe {
        driver.operators().unwrap().prepare(0, raw)
    });
    let (operator, needs) = made.unwrap().unwrap();
    assert_eq!(needs.workspace_bytes, 0);
    let queue = driver.queue_create(0, 0).unwrap();
    // SAFETY: the operands live until the launch has finished, which is waited for.
    with_raw(id, &call, |raw| unsafe {
        queue.launch_operator(&operator, raw, 0)
    })
    .unwrap();
    queue.synchronize().unwrap();
    // SAFETY: as above.
    let found = unsafe { std::slice::from_raw_parts(places[2] as *const f32, m * n) };
    for (at, found) in found.iter().enumerate() {
        let (row, column) = (at / n, at % n);
        let right: f32 = (0..k).map(|at| a[row * k + at] * b[at * n + column]).sum();
        assert_eq!(*found, right, "row {row}, column {column}");
    }
    for place in places {
        // SAFETY: R12: waited for.
        unsafe { driver.memory_free(place) }.unwrap();
    }
}

fn program(store: &Path, mode: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, "program")
        .env("OUTRIGGER_CACHE", store)
        .env("OUTRIGGER_TUNE", mode)
        .env("OUTRIGGER_TUNE_WORKER", env!("CARGO_BIN_EXE_outrigger"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_program_measures_only_when_it_is_on_and_every_variant_is_right() {
    let store = tempfile::tempdir().unwrap();
    for mode in ["off", "cached"] {
        program(store.path(), mode);
        assert!(choices(store.path(), &[]).is_empty(), "{mode}");
    }
    program(store.path(), "on");
    let found = choices(store.path(), &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    let names: Vec<String> = found[0]["measured"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert!(names.len() > 2, "{names:?}");
    let file = store.path().join("choices.json");
    for name in names {
        let mut choice = found[0].clone();
        choice["chosen"] = name.as_str().into();
        std::fs::write(&file, serde_json::to_string(&[&choice]).unwrap()).unwrap();
        tune(store.path(), &["--pin", file.to_str().unwrap()]);
        assert_eq!(choices(store.path(), &[])[0]["chosen"], name);
        program(store.path(), "cached");
    }
}
