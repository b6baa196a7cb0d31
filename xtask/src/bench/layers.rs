//! The suite `layers`: counts the instructions of calls of the C ABI, with the layers built in and off,
//! and in a build without layers. It counts instructions because, unlike times, they are the same in
//! every run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use super::programs;
use crate::shell;
use crate::workspace::Workspace;

/// The most by which the layers may slow calls down when they are built in.
const BAR: &str = " (bar: 0.5 %)";

/// A layer that lets everything through.
const IDLE: &str = "fault:seed=0";

/// Work runs on whichever thread comes first: the fewest instructions of so many runs are those of the calls.
const RUNS: u32 = 5;

/// The function of benches/native/outrigger_calls.cpp whose instructions are counted.
const COUNTED: &str = "outrigger_counted_rounds";

/// Counts, and shows the table.
///
/// # Errors
/// If something cannot be built, or valgrind does not run.
pub(super) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    // The build as it is comes last: it is what stays.
    let without = library(workspace, "without", &["--no-default-features"])?;
    let off = library(workspace, "off", &[])?;
    let program = programs::calls(workspace)?;
    let base = count(workspace, &program, &without, "")?;
    let mut table = format!("\nlayers\n    not built in      {base:>12} instructions\n");
    // The second is what a difference looks like.
    for (title, layers, bar) in [
        ("built in and off", "", BAR),
        ("one that is idle", IDLE, ""),
    ] {
        let counted = count(workspace, &program, &off, layers)?;
        let percent = 100.0 * (counted as f64 / base as f64 - 1.0);
        let row = format!("    {title:<18}{counted:>12} instructions, {percent:+.3} %{bar}\n");
        table += &row;
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

/// Builds the library, and gives the folder of a copy of it.
fn library(workspace: &Workspace, name: &str, features: &[&str]) -> anyhow::Result<PathBuf> {
    let mut build = workspace.cargo(&["build", "--release", "--package", "outrigger"]);
    build.args(features);
    shell::step(
        workspace,
        &format!("building the library, layers {name}"),
        &mut build,
    )?;
    let folder = workspace.target("xtask/bench-layers").join(name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let built = workspace.library_folder().join("liboutrigger.so");
    fs::copy(&built, folder.join("liboutrigger.so"))
        .with_context(|| format!("{} cannot be copied", built.display()))?;
    Ok(folder)
}

/// The instructions of the counted calls over the library of a folder.
fn count(
    workspace: &Workspace,
    program: &Path,
    library: &Path,
    layers: &str,
) -> anyhow::Result<u64> {
    let mut fewest = u64::MAX;
    for _ in 0..RUNS {
        let mut callgrind = Command::new("valgrind");
        callgrind
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(format!("--toggle-collect={COUNTED}"))
            .arg(program)
            .env("LD_LIBRARY_PATH", library)
            .env("OUTRIGGER_DRIVER", "host?devices=1")
            .env("OUTRIGGER_LAYERS", layers);
        let finished = shell::step(workspace, "counting instructions", &mut callgrind)?;
        let collected = finished.output.lines().find_map(|line| {
            let (_, count) = line.split_once("Collected : ")?;
            count.trim().parse::<u64>().ok()
        });
        let collected = collected.context("valgrind says no number")?;
        ensure!(collected > 0, "{COUNTED} was never called");
        fewest = fewest.min(collected);
    }
    Ok(fewest)
}
