//! `outrigger conformance`: runs the conformance suite on a driver and reports the result. It shows and
//! writes what the suite's crate finds; it judges nothing itself.
//!
//! The hidden commands are the processes in which single tests run.

mod next;
mod progress;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use outrigger_conformance::expect::Expectations;
use outrigger_conformance::record::Status;
use outrigger_conformance::report::{Conclusion, Report};
use outrigger_conformance::runner::{self, Plan, RunError};
use outrigger_conformance::select::Selection;
use outrigger_conformance::{Tier, run_helper, run_test, use_library};

use progress::Progress;

/// The exit code if the run could not be made as requested.
const USAGE: u8 = 2;

/// The options of `outrigger conformance`.
#[derive(Args)]
pub(crate) struct Options {
    /// The driver: a name or a path, each with options, as in `host?face=discrete`
    #[arg(long, env = "OUTRIGGER_DRIVER", default_value = "host")]
    driver: String,
    /// Only tests of these tiers
    #[arg(long, value_delimiter = ',', value_parser = tier)]
    tier: Vec<Tier>,
    /// Only tests of this id, beginning of ids, or glob; may be given several times
    #[arg(long)]
    filter: Vec<String>,
    /// Only tests that name one of these rules, as `R16,R20`
    #[arg(long, value_delimiter = ',')]
    rules: Vec<String>,
    /// Ends the run after this many failures; its report is then incomplete
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    max_failures: Option<u32>,
    /// The seed of all random choices [default: a random one]
    #[arg(long)]
    seed: Option<u64>,
    /// Tests that run at a time [default: the number of cores]
    #[arg(long)]
    jobs: Option<usize>,
    /// Multiplies every time limit, for simulators and slow machines
    #[arg(long, default_value_t = 1.0, value_parser = factor)]
    limit_factor: f64,
    /// Lists the tests with their rules, and runs none
    #[arg(long)]
    list: bool,
    /// The expectations file: which tests are known to fail (TOML; see docs/conformance.md)
    #[arg(long)]
    expect: Option<PathBuf>,
    /// Also fails for unexpected passes and for expectations that have expired
    #[arg(long, requires = "expect")]
    verify_xfail: bool,
    /// The file for the journal of the run [default: one in the system's temporary folder]
    #[arg(long)]
    journal: Option<PathBuf>,
    /// Continues the run of this journal, with its driver, tests and seed
    #[arg(long, conflicts_with_all = ["driver", "tier", "filter", "rules", "seed", "journal", "limit_factor"])]
    resume: Option<PathBuf>,
    /// Writes the report as JSON, for `outrigger verify`
    #[arg(long)]
    json: Option<PathBuf>,
    /// Writes the report as JUnit XML
    #[arg(long)]
    junit: Option<PathBuf>,
    /// Writes the report as one HTML page
    #[arg(long)]
    html: Option<PathBuf>,
}

/// The process of one test.
#[derive(Args)]
pub(crate) struct Inner {
    #[arg(long)]
    driver: String,
    #[arg(long)]
    seed: u64,
    name: Option<String>,
}

fn tier(name: &str) -> Result<Tier, String> {
    Tier::ALL
        .into_iter()
        .find(|tier| tier.name() == name)
        .ok_or_else(|| {
            let names: Vec<&str> = Tier::ALL.iter().map(|tier| tier.name()).collect();
            format!("the tiers are {}", names.join(", "))
        })
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (0.01..=1000.0).contains(&factor) => Ok(factor),
        _ => Err("a factor from 0.01 to 1000".to_owned()),
    }
}

