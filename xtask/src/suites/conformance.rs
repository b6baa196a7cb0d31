//! The conformance suite on every driver that needs no hardware. Each must pass all of it, and its report
//! must stand up to `outrigger verify`. What was not judged is never counted as passed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use super::{C_DRIVER, Counts, LIMIT, Row, row};
use crate::native;
use crate::shell;
use crate::workspace::Workspace;

/// The second driver in C, which is a single file.
const SECOND_DRIVER: &str = "tests/drivers/dispatcher.c";

/// The built-in driver with each of its faces, and with graphs and operators of its own.
const HOSTS: [(&str, &str); 3] = [
    (
        "conf unified",
        "host?devices=2&memory=256M&face=unified&virtual_memory=on",
    ),
    (
        "conf discrete",
        "host?devices=2&memory=256M&face=discrete&virtual_memory=on",
    ),
    (
        "conf native",
        "host?devices=2&memory=256M&face=discrete&graphs=native&operators=native&virtual_memory=off",
    ),
];

/// Options of the drivers in C.
const OPTIONS: &str = "?devices=2&memory=268435456";

/// A row for each driver.
pub(super) fn rows(workspace: &Workspace) -> Vec<Row> {
    let mut build = workspace.cargo(&["build", "--package", "outrigger-cli"]);
    if let Err(error) = shell::step(workspace, "building the command line", &mut build) {
        return vec![row("conformance", || Err(error))];
    }
    let mut rows: Vec<Row> = HOSTS
        .into_iter()
        .map(|(name, spec)| row(name, || suite(workspace, name, spec)))
        .collect();
    rows.push(row("conf driver-c", || {
        let folder = workspace.path(C_DRIVER);
        let driver = native::driver(workspace, &folder.to_string_lossy(), None)?;
        suite(
            workspace,
            "conf driver-c",
            &format!("{}{OPTIONS}", driver.0),
        )
    }));
    rows.push(row("conf second", || {
        let driver = second_driver(workspace)?;
        suite(
            workspace,
            "conf second",
            &format!("{}{OPTIONS}", driver.display()),
        )
    }));
    rows
}

/// Builds the second driver as its author would.
fn second_driver(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let library = reports(workspace)?.join("liboutrigger_second.so");
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-fPIC", "-fvisibility=hidden", "-pthread", "-shared"])
        .arg("-I")
        .arg(workspace.path("include"))
        .arg("-o")
        .arg(&library)
        .arg(workspace.path(SECOND_DRIVER));
    shell::step(workspace, "building the second driver", &mut command)?;
    Ok(library)
}

/// Where reports go.
pub(super) fn reports(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.target("xtask/conformance");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    Ok(folder)
}

/// Runs the suite on one driver, and has its report verified.
fn suite(workspace: &Workspace, name: &str, driver: &str) -> anyhow::Result<Counts> {
    suite_with(workspace, name, driver, &[])
}

/// The same with options of the command line.
pub(super) fn suite_with(
    workspace: &Workspace,
    name: &str,
    driver: &str,
    options: &[&str],
) -> anyhow::Result<Counts> {
    let program = workspace.target("debug/outrigger");
    let stem = reports(workspace)?.join(name.replace(' ', "-"));
    let json = stem.with_extension("json");
    if json.exists() {
        // A report of an earlier run must not be taken for this one's.
        fs::remove_file(&json)?;
    }
    let mut command = Command::new(&program);
    command
        .args(["conformance", "--driver", driver])
        .args(options)
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(stem.with_extension("html"))
        .arg("--junit")
        .arg(stem.with_extension("xml"));
    let finished = shell::attempt(workspace, name, &mut command, Some(LIMIT))?;
    if !finished.success() {
        eprintln!("{}\nall of it: {}", finished.tail(), finished.log.display());
    }
    let report = fs::read_to_string(&json)
        .with_context(|| format!("there is no report; {}", finished.tail()))?;
    let mut counts = counts_of(&report)?;
    let mut verify = Command::new(&program);
    verify.arg("verify").arg(&json);
    let verified = shell::attempt(workspace, "verifying the report", &mut verify, Some(LIMIT))?;
    if !finished.success() || !verified.success() {
        eprintln!("{}", verified.tail());
        counts.failed = counts.failed.max(1);
    }
    Ok(counts)
}

/// Reads the totals of a report.
fn counts_of(report: &str) -> anyhow::Result<Counts> {
    let report: Value = serde_json::from_str(report)?;
    let total = |names: &[&str]| -> u64 {
        let counts = names.iter().map(|name| report["totals"][name].as_u64());
        counts.map(Option::unwrap_or_default).sum()
    };
    Ok(Counts {
        passed: total(&["pass"]),
        failed: total(&["fail", "crash", "timeout", "device-lost", "xpass"]),
        skipped: total(&["unsupported", "xfail", "waived"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_judged_is_not_counted_as_passed() -> anyhow::Result<()> {
        let report = r#"{"totals": {"pass": 5, "fail": 1, "crash": 2, "timeout": 0, "device-lost": 1,
            "unsupported": 7, "xfail": 1, "xpass": 1, "waived": 1}}"#;
        let counts = counts_of(report)?;
        assert_eq!((counts.passed, counts.failed, counts.skipped), (5, 5, 9));
        Ok(())
    }
}
