//! The list of tests is consistent: ids, rules in both directions, and capabilities.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use outrigger_conformance::{Need, Tier, all, rules};

#[test]
fn ids_are_unique_and_name_tier_subject_and_what() {
    let mut seen = BTreeSet::new();
    for test in all() {
        assert!(seen.insert(test.id), "{} is there twice", test.id);
        assert!(
            Tier::of(test.id).is_some(),
            "{} starts with no tier",
            test.id
        );
        let parts: Vec<&str> = test.id.split('.').collect();
        assert_eq!(parts.len(), 3, "{} is no tier.subject.what", test.id);
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        let whole = parts
            .iter()
            .all(|p| !p.is_empty() && p.chars().all(allowed));
        assert!(whole, "{} has another character", test.id);
        assert!(
            test.about().ends_with('.'),
            "{} has no sentence: {:?}",
            test.id,
            test.about()
        );
        assert!(test.limit > 0 && !test.rules.is_empty(), "{}", test.id);
    }
}

#[test]
fn every_rule_has_a_test_and_every_test_names_rules_that_exist() {
    let rules: Vec<String> = rules::all().into_iter().map(|rule| rule.name).collect();
    let mut tests: BTreeMap<&str, usize> = rules.iter().map(|rule| (rule.as_str(), 0)).collect();
    for test in all() {
        for rule in test.rules {
            match tests.get_mut(rule) {
                Some(count) => *count += 1,
                None => panic!("{} names the rule {rule}, which no header states", test.id),
            }
        }
    }
    let bare: Vec<&&str> = tests
        .iter()
        .filter(|(_, n)| **n == 0)
        .map(|(rule, _)| rule)
        .collect();
    assert!(bare.is_empty(), "rules without a test: {bare:?}");
}

#[test]
fn a_capability_that_tests_need_has_a_test_that_its_absence_fails_cleanly() {
    // The needs that are no offers: each driver has one side of them.
    let sides = [
        Need::HostVisible,
        Need::HostInvisible,
        Need::OwnOperators,
        Need::TwoDevices,
        Need::Priorities,
        Need::Library,
    ];
    let needed: BTreeSet<Need> = all().iter().flat_map(|test| test.needs).copied().collect();
    let absent: BTreeSet<Need> = all().iter().flat_map(|test| test.absent).copied().collect();
    let bare: Vec<&Need> = needed
        .difference(&absent)
        .filter(|need| !sides.contains(need))
        .collect();
    assert!(
        bare.is_empty(),
        "capabilities without a negative test: {bare:?}"
    );
}

const TABLE: &str = include_str!("../../../include/outrigger/table.h");

/// The functions of the host contract, as its table names them.
fn exports() -> BTreeSet<String> {
    let (before, _) = TABLE.split_once("} otr_host_api_t;").expect("the table");
    let (_, entries) = before.rsplit_once("typedef struct {").expect("its start");
    let entries = entries.split("(*").skip(1);
    let names = entries.map(|entry| entry.split(')').next().unwrap_or_default());
    names.map(str::to_owned).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

/// The entries of the table that a source calls: by the suite's macros `otr!` and `raw!`.
fn calls(source: &str) -> impl Iterator<Item = &str> {
    let starts = ["otr!(", "raw!("].into_iter();
    let calls = starts.flat_map(|start| source.split(start).skip(1));
    calls.filter_map(|call| {
        call.trim_start()
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    })
}

#[test]
fn every_function_of_the_host_contract_is_called_by_the_tier_host_abi() {
    let exports = exports();
    assert!(exports.len() > 140, "{exports:?}");
    let mut called: BTreeSet<String> = BTreeSet::new();
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/host")) {
        let source = fs::read_to_string(&path).expect("a source");
        // Calls that others share count; tests of other tiers, which the folder has too, do not.
        if source.contains("tests! { \"host-abi.") || !source.contains("tests! {") {
            called.extend(calls(&source).map(str::to_owned));
        }
    }
    let bare: Vec<&String> = exports.difference(&called).collect();
    assert!(bare.is_empty(), "functions that no test calls: {bare:?}");
}
