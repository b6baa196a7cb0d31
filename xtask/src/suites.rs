//! `cargo xtask test`: runs the suites of the project one after the other and adds up what they say.
//! A suite that cannot run at all counts as one failure, never as nothing.

mod conformance;
mod mutants;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::environment;
use crate::fuzz;
use crate::hosts;
use crate::native::{self, DriverSpec};
use crate::shell::{self, Finished};
use crate::workspace::Workspace;

/// Which suites to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Suites; all if none is named
    suites: Vec<Suite>,
}

/// A suite of tests.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Formatting
    Fmt,
    /// Clippy, with warnings denied
    Clippy,
    /// Generated sources are what the generators make
    Gen,
    /// The invariants of ARCHITECTURE.md
    Tidy,
    /// The binary interface of both contracts is what its baseline says
    Abi,
    /// Everything in Rust, with hosts in C and C++
    Rust,
    /// The PyTorch tests on host unified, host discrete, the C driver, and as MTIA
    Torch,
    /// torch's own operator database on the device
    Sweep,
    /// The pages of `outrigger memory` and `outrigger conformance`, in a headless browser
    Pages,
    /// The conformance suite on every driver that needs no hardware
    Conformance,
    /// The conformance suite on drivers that are wrong on purpose: each must be caught
    Mutants,
    /// The archive for C and C++ hosts: unpacked, its examples built and run; hosts under sanitizers
    Hosts,
    /// Random input for every reader, and random calls of the C ABI, for a short time
    Fuzz,
}

/// The driver in C that the PyTorch tests run on too.
const C_DRIVER: &str = "examples/driver-c";

/// Where the tests of the PyTorch package lie.
const TORCH_TESTS: &str = "frameworks/torch/tests";

/// Where the tests of the command line's pages lie.
const PAGE_TESTS: &str = "cli/tests/page";

/// How every suite in Python is started.
const PYTEST: [&str; 6] = [
    "-m",
    "pytest",
    "--quiet",
    "--tb=short",
    "-p",
    "no:cacheprovider",
];

/// A single suite takes minutes; one that takes this long hangs.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// What a suite counted.
#[derive(Clone, Copy, Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Counts {
    /// One check that passed or failed as a whole.
    fn single(passed: bool) -> Self {
        Self {
            passed: passed.into(),
            failed: (!passed).into(),
            skipped: 0,
        }
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// One line of the summary.
struct Row {
    name: &'static str,
    counts: Counts,
    elapsed: Duration,
}

/// Runs the suites; fails if a test of any of them fails.
///
/// # Errors
/// Never for a failing test; only if the summary cannot be made.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let wanted = match &options.suites[..] {
        [] => Suite::value_variants(),
        named => named,
    };
    let mut rows = Vec::new();
    for suite in wanted {
        match suite {
            Suite::Fmt => rows.push(check(workspace, "fmt", &["fmt", "--all", "--check"])),
            Suite::Clippy => rows.push(check(
                workspace,
                "clippy",
                &[
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--",
                    "--deny=warnings",
                ],
            )),
            Suite::Gen => {
                // The environment brings the libclang that the generator of bindings needs.
                if let Err(error) = environment::ensure(workspace) {
                    eprintln!("error: {error:#}");
                }
                rows.push(check(workspace, "gen", &["xtask", "gen", "--check"]));
            }
            Suite::Tidy => rows.push(check(workspace, "tidy", &["xtask", "tidy"])),
            Suite::Abi => rows.push(check(workspace, "abi", &["xtask", "abi"])),
            Suite::Hosts => rows.push(row("hosts", || {
                let (passed, failed) = hosts::run(workspace)?;
                Ok(Counts {
                    passed,
                    failed,
                    skipped: 0,
                })
            })),
            Suite::Fuzz => rows.push(row("fuzz", || {
                let (passed, failed) = fuzz::suite(workspace)?;
                Ok(Counts {
                    passed,
                    failed,
                    skipped: 0,
                })
            })),
            Suite::Rust => rows.push(row("rust", || rust(workspace))),
            Suite::Torch => rows.extend(torch(workspace)),
            Suite::Sweep => rows.push(row("sweep", || sweep(workspace))),
            Suite::Pages => rows.push(row("pages", || pages(workspace))),
            Suite::Conformance => rows.extend(conformance::rows(workspace)),
            Suite::Mutants => rows.push(row("mutants", || mutants::suite(workspace))),
        }
    }
    Ok(summary(&rows))
}

