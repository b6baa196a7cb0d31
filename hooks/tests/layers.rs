//! Layers as a host of the runtime gets them: by `OUTRIGGER_LAYERS` alone. The runtime reads the variable once, so each
//! case is a process of its own.

use std::process::{Command, Output};

use outrigger_device::Driver;
use outrigger_hooks::{Code, create_stream, runtime};
use outrigger_layers::replay::{Recording, ReplayOptions, compare, replay};

/// Set for the child processes, which use the runtime.
const CHILD: &str = "OUTRIGGER_TEST_LAYERS";

/// The child uses a stream and memory, and ends with the code of its error.
fn child() -> Result<(), outrigger_hooks::Error> {
    let stream = create_stream(0, 0)?;
    let device = runtime()?.device(0)?;
    let memory = device.alloc(1 << 20, stream.id())?;
    // SAFETY: the memory is of this stream, and is not freed.
    unsafe { stream.fill(memory, 1 << 20, &[7]) }?;
    stream.synchronize()
}

fn run(layers: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "layers_of_the_environment_are_over_the_drivers"])
        .env(CHILD, "1")
        .env("OUTRIGGER_LAYERS", layers)
        .env("OUTRIGGER_DRIVER", "host?devices=1&memory=64M")
        .output()
        .unwrap()
}

#[test]
fn layers_of_the_environment_are_over_the_drivers() {
    if std::env::var_os(CHILD).is_some() {
        // The code is the outcome, because a failed test ends in 101.
        let code = child().map_or_else(|error| error.code().0, |()| 0);
        std::process::exit(code);
    }
    let folder = std::env::temp_dir().join(format!("otr-layers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("calls.rec");
    let findings = folder.join("findings.txt");
    let code = |output: &Output| output.status.code();

    let output = run(&format!(
        "validate:{},record:{}",
        findings.display(),
        file.display()
    ));
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert_eq!(std::fs::read_to_string(&findings).unwrap(), "");
    let recording = Recording::read(std::fs::File::open(&file).unwrap()).unwrap();
    assert!(recording.steps.len() > 5);
    let host = Driver::open(&"host?devices=1&memory=64M".parse().unwrap()).unwrap();
    let run_again = replay(&recording, host, ReplayOptions::default()).unwrap();
    assert_eq!(compare(&recording, &run_again), None);

    let output = run("fault:fill@1=call:OUT_OF_HOST_MEMORY");
    assert_eq!(
        code(&output),
        Some(Code::OUT_OF_HOST_MEMORY.0),
        "{output:?}"
    );
    let output = run("fault:fill@1=work:OUT_OF_RANGE");
    assert_eq!(code(&output), Some(Code::OUT_OF_RANGE.0), "{output:?}");
    let output = run("validat");
    assert_eq!(code(&output), Some(Code::INVALID_ARGUMENT.0), "{output:?}");
    // A layer that cannot do its work is the reason that there is no device.
    let output = run("record:/nonexistent/folder/calls.rec");
    assert_eq!(code(&output), Some(Code::INVALID_DEVICE.0), "{output:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}
