//! The project's Python environment, `.venv` at the root. It is made on first use, and again when its
//! requirements have changed. If a new machine lacks something, the message says what to install.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell;
use crate::workspace::Workspace;

/// The packages that the environment is made of; pinned, so that every machine runs the same.
const REQUIREMENTS: [&str; 3] = [
    "frameworks/torch/requirements.txt",
    "frameworks/torch/requirements-test.txt",
    "demo/requirements.txt",
];

/// The project's torch, as frameworks/torch/requirements.txt pins it.
pub(crate) const TORCH: &str = "2.15.0";

/// The oldest Python that has a wheel of the pinned torch.
const OLDEST_PYTHON: (u32, u32) = (3, 10);

/// Makes `.venv` if it is missing or made of something else.
///
/// # Errors
/// If the machine lacks something; the message says what to install.
pub(crate) fn ensure(workspace: &Workspace) -> anyhow::Result<()> {
    let requirements: Vec<PathBuf> = REQUIREMENTS
        .iter()
        .map(|path| workspace.path(path))
        .collect();
    let base = base_python()?;
    let stamp = Stamp::new(stamp(workspace), &requirements, &base.version)?;
    if stamp.is_current() && workspace.python().exists() {
        return Ok(());
    }
    base.check()?;
    make(
        workspace,
        &base,
        &workspace.path(".venv"),
        &requirements,
        "PyTorch and what the tests need",
    )?;
    stamp.write()
}

/// The file that says what the environment was made of.
pub(crate) fn stamp(workspace: &Workspace) -> PathBuf {
    workspace.path(".venv/outrigger-environment")
}

/// Makes the environment that drives a browser, apart from the project's own: a change of one does not
/// make the other anew. Returns its Python.
///
/// # Errors
/// If the machine lacks something; the message says what to install.
pub(crate) fn ensure_browser(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.target("xtask/browser-venv");
    let requirements = [workspace.path("cli/tests/page/requirements.txt")];
    let base = base_python()?;
    let stamp = Stamp::new(folder.join("stamp"), &requirements, &base.version)?;
    let python = folder.join("bin/python");
    if !stamp.is_current() || !python.exists() {
        base.check()?;
        make(
            workspace,
            &base,
            &folder,
            &requirements,
            "what drives the browser",
        )?;
        stamp.write()?;
    }
    Ok(python)
}

/// Makes an environment of its own in `folder` with `packages` of PyPI, for what no other environment needs.
///
/// # Errors
/// If it cannot be made, or the packages cannot be fetched; the message is one line.
pub(crate) fn ensure_packages(
    workspace: &Workspace,
    folder: &Path,
    packages: &[&str],
) -> anyhow::Result<()> {
    let base = base_python()?;
    let stamp = Stamp::new(folder.join("stamp"), &[], (packages, &base.version))?;
    if stamp.is_current() {
        return Ok(());
    }
    base.check()?;
    let title = format!("making the Python environment {}", folder.display());
    let mut create = Command::new(&base.program);
    create.args(["-m", "venv", "--clear"]).arg(folder);
    shell::fetch(workspace, &title, &mut create)?;
    let mut install = pip_install(folder);
    install.args(packages);
    let title = format!("installing {}", packages.join(", "));
    shell::fetch(workspace, &title, &mut install)?;
    stamp.write()
}

/// Makes an environment in `folder`, over what may be there, where a wheel is installed. It has the packages of the project's
/// own environment, and nothing that lies in the repository.
///
/// # Errors
/// If it cannot be made.
pub(crate) fn install_wheel(
    workspace: &Workspace,
    folder: &Path,
    wheel: &Path,
) -> anyhow::Result<()> {
    let base = base_python()?;
    let mut install = beside_project(workspace, &base, folder, &[])?;
    install.args(["--no-index", "--quiet"]).arg(wheel);
    shell::step(workspace, "installing the wheel", &mut install)?;
    Ok(())
}

/// Makes an environment of programs with libraries, and returns its Python. It has the packages of the project's own
/// environment and `torch_outrigger` as it lies in the repository: only what these lack is fetched, as the requirements `which`
/// pin it.
///
/// # Errors
/// If it cannot be made, or the packages cannot be fetched.
pub(crate) fn ensure_libraries(workspace: &Workspace, which: &str) -> anyhow::Result<PathBuf> {
    let folder = workspace.target(&format!("xtask/{which}-venv"));
    let requirements = workspace.path(&format!("frameworks/torch/requirements-{which}.txt"));
    let base = base_python()?;
    let sources = [requirements.clone(), stamp(workspace)];
    let made = Stamp::new(folder.join("stamp"), &sources, &base.version)?;
    let python = folder.join("bin/python");
    if !made.is_current() || !python.exists() {
        let package = workspace.path("frameworks/torch");
        let mut install = beside_project(workspace, &base, &folder, &[package])?;
        install.arg("-r").arg(requirements);
        shell::fetch(
            workspace,
            "installing libraries for their tests",
            &mut install,
        )?;
        made.write()?;
    }
    Ok(python)
}

