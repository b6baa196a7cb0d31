//! Checks that docs/environment.md lists exactly the environment variables that the code knows, and that what starts tests
//! changes no default of the library.

use std::collections::BTreeSet;

use super::Source;

/// The page with the table.
const TABLE: &str = "docs/environment.md";

/// The beginning of every variable of the project. Split, so that this line is not taken for one.
const PREFIX: &str = concat!("OUTRIGGER", "_");

/// Languages that can read an environment variable.
const READERS: [&str; 6] = ["rs", "py", "c", "h", "cpp", "cc"];

/// The files that decide about the environment of many tests. A test of a variable sets it for itself.
const STARTERS: [&str; 2] = ["conftest.py", "xtask/src/suites"];

/// Variables that a starter may set: which kind of device, which part of the tests, and where things are kept.
const FACES: [&str; 5] = ["CACHE", "DRIVER", "MUTANT", "TEST_OPENCL", "TORCH"];

/// Variables that are read but not listed, listed but not read, and set for many tests.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let Some(table) = sources.iter().find(|source| source.name == TABLE) else {
        return vec![format!("{TABLE}: is missing")];
    };
    let listed = names(&table.text, '`');
    let read: BTreeSet<&str> = sources
        .iter()
        .filter(|source| source.is(&READERS))
        .flat_map(|source| names(&source.text, '"'))
        .collect();
    let missing = read
        .difference(&listed)
        .map(|name| format!("{TABLE}: does not list {name}, which the code reads"));
    let stale = listed
        .difference(&read)
        .map(|name| format!("{TABLE}: lists {name}, which nothing reads"));
    missing.chain(stale).chain(changed(sources)).collect()
}

/// Defaults that what starts tests changes: nobody would test what users run.
fn changed(sources: &[Source]) -> impl Iterator<Item = String> {
    let is_starter = |name: &str| STARTERS.iter().any(|part| name.contains(part));
    let starters = sources
        .iter()
        .filter(move |source| is_starter(&source.name));
    starters.flat_map(|source| {
        let names = names(&source.text, '"').into_iter();
        let names = names.filter(|name| !FACES.contains(&&name[PREFIX.len()..]));
        names.map(|name| format!("{}: {name} is not for many tests at once", source.name))
    })
}

/// The variables of the project that stand in `text` between two `quote`s, and nothing else with them.
fn names(text: &str, quote: char) -> BTreeSet<&str> {
    let is_name = |word: &str| {
        word.strip_prefix(PREFIX).is_some_and(|rest| {
            !rest.is_empty()
                && rest
                    .chars()
                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        })
    };
    text.lines()
        .flat_map(|line| line.split(quote).zip(line.split(quote).skip(1)))
        // A variable that a build script hands to the compiler is none of a user's environment.
        .filter(|(before, word)| {
            is_name(word) && !before.ends_with(" env!(") && !before.ends_with("(env!(")
        })
        .map(|(_, word)| word)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_code_are_compared_both_ways() {
        let (known, unknown, stale) = (
            format!("{PREFIX}KNOWN"),
            format!("{PREFIX}UNKNOWN"),
            format!("{PREFIX}STALE"),
        );
        let code =
            format!("env::var(\"{known}\"); env::var(\"{unknown}\"); f(env!(\"{PREFIX}BUILT\"))");
        let table = format!("| `{known}` | x |\n| `{stale}` | y |\n");
        let problems = check(&[
            Source {
                name: "a.rs".to_owned(),
                text: code,
            },
            Source {
                name: TABLE.to_owned(),
                text: table,
            },
        ]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains(&unknown) && problems[1].contains(&stale));
    }

    #[test]
    fn what_starts_tests_sets_faces_alone() {
        let source = |name: &str, variable: &str| Source {
            name: name.to_owned(),
            text: format!("os.environ[\"{PREFIX}{variable}\"] = \"x\""),
        };
        let sources = [
            source("frameworks/torch/tests/conftest.py", "DRIVER"),
            source("frameworks/torch/tests/conftest.py", "TUNE"),
            source("frameworks/torch/tests/test_tuning.py", "TUNE"),
        ];
        let problems: Vec<String> = changed(&sources).collect();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("conftest.py") && problems[0].contains("TUNE"));
    }
}
