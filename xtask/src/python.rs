//! `cargo xtask python`: the project's Python, with the device loaded by `import torch`.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::Args;

use crate::native;
use crate::workspace::Workspace;

/// What to hand to Python.
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
    native::prepare(workspace)?;
    // Python keeps the terminal, signals and exit status to itself: this process is replaced.
    let failure = native::python(workspace, None)
        .args(&options.arguments)
        .exec();
    Err(anyhow::Error::new(failure).context("Python could not be started"))
}