/// Runs the suite.
///
/// # Errors
/// Why the run could not be made, or a report not be written.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let selection = Selection {
        tiers: options.tier.clone(),
        filters: options.filter.clone(),
        rules: options.rules.clone(),
    };
    if options.list {
        return list(&selection);
    }
    let expectations = match options.expect.as_deref().map(Expectations::read) {
        None => Expectations::default(),
        Some(Ok(expectations)) => expectations,
        Some(Err(error)) => return Ok(refused(&error)),
    };
    let expired: Vec<String> = expectations
        .expired()
        .map(|exception| format!("{} (until {})", exception.test, exception.expires))
        .collect();
    let program = std::env::current_exe().context("this program's own file is not known")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.unwrap_or(cores);
    let outcome = match &options.resume {
        Some(journal) => {
            let progress = Progress::new(journal);
            runner::resume(
                program,
                jobs,
                expectations,
                options.max_failures,
                journal,
                &progress,
            )
        }
        None => {
            let journal = options.journal.clone().unwrap_or_else(own_journal);
            let progress = Progress::new(&journal);
            let plan = Plan {
                program,
                driver: options.driver.clone(),
                selection,
                seed: options.seed.unwrap_or_else(random_seed),
                jobs,
                limit_factor: options.limit_factor,
                expectations,
                max_failures: options.max_failures,
            };
            let outcome = plan.run(&journal, &progress);
            if outcome.is_ok() && options.journal.is_none() {
                // Of a finished run nobody needs it, and the system clears its temporary folder.
                let _ = std::fs::remove_file(&journal);
            }
            outcome
        }
    };
    let report = match outcome {
        Ok(report) => report,
        Err(error @ RunError::Driver { .. }) => {
            say(&format!("error: {error}\n"));
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Ok(refused(&error)),
    };
    write_reports(options, &report)?;
    print(&report.summary());
    if let Some(page) = &options.html {
        say(&format!(
            "{} shows all of it in a browser\n",
            page.display()
        ));
    }
    if std::io::stdout().is_terminal() {
        print(&next::after(&report, options));
    }
    let mut failed = report.conclusion == Conclusion::Failed;
    if options.verify_xfail {
        let passes = report.totals.get(Status::Xpass);
        if passes > 0 {
            say("error: --verify-xfail: tests passed that are expected to fail\n");
        }
        for entry in &expired {
            say(&format!("error: --verify-xfail: expired: {entry}\n"));
        }
        failed |= passes > 0 || !expired.is_empty();
    }
    Ok(match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// The hidden command that runs one test.
///
/// # Errors
/// If it was started by anything else than a run.
pub(crate) fn test(inner: &Inner) -> anyhow::Result<ExitCode> {
    use_own_library();
    run_test(inner.name.as_deref(), &inner.driver, inner.seed)
        .context("the runner of conformance tests starts this command; a person wants `outrigger conformance`")?;
    Ok(ExitCode::SUCCESS)
}

/// The hidden command that runs the second process of a test.
///
/// # Errors
/// What the helper says.
pub(crate) fn helper(inner: &Inner) -> anyhow::Result<ExitCode> {
    use_own_library();
    let name = inner.name.as_deref().unwrap_or_default();
    run_helper(name, &inner.driver, inner.seed).map_err(|failure| anyhow::anyhow!("{failure}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Has tests of the host contract call the library that this program holds.
fn use_own_library() {
    // SAFETY: the library's table lives as long as the process.
    unsafe { use_library(outrigger_ffi::otr_host_api().cast()) };
}

fn list(selection: &Selection) -> anyhow::Result<ExitCode> {
    let tests = match selection.tests() {
        Ok(tests) => tests,
        Err(error) => return Ok(refused(&error)),
    };
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.add_rows(
        tests
            .iter()
            .map(|test| [test.id.to_owned(), test.rules.join(" "), test.about()]),
    );
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    print(&format!("{}\n{} tests\n", table.trim_fmt(), tests.len()));
    Ok(ExitCode::SUCCESS)
}

fn write_reports(options: &Options, report: &Report) -> anyhow::Result<()> {
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => std::fs::write(path, text())
            .with_context(|| format!("{} cannot be written", path.display())),
        None => Ok(()),
    };
    write(&options.json, &|| report.to_json())?;
    write(&options.junit, &|| report.to_junit())?;
    write(&options.html, &|| report.to_html())
}

/// A file that no other run has.
fn own_journal() -> PathBuf {
    let name = format!("outrigger-conformance-{}.jsonl", std::process::id());
    std::env::temp_dir().join(name)
}

/// A seed that is short enough to be typed again.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let state = std::collections::hash_map::RandomState::new();
    state.build_hasher().finish() & 0xffff_ffff
}

fn refused(error: &dyn std::fmt::Display) -> ExitCode {
    say(&format!("error: {error}\n"));
    ExitCode::from(USAGE)
}

/// Says something beside the results.
fn say(text: &str) {
    // Nobody could be told that stderr is closed.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Writes results.
fn print(text: &str) {
    // A reader that has closed the output does not want the rest.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// The options of `outrigger verify`.
#[derive(Args)]
pub(crate) struct VerifyOptions {
    /// The report, as `outrigger conformance --json` wrote it
    report: PathBuf,
    /// Also checks that the report is about this driver file
    #[arg(long)]
    driver: Option<PathBuf>,
}

/// Checks a report.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn verify(options: &VerifyOptions) -> anyhow::Result<ExitCode> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
    };
    let outcome = outrigger_conformance::verify::verify(&read(&options.report)?);
    let report = match outcome {
        Ok(report) => report,
        Err(refusal) => {
            say(&format!("refused: {refusal}\n"));
            return Ok(ExitCode::FAILURE);
        }
    };
    if let Some(driver) = &options.driver {
        let hash = outrigger_conformance::identity::hash_file(driver)
            .with_context(|| format!("{} cannot be read", driver.display()))?;
        if hash != report.head.driver.file_sha256 {
            say(&format!(
                "refused: the report is about another driver file: its hash is {}, that of {} is {hash}\n",
                report.head.driver.file_sha256,
                driver.display()
            ));
            return Ok(ExitCode::FAILURE);
        }
    }
    print(&format!("whole and unaltered: digest {}\n", report.digest));
    print(&report.summary());
    Ok(match report.conclusion {
        Conclusion::Failed => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}
