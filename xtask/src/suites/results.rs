//! The jobs that earlier runs have passed, so that `--resume` need not run them again: one file for
//! each job, with the fingerprint of all sources on which it ran. A failure is never kept.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::counts::Counts;
use super::jobs::Job;
use crate::workspace::Workspace;

/// What is kept of a job that passed.
#[derive(Serialize, Deserialize)]
struct Kept {
    sources: String,
    job: String,
    seconds: f64,
    counts: Counts,
}

/// The results of one state of the sources.
pub(super) struct Results {
    folder: PathBuf,
    sources: String,
}

impl Results {
    /// The results of the sources as they are now.
    ///
    /// # Errors
    /// If git cannot say which files are sources, or one cannot be read.
    pub(super) fn of_now(workspace: &Workspace) -> anyhow::Result<Self> {
        let mut hasher = DefaultHasher::new();
        for name in workspace.files()? {
            // Deleted but not yet committed, or a link to nowhere: it is no source.
            if let Ok(bytes) = fs::read(workspace.path(&name)) {
                (name, bytes).hash(&mut hasher);
            }
        }
        let toolchain = workspace.cargo(&["--version", "--verbose"]).output()?;
        toolchain.stdout.hash(&mut hasher);
        // What chooses drivers, flags and Python from outside changes results too.
        let mut variables: Vec<_> = std::env::vars_os()
            .filter(|(name, _)| {
                let name = name.to_string_lossy();
                name.starts_with("OUTRIGGER_") || name == "RUSTFLAGS" || name == "PYTHON"
            })
            .collect();
        variables.sort();
        variables.hash(&mut hasher);
        Ok(Self {
            folder: workspace.target("xtask/results"),
            sources: format!("{:016x}", hasher.finish()),
        })
    }

    /// What `job` counted when it passed with the same sources, and how long it took.
    pub(super) fn find(&self, job: &Job) -> Option<(Counts, f64)> {
        let text = fs::read_to_string(self.file(job)).ok()?;
        let kept: Kept = serde_json::from_str(&text).ok()?;
        let same = kept.sources == self.sources && kept.job == describe(job);
        same.then_some((kept.counts, kept.seconds))
    }

    /// Keeps what `job` counted if it passed, and forgets an earlier result if not.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn keep(&self, job: &Job, counts: &Counts, seconds: f64) -> anyhow::Result<()> {
        let file = self.file(job);
        if counts.failed > 0 {
            return match fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            };
        }
        fs::create_dir_all(&self.folder)?;
        let kept = Kept {
            sources: self.sources.clone(),
            job: describe(job),
            seconds,
            counts: counts.clone(),
        };
        fs::write(&file, serde_json::to_string_pretty(&kept)?)
            .with_context(|| format!("{} cannot be written", file.display()))
    }

    fn file(&self, job: &Job) -> PathBuf {
        self.folder
            .join(format!("{}.json", job.name.replace(' ', "-")))
    }
}

/// What a job is, so that a result is not taken for that of a job which was changed.
fn describe(job: &Job) -> String {
    format!("{:?}", job.work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::jobs::{self, Suite};

    #[test]
    fn only_what_passed_with_the_same_sources_is_found() -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("outrigger-results-{}", std::process::id()));
        let results = |sources: &str| Results {
            folder: folder.clone(),
            sources: sources.to_owned(),
        };
        let job = jobs::of(&[Suite::Rust], false)[0];
        let other = jobs::of(&[Suite::Mutants], false)[0];
        let passed = |passed| Counts {
            passed,
            ..Counts::default()
        };
        assert!(results("a").find(job).is_none(), "nothing was kept yet");
        results("a").keep(job, &passed(7), 1.5)?;
        let found = results("a")
            .find(job)
            .map(|(counts, seconds)| (counts.passed, seconds));
        assert_eq!(found, Some((7, 1.5)));
        assert!(results("b").find(job).is_none(), "the sources changed");
        assert!(results("a").find(other).is_none(), "another job");
        results("a").keep(job, &Counts::single(false), 1.0)?;
        assert!(results("a").find(job).is_none(), "it failed since");
        fs::remove_dir_all(&folder)?;
        Ok(())
    }
}
