//! The end of a test run's output: a line for each job, what was skipped and why, what failed, and the totals.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::counts::Counts;
use super::results::Earlier;

/// One line of the summary.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) counts: Counts,
    pub(super) seconds: f64,
    /// The earlier run in which the job passed, if it was not run again.
    pub(super) earlier: Option<Earlier>,
}

/// So many reasons, and so many failures of a job, are shown; the others are counted.
const SHOWN: usize = 40;

/// A reason or a failure is shown up to here.
const WIDTH: usize = 120;

/// The summary at the end of a run.
pub(super) struct Summary<'a> {
    pub(super) rows: &'a [Row],
    /// Jobs of the suites at hand that run with `--all` only.
    pub(super) left_out: Vec<&'static str>,
}

impl Summary<'_> {
    /// Everything added up.
    pub(super) fn totals(&self) -> Counts {
        let mut all = Counts::default();
        for row in self.rows {
            all.add(row.counts.clone());
        }
        all
    }

    /// The number of times that each reason to skip was given, and the jobs that gave it; the most frequent first.
    fn reasons(&self) -> Vec<(&str, u64, Vec<&str>)> {
        let mut reasons: BTreeMap<&str, (u64, Vec<&str>)> = BTreeMap::new();
        for row in self.rows {
            for (reason, count) in &row.counts.skipped {
                let entry = reasons.entry(reason).or_default();
                entry.0 += count;
                entry.1.push(row.name);
            }
        }
        let mut reasons: Vec<_> = reasons
            .into_iter()
            .map(|(reason, (count, jobs))| (reason, count, jobs))
            .collect();
        reasons.sort_by_key(|&(_, count, _)| std::cmp::Reverse(count));
        reasons
    }
}

impl Display for Summary<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut jobs = Table::new();
        jobs.set_header(["suite", "passed", "failed", "skipped", "seconds", ""]);
        jobs.add_rows(self.rows.iter().map(|row| {
            [
                row.name.to_owned(),
                row.counts.passed.to_string(),
                row.counts.failed.to_string(),
                row.counts.all_skipped().to_string(),
                format!("{:.1}", row.seconds),
                match row.earlier {
                    None => "",
                    Some(Earlier::OnTheSame) => "passed earlier",
                    Some(Earlier::OnOtherCode) => "passed earlier, before the last changes",
                }
                .to_owned(),
            ]
        }));
        writeln!(f, "{}", plain(jobs, &[1, 2, 3, 4]))?;
        let reasons = self.reasons();
        if !reasons.is_empty() {
            let mut skipped = Table::new();
            skipped.add_rows(reasons.iter().take(SHOWN).map(|(reason, count, jobs)| {
                let text = format!("{} ({})", short(reason), jobs.join(", "));
                [count.to_string(), text]
            }));
            if let Some(more) = reasons.get(SHOWN..).filter(|more| !more.is_empty()) {
                let count: u64 = more.iter().map(|(_, count, _)| count).sum();
                skipped.add_row([
                    count.to_string(),
                    format!("for {} more reasons", more.len()),
                ]);
            }
            writeln!(f, "\nskipped, and why:\n{}", plain(skipped, &[0]))?;
        }
        if !self.left_out.is_empty() {
            writeln!(f, "\nonly with --all: {}", self.left_out.join(", "))?;
        }
        // Last, since a long output is often cut at its front.
        for row in self.rows.iter().filter(|row| row.counts.failed > 0) {
            let Counts {
                failed, failures, ..
            } = &row.counts;
            writeln!(f, "\n{failed} failed in {}:", row.name)?;
            for failure in failures.iter().take(SHOWN) {
                writeln!(f, "  {}", short(failure))?;
            }
            let unnamed = failed.saturating_sub(failures.len().min(SHOWN) as u64);
            if unnamed > 0 {
                writeln!(f, "  {unnamed} that the output above tells of")?;
            }
        }
        let all = self.totals();
        writeln!(
            f,
            "\n{} passed, {} failed, {} skipped",
            all.passed,
            all.failed,
            all.all_skipped()
        )
    }
}

/// The beginning of the first line of a text.
fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(WIDTH).collect()
}

/// A table without lines; the columns `numbers` are aligned to the right.
fn plain(mut table: Table, numbers: &[usize]) -> String {
    table.load_style(NOTHING);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, passed: u64, failed: u64, skipped: &[(&str, u64)]) -> Row {
        let skipped = skipped.iter().map(|&(reason, n)| (reason.to_owned(), n));
        Row {
            name,
            counts: Counts {
                passed,
                failed,
                skipped: skipped.collect(),
                failures: Vec::new(),
            },
            seconds: 1.0,
            earlier: None,
        }
    }

    #[test]
    fn reasons_are_grouped_and_the_last_line_has_the_totals() {
        let rows = [
            row("one", 3, 0, &[("no GPU", 2), ("too old", 1)]),
            row("two", 4, 1, &[("no GPU", 5)]),
        ];
        let summary = Summary {
            rows: &rows,
            left_out: vec!["soak 600 s"],
        };
        let text = summary.to_string();
        assert!(
            text.contains("\n7  no GPU (one, two)\n1  too old (one)\n"),
            "{text}"
        );
        assert!(text.contains("only with --all: soak 600 s\n"), "{text}");
        assert_eq!(text.lines().last(), Some("7 passed, 1 failed, 8 skipped"));
    }

    #[test]
    fn what_failed_is_named_before_the_totals() {
        let mut failing = row("one", 0, 3, &[]);
        failing.counts.failures = vec!["a::b: text\nmore".to_owned(), "x".repeat(300)];
        let summary = Summary {
            rows: &[row("none", 1, 0, &[]), failing],
            left_out: vec!["soak 600 s"],
        };
        let text = summary.to_string();
        let named = format!(
            "\n3 failed in one:\n  a::b: text\n  {}\n",
            "x".repeat(WIDTH)
        );
        assert!(text.contains(&named) && !text.contains("more"), "{text}");
        let end = "\n  1 that the output above tells of\n\n1 passed, 3 failed, 0 skipped\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn many_reasons_stay_short() {
        let reasons: Vec<String> = (0..100)
            .map(|n| format!("reason {n} {}", "x".repeat(300)))
            .collect();
        let reasons: Vec<(&str, u64)> = reasons.iter().map(|reason| (reason.as_str(), 2)).collect();
        let rows = [row("one", 0, 0, &reasons)];
        let summary = Summary {
            rows: &rows,
            left_out: Vec::new(),
        };
        let text = summary.to_string();
        assert!(
            text.lines().count() < SHOWN + 10 && text.lines().all(|line| line.len() < WIDTH + 30)
        );
        assert!(text.contains("\n120  for 60 more reasons"), "{text}");
        assert!(
            text.ends_with("0 passed, 0 failed, 200 skipped\n"),
            "{text}"
        );
    }
}
