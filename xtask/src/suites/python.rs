//! The suites that pytest runs: PyTorch on the device, the sweep over torch's operators, and the pages of
//! the command line in a browser.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use super::LIMIT;
use super::counts::Counts;
use crate::environment;
use crate::native::{self, DriverSpec};
use crate::shell::{self, Finished};
use crate::wheel;
use crate::workspace::Workspace;

/// The folder of the tests of the PyTorch package.
const TORCH_TESTS: &str = "frameworks/torch/tests";

/// The folder of the tests of the command line's pages.
const PAGE_TESTS: &str = "cli/tests/page";

/// The folder of the tests of the wheels.
const WHEEL_TESTS: &str = "packaging/tests";

/// The beginning of the command of every suite in Python.
const PYTEST: [&str; 6] = [
    "-m",
    "pytest",
    "--quiet",
    "--tb=short",
    "-p",
    "no:cacheprovider",
];

/// As many processes as there are processors; one that is out of tests takes some from another.
const AT_ONCE: [&str; 3] = ["--timeout=300", "--numprocesses=auto", "--dist=worksteal"];

/// The PyTorch tests of some files, or of all for none, on `driver`, as `device`. What they need must have been built.
pub(super) fn torch(
    workspace: &Workspace,
    title: &str,
    driver: &DriverSpec,
    device: &str,
    options: &[&str],
) -> anyhow::Result<Counts> {
    let python = native::python(workspace, Some(driver));
    let arguments = [&["--ignore=sweep"], &AT_ONCE[..], options].concat();
    on_device(workspace, title, python, device, &arguments)
}

/// All tests of some files on `driver`, in an environment that has libraries. What they need besides must have been built.
pub(super) fn libraries(
    workspace: &Workspace,
    title: &str,
    driver: &DriverSpec,
    packages: &str,
    files: &[&str],
) -> anyhow::Result<Counts> {
    let python = Command::new(environment::ensure_libraries(workspace, packages)?);
    let python = native::with_release_build(workspace, python, Some(driver));
    let arguments = [&["--all"], &AT_ONCE[..], files].concat();
    on_device(workspace, title, python, "outrigger", &arguments)
}

/// The sweep over torch's databases of operators, modules and optimizers, which is a test file of its own kind.
pub(super) fn sweep(
    workspace: &Workspace,
    title: &str,
    driver: &DriverSpec,
    device: &str,
    dtypes: &[&str],
    samples: Option<u32>,
    store: Option<&str>,
) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    for dtype in dtypes {
        let mut arguments = vec!["sweep".to_owned(), format!("--sweep-dtype={dtype}")];
        arguments.extend(samples.map(|samples| format!("--sweep-samples={samples}")));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(store).collect();
        let title = format!("{title} {dtype}");
        let python = native::python(workspace, Some(driver));
        counts.add(on_device(workspace, &title, python, device, &arguments)?);
    }
    Ok(counts)
}

/// A store with the operators of `driver` that the package compiles ahead of time. What it holds already is not compiled again.
pub(super) fn store(workspace: &Workspace, driver: &DriverSpec) -> anyhow::Result<PathBuf> {
    let folder = workspace.target("xtask/compiled-operators");
    let mut command = native::python(workspace, Some(driver));
    command
        .args(["-m", "torch_outrigger.compile_eager"])
        .env("OUTRIGGER_CACHE", &folder);
    shell::step(workspace, "compiling operators ahead of time", &mut command)?;
    Ok(folder)
}

/// Runs pytest in the tests of the PyTorch package, by `python`.
fn on_device(
    workspace: &Workspace,
    title: &str,
    mut python: Command,
    device: &str,
    arguments: &[&str],
) -> anyhow::Result<Counts> {
    python
        .current_dir(workspace.path(TORCH_TESTS))
        .args(PYTEST)
        // Failures stand behind what was skipped, at the end of the output.
        .args(["-r", "sEf"])
        .args(arguments)
        .env("OUTRIGGER_TORCH", device);
    Ok(pytest(workspace, title, python)?.1)
}

/// The pages that the command line draws, as a browser shows them.
pub(super) fn pages(workspace: &Workspace) -> anyhow::Result<Counts> {
    let python = environment::ensure_browser(workspace)?;
    let mut command = Command::new(python);
    command
        .current_dir(workspace.path(PAGE_TESTS))
        .args(PYTEST)
        .args(["-s", "--timeout=300"]) // they print what they measured
        .arg(format!(
            "--outrigger={}",
            workspace.target("debug/outrigger").display()
        ))
        .arg(".");
    let (finished, counts) = pytest(workspace, "pages", command)?;
    let measured = finished.output.lines();
    for line in measured.filter(|line| line.starts_with("measured: ")) {
        println!("{line}");
    }
    Ok(counts)
}

/// The wheel in environments of its own, with the torch of the project's environment; if it serves `others`, with each
/// version of torch from PyPI.
pub(super) fn wheels(
    workspace: &Workspace,
    title: &str,
    others: &[&str],
) -> anyhow::Result<Counts> {
    let names: Vec<String> = others.iter().map(|&version| version.to_owned()).collect();
    let wheel = wheel::torch(workspace, &workspace.target("wheels"), &names)?;
    let tools = wheel::tools(workspace)?;
    let from = environment::site_packages(workspace).context(".venv holds no packages")?;
    let mut environments = vec![format!("--torch-from={}", from.display())];
    if !others.is_empty() {
        let versions = others.iter().chain([&environment::TORCH]);
        environments = versions
            .map(|version| format!("--torch={version}"))
            .collect();
    }
    let mut counts = Counts::default();
    for environment in environments {
        let mut command = Command::new(workspace.python());
        command
            .current_dir(workspace.path(WHEEL_TESTS))
            .args(PYTEST)
            .args(["--timeout=1800", "--numprocesses=auto", "--dist=worksteal"])
            .arg(environment)
            .arg(format!("--wheel={}", wheel.display()))
            .arg(format!("--tools={}", tools.display()));
        counts.add(pytest(workspace, title, command)?.1);
    }
    Ok(counts)
}

/// Runs pytest to its end and reads what it counted. If it died without that, it counts as a failure.
fn pytest(
    workspace: &Workspace,
    title: &str,
    mut command: Command,
) -> anyhow::Result<(Finished, Counts)> {
    let name = format!("{}.xml", title.replace(' ', "-"));
    let report = workspace.target("xtask").join(name);
    shell::forget(&report)?;
    command.arg(format!("--junitxml={}", report.display()));
    let finished = shell::attempt(workspace, title, &mut command, Some(LIMIT))?;
    let mut counts = Counts::of_file(&report).unwrap_or_else(|_| Counts::single(false));
    if !finished.success() {
        eprintln!("{}\nall of it: {}", finished.tail(), finished.log.display());
        counts.failed = counts.failed.max(1);
    }
    Ok((finished, counts))
}
