//! `cargo xtask test rust --repeat 50 NAME`, and the same for `torch`: tests run again and again while two threads keep the
//! machine busy. A test that fails once in fifty times here fails one day in every run.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{bail, ensure};

use super::counts::Counts;
use super::jobs::{Job, Work};
use super::{Made, Run, python, rust};

/// So many loops are busy meanwhile.
const LOOPS: usize = 2;

/// Runs the tests with `name` of the first job of the chosen suite `count` times.
///
/// # Errors
/// If the suite has no single tests, or they cannot be built.
pub(super) fn run(run: &Run, jobs: &[&Job], count: u32, name: &str) -> anyhow::Result<ExitCode> {
    let is_of_tests =
        |job: &&&Job| matches!(job.work, Work::Rust | Work::Torch { in_part: false, .. });
    let Some(job) = jobs.iter().find(is_of_tests) else {
        bail!("--repeat is for the suites rust and torch");
    };
    ensure!(count > 0, "--repeat 0 runs nothing");
    let made = run.prepare(job)?;
    let over = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        for _ in 0..LOOPS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let counts = repeated(run, job, &made, count, name);
        over.store(true, Ordering::Relaxed);
        counts
    })?;
    println!("\n{} passed, {} failed", counts.passed, counts.failed);
    for failure in &counts.failures {
        println!("  {failure}");
    }
    Ok(match counts.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn repeated(run: &Run, job: &Job, made: &Made, count: u32, name: &str) -> anyhow::Result<Counts> {
    let workspace = run.workspace;
    let Work::Torch { device, .. } = job.work else {
        return rust::repeated(workspace, count, name);
    };
    let driver = made.driver()?;
    let mut counts = Counts::default();
    for _ in 0..count {
        let options = ["--numprocesses=0", "-k", name];
        counts.add(python::torch(
            workspace, job.name, driver, device, &options,
        )?);
    }
    Ok(counts)
}
