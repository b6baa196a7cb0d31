//! Checks a report without running anything: it must be whole, nothing in it may be changed or taken
//! from another run, and its conclusion must follow from its records. The check cannot tell who made
//! the report, because who writes a report can also compute its hashes.

use std::collections::BTreeMap;

use crate::identity::Suite;
use crate::record::{Status, Totals};
use crate::report::{Conclusion, FORMAT, Report};
use crate::{Test, find, seal};

/// The reason why a report is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The text is no report, or it ends in the middle.
    #[error("this is no whole report: {0}")]
    Malformed(serde_json::Error),
    /// The report has another form.
    #[error("its form is `{0}`, and this program reads `{FORMAT}`")]
    Format(String),
    /// Another suite made it.
    #[error(
        "the suite {} (hash {}) made it, and this is {} (hash {}): verify it with the program that made it",
        theirs.version, theirs.hash, ours.version, ours.hash
    )]
    Suite {
        /// The suite of the report.
        theirs: Box<Suite>,
        /// The suite of this program.
        ours: Box<Suite>,
    },
    /// A record does not fit to what is before it.
    #[error(
        "record {number} ({id}) was altered, moved, taken from another run, or stands behind something \
         that was"
    )]
    Altered {
        /// The place of the record, from 1.
        number: usize,
        /// The test that the record names.
        id: String,
    },
    /// The end of the chain is another one.
    #[error("its digest does not fit to its records: it was altered or cut off")]
    Digest,
    /// The plan is not what the selection means in this suite.
    #[error("its plan was altered: it is not what its selection means")]
    Plan,
    /// Tests that were planned have no record.
    #[error(
        "it was cut off: {} planned tests have no record, the first is {first}",
        count
    )]
    Missing {
        /// The number of records that are missing.
        count: usize,
        /// The first test of them.
        first: String,
    },
    /// A record that should not be there.
    #[error("the record of {0} is there twice, or was not planned")]
    Stray(String),
    /// An outcome that cannot be.
    #[error("the record of {id} says {status}, but {reason}")]
    Outcome {
        /// The test.
        id: String,
        /// The outcome that the record of the test says.
        status: Status,
        /// The reason why that cannot be.
        reason: &'static str,
    },
    /// The totals or the conclusion are wrong.
    #[error("its totals or its conclusion do not follow from its records")]
    Conclusion,
}

/// Reads a report and checks all of it.
///
/// # Errors
/// The first reason not to believe it.
pub fn verify(json: &str) -> Result<Report, Refusal> {
    // The form first: another one has other fields.
    let value: serde_json::Value = serde_json::from_str(json).map_err(Refusal::Malformed)?;
    match value["head"]["format"].as_str() {
        Some(FORMAT) | None => {}
        Some(other) => return Err(Refusal::Format(other.to_owned())),
    }
    // From the text and not from the value, which forgets fields that are there twice.
    let report: Report = serde_json::from_str(json).map_err(Refusal::Malformed)?;
    chain(&report)?;
    let ours = Suite::current();
    if report.head.suite != ours {
        return Err(Refusal::Suite {
            theirs: Box::new(report.head.suite.clone()),
            ours: Box::new(ours),
        });
    }
    plan(&report)?;
    outcomes(&report)?;
    let totals = Totals::of(report.records.iter().map(|sealed| &sealed.record));
    let conclusion = Conclusion::of(&report.head.selection, &totals);
    if totals != report.totals || conclusion != report.conclusion {
        return Err(Refusal::Conclusion);
    }
    Ok(report)
}

/// The same report as if this suite had made it, with hashes that fit, so that random input reaches what is
/// checked behind them; `None` if it is no report.
#[cfg(fuzzing)]
pub fn forge(json: &str) -> Option<String> {
    let mut report: Report = serde_json::from_str(json).ok()?;
    report.head.suite = Suite::current();
    let mut link = seal::head(&report.head);
    for sealed in &mut report.records {
        link = seal::link(&link, &sealed.record);
        sealed.link.clone_from(&link);
    }
    report.digest = link;
    Some(report.to_json())
}

/// Each record's link follows from the one before it.
fn chain(report: &Report) -> Result<(), Refusal> {
    let mut link = seal::head(&report.head);
    for (number, sealed) in report.records.iter().enumerate() {
        link = seal::link(&link, &sealed.record);
        if link != sealed.link {
            return Err(Refusal::Altered {
                number: number + 1,
                id: sealed.record.id.clone(),
            });
        }
    }
    match link == report.digest {
        true => Ok(()),
        false => Err(Refusal::Digest),
    }
}

