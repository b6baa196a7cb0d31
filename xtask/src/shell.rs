//! Runs the commands of a chore. It shows which command runs and how long it took, keeps the output in
//! a log, and shows the end of the log when a command fails. It decides nothing about outcomes.

use std::fs;
use std::io::{ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::workspace::Workspace;

/// The number of lines of a failed command that are shown; all are in its log.
const SHOWN_LINES: usize = 40;

/// A package manager that says nothing for so long hangs: the largest package has two gigabytes.
const QUIET: Duration = Duration::from_secs(900);

/// The outcome of a command.
pub(crate) struct Finished {
    /// The status with which the command ended.
    pub(crate) status: ExitStatus,
    /// The standard output and error, as they came.
    pub(crate) output: String,
    /// Wall-clock time.
    pub(crate) elapsed: Duration,
    /// True if it was stopped because it had said nothing for too long.
    pub(crate) timed_out: bool,
    /// The file with `output`.
    pub(crate) log: PathBuf,
}

impl Finished {
    /// True if the command did what it should.
    pub(crate) fn success(&self) -> bool {
        self.status.success() && !self.timed_out
    }

    /// The last lines of the output.
    pub(crate) fn tail(&self) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }
}

/// Runs `command` with a line that says `title`; an error if it fails.
///
/// # Errors
/// If the command cannot be started or fails; the message holds the end of its output.
pub(crate) fn step(
    workspace: &Workspace,
    title: &str,
    command: &mut Command,
) -> anyhow::Result<Finished> {
    let finished = attempt(workspace, title, command, None)?;
    if !finished.success() {
        bail!(
            "{title} failed ({}); all of its output: {}\n{}",
            finished.status,
            finished.log.display(),
            finished.tail()
        );
    }
    Ok(finished)
}

/// Runs `command` with a line that says `title` and hands back how it ended. It is stopped after `silence` without a
/// line of output: how long the whole takes is a matter of the machine.
///
/// # Errors
/// If the command cannot be started or its log not written.
pub(crate) fn attempt(
    workspace: &Workspace,
    title: &str,
    command: &mut Command,
    silence: Option<Duration>,
) -> anyhow::Result<Finished> {
    let line = StatusLine::start(title);
    let started = Instant::now();
    let (reader, writer) = std::io::pipe().context("no pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("no pipe")?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("{} could not be started", command.get_program().display()))?;
    // The command keeps the writing end of the pipe: let go of it, or reading never ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let collected = Arc::new(Mutex::new(Collected {
        bytes: Vec::new(),
        last: started,
    }));
    let collector = std::thread::spawn({
        let (shown, collected) = (line.bar.clone(), Arc::clone(&collected));
        move || collect(reader, &shown, &collected)
    });
    let locked = || collected.lock().unwrap_or_else(PoisonError::into_inner);
    let mut timed_out = false;
    let status = loop {
        if let Some(status) = child
            .try_wait()
            .context("the command cannot be waited for")?
        {
            break status;
        }
        if silence.is_some_and(|silence| locked().last.elapsed() >= silence) {
            timed_out = true;
            child.kill().context("the command cannot be stopped")?;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if timed_out {
        // A process that the command started may live on and hold the pipe: take what is there.
        let silence = silence.unwrap_or_default().as_secs();
        let stopped = format!("\nstopped: it said nothing for {silence} s\n");
        locked().bytes.extend(stopped.bytes());
    } else if collector.join().is_err() {
        bail!("the output of {title} could not be read");
    }
    let output = String::from_utf8_lossy(&locked().bytes).into_owned();
    let log = write_log(workspace, title, &output)?;
    let finished = Finished {
        status,
        output,
        elapsed: started.elapsed(),
        timed_out,
        log,
    };
    line.finish(title, &finished);
    Ok(finished)
}

/// Runs a command that may fail for reasons of the network.
///
/// # Errors
/// If it fails; the message is the one line of its output that says why.
pub(crate) fn fetch(
    workspace: &Workspace,
    title: &str,
    command: &mut Command,
) -> anyhow::Result<()> {
    let finished = attempt(workspace, title, command, Some(QUIET))?;
    if !finished.success() {
        bail!("{title} failed: {}", reason(&finished.output));
    }
    Ok(())
}

/// The line of a package manager's output that says what went wrong: the first that it marks as an error,
/// else the last one.
pub(crate) fn reason(output: &str) -> &str {
    let mut lines = output
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let marked = |line: &&str| line.starts_with("E: ") || line.starts_with("ERROR: ");
    let first = lines.clone().find(marked);
    first
        .or_else(|| lines.next_back())
        .unwrap_or("it said nothing")
}

/// The output of a command so far, and the time of its last part.
struct Collected {
    bytes: Vec<u8>,
    last: Instant,
}

/// Reads everything into `collected`, and shows the last line on the status line. A test runner prints a dot
/// for each test, without an end of the line: that counts as output too.
fn collect(mut reader: impl Read, shown: &ProgressBar, collected: &Mutex<Collected>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = reader.read(&mut buffer) {
        let mut collected = collected.lock().unwrap_or_else(PoisonError::into_inner);
        collected.bytes.extend_from_slice(&buffer[..count]);
        collected.last = Instant::now();
        let text = String::from_utf8_lossy(&buffer[..count]);
        if let Some(line) = text.lines().rfind(|line| !line.trim().is_empty()) {
            shown.set_message(line.trim().chars().take(90).collect::<String>());
        }
    }
}

/// Removes a report of an earlier run: it must not be taken for that of the next one.
///
/// # Errors
/// If it is there and cannot be removed.
pub(crate) fn forget(report: &Path) -> anyhow::Result<()> {
    match fs::remove_file(report) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", report.display()))
        }
        _ => Ok(()),
    }
}

/// Writes what a chore has to tell and nobody reads where all is well.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_log(
    workspace: &Workspace,
    title: &str,
    output: &str,
) -> anyhow::Result<PathBuf> {
    let folder = workspace.target("xtask");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let name: String = title
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    let log = folder.join(format!("{name}.log"));
    fs::write(&log, output).with_context(|| format!("{} cannot be written", log.display()))?;
    Ok(log)
}

/// The lines of all commands that run now; they must not draw over each other.
static LINES: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// One line per command: live on a terminal, plain in a log.
struct StatusLine {
    bar: ProgressBar,
    live: bool,
}

impl StatusLine {
    fn start(title: &str) -> Self {
        let live = std::io::stderr().is_terminal();
        if !live {
            eprintln!("       {title} ...");
            return Self {
                bar: ProgressBar::hidden(),
                live,
            };
        }
        let bar = LINES.add(ProgressBar::new_spinner());
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {elapsed:>4} {prefix}  {msg:.dim}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, live }
    }

    fn finish(&self, title: &str, finished: &Finished) {
        let mark = if finished.success() { "ok" } else { "FAILED" };
        let line = format!(
            "{mark:>6} {title} ({:.1} s)",
            finished.elapsed.as_secs_f64()
        );
        if self.live {
            self.bar.finish_and_clear();
            // Above the lines of commands that still run.
            LINES.suspend(|| eprintln!("{line}"));
        } else {
            eprintln!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_line_that_says_what_went_wrong() {
        let apt = "Reading package lists...\nE: Unable to locate package acme\n";
        assert_eq!(reason(apt), "E: Unable to locate package acme");
        let pip = "Collecting acme\nERROR: No matching distribution found\n\nnotice: update\n";
        assert_eq!(reason(pip), "ERROR: No matching distribution found");
        assert_eq!(reason("one\ntwo\n\n"), "two");
        assert_eq!(reason(""), "it said nothing");
    }
}
