//! `cargo xtask test`: runs the jobs of the chosen suites and adds up their results. A job that cannot
//! run at all counts as one failure, never as nothing. One that has passed on the same is not run again.

mod conformance;
mod counts;
mod jobs;
mod mutants;
mod python;
mod repeat;
mod results;
mod rust;
mod sanitizers;
mod seed;
mod shard;
mod summary;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;

use crate::disk;
use crate::environment;
use crate::fuzz;
use crate::hosts;
use crate::native::{self, DriverSpec};
use crate::setup;
use crate::shell;
use crate::soak;
use crate::workspace::Workspace;
use counts::Counts;
use jobs::{
    C_DRIVER, Job, LIBRARY_DRIVER, OPENCL_DRIVER, SECOND_DRIVER, Suite, TRIAL_DRIVER, Work,
};
use results::Results;
use seed::Seed;
use shard::Shard;
use summary::{Row, Summary};

/// The suites to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Suites; all if none is named
    suites: Vec<Suite>,
    /// Run everything on every kind of device, with the long runs
    #[arg(long)]
    all: bool,
    /// Run one of several parts, which all take about the same time
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Chooses the jobs that take turns and the tests that are drawn; by default it follows from the commit
    #[arg(long)]
    seed: Option<u64>,
    /// Run jobs again that have passed on the same
    #[arg(long)]
    again: bool,
    /// Instead of jobs, run the tests with a name so often, beside two busy loops
    #[arg(long, num_args = 2, value_names = ["N", "NAME"])]
    repeat: Option<Vec<String>>,
}

/// A program that says nothing for so long hangs.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// So many narrow jobs run at a time.
const LANES: usize = 2;

/// Runs the suites; fails if a test of any of them fails.
///
/// # Errors
/// If the machine lacks something that may not be installed, or the options make no sense; never for a
/// failing test.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let seed = options.seed.unwrap_or_else(|| Seed::of_commit(workspace).0);
    let seed = Seed(seed);
    let everything = jobs::of(&options.suites, true, seed);
    let mut chosen = jobs::of(&options.suites, options.all, seed);
    ensure!(!chosen.is_empty(), "these suites run with --all only");
    let left_out = everything.iter().filter(|job| !chosen.contains(job));
    let left_out = left_out.map(|job| job.name).collect();
    if let Some(shard) = options.shard {
        chosen = shard.part(&chosen);
    }
    disk::warn(workspace, 13);
    setup::ensure(workspace, &jobs::needs(&chosen))?;
    let run = Run {
        workspace,
        seed,
        // Without git nothing can be kept.
        results: Results::of_now(workspace).ok(),
        again: options.again,
        everything: options.all,
        left: AtomicU32::new(chosen.iter().map(|job| job.seconds).sum()),
        environment: OnceLock::new(),
        shim: OnceLock::new(),
        command_line: OnceLock::new(),
        release: OnceLock::new(),
    };
    if let Some([count, name]) = options.repeat.as_deref() {
        return repeat::run(
            &run,
            &chosen,
            count.parse().context("--repeat N NAME")?,
            name,
        );
    }
    println!("{} jobs, seed {seed}", chosen.len());
    let rows = run.all(&chosen);
    let summary = Summary {
        rows: &rows,
        left_out,
    };
    if let Some(Shard { number, of }) = options.shard {
        println!("\npart {number} of {of}");
    }
    println!(
        "\nall of it took {:.1} minutes\n\n{summary}",
        started.elapsed().as_secs_f64() / 60.0
    );
    Ok(if summary.totals().failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A run of jobs, and what they share: each is made once, by who needs it first.
struct Run<'a> {
    workspace: &'a Workspace,
    seed: Seed,
    results: Option<Results>,
    again: bool,
    /// Every job runs that has not passed on the same, also where it is not its turn.
    everything: bool,
    /// About how many seconds the jobs take that are not done.
    left: AtomicU32,
    environment: OnceLock<Result<(), String>>,
    shim: OnceLock<Result<(), String>>,
    command_line: OnceLock<Result<(), String>>,
    release: OnceLock<Result<(), String>>,
}

