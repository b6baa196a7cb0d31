//! The glossary of ARCHITECTURE.md: the last cell of each row has the file where a word lives, and before it the name that
//! stands for the word there. The check finds rows that a change of the code has made wrong.

use super::Source;

/// The page with the glossary.
const PAGE: &str = "ARCHITECTURE.md";

/// The heading above its tables.
const HEADING: &str = "## Glossary";

/// Every row whose file is not there, or does not have the name.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let page = sources.iter().find(|source| source.name == PAGE);
    let lines = page.map_or("", |page| page.text.as_str()).lines();
    let mut rows = (1..)
        .zip(lines)
        .skip_while(|(_, line)| *line != HEADING)
        .skip(1)
        .take_while(|(_, line)| !line.starts_with('#'))
        .filter(|(_, line)| line.starts_with("| ") && line.contains('`'))
        .peekable();
    if rows.peek().is_none() {
        return vec![format!("{PAGE}: has no rows below \"{HEADING}\"")];
    }
    let problem = |(number, row): (usize, &str)| {
        let wrong = wrong_row(row, sources)?;
        Some(format!("{PAGE}:{number}: {wrong}"))
    };
    rows.filter_map(problem).collect()
}

fn wrong_row(row: &str, sources: &[Source]) -> Option<String> {
    let cell = row.trim_end_matches([' ', '|']).rsplit('|').next()?;
    let quoted: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    let Some((path, names)) = quoted.split_last() else {
        return Some("the last cell of a word names no file".to_owned());
    };
    let Some(source) = sources.iter().find(|source| source.name == *path) else {
        return Some(format!("there is no file {path}"));
    };
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let has = |name: &str| {
        source
            .text
            .split(|c: char| !is_part(c))
            .any(|word| word == name)
    };
    let missing = names.iter().find(|name| !has(name))?;
    Some(format!("{path} has no `{missing}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(page: &str) -> Vec<String> {
        let source = |name: &str, text: &str| Source {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        check(&[source(PAGE, page), source("a/b.rs", "struct Queue;")])
    }

    #[test]
    fn rows_without_their_file_or_name_are_found() {
        let page = "\
# Page

| before | `Nothing`, `a/none.rs` |

## Glossary

| word | meaning | where |
|---|---|---|
| queue | runs `commands` | `Queue`, `a/b.rs` |
| stream | a queue | `Stream`, `a/b.rs` |
| event | a point | `Event`, `a/c.rs` |
| `driver` | a library | in a file |
| file | a whole file | `a/b.rs` |

## After

| after | `Nothing`, `a/none.rs` |
";
        assert_eq!(
            problems(page),
            [
                "ARCHITECTURE.md:10: a/b.rs has no `Stream`",
                "ARCHITECTURE.md:11: there is no file a/c.rs",
                "ARCHITECTURE.md:12: the last cell of a word names no file",
            ]
        );
    }

    #[test]
    fn a_page_without_a_glossary_is_found() {
        assert_eq!(problems("# Page\n").len(), 1);
    }
}
