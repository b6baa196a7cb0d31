//! Beginnings of comments. A reader often sees one comment alone, so it begins with the thing that it speaks of: not with
//! a pronoun, whose noun is elsewhere, and not with a question word, which names nothing.

use super::Source;

/// The folders whose comments hold to the rule.
const IN_FORCE: &[&str] = &[
    "graph",
    "allocator",
    "locks",
    "store",
    "trace",
    "handles",
    "hooks",
    "drivers/kit",
    "layers",
    "modules",
    "tuner",
    "ops",
    "src",
    "tests/library",
    "tests/dialect",
    "xtask",
    "tests/soak",
    "fuzz",
    "cli",
    "demo",
    "benches",
    "packaging",
    "tests/mutants",
    "tests/trial",
    "examples",
    "frameworks",
    "drivers/opencl",
    "drivers/cuda",
    "tests/tests",
    "tests/conformance",
    "ffi",
];

/// Pronouns, and question words that make a clause without a noun of it.
const REFUSED: [&str; 24] = [
    "Her",
    "He",
    "His",
    "How",
    "It",
    "Its",
    "She",
    "That",
    "Their",
    "Them",
    "They",
    "Those",
    "We",
    "What",
    "Whatever",
    "Where",
    "Which",
    "Whichever",
    "Who",
    "Whoever",
    "Whom",
    "Whose",
    "Why",
    "You",
];

/// Words that stand before a noun, or are pronouns themselves.
const POINTERS: [&str; 2] = ["This", "These"];

/// Words that can follow a pronoun, but stand before no noun.
const VERBS: [&str; 22] = [
    "also", "are", "can", "cannot", "could", "did", "do", "does", "had", "has", "have", "is",
    "may", "might", "must", "never", "only", "should", "was", "were", "will", "would",
];

/// The signs that begin a comment, by the extensions of files; a longer one stands before its beginning.
const SIGNS: [(&[&str], &[&str]); 3] = [
    (&["rs"], &["///", "//!", "//"]),
    (
        &["c", "h", "cc", "cpp", "hpp"],
        &["///", "//!", "//", "/**", "/*"],
    ),
    (&["py"], &["#", "\"\"\""]),
];

/// Every comment of the folders in force that begins with a refused word, and every such folder that has no files.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    IN_FORCE
        .iter()
        .flat_map(|folder| check_folder(folder, sources))
        .collect()
}

fn check_folder(folder: &str, sources: &[Source]) -> Vec<String> {
    let within = |source: &&Source| {
        let rest = source.name.strip_prefix(folder);
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let mut files = sources.iter().filter(within).peekable();
    if files.peek().is_none() {
        return vec![format!(
            "{folder}: has no files, but stands in xtask/src/tidy/comments.rs"
        )];
    }
    files.flat_map(check_file).collect()
}

fn check_file(source: &Source) -> Vec<String> {
    let Some((_, signs)) = SIGNS.iter().find(|(extensions, _)| source.is(extensions)) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut before = None;
    for (number, line) in (1..).zip(source.text.lines()) {
        let comment = comment(line, signs).filter(|(_, text)| !text.is_empty());
        // A line behind one of the same comment goes on with its sentence. Behind an empty line a reader begins anew.
        if let Some((sign, text)) = comment
            && before != Some(sign)
            && let Some(word) = refused(text)
        {
            problems.push(format!(
                "{}:{number}: a comment begins with `{word}`: begin with the thing that it speaks of, so that it can be \
                 read alone",
                source.name
            ));
        }
        before = comment.map(|(sign, _)| sign);
    }
    problems
}

/// The sign and the text of a line that is a comment.
fn comment<'a>(line: &'a str, signs: &[&'static str]) -> Option<(&'static str, &'a str)> {
    let line = line.trim();
    let found = signs.iter().find(|sign| line.starts_with(**sign))?;
    Some((*found, line[found.len()..].trim_start()))
}

/// The word that a text begins with, if comments do not begin with it.
fn refused(text: &str) -> Option<&str> {
    let mut words = text.split(|c: char| !c.is_alphabetic());
    let first = words.next()?;
    let is_pronoun =
        POINTERS.contains(&first) && words.next().is_some_and(|next| VERBS.contains(&next));
    (REFUSED.contains(&first) || is_pronoun).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, text: &str) -> Vec<String> {
        let source = Source {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        check_folder("house", &[source])
    }

    #[test]
    fn comments_that_cannot_be_read_alone_are_found() {
        let wrong = [
            ("house/a.rs", "/// What a launch needs."),
            ("house/a.rs", "//! Head.\n//!\n//! It waits."),
            ("house/a.rs", "x();\n    // Who waits for it.\n    y();"),
            ("house/a.rs", "/// A queue.\n// Its number."),
            ("house/a.rs", "/// This is no end."),
            ("house/a.rs", "/// These can wait."),
            ("house/a.rs", "/// It's over."),
            ("house/a.c", "/* They wait. */"),
            ("house/a.h", "//! How it waits."),
            ("house/a.py", "\"\"\"Whose it is.\"\"\""),
            ("house/a.py", "    # Where it is"),
        ];
        for (name, text) in wrong {
            assert_eq!(problems(name, text).len(), 1, "{text}");
        }
        assert_eq!(
            problems("house/a.rs", "//! Head.\n\n/// What it is."),
            [
                "house/a.rs:3: a comment begins with `What`: begin with the thing that it speaks of, so that it can be read \
                 alone"
            ]
        );
    }

    #[test]
    fn comments_that_can_be_read_alone_pass() {
        let right = [
            ("house/a.rs", "/// A queue, which is told\n/// What to do."),
            ("house/a.rs", "/// This function waits."),
            ("house/a.rs", "/// `What` is a name, and \"It\" a text."),
            (
                "house/a.rs",
                "/// Items of a list.\n///\n/// Itself a list.",
            ),
            (
                "house/a.rs",
                "/// Fails.\n///\n/// # Errors\n/// Those of a call.",
            ),
            ("house/a.md", "What a launch needs."),
            ("house/a.py", "x = 1  # What"),
        ];
        for (name, text) in right {
            assert_eq!(problems(name, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn only_its_own_folder_is_looked_at_and_must_be_there() {
        assert_eq!(problems("house/a.rs", "/// What.").len(), 1);
        let missing = "house: has no files, but stands in xtask/src/tidy/comments.rs";
        assert_eq!(problems("houses/a.rs", "/// What."), [missing]);
    }
}
