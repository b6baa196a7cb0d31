//! A vendor's expectations file: which tests are known to fail or are not to be run, why, and until
//! when. An exception never makes a driver conformant. It only keeps a known failure from hiding new
//! ones.

use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::value::Date;

use crate::select::Pattern;

/// The statement of a vendor on a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// The test is run and fails.
    Xfail,
    /// The test is not run.
    Waived,
}

/// The entry of the file that covers a test, as it is kept in reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The pattern of the entry.
    pub test: String,
    /// The statement of the entry.
    pub status: Expected,
    /// The reason of the entry.
    pub reason: String,
    /// The place where more is said.
    pub link: Option<String>,
    /// The last day on which it holds, as `2027-03-31`.
    pub expires: String,
    /// Whether that day had passed when the run began.
    pub expired: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    expect: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    test: String,
    status: Expected,
    reason: String,
    link: Option<String>,
    expires: toml::value::Datetime,
}

/// The entries of a file.
#[derive(Debug, Default)]
pub struct Expectations(Vec<(Pattern, Exception)>);

/// A file of expectations that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadExpectations {
    /// The file cannot be read.
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, std::io::Error),
    /// The form of the file is wrong.
    #[error("{0}: {1}")]
    Malformed(String, String),
}

impl Expectations {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, has another form, or an entry names no test of the suite.
    pub fn read(path: &Path) -> Result<Self, BadExpectations> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| BadExpectations::Unreadable(name.clone(), error))?;
        Self::parse(&text, today()).map_err(|reason| BadExpectations::Malformed(name, reason))
    }

    fn parse(text: &str, today: Date) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let all = crate::all();
        let mut entries = Vec::new();
        for entry in file.expect {
            let pattern = Pattern::new(&entry.test).map_err(|error| error.to_string())?;
            if !all.iter().any(|test| pattern.matches(test.id)) {
                return Err(format!(
                    "`{}` names no test of the suite: remove the entry, or see --list",
                    entry.test
                ));
            }
            if entry.reason.trim().is_empty() {
                return Err(format!("the entry of `{}` gives no reason", entry.test));
            }
            let Some(expires) = entry.expires.date else {
                return Err(format!(
                    "`expires` of `{}` is no date, as 2027-03-31",
                    entry.test
                ));
            };
            let key = |date: Date| (date.year, date.month, date.day);
            let exception = Exception {
                test: entry.test,
                status: entry.status,
                reason: entry.reason,
                link: entry.link,
                expires: expires.to_string(),
                expired: key(expires) < key(today),
            };
            entries.push((pattern, exception));
        }
        Ok(Self(entries))
    }

    /// The entry for a test; the last one that matches.
    pub fn of(&self, id: &str) -> Option<&Exception> {
        let mut entries = self.0.iter().rev();
        entries
            .find(|(pattern, _)| pattern.matches(id))
            .map(|(_, exception)| exception)
    }

    /// All entries whose last day has passed.
    pub fn expired(&self) -> impl Iterator<Item = &Exception> {
        let all = self.0.iter().map(|(_, exception)| exception);
        all.filter(|exception| exception.expired)
    }
}

/// The day in UTC.
fn today() -> Date {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    day(since.map_or(0, |since| since.as_secs() / 86_400))
}

/// The date of a day that is counted from 1970-01-01.
fn day(mut days: u64) -> Date {
    let leap = |year: u16| {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    Date {
        year,
        month,
        day: days as u8 + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TODAY: Date = Date {
        year: 2027,
        month: 3,
        day: 31,
    };

    fn entry(expires: &str) -> String {
        format!(
            "[[expect]]\ntest = \"stream.order\"\nstatus = \"xfail\"\nreason = \"errata 7\"\nexpires = {expires}\n"
        )
    }

    #[test]
    fn an_entry_holds_through_its_last_day() {
        let read = |text: &str| Expectations::parse(text, TODAY);
        let kept = read(&entry("2027-03-31")).unwrap();
        let exception = kept.of("stream.order.copy_after_fill").unwrap();
        assert!(!exception.expired && exception.expires == "2027-03-31");
        assert!(kept.of("core.open.null").is_none());
        let expired = read(&entry("2027-03-30")).unwrap();
        assert_eq!(expired.expired().count(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_reason() {
        let refused = |text: &str| Expectations::parse(text, TODAY).unwrap_err();
        assert!(
            refused(&entry("2027-03-31").replace("stream.order", "stream.x"))
                .contains("names no test")
        );
        assert!(refused(&entry("2027-03-31").replace("errata 7", " ")).contains("no reason"));
        assert!(refused(&entry("2027-03-31").replace("xfail", "pass")).contains("pass"));
        assert!(refused(&entry("\"soon\"")).contains("expires"));
        assert!(refused(&entry("2027-03-31").replace("reason", "why")).contains("why"));
    }

    #[test]
    fn days_become_dates() {
        let date = |days| {
            let Date { year, month, day } = day(days);
            (year, month, day)
        };
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(365), (1971, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(11_017), (2000, 3, 1));
        assert_eq!(date(20_818), (2026, 12, 31));
        assert_eq!(date(20_819), (2027, 1, 1));
    }
}
