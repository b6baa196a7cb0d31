//! The conformance suite on drivers that are wrong on purpose. Each must be caught, and the same library
//! without a defect must pass. Which tests catch which mutant is printed: it is what the suite is worth.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::{Counts, conformance};
use crate::shell;
use crate::workspace::Workspace;

/// So many tests that catch a mutant are enough.
const ENOUGH: &str = "2";

/// A mutant that hangs is caught as well by a shorter time.
const LIMIT_FACTOR: &str = "0.2";

/// A line of the list of mutants.
#[derive(Deserialize)]
struct Mutant {
    name: String,
    about: String,
    rules: Vec<String>,
}

/// Counts a caught mutant as passed, and one that goes unnoticed as failed.
pub(super) fn suite(workspace: &Workspace) -> anyhow::Result<Counts> {
    let packages = ["--package=outrigger-cli", "--package=outrigger-mutants"];
    let mut build = workspace.cargo(&["build", packages[0], packages[1]]);
    shell::step(workspace, "building the mutants", &mut build)?;
    let library = workspace.target("debug/liboutrigger_mutants.so");
    let driver = |mutant: &str| format!("{}?mutant={mutant}", library.display());
    let sound = conformance::suite(workspace, "conf no mutant", &driver("none"))?;
    // What fails without a defect would seem to catch every mutant.
    ensure!(
        sound.failed == 0,
        "the library fails the suite without a defect: what catches its mutants cannot be told"
    );
    let mut counts = Counts::single(true);
    for mutant in list(workspace)? {
        let caught = catch(workspace, &mutant, &driver(&mutant.name))?;
        counts.add(Counts::single(!caught.is_empty()));
        match caught.as_slice() {
            [] => println!("NOT CAUGHT {}: {}", mutant.name, mutant.about),
            tests => println!("caught {}: by {}", mutant.name, tests.join(", ")),
        }
    }
    Ok(counts)
}

fn list(workspace: &Workspace) -> anyhow::Result<Vec<Mutant>> {
    let output = Command::new(workspace.target("debug/outrigger-mutants"))
        .output()
        .context("the list of mutants cannot be started")?;
    ensure!(output.status.success(), "the list of mutants failed");
    let lines = String::from_utf8(output.stdout)?;
    let mutants: Vec<Mutant> = lines
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    ensure!(!mutants.is_empty(), "there are no mutants");
    Ok(mutants)
}

/// The tests that catch a mutant: some of those of the rules that it breaks, else of all.
fn catch(workspace: &Workspace, mutant: &Mutant, driver: &str) -> anyhow::Result<Vec<String>> {
    let rules = mutant.rules.join(",");
    for choice in [&["--rules", &rules][..], &[]] {
        let json = conformance::reports(workspace)?.join(format!("mutant-{}.json", mutant.name));
        if json.exists() {
            // A report of an earlier run must not be taken for this one's.
            fs::remove_file(&json)?;
        }
        let mut command = Command::new(workspace.target("debug/outrigger"));
        command
            .args(["conformance", "--driver", driver, "--seed", "1"])
            .args(["--max-failures", ENOUGH, "--limit-factor", LIMIT_FACTOR])
            .args(choice)
            .arg("--json")
            .arg(&json);
        // It limits its own time: each of its tests has a limit, and it ends after a few failures.
        let output = command
            .output()
            .context("the command line cannot be started")?;
        if !json.exists() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.code() == Some(1), "{}: {said}", mutant.name);
            return Ok(vec!["the first look at it".to_owned()]);
        }
        let caught = failures(&json)?;
        if !caught.is_empty() {
            return Ok(caught);
        }
    }
    Ok(Vec::new())
}

/// The ids of the failed tests of a report, with what else than a plain failure it was.
fn failures(report: &Path) -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(report)
        .with_context(|| format!("{} cannot be read", report.display()))?;
    let report: Value = serde_json::from_str(&text)?;
    let records = report["records"]
        .as_array()
        .context("a report has records")?;
    let failed = records.iter().filter_map(|sealed| {
        let record = &sealed["record"];
        let id = record["id"].as_str()?;
        match record["status"].as_str()? {
            "fail" => Some(id.to_owned()),
            status @ ("crash" | "timeout" | "device-lost") => Some(format!("{id} ({status})")),
            _ => None,
        }
    });
    Ok(failed.collect())
}
