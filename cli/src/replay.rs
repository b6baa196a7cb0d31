//! `outrigger replay`: runs a recording of driver calls on any driver, compares the results, and
//! shrinks a recording that fails. Each attempt of a shrink runs in its own process, because a driver
//! that fails may crash or hang.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use outrigger_device::Driver;
use outrigger_device_ops::with_kernels;
use outrigger_layers::Stack;
use outrigger_layers::replay::{
    Difference, DifferenceKind, Recording, ReplayOptions, compare, compare_runs, replay, shrink,
};

/// The options of `outrigger replay`.
#[derive(Args)]
pub(crate) struct Options {
    /// A recording, as the layer `record:FILE` writes it
    file: PathBuf,
    /// The driver: a name or a path, with options as in host?devices=1
    #[arg(long, env = "OUTRIGGER_DRIVER", default_value = "host")]
    driver: String,
    /// A driver that is right: the replay is compared with its results instead of the recorded ones
    #[arg(long)]
    against: Option<String>,
    /// Writes the smallest recording that still fails into this file. Compares with the driver of
    /// --against, by default the built-in one
    #[arg(long, value_name = "OUT")]
    shrink: Option<PathBuf>,
    /// Runs host kernels, by loading the files from which they came. Only for recordings that you
    /// trust: they name the code that runs
    #[arg(long)]
    host_functions: bool,
    /// Seconds after which an attempt of --shrink counts as hanging
    #[arg(long, default_value_t = 20)]
    timeout: u64,
    /// Failures in a row that an attempt of --shrink needs; more than 1 for a failure that comes and goes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Writes one line of JSON for the process that shrinks
    #[arg(long, hide = true)]
    probe: bool,
}

/// Replays, and says what differs.
///
/// # Errors
/// The recording cannot be read, or a driver not opened.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let recording = read(&options.file)?;
    if options.probe {
        say(&Outcome::of(options, &recording)?.to_line());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(out) = &options.shrink {
        return shrink_into(options, &recording, out);
    }
    let (difference, text) = run_once(options, &recording)?;
    say(&text);
    Ok(match difference {
        Some(_) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    })
}

fn read(path: &Path) -> anyhow::Result<Recording> {
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    Recording::read(BufReader::new(file)).with_context(|| format!("{}", path.display()))
}

fn say(text: &str) {
    // A reader that has closed the output does not want the rest.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn open(spec: &str) -> anyhow::Result<Driver> {
    Ok(with_kernels(Driver::open(&spec.parse()?)?)?)
}

/// The first difference, and what to tell a person.
fn run_once(
    options: &Options,
    recording: &Recording,
) -> anyhow::Result<(Option<Difference>, String)> {
    let how = ReplayOptions {
        host_functions: options.host_functions,
        define_memory: options.against.is_some(),
    };
    let driver = Stack::from_environment()?.apply(open(&options.driver)?)?;
    let run = replay(recording, driver, how)?;
    let (difference, expected) = match &options.against {
        Some(right) => {
            let expected = replay(recording, open(right)?, how)?;
            (compare_runs(recording, &expected, &run), right.as_str())
        }
        None => (compare(recording, &run), "the recording"),
    };
    let mut text = String::new();
    let cut = if recording.cut {
        ", whose end is missing"
    } else {
        ""
    };
    let replayed = run.results.iter().filter(|r| r.code.is_some()).count();
    // A text takes everything.
    let _ = writeln!(
        text,
        "{}: {} calls of the driver {} {}{cut}; {replayed} replayed on {}",
        options.file.display(),
        recording.steps.len(),
        recording.driver,
        recording.version,
        options.driver,
    );
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for reason in run.results.iter().filter_map(|result| result.skipped) {
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    for (reason, count) in reasons {
        let _ = writeln!(text, "{count} not replayed: {reason}");
    }
    let uncertain = run
        .results
        .iter()
        .filter(|r| r.uncertain && r.read.is_some());
    let uncertain = uncertain.count();
    if uncertain > 0 && options.against.is_none() {
        let _ = writeln!(
            text,
            "{uncertain} copies were not compared: they may read results of work that was not replayed"
        );
    }
    let _ = match &difference {
        Some(difference) => writeln!(text, "differs from {expected}: {difference}"),
        None => writeln!(text, "the same as {expected}"),
    };
    Ok((difference, text))
}

/// The end of an attempt. Two of the same kind are the same failure.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Same,
    /// By entry and kind of difference.
    Differs(String, String),
    Crash(String),
    Hang,
}