/// Runs one suite; if it cannot run, says why and counts a failure.
fn row(name: &'static str, suite: impl FnOnce() -> anyhow::Result<Counts>) -> Row {
    let started = Instant::now();
    let counts = suite().unwrap_or_else(|error| {
        eprintln!("error: {name}: {error:#}");
        Counts::single(false)
    });
    Row {
        name,
        counts,
        elapsed: started.elapsed(),
    }
}

/// A suite that is one Cargo command.
fn check(workspace: &Workspace, name: &'static str, args: &[&str]) -> Row {
    row(name, || {
        let finished = shell::attempt(workspace, name, &mut workspace.cargo(args), Some(LIMIT))?;
        if !finished.success() {
            eprintln!("{}", finished.tail());
        }
        Ok(Counts::single(finished.success()))
    })
}

/// All tests of the workspace in Rust.
fn rust(workspace: &Workspace) -> anyhow::Result<Counts> {
    // Output of passing tests is shown, since that is where a test says that it skipped itself.
    let mut command = workspace.cargo(&[
        "test",
        "--workspace",
        "--no-fail-fast",
        "--",
        "--show-output",
    ]);
    let finished = shell::attempt(workspace, "rust", &mut command, Some(LIMIT))?;
    let mut counts = count_rust(&finished.output);
    if !finished.success() {
        eprintln!(
            "{}\nall of it: {}",
            failures_of_rust(&finished.output),
            finished.log.display()
        );
        // It did not build, or a test program died: Cargo failed without a failed test to count.
        counts.failed = counts.failed.max(1);
    }
    Ok(counts)
}

/// Adds up the result lines of libtest. A passing test that printed `skipped: REASON` is a skipped one.
fn count_rust(output: &str) -> Counts {
    let mut counts = Counts::default();
    let mut skipped_themselves = 0;
    for line in output.lines() {
        if let Some(result) = line.strip_prefix("test result: ") {
            counts.passed += number_before(result, " passed");
            counts.failed += number_before(result, " failed");
            counts.skipped += number_before(result, " ignored");
        } else if line.starts_with("skipped: ") {
            skipped_themselves += 1;
        }
    }
    counts.passed = counts.passed.saturating_sub(skipped_themselves);
    counts.skipped += skipped_themselves;
    counts
}

