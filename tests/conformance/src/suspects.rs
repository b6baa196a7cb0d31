//! Where to begin with many failures: the rules of which the largest part of the tests failed. One defect fails
//! tests of many rules, and most of those of its own.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::find;
use crate::record::Status;
use crate::report::Report;

/// So many are named: what is behind them failed along with others.
const MOST: usize = 5;

/// A rule whose tests failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suspect {
    /// Its name, as `R16`.
    pub rule: &'static str,
    /// So many of its tests failed.
    pub failed: u64,
    /// Of so many that were judged.
    pub judged: u64,
}

impl Report {
    /// The first few rules whose tests failed, by the part of them that did.
    pub fn suspects(&self) -> Vec<Suspect> {
        let mut rules: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
        for record in self.in_order() {
            if matches!(record.status, Status::Unsupported | Status::Waived) {
                continue;
            }
            for rule in find(&record.id).map_or(&[][..], |test| test.rules) {
                let (failed, judged) = rules.entry(rule).or_default();
                *failed += u64::from(record.status.is_failure());
                *judged += 1;
            }
        }
        ranked(rules)
    }
}

/// The first few with failures, from the numbers of failed and of judged tests.
fn ranked(rules: BTreeMap<&'static str, (u64, u64)>) -> Vec<Suspect> {
    let mut suspects: Vec<Suspect> = rules
        .into_iter()
        .filter(|(_, (failed, _))| *failed > 0)
        .map(|(rule, (failed, judged))| Suspect {
            rule,
            failed,
            judged,
        })
        .collect();
    suspects.sort_by(|a, b| {
        let parts = (b.failed * a.judged).cmp(&(a.failed * b.judged));
        parts.then(b.failed.cmp(&a.failed))
    });
    suspects.truncate(MOST);
    suspects
}

#[cfg(test)]
mod tests {
    use super::ranked;

    #[test]
    fn the_largest_part_comes_first_and_of_equal_parts_that_of_more_tests() {
        let rules = [
            ("R1", (0, 3)),
            ("R16", (3, 112)),
            ("R21", (59, 77)),
            ("R24", (60, 91)),
            ("R15", (1, 1)),
            ("R28", (32, 32)),
            ("R8", (1, 99)),
        ];
        let names: Vec<_> = ranked(rules.into()).iter().map(|s| s.rule).collect();
        assert_eq!(names, ["R28", "R15", "R21", "R24", "R16"]);
    }
}
