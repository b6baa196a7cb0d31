//! The headers as hosts compile them: each one alone, by gcc and clang, in every standard for which it
//! is written, with all warnings. And hosts in C and C++ that are built against the library that Cargo
//! made, one of them against headers of version 0.1.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::library_folder;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a workspace member")
        .to_owned()
}

/// The compilers that run here of those with these names; says which do not.
#[expect(clippy::print_stdout, reason = "what was skipped is said")]
fn compilers<const N: usize>(names: [&'static str; N]) -> Vec<&'static str> {
    let runs = |name: &&str| {
        let found = Command::new(name)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success());
        if !found {
            println!("skipped: {name} is not installed");
        }
        found
    };
    names.into_iter().filter(runs).collect()
}

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"];

#[track_caller]
fn succeeds(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Compiles a file that includes one header twice and nothing else.
fn compiles(compiler: &str, flags: &[&str], header: &str) {
    let folder = std::env::temp_dir().join(format!("outrigger-headers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for sources");
    let source = folder.join(format!("{compiler}-{}.src", header.replace('/', "-")));
    let line = format!("#include <{header}>\n");
    std::fs::write(&source, format!("{line}{line}int outrigger_included;\n")).expect("writable");
    let language = if compiler.ends_with("++") { "c++" } else { "c" };
    succeeds(
        Command::new(compiler)
            .args(["-fsyntax-only", "-x", language])
            .args(WARNINGS)
            .args(flags)
            .arg("-I")
            .arg(root().join("include"))
            .arg(&source),
    );
}

#[test]
fn the_contracts_are_c_of_every_standard_and_cpp_from_11_on() {
    let headers = [
        "outrigger/base.h",
        "outrigger/driver.h",
        "outrigger/outrigger.h",
        "outrigger/framework.h",
        "outrigger/table.h",
    ];
    for header in headers {
        for compiler in compilers(["gcc", "clang"]) {
            for standard in ["-std=c99", "-std=c11", "-std=c17"] {
                compiles(compiler, &[standard, "-Wstrict-prototypes"], header);
            }
        }
        for compiler in compilers(["g++", "clang++"]) {
            for standard in ["-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20"] {
                compiles(compiler, &[standard], header);
            }
        }
    }
}

#[test]
fn the_cpp_face_compiles_with_and_without_exceptions() {
    for compiler in compilers(["g++", "clang++"]) {
        for standard in ["-std=c++17", "-std=c++20"] {
            for exceptions in ["-fexceptions", "-fno-exceptions"] {
                compiles(compiler, &[standard, exceptions], "outrigger/outrigger.hpp");
            }
        }
    }
}

/// Builds a host against the library, and returns the program.
fn host(compiler: &str, flags: &[&str], source: &str, include: &Path) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("outrigger-hosts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for programs");
    let program = folder.join(format!("{compiler}-{}", source.replace(['/', '.'], "-")));
    let library = library_folder();
    succeeds(
        Command::new(compiler)
            .args(flags)
            .args(["-Wall", "-Wextra", "-Werror", "-I"])
            .arg(include)
            .arg(root().join(source))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&library)
            .args(["-loutrigger", "-ldl", "-pthread"])
            .arg(format!("-Wl,-rpath,{}", library.display())),
    );
    program
}

#[test]
fn a_host_of_version_0_1_runs_linked_and_through_the_table() {
    let old = root().join("tests/abi/v0.1");
    let library = library_folder().join("liboutrigger.so");
    for compiler in compilers(["gcc", "clang"]) {
        let program = host(compiler, &["-std=c11"], "tests/abi/v0.1/host.c", &old);
        succeeds(&mut Command::new(&program));
        succeeds(Command::new(&program).arg("table").arg(&library));
    }
}

#[test]
fn the_cpp_face_owns_moves_and_reports() {
    let include = root().join("include");
    for compiler in compilers(["g++", "clang++"]) {
        for (source, flags) in [
            (
                "tests/cpp/results_host.cc",
                ["-std=c++17", "-fno-exceptions"],
            ),
            ("tests/cpp/threads_host.cc", ["-std=c++17", "-O1"]),
            ("examples/hello-cpp/hello.cc", ["-std=c++17", "-O1"]),
            ("examples/mlp-cpp/mlp.cc", ["-std=c++17", "-O1"]),
            ("examples/operator-cpp/operator.cc", ["-std=c++17", "-O1"]),
        ] {
            let program = host(compiler, &flags, source, &include);
            for driver in ["host?face=unified", "host?face=discrete"] {
                succeeds(Command::new(&program).env("OUTRIGGER_DRIVER", driver));
            }
        }
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "what was skipped is said")]
fn the_cpp_face_loads_code_and_launches_it() {
    let Ok(driver) = std::env::var("OUTRIGGER_TEST_OPENCL") else {
        println!("skipped: OUTRIGGER_TEST_OPENCL names no driver for OpenCL");
        return;
    };
    let include = root().join("include");
    for compiler in compilers(["g++", "clang++"]) {
        let flags = ["-std=c++17", "-fno-exceptions", "-Wconversion"];
        let program = host(compiler, &flags, "tests/cpp/modules_host.cc", &include);
        for face in ["host_visible=0", "host_visible=1"] {
            let spec = format!("{driver}?device=0&{face}");
            succeeds(Command::new(&program).env("OUTRIGGER_DRIVER", spec));
        }
    }
}

#[test]
fn the_page_for_hosts_shows_the_examples_that_are_compiled() {
    let read = |name| std::fs::read_to_string(root().join(name)).expect("a file of the repository");
    let page = read("docs/hosts.md");
    for name in [
        "examples/hello-cpp/hello.cc",
        "examples/operator-cpp/operator.cc",
    ] {
        let example = read(name);
        let (_head, program) = example
            .split_once("\n\n")
            .expect("a head, then the program");
        assert!(
            page.contains(&format!("```cpp\n{program}```")),
            "docs/hosts.md does not show {name}: copy the program below its head there"
        );
    }
}
