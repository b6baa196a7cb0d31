//! `cargo xtask bench`: runs suites of the folder benches/ and shows their tables. The suites measure;
//! this module only prepares them.

mod alloc;
mod layers;
mod peers;
mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};

use crate::native;
use crate::workspace::Workspace;

/// Options of a measurement.
#[derive(Args)]
pub(crate) struct Options {
    /// The suites
    #[arg(default_value = "eager")]
    suites: Vec<Suite>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the results to this page, with machine and date; not of the suites alloc and layers
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// The driver, as for the demo
    #[arg(long, default_value = "host", value_name = "SPEC_OR_PATH")]
    driver: String,
    /// Measure only these metrics, separated by commas
    #[arg(long, value_name = "METRICS")]
    only: Option<String>,
    /// Blocks per subject that count; more of them make figures steadier [default: 31]
    #[arg(long, value_name = "COUNT")]
    rounds: Option<u32>,
    #[command(flatten)]
    alloc: alloc::Options,
}

/// The suites of benches/.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// PyTorch operators, training steps, copies and events, against CPU tensors
    Eager,
    /// Models of public libraries, eager and replayed, against CPU tensors
    Models,
    /// torch.compile: training steps, launches, first starts, against CPU tensors under stock Inductor
    Compile,
    /// Kernels of Triton, launches and first calls, against torch.compile of the same function and operators
    Triton,
    /// Launches, events and hops between streams through the C ABI, against OpenCL on the CPU
    Stream,
    /// Capture, replay, rebinding and update of graphs, against other libraries that replay graphs on
    /// the CPU
    Graph,
    /// Calls of a driver's operators through the C ABI, over a driver that does nothing
    Ops,
    /// The driver for OpenCL against OpenCL by hand: launches, replays, copies, operators and starts
    Driver,
    /// The allocator on recorded traces, against PyTorch's and others
    Alloc,
    /// Instructions of calls with the layers off, against a build without layers; alone, by valgrind
    Layers,
}

impl Suite {
    /// The name of the suite in benches/.
    fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Models => "models",
            Self::Compile => "compile",
            Self::Triton => "triton",
            Self::Stream => "stream",
            Self::Graph => "graph",
            Self::Ops => "ops",
            Self::Driver => "driver",
            Self::Alloc => "alloc",
            Self::Layers => "layers",
        }
    }

    /// True if PyTorch takes part.
    fn has_torch(self) -> bool {
        matches!(
            self,
            Self::Eager | Self::Models | Self::Compile | Self::Triton | Self::Graph
        )
    }
}

/// Runs the measurements. The exit status says whether they worked, not whether the bars were met.
///
/// # Errors
/// If something cannot be prepared or Python not started. A peer that cannot be prepared is no error: it is
/// reported as missing.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if options.suites.contains(&Suite::Layers) {
        ensure!(
            options.suites == [Suite::Layers],
            "the suite layers builds the library anew: run it alone"
        );
        return layers::run(workspace);
    }
    let json = options.json.as_deref().map(std::path::absolute);
    let json = json.transpose().context("the name of the JSON file")?;
    let only = options.only.as_deref();
    let (alloc, others): (Vec<Suite>, Vec<Suite>) = options
        .suites
        .iter()
        .partition(|suite| **suite == Suite::Alloc);
    if alloc.is_empty() {
        return python(workspace, options, &others, json.as_deref());
    }
    if others.is_empty() {
        return alloc::run(workspace, &options.alloc, json.as_deref(), only);
    }
    // Two programs write results: the file gets both lists as one.
    let part = json.as_ref().map(|_| workspace.target("bench-alloc.json"));
    let code = python(workspace, options, &others, json.as_deref())?;
    let alloc_code = alloc::run(workspace, &options.alloc, part.as_deref(), only)?;
    if let (Some(json), Some(part)) = (&json, &part) {
        append(json, part)?;
    }
    Ok(if code == ExitCode::SUCCESS {
        alloc_code
    } else {
        code
    })
}

/// The suites that Python measures.
fn python(
    workspace: &Workspace,
    options: &Options,
    suites: &[Suite],
    json: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let driver = native::driver(workspace, &options.driver, None)?;
    let mut python = if suites.iter().any(|suite| suite.has_torch()) {
        native::prepare(workspace)?;
        native::python(workspace, Some(&driver))
    } else {
        native::library(workspace)?;
        native::plain_python(workspace, &driver)
    };
    python.args(["-m", "benches"]);
    python.args(suites.iter().map(|suite| suite.name()));
    let of_peers = suites
        .iter()
        .any(|suite| matches!(suite, Suite::Stream | Suite::Graph | Suite::Ops));
    let of_driver = suites.contains(&Suite::Driver);
    if of_peers || of_driver {
        let subjects = programs::prepare(workspace, of_peers, of_driver)?;
        python.arg("--subjects").arg(subjects);
    }
    if suites.contains(&Suite::Compile) {
        native::library(workspace)?;
    }
    if let Some(file) = json {
        python.arg("--json").arg(file);
    }
    if let Some(page) = &options.page {
        python.arg("--page").arg(std::path::absolute(page)?);
    }
    if let Some(only) = &options.only {
        python.args(["--only", only]);
    }
    if let Some(rounds) = options.rounds {
        python.arg("--rounds").arg(rounds.to_string());
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

/// Adds the results of one file to those of another.
fn append(all: &Path, part: &Path) -> anyhow::Result<()> {
    let read = |file: &Path| -> anyhow::Result<Vec<serde_json::Value>> {
        let text = fs::read_to_string(file)
            .with_context(|| format!("{} cannot be read", file.display()))?;
        Ok(serde_json::from_str(&text)?)
    };
    let mut results = read(all)?;
    results.extend(read(part)?);
    fs::write(all, serde_json::to_string_pretty(&results)? + "\n")
        .with_context(|| format!("{} cannot be written", all.display()))
}