/// The plan is what the selection means, and each planned test has one record.
fn plan(report: &Report) -> Result<(), Refusal> {
    let head = &report.head;
    let planned = head.selection.tests().map_err(|_| Refusal::Plan)?;
    if !planned.iter().map(|test| test.id).eq(&head.planned) {
        return Err(Refusal::Plan);
    }
    let mut left: BTreeMap<&str, ()> = planned.iter().map(|test| (test.id, ())).collect();
    for sealed in &report.records {
        if left.remove(sealed.record.id.as_str()).is_none() {
            return Err(Refusal::Stray(sealed.record.id.clone()));
        }
    }
    match left.keys().next() {
        Some(first) => Err(Refusal::Missing {
            count: left.len(),
            first: (*first).to_owned(),
        }),
        None => Ok(()),
    }
}

/// No record says what cannot be: a capability that was declared is never left out, and no exception
/// stands without its entry.
fn outcomes(report: &Report) -> Result<(), Refusal> {
    let declared = |test: &Test| {
        let capabilities = &report.head.driver.capabilities;
        test.needs.iter().all(|need| capabilities.contains(need))
    };
    for sealed in &report.records {
        let record = &sealed.record;
        let Some(test) = find(&record.id) else {
            return Err(Refusal::Stray(record.id.clone()));
        };
        let refuse = |reason| {
            Err(Refusal::Outcome {
                id: record.id.clone(),
                status: record.status,
                reason,
            })
        };
        match record.status {
            Status::Unsupported if declared(test) => {
                return refuse("the driver declares all that it needs");
            }
            Status::Pass if !declared(test) => {
                return refuse("the driver does not declare what it needs");
            }
            Status::Pass | Status::Xpass if record.failure.is_some() => {
                return refuse("it also names a failure");
            }
            status
                if status.is_excepted() && record.exception.as_ref().is_none_or(|e| e.expired) =>
            {
                return refuse("no expectation that holds covers it");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::identity::DriverFacts;
    use crate::record::Record;
    use crate::report::{Head, Sealed};
    use crate::select::Selection;

    /// A sound report, as made by someone who computes the hashes too.
    fn report(change: impl FnOnce(&mut Head, &mut Vec<Record>)) -> Result<Report, Refusal> {
        let selection = Selection {
            filters: vec!["core.open".to_owned()],
            ..Selection::default()
        };
        let planned = selection.tests().unwrap();
        let mut head = Head {
            format: FORMAT.to_owned(),
            run: "0".to_owned(),
            started: 0,
            suite: Suite::current(),
            driver: DriverFacts {
                spec: "acme".to_owned(),
                name: "acme".to_owned(),
                vendor: String::new(),
                version: "1".to_owned(),
                contract: "1.0".to_owned(),
                file: PathBuf::from("acme.so"),
                file_sha256: "0".to_owned(),
                capabilities: Vec::new(),
                devices: Vec::new(),
            },
            host: String::new(),
            layers: None,
            seed: 1,
            limit_factor: 0.1,
            selection,
            planned: planned.iter().map(|test| test.id.to_owned()).collect(),
        };
        let records = planned.iter().map(|test| Record {
            id: test.id.to_owned(),
            status: Status::Pass,
            micros: 1,
            failure: None,
            step: None,
            missing: Vec::new(),
            notes: Vec::new(),
            figures: Vec::new(),
            output: None,
            exception: None,
        });
        let mut records = records.collect();
        change(&mut head, &mut records);
        let mut link = seal::head(&head);
        let sealed = records.into_iter().map(|record| {
            link = seal::link(&link, &record);
            Sealed {
                record,
                link: link.clone(),
            }
        });
        let sealed = sealed.collect();
        verify(&Report::new(head, sealed).to_json())
    }

    #[test]
    fn whoever_computes_the_hashes_still_cannot_leave_tests_out() {
        assert!(report(|_, _| {}).is_ok());
        let cut = report(|_, records| {
            records.pop();
        });
        assert!(
            matches!(cut, Err(Refusal::Missing { count: 1, .. })),
            "{cut:?}"
        );
        let planned_less = report(|head, records| {
            head.planned.pop();
            records.pop();
        });
        assert!(
            matches!(planned_less, Err(Refusal::Plan)),
            "{planned_less:?}"
        );
        let said_to_be_all = report(|head, _| head.selection = Selection::default());
        assert!(
            matches!(said_to_be_all, Err(Refusal::Plan)),
            "{said_to_be_all:?}"
        );
        let twice = report(|_, records| records.push(records[0].clone()));
        assert!(matches!(twice, Err(Refusal::Stray(_))), "{twice:?}");
    }

    #[test]
    fn whoever_computes_the_hashes_still_cannot_excuse_a_test() {
        let unsupported = report(|_, records| records[0].status = Status::Unsupported);
        assert!(
            matches!(unsupported, Err(Refusal::Outcome { .. })),
            "{unsupported:?}"
        );
        let waived = report(|_, records| records[0].status = Status::Waived);
        assert!(matches!(waived, Err(Refusal::Outcome { .. })), "{waived:?}");
        let suite = report(|head, _| head.suite.hash = "0".to_owned());
        assert!(matches!(suite, Err(Refusal::Suite { .. })), "{suite:?}");
    }
}
