//! The next step of a vendor after a run: the command, and what it is for. Only a person at a terminal is told, because
//! logs and reports hold results alone.

use std::path::Path;

use outrigger_conformance::Tier;
use outrigger_conformance::report::{Conclusion, Report, quoted};

use super::Options;

/// A few lines, or none if nothing is left to do.
pub(super) fn after(report: &Report, options: &Options) -> String {
    let file = |path: &Path| quoted(&path.display().to_string());
    let expect = match &options.expect {
        Some(path) => format!(" --expect {}", file(path)),
        None => String::new(),
    };
    let run = |arguments: &str| report.command(&format!("{arguments}{expect}"));
    let steps = match report.conclusion {
        Conclusion::Failed => failed(report),
        Conclusion::Partial => match tier_behind(report) {
            Some(tier) => vec![(
                format!("the tier {tier}"),
                run(&format!("--tier {}", tier.name())),
            )],
            None => vec![(
                "all tests, with a report for others".to_owned(),
                run("--json report.json --html report.html"),
            )],
        },
        Conclusion::ConformantWithExceptions => vec![(
            "mend what is excepted, and take its entry out; an entry that is not needed any more is told by".to_owned(),
            run("--verify-xfail"),
        )],
        Conclusion::Conformant => vec![match &options.json {
            Some(path) => (
                "whoever gets the report and the driver checks them by".to_owned(),
                format!(
                    "outrigger verify {} --driver {}",
                    file(path),
                    file(&report.head.driver.file)
                ),
            ),
            None => (
                "a report for others".to_owned(),
                run("--json report.json --html report.html"),
            ),
        }],
    };
    let mut text = String::new();
    for (what, command) in steps {
        text += &format!("next: {what}\n  {command}\n");
    }
    text
}

/// Ways to look at the first failure. The summary has told what it checks, and the command that runs it alone.
fn failed(report: &Report) -> Vec<(String, String)> {
    let failures = report.failures();
    let Some(first) = failures.first() else {
        return Vec::new();
    };
    let mut steps = vec![
        (
            format!("run {} alone until it passes", first.id),
            report.rerun(&first.id),
        ),
        (
            "or in a debugger, as one process".to_owned(),
            format!("gdb --args {}", report.rerun_as_process(&first.id)),
        ),
    ];
    if let Some(suspect) = report.suspects().first().filter(|_| failures.len() > 1) {
        steps.push((
            format!("then all tests of {}", suspect.rule),
            report.command(&format!("--rules {}", suspect.rule)),
        ));
    }
    steps
}

/// The first tier of which not all tests were asked for; none if single tests were, of all tiers.
fn tier_behind(report: &Report) -> Option<Tier> {
    let selection = &report.head.selection;
    if selection.filters.is_empty() && selection.rules.is_empty() {
        return Tier::ALL
            .into_iter()
            .find(|tier| !selection.tiers.contains(tier));
    }
    Tier::of(report.head.planned.first()?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// The next step after a run of all tests on a driver in a file.
    fn said(conclusion: Conclusion, options: &[&str]) -> String {
        let report = json!({
            "head": {
                "format": "", "run": "", "started": 0,
                "suite": {"version": "", "contract": "", "hash": "", "tests": 0},
                "driver": {
                    "spec": "./my acme.so?devices=2", "name": "acme", "vendor": "", "version": "", "contract": "",
                    "file": "/opt/my acme.so", "file_sha256": "", "capabilities": [], "devices": [],
                },
                "host": "", "layers": null, "seed": 7, "limit_factor": 1.0,
                "selection": {"tiers": [], "filters": [], "rules": []}, "planned": [],
            },
            "conclusion": conclusion,
            "totals": outrigger_conformance::record::Totals::default(),
            "records": [],
            "digest": "",
        });
        let report = serde_json::from_value(report).expect("it has the form of a report");
        let line = Line::parse_from([&["conformance"], options].concat());
        after(&report, &line.options)
    }

    #[test]
    fn a_conformant_driver_gets_a_report_and_a_report_its_reader() {
        let without = said(Conclusion::Conformant, &[]);
        let wanted =
            "conformance --driver './my acme.so?devices=2' --json report.json --html report.html\n";
        assert!(without.ends_with(wanted), "{without}");
        let with = said(Conclusion::Conformant, &["--json", "r.json"]);
        assert!(
            with.ends_with("  outrigger verify r.json --driver '/opt/my acme.so'\n"),
            "{with}"
        );
    }

    #[test]
    fn an_exception_is_to_be_mended() {
        let text = said(
            Conclusion::ConformantWithExceptions,
            &["--expect", "expect.toml"],
        );
        assert!(text.starts_with("next: mend"), "{text}");
        assert!(
            text.ends_with("--verify-xfail --expect expect.toml\n"),
            "{text}"
        );
    }
}
