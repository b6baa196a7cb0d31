//! The tests in Rust, through `cargo test`.

use std::process::Command;
use std::time::Duration;

use super::counts::Counts;
use crate::native;
use crate::shell;
use crate::workspace::Workspace;

/// All tests of the workspace.
pub(super) fn suite(workspace: &Workspace, limit: Duration) -> anyhow::Result<Counts> {
    // Output of passing tests is shown, since that is where a test says that it skipped itself.
    let mut command = workspace.cargo(&[
        "test",
        "--workspace",
        "--no-fail-fast",
        "--",
        "--show-output",
    ]);
    // Cargo builds no library that only programs load.
    command.env("OUTRIGGER_TEST_OPENCL", native::opencl_driver(workspace)?);
    run(workspace, "rust", &mut command, limit)
}

/// Runs a `cargo test` to its end and reads what it counted.
pub(super) fn run(
    workspace: &Workspace,
    title: &str,
    command: &mut Command,
    limit: Duration,
) -> anyhow::Result<Counts> {
    let finished = shell::attempt(workspace, title, command, Some(limit))?;
    let mut counts = Counts::of_libtest(&finished.output);
    if !finished.success() {
        eprintln!(
            "{}\nall of it: {}",
            failures(&finished.output),
            finished.log.display()
        );
        // It did not build, or a test program died: Cargo failed without a failed test to count.
        counts.failed = counts.failed.max(1);
    }
    Ok(counts)
}

/// What a person wants to see of a failed run: errors of the compiler, failing tests, and reports of
/// sanitizers.
fn failures(output: &str) -> String {
    let interesting = |line: &&str| {
        line.starts_with("error")
            || line.ends_with("... FAILED")
            || line.contains("panicked at")
            || line.starts_with("SUMMARY: ")
    };
    let lines: Vec<&str> = output.lines().filter(interesting).take(60).collect();
    lines.join("\n")
}