/// Makes an environment in `folder`, over what may be there, with the packages of the project's own environment and with those
/// in `others`. Returns what installs more packages into it.
fn beside_project(
    workspace: &Workspace,
    base: &BasePython,
    folder: &Path,
    others: &[PathBuf],
) -> anyhow::Result<Command> {
    let mut create = Command::new(&base.program);
    create.args(["-m", "venv", "--clear", "--without-pip"]);
    let title = format!("making the Python environment {}", folder.display());
    shell::step(workspace, &title, create.arg(folder))?;
    let packages = site_packages(workspace).context(".venv holds no site-packages")?;
    let own = packages_in(folder).with_context(|| format!("{title}: it holds no packages"))?;
    // A .pth file adds the folders, but not what .pth files in them add: the repository's package stays out unless it
    // is named.
    let folders = std::iter::once(&packages).chain(others);
    let lines: String = folders
        .map(|each| format!("{}\n", each.display()))
        .collect();
    fs::write(own.join("project.pth"), lines)?;
    // pip of the project's environment, run by the Python of this one.
    let mut install = Command::new(workspace.python());
    install
        .args(["-m", "pip", "--python"])
        .arg(folder.join("bin/python"))
        .args(INSTALL);
    Ok(install)
}

/// The arguments of pip.
const INSTALL: [&str; 4] = [
    "install",
    "--disable-pip-version-check",
    "--no-input",
    "--progress-bar=off",
];

/// The command that installs packages into the environment in `folder`.
fn pip_install(folder: &Path) -> Command {
    let mut install = Command::new(folder.join("bin/python"));
    install.args(["-m", "pip"]).args(INSTALL);
    install
}

/// Makes an environment in `folder`, over what may be there, with `contents` in it.
fn make(
    workspace: &Workspace,
    base: &BasePython,
    folder: &Path,
    requirements: &[PathBuf],
    contents: &str,
) -> anyhow::Result<()> {
    let mut create = Command::new(&base.program);
    create.args(["-m", "venv", "--clear"]).arg(folder);
    let title = format!("making the Python environment {}", folder.display());
    shell::step(workspace, &title, &mut create)?;
    let mut install = pip_install(folder);
    for path in requirements {
        install.arg("-r").arg(path);
    }
    let installed = shell::attempt(
        workspace,
        &format!("installing {contents}"),
        &mut install,
        None,
    )?;
    if !installed.success() {
        bail!("{}{}", network_hint(&installed.output), installed.tail());
    }
    Ok(())
}

/// Makes the packages in `folder` importable, and their entry points known, in the environment.
///
/// # Errors
/// If the environment is not there or cannot be written.
pub(crate) fn add_to_path(workspace: &Workspace, folder: &Path) -> anyhow::Result<()> {
    let packages = site_packages(workspace).context(".venv holds no site-packages")?;
    let file = packages.join("outrigger.pth");
    fs::write(&file, format!("{}\n", folder.display()))
        .with_context(|| format!("{} cannot be written", file.display()))
}

/// The folder of the libclang that the environment holds, if it has been made.
pub(crate) fn libclang(workspace: &Workspace) -> Option<PathBuf> {
    let folder = site_packages(workspace)?.join("clang/native");
    folder.join("libclang.so").is_file().then_some(folder)
}

/// The folder of the environment's packages, if it has been made.
pub(crate) fn site_packages(workspace: &Workspace) -> Option<PathBuf> {
    packages_in(&workspace.path(".venv"))
}

/// The folder of the packages of the environment in `folder`, if it has been made.
fn packages_in(folder: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(folder.join("lib")).ok()?;
    versions
        .filter_map(Result::ok)
        .map(|version| version.path().join("site-packages"))
        .find(|folder| folder.is_dir())
}

/// Fails early, before anything is built, if the machine cannot make the environment.
///
/// # Errors
/// If Python or a part of it is missing; the message says what to install.
pub(crate) fn check(workspace: &Workspace) -> anyhow::Result<()> {
    let base = base_python()?;
    if workspace.python().exists() {
        return Ok(());
    }
    base.check()
}

/// A file that remembers what something was made of.
pub(crate) struct Stamp {
    path: PathBuf,
    content: String,
}

impl Stamp {
    /// The stamp at `path` of something made of the contents of `sources` and of `more`.
    ///
    /// # Errors
    /// If a source cannot be read.
    pub(crate) fn new(path: PathBuf, sources: &[PathBuf], more: impl Hash) -> anyhow::Result<Self> {
        let mut hasher = DefaultHasher::new();
        more.hash(&mut hasher);
        for source in sources {
            let content =
                fs::read(source).with_context(|| format!("{} cannot be read", source.display()))?;
            (source, content).hash(&mut hasher);
        }
        Ok(Self {
            path,
            content: format!("{:016x}\n", hasher.finish()),
        })
    }