/// The number right before `word`, or 0.
fn number_before(text: &str, word: &str) -> u64 {
    text.split(word)
        .next()
        .and_then(|before| before.rsplit(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

/// What a person wants to see of a failed run: compiler errors and failing tests.
fn failures_of_rust(output: &str) -> String {
    let interesting = |line: &&str| {
        line.starts_with("error") || line.ends_with("... FAILED") || line.contains("panicked at")
    };
    output
        .lines()
        .filter(interesting)
        .take(60)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The PyTorch tests on every kind of device that needs no hardware.
fn torch(workspace: &Workspace) -> Vec<Row> {
    if let Err(error) = native::prepare(workspace) {
        return vec![row("torch", || Err(error))];
    }
    let host = |face: &str| DriverSpec(format!("host?face={face}"));
    vec![
        row("torch unified", || {
            pytest(
                workspace,
                "torch unified",
                &host("unified"),
                "outrigger",
                &[],
            )
        }),
        row("torch discrete", || {
            pytest(
                workspace,
                "torch discrete",
                &host("discrete"),
                "outrigger",
                &[],
            )
        }),
        row("torch driver-c", || {
            let driver =
                native::driver(workspace, &workspace.path(C_DRIVER).to_string_lossy(), None)?;
            pytest(workspace, "torch driver-c", &driver, "outrigger", &[])
        }),
        row("torch mtia", || {
            pytest(workspace, "torch mtia", &host("unified"), "mtia", &[])
        }),
    ]
}

/// The sweep over torch's operator database, which is a test file of its own kind.
fn sweep(workspace: &Workspace) -> anyhow::Result<Counts> {
    native::prepare(workspace)?;
    let driver = DriverSpec("host?face=unified".to_owned());
    pytest(workspace, "sweep", &driver, "outrigger", &["sweep"])
}

/// What the command line draws, as a browser shows it.
fn pages(workspace: &Workspace) -> anyhow::Result<Counts> {
    let python = environment::ensure_browser(workspace)?;
    let mut build = workspace.cargo(&["build", "--package", "outrigger-cli"]);
    shell::step(workspace, "building the command line", &mut build)?;
    let report = fresh_report(workspace, "pages")?;
    let mut command = Command::new(python);
    command
        .current_dir(workspace.path(PAGE_TESTS))
        .args(PYTEST)
        .args(["-s", "--timeout=300"]) // they print what they measured
        .arg(format!(
            "--outrigger={}",
            workspace.target("debug/outrigger").display()
        ))
        .arg(format!("--junitxml={}", report.display()))
        .arg(".");
    let finished = shell::attempt(workspace, "pages", &mut command, Some(LIMIT))?;
    if !finished.success() {
        eprintln!("{}\nall of it: {}", finished.tail(), finished.log.display());
    }
    let measured = finished.output.lines();
    for line in measured.filter(|line| line.starts_with("measured: ")) {
        println!("{line}");
    }
    counts_of_pytest(&fs::read_to_string(&report).unwrap_or_default(), &finished)
}

/// Where pytest writes its totals; a report of an earlier run must not be taken for this one's.
fn fresh_report(workspace: &Workspace, title: &str) -> anyhow::Result<PathBuf> {
    let report = workspace
        .target("xtask")
        .join(format!("{}.xml", title.replace(' ', "-")));
    if report.exists() {
        fs::remove_file(&report)
            .with_context(|| format!("{} cannot be removed", report.display()))?;
    }
    Ok(report)
}

/// Runs pytest on `paths` below the tests of the package, or on all but the sweep.
fn pytest(
    workspace: &Workspace,
    title: &str,
    driver: &DriverSpec,
    personality: &str,
    paths: &[&str],
) -> anyhow::Result<Counts> {
    let report = fresh_report(workspace, title)?;
    let mut command: Command = native::python(workspace, Some(driver));
    command
        .current_dir(workspace.path(TORCH_TESTS))
        .args(PYTEST)
        .args(["-r", "s"])
        .arg(format!("--junitxml={}", report.display()))
        .env("OUTRIGGER_TORCH", personality);
    if paths.is_empty() {
        command.args(["--ignore=sweep", "--timeout=300"]);
    } else {
        command.args(paths);
    }
    let finished = shell::attempt(workspace, title, &mut command, Some(LIMIT))?;
    if !finished.success() {
        eprintln!("{}\nall of it: {}", finished.tail(), finished.log.display());
    }
    counts_of_pytest(&fs::read_to_string(&report).unwrap_or_default(), &finished)
}

/// Reads the totals that pytest wrote, and adds a failure if it died without them.
fn counts_of_pytest(report: &str, finished: &Finished) -> anyhow::Result<Counts> {
    let Some((_, totals)) = report.split_once("<testsuite ") else {
        return Ok(Counts::single(false));
    };
    let total = |name: &str| -> anyhow::Result<u64> {
        let (_, value) = totals
            .split_once(&format!("{name}=\""))
            .with_context(|| format!("pytest's report has no {name}"))?;
        Ok(value.split('"').next().unwrap_or_default().parse()?)
    };
    let (failed, skipped) = (total("failures")? + total("errors")?, total("skipped")?);
    let mut counts = Counts {
        passed: total("tests")?.saturating_sub(failed + skipped),
        failed,
        skipped,
    };
    if !finished.success() {
        counts.failed = counts.failed.max(1);
    }
    Ok(counts)
}

/// Prints the table and the last line, which other programs read.
fn summary(rows: &[Row]) -> ExitCode {
    let mut all = Counts::default();
    println!(
        "\n{:<16}{:>8}{:>8}{:>9}{:>9}",
        "suite", "passed", "failed", "skipped", "seconds"
    );
    for Row {
        name,
        counts,
        elapsed,
    } in rows
    {
        let Counts {
            passed,
            failed,
            skipped,
        } = counts;
        println!(
            "{name:<16}{passed:>8}{failed:>8}{skipped:>9}{:>9.1}",
            elapsed.as_secs_f64()
        );
        all.add(*counts);
    }
    println!(
        "\n{} passed, {} failed, {} skipped",
        all.passed, all.failed, all.skipped
    );
    if all.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_are_added_up() {
        let output = "\
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out
---- needs_a_gpu stdout ----
skipped: no GPU
test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out
";
        let Counts {
            passed,
            failed,
            skipped,
        } = count_rust(output);
        assert_eq!((passed, failed, skipped), (14, 2, 2));
    }
}
