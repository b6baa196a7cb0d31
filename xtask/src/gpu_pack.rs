//! `cargo xtask gpu-pack`: puts a folder together that tries Outrigger on a machine with an NVIDIA GPU and no network, by the
//! script `run.py` in it. It packs only what this run has built, for one version of torch and of Python, and must never
//! need CUDA.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;

use crate::environment;
use crate::native;
use crate::shell;
use crate::wheel::SETUPTOOLS;
use crate::workspace::Workspace;

/// Options of the pack.
#[derive(Args)]
pub(crate) struct Options {
    /// The Python that the machine has, with its C headers: the shim is built for its version
    #[arg(long, default_value = "python3.12", value_name = "PROGRAM")]
    python: String,
    /// The torch that the machine has
    #[arg(long, default_value = "2.11.0", value_name = "VERSION")]
    torch: String,
    /// Folder that is written
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// The pack is copied to machines by ways that have limits.
const LARGEST: u64 = 60 << 20;

/// The newest glibc that the machines have for sure.
const GLIBC: (u32, u32) = (2, 36);

/// Prints the version of a Python as its compiled files are named: cpython-312.
const CACHE_TAG: &str = "import sys; print(sys.implementation.cache_tag)";

/// Files that go in as they lie in the repository: from, to.
const COPIED: [(&str, &str); 6] = [
    ("packaging/gpu/run.py", "run.py"),
    ("packaging/gpu/replays.py", "replays.py"),
    ("drivers/cuda/expect-standin.toml", "expect-standin.toml"),
    ("benches", "benches"),
    ("demo", "demo"),
    ("frameworks/torch/tests", "tests"),
];

/// Programs and libraries, as Cargo has built them for tests or for release: from, to.
const BUILT: [(&str, &str); 5] = [
    ("debug/outrigger", "bin/outrigger"),
    ("debug/outrigger-soak", "bin/outrigger-soak"),
    ("release/liboutrigger.so", "lib/liboutrigger.so"),
    ("release/liboutrigger_cuda.so", "lib/liboutrigger_cuda.so"),
    (
        "release/liboutrigger_opencl.so",
        "lib/liboutrigger_opencl.so",
    ),
];

/// Builds and packs; prints where the folder is.
///
/// # Errors
/// If something does not build, is too large, or needs a newer glibc.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let compiler = environment::cxx_compiler()?;
    native::library(workspace)?;
    native::programs(workspace)?;
    let folder = options
        .out
        .clone()
        .unwrap_or_else(|| workspace.target("gpu-pack"));
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    for part in ["bin", "lib", "python"] {
        fs::create_dir_all(folder.join(part))?;
    }
    for (from, to) in BUILT {
        fs::copy(workspace.target(from), folder.join(to)).with_context(|| from.to_owned())?;
    }
    for (from, to) in COPIED {
        copy_python(&workspace.path(from), &folder.join(to))?;
    }
    shim(workspace, options, &folder, &compiler)?;

    let mut bench = Command::new(&compiler);
    bench
        .args(["-std=c++17", "-O2", "-I"])
        .arg(workspace.path("include"))
        .arg(workspace.path("benches/native/outrigger_cuda.cpp"))
        .arg("-o")
        .arg(folder.join("bin/outrigger_cuda"))
        .arg(format!("-L{}", workspace.library_folder().display()))
        .args(["-loutrigger", "-ldl", "-Wl,-rpath,$ORIGIN/../lib"]);
    shell::step(workspace, "compiling the benchmark", &mut bench)?;
    // The shim's package has these too; one copy of each is enough.
    for library in fs::read_dir(folder.join("lib"))? {
        let name = library?.file_name();
        let other = folder.join("python/torch_outrigger/lib").join(&name);
        fs::remove_file(&other).ok();
        std::os::unix::fs::symlink(Path::new("../../../lib").join(&name), &other)?;
    }
    let compiled = compiled(&folder)?;
    let mut strip = Command::new("strip");
    strip.arg("--strip-all").args(&compiled);
    shell::step(workspace, "taking symbols out", &mut strip)?;
    let newest = newest_glibc(&compiled)?;
    ensure!(
        newest <= GLIBC,
        "the pack needs glibc {}.{}, and machines have {}.{}",
        newest.0,
        newest.1,
        GLIBC.0,
        GLIBC.1
    );
    let size = size_of(&folder)?;
    ensure!(
        size <= LARGEST,
        "{} has {} MiB, more than {}",
        folder.display(),
        size >> 20,
        LARGEST >> 20
    );
    println!(
        "{} ({:.1} MiB, glibc {}.{}, torch {}): python3 run.py --out FOLDER",
        folder.display(),
        size as f64 / f64::from(1 << 20),
        newest.0,
        newest.1,
        options.torch
    );
    Ok(ExitCode::SUCCESS)
}

