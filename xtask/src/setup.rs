//! The needs of a chore from the machine. They are checked before any work, and what is missing is installed by name,
//! if that is allowed. If not, the chore stops with the one command that helps. Only what the chore names is installed;
//! nothing is ever removed or upgraded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure};

use crate::environment;
use crate::shell;
use crate::workspace::Workspace;

/// Something that a machine with Rust may lack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Need {
    /// A C++ compiler, of whatever name
    Compiler,
    /// GCC itself, for C and C++
    Gcc,
    /// Clang, for C and C++
    Clang,
    /// The program that builds drivers in C
    Make,
    /// The program that knows the files of the repository
    Git,
    /// The program that builds hosts
    CMake,
    /// The program by which hosts find the library
    PkgConfig,
    /// Python itself
    Python,
    /// The module of Python that makes environments
    Venv,
    /// The C headers of Python
    PythonHeaders,
    /// A browser without a window
    Browser,
    /// The formatter of Rust
    Rustfmt,
    /// The linter of Rust
    Clippy,
    /// The sources of std
    RustSource,
    /// The program that runs the tests in Rust
    Nextest,
    /// The library that finds OpenCL platforms
    OpenClLoader,
    /// An OpenCL platform that runs on every CPU
    OpenClPlatform,
}

/// The needs of a Python environment with the compiled shim in it.
pub(crate) const SHIM: [Need; 4] = [
    Need::Compiler,
    Need::Python,
    Need::Venv,
    Need::PythonHeaders,
];

/// The origin of a need.
enum Source {
    /// A package of Debian
    Package(&'static str),
    /// A component of the Rust toolchain
    Component(&'static str),
    /// A program of crates.io, which Cargo compiles: name and version
    Program(&'static str),
}

impl Need {
    /// The program, module or file, as a person calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Compiler => "a C++ compiler",
            Self::Gcc => "gcc and g++",
            Self::Clang => "clang and clang++",
            Self::Make => "make",
            Self::Git => "git",
            Self::CMake => "cmake",
            Self::PkgConfig => "pkg-config",
            Self::Python => "python3",
            Self::Venv => "Python's venv",
            Self::PythonHeaders => "Python.h",
            Self::Browser => "Chromium",
            Self::Rustfmt => "rustfmt",
            Self::Clippy => "clippy",
            Self::RustSource => "the sources of Rust's std",
            Self::Nextest => "cargo-nextest",
            Self::OpenClLoader => "libOpenCL.so.1",
            Self::OpenClPlatform => "PoCL",
        }
    }

    fn source(self) -> Source {
        match self {
            Self::Compiler | Self::Gcc => Source::Package("g++"),
            Self::Clang => Source::Package("clang"),
            Self::Make => Source::Package("make"),
            Self::Git => Source::Package("git"),
            Self::CMake => Source::Package("cmake"),
            Self::PkgConfig => Source::Package("pkg-config"),
            Self::Python => Source::Package("python3"),
            Self::Venv => Source::Package("python3-venv"),
            Self::PythonHeaders => Source::Package("python3-dev"),
            Self::Browser => Source::Package("chromium"),
            Self::Rustfmt => Source::Component("rustfmt"),
            Self::Clippy => Source::Component("clippy"),
            Self::RustSource => Source::Component("rust-src"),
            Self::Nextest => Source::Program("cargo-nextest@0.9.143"),
            Self::OpenClLoader => Source::Package("ocl-icd-libopencl1"),
            Self::OpenClPlatform => Source::Package("pocl-opencl-icd"),
        }
    }

    /// True if the machine has it.
    fn is_met(self, workspace: &Workspace) -> bool {
        let all = |programs: &[&str]| programs.iter().all(|program| runs(program, &["--version"]));
        match self {
            Self::Compiler => environment::cxx_compiler().is_ok(),
            Self::Gcc => all(&["gcc", "g++"]),
            Self::Clang => all(&["clang", "clang++"]),
            Self::Make => all(&["make"]),
            Self::Git => all(&["git"]),
            Self::CMake => all(&["cmake"]),
            Self::PkgConfig => all(&["pkg-config"]),
            Self::Python => python(""),
            Self::Venv => python(environment::HAS_VENV),
            Self::PythonHeaders => python(environment::HAS_HEADERS),
            Self::Browser => browser(),
            Self::Rustfmt => succeeds(&mut workspace.cargo(&["fmt", "--version"])),
            Self::Clippy => succeeds(&mut workspace.cargo(&["clippy", "--version"])),
            Self::RustSource => rust_source(),
            Self::Nextest => succeeds(&mut workspace.cargo(&["nextest", "--version"])),
            Self::OpenClLoader => has_library("libOpenCL.so.1"),
            Self::OpenClPlatform => Path::new("/etc/OpenCL/vendors/pocl.icd").is_file(),
        }
    }
}

/// True if `command` ends well; what it prints is nobody's business.
fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    succeeds(Command::new(program).args(arguments))
}

