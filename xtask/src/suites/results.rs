//! The jobs that have passed, so that they need not run again on the same: one file for each job, with the fingerprint of
//! what it ran on. A failure is never kept.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::counts::Counts;
use super::jobs::Job;
use crate::environment;
use crate::workspace::Workspace;

/// The record of a job that passed.
#[derive(Serialize, Deserialize)]
struct Kept {
    fingerprint: Fingerprint,
    seconds: f64,
    counts: Counts,
}

/// A hash of all that a job runs on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Fingerprint {
    /// The machine, its compilers and packages, and what the job is.
    place: String,
    /// A hash of the built files, and of the files of the repository that the job reads.
    code: String,
}

/// An earlier run in which a job passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Earlier {
    /// On all that it would run on now.
    OnTheSame,
    /// In the same place, on other code; it was not the job's turn.
    OnOtherCode,
}

/// The results of earlier runs, and what of this machine and of the repository decides whether they still hold.
pub(super) struct Results {
    folder: PathBuf,
    machine: u64,
    /// The files that git knows or would add, with the hash of each.
    files: Vec<(String, u64)>,
}

impl Results {
    /// The results for the files as they are now.
    ///
    /// # Errors
    /// If git cannot say which files are sources.
    pub(super) fn of_now(workspace: &Workspace) -> anyhow::Result<Self> {
        // Deleted but not yet committed, or a link to nowhere: it is no source.
        let hashed = |name: String| hash_of(&workspace.path(&name)).map(|hash| (name, hash));
        let mut files: Vec<_> = workspace.files()?.into_iter().filter_map(hashed).collect();
        // Git's order tells files that it has from those that it would add: no job sees that.
        files.sort();
        Ok(Self {
            folder: workspace.target("xtask/results"),
            machine: machine(workspace)?,
            files,
        })
    }

    /// The fingerprint of all that a job runs on: what was `built` for it, and the stamp of the Python environment that
    /// it needs.
    pub(super) fn fingerprint(
        &self,
        job: &Job,
        built: &[PathBuf],
        environment: Option<&Path>,
    ) -> Fingerprint {
        let mut place = DefaultHasher::new();
        self.machine.hash(&mut place);
        environment.map(hash_of).hash(&mut place);
        // A result is not taken for that of a job that was changed.
        format!("{:?}", job.work).hash(&mut place);
        let mut code = DefaultHasher::new();
        for path in built {
            (path, hash_of(path)).hash(&mut code);
        }
        for file in self.files.iter().filter(|(name, _)| job.suite.reads(name)) {
            file.hash(&mut code);
        }
        Fingerprint {
            place: format!("{:016x}", place.finish()),
            code: format!("{:016x}", code.finish()),
        }
    }

    /// The counts and the time of `job` when it passed on the same. A job that waits for its turn may have passed on
    /// other code.
    pub(super) fn find(
        &self,
        job: &Job,
        fingerprint: &Fingerprint,
        waits: bool,
    ) -> Option<(Counts, f64, Earlier)> {
        let text = fs::read_to_string(self.file(job)).ok()?;
        let kept: Kept = serde_json::from_str(&text).ok()?;
        let earlier = if kept.fingerprint == *fingerprint {
            Earlier::OnTheSame
        } else if waits && kept.fingerprint.place == fingerprint.place {
            Earlier::OnOtherCode
        } else {
            return None;
        };
        Some((kept.counts, kept.seconds, earlier))
    }

    /// Keeps what `job` counted if it passed, and forgets an earlier result if not.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn keep(
        &self,
        job: &Job,
        fingerprint: &Fingerprint,
        counts: &Counts,
        seconds: f64,
    ) -> anyhow::Result<()> {
        let file = self.file(job);
        if counts.failed > 0 {
            return match fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            };
        }
        fs::create_dir_all(&self.folder)?;
        let kept = Kept {
            fingerprint: fingerprint.clone(),
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

/// The compilers, the OpenCL implementations and the variables that a result depends on.
fn machine(workspace: &Workspace) -> anyhow::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let toolchain = workspace.cargo(&["--version", "--verbose"]).output()?;
    toolchain.stdout.hash(&mut hasher);
    environment::cxx_compiler().ok().hash(&mut hasher);
    for folder in ["/etc/OpenCL/vendors", "/var/lib/dpkg/info"] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut implementations: Vec<_> = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "icd") || is_compiler(path))
            .map(|path| (hash_of(&path), path))
            .collect();
        implementations.sort();
        implementations.hash(&mut hasher);
    }
    // Variables that choose drivers, flags and Python from outside change results too.
    let mut variables: Vec<_> = std::env::vars_os()
        .filter(|(name, _)| {
            let name = name.to_string_lossy();
            name.starts_with("OUTRIGGER_") || name == "RUSTFLAGS" || name == "PYTHON"
        })
        .collect();
    variables.sort();
    variables.hash(&mut hasher);
    Ok(hasher.finish())
}

