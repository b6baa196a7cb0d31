//! The conformance suite on every driver that needs no hardware. Each driver must pass all of it, and
//! `outrigger verify` must accept the report. A test without a verdict is never counted as passed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use super::LIMIT;
use super::counts::Counts;
use super::jobs::SECOND_DRIVER;
use crate::freeze;
use crate::native::DriverSpec;
use crate::opencl;
use crate::shell;
use crate::workspace::Workspace;

/// Builds the second driver as its author would.
pub(super) fn second_driver(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let library = reports(workspace)?.join("liboutrigger_second.so");
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-fPIC", "-fvisibility=hidden", "-pthread", "-shared"])
        .arg("-I")
        .arg(workspace.path("include"))
        .arg("-o")
        .arg(&library)
        .arg(workspace.path(SECOND_DRIVER));
    shell::step(workspace, "building the second driver", &mut command)?;
    Ok(library)
}

/// Runs the core tier on a driver of each version of the contract that is frozen.
pub(super) fn frozen(workspace: &Workspace) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    for (version, library) in freeze::drivers(workspace)? {
        let text = format!("{}?devices=2&memory=268435456", library.display());
        let driver = DriverSpec::new(workspace, text)?;
        let name = format!("conf frozen {version}");
        counts.add(suite(workspace, &name, &driver, &["--tier", "core"])?);
    }
    Ok(counts)
}

/// The folder for reports.
pub(super) fn reports(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.target("xtask/conformance");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    Ok(folder)
}

/// Runs the suite on one driver with options of the command line, and has its report verified.
pub(super) fn suite(
    workspace: &Workspace,
    name: &str,
    driver: &DriverSpec,
    options: &[&str],
) -> anyhow::Result<Counts> {
    let program = workspace.target("debug/outrigger");
    let stem = reports(workspace)?.join(name.replace(' ', "-"));
    let (json, junit) = (stem.with_extension("json"), stem.with_extension("xml"));
    shell::forget(&json)?;
    shell::forget(&junit)?;
    let mut command = Command::new(&program);
    driver.prepare(
        &mut command,
        std::env::var_os(opencl::LIBRARIES).unwrap_or_default(),
    );
    command
        .args(["conformance", "--driver", &driver.text])
        .args(options)
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(stem.with_extension("html"))
        .arg("--junit")
        .arg(&junit);
    let finished = shell::attempt(workspace, name, &mut command, Some(LIMIT))?;
    if !finished.success() {
        eprintln!("{}\nall of it: {}", finished.tail(), finished.log.display());
    }
    let mut counts = Counts::of_file(&junit)?;
    let mut verify = Command::new(&program);
    verify.arg("verify").arg(&json);
    let verified = shell::attempt(workspace, "verifying the report", &mut verify, Some(LIMIT))?;
    if !finished.success() || !verified.success() {
        eprintln!("{}", verified.tail());
        counts.failed = counts.failed.max(1);
    }
    Ok(counts)
}
