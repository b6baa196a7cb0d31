//! `cargo xtask bench`: runs a suite of the folder benches/ and shows its table. The suites measure;
//! this only prepares and passes on.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::native;
use crate::workspace::Workspace;

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// The suite
    #[arg(default_value = "eager")]
    suite: Suite,
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
#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    /// PyTorch operators, training steps, copies and events, against CPU tensors
    Eager,
}

impl Suite {
    /// The Python module of the suite.
    fn module(self) -> &'static str {
        match self {
            Self::Eager => "benches.eager",
        }
    }
}

/// Measures; the exit status says whether the measuring worked, not whether the bars were met.
///
/// # Errors
/// If something cannot be prepared or Python not started.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let driver = native::driver(workspace, &options.driver, None)?;
    native::prepare(workspace)?;
    let mut python = native::python(workspace, Some(&driver));
    python.args(["-m", options.suite.module()]);
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
