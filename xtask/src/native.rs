//! Builds what Python loads: `liboutrigger.so`, the shim of `torch_outrigger`, and drivers in C. It
//! builds only what has changed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::environment::{self, Stamp};
use crate::shell;
use crate::workspace::Workspace;

/// A driver and the face that it shows, as `OUTRIGGER_DRIVER` takes it.
pub(crate) struct DriverSpec(pub(crate) String);

/// Builds the environment, the library and the shim, as far as they are not there.
///
/// # Errors
/// If the machine lacks something or a build fails.
pub(crate) fn prepare(workspace: &Workspace) -> anyhow::Result<()> {
    let compiler = environment::cxx_compiler()?;
    environment::ensure(workspace)?;
    library(workspace)?;
    shim(workspace, &compiler)
}

/// Builds `liboutrigger.so` for release.
fn library(workspace: &Workspace) -> anyhow::Result<()> {
    let mut build = workspace.cargo(&["build", "--release", "--package", "outrigger"]);
    shell::step(workspace, "building liboutrigger.so", &mut build)?;
    let library = workspace.library_folder().join("liboutrigger.so");
    ensure!(library.is_file(), "{} was not built", library.display());
    Ok(())
}

/// Compiles the C++ shim in place if its sources, the headers or torch have changed.
fn shim(workspace: &Workspace, compiler: &str) -> anyhow::Result<()> {
    let package = workspace.path("frameworks/torch");
    let mut sources = environment::files_below(&package.join("csrc"), &["cpp", "h"])?;
    sources.extend(environment::files_below(
        &workspace.path("include"),
        &["h"],
    )?);
    sources.extend([package.join("setup.py"), package.join("requirements.txt")]);
    let library_folder = workspace.library_folder();
    let stamp = Stamp::new(
        workspace.path(".venv/outrigger-shim"),
        &sources,
        (compiler, &library_folder),
    )?;
    if stamp.is_current() {
        return Ok(());
    }
    let mut build = Command::new(workspace.python());
    build
        .args([
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-input",
            "--no-build-isolation",
        ])
        .args(["--no-deps", "--verbose", "--editable"])
        .arg(&package)
        .env("CXX", compiler)
        .env("OUTRIGGER_LIB_DIR", &library_folder);
    shell::step(workspace, "compiling the PyTorch shim", &mut build)?;
    stamp.write()
}

/// What `--driver` and `--face` mean: a name or specification as it is, a library by its path, a folder
/// with a Makefile as the library that `make` builds there.
///
/// # Errors
/// If the driver cannot be built, or it is not `host` and a face is wanted.
pub(crate) fn driver(
    workspace: &Workspace,
    driver: &str,
    face: Option<&str>,
) -> anyhow::Result<DriverSpec> {
    if let Some(face) = face {
        let name = driver.split('?').next().unwrap_or(driver);
        ensure!(
            name == "host",
            "--face is for the built-in driver host; {driver} has no faces"
        );
        let separator = if driver.contains('?') { '&' } else { '?' };
        return Ok(DriverSpec(format!("{driver}{separator}face={face}")));
    }
    let (path, options) = driver
        .split_once('?')
        .map_or((driver, None), |(path, o)| (path, Some(o)));
    let local = Path::new(path);
    let library = if local.join("Makefile").is_file() {
        make_driver(workspace, local)?
    } else if local.is_file() {
        local
            .canonicalize()
            .with_context(|| format!("{path} cannot be resolved"))?
    } else {
        return Ok(DriverSpec(driver.to_owned()));
    };
    let options = options.map_or(String::new(), |options| format!("?{options}"));
    Ok(DriverSpec(format!("{}{options}", library.display())))
}

/// Builds the driver in `folder` with its Makefile; the library that it makes.
fn make_driver(workspace: &Workspace, folder: &Path) -> anyhow::Result<PathBuf> {
    let title = format!("building the driver in {}", folder.display());
    shell::step(
        workspace,
        &title,
        Command::new("make").arg("-C").arg(folder),
    )
    .context(
        "a driver in C is built with make and a C compiler (Debian: apt-get install make gcc)",
    )?;
    let libraries = environment::files_below(folder, &["so"])?;
    match libraries.as_slice() {
        [library] => Ok(library.canonicalize()?),
        _ => bail!(
            "{} holds {} libraries after make, not one",
            folder.display(),
            libraries.len()
        ),
    }
}

/// The project's Python with `torch_outrigger` importable, on `driver` if one is named.
pub(crate) fn python(workspace: &Workspace, driver: Option<&DriverSpec>) -> Command {
    let mut command = Command::new(workspace.python());
    command.env("PYTHONUNBUFFERED", "1");
    if let Some(DriverSpec(spec)) = driver {
        command.env("OUTRIGGER_DRIVER", spec);
    }
    command
}