/// True for the list of files that Debian keeps of a package with a compiler or OpenCL: it changes with the version.
fn is_compiler(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let of = ["gcc-", "g++-", "clang-", "libpocl", "ocl-icd"];
    name.ends_with(".md5sums") && of.iter().any(|start| name.starts_with(start))
}

/// The hash of a file's content; none if it cannot be read.
fn hash_of(path: &Path) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    fs::read(path).ok()?.hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::jobs::{self, Suite};
    use crate::suites::seed::Seed;

    fn job(suite: Suite) -> &'static Job {
        jobs::of(&[suite], false, Seed(0))[0]
    }

    fn results(folder: &Path, files: &[(&str, u64)]) -> Results {
        Results {
            folder: folder.to_owned(),
            machine: 1,
            files: files
                .iter()
                .map(|&(name, hash)| (name.to_owned(), hash))
                .collect(),
        }
    }

    #[test]
    fn only_what_passed_on_the_same_is_found() -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("outrigger-results-{}", std::process::id()));
        let results = results(&folder, &[]);
        let (job, other) = (job(Suite::Rust), job(Suite::Mutants));
        let passed = |passed| Counts {
            passed,
            ..Counts::default()
        };
        let of = |place: &str, code: &str| Fingerprint {
            place: place.to_owned(),
            code: code.to_owned(),
        };
        let found = |job, fingerprint: &Fingerprint, waits| {
            let found = results.find(job, fingerprint, waits);
            found.map(|(counts, seconds, earlier)| (counts.passed, seconds, earlier))
        };
        let now = of("a", "1");
        assert_eq!(found(job, &now, true), None, "nothing was kept yet");
        results.keep(job, &now, &passed(7), 1.5)?;
        let same = Some((7, 1.5, Earlier::OnTheSame));
        assert_eq!(
            [false, true].map(|waits| found(job, &now, waits)),
            [same, same]
        );
        let edited = of("a", "2");
        assert_eq!(found(job, &edited, false), None, "it ran on other code");
        let waiting = Some((7, 1.5, Earlier::OnOtherCode));
        assert_eq!(found(job, &edited, true), waiting);
        assert_eq!(found(job, &of("b", "1"), true), None, "another machine");
        assert_eq!(found(other, &now, true), None, "another job");
        results.keep(job, &now, &Counts::single(false), 1.0)?;
        assert_eq!(found(job, &now, true), None, "it failed since");
        fs::remove_dir_all(&folder)?;
        Ok(())
    }

    #[test]
    fn a_job_runs_again_if_what_it_reads_has_changed() {
        let [python, rust] = [
            "frameworks/torch/torch_outrigger/amp.py",
            "graph/src/exec.rs",
        ];
        let of = |job, python_hash, rust_hash, made: &[PathBuf]| {
            let files = [(python, python_hash), (rust, rust_hash)];
            results(Path::new("/nowhere"), &files).fingerprint(job, made, None)
        };
        let (torch, tests) = (job(Suite::Torch), job(Suite::Rust));
        assert_ne!(of(torch, 1, 1, &[]), of(torch, 2, 1, &[]));
        assert_eq!(
            of(torch, 1, 1, &[]),
            of(torch, 1, 2, &[]),
            "the library is what it runs on"
        );
        assert_eq!(of(tests, 1, 1, &[]), of(tests, 2, 1, &[]));
        assert_ne!(of(tests, 1, 1, &[]), of(tests, 1, 2, &[]));
        let made = [std::env::current_exe().unwrap_or_default()];
        let (before, after) = (of(torch, 1, 1, &[]), of(torch, 1, 1, &made));
        assert_eq!(before.place, after.place);
        assert_ne!(before.code, after.code);
        let packages = Some(made[0].as_path());
        let after = results(Path::new("/nowhere"), &[]).fingerprint(torch, &[], packages);
        assert_ne!(before.place, after.place, "other packages");
    }
}
