//! The conformance suite on drivers and hosts that are wrong on purpose. A test of a rule that the
//! mutant breaks must catch it. The same library without a defect must pass within the same time
//! limits. The log `mutants` says which tests caught which mutant: this shows what the suite is worth.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::{Counts, conformance};
use crate::native;
use crate::shell;
use crate::workspace::Workspace;

/// So many tests that catch a mutant are enough.
const ENOUGH: &str = "1";

/// By how much the limits of tests are stretched, with a defect and without: a mutant that hangs costs its
/// limit, and a machine too slow for it is seen by the driver and the host without a defect.
const LIMIT_FACTOR: &str = "0.2";

/// The groups of tests that look for mutants: all but the figures, which take the longest and judge the least.
const TIERS: &str = "core,stream,memory,graph,ops,host-abi,stress,fault";

/// A run without `--all` has one of so many parts of the mutants.
pub(super) const TURNS: usize = 10;

/// The variable that says which mutant a process is: the same for the libraries of drivers and for the program of
/// hosts.
const MUTANT: &str = "OUTRIGGER_MUTANT";

/// A line of the list of mutants.
#[derive(Deserialize)]
struct Mutant {
    name: String,
    about: String,
    rules: Vec<String>,
    /// Whether it is a host, and else a driver.
    host: bool,
}

/// The tests and the rules that they name.
type Rules = BTreeMap<String, Vec<String>>;

/// Counts a caught mutant as passed, and one that goes unnoticed as failed. `turn` is one of [`TURNS`] parts of them, which
/// have their turns; all without.
pub(super) fn suite(workspace: &Workspace, turn: Option<usize>) -> anyhow::Result<Counts> {
    native::programs(workspace)?;
    let rules = rules(workspace)?;
    let mutants = list(workspace)?.into_iter().enumerate();
    let has_its_turn = |&(at, _): &(usize, Mutant)| turn.is_none_or(|turn| at % TURNS == turn);
    let mutants: Vec<Mutant> = mutants.filter(has_its_turn).map(|(_, one)| one).collect();
    // A test that fails without a defect would seem to catch every mutant.
    for host in [false, true] {
        let of_side = mutants.iter().filter(|mutant| mutant.host == host);
        let broken: BTreeSet<&String> = of_side.flat_map(|mutant| &mutant.rules).collect();
        if broken.is_empty() {
            continue;
        }
        let sound = Mutant {
            name: "none".to_owned(),
            about: String::new(),
            rules: broken.into_iter().cloned().collect(),
            host,
        };
        let failed = failures(&run(workspace, &sound)?)?;
        let side = if host { "host" } else { "driver" };
        ensure!(
            failed.is_empty(),
            "the {side} fails without a defect, so that what catches its mutants cannot be told: {}",
            failed.join(", ")
        );
    }
    let mut counts = Counts::single(true);
    let mut told = String::new();
    for mutant in &mutants {
        let caught = run(workspace, mutant).and_then(|report| failures(&report));
        let what = match &caught {
            Ok(tests) if tests.is_empty() => "NOT CAUGHT".to_owned(),
            Ok(tests) => format!("caught by {}", named(tests, mutant, &rules)),
            Err(error) => format!("NOT TESTED: {error:#}"),
        };
        let line = format!("{} ({}): {what}", mutant.name, mutant.about);
        told.push_str(&line);
        told.push('\n');
        if caught.is_ok_and(|tests| !tests.is_empty()) {
            counts.add(Counts::single(true));
        } else {
            counts.failed += 1;
            counts.failures.push(line);
        }
    }
    shell::write_log(workspace, "mutants", &told)?;
    Ok(counts)
}

/// The specification of a driver with a defect.
fn driver(workspace: &Workspace, mutant: &str) -> String {
    let library = workspace.target("debug/liboutrigger_mutants.so");
    format!("{}?mutant={mutant}", library.display())
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

/// The names of each test of the suite, as the command line lists it: id, rules, sentence.
fn rules(workspace: &Workspace) -> anyhow::Result<Rules> {
    let output = Command::new(workspace.target("debug/outrigger"))
        .args(["conformance", "--list"])
        .output()
        .context("the command line cannot be started")?;
    ensure!(output.status.success(), "the list of tests failed");
    let lines = String::from_utf8(output.stdout)?;
    Ok(lines.lines().filter_map(listed).collect())
}

/// A line of the list of tests.
fn listed(line: &str) -> Option<(String, Vec<String>)> {
    let mut words = line.split_whitespace();
    let id = words.next().filter(|id| id.contains('.'))?;
    let number = |rule: &str| {
        rule.strip_prefix(['R', 'H'])
            .map(|digits| digits.parse::<u32>().is_ok())
    };
    let rules = words.take_while(|word| number(word) == Some(true));
    Some((id.to_owned(), rules.map(str::to_owned).collect()))
}

/// Tests, each with those of its rules that the mutant breaks.
fn named(tests: &[String], mutant: &Mutant, rules: &Rules) -> String {
    let of = |test: &String| {
        let id = test.split(' ').next().unwrap_or_default();
        let broken: Vec<&str> = rules
            .get(id)
            .into_iter()
            .flatten()
            .filter(|rule| mutant.rules.contains(rule))
            .map(String::as_str)
            .collect();
        format!("{} by {test}", broken.join(" "))
    };
    tests.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// Runs the tests of the rules that a mutant breaks, until enough have failed: the report.
fn run(workspace: &Workspace, mutant: &Mutant) -> anyhow::Result<PathBuf> {
    let side = if mutant.host { "host" } else { "driver" };
    let json = conformance::reports(workspace)?.join(format!("mutant-{side}-{}.json", mutant.name));
    shell::forget(&json)?;
    let mut command = if mutant.host {
        let mut command = Command::new(workspace.target("debug/outrigger-mutants"));
        command.arg("conformance");
        command
    } else {
        let mut command = Command::new(workspace.target("debug/outrigger"));
        command.args(["conformance", "--driver", &driver(workspace, &mutant.name)]);
        command
    };
    command
        .args(["--seed", "1", "--max-failures", ENOUGH])
        .args(["--limit-factor", LIMIT_FACTOR, "--tier", TIERS])
        .args(["--rules", &mutant.rules.join(",")])
        .arg("--json")
        .arg(&json)
        .env(MUTANT, &mutant.name);
    // The suite limits its own time: each of its tests has a limit, and it ends after a few failures.
    let output = command.output().context("the suite cannot be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(json.exists(), "there is no report: {}", said.trim());
    Ok(json)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_tests_is_read_with_the_rules_of_each() {
        let line = "core.copy.of_nothing  R4 R25      Rules R1 to R3 are no rules of it.";
        let (id, rules) = listed(line).unwrap();
        assert_eq!(
            (id.as_str(), rules),
            (
                "core.copy.of_nothing",
                vec!["R4".to_owned(), "R25".to_owned()]
            )
        );
        assert_eq!(listed("1120 tests"), None);
    }
}
