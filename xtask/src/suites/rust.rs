//! The tests in Rust, which nextest runs: each test in a process of its own.

use std::process::Command;

use super::LIMIT;
use super::counts::Counts;
use crate::native;
use crate::shell;
use crate::workspace::Workspace;

/// All tests of the workspace.
pub(super) fn suite(workspace: &Workspace) -> anyhow::Result<Counts> {
    tests(workspace, &[])
}

/// The tests with `name`, `count` times each.
pub(super) fn repeated(workspace: &Workspace, count: u32, name: &str) -> anyhow::Result<Counts> {
    let (filter, count) = (format!("test({name})"), count.to_string());
    tests(
        workspace,
        &["--filterset", &filter, "--stress-count", &count],
    )
}

fn tests(workspace: &Workspace, options: &[&str]) -> anyhow::Result<Counts> {
    let nextest = |options: &[&str]| {
        let mut command = workspace.cargo(&["nextest", "run", "--workspace"]);
        command.args(options);
        command
    };
    shell::step(
        workspace,
        "building the tests in Rust",
        &mut nextest(&["--no-run"]),
    )?;
    // Cargo builds no library that only programs load.
    native::programs(workspace)?;
    let mut command = nextest(options);
    let opencl = workspace.target("debug/liboutrigger_opencl.so");
    command.env("OUTRIGGER_TEST_OPENCL", opencl);
    run(workspace, "rust", &mut command)
}

/// Runs nextest to its end and reads its report.
pub(super) fn run(
    workspace: &Workspace,
    title: &str,
    command: &mut Command,
) -> anyhow::Result<Counts> {
    // In the repository, wherever Cargo builds.
    let report = workspace.path("target/nextest/default/junit.xml");
    shell::forget(&report)?;
    let finished = shell::attempt(workspace, title, command, Some(LIMIT))?;
    let mut counts = Counts::of_file(&report).unwrap_or_else(|_| Counts::single(false));
    if !finished.success() {
        eprintln!("{}\nall of it: {}", finished.tail(), finished.log.display());
        counts.failed = counts.failed.max(1);
    }
    Ok(counts)
}
