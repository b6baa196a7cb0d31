//! The record of each test that was run, and how often each outcome occurred.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::expect::Exception;
use crate::{Failure, Figure, Need};

/// The outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The driver did what the rules say.
    Pass,
    /// The driver did not do what the rules say.
    Fail,
    /// The process of the test ended by a signal or an exit of its own.
    Crash,
    /// The process of the test had not ended when its time was up, and was killed.
    Timeout,
    /// The driver answered that the device is lost.
    DeviceLost,
    /// The driver does not declare what the test is about.
    Unsupported,
    /// The test failed, as the file of expectations says.
    Xfail,
    /// The test passed, although the file of expectations says that it fails.
    Xpass,
    /// The test was not run, as the file of expectations says.
    Waived,
}

impl Status {
    /// All outcomes, the worst first.
    pub const ALL: [Self; 9] = [
        Self::Crash,
        Self::Timeout,
        Self::DeviceLost,
        Self::Fail,
        Self::Xpass,
        Self::Xfail,
        Self::Waived,
        Self::Unsupported,
        Self::Pass,
    ];

    /// The name of the outcome in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Crash => "crash",
            Self::Timeout => "timeout",
            Self::DeviceLost => "device-lost",
            Self::Unsupported => "unsupported",
            Self::Xfail => "xfail",
            Self::Xpass => "xpass",
            Self::Waived => "waived",
        }
    }

    /// Whether the driver did something wrong that no file of expectations covers.
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::Fail | Self::Crash | Self::Timeout | Self::DeviceLost
        )
    }

    /// Whether the outcome rests on the file of expectations.
    pub const fn is_excepted(self) -> bool {
        matches!(self, Self::Xfail | Self::Xpass | Self::Waived)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The record of one test that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The id of the test.
    pub id: String,
    /// The outcome of the test.
    pub status: Status,
    /// The life of the test's process, in microseconds.
    pub micros: u64,
    /// The failure: what was wrong, and where in the suite; also an expected one.
    pub failure: Option<Failure>,
    /// The step that the test said it tried last, where it crashed or hung.
    pub step: Option<String>,
    /// The capabilities that the driver does not declare, where the test is unsupported.
    pub missing: Vec<Need>,
    /// Remarks of the test.
    pub notes: Vec<String>,
    /// The figures that the test measured.
    pub figures: Vec<Figure>,
    /// The text that the process printed, cut to its last kilobytes.
    pub output: Option<String>,
    /// The entry in the file of expectations that covers the test.
    pub exception: Option<Exception>,
}

impl Record {
    /// The failure as one line that is not too long; empty if nothing was wrong.
    pub fn brief(&self) -> String {
        const LONG: usize = 160;
        let message = self.failure.as_ref().map_or("", |f| f.message.as_str());
        let line = message.lines().next().unwrap_or_default();
        let mut brief: String = line.chars().take(LONG).collect();
        if brief.len() < message.len() {
            brief.push('…');
        }
        brief
    }
}

/// The number of times that each outcome occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each field counts the outcome of its name")]
pub struct Totals {
    pub pass: u32,
    pub fail: u32,
    pub crash: u32,
    pub timeout: u32,
    pub device_lost: u32,
    pub unsupported: u32,
    pub xfail: u32,
    pub xpass: u32,
    pub waived: u32,
}

impl Totals {
    /// Counts records.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut totals = Self::default();
        for record in records {
            totals.add(record.status);
        }
        totals
    }

    /// Counts one outcome more.
    pub fn add(&mut self, status: Status) {
        *match status {
            Status::Pass => &mut self.pass,
            Status::Fail => &mut self.fail,
            Status::Crash => &mut self.crash,
            Status::Timeout => &mut self.timeout,
            Status::DeviceLost => &mut self.device_lost,
            Status::Unsupported => &mut self.unsupported,
            Status::Xfail => &mut self.xfail,
            Status::Xpass => &mut self.xpass,
            Status::Waived => &mut self.waived,
        } += 1;
    }

    /// The number of times that an outcome occurred.
    pub fn get(&self, status: Status) -> u32 {
        match status {
            Status::Pass => self.pass,
            Status::Fail => self.fail,
            Status::Crash => self.crash,
            Status::Timeout => self.timeout,
            Status::DeviceLost => self.device_lost,
            Status::Unsupported => self.unsupported,
            Status::Xfail => self.xfail,
            Status::Xpass => self.xpass,
            Status::Waived => self.waived,
        }
    }

    /// The number of all outcomes.
    pub fn all(&self) -> u32 {
        Status::ALL.iter().map(|status| self.get(*status)).sum()
    }

    /// The number of failures that no file of expectations covers.
    pub fn failures(&self) -> u32 {
        let failures = Status::ALL.iter().filter(|status| status.is_failure());
        failures.map(|status| self.get(*status)).sum()
    }

    /// The number of outcomes that rest on the file of expectations.
    pub fn excepted(&self) -> u32 {
        self.xfail + self.xpass + self.waived
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.pass, self.failures())?;
        for status in Status::ALL {
            let count = self.get(status);
            if count > 0 && !matches!(status, Status::Pass | Status::Fail) {
                let of = if status.is_failure() { "of them " } else { "" };
                write!(f, ", {of}{count} {status}")?;
            }
        }
        Ok(())
    }
}
