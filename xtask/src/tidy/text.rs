//! Rules that the text of one file shows: its length, its head, and words that must not be in it.

use super::Source;
use crate::generate;

/// Lines of a file that a person can still read in one sitting.
const LONGEST: usize = 800;

/// The file that a vendor reads as a whole, and its frozen copies: it has what the contract has.
const WHOLE: &str = "outrigger/driver.h";

/// Sources in these languages are held to the length and to a head that says what they are for.
const CODE: [&str; 9] = ["rs", "py", "c", "h", "cpp", "cc", "hpp", "js", "css"];

/// Texts that must stand nowhere, each with the reason. They are written in two pieces, so that this file does not
/// break its own rule.
const FORBIDDEN: [(&str, &str); 8] = [
    (concat!("TO", "DO"), "finish it, or open an issue"),
    (concat!("FIX", "ME"), "finish it, or open an issue"),
    (concat!("XX", "X:"), "finish it, or open an issue"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (
        concat!("/tm", "p/"),
        "a path of one machine: ask the system for a temporary folder",
    ),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("../sh", "ared"), "outside of the repository"),
];

/// The licence that a header which others include must name.
const LICENCE: &str = "SPDX-License-Identifier: MIT OR Apache-2.0";

/// Everything wrong in `source`.
pub(super) fn check(source: &Source) -> Vec<String> {
    let mut problems = forbidden_words(source);
    if source.is(&CODE) && !generate::is_generated(&source.name) {
        let lines = source.text.lines().count();
        if lines > LONGEST && !source.name.ends_with(WHOLE) {
            problems.push(format!(
                "{}: {lines} lines, more than {LONGEST}: split it",
                source.name
            ));
        }
        if !has_head(source) {
            problems.push(format!(
                "{}:1: no head that says what the file is for",
                source.name
            ));
        }
    }
    let is_public_header =
        source.name.starts_with("include/") || source.name.starts_with("examples/");
    if is_public_header && source.is(&["h", "hpp", "c"]) && !source.text.contains(LICENCE) {
        problems.push(format!("{}:1: does not say `{LICENCE}`", source.name));
    }
    problems
}

fn forbidden_words(source: &Source) -> Vec<String> {
    if source.name == "Cargo.lock" {
        return Vec::new();
    }
    let in_line = |(number, line): (usize, &str)| -> Vec<String> {
        let found = FORBIDDEN.iter().filter(|(word, _)| line.contains(word));
        found
            .map(|(word, why)| format!("{}:{}: `{word}`: {why}", source.name, number + 1))
            .collect()
    };
    source.text.lines().enumerate().flat_map(in_line).collect()
}

/// True if the first line starts the words on what the file is for.
fn has_head(source: &Source) -> bool {
    let first = source
        .text
        .lines()
        .find(|line| !line.starts_with("#!") || line.starts_with("#!["));
    let first = first.unwrap_or_default();
    match source.name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => first.starts_with("//!"),
        Some("py") => first.starts_with("\"\"\"") || first.starts_with("r\"\"\""),
        _ => first.starts_with("/*") || first.starts_with("//"),
    }
}

/// The allocator's arithmetic contains no `unsafe`, and says so to the compiler.
pub(super) fn check_allocator(sources: &[Source]) -> Vec<String> {
    let Some(root) = sources
        .iter()
        .find(|source| source.name == "allocator/src/lib.rs")
    else {
        return vec!["allocator/src/lib.rs: is missing".to_owned()];
    };
    if root.text.contains("#![forbid(unsafe_code)]") {
        return Vec::new();
    }
    vec![format!(
        "{}: does not say #![forbid(unsafe_code)]",
        root.name
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, text: &str) -> Source {
        Source {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn each_rule_is_seen() {
        let long = format!("//! Head.\n{}", "\n".repeat(LONGEST));
        assert_eq!(check(&source("a.rs", &long)).len(), 1);
        assert_eq!(check(&source("a.rs", "fn main() {}\n")).len(), 1);
        assert_eq!(check(&source("a.py", "import sys\n")).len(), 1);
        assert_eq!(check(&source("include/a.h", "/* A header. */\n")).len(), 1);
        assert_eq!(check(&source("a.md", concat!("TO", "DO\n"))).len(), 1);
        assert_eq!(
            check_allocator(&[source("allocator/src/lib.rs", "//! Head.\n")]).len(),
            1
        );
    }

    #[test]
    fn a_good_file_passes() {
        assert_eq!(
            check(&source("a.rs", "//! Head.\nfn main() {}\n")),
            Vec::<String>::new()
        );
        assert_eq!(
            check(&source(
                "a.py",
                "#!/usr/bin/env python3\n\"\"\"Head.\"\"\"\n"
            )),
            Vec::<String>::new()
        );
    }
}
