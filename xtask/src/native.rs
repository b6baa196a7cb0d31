//! Builds what Python loads: `liboutrigger.so`, the shim of `torch_outrigger`, and drivers in C. It
//! builds only what has changed.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow, bail, ensure};

use crate::environment::{self, Stamp};
use crate::opencl;
use crate::setup;
use crate::shell;
use crate::workspace::Workspace;

/// All programs and libraries that tests load or start, for `cargo build`. With the same packages at each build, and with
/// `ffi` and `hooks` named for their default features, Cargo compiles nothing twice: these are then the
/// features that the tests of the whole workspace are built with.
pub(crate) const PROGRAMS: [&str; 8] = [
    "--package=outrigger",
    "--package=outrigger-cli",
    "--package=outrigger-ffi",
    "--package=outrigger-hooks",
    "--package=outrigger-mutants",
    "--package=outrigger-soak",
    "--package=outrigger-driver-opencl",
    "--package=outrigger-driver-cuda",
];

/// The packages that are built for release, for the same reason all of them each time.
const RELEASE: [&str; 4] = [
    "--package=outrigger",
    "--package=outrigger-driver-opencl",
    "--package=outrigger-driver-cuda",
    "--package=outrigger-library-driver",
];

/// A driver, and what its programs need in their environment.
pub(crate) struct DriverSpec {
    /// As `OUTRIGGER_DRIVER` takes it.
    pub(crate) text: String,
    environment: opencl::Environment,
}

impl DriverSpec {
    /// The driver for OpenCL with the option `platform=intel` gets Intel's runtime, unless the system has it.
    ///
    /// # Errors
    /// If that cannot be fetched.
    pub(crate) fn new(workspace: &Workspace, text: String) -> anyhow::Result<Self> {
        let (library, options) = text.split_once('?').unwrap_or((&text, ""));
        let wanted =
            library.contains("opencl") && options.split('&').any(|one| one == "platform=intel");
        let environment = match wanted && !opencl::has_intel() {
            true => opencl::intel(workspace)?,
            false => opencl::Environment::new(),
        };
        Ok(Self { text, environment })
    }

    /// Gives a program what the driver needs, with its folders of libraries in front of `libraries`.
    pub(crate) fn prepare(&self, command: &mut Command, libraries: OsString) {
        command.env(opencl::LIBRARIES, &libraries);
        for (&name, value) in &self.environment {
            command.env(name, value);
            // An empty entry would be the current folder.
            if name == opencl::LIBRARIES && !libraries.is_empty() {
                command.env(name, [OsStr::new(value), &libraries].join(OsStr::new(":")));
            }
        }
    }
}

/// Builds the environment, the library and the shim, as far as they are not there.
///
/// # Errors
/// If the machine lacks something or a build fails.
pub(crate) fn prepare(workspace: &Workspace) -> anyhow::Result<()> {
    setup::ensure(workspace, &setup::SHIM)?;
    let compiler = environment::cxx_compiler()?;
    environment::check(workspace)?;
    // The one fetches and unpacks, the other computes: together they take as long as the longer.
    let (environment, library) = std::thread::scope(|scope| {
        let environment = scope.spawn(|| environment::ensure(workspace));
        let library = library(workspace);
        (environment.join(), library)
    });
    environment.map_err(|_| anyhow!("a defect of xtask: making the environment panicked"))??;
    library?;
    shim(workspace, &compiler)
}

/// Builds `liboutrigger.so` and the drivers beside it for release.
///
/// # Errors
/// If they cannot be built.
pub(crate) fn library(workspace: &Workspace) -> anyhow::Result<()> {
    let mut build = workspace.cargo(&["build", "--release"]);
    build.args(RELEASE);
    shell::step(
        workspace,
        "building liboutrigger.so and drivers",
        &mut build,
    )?;
    let library = workspace.library_folder().join("liboutrigger.so");
    ensure!(library.is_file(), "{} was not built", library.display());
    Ok(())
}

/// Builds all programs and libraries of the tests.
///
/// # Errors
/// If they cannot be built.
pub(crate) fn programs(workspace: &Workspace) -> anyhow::Result<()> {
    let mut build = workspace.cargo(&["build"]);
    build.args(PROGRAMS);
    shell::step(workspace, "building library and command line", &mut build)?;
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
    sources
        .extend(["setup.py", "pyproject.toml", "requirements.txt"].map(|name| package.join(name)));
    let library_folder = workspace.library_folder();
    let stamp = Stamp::new(
        workspace.path(".venv/outrigger-shim"),
        &sources,
        (compiler, &library_folder),
    )?;
    if stamp.is_current() && !built_shim(workspace)?.is_empty() {
        return Ok(());
    }
    // In place and not through pip, which would compile everything anew each time.
    let mut build = Command::new(workspace.python());
    build
        .args(["setup.py", "build_ext", "--inplace", "egg_info"])
        .current_dir(&package)
        .env("CXX", compiler)
        .env("OUTRIGGER_LIB_DIR", &library_folder);
    shell::step(workspace, "compiling the PyTorch shim", &mut build)?;
    environment::add_to_path(workspace, &package)?;
    stamp.write()
}