impl Run<'_> {
    /// Runs wide jobs one after the other, and narrow ones that stand together two at a time.
    fn all(&self, jobs: &[&Job]) -> Vec<Row> {
        std::thread::scope(|scope| {
            // A thread fetches and compiles for Python while the first jobs compile Rust. A job that needs it waits for
            // it, and hears how it went.
            if jobs.iter().any(|job| job.suite.needs_shim()) {
                scope.spawn(|| self.shim().ok());
            } else if jobs.iter().any(|job| job.suite.needs_environment()) {
                scope.spawn(|| self.environment().ok());
            }
            let groups = jobs.chunk_by(|one, other| one.narrow && other.narrow);
            groups.flat_map(|group| self.group(group)).collect()
        })
    }

    /// Runs jobs in lanes; each lane takes the next job when it has done one.
    fn group(&self, jobs: &[&Job]) -> Vec<Row> {
        let next = AtomicUsize::new(0);
        let lane = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(index) else {
                    return done;
                };
                done.push((index, self.row(job)));
            }
        };
        let mut rows = std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES.min(jobs.len()))
                .map(|_| scope.spawn(lane))
                .collect();
            let done = lanes.into_iter().map(|lane| lane.join());
            done.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Vec<_>>()
        });
        rows.sort_by_key(|&(index, _)| index);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Makes what a job needs and runs it, unless it has passed on the same; if it cannot run, says why and counts a failure.
    fn row(&self, job: &Job) -> Row {
        let started = Instant::now();
        let outcome = self.prepare(job).and_then(|made| {
            let results = self.results.as_ref();
            let kept = results.map(|results| {
                (
                    results,
                    results.fingerprint(job, &made.files, made.environment.as_deref()),
                )
            });
            if let Some((results, fingerprint)) = kept.as_ref().filter(|_| !self.again)
                && let Some((counts, seconds, earlier)) =
                    results.find(job, fingerprint, !self.everything && job.waits(self.seed))
            {
                return Ok((counts, seconds, Some(earlier)));
            }
            let counts = self.perform(job, &made)?;
            let seconds = started.elapsed().as_secs_f64();
            if let Some((results, fingerprint)) = kept {
                results.keep(job, &fingerprint, &counts, seconds)?;
            }
            Ok((counts, seconds, None))
        });
        let (counts, seconds, earlier) = outcome.unwrap_or_else(|error| {
            eprintln!("error: {}: {error:#}", job.name);
            (
                Counts::broken(&error),
                started.elapsed().as_secs_f64(),
                None,
            )
        });
        let before = self.left.fetch_sub(job.seconds, Ordering::Relaxed);
        let minutes = (before - job.seconds).div_ceil(60);
        eprintln!(
            "     > {}: {} failed; about {minutes} minutes left",
            job.name, counts.failed
        );
        Row {
            name: job.name,
            counts,
            seconds,
            earlier,
        }
    }

    /// Makes what a job runs on.
    fn prepare(&self, job: &Job) -> anyhow::Result<Made> {
        let (mut made, mut of_job) = (Vec::new(), None);
        if job.suite.needs_shim() {
            self.shim()?;
            made.push(self.workspace.library_folder().join("liboutrigger.so"));
            made.extend(native::built_shim(self.workspace)?);
        } else if job.suite.needs_environment() {
            self.environment()?;
        }
        if matches!(job.suite, Suite::Conformance | Suite::Pages) {
            self.command_line()?;
            made.push(self.workspace.target("debug/outrigger"));
        }
        if let Some(driver) = job.driver() {
            let driver = self.driver(driver)?;
            let library = driver.text.split('?').next().unwrap_or_default();
            made.push(library.into());
            of_job = Some(driver);
        }
        let needed = job.suite.needs_environment();
        Ok(Made {
            files: made,
            environment: needed.then(|| environment::stamp(self.workspace)),
            driver: of_job,
        })
    }

    fn perform(&self, job: &Job, made: &Made) -> anyhow::Result<Counts> {
        let (workspace, name) = (self.workspace, job.name);
        match job.work {
            Work::Check(arguments) => self.check(name, arguments),
            Work::Rust => rust::suite(workspace),
            Work::Conformance { filters, .. } => {
                let driver = made.driver()?;
                let filters: Vec<&str> = filters.iter().flat_map(|one| ["--filter", one]).collect();
                conformance::suite(workspace, name, driver, &filters)
            }
            Work::Frozen => conformance::frozen(workspace),
            Work::Mutants { in_part } => {
                let turn = in_part.then(|| self.seed.pick("mutants", mutants::TURNS));
                mutants::suite(workspace, turn)
            }
            Work::Sanitizer {
                sanitizer,
                packages,
            } => sanitizer.suite(workspace, name, packages),
            Work::Sweep {
                device,
                dtypes,
                samples,
                ..
            } => {
                let driver = made.driver()?;
                let store = self.store(job, driver)?;
                python::sweep(
                    workspace,
                    name,
                    driver,
                    device,
                    dtypes,
                    samples,
                    store.as_deref(),
                )
            }
            Work::Torch {
                device,
                options,
                in_part,
                ..
            } => {
                let drawn = format!("--of-driver={}", self.seed);
                let drawn = in_part.then_some(drawn.as_str());
                let turn = format!("--turn={}", self.seed);
                let turn = (!self.everything).then_some(turn.as_str());
                let driver = made.driver()?;
                let store = self.store(job, driver)?;
                let chosen = options.iter().copied().chain(drawn).chain(turn);
                let chosen: Vec<&str> = chosen.chain(store.as_deref()).collect();
                python::torch(workspace, name, driver, device, &chosen)
            }
            Work::Libraries {
                packages, files, ..
            } => python::libraries(workspace, name, made.driver()?, packages, files),
            Work::Hosts => Ok(counted(hosts::run(workspace)?)),
            Work::Fuzz { seconds } => Ok(counted(fuzz::suite(workspace, seconds.into())?)),
            Work::Soak { seconds } => {
                Ok(Counts::single(soak::soak(workspace, seconds, None, true)?))
            }
            Work::Pages => python::pages(workspace),
            Work::Wheels { others } => python::wheels(workspace, name, others),
            Work::Demo { device, .. } => {
                let driver = made.driver()?;
                let arguments = [
                    "xtask",
                    "demo",
                    "--device",
                    device,
                    "--driver",
                    &driver.text,
                ];
                self.check(name, &arguments)
            }
        }
    }

    /// The option that names a store with compiled operators, if the job has one.
    fn store(&self, job: &Job, driver: &DriverSpec) -> anyhow::Result<Option<String>> {
        if !job.compiled {
            return Ok(None);
        }
        let folder = python::store(self.workspace, driver)?;
        Ok(Some(format!("--store={}", folder.display())))
    }

    /// A job that is one Cargo command.
    fn check(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Counts> {
        let mut command = self.workspace.cargo(arguments);
        let finished = shell::attempt(self.workspace, name, &mut command, Some(LIMIT))?;
        if !finished.success() {
            eprintln!("{}\nall of it: {}", finished.tail(), finished.log.display());
        }
        Ok(Counts::single(finished.success()))
    }

    /// A driver as `OUTRIGGER_DRIVER` takes it; one in C, named by its sources, is built.
    fn driver(&self, driver: &str) -> anyhow::Result<DriverSpec> {
        let (path, options) = driver.split_once('?').unwrap_or((driver, ""));
        let built = match path {
            C_DRIVER | TRIAL_DRIVER => self.workspace.path(path).display().to_string(),
            LIBRARY_DRIVER => self.released("liboutrigger_library_driver.so")?,
            OPENCL_DRIVER => self.released("liboutrigger_opencl.so")?,
            SECOND_DRIVER => conformance::second_driver(self.workspace)?
                .display()
                .to_string(),
            _ => return DriverSpec::new(self.workspace, driver.to_owned()),
        };
        native::driver(self.workspace, &format!("{built}?{options}"), None)
    }

    /// The Python environment, which also brings the libclang that the generator of bindings needs.
    fn environment(&self) -> anyhow::Result<()> {
        once(&self.environment, || environment::ensure(self.workspace))
    }

    /// Builds all that PyTorch loads.
    fn shim(&self) -> anyhow::Result<()> {
        self.environment()?;
        self.release()?;
        once(&self.shim, || native::prepare(self.workspace))
    }

    /// The library and the drivers in Rust as they are shipped, by one command: apart they have dependencies with
    /// different features, and are compiled twice.
    fn release(&self) -> anyhow::Result<()> {
        once(&self.release, || native::library(self.workspace))
    }

    /// A library of the release build.
    fn released(&self, name: &str) -> anyhow::Result<String> {
        self.release()?;
        let library = self.workspace.library_folder().join(name);
        Ok(library.display().to_string())
    }

    /// The command `outrigger`.
    fn command_line(&self) -> anyhow::Result<()> {
        once(&self.command_line, || native::programs(self.workspace))
    }
}

/// All that was made for a job.
struct Made {
    /// The files of it that decide about the outcome.
    files: Vec<PathBuf>,
    /// The stamp of the Python environment, for a job that runs in it.
    environment: Option<PathBuf>,
    driver: Option<DriverSpec>,
}

impl Made {
    /// The driver of a job that is of one.
    fn driver(&self) -> anyhow::Result<&DriverSpec> {
        self.driver.as_ref().context("the job is of no driver")
    }
}

/// Makes something once; who comes later waits, and hears how it went.
fn once(
    cell: &OnceLock<Result<(), String>>,
    make: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let made = cell.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    made.clone().map_err(anyhow::Error::msg)
}

/// The counts of a suite: how many checks passed and how many failed.
fn counted((passed, failed): (u64, u64)) -> Counts {
    Counts {
        passed,
        failed,
        ..Counts::default()
    }
}
