//! `cargo xtask planted`: breaks the sources by one patch of `tests/planted` at a time, and says which tests notice. It
//! must never leave a patch in the sources, however it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::NOTHING;

use crate::native;
use crate::shell;
use crate::workspace::Workspace;

/// The defects to plant. Without any they are listed.
#[derive(Args)]
pub(crate) struct Options {
    /// Defects, by the names of their patches
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// All of them, which takes hours
    #[arg(long, conflicts_with = "names")]
    all_of_them: bool,
}

/// The folder of the patches.
const FOLDER: &str = "tests/planted";

/// The beginning of a patch's line that says what runs.
const RUN: &str = "# run: ";

/// Tests of a defect take minutes; those that take this long hang, and that is noticed too.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Lists the defects, or plants some; fails if nothing notices one of them.
///
/// # Errors
/// If the sources are not as they were committed, a patch does not apply, or what it makes does not compile.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let all = defects(workspace)?;
    let chosen: Vec<&Defect> = match &options.names[..] {
        [] => all.iter().collect(),
        names => names
            .iter()
            .map(|name| {
                let found = all.iter().find(|defect| defect.name == *name);
                found.with_context(|| format!("there is no {FOLDER}/{name}.patch"))
            })
            .collect::<anyhow::Result<_>>()?,
    };
    let mut table = Table::new();
    table.load_style(NOTHING);
    if options.names.is_empty() && !options.all_of_them {
        table.add_rows(chosen.iter().map(|one| [&one.name, &one.what]));
        println!("{table}");
        return Ok(ExitCode::SUCCESS);
    }
    // A defect among other changes would say nothing, and might not come out again.
    let changed = workspace.git(&["status", "--porcelain", "--untracked-files=no"])?;
    ensure!(
        changed.is_empty(),
        "defects are planted into sources as they were committed: commit or stash first\n{changed}"
    );
    let mut missed = 0;
    for defect in chosen {
        let caught = defect.measure(workspace).context(defect.name.clone())?;
        missed += usize::from(caught.is_none());
        let by = caught.unwrap_or_else(|| "NOT CAUGHT".to_owned());
        eprintln!("       {}: {by}", defect.name);
        table.add_row([&defect.name, &by]);
    }
    println!("\n{table}\n{missed} not caught");
    Ok(match missed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The problems of the patches, for `cargo xtask tidy`.
///
/// # Errors
/// If they cannot be read.
pub(crate) fn check(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    for defect in defects(workspace)? {
        let Defect {
            name, what, runs, ..
        } = &defect;
        if what.is_empty() || runs.is_empty() {
            problems.push(format!(
                "{FOLDER}/{name}.patch:1: begins with a line `# WHAT IS BROKEN` and lines `{RUN}COMMAND`"
            ));
        }
        let patch = format!("{FOLDER}/{name}.patch");
        if let Err(why) = workspace.git(&["apply", "--check", &patch]) {
            let why = why.to_string();
            problems.push(format!(
                "{patch}: no longer applies, make it anew: {}",
                why.lines().next().unwrap_or_default()
            ));
        }
    }
    Ok(problems)
}

/// A patch that breaks something.
struct Defect {
    name: String,
    patch: PathBuf,
    /// The defect, in one sentence.
    what: String,
    /// The commands that run until one of them fails: `cargo ...`, `pytest DRIVER ...` or `conformance DRIVER
    /// FILTER...`.
    runs: Vec<String>,
}

/// All defects, by name.
fn defects(workspace: &Workspace) -> anyhow::Result<Vec<Defect>> {
    let mut defects = Vec::new();
    for entry in fs::read_dir(workspace.path(FOLDER)).context(FOLDER)? {
        let patch = entry?.path();
        let text = fs::read_to_string(&patch).with_context(|| patch.display().to_string())?;
        let first = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let runs = text.lines().filter_map(|line| line.strip_prefix(RUN));
        let name = patch.file_stem().unwrap_or_default().to_string_lossy();
        defects.push(Defect {
            name: name.into_owned(),
            what: first.unwrap_or_default().to_owned(),
            runs: runs.map(str::to_owned).collect(),
            patch,
        });
    }
    defects.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(defects)
}

impl Defect {
    /// The command that notices the defect; `None` if nothing does.
    fn measure(&self, workspace: &Workspace) -> anyhow::Result<Option<String>> {
        let _planted = Planted::plant(workspace, &self.patch)?;
        for run in &self.runs {
            let mut command = command(workspace, run)?;
            let title = format!("{}: {run}", self.name);
            let finished = shell::attempt(workspace, &title, &mut command, Some(LIMIT))?;
            if finished.output.contains("error: could not compile") {
                bail!("it does not compile: {}", finished.log.display());
            }
            if !finished.success() {
                return Ok(Some(format!("{run}: {}", names(&finished.output))));
            }
        }
        Ok(None)
    }
}

/// The command that a line of a patch means, with all built that it needs.
fn command(workspace: &Workspace, run: &str) -> anyhow::Result<Command> {
    let words: Vec<&str> = run.split_whitespace().collect();
    Ok(match words[..] {
        ["cargo", ref arguments @ ..] => workspace.cargo(arguments),
        ["pytest", driver, ref arguments @ ..] => {
            native::prepare(workspace)?;
            let driver = native::driver(workspace, driver, None)?;
            let mut command = native::python(workspace, Some(&driver));
            command
                .current_dir(workspace.path("frameworks/torch/tests"))
                .args(["-m", "pytest", "--quiet", "--tb=line", "--timeout=300"])
                .args(arguments);
            command
        }
        ["conformance", driver, ref filters @ ..] => {
            native::programs(workspace)?;
            let driver = native::driver(workspace, driver, None)?;
            let mut command = Command::new(workspace.target("debug/outrigger"));
            driver.prepare(&mut command, Default::default());
            command.args(["conformance", "--driver", &driver.text]);
            command.args(filters.iter().flat_map(|one| ["--filter", one]));
            command
        }
        _ => bail!(
            "`{run}`: a run is `cargo`, `pytest DRIVER` or `conformance DRIVER`, with arguments"
        ),
    })
}

/// The failing tests that the output of Rust's tests, of pytest or of the conformance suite names.
fn names(output: &str) -> String {
    let name = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["test", name, .., "FAILED"] | ["FAILED" | "ERROR", name, ..] => Some(name.to_owned()),
        ["fail:" | "crash:" | "timeout:", name, ..] => Some(name.trim_end_matches(':').to_owned()),
        _ => None,
    };
    let names: Vec<String> = output.lines().filter_map(name).collect();
    match names.is_empty() {
        true => shell::reason(output).to_owned(),
        false => names.join(", "),
    }
}

/// A patch in the sources. A shell holds it, which outlives this program: it takes the patch back when its input ends,
/// also where this program is interrupted or killed.
struct Planted(Child);

const HOLD: &str = r#"trap "" INT TERM HUP PIPE
git apply "$0" || exit 1
echo planted
read -r end
git apply --reverse "$0""#;

impl Planted {
    fn plant(workspace: &Workspace, patch: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", HOLD])
            .arg(patch)
            .current_dir(workspace.root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("sh could not be started")?;
        let output = child.stdout.take().context("a pipe was asked for")?;
        let planted = Self(child);
        let mut said = String::new();
        BufReader::new(output).read_line(&mut said)?;
        ensure!(!said.is_empty(), "{} no longer applies", patch.display());
        Ok(planted)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("error: whether the patch was taken back is unknown: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn failing_tests_are_named() {
        assert_eq!(names("test a::b ... FAILED\ntest c ... ok\n"), "a::b");
        let output = "FAILED t.py::a - Error\nfail: b.c: text\ntest d ... FAILED\n";
        assert_eq!(names(output), "t.py::a, b.c, d");
        assert_eq!(names("signal: 6\n"), "signal: 6");
    }
}
