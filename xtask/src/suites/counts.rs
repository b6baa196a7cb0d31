//! The counts of a suite, read from the output of the programs that run its tests. A skipped test keeps
//! its reason, and is never counted as passed.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How many tests were skipped, by the reason that they gave.
pub(super) type Skips = BTreeMap<String, u64>;

/// How a test of the conformance suite fails.
const FAILURES: [&str; 5] = ["fail", "crash", "timeout", "device-lost", "xpass"];

/// What a suite counted.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: Skips,
    /// Which tests failed, as far as their program names them, and with what.
    #[serde(default)]
    pub(super) failures: Vec<String>,
}

impl Counts {
    /// One check that passed or failed as a whole.
    pub(super) fn single(passed: bool) -> Self {
        Self {
            passed: passed.into(),
            failed: (!passed).into(),
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        for (reason, count) in other.skipped {
            self.skip(&reason, count);
        }
    }

    /// How many were skipped, for whatever reason.
    pub(super) fn all_skipped(&self) -> u64 {
        self.skipped.values().sum()
    }

    /// Counts tests that were skipped for `reason`.
    fn skip(&mut self, reason: &str, count: u64) {
        if count > 0 {
            *self.skipped.entry(reason.to_owned()).or_default() += count;
        }
    }

    /// Reads the output of libtest. A passing test that printed `skipped: REASON` is a skipped one.
    pub(super) fn of_libtest(output: &str) -> Self {
        let mut counts = Self::default();
        let (mut ignored, mut explained, mut skipped_themselves) = (0, 0, 0);
        for line in output.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                counts.passed += number_before(result, " passed");
                counts.failed += number_before(result, " failed");
                ignored += number_before(result, " ignored");
            } else if let Some(reason) = line.strip_prefix("skipped: ") {
                counts.skip(reason, 1);
                skipped_themselves += 1;
            } else if line.starts_with("test ")
                && let Some((_, reason)) = line.split_once(" ... ignored, ")
            {
                counts.skip(reason, 1);
                explained += 1;
            } else if let Some(name) = line
                .strip_prefix("test ")
                .and_then(|line| line.strip_suffix(" ... FAILED"))
            {
                counts.failures.push(name.to_owned());
            }
        }
        counts.skip("ignored", ignored.saturating_sub(explained));
        counts.passed = counts.passed.saturating_sub(skipped_themselves);
        counts
    }

    /// Reads the report in XML that pytest wrote.
    pub(super) fn of_junit(report: &str) -> anyhow::Result<Self> {
        let (_, totals) = report
            .split_once("<testsuite ")
            .context("it is no report of pytest")?;
        let total = |name: &str| -> anyhow::Result<u64> {
            let value = attribute(totals, name)
                .with_context(|| format!("pytest's report has no {name}"))?;
            Ok(value.parse()?)
        };
        let (failed, skipped) = (total("failures")? + total("errors")?, total("skipped")?);
        let mut counts = Self {
            passed: total("tests")?.saturating_sub(failed + skipped),
            failed,
            ..Self::default()
        };
        for element in totals.split("<testcase").skip(1) {
            let problem = ["<failure ", "<error "]
                .iter()
                .find_map(|tag| element.split_once(tag));
            if let Some((_, problem)) = problem {
                let name = |key| attribute(element, key).unwrap_or_default();
                let message = plain(attribute(problem, "message").unwrap_or_default());
                let test = plain(&format!("{}::{}", name(" classname"), name(" name")));
                counts.failures.push(format!("{test}: {message}"));
            }
        }
        for element in totals.split("<skipped ").skip(1) {
            let reason = attribute(element, "message").unwrap_or_default();
            let reason = match attribute(element, "type") {
                Some("pytest.xfail") => format!("fails as expected: {}", plain(reason)),
                _ => plain(reason),
            };
            counts.skip(&reason, 1);
        }
        let unexplained = skipped.saturating_sub(counts.all_skipped());
        counts.skip("no reason given", unexplained);
        Ok(counts)
    }

    /// Reads the report in JSON of the conformance suite.
    pub(super) fn of_conformance(report: &str) -> anyhow::Result<Self> {
        let report: Value = serde_json::from_str(report)?;
        let total = |names: &[&str]| -> u64 {
            let counts = names.iter().map(|name| report["totals"][name].as_u64());
            counts.map(Option::unwrap_or_default).sum()
        };
        let mut counts = Self {
            passed: total(&["pass"]),
            failed: total(&FAILURES),
            ..Self::default()
        };
        for sealed in report["records"].as_array().into_iter().flatten() {
            let record = &sealed["record"];
            match record["status"].as_str() {
                Some("unsupported") => {
                    let missing = record["missing"].as_array().into_iter().flatten();
                    let missing: Vec<&str> = missing.filter_map(Value::as_str).collect();
                    counts.skip(&format!("not declared: {}", missing.join(" and ")), 1);
                }
                Some(status @ ("xfail" | "waived")) => counts.skip(status, 1),
                Some(status) if FAILURES.contains(&status) => {
                    let id = record["id"].as_str().unwrap_or_default();
                    let message = record["failure"]["message"].as_str();
                    let message = message.unwrap_or_default();
                    counts.failures.push(format!("{id}: {status} {message}"));
                }
                _ => {}
            }
        }
        let skipped = total(&["unsupported", "xfail", "waived"]);
        let unexplained = skipped.saturating_sub(counts.all_skipped());
        counts.skip("no reason given", unexplained);
        Ok(counts)
    }
}

