//! `cargo xtask python`: a Python with the wheel installed, where `import torch` loads the device.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::Args;

use crate::wheel;
use crate::workspace::Workspace;

/// The arguments that Python gets.
#[derive(Args)]
pub(crate) struct Options {
    /// Arguments for Python, as they are
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    arguments: Vec<String>,
}

/// Prepares what Python needs, then becomes Python.
///
/// # Errors
/// If something cannot be prepared or Python not started.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut python = wheel::python(workspace, None)?;
    // Python keeps the terminal, signals and exit status to itself: this process is replaced.
    let failure = python.args(&options.arguments).exec();
    Err(anyhow::Error::new(failure).context("Python could not be started"))
}
