//! The paths of the project. No other module knows them. This module never creates anything.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// The project's folders.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// The workspace that this program was built from.
    ///
    /// # Errors
    /// If Cargo cannot say where it builds to.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here
            .parent()
            .context("xtask lies in a folder of the workspace")?
            .to_owned();
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version=1"])
            .current_dir(&root)
            .output()
            .context("Cargo could not be started")?;
        ensure!(
            output.status.success(),
            "cargo metadata failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let target = metadata["target_directory"]
            .as_str()
            .context("Cargo names no target folder")?;
        Ok(Self {
            root,
            target: target.into(),
        })
    }

    /// The root of the repository.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// `path` below the root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// `path` below Cargo's target folder.
    pub(crate) fn target(&self, path: &str) -> PathBuf {
        self.target.join(path)
    }

    /// The folder of the release build of `liboutrigger.so`.
    pub(crate) fn library_folder(&self) -> PathBuf {
        self.target("release")
    }

    /// The Python of the project's environment.
    pub(crate) fn python(&self) -> PathBuf {
        self.root.join(".venv/bin/python")
    }

    /// The files that git knows or would add, as paths from the root.
    ///
    /// # Errors
    /// If git cannot be asked.
    pub(crate) fn files(&self) -> anyhow::Result<Vec<String>> {
        let names = self.git(&[
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])?;
        Ok(names.split_terminator('\0').map(str::to_owned).collect())
    }

    /// The answer of git to a command at the root.
    ///
    /// # Errors
    /// If it cannot be asked, or knows no answer.
    pub(crate) fn git(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(&self.root)
            .output()
            .context("git could not be started: it says which files are sources")?;
        ensure!(
            output.status.success(),
            "git {} failed: {}",
            arguments[0],
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).context("git's answer is not UTF-8")
    }

    /// A Cargo command that runs at the root.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command.args(args).current_dir(&self.root);
        command
    }
}

/// The Cargo that started us, else the one on the path.
fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