impl Outcome {
    fn of(options: &Options, recording: &Recording) -> anyhow::Result<Self> {
        Ok(match run_once(options, recording)?.0 {
            None => Self::Same,
            Some(difference) => Self::Differs(
                difference.entry.name().to_owned(),
                match difference.kind {
                    DifferenceKind::Code(..) => "code",
                    DifferenceKind::Outcome(..) => "outcome",
                    DifferenceKind::Bytes { .. } => "bytes",
                    DifferenceKind::HostCalls(..) => "host calls",
                }
                .to_owned(),
            ),
        })
    }

    fn to_line(&self) -> String {
        let value = match self {
            Self::Differs(entry, kind) => serde_json::json!({"entry": entry, "kind": kind}),
            _ => serde_json::json!({}),
        };
        format!("{value}\n")
    }

    fn from_line(line: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        Some(match (text("entry"), text("kind")) {
            (Some(entry), Some(kind)) => Self::Differs(entry, kind),
            _ => Self::Same,
        })
    }

    fn describe(&self) -> String {
        match self {
            Self::Same => "nothing differs".to_owned(),
            Self::Differs(entry, kind) => format!("the {kind} of a call of {entry} differ"),
            Self::Crash(how) => format!("the process dies ({how})"),
            Self::Hang => "the process hangs".to_owned(),
        }
    }
}

fn shrink_into(options: &Options, recording: &Recording, out: &Path) -> anyhow::Result<ExitCode> {
    let attempts = Attempts { options, out };
    let first = attempts.outcome(recording)?;
    if first == Outcome::Same {
        bail!(
            "nothing to shrink: on {} the recording gives the right results",
            options.driver
        );
    }
    let mut tries = 0u32;
    let mut problem = None;
    let small = shrink(recording, |part| {
        tries += 1;
        let fails = (0..options.repeat).try_fold(true, |fails, _| {
            Ok::<_, anyhow::Error>(fails && attempts.outcome(part)? == first)
        });
        fails.unwrap_or_else(|error| {
            problem.get_or_insert(error);
            false
        })
    });
    if let Some(problem) = problem {
        return Err(problem);
    }
    write(&small, out)?;
    let mut text = format!(
        "{}: {} calls became {} in {tries} attempts; {}\n",
        out.display(),
        recording.steps.len(),
        small.steps.len(),
        first.describe()
    );
    for step in &small.steps {
        let _ = writeln!(text, "  {:>6} {}", step.number, step.entry.name());
    }
    say(&text);
    Ok(ExitCode::FAILURE)
}

fn write(recording: &Recording, path: &Path) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("{}", path.display()))?;
    let mut file = BufWriter::new(file);
    recording.write(&mut file)?;
    Ok(file.flush()?)
}

/// Replays parts of a recording, each in a process of its own.
struct Attempts<'a> {
    options: &'a Options,
    out: &'a Path,
}

impl Attempts<'_> {
    fn outcome(&self, part: &Recording) -> anyhow::Result<Outcome> {
        // The result's own name: what is there when the shrink is interrupted is the last attempt.
        write(part, self.out)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("replay")
            .arg(self.out)
            .arg("--probe")
            .args(["--driver", &self.options.driver])
            .args([
                "--against",
                self.options.against.as_deref().unwrap_or("host"),
            ])
            .args(self.options.host_functions.then_some("--host-functions"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().context("an attempt could not be started")?;
        let end = Instant::now() + Duration::from_secs(self.options.timeout);
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() >= end => {
                    child.kill()?;
                    child.wait()?;
                    return Ok(Outcome::Hang);
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let mut text = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            std::io::Read::read_to_string(&mut stdout, &mut text)?;
        }
        if !status.success() {
            ensure!(
                status.code().is_none(),
                "an attempt could not be made: replay {} without --shrink to see why",
                self.out.display()
            );
            return Ok(Outcome::Crash(status.to_string()));
        }
        text.lines()
            .find_map(Outcome::from_line)
            .context("an attempt said nothing")
    }
}
