//! The counts of a suite, read from the report in JUnit's format that nextest, pytest and the conformance suite write. A
//! skipped test keeps its reason, and is never counted as passed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use quick_junit::{Report, TestCase, TestCaseStatus};
use serde::{Deserialize, Serialize};

/// The number of tests that were skipped, by the reason that they gave.
pub(super) type Skips = BTreeMap<String, u64>;

/// The counts of a suite.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: Skips,
    /// The tests that failed, as far as their program names them, each with its failure.
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

    /// A job that could not run. The summary shows the first line that names an error: a message may hold the end of
    /// a command's output.
    pub(super) fn broken(error: &anyhow::Error) -> Self {
        let text = format!("{error:#}");
        let mut lines = text.lines().map(str::trim);
        let first = lines.next().unwrap_or_default();
        let named = lines.find(|line| {
            line.get(..5)
                .is_some_and(|s| s.eq_ignore_ascii_case("error"))
        });
        Self {
            failures: vec![named.unwrap_or(first).to_owned()],
            ..Self::single(false)
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        for (reason, count) in other.skipped {
            *self.skipped.entry(reason).or_default() += count;
        }
    }

    /// The number of skipped tests, for whatever reason.
    pub(super) fn all_skipped(&self) -> u64 {
        self.skipped.values().sum()
    }

    /// Reads the report that a program has written.
    ///
    /// # Errors
    /// If there is none, or it is no report.
    pub(super) fn of_file(report: &Path) -> anyhow::Result<Self> {
        let shown = report.display();
        let text =
            fs::read_to_string(report).with_context(|| format!("{shown} was not written"))?;
        Self::of_junit(&text).with_context(|| format!("{shown} is no report"))
    }

    fn of_junit(report: &str) -> anyhow::Result<Self> {
        let report = Report::deserialize_from_str(report)?;
        let mut counts = Self::default();
        for case in report
            .test_suites
            .iter()
            .flat_map(|suite| &suite.test_cases)
        {
            counts.count(case);
        }
        Ok(counts)
    }

    fn count(&mut self, case: &TestCase) {
        match &case.status {
            TestCaseStatus::Success { .. } => match skipped_itself(case) {
                Some(reason) => self.skip(reason),
                None => self.passed += 1,
            },
            TestCaseStatus::NonSuccess { message, .. } => {
                self.failed += 1;
                let name = |part: Option<&str>| part.unwrap_or_default().to_owned();
                let of = name(case.classname.as_deref());
                let message = message.as_deref().map_or("", telling);
                self.failures
                    .push(format!("{of}::{}: {message}", case.name.as_str()));
            }
            TestCaseStatus::Skipped { message, ty, .. } => {
                let reason = message.as_deref().unwrap_or("no reason given");
                match ty.as_deref() {
                    Some("pytest.xfail") => self.skip(&format!("fails as expected: {reason}")),
                    _ => self.skip(reason),
                }
            }
        }
    }

    fn skip(&mut self, reason: &str) {
        *self.skipped.entry(reason.trim().to_owned()).or_default() += 1;
    }
}

/// A message, from its first line on that tells something: of a traceback in Python that is the error at its end. Of
/// several the last one is the cause of the failure.
fn telling(message: &str) -> &str {
    const TRACEBACK: &str = "Traceback (most recent call last):";
    let first = message.lines().next().unwrap_or_default();
    if !first.ends_with(TRACEBACK) {
        return message;
    }
    let last = message.rfind(TRACEBACK).unwrap_or_default();
    let behind = message[last..].split_inclusive('\n').skip(1);
    let error = behind
        .skip_while(|line| line.starts_with(' '))
        .map(str::trim_end)
        .find(|line| !line.is_empty());
    error.unwrap_or(message)
}