/// The compiled shims that the package holds, of whatever Python.
///
/// # Errors
/// If its folder cannot be read.
pub(crate) fn built_shim(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    let package = workspace.path("frameworks/torch/torch_outrigger");
    environment::files_below(&package, &["so"])
}

/// The meaning of `--driver` and `--face`: a name or specification as it is, a library by its path, a folder with a
/// Makefile as the library that `make` builds there.
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
        return DriverSpec::new(workspace, format!("{driver}{separator}face={face}"));
    }
    if driver.split('?').next() == Some("opencl") {
        // Found by its name, beside the library.
        library(workspace)?;
        return DriverSpec::new(workspace, driver.to_owned());
    }
    let (path, options) = driver.split_once('?').map_or((driver, None), |(path, o)| {
        (path, Some(o).filter(|o| !o.is_empty()))
    });
    let local = Path::new(path);
    let library = if local.join("Makefile").is_file() {
        make_driver(workspace, local)?
    } else if local.is_file() {
        local
            .canonicalize()
            .with_context(|| format!("{path} cannot be resolved"))?
    } else {
        return DriverSpec::new(workspace, driver.to_owned());
    };
    let options = options.map_or(String::new(), |options| format!("?{options}"));
    DriverSpec::new(workspace, format!("{}{options}", library.display()))
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

/// The project's Python, which finds `torch_outrigger` in the repository, on `driver` if one is named.
pub(crate) fn python(workspace: &Workspace, driver: Option<&DriverSpec>) -> Command {
    with_release_build(workspace, Command::new(workspace.python()), driver)
}

/// A Python without packages, for programs that need no PyTorch.
pub(crate) fn plain_python(workspace: &Workspace, driver: &DriverSpec) -> Command {
    let python = Command::new(environment::python_program());
    with_release_build(workspace, python, Some(driver))
}

/// A Python that finds the release build, on `driver` if one is named.
pub(crate) fn with_release_build(
    workspace: &Workspace,
    mut command: Command,
    driver: Option<&DriverSpec>,
) -> Command {
    command.env("PYTHONUNBUFFERED", "1");
    // Cargo runs this program with its folders of libraries in front, where a build of the tests has left
    // a slow `liboutrigger.so`: Python must find the release build.
    let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let libraries = without_builds(&libraries, &workspace.target(""));
    match driver {
        Some(driver) => {
            driver.prepare(&mut command, libraries);
            command.env("OUTRIGGER_DRIVER", &driver.text);
        }
        None => {
            command.env("LD_LIBRARY_PATH", libraries);
        }
    }
    command
}

/// A search path without the folders below `target`.
fn without_builds(path: &OsStr, target: &Path) -> OsString {
    let folders = std::env::split_paths(path).filter(|folder| !folder.starts_with(target));
    std::env::join_paths(folders).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, face: Option<&str>) -> anyhow::Result<String> {
        Ok(driver(&Workspace::find()?, name, face)?.text)
    }

    #[test]
    fn a_face_is_an_option_of_host_and_of_nothing_else() -> anyhow::Result<()> {
        assert_eq!(spec("host", Some("discrete"))?, "host?face=discrete");
        assert_eq!(
            spec("host?devices=1", Some("unified"))?,
            "host?devices=1&face=unified"
        );
        let refused = spec("acme", Some("discrete")).expect_err("acme has no faces");
        assert!(refused.to_string().contains("acme"), "{refused}");
        Ok(())
    }

    #[test]
    fn builds_are_not_on_the_path_of_libraries() {
        let path = OsStr::new("/repo/target/debug:/repo/target/debug/deps:/usr/lib:/repo/targets");
        let left = without_builds(path, Path::new("/repo/target"));
        assert_eq!(left, "/usr/lib:/repo/targets");
    }

    #[test]
    fn a_library_is_named_by_its_whole_path_and_keeps_its_options() -> anyhow::Result<()> {
        // Tests run in the crate's folder: any file there serves as a library.
        let named = spec("Cargo.toml?memory=1G", None)?;
        assert!(Path::new(&named).is_absolute(), "{named}");
        assert!(named.ends_with("/xtask/Cargo.toml?memory=1G"), "{named}");
        assert_eq!(spec("acme?x=1", None)?, "acme?x=1");
        Ok(())
    }
}
