//! `cargo xtask fuzz`: builds the targets of fuzz/ on the stable compiler, with the instrumentation
//! that libFuzzer needs. Each target then searches for inputs that break something for some seconds,
//! from the committed corpus on. `cargo +nightly fuzz run TARGET` does the same with the address
//! sanitizer. New inputs of a run stay out of the repository, unless `--keep` is given.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;

use crate::shell;
use crate::workspace::Workspace;

/// Options of fuzzing.
#[derive(Args)]
pub(crate) struct Options {
    /// Targets; all of them if none is named
    #[arg(value_parser = TARGETS)]
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Add inputs that reach new code to the corpus, as few as possible
    #[arg(long)]
    keep: bool,
}

/// The targets, as fuzz/Cargo.toml has them.
const TARGETS: [&str; 5] = ["host_abi", "trace", "recording", "snapshot", "report"];

/// Counts what is reached, where libFuzzer looks for it. One unit of code, since the linker drops the
/// tables of others.
const FLAGS: &str = "--cfg=fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
                     -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Fuzzes the targets that are named.
///
/// # Errors
/// If they do not build or cannot be started.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let all = TARGETS.map(str::to_owned);
    let targets = if options.targets.is_empty() {
        &all[..]
    } else {
        &options.targets
    };
    let (_, failed) = targets_for(workspace, targets, options.seconds, options.keep)?;
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Fuzzes all targets for so long each; how many passed and how many failed.
///
/// # Errors
/// As [`run`].
pub(crate) fn suite(workspace: &Workspace, seconds: u64) -> anyhow::Result<(u64, u64)> {
    targets_for(workspace, &TARGETS.map(str::to_owned), seconds, false)
}

fn targets_for(
    workspace: &Workspace,
    targets: &[String],
    seconds: u64,
    keep: bool,
) -> anyhow::Result<(u64, u64)> {
    let programs = build(workspace)?;
    let (mut passed, mut failed) = (0, 0);
    for target in targets {
        let found = workspace.target("xtask/fuzz").join(target);
        fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        let corpus = workspace.path("fuzz/corpus").join(target);
        let mut command = Command::new(programs.join(target));
        command
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/broken-", found.display()))
            .args([&found, &corpus]);
        let limit = Duration::from_secs(seconds + 300);
        let title = format!("fuzzing {target} for {seconds} s");
        let finished = shell::attempt(workspace, &title, &mut command, Some(limit))?;
        if finished.success() {
            passed += 1;
        } else {
            failed += 1;
            eprintln!("{}\nall of it: {}", finished.tail(), finished.log.display());
        }
        let runs = finished
            .output
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        println!("{target}: {} inputs", runs.unwrap_or(" no").trim());
        if keep && finished.success() {
            let mut merge = Command::new(programs.join(target));
            merge.arg("-merge=1").args([&corpus, &found]);
            shell::step(
                workspace,
                &format!("keeping what {target} found"),
                &mut merge,
            )?;
        }
    }
    Ok((passed, failed))
}

/// Builds all targets; the folder of the programs.
fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    // Named, so that the flags are for the targets only and not for build scripts.
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = workspace.target("fuzz");
    let mut command = workspace.cargo(&["build", "--release", "--target", &triple]);
    command
        .arg("--manifest-path")
        .arg(workspace.path("fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", FLAGS);
    shell::step(workspace, "building the fuzz targets", &mut command)?;
    let programs = folder.join(triple).join("release");
    ensure!(programs.is_dir(), "{} was not built", programs.display());
    Ok(programs)
}
