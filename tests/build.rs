//! Builds what the tests load: the C template by its own Makefile, as a vendor builds it; the broken
//! drivers of `drivers/`, one library for each defect; the C++ hosts of both faces; and the examples of
//! hosts.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The defects that `drivers/broken.c` knows, each a macro.
const DEFECTS: [&str; 18] = [
    "NO_SYMBOL",
    "GET_API_FAILS",
    "NO_TABLE",
    "OTHER_MAJOR",
    "REFUSES_OUR_MAJOR",
    "NEWER_MINOR",
    "SMALL_TABLE",
    "TINY_TABLE",
    "NULL_ENTRIES",
    "GROUP_WITH_HOLE",
    "OPEN_FAILS",
    "OPEN_WITHOUT_DRIVER",
    "COUNT_FAILS",
    "NO_DEVICES",
    "PROPERTIES_FAIL",
    "BAD_ALIGNMENT",
    "CLOSE_FAILS",
    "FAILS_ON_DEMAND",
];

fn main() {
    let tests = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let root = tests.parent().expect("the tests lie in the repository");
    let template = root.join("examples/driver-c");
    let include = root.join("include");
    for path in [
        &template,
        &include,
        &tests.join("drivers"),
        &tests.join("cpp"),
        &root.join("examples/graph-c"),
        &root.join("examples/graph-cpp"),
    ] {
        println!("cargo:rerun-if-changed={}", path.display());
    }

    run(Command::new("make")
        .arg("-C")
        .arg(&template)
        .arg("--always-make")
        .arg(format!("OUT={}", out.display()))
        .arg("CFLAGS=-O2 -g -Werror"));
    println!(
        "cargo:rustc-env=OUTRIGGER_C_DRIVER={}",
        out.join("liboutrigger_example.so").display()
    );

    for defect in DEFECTS {
        broken(&tests, &template, &include, &out, defect);
    }
    for twin in ["one", "two"] {
        let library = out.join(format!("liboutrigger_{twin}.so"));
        run(&mut driver(
            &tests.join("drivers/dispatcher.c"),
            &include,
            &library,
        ));
    }
    println!("cargo:rustc-env=OUTRIGGER_BROKEN_DRIVERS={}", out.display());

    // Where the headers of the bridge lie; the package `outrigger` says so through its `links` key.
    let bridge = std::env::var_os("DEP_OUTRIGGER_CXXBRIDGE_DIR0")
        .expect("set for dependents of `outrigger`");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(bridge)
        .include(&include)
        .file(tests.join("cpp/bridge_host.cc"))
        .file(tests.join("cpp/face_host.cc"))
        .file(tests.join("cpp/graph_example.cc"))
        .compile("outrigger_cpp_hosts");
    cc::Build::new()
        .std("c11")
        .include(&include)
        .warnings_into_errors(true)
        .define("main", "outrigger_graph_example_c")
        .file(root.join("examples/graph-c/graph.c"))
        .compile("outrigger_graph_example_c");
}

fn broken(tests: &Path, template: &Path, include: &Path, out: &Path, defect: &str) {
    let library = out.join(format!("liboutrigger_{}.so", defect.to_lowercase()));
    run(driver(&tests.join("drivers/broken.c"), include, &library)
        .arg(format!("-D{defect}"))
        .arg("-I")
        .arg(template));
}

/// Makes a driver of one C file.
fn driver(source: &Path, include: &Path, library: &Path) -> Command {
    let mut command = cc::Build::new().opt_level(0).get_compiler().to_command();
    command
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            "-fvisibility=hidden",
            "-pthread",
            "-shared",
            "-I",
        ])
        .arg(include)
        .arg("-o")
        .arg(library)
        .arg(source);
    command
}

fn run(command: &mut Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?}: {status}"),
        Err(error) => panic!(
            "{command:?} could not be started: {error}; these tests need make and a C compiler"
        ),
    }
}
