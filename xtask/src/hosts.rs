//! The suite `hosts`. It unpacks the archive of `cargo xtask dist` into an empty folder, builds its
//! examples with every compiler that a host may use, through CMake and pkg-config, and runs them. Then
//! it runs hosts in C and C++ under sanitizers. It must never use files of the repository that the
//! archive should contain.
//!
//! The library itself is built without sanitizers. They cover the hosts, the C++ headers that these
//! include, and the memory that passes between host and library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::dist;
use crate::shell;
use crate::workspace::Workspace;

/// A program that says nothing for so long hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// The compilers of hosts: C, C++.
const COMPILERS: [(&str, &str); 2] = [("gcc", "g++"), ("clang", "clang++")];

/// Drivers that the examples run on.
const DRIVERS: [&str; 2] = ["host?face=unified", "host?face=discrete"];

/// An example of the archive and the program that it makes.
struct Example {
    folder: &'static str,
    program: &'static str,
    /// The one source, and whether pkg-config is enough for it: the bridge has sources of its own.
    plain: Option<&'static str>,
}

const EXAMPLES: [Example; 4] = [
    Example {
        folder: "hello-cpp",
        program: "hello",
        plain: Some("hello.cc"),
    },
    Example {
        folder: "graph-c",
        program: "graph",
        plain: Some("graph.c"),
    },
    Example {
        folder: "mlp-cpp",
        program: "mlp",
        plain: Some("mlp.cc"),
    },
    Example {
        folder: "graph-cpp",
        program: "graph",
        plain: None,
    },
];

/// Hosts that run under sanitizers, from the root of the repository.
const SANITIZED: [&str; 4] = [
    "examples/graph-c/graph.c",
    "examples/mlp-cpp/mlp.cc",
    "tests/cpp/threads_host.cc",
    "tests/cpp/results_host.cc",
];

/// Runs everything; how many checks passed and how many failed.
///
/// # Errors
/// If the archive cannot be made, or something cannot be started.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<(u64, u64)> {
    let folder = workspace.target("xtask/hosts");
    if folder.exists() {
        fs::remove_dir_all(&folder).context("the folder of an earlier run cannot be removed")?;
    }
    // A blank in the path: it must not matter where the archive is unpacked.
    let place = folder.join("un packed");
    fs::create_dir_all(&place)?;
    // Of the build that the other suites have made: the archive is what is tested, not the optimizer.
    let archive = dist::pack(workspace, &folder, true)?;
    shell::step(
        workspace,
        "unpacking",
        Command::new("tar")
            .arg("-xzf")
            .arg(&archive)
            .arg("-C")
            .arg(&place),
    )?;
    let name = archive
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_suffix(".tar.gz"))
        .context("the archive is named after its folder")?;
    // The packed folder is removed, so that nothing can be found there by accident.
    fs::remove_dir_all(folder.join(name))?;
    fs::remove_file(&archive)?;
    let mut hosts = Hosts {
        workspace,
        prefix: place.join(name),
        folder: folder.clone(),
        passed: 0,
        failed: 0,
    };
    let version = Command::new(hosts.prefix.join("bin/outrigger"))
        .arg("--version")
        .output();
    hosts.count(
        "the command line starts",
        version.is_ok_and(|output| output.status.success()),
    );
    hosts.new_driver()?;
    for (c, cpp) in COMPILERS {
        for example in EXAMPLES {
            hosts.through_cmake(&example, c, cpp)?;
            if let Some(source) = example.plain {
                let compiler = if source.ends_with(".c") { c } else { cpp };
                hosts.through_pkg_config(&example, source, compiler)?;
            }
        }
    }
    for source in SANITIZED {
        for sanitizer in ["address,undefined", "thread"] {
            hosts.sanitized(source, sanitizer)?;
        }
    }
    if hosts.failed == 0 {
        // Nobody wants to look at it: it is as large as what was built.
        fs::remove_dir_all(&folder)?;
    }
    Ok((hosts.passed, hosts.failed))
}

/// The unpacked archive, and what was found about it.
struct Hosts<'a> {
    workspace: &'a Workspace,
    /// The folder into which the archive was unpacked.
    prefix: PathBuf,
    /// The folder to build in.
    folder: PathBuf,
    passed: u64,
    failed: u64,
}