/// True if the system's loader knows a library.
fn has_library(name: &str) -> bool {
    let listed = Command::new("/sbin/ldconfig").arg("-p").output();
    listed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(name))
}

/// True if the Python that environments are made with runs `code`.
fn python(code: &str) -> bool {
    runs(&environment::python_program(), &["-c", code])
}

/// True if the toolchain has the sources of std.
fn rust_source() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    output.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout);
        let sources = PathBuf::from(sysroot.trim()).join("lib/rustlib/src/rust/library/std");
        output.status.success() && sources.is_dir()
    })
}

/// True if there is a browser that the tests of pages find: one of the system, or playwright's own.
fn browser() -> bool {
    const NAMES: [&str; 5] = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "chrome",
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_the_system = std::env::split_paths(&path)
        .any(|folder| NAMES.iter().any(|name| folder.join(name).is_file()));
    let of_playwright = std::env::var_os("PLAYWRIGHT_BROWSERS_PATH")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cache/ms-playwright")))
        .and_then(|folder| folder.read_dir().ok())
        .is_some_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("chromium"))
            })
        });
    of_the_system || of_playwright
}

/// Meets all `needs`, or stops with what a person has to do.
///
/// # Errors
/// If something is missing and may not or cannot be installed here.
pub(crate) fn ensure(workspace: &Workspace, needs: &[Need]) -> anyhow::Result<()> {
    let lacking = missing(needs, |need| need.is_met(workspace));
    if lacking.is_empty() {
        return Ok(());
    }
    let commands = match plan(&lacking, &Machine::look()) {
        Plan::Install(commands) => commands,
        Plan::Tell(text) => bail!(text),
    };
    eprintln!("     > missing: {}. Installing it:", names(&lacking));
    for words in &commands {
        let title = words.join(" ");
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("DEBIAN_FRONTEND", "noninteractive");
        shell::step(workspace, &title, &mut command)?;
    }
    let left = missing(&lacking, |need| need.is_met(workspace));
    ensure!(
        left.is_empty(),
        "still missing after the installation: {}",
        names(&left)
    );
    Ok(())
}

/// The needs among `needs` that are not met, each once.
fn missing(needs: &[Need], is_met: impl Fn(Need) -> bool) -> Vec<Need> {
    let needs: BTreeSet<Need> = needs.iter().copied().collect();
    needs.into_iter().filter(|&need| !is_met(need)).collect()
}

/// The needs as a person calls them.
fn names(needs: &[Need]) -> String {
    let names: Vec<&str> = needs.iter().map(|need| need.name()).collect();
    names.join(", ")
}

/// The ways in which the machine lets chores install.
#[derive(Clone, Copy)]
struct Machine {
    /// Whether the machine has `apt-get`.
    apt: bool,
    /// The way to become root.
    root: Root,
    /// Whether the machine has `rustup`.
    rustup: bool,
}

/// The way to become root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Root {
    /// The user is root.
    Already,
    /// `sudo` asks for no password.
    Sudo,
    /// `sudo` would ask for a password.
    SudoWithPassword,
    /// Only by hand.
    ByHand,
}

impl Machine {
    fn look() -> Self {
        let root = if is_root() {
            Root::Already
        } else if runs("sudo", &["-n", "true"]) {
            Root::Sudo
        } else if runs("sudo", &["--version"]) {
            Root::SudoWithPassword
        } else {
            Root::ByHand
        };
        Self {
            apt: runs("apt-get", &["--version"]),
            root,
            rustup: runs("rustup", &["--version"]),
        }
    }
}

fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// The steps that bring what is missing.
#[derive(PartialEq, Eq, Debug)]
enum Plan {
    /// Run these commands, one after the other.
    Install(Vec<Vec<String>>),
    /// Say this, and stop.
    Tell(String),
}

/// Installs what is missing where that needs no person, and else says what to run.
fn plan(missing: &[Need], machine: &Machine) -> Plan {
    let (mut packages, mut components) = (BTreeSet::new(), BTreeSet::new());
    let mut programs = BTreeSet::new();
    for need in missing {
        match need.source() {
            Source::Package(name) => packages.insert(name),
            Source::Component(name) => components.insert(name),
            Source::Program(name) => programs.insert(name),
        };
    }
    let mut commands = Vec::new();
    if !packages.is_empty() {
        let as_root: &[&str] = match machine.root {
            Root::Already | Root::ByHand => &[],
            Root::Sudo => &["sudo", "-n"],
            Root::SudoWithPassword => &["sudo"],
        };
        let install = ["apt-get", "install", "--yes", "--no-install-recommends"];
        commands.push(words(as_root, &["apt-get", "update"], &BTreeSet::new()));
        commands.push(words(as_root, &install, &packages));
    }
    if !components.is_empty() {
        commands.push(words(&[], &["rustup", "component", "add"], &components));
    }
    if !programs.is_empty() {
        commands.push(words(&[], &["cargo", "install", "--locked"], &programs));
    }
    let apt_may = machine.apt && matches!(machine.root, Root::Already | Root::Sudo);
    if (packages.is_empty() || apt_may) && (components.is_empty() || machine.rustup) {
        return Plan::Install(commands);
    }
    let line = commands.iter().map(|words| words.join(" "));
    let line = line.collect::<Vec<_>>().join(" && ");
    let how = if !packages.is_empty() && !machine.apt {
        "This machine has no apt-get; on Debian it would be"
    } else if !components.is_empty() && !machine.rustup {
        "This Rust was not installed by rustup; with rustup it would be"
    } else if machine.root == Root::ByHand {
        "Run this as root, then start again"
    } else {
        "Run this, then start again"
    };
    Plan::Tell(format!(
        "missing: {}. {how}:\n\n    {line}\n",
        names(missing)
    ))
}

