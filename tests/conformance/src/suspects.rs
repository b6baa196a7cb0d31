//! The rules to begin with when many tests fail: those of which the largest share of the tests failed. One defect fails
//! tests of many rules, but most tests of the rule that it breaks.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::find;
use crate::record::Status;
use crate::report::Report;

/// The most rules that are named: those behind them failed along with others.
const MOST: usize = 5;

/// A rule whose tests failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suspect {
    /// The name of the rule, as `R16`.
    pub rule: &'static str,
    /// The number of its tests that failed.
    pub failed: u64,
    /// The number of its tests that were judged.
    pub judged: u64,
}

impl Report {
    /// The first few rules whose tests failed, by the share of them that did.
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
    // As if two more had passed: a share of few tests says less than the same of many.
    let of = |suspect: &Suspect| suspect.judged + 2;
    suspects.sort_by(|a, b| {
        let shares = (b.failed * of(a)).cmp(&(a.failed * of(b)));
        shares.then(b.failed.cmp(&a.failed))
    });
    suspects.truncate(MOST);
    suspects
}

#[cfg(test)]
mod tests {
    use super::ranked;

    #[test]
    fn the_largest_share_comes_first_and_one_of_many_tests_before_one_of_few() {
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
        assert_eq!(names, ["R28", "R21", "R24", "R15", "R16"]);
    }
}
