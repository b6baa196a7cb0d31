//! The report as JUnit XML, for build servers. Crashes and timeouts are errors there. A test without a
//! verdict is skipped with its reason; it is never a pass.

use std::time::Duration;

use quick_junit::{NonSuccessKind, Property, TestCase, TestCaseStatus, TestSuite};

use crate::Tier;
use crate::record::{Record, Status};
use crate::report::Report;

impl Report {
    /// The report as JUnit XML: a suite for each tier.
    pub fn to_junit(&self) -> String {
        let name = format!("outrigger conformance of {}", self.head.driver.spec);
        let mut all = quick_junit::Report::new(name);
        let records = self.in_order();
        for tier in Tier::ALL {
            let of_tier = |record: &&&Record| Tier::of(&record.id) == Some(tier);
            let mut suite = TestSuite::new(tier.name());
            suite.add_test_cases(records.iter().filter(of_tier).map(|r| self.case(r)));
            if suite.test_cases.is_empty() {
                continue;
            }
            let head = &self.head;
            for (name, value) in [
                ("suite", &head.suite.hash),
                ("driver", &head.driver.file_sha256),
                ("digest", &self.digest),
                ("seed", &head.seed.to_string()),
            ] {
                suite.add_property(Property::new(name, value.as_str()));
            }
            all.add_test_suite(suite);
        }
        all.to_string()
            .expect("texts without control characters become XML")
    }

    fn case(&self, record: &Record) -> TestCase {
        let mut status = match record.status {
            Status::Pass | Status::Xpass => TestCaseStatus::success(),
            Status::Fail | Status::DeviceLost => {
                TestCaseStatus::non_success(NonSuccessKind::Failure)
            }
            Status::Crash | Status::Timeout => TestCaseStatus::non_success(NonSuccessKind::Error),
            Status::Unsupported | Status::Xfail | Status::Waived => TestCaseStatus::skipped(),
        };
        if let Some(message) = message(record) {
            status.set_message(message);
        }
        if record.status.is_failure() {
            status.set_type(record.status.name());
            status.set_description(self.describe(record));
        }
        let (tier, name) = record.id.split_once('.').unwrap_or(("", &record.id));
        let mut case = TestCase::new(name, status);
        case.set_classname(tier);
        case.set_time(Duration::from_micros(record.micros));
        case
    }
}

/// The text that stands beside the outcome.
fn message(record: &Record) -> Option<String> {
    if let Some(failure) = record
        .failure
        .as_ref()
        .filter(|_| record.status.is_failure())
    {
        return Some(failure.message.clone());
    }
    if record.status == Status::Unsupported {
        let missing: Vec<String> = record.missing.iter().map(|n| format!("{n:?}")).collect();
        return Some(format!("not declared: {}", missing.join(", ")));
    }
    let exception = record.exception.as_ref()?;
    record
        .status
        .is_excepted()
        .then(|| format!("{}: {}", record.status, exception.reason))
}