fn words(before: &[&str], command: &[&str], names: &BTreeSet<&str>) -> Vec<String> {
    let all = before.iter().chain(command).chain(names);
    all.map(|&word| word.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Machine = Machine {
        apt: true,
        root: Root::Already,
        rustup: true,
    };

    fn told(missing: &[Need], machine: &Machine) -> String {
        match plan(missing, machine) {
            Plan::Tell(text) => text,
            Plan::Install(commands) => panic!("it would run {commands:?}"),
        }
    }

    fn run(missing: &[Need], machine: &Machine) -> Vec<String> {
        match plan(missing, machine) {
            Plan::Install(commands) => commands.iter().map(|words| words.join(" ")).collect(),
            Plan::Tell(text) => panic!("it would only say {text}"),
        }
    }

    #[test]
    fn only_what_is_asked_for_and_not_there_is_missing() {
        let there = [Need::Compiler, Need::Python];
        let asked = [Need::Make, Need::Compiler, Need::Clang, Need::Make];
        let lacking = missing(&asked, |need| there.contains(&need));
        assert_eq!(lacking, [Need::Clang, Need::Make]);
    }

    #[test]
    fn root_installs_each_package_once() {
        let lacking = [Need::Compiler, Need::Gcc, Need::Browser];
        assert_eq!(
            run(&lacking, &OPEN),
            [
                "apt-get update",
                "apt-get install --yes --no-install-recommends chromium g++"
            ]
        );
    }

    #[test]
    fn sudo_is_used_where_it_asks_for_no_password() {
        let machine = Machine {
            root: Root::Sudo,
            ..OPEN
        };
        assert_eq!(
            run(&[Need::CMake], &machine),
            [
                "sudo -n apt-get update",
                "sudo -n apt-get install --yes --no-install-recommends cmake"
            ]
        );
    }

    #[test]
    fn components_need_no_root() {
        let machine = Machine {
            apt: false,
            root: Root::ByHand,
            rustup: true,
        };
        assert_eq!(
            run(&[Need::Rustfmt, Need::Clippy], &machine),
            ["rustup component add clippy rustfmt"]
        );
    }

    #[test]
    fn cargo_compiles_what_only_it_has() {
        let commands = run(&[Need::Nextest], &OPEN);
        assert_eq!(commands, ["cargo install --locked cargo-nextest@0.9.143"]);
    }

    #[test]
    fn who_would_be_asked_for_a_password_gets_one_command() {
        let machine = Machine {
            root: Root::SudoWithPassword,
            ..OPEN
        };
        let text = told(&[Need::Clang, Need::Clippy], &machine);
        let line = "    sudo apt-get update && sudo apt-get install --yes --no-install-recommends \
                    clang && rustup component add clippy\n";
        assert!(text.ends_with(line), "{text}");
        assert!(text.contains("clang and clang++, clippy"), "{text}");
    }

    #[test]
    fn a_machine_without_sudo_says_that_root_is_needed() {
        let machine = Machine {
            root: Root::ByHand,
            ..OPEN
        };
        let text = told(&[Need::Venv], &machine);
        assert!(text.contains("as root"), "{text}");
        assert!(
            text.contains("\n    apt-get update && apt-get install"),
            "{text}"
        );
        assert!(text.contains("python3-venv"), "{text}");
    }

    #[test]
    fn a_machine_without_apt_is_told_the_names_of_debian() {
        let machine = Machine { apt: false, ..OPEN };
        let text = told(&[Need::PkgConfig], &machine);
        assert!(text.contains("no apt-get"), "{text}");
        assert!(
            text.contains("install --yes --no-install-recommends pkg-config"),
            "{text}"
        );
    }

    #[test]
    fn components_without_rustup_are_named() {
        let machine = Machine {
            rustup: false,
            ..OPEN
        };
        let text = told(&[Need::Rustfmt], &machine);
        assert!(text.contains("not installed by rustup"), "{text}");
    }
}
