//! `cargo xtask test`: runs the jobs of the chosen suites and adds up their results. A job that cannot
//! run at all counts as one failure, never as nothing.

mod conformance;
mod counts;
mod jobs;
mod mutants;
mod python;
mod results;
mod rust;
mod sanitizers;
mod summary;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;

use crate::environment;
use crate::fuzz;
use crate::hosts;
use crate::native::{self, DriverSpec, PROGRAMS};
use crate::setup;
use crate::shell;
use crate::soak;
use crate::workspace::Workspace;
use counts::Counts;
use jobs::{C_DRIVER, Job, LIBRARY_DRIVER, OPENCL_DRIVER, SECOND_DRIVER, Shard, Suite, Work};
use results::Results;
use summary::{Row, Summary};

/// Which suites to run.
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
    /// Leave out jobs that have passed with the same sources
    #[arg(long)]
    resume: bool,
}

/// A job takes minutes; one that takes this long hangs.
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
    let everything = jobs::of(&options.suites, true);
    let mut chosen = jobs::of(&options.suites, options.all);
    ensure!(!chosen.is_empty(), "these suites run with --all only");
    let left_out = everything.iter().filter(|job| !chosen.contains(job));
    let left_out = left_out.map(|job| job.name).collect();
    if let Some(shard) = options.shard {
        chosen = shard.part(&chosen);
    }
    setup::ensure(workspace, &jobs::needs(&chosen))?;
    // Without git nothing can be kept, which only matters to who wants to go on later.
    let results = match Results::of_now(workspace) {
        Ok(results) => Some(results),
        Err(error) if options.resume => return Err(error.context("--resume")),
        Err(_) => None,
    };
    let run = Run {
        workspace,
        results,
        resume: options.resume,
        environment: OnceLock::new(),
        shim: OnceLock::new(),
        command_line: OnceLock::new(),
    };
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
    results: Option<Results>,
    resume: bool,
    environment: OnceLock<Result<(), String>>,
    shim: OnceLock<Result<(), String>>,
    command_line: OnceLock<Result<(), String>>,
}

impl Run<'_> {
    /// Runs wide jobs one after the other, and narrow ones that stand together two at a time.
    fn all(&self, jobs: &[&Job]) -> Vec<Row> {
        std::thread::scope(|scope| {
            // It fetches and compiles for Python while the first jobs compile Rust. Who needs it waits for
            // it, and hears how it went.
            let open = || jobs.iter().filter(|job| self.earlier(job).is_none());
            if open().any(|job| job.suite.needs_shim()) {
                scope.spawn(|| self.shim().ok());
            } else if open().any(|job| job.suite.needs_environment()) {
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

    /// What the job counted in an earlier run, and its seconds, if that is to be taken for this one's.
    fn earlier(&self, job: &Job) -> Option<(Counts, f64)> {
        let results = self.results.as_ref().filter(|_| self.resume);
        results.and_then(|results| results.find(job))
    }

    /// Runs one job; if it cannot run, says why and counts a failure.
    fn row(&self, job: &Job) -> Row {
        if let Some((counts, seconds)) = self.earlier(job) {
            return Row {
                name: job.name,
                counts,
                seconds,
                earlier: true,
            };
        }
        let started = Instant::now();
        let counts = self.perform(job).unwrap_or_else(|error| {
            eprintln!("error: {}: {error:#}", job.name);
            Counts::single(false)
        });
        let seconds = started.elapsed().as_secs_f64();
        if let Some(results) = &self.results
            && let Err(error) = results.keep(job, &counts, seconds)
        {
            eprintln!("error: the result of {} is not kept: {error:#}", job.name);
        }
        Row {
            name: job.name,
            counts,
            seconds,
            earlier: false,
        }
    }

    fn perform(&self, job: &Job) -> anyhow::Result<Counts> {
        let (workspace, name) = (self.workspace, job.name);
        match job.work {
            Work::Check(arguments) => {
                if job.suite.needs_environment() {
                    self.environment()?;
                }
                self.check(name, arguments)
            }
            Work::Rust => rust::suite(workspace, LIMIT),
            Work::Conformance { driver, filters } => {
                self.command_line()?;
                let driver = self.driver(driver)?;
                let filters: Vec<&str> = filters.iter().flat_map(|one| ["--filter", one]).collect();
                conformance::suite(workspace, name, &driver, &filters)
            }
            Work::Mutants => mutants::suite(workspace),
            Work::Sanitizer(sanitizer) => sanitizer.suite(workspace, name),
            Work::Sweep {
                driver,
                device,
                dtypes,
                samples,
            } => {
                self.shim()?;
                python::sweep(
                    workspace,
                    name,
                    &self.driver(driver)?,
                    device,
                    dtypes,
                    samples,
                )
            }
            Work::Torch {
                driver,
                device,
                files,
            } => {
                self.shim()?;
                python::torch(workspace, name, &self.driver(driver)?, device, files)
            }
            Work::Hosts => Ok(counted(hosts::run(workspace)?)),
            Work::Fuzz { seconds } => Ok(counted(fuzz::suite(workspace, seconds.into())?)),
            Work::Soak { seconds } => {
                Ok(Counts::single(soak::soak(workspace, seconds, None, true)?))
            }
            Work::Pages => {
                self.command_line()?;
                python::pages(workspace)
            }
            Work::Wheels { others } => {
                self.shim()?;
                python::wheels(workspace, name, others)
            }
            Work::Demo { driver, device } => {
                self.shim()?;
                let driver = self.driver(driver)?;
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
            C_DRIVER => self.workspace.path(path).display().to_string(),
            LIBRARY_DRIVER => native::library_driver(self.workspace)?
                .display()
                .to_string(),
            OPENCL_DRIVER => native::opencl_driver(self.workspace)?.display().to_string(),
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

    /// What PyTorch loads.
    fn shim(&self) -> anyhow::Result<()> {
        self.environment()?;
        once(&self.shim, || native::prepare(self.workspace))
    }

    /// The command `outrigger`.
    fn command_line(&self) -> anyhow::Result<()> {
        once(&self.command_line, || {
            let mut build = self.workspace.cargo(&["build"]);
            build.args(PROGRAMS);
            shell::step(
                self.workspace,
                "building library and command line",
                &mut build,
            )?;
            Ok(())
        })
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

/// How many checks of a suite passed and how many failed.
fn counted((passed, failed): (u64, u64)) -> Counts {
    Counts {
        passed,
        failed,
        ..Counts::default()
    }
}
