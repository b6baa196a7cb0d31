//! The report of a run: its head, its records, and what follows from them. All forms of the report are
//! made from these alone, so each can be made again from the JSON form.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::{Deserialize, Serialize};

use crate::child::TEST_COMMAND;
use crate::identity::{DriverFacts, Suite};
use crate::record::{Record, Status, Totals};
use crate::seal::{self, Link};
use crate::select::Selection;

/// The form of reports and journals. Another form has another number.
pub const FORMAT: &str = "outrigger-conformance/1";

/// The facts that were fixed before the first test ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// [`FORMAT`].
    pub format: String,
    /// A random number that no other run has, as hexadecimal digits.
    pub run: String,
    /// When it began, in seconds since 1970-01-01 UTC.
    pub started: u64,
    /// The suite.
    pub suite: Suite,
    /// The driver.
    pub driver: DriverFacts,
    /// Operating system and processor of the host.
    pub host: String,
    /// The layers between the suite and the driver, if there were any.
    pub layers: Option<String>,
    /// The seed of all choices.
    pub seed: u64,
    /// By how much the limits in time were stretched.
    pub limit_factor: f64,
    /// The tests that were asked for.
    pub selection: Selection,
    /// The ids of the tests that the selection means, in the order of the suite.
    pub planned: Vec<String>,
}

/// A record with its link in the chain of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    /// The record.
    pub record: Record,
    /// The hash of the link before it and of the record.
    pub link: Link,
}

/// The statement of a run on the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conclusion {
    /// All tests of the suite ran; all passed or are about what the driver does not declare.
    Conformant,
    /// All tests of the suite ran; those that did not pass are excepted by the file of expectations, or are about what
    /// the driver does not declare.
    ConformantWithExceptions,
    /// Nothing failed, but not all tests were asked for.
    Partial,
    /// A test failed.
    Failed,
}

impl Conclusion {
    /// The conclusion that follows from a selection and the outcomes.
    pub fn of(selection: &Selection, totals: &Totals) -> Self {
        if totals.failures() > 0 {
            Self::Failed
        } else if !selection.is_everything() {
            Self::Partial
        } else if totals.excepted() > 0 {
            Self::ConformantWithExceptions
        } else {
            Self::Conformant
        }
    }

    /// The conclusion as a sentence for people.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Conformant => "The driver is conformant.",
            Self::ConformantWithExceptions => {
                "Nothing failed but what the file of expectations excepts: this is not conformance yet."
            }
            Self::Partial => {
                "Nothing failed. Only part of the suite was run: this is not conformance yet."
            }
            Self::Failed => "The driver is not conformant.",
        }
    }
}

/// The report of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The facts that were fixed before the tests ran.
    pub head: Head,
    /// The conclusion that follows from the records.
    pub conclusion: Conclusion,
    /// The number of times that each outcome occurred.
    pub totals: Totals,
    /// A record of each test, in the order in which they ended.
    pub records: Vec<Sealed>,
    /// The last link of the chain: of the last record, or of the head if there is none.
    pub digest: Link,
}

impl Report {
    pub(crate) fn new(head: Head, records: Vec<Sealed>) -> Self {
        let totals = Totals::of(records.iter().map(|sealed| &sealed.record));
        let digest = records
            .last()
            .map_or_else(|| seal::head(&head), |sealed| sealed.link.clone());
        Self {
            conclusion: Conclusion::of(&head.selection, &totals),
            totals,
            digest,
            head,
            records,
        }
    }

    /// The report as JSON, with a line for each record.
    pub fn to_json(&self) -> String {
        let json = |value: &dyn erased::Json| value.json();
        let mut text = format!(
            "{{\n\"head\": {},\n\"conclusion\": {},\n\"totals\": {},\n\"records\": [",
            json(&self.head),
            json(&self.conclusion),
            json(&self.totals)
        );
        for (number, record) in self.records.iter().enumerate() {
            text.push_str(if number == 0 { "\n" } else { ",\n" });
            text.push_str(&json(record));
        }
        text + &format!("\n],\n\"digest\": {}\n}}\n", json(&self.digest))
    }

    /// The records in the order of the suite.
    pub fn in_order(&self) -> Vec<&Record> {
        let place = |record: &Record| self.head.planned.iter().position(|id| *id == record.id);
        let mut records: Vec<&Record> = self.records.iter().map(|sealed| &sealed.record).collect();
        records.sort_by_cached_key(|record| place(record));
        records
    }

    /// The failures, in the order of the suite.
    pub fn failures(&self) -> Vec<&Record> {
        let mut records = self.in_order();
        records.retain(|record| record.status.is_failure());
        records
    }

