//! The mutants as a program. Without arguments it lists them, one JSON object per line: name, what is
//! wrong, the rules that it breaks, and whether it is a host. With `conformance` it runs the tests of
//! the suite on the built-in driver, through the host that the environment names. Mutants of drivers
//! are libraries; the command `outrigger` runs the suite on them.

mod hosts;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use outrigger_conformance::expect::Expectations;
use outrigger_conformance::record::{Record, Totals};
use outrigger_conformance::report::Head;
use outrigger_conformance::runner::{Plan, Watcher};
use outrigger_conformance::select::Selection;
use outrigger_conformance::{Test, Tier, run_helper, run_test, use_library};

use hosts::hosts;

/// The driver under the hosts: all groups, on two devices.
const DRIVER: &str =
    "host?devices=2&memory=64M&face=discrete&graphs=native&operators=native&virtual_memory=on";

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Runs tests through a host.
    Conformance(Run),
    /// The process of one test.
    #[command(hide = true)]
    ConformanceTest(Inner),
    /// The second process of a test.
    #[command(hide = true)]
    ConformanceHelper(Inner),
}

#[derive(Args)]
struct Run {
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    max_failures: u32,
    #[arg(long)]
    limit_factor: f64,
    #[arg(long, value_delimiter = ',', value_parser = tier)]
    tier: Vec<Tier>,
    #[arg(long, value_delimiter = ',')]
    rules: Vec<String>,
    #[arg(long)]
    json: PathBuf,
}

#[derive(Args)]
struct Inner {
    #[arg(long)]
    driver: String,
    #[arg(long)]
    seed: u64,
    name: Option<String>,
}

fn tier(name: &str) -> Result<Tier, String> {
    Tier::of(name).ok_or_else(|| format!("there is no tier `{name}`"))
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        None => list(),
        Some(Command::Conformance(run)) => conformance(run),
        Some(Command::ConformanceTest(inner)) => {
            choose()?;
            run_test(inner.name.as_deref(), &inner.driver, inner.seed)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::ConformanceHelper(inner)) => {
            choose()?;
            let name = inner.name.unwrap_or_default();
            match run_helper(&name, &inner.driver, inner.seed) {
                Ok(()) => Ok(ExitCode::SUCCESS),
                Err(failure) => bail!("{failure}"),
            }
        }
    }
}

/// Has the tests of this process call the host that the environment names.
fn choose() -> anyhow::Result<()> {
    let variable = outrigger_mutants::VARIABLE;
    let name = std::env::var(variable).with_context(|| format!("{variable} names no host"))?;
    let table = hosts::table(&name).with_context(|| format!("there is no host `{name}`"))?;
    // SAFETY: a table of the host contract, which is never freed.
    unsafe { use_library(std::ptr::from_ref(table).cast()) };
    Ok(())
}

fn list() -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let drivers = outrigger_mutants::mutants()
        .map(|mutant| (mutant.name, mutant.about(), mutant.rules, false));
    let hosts = hosts().map(|host| (host.name, host.about.trim(), host.rules, true));
    for (name, about, rules, host) in drivers.chain(hosts) {
        let line = serde_json::json!({"name": name, "about": about, "rules": rules, "host": host});
        writeln!(out, "{line}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A watcher that shows nothing: the report tells enough.
struct Nobody;

impl Watcher for Nobody {
    fn begun(&self, _: &Head, _: &Totals) {}
    fn started(&self, _: &Test) {}
    fn ended(&self, _: &Record, _: &Totals) {}
}

fn conformance(run: Run) -> anyhow::Result<ExitCode> {
    let plan = Plan {
        program: std::env::current_exe()?,
        driver: DRIVER.to_owned(),
        selection: Selection {
            tiers: run.tier,
            rules: run.rules,
            ..Selection::default()
        },
        seed: run.seed,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        limit_factor: run.limit_factor,
        expectations: Expectations::default(),
        max_failures: Some(run.max_failures),
    };
    let journal = run.json.with_extension("jsonl");
    let report = plan.run(&journal, &Nobody)?;
    std::fs::write(&run.json, report.to_json())?;
    // Of a finished run nobody needs it.
    std::fs::remove_file(&journal)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use outrigger_conformance::rules;

    use super::*;

    /// Mutants of both sides have names of their own, a sentence and rules.
    fn check(all: &[(&str, &str, &[&str])]) {
        let names: BTreeSet<_> = all.iter().map(|(name, ..)| name).collect();
        assert_eq!(names.len(), all.len(), "two mutants have the same name");
        for (name, about, rules) in all {
            assert!(about.ends_with('.'), "{name}: {about}");
            assert!(!rules.is_empty(), "{name}");
        }
    }

    /// The rules of a header that no mutant breaks.
    fn bare(letter: char, all: &[(&str, &str, &[&str])]) -> Vec<String> {
        let broken: BTreeSet<&str> = all
            .iter()
            .flat_map(|(.., rules)| rules.iter().copied())
            .collect();
        let stated = rules::all().into_iter().map(|rule| rule.name);
        let known: BTreeSet<String> = stated.filter(|rule| rule.starts_with(letter)).collect();
        assert!(
            broken.iter().all(|rule| known.contains(*rule)),
            "{broken:?}"
        );
        known
            .into_iter()
            .filter(|rule| !broken.contains(rule.as_str()))
            .collect()
    }

    #[test]
    fn every_rule_of_the_driver_contract_is_broken_by_a_mutant() {
        let all: Vec<_> = outrigger_mutants::mutants()
            .map(|mutant| (mutant.name, mutant.about(), mutant.rules))
            .collect();
        check(&all);
        assert_eq!(bare('R', &all), Vec::<String>::new());
    }

    #[test]
    fn every_rule_of_the_host_contract_is_broken_by_a_mutant() {
        let all: Vec<_> = hosts()
            .map(|host| (host.name, host.about.trim(), host.rules))
            .collect();
        check(&all);
        assert_eq!(bare('H', &all), Vec::<String>::new());
    }
}
