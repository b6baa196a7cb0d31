//! `cargo xtask bench`: runs suites of the folder benches/ and shows their tables. The suites measure;
//! this only prepares and passes on.

mod peers;
mod programs;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::native;
use crate::workspace::Workspace;

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// The suites
    #[arg(default_value = "eager")]
    suites: Vec<Suite>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The driver, as for the demo
    #[arg(long, default_value = "host", value_name = "SPEC_OR_PATH")]
    driver: String,
    /// Measure only these metrics, separated by commas
    #[arg(long, value_name = "METRICS")]
    only: Option<String>,
}

/// The suites of benches/.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// PyTorch operators, training steps, copies and events, against CPU tensors
    Eager,
    /// Launches, events and hops between streams through the C ABI, against OpenCL on the CPU
    Stream,
    /// Capture, replay, rebinding and update of graphs, against what else replays graphs on the CPU
    Graph,
}

impl Suite {
    /// What benches/ calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Stream => "stream",
            Self::Graph => "graph",
        }
    }
}

/// Measures; the exit status says whether the measuring worked, not whether the bars were met.
///
/// # Errors
/// If something cannot be prepared or Python not started. A peer that cannot be prepared is no error: it is
/// reported as missing.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let driver = native::driver(workspace, &options.driver, None)?;
    native::prepare(workspace)?;
    let mut python = native::python(workspace, Some(&driver));
    python.args(["-m", "benches"]);
    python.args(options.suites.iter().map(|suite| suite.name()));
    if options.suites.iter().any(|suite| *suite != Suite::Eager) {
        python.arg("--subjects").arg(programs::prepare(workspace)?);
    }
    if let Some(file) = &options.json {
        let file = std::path::absolute(file).context("the name of the JSON file")?;
        python.arg("--json").arg(file);
    }
    if let Some(only) = &options.only {
        python.args(["--only", only]);
    }
    let status = python
        .current_dir(workspace.root())
        .status()
        .context("Python could not be started")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