    /// The command that runs one test of this run again.
    pub fn rerun(&self, id: &str) -> String {
        self.command(&format!("--seed {} --filter {id}", self.head.seed))
    }

    /// The command that is the process of one test of this run, for a debugger.
    pub fn rerun_as_process(&self, id: &str) -> String {
        let driver = quoted(&self.head.driver.spec);
        let seed = self.head.seed;
        format!(
            "{} {TEST_COMMAND} --driver {driver} --seed {seed} {id}",
            program()
        )
    }

    /// The command that runs the suite on the driver of this run, with other arguments.
    pub fn command(&self, arguments: &str) -> String {
        let driver = quoted(&self.head.driver.spec);
        let command = format!("{} conformance --driver {driver} {arguments}", program());
        match &self.head.layers {
            Some(layers) => format!("OUTRIGGER_LAYERS={} {command}", quoted(layers)),
            None => command,
        }
    }

    /// The summary for a person. What is looked at first stands at its end, where a terminal shows it: the
    /// first failure with the way to see it again, and what follows from all.
    pub fn summary(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let failures = self.failures();
        if failures.len() > 1 {
            let rows = failures.iter().map(|record| {
                let what = format!("{}: {}", record.id, record.brief());
                [record.status.to_string(), what]
            });
            let _ = writeln!(text, "all failures\n{}", indented(rows)); // text takes everything
            let rows = self.suspects().into_iter().map(|suspect| {
                let stated = crate::rules::find(suspect.rule).map(|rule| rule.text);
                let stated = stated.unwrap_or_default();
                let (begins, _) = stated.split_once(['.', ':', ';']).unwrap_or((&stated, ""));
                let share = format!("{} of {}", suspect.failed, suspect.judged);
                [suspect.rule.to_owned(), share, begins.to_owned()]
            });
            let _ = writeln!(
                text,
                "rules, by the share of their tests that failed\n{}",
                indented(rows)
            );
        }
        for record in self.in_order() {
            if record.status == Status::Xpass {
                let _ = writeln!(text, "unexpected pass: {}", record.id);
            }
        }
        if let Some(first) = failures.first() {
            text.push_str("first failure\n");
            text.push_str(&self.describe(first));
            if let Some(found) = &first.failure {
                let texts = failures.iter().filter_map(|record| record.failure.as_ref());
                let same = texts.filter(|failure| failure.message == found.message);
                match same.count() - 1 {
                    0 => {}
                    same => {
                        let _ = writeln!(text, "  {same} of the other tests found the same");
                    }
                }
            }
            text.push('\n');
        }
        let driver = &self.head.driver;
        let _ = writeln!(
            text,
            "{} {} ({}): {}\n{} of the suite's {} tests, seed {}",
            driver.name,
            driver.version,
            driver.spec,
            self.totals,
            self.totals.all(),
            self.head.suite.tests,
            self.head.seed
        );
        text.push_str(self.conclusion.sentence());
        text.push('\n');
        text
    }

    /// A record as a few lines: what the test is about, what was wrong, and how to run it again.
    pub fn describe(&self, record: &Record) -> String {
        let mut rows = Vec::new();
        let mut line = |name: &str, value: &str| rows.push([name.to_owned(), value.to_owned()]);
        line("test", &format!("{} ({})", record.id, record.status));
        if let Some(test) = crate::test::find(&record.id) {
            line("expects", &test.about());
            for rule in test.rules {
                let stated = crate::rules::find(rule).map(|rule| rule.text);
                line(rule, &stated.unwrap_or_default());
            }
        }
        if let Some(failure) = &record.failure {
            line("found", &failure.message);
            if !failure.place.is_empty() {
                line("at", &failure.place);
            }
        }
        if let Some(step) = &record.step {
            line("during", step);
        }
        if let Some(output) = &record.output {
            line("printed", output);
        }
        line("again", &self.rerun(&record.id));
        indented(rows)
    }
}

/// Rows in columns, two blanks from the left.
fn indented<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if at == 0 { 2 } else { 0 }, 2));
    }
    table.trim_fmt() + "\n"
}

/// Makes JSON of anything that a report holds.
mod erased {
    pub(super) trait Json {
        fn json(&self) -> String;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> String {
            serde_json::to_string(self).expect("plain structs with text keys become JSON")
        }
    }
}

/// This program as it was called: it need not be on the path.
fn program() -> String {
    let called = std::env::args().next();
    quoted(called.as_deref().unwrap_or("outrigger"))
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("host"), "host");
        assert_eq!(quoted("host?a=1&b=2"), "'host?a=1&b=2'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