/// The reason that a test in Rust printed: libtest knows no test that skips itself.
fn skipped_itself(case: &TestCase) -> Option<&str> {
    let output = case.system_out.as_deref()?;
    output
        .lines()
        .find_map(|line| line.strip_prefix("skipped: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skips(counts: &Counts) -> Vec<(&str, u64)> {
        let skips = counts.skipped.iter();
        skips.map(|(reason, &n)| (reason.as_str(), n)).collect()
    }

    #[test]
    fn what_kept_a_job_from_running_is_named() {
        let of = |text: &'static str| Counts::broken(&anyhow::anyhow!(text)).failures;
        let built = "building failed (exit status: 101)\n   Compiling half v2.7.1\n  error: No space left on device (os error 28)\nerror: could not compile";
        assert_eq!(of(built), ["error: No space left on device (os error 28)"]);
        assert_eq!(of("no compiler\nbut a linker"), ["no compiler"]);
    }

    #[test]
    fn reports_of_nextest_are_read() -> anyhow::Result<()> {
        let report = r#"<?xml version="1.0" encoding="UTF-8"?><testsuites name="nextest-run" tests="3" failures="1" errors="0">
            <testsuite name="outrigger-ops" tests="3" disabled="0" errors="0" failures="1">
            <testcase name="a" classname="outrigger-ops"><system-out>running 1 test</system-out></testcase>
            <testcase name="b" classname="outrigger-ops"><system-out>running 1 test
skipped: no GPU
test b ... ok</system-out></testcase>
            <testcase name="c" classname="outrigger-ops"><failure message="1 is not 2" type="test failure">text</failure></testcase>
            </testsuite></testsuites>"#;
        let counts = Counts::of_junit(report)?;
        assert_eq!((counts.passed, counts.failed), (1, 1));
        assert_eq!(counts.failures, ["outrigger-ops::c: 1 is not 2"]);
        assert_eq!(skips(&counts), [("no GPU", 1)]);
        Ok(())
    }

    #[test]
    fn reports_of_pytest_are_read() -> anyhow::Result<()> {
        let report = r#"<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="1"
            failures="1" skipped="3" tests="6" time="1.5" timestamp="2026-01-02T03:04:05.678901+00:00" hostname="here">
            <testcase classname="x" name="a" time="0.1"><skipped type="pytest.skip" message="tests &quot;x&quot; &amp; y">f.py:3: tests</skipped></testcase>
            <testcase classname="x" name="b" time="0.1"><skipped type="pytest.skip" message="tests &quot;x&quot; &amp; y"/></testcase>
            <testcase classname="x" name="c" time="0.1"><skipped type="pytest.xfail" message="no &gt; here"/></testcase>
            <testcase classname="tests.x" name="d[1]" time="0.1"><failure message="assert 1 &lt; 0">text</failure></testcase>
            <testcase classname="tests.x" name="e" time="0.1"><error message="failed on setup">text</error></testcase>
            <testcase classname="x" name="f" time="0.1"/></testsuite></testsuites>"#;
        let counts = Counts::of_junit(report)?;
        assert_eq!((counts.passed, counts.failed), (1, 2));
        assert_eq!(
            counts.failures,
            ["tests.x::d[1]: assert 1 < 0", "tests.x::e: failed on setup"]
        );
        let expected = [("fails as expected: no > here", 1), ("tests \"x\" & y", 2)];
        assert_eq!(skips(&counts), expected);
        Ok(())
    }

    #[test]
    fn of_a_traceback_the_error_is_told() {
        let traced = "AssertionError: Traceback (most recent call last):\n  File \"<string>\", line 9, in <module>\n\nThe above ...\n\n\
                      Traceback (most recent call last):\n  File \"x.py\", line 2\n    f(x)\nRuntimeWarning: is left out\nassert 1 == 0";
        assert_eq!(telling(traced), "RuntimeWarning: is left out");
        let cut = "Traceback (most recent call last):\n  File";
        for message in ["assert 1 == 0\nTraceback (most recent call last):", cut, ""] {
            assert_eq!(telling(message), message);
        }
    }

    #[test]
    fn what_is_no_report_is_an_error() {
        assert!(Counts::of_junit("").is_err());
        assert!(Counts::of_file(Path::new("/nowhere/report.xml")).is_err());
    }
}
