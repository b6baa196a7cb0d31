//! The suite `alloc`: builds its program, benches/alloc, and PyTorch's own allocator as a peer, and
//! runs both. It measures nothing itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::programs;
use crate::shell;
use crate::workspace::Workspace;

const PROGRAM: &str = "outrigger-bench-alloc";

/// Options of this suite alone.
#[derive(Args)]
#[command(next_help_heading = "Suite alloc")]
#[group(id = "alloc")]
pub(super) struct Options {
    /// Folder of traces, `*.trace` or `*.trace.zst` [default: benches/traces]
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Bytes of the simulated device, or `search` for an unlimited one and the smallest that each trace fits
    #[arg(long, default_value = "search", value_name = "BYTES|search")]
    capacity: String,
    /// Operations of a trace after which an event has passed
    #[arg(long, default_value_t = 200, value_name = "OPS")]
    lag: u64,
    /// Further options, as for the costs of calls: `-- --help` lists them
    #[arg(last = true, value_name = "OPTIONS")]
    further: Vec<String>,
}

/// Measures; the table goes to the terminal.
///
/// # Errors
/// If the program cannot be built or started. PyTorch's allocator is missing if it cannot be built.
pub(super) fn run(
    workspace: &Workspace,
    options: &Options,
    json: Option<&Path>,
    only: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let mut build = workspace.cargo(&["build", "--release", "--package", PROGRAM]);
    shell::step(workspace, "building the suite alloc", &mut build)?;
    let mut measure = std::process::Command::new(workspace.target("release").join(PROGRAM));
    let own = workspace.path("benches/traces");
    measure
        .arg("--traces")
        .arg(options.traces.as_ref().unwrap_or(&own))
        .args(["--capacity", &options.capacity])
        .args(["--lag", &options.lag.to_string()]);
    match programs::torch_allocator(workspace) {
        Ok(program) => measure.arg("--torch").arg(program),
        Err(error) => {
            let reason = format!("{error:#}");
            let line = reason.lines().next().unwrap_or_default();
            measure.args(["--torch-missing", line])
        }
    };
    if let Some(only) = only {
        measure.args(["--only", only]);
    }
    if let Some(file) = json {
        measure.arg("--json").arg(file);
    }
    let status = measure
        .args(&options.further)
        .status()
        .with_context(|| format!("{PROGRAM} could not be started"))?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