    /// True if it was made of the same.
    pub(crate) fn is_current(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|content| content == self.content)
    }

    /// Says that it is made of these now.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        fs::write(&self.path, &self.content)
            .with_context(|| format!("{} cannot be written", self.path.display()))
    }
}

/// The Python that makes the environment.
struct BasePython {
    program: String,
    version: String,
}

/// The Python that environments are made with: what `PYTHON` names, else `python3`.
pub(crate) fn python_program() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// Runs only in a Python that can make environments.
pub(crate) const HAS_VENV: &str = "import venv, ensurepip";

/// Runs only in a Python that has its C headers.
pub(crate) const HAS_HEADERS: &str =
    "import sysconfig, os; os.stat(sysconfig.get_paths()['include'] + '/Python.h')";

/// The Python that environments are made with, which must run.
fn base_python() -> anyhow::Result<BasePython> {
    let program = python_program();
    let version = Command::new(&program)
        .args([
            "-c",
            "import sys; print(sys.version_info[0], sys.version_info[1], sys.executable)",
        ])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match version {
        Some(version) => Ok(BasePython { program, version }),
        None => bail!(
            "there is no Python: `{program}` does not run. Install Python {}.{} or newer, or set PYTHON \
             to one",
            OLDEST_PYTHON.0,
            OLDEST_PYTHON.1
        ),
    }
}

impl BasePython {
    /// Whether it is new enough. What else it needs is looked for by `setup`.
    fn check(&self) -> anyhow::Result<()> {
        let mut numbers = self
            .version
            .split(' ')
            .map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < OLDEST_PYTHON {
            bail!(
                "Python {}.{} ({}) is too old: the pinned PyTorch needs {}.{} or newer; set PYTHON to one",
                version.0,
                version.1,
                self.program,
                OLDEST_PYTHON.0,
                OLDEST_PYTHON.1
            );
        }
        Ok(())
    }
}

/// A sentence about the network, if `output` of pip says that it could not be reached.
fn network_hint(output: &str) -> &'static str {
    const SIGNS: [&str; 5] = [
        "Failed to establish a new connection",
        "Temporary failure in name resolution",
        "Network is unreachable",
        "Connection refused",
        "ConnectTimeoutError",
    ];
    if SIGNS.iter().any(|sign| output.contains(sign)) {
        "the Python packages could not be fetched: the package index cannot be reached. Check the network, \
         or point pip at a mirror (PIP_INDEX_URL, PIP_FIND_LINKS).\n"
    } else {
        "pip could not install the Python packages:\n"
    }
}

/// The C++ compiler that builds the shim: `CXX`, else the first of the usual names that runs.
///
/// # Errors
/// If there is none; the message says what to install.
pub(crate) fn cxx_compiler() -> anyhow::Result<String> {
    let named = std::env::var("CXX").ok();
    let candidates: Vec<&str> = match &named {
        Some(name) => vec![name.as_str()],
        None => vec!["c++", "g++", "clang++"],
    };
    // CXX may hold a launcher or flags behind the program's name.
    let works = |name: &&str| {
        Command::new(name.split_whitespace().next().unwrap_or_default())
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    };
    candidates.iter().copied().find(works).map(str::to_owned).with_context(|| {
        format!(
            "there is no C++ compiler: tried {}. Install one (Debian: apt-get install g++), or set CXX",
            candidates.join(", ")
        )
    })
}

/// All files below `folder` with one of these extensions, sorted.
///
/// # Errors
/// If a folder cannot be read.
pub(crate) fn files_below(folder: &Path, extensions: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder)
            .with_context(|| format!("{} cannot be read", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|e| extensions.iter().any(|wanted| e == *wanted))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_has_one_torch() -> anyhow::Result<()> {
        let pinned = fs::read_to_string(Workspace::find()?.path(REQUIREMENTS[0]))?;
        assert!(pinned.contains(&format!("torch=={TORCH}\n")), "{pinned}");
        Ok(())
    }

    #[test]
    fn a_stamp_notices_every_change() -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("outrigger-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let (source, stamp) = (folder.join("source"), folder.join("stamp"));
        let current = |more: &str| -> anyhow::Result<bool> {
            Ok(Stamp::new(stamp.clone(), std::slice::from_ref(&source), more)?.is_current())
        };
        fs::write(&source, "one")?;
        assert!(!current("a")?, "it was never written");
        Stamp::new(stamp.clone(), std::slice::from_ref(&source), "a")?.write()?;
        assert!(current("a")?);
        assert!(!current("b")?, "something else than a source changed");
        fs::write(&source, "two")?;
        assert!(!current("a")?, "the source changed");
        fs::remove_dir_all(&folder)?;
        Ok(())
    }

    #[test]
    fn an_unreachable_index_is_named() {
        let output = "NewConnectionError: Failed to establish a new connection: [Errno -3]";
        assert!(network_hint(output).contains("Check the network"));
        assert!(!network_hint("error: resolution impossible").contains("network"));
    }
}