/// The number right before `word`, or 0.
fn number_before(text: &str, word: &str) -> u64 {
    text.split(word)
        .next()
        .and_then(|before| before.rsplit(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

/// The value of an attribute of the element that `xml` begins within.
fn attribute<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let element = xml.split('>').next()?;
    let (_, value) = element.split_once(&format!("{name}=\""))?;
    value.split('"').next()
}

/// Text of an attribute as a person reads it, on one line.
fn plain(text: &str) -> String {
    let replaced = text
        .replace("&#10;", " ")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&amp;", "&");
    replaced.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skips(counts: &Counts) -> Vec<(&str, u64)> {
        let skips = counts.skipped.iter();
        skips.map(|(reason, &n)| (reason.as_str(), n)).collect()
    }

    #[test]
    fn results_of_libtest_are_added_up() {
        let output = "\
test parent ... ok
test child ... ignored, a child of `parent`
test other ... ignored
test result: ok. 12 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out
test third ... FAILED
---- needs_a_gpu stdout ----
skipped: no GPU
test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out
";
        let counts = Counts::of_libtest(output);
        assert_eq!((counts.passed, counts.failed), (14, 2));
        assert_eq!(counts.failures, ["third"]);
        assert_eq!(
            skips(&counts),
            [("a child of `parent`", 1), ("ignored", 1), ("no GPU", 1)]
        );
    }

    #[test]
    fn reasons_of_pytest_are_kept() -> anyhow::Result<()> {
        let report = r#"<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="1"
            failures="1" skipped="4" tests="9"><testcase name="a"><skipped type="pytest.skip"
            message="tests &quot;x&quot; &amp; y">file.py:3: tests</skipped></testcase><testcase
            name="b"><skipped type="pytest.skip" message="tests &quot;x&quot; &amp; y"/></testcase>
            <testcase name="c"><skipped type="pytest.xfail" message="no > here"/></testcase>
            <testcase classname="tests.x" name="d[1]"><failure message="assert 1 &lt; 0">text</failure></testcase>"#;
        let counts = Counts::of_junit(&report.replace("no > here", "no &gt; here"))?;
        assert_eq!((counts.passed, counts.failed), (3, 2));
        assert_eq!(counts.failures, ["tests.x::d[1]: assert 1 < 0"]);
        assert_eq!(
            skips(&counts),
            [
                ("fails as expected: no > here", 1),
                ("no reason given", 1),
                ("tests \"x\" & y", 2)
            ]
        );
        Ok(())
    }

    #[test]
    fn what_conformance_did_not_judge_is_not_counted_as_passed() -> anyhow::Result<()> {
        let report = r#"{"totals": {"pass": 5, "fail": 1, "crash": 2, "timeout": 0, "device-lost": 1,
            "unsupported": 3, "xfail": 1, "xpass": 1, "waived": 1}, "records": [
            {"record": {"status": "pass", "missing": []}},
            {"record": {"status": "unsupported", "missing": ["ipc", "peer"]}},
            {"record": {"status": "unsupported", "missing": ["ipc"]}},
            {"record": {"status": "unsupported", "missing": ["ipc"]}},
            {"record": {"status": "waived", "missing": []}},
            {"record": {"status": "fail", "id": "ops.add", "failure": {"message": "1 is not 2"}}}]}"#;
        let counts = Counts::of_conformance(report)?;
        assert_eq!((counts.passed, counts.failed), (5, 5));
        assert_eq!(counts.failures, ["ops.add: fail 1 is not 2"]);
        assert_eq!(
            skips(&counts),
            [
                ("no reason given", 1),
                ("not declared: ipc", 2),
                ("not declared: ipc and peer", 1),
                ("waived", 1)
            ]
        );
        Ok(())
    }

    #[test]
    fn what_is_no_report_is_an_error() {
        assert!(Counts::of_junit("").is_err());
    }
}
