//! The peers that Outrigger is measured against. They are fetched by name from Debian and PyPI into a
//! cache below the target folder. Nothing is installed into the system or into the project's
//! environment. A peer that cannot be fetched is an error of this peer alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::environment::{self, Stamp};
use crate::shell;
use crate::workspace::Workspace;

/// PyPI has no package of Taskflow; this one's source distribution holds its headers.
const TASKFLOW_SOURCE: (&str, &str) = ("rapidfuzz", "3.9.7");

/// The folder in which peers are kept.
pub(super) struct Cache<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
}

impl<'a> Cache<'a> {
    /// The cache of this workspace.
    ///
    /// # Errors
    /// If its folder cannot be made.
    pub(super) fn open(workspace: &'a Workspace) -> anyhow::Result<Self> {
        let folder = workspace.target("bench-peers");
        make_folder(&folder)?;
        Ok(Self { workspace, folder })
    }

    /// `name` in the cache.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The headers of Debian's packages. What the system has installed is not in it.
    pub(super) fn debian_include(&self) -> PathBuf {
        self.path("debian/usr/include")
    }

    /// The libraries of Debian's packages.
    pub(super) fn debian_lib(&self) -> PathBuf {
        self.path("debian/usr/lib/x86_64-linux-gnu")
    }

    /// Unpacks a package of Debian, with all that it needs and the system lacks.
    ///
    /// # Errors
    /// If there is no apt, or it cannot fetch the package.
    pub(super) fn debian(&self, package: &str) -> anyhow::Result<()> {
        let archives = self.path("archives").join(package);
        let stamp = Stamp::new(self.path(&format!("{package}.stamp")), &[], package)?;
        if stamp.is_current() {
            return Ok(());
        }
        make_folder(&archives.join("partial"))?;
        let mut fetch = Command::new("apt-get");
        fetch
            .args(["install", "--yes", "--download-only"])
            .args(["--no-install-recommends", "-o", "Debug::NoLocking=1", "-o"])
            .arg(format!("Dir::Cache::archives={}", archives.display()))
            .arg(package);
        shell::fetch(self.workspace, &format!("fetching {package}"), &mut fetch)
            .context("if apt knows no packages yet: apt-get update")?;
        for archive in environment::files_below(&archives, &["deb"])? {
            let unpacked = Command::new("dpkg-deb")
                .arg("--extract")
                .args([&archive, &self.path("debian")])
                .output()
                .context("dpkg-deb could not be started")?;
            if !unpacked.status.success() {
                let output = String::from_utf8_lossy(&unpacked.stderr).into_owned();
                bail!(
                    "{} cannot be unpacked: {}",
                    archive.display(),
                    shell::reason(&output)
                );
            }
        }
        stamp.write()
    }

    /// A Python environment of its own, `name`, with these packages of PyPI.
    ///
    /// # Errors
    /// If it cannot be made, or the packages not be fetched.
    pub(super) fn python(&self, name: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
        let folder = self.path(name);
        environment::ensure_packages(self.workspace, &folder, packages)?;
        Ok(folder)
    }

    /// The folder with Taskflow's headers.
    ///
    /// # Errors
    /// If they cannot be fetched.
    pub(super) fn taskflow(&self) -> anyhow::Result<PathBuf> {
        let (package, version) = TASKFLOW_SOURCE;
        let folder = self.path("taskflow-source");
        let headers = folder.join(format!("{package}-{version}/extern/taskflow"));
        if headers.join("taskflow/taskflow.hpp").is_file() {
            return Ok(headers);
        }
        make_folder(&folder)?;
        // The suite `graph` has made the environment, whose Python has pip for sure; other suites need not have it.
        let own = Some(self.workspace.python()).filter(|python| python.exists());
        let python = own.unwrap_or_else(|| environment::python_program().into());
        let mut fetch = Command::new(python);
        fetch.args(["-m", "pip", "download", "--progress-bar=off", "--no-deps"]);
        fetch.args(["--disable-pip-version-check", "--no-input", "--no-binary"]);
        fetch.arg(package).arg("--dest").arg(&folder);
        fetch.arg(format!("{package}=={version}"));
        shell::fetch(self.workspace, "fetching Taskflow", &mut fetch)?;
        let mut unpack = Command::new("tar");
        unpack.arg("--extract").arg("--gzip");
        unpack
            .arg("--file")
            .arg(folder.join(format!("{package}-{version}.tar.gz")));
        unpack.arg("--directory").arg(&folder);
        shell::step(self.workspace, "unpacking Taskflow", &mut unpack)?;
        Ok(headers)
    }
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))
}