impl Hosts<'_> {
    /// A vendor begins with the archive alone.
    fn new_driver(&mut self) -> anyhow::Result<()> {
        let program = self.prefix.join("bin/outrigger");
        let folder = self.folder.join("acme");
        let mut new = Command::new(&program);
        new.args(["new", "acme", "--to"]).arg(&folder);
        let mut check = Command::new("make");
        check
            .arg("-C")
            .arg(&folder)
            .args(["check", "CFLAGS=-O2 -Werror"])
            .arg(format!("OUTRIGGER='{}'", program.display()));
        let title = "a new driver";
        let passed = self.builds(title, &mut new)? && self.builds(title, &mut check)?;
        self.passed += u64::from(passed);
        Ok(())
    }

    fn through_cmake(&mut self, example: &Example, c: &str, cpp: &str) -> anyhow::Result<()> {
        let title = format!("{} by {c} through CMake", example.folder);
        let build = self.folder.join(title.replace(' ', "-"));
        let mut configure = Command::new("cmake");
        configure
            .arg("-S")
            .arg(self.source(example))
            .arg("-B")
            .arg(&build)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", self.prefix.display()))
            .args([
                format!("-DCMAKE_C_COMPILER={c}"),
                format!("-DCMAKE_CXX_COMPILER={cpp}"),
            ]);
        let mut compile = Command::new("cmake");
        compile.arg("--build").arg(&build);
        if self.builds(&title, &mut configure)? && self.builds(&title, &mut compile)? {
            self.runs(&title, &build.join(example.program))?;
        }
        Ok(())
    }

    fn through_pkg_config(
        &mut self,
        example: &Example,
        source: &str,
        compiler: &str,
    ) -> anyhow::Result<()> {
        let title = format!("{} by {compiler} through pkg-config", example.folder);
        let program = self.folder.join(title.replace(' ', "-"));
        // As the README of the archive says: the shell splits what pkg-config prints.
        let script = "eval \"$0\" \"$3\" -Wall -Wextra -Wpedantic -Werror \"'$1'\" -o \"'$2'\" \
                      \"$(pkg-config --cflags --libs outrigger)\" -pthread \
                      \"-Wl,-rpath,$(pkg-config --variable=libdir outrigger)\"";
        let mut compile = Command::new("sh");
        compile
            .args(["-c", script, compiler])
            .arg(self.source(example).join(source))
            .arg(&program)
            .arg(if source.ends_with(".c") {
                "-std=c11"
            } else {
                "-std=c++17"
            })
            .env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"));
        if self.builds(&title, &mut compile)? {
            self.runs(&title, &program)?;
        }
        Ok(())
    }

    fn sanitized(&mut self, source: &str, sanitizer: &str) -> anyhow::Result<()> {
        let title = format!("{source} under {sanitizer}");
        let program = self.folder.join(title.replace(['/', ' ', ','], "-"));
        let is_c = source.ends_with(".c");
        let library = self.prefix.join("lib");
        let mut compile = Command::new(if is_c { "gcc" } else { "g++" });
        compile
            .args([
                if is_c { "-std=c11" } else { "-std=c++17" },
                "-g",
                "-O1",
                "-pthread",
            ])
            .args([
                format!("-fsanitize={sanitizer}"),
                "-fno-sanitize-recover=all".to_owned(),
            ])
            .args(source.contains("results").then_some("-fno-exceptions"))
            .arg("-I")
            .arg(self.prefix.join("include"))
            .arg(self.workspace.path(source))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&library)
            .arg("-loutrigger")
            .arg(format!("-Wl,-rpath,{}", library.display()));
        if self.builds(&title, &mut compile)? {
            self.runs(&title, &program)?;
        }
        Ok(())
    }

    fn source(&self, example: &Example) -> PathBuf {
        self.prefix
            .join("share/outrigger/examples")
            .join(example.folder)
    }

    /// Runs a step of a build; a failure is counted.
    fn builds(&mut self, title: &str, command: &mut Command) -> anyhow::Result<bool> {
        let finished = shell::attempt(self.workspace, &format!("building {title}"), command, None)?;
        if !finished.success() {
            eprintln!("{}", finished.tail());
            self.failed += 1;
        }
        Ok(finished.success())
    }

    /// Runs a program on every driver and counts how it ends.
    fn runs(&mut self, title: &str, program: &Path) -> anyhow::Result<()> {
        let suppressions = self.workspace.path("tests/cpp/tsan.supp");
        for driver in DRIVERS {
            let mut command = Command::new(program);
            command
                .env("OUTRIGGER_DRIVER", driver)
                .env_remove("LD_LIBRARY_PATH") // only the archive's library is meant
                .env(
                    "TSAN_OPTIONS",
                    format!(
                        "ignore_noninstrumented_modules=1 suppressions={}",
                        suppressions.display()
                    ),
                );
            let title = format!("{title} on {driver}");
            let finished = shell::attempt(self.workspace, &title, &mut command, Some(LIMIT))?;
            if !finished.success() {
                eprintln!("{}", finished.tail());
            }
            self.count(&title, finished.success());
        }
        Ok(())
    }

    fn count(&mut self, title: &str, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            eprintln!("error: {title}");
            self.failed += 1;
        }
    }
}
