//! The peers that Outrigger is measured against. They are fetched by name from Debian and PyPI into a
//! cache below the target folder. Nothing is installed into the system or into the project's
//! environment. A peer that cannot be fetched is an error of this peer alone.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::environment::{self, Stamp};
use crate::shell;
use crate::workspace::Workspace;

/// How long fetching one peer may take.
const LIMIT: Duration = Duration::from_secs(900);

/// PyPI has no package of Taskflow; this one's source distribution holds its headers.
const TASKFLOW_SOURCE: (&str, &str) = ("rapidfuzz", "3.9.7");

/// Where peers are kept.
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
        self.fetch(&format!("fetching {package}"), &mut fetch)
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
                    reason(&output)
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
        let stamp = Stamp::new(folder.join("outrigger-peer"), &[], packages)?;
        if stamp.is_current() {
            return Ok(folder);
        }
        let mut create = Command::new(self.workspace.python());
        create.args(["-m", "venv", "--clear"]).arg(&folder);
        self.fetch(&format!("making the environment of {name}"), &mut create)?;
        let mut install = Command::new(folder.join("bin/python"));
        install.args(["-m", "pip", "install", "--progress-bar=off"]);
        install.args(["--disable-pip-version-check", "--no-input"]);
        install.args(packages);
        self.fetch(&format!("installing {name}"), &mut install)?;
        stamp.write()?;
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
        let mut fetch = Command::new(self.workspace.python());
        fetch.args(["-m", "pip", "download", "--progress-bar=off", "--no-deps"]);
        fetch.args(["--disable-pip-version-check", "--no-input", "--no-binary"]);
        fetch.arg(package).arg("--dest").arg(&folder);
        fetch.arg(format!("{package}=={version}"));
        self.fetch("fetching Taskflow", &mut fetch)?;
        let mut unpack = Command::new("tar");
        unpack.arg("--extract").arg("--gzip");
        unpack
            .arg("--file")
            .arg(folder.join(format!("{package}-{version}.tar.gz")));
        unpack.arg("--directory").arg(&folder);
        shell::step(self.workspace, "unpacking Taskflow", &mut unpack)?;
        Ok(headers)
    }

    /// A folder with the one entry from which the OpenCL loader takes an implementation.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn opencl_vendor(&self, name: &str, library: &OsStr) -> anyhow::Result<PathBuf> {
        let folder = self.path("opencl").join(name);
        make_folder(&folder)?;
        let entry = folder.join(format!("{name}.icd"));
        fs::write(&entry, format!("{}\n", library.display()))
            .with_context(|| format!("{} cannot be written", entry.display()))?;
        Ok(folder)
    }

    /// Runs a command that may fail for reasons of the network; the error is the one line that says why.
    fn fetch(&self, title: &str, command: &mut Command) -> anyhow::Result<()> {
        let finished = shell::attempt(self.workspace, title, command, Some(LIMIT))?;
        if !finished.success() {
            bail!("{title} failed: {}", reason(&finished.output));
        }
        Ok(())
    }
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))
}

/// The line of a package manager's output that says what went wrong: the first that it marks as an error,
/// else the last one.
fn reason(output: &str) -> &str {
    let mut lines = output
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let marked = |line: &&str| line.starts_with("E: ") || line.starts_with("ERROR: ");
    let first = lines.clone().find(marked);
    first
        .or_else(|| lines.next_back())
        .unwrap_or("it said nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_line_that_says_what_went_wrong() {
        let apt = "Reading package lists...\nE: Unable to locate package acme\n";
        assert_eq!(reason(apt), "E: Unable to locate package acme");
        let pip = "Collecting acme\nERROR: No matching distribution found\n\nnotice: update\n";
        assert_eq!(reason(pip), "ERROR: No matching distribution found");
        assert_eq!(reason("one\ntwo\n\n"), "two");
        assert_eq!(reason(""), "it said nothing");
    }
}
