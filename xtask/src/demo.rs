//! `cargo xtask demo`: prepares everything on a fresh machine, installs the wheel, then runs the Python package `demo` over it.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::disk;
use crate::native;
use crate::setup::{self, Need};
use crate::wheel;
use crate::workspace::Workspace;

/// Options of the demo.
#[derive(Args)]
pub(crate) struct Options {
    /// The driver: a name, a specification such as `host?devices=1`, a library, or a folder with a
    /// Makefile such as examples/driver-c
    #[arg(
        long,
        env = "OUTRIGGER_DRIVER",
        default_value = "host",
        value_name = "SPEC_OR_PATH"
    )]
    driver: String,
    /// Face of the built-in driver host
    #[arg(long)]
    face: Option<Face>,
    /// The device in PyTorch
    #[arg(long, default_value = "outrigger")]
    device: Device,
    /// Training steps of each model; with fewer than the default, accuracy is not checked
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Instead of the demo, train its models for this long with changing shapes, two streams and
    /// graphs. Shows how much more memory was held than in use, and whether that grew
    #[arg(long, value_name = "SECONDS", conflicts_with = "steps")]
    memory: Option<u32>,
}

/// The faces of the driver `host`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Face {
    /// Device memory that the CPU sees
    Unified,
    /// Device memory that faults when the CPU touches it
    Discrete,
}

impl Face {
    /// The name that the driver knows.
    fn name(self) -> &'static str {
        match self {
            Self::Unified => "unified",
            Self::Discrete => "discrete",
        }
    }
}

/// The devices as which PyTorch can see Outrigger.
#[derive(Clone, Copy, ValueEnum)]
enum Device {
    /// PrivateUse1, named outrigger
    Outrigger,
    /// The built-in device type MTIA
    Mtia,
}

impl Device {
    fn name(self) -> &'static str {
        match self {
            Self::Outrigger => "outrigger",
            Self::Mtia => "mtia",
        }
    }
}

/// The needs of the demo: the shim, the environment, and a driver in C that one may name.
const NEEDS: [Need; 5] = [
    Need::Compiler,
    Need::Make,
    Need::Python,
    Need::Venv,
    Need::PythonHeaders,
];

/// Runs the demo; its exit status is the demo's.
///
/// # Errors
/// If something cannot be prepared or Python not started.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    disk::warn(workspace, 7);
    setup::ensure(workspace, &NEEDS)?;
    if options.driver.contains("opencl") {
        setup::ensure(workspace, &[Need::OpenClLoader, Need::OpenClPlatform])?;
    }
    let driver = native::driver(workspace, &options.driver, options.face.map(Face::name))?;
    let mut python = wheel::python(workspace, Some(&driver))?;
    eprintln!(
        "     > training on {} (ready after {:.0} s)",
        driver.text,
        started.elapsed().as_secs_f64()
    );
    python
        .current_dir(workspace.root())
        .args(["-m", options.memory.map_or("demo", |_| "demo.memory")])
        .args(["--device", options.device.name()])
        .env("OUTRIGGER_TORCH", options.device.name())
        .env("KINETO_LOG_LEVEL", "99"); // its search for a GPU is nobody's business here
    match options.memory {
        Some(seconds) => python.args(["--seconds", &seconds.to_string()]),
        None => python.arg("--out").arg(workspace.target("demo")),
    };
    if let Some(steps) = options.steps {
        python.args(["--steps", &steps.to_string()]);
    }
    let status = python.status().context("Python could not be started")?;
    eprintln!(
        "     > the demo took {:.0} s",
        started.elapsed().as_secs_f64()
    );
    // Killed by a signal: there is no code, and it is a failure.
    let code = status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1);
    Ok(ExitCode::from(code))
}
