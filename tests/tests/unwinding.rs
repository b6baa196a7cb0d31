//! H4: exceptions and panics that leave a function of the host. One that leaves a function of a C++ host
//! ends the process where the library called the function. The interfaces in C++ and Rust catch what is
//! thrown, and report it.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger::runtime::{
    Code, ContextSource, Frame, HistoryOptions, ObservationKinds, add_observer,
    add_pressure_observer, create_stream, destroy_stream, fallback_begin, fallback_end,
    remove_observer, runtime, snapshot_json,
};

use super::library_folder;

/// The host in C++, built as any host is, for one test.
fn host(test: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library_folder();
    let name = format!("outrigger-unwinding-{test}-{}", std::process::id());
    let program = std::env::temp_dir().join(name);
    let built = Command::new("g++")
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(tests.parent().expect("a workspace member").join("include"))
        .arg(tests.join("cpp/unwinding_host.cc"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .args(["-loutrigger", "-pthread"])
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .output()
        .expect("g++ starts");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    program
}

fn run(program: &Path, name: &str) -> Output {
    Command::new(program)
        .arg(name)
        .env("OUTRIGGER_DRIVER", "host?graphs=native")
        .output()
        .expect("it starts")
}

/// Functions that the library calls itself.
const CALLED_BY_THE_LIBRARY: [&str; 20] = [
    "host_node",
    "destroy",
    "replayed_call",
    "submitted_call",
    "native_call",
    "replayed_node",
    "submitted_node",
    "native_node",
    "destroy_of_graph",
    "observer",
    "observer_of_frees",
    "observer_of_segments",
    "observer_of_released_segments",
    "observer_of_failures",
    "observer_of_fallbacks",
    "pressure",
    "context_capture",
    "context_release",
    "context_frames",
    "parallel_for",
];

/// Functions that the driver is given as they are: here the built-in one.
const CALLED_BY_THE_DRIVER: [&str; 3] = ["host_call", "kernel", "replayed_kernel"];

#[test]
fn an_exception_that_leaves_a_function_of_the_host_ends_the_process() {
    let program = host("c");
    let ours = CALLED_BY_THE_LIBRARY.map(|name| (name, true));
    let others = CALLED_BY_THE_DRIVER.map(|name| (name, false));
    for (name, named) in ours.into_iter().chain(others) {
        let output = run(&program, name);
        let said = String::from_utf8_lossy(&output.stderr);
        let status = output.status;
        assert_eq!(
            status.signal(),
            Some(libc::SIGABRT),
            "{name}: {status}\n{said}"
        );
        assert!(!named || said.contains("rule H4"), "{name}: {said}");
    }
    std::fs::remove_file(program).expect("the program is ours");
}

#[test]
fn the_cpp_face_makes_an_exception_the_failure_of_the_stream() {
    let program = host("face");
    let output = run(&program, "face");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    std::fs::remove_file(program).expect("the program is ours");
}

#[test]
fn the_cpp_face_makes_an_exception_of_a_registered_function_the_failure_of_the_call() {
    let program = host("registered");
    let output = run(&program, "registered");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    std::fs::remove_file(program).expect("the program is ours");
}

/// Contexts that panic, and what was asked of them.
#[derive(Default)]
struct Contexts(AtomicU32);

impl Contexts {
    fn fail(&self) -> ! {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("a context of the host failed")
    }
}

impl ContextSource for Contexts {
    fn capture(&self) -> u64 {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => panic!("the first context of the host failed"),
            _ => 7,
        }
    }

    fn release(&self, _token: u64) {
        self.fail()
    }

    fn frames(&self, _token: u64, _frame: &mut dyn FnMut(Frame<'_>)) {
        self.fail()
    }
}

#[test]
fn a_panic_of_a_rust_host_is_the_failure_of_its_work_or_goes_no_further() {
    let device = runtime().unwrap().device(0).unwrap();
    let stream = create_stream(0, 0).unwrap();

    // Work: the stream fails.
    stream.host_call(|_| panic!("a host call failed")).unwrap();
    let failed = stream.synchronize().unwrap_err();
    assert_eq!(failed.code(), Code::EXECUTION);
    stream.synchronize().unwrap();

    // An observer that only listens changes nothing.
    static HEARD: AtomicU32 = AtomicU32::new(0);
    let observer = add_observer(ObservationKinds::ALL, |_| {
        HEARD.fetch_add(1, Ordering::SeqCst);
        panic!("an observer failed")
    })
    .unwrap();
    let address = device.alloc(4096, stream.id()).unwrap();
    device.free(address).unwrap();
    fallback_begin("nothing").unwrap();
    fallback_end("nothing", 1, 1);
    remove_observer(observer).unwrap();
    assert!(HEARD.load(Ordering::SeqCst) >= 3);

    // An observer that fails to release memory has released nothing.
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let observer = add_pressure_observer(|_| {
        ASKED.fetch_add(1, Ordering::SeqCst);
        panic!("an observer of pressure failed")
    })
    .unwrap();
    device.set_memory_limit(1 << 20);
    let refused = device.alloc(8 << 20, stream.id()).unwrap_err();
    assert_eq!(refused.code(), Code::OUT_OF_MEMORY);
    assert_eq!(ASKED.load(Ordering::SeqCst), 1);
    device.set_memory_limit(u64::MAX);
    remove_observer(observer).unwrap();

    // A context that fails is none, and frames that fail are not told.
    let contexts = Arc::new(Contexts::default());
    device.start_memory_history(HistoryOptions {
        entries: 8,
        source: Some(contexts.clone()),
        context_of_frees: false,
    });
    let [first, second] = [4096, 8192].map(|size| device.alloc(size, stream.id()).unwrap());
    assert!(snapshot_json(None).unwrap().contains("segments"));
    device.stop_memory_history();
    device.free(first).unwrap();
    device.free(second).unwrap();
    assert!(
        contexts.0.load(Ordering::SeqCst) >= 4,
        "two captures, frames, a release"
    );
    destroy_stream(stream.id()).unwrap();
}
