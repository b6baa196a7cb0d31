//! Checks that docs/environment.md lists exactly the environment variables that the code knows.

use std::collections::BTreeSet;

use super::Source;

/// Where the table is.
const TABLE: &str = "docs/environment.md";

/// What every variable of the project starts with. Split, so that this line is not taken for one.
const PREFIX: &str = concat!("OUTRIGGER", "_");

/// Languages that can read an environment variable.
const READERS: [&str; 6] = ["rs", "py", "c", "h", "cpp", "cc"];

/// Variables that are read but not listed, and listed but not read.
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
    missing.chain(stale).collect()
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
        // What a build script hands to the compiler is no variable of the environment of a user.
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
}