/// Builds `torch_outrigger` into the pack. Of torch only its wheel is fetched, since only headers and names are needed.
fn shim(
    workspace: &Workspace,
    options: &Options,
    folder: &Path,
    compiler: &str,
) -> anyhow::Result<()> {
    let probe = format!("{}; {CACHE_TAG}", environment::HAS_HEADERS);
    let probe = Command::new(&options.python).args(["-c", &probe]).output();
    let tag = probe.ok().filter(|output| output.status.success());
    let tag = tag.with_context(|| {
        format!(
            "{} is no Python with its C headers: name one with --python (Ubuntu 24.04: apt-get install python3.12-dev)",
            options.python
        )
    })?;
    let tag = String::from_utf8_lossy(&tag.stdout);
    // The wheel of one Python is no other's.
    let packages = workspace.target(&format!(
        "xtask/gpu-pack/torch-{}-{}",
        options.torch,
        tag.trim()
    ));
    if !packages.join("torch").exists() {
        let mut fetch = Command::new(&options.python);
        fetch.args(["-m", "pip", "install", "--no-deps", "--progress-bar=off"]);
        fetch.args(["--disable-pip-version-check", "--target"]);
        fetch
            .arg(&packages)
            .arg(format!("torch=={}", options.torch));
        shell::fetch(workspace, "fetching torch", fetch.arg(SETUPTOOLS))?;
    }
    let mut build = Command::new(&options.python);
    build
        .args(["setup.py", "build", "--build-lib"])
        .arg(folder.join("python"))
        // By its entry points torch finds the device without an import of the package.
        .args(["dist_info", "--output-dir"])
        .arg(folder.join("python"))
        .current_dir(workspace.path("frameworks/torch"))
        .env("PYTHONPATH", &packages)
        .env("CXX", compiler)
        .env("OUTRIGGER_LIB_DIR", workspace.library_folder());
    shell::step(workspace, "compiling the shim", &mut build)?;
    Ok(())
}

/// Copies a file, or what of a folder is Python.
fn copy_python(from: &Path, to: &Path) -> anyhow::Result<()> {
    let files = match from.is_dir() {
        true => environment::files_below(from, &["py"])?,
        false => vec![from.to_owned()],
    };
    for file in files {
        let target = match file.strip_prefix(from) {
            Ok(below) if from.is_dir() => to.join(below),
            _ => to.to_owned(),
        };
        fs::create_dir_all(target.parent().context("a file lies in a folder")?)?;
        fs::copy(&file, &target).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// All programs and libraries of the pack.
fn compiled(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = environment::files_below(folder, &["so"])?;
    files.retain(|file| !file.is_symlink());
    for program in fs::read_dir(folder.join("bin"))? {
        files.push(program?.path());
    }
    Ok(files)
}

/// The newest version of glibc that one of them asks for.
fn newest_glibc(files: &[PathBuf]) -> anyhow::Result<(u32, u32)> {
    let output = Command::new("objdump").arg("-T").args(files).output();
    let output = output.context("objdump could not be started: it comes with the compiler")?;
    Ok(newest_in(&String::from_utf8_lossy(&output.stdout)))
}

fn newest_in(symbols: &str) -> (u32, u32) {
    let version = |text: &str| {
        let text = text
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .next()?;
        let mut numbers = text.split('.').map_while(|part| part.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    let versions = symbols.split("GLIBC_").skip(1).filter_map(version);
    versions.max().unwrap_or((0, 0))
}

fn size_of(folder: &Path) -> anyhow::Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        size += match kind.is_dir() {
            true => size_of(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_that_of_the_largest_number() {
        let symbols =
            "(GLIBC_2.9) a\n(GLIBC_2.34) b\n GLIBC_2.2.5 c\n(GLIBC_PRIVATE) d\n(GLIBCXX_3.4) e\n";
        assert_eq!(newest_in(symbols), (2, 34));
    }
}
