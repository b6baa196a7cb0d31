//! `cargo xtask freeze VERSION`: keeps the driver contract as it is now, in `tests/frozen/VERSION`: its headers, the driver in
//! C that is written for it, and what a compiler made of both. Every run of the tests has these drivers pass the core tier
//! with the library of that day. Whether they do is no business of this module.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;

use crate::shell;
use crate::workspace::Workspace;

/// Options of the command.
#[derive(Args)]
pub(crate) struct Options {
    /// Of the contract: 1.0-draft, 1.0; one that ends in -draft is made anew each time
    version: String,
}

/// The folder with a folder for each version.
const FROZEN: &str = "tests/frozen";

/// The ending of versions that may be frozen again.
const DRAFT: &str = "-draft";

/// The files that are kept, each with its place in the folder of a version.
const KEPT: [(&str, &str); 4] = [
    ("include/outrigger/base.h", "outrigger/base.h"),
    ("include/outrigger/driver.h", "outrigger/driver.h"),
    ("examples/driver-c/driver.c", "driver.c"),
    ("examples/driver-c/device.h", "device.h"),
];

/// The compiled driver in the folder of a version.
const BINARY: &str = "driver-x86_64-linux.so";

/// Without names of this machine and what changes from build to build.
const FLAGS: [&str; 9] = [
    "-std=c11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-shared",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,-z,noseparate-code",
];

/// The most bytes of a binary, which stays in the repository for ever.
const LARGEST: u64 = 64 << 10;

/// Freezes the contract of now as a version.
///
/// # Errors
/// For a version that is no name, or is frozen already and no draft; where the binary cannot be made.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let version = &options.version;
    let is_name = version.starts_with(|first: char| first.is_ascii_digit())
        && version
            .chars()
            .all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || ".-".contains(one));
    ensure!(
        is_name,
        "a version is like 1.0 or 1.0{DRAFT}, not {version}"
    );
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "the binary is one for Linux on x86-64: freeze there"
    );
    let folder = workspace.path(FROZEN).join(version);
    if folder.exists() {
        ensure!(
            version.ends_with(DRAFT),
            "{version} is frozen, and a contract that was released does not change: choose the next version"
        );
        fs::remove_dir_all(&folder)
            .with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    for (from, to) in KEPT {
        let to = folder.join(to);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("{} cannot be made", parent.display()))?;
        }
        fs::copy(workspace.path(from), &to).with_context(|| format!("{from} cannot be copied"))?;
    }
    let binary = folder.join(BINARY);
    build(workspace, &folder, &binary)?;
    let size = fs::metadata(&binary)?.len();
    ensure!(
        size <= LARGEST,
        "{} has {size} bytes, more than {LARGEST}",
        binary.display()
    );
    println!(
        "{FROZEN}/{version}: {} files and {BINARY}, {size} bytes",
        KEPT.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// The driver of each version that is frozen, with the version: its binary, or what its source becomes where that does
/// not run.
///
/// # Errors
/// If there is none, or a driver cannot be built.
pub(crate) fn drivers(workspace: &Workspace) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let entries = fs::read_dir(workspace.path(FROZEN)).context(FROZEN)?;
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    ensure!(
        !folders.is_empty(),
        "{FROZEN} has no version: cargo xtask freeze VERSION"
    );
    folders
        .into_iter()
        .map(|folder| {
            let version = folder.file_name().unwrap_or_default();
            let version = version.to_string_lossy().into_owned();
            if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
                let binary = folder.join(BINARY);
                ensure!(binary.is_file(), "{} is missing", binary.display());
                return Ok((version, binary));
            }
            let made = workspace.target("xtask/frozen");
            fs::create_dir_all(&made)
                .with_context(|| format!("{} cannot be made", made.display()))?;
            let library = made.join(format!("{version}.so"));
            build(workspace, &folder, &library)?;
            Ok((version, library))
        })
        .collect()
}

/// Compiles the kept source against the kept headers.
fn build(workspace: &Workspace, folder: &Path, library: &Path) -> anyhow::Result<()> {
    // With names from there, none of this machine gets into the binary.
    let mut command = Command::new("cc");
    command.current_dir(folder).args(FLAGS);
    command.args(["-I", ".", "-o"]).arg(library).arg("driver.c");
    let title = format!("building the driver in {}", folder.display());
    shell::step(workspace, &title, &mut command)
        .context("a C compiler is needed (Debian: apt-get install gcc)")?;
    Ok(())
}
