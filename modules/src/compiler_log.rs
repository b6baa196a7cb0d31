//! Finds the lines of a source that a compiler's log names, and shows them. Compilers of device code often print numbers
//! alone, since the source has no file that they could open.
//!
//! A place that is not understood is left out. What is shown is never more than what the log says.

use std::fmt::Write;

/// So many lines are shown; after the first few, errors follow from others.
const MOST: usize = 8;

/// A place in a source; both numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    column: Option<usize>,
}

/// The lines of `source` at which `log` reports errors, each with a mark below its column. Empty if it names none, or shows
/// them itself.
pub(crate) fn lines(log: &str, source: &str) -> String {
    // Lines behind such a directive are counted from somewhere else.
    if source
        .lines()
        .any(|line| line.trim_start().starts_with("#line"))
    {
        return String::new();
    }
    let mut shown: Vec<Place> = Vec::new();
    let mut text = String::new();
    let mut log_lines = log.lines().peekable();
    while let Some(log_line) = log_lines.next() {
        let Some(place) = is_error(log_line).then(|| place_in(log_line)).flatten() else {
            continue;
        };
        let Some(line) = source.lines().nth(place.line - 1) else {
            continue;
        };
        let quoted = log_lines.peek().is_some_and(|next| quotes(next, line));
        if quoted || shown.contains(&place) || shown.len() == MOST {
            continue;
        }
        shown.push(place);
        show(&mut text, place, line);
    }
    text.truncate(text.trim_end().len());
    text
}

fn show(text: &mut String, place: Place, line: &str) {
    let number = place.line.to_string();
    // Writing to a string does not fail.
    let _ = writeln!(text, "{number} | {}", line.trim_end());
    let before = match place.column {
        Some(column) => column - 1,
        None => line.len() - line.trim_start().len(),
    };
    // A tab stays a tab, so that the mark stands below its column whatever a tab is wide. Columns count bytes.
    let indent: String = line
        .char_indices()
        .take_while(|(at, _)| *at < before)
        .map(|(_, c)| if c == '\t' { '\t' } else { ' ' })
        .collect();
    let _ = writeln!(text, "{} | {indent}^", " ".repeat(number.len()));
}

/// Whether a line of the log is a line of the source; some compilers put its number and a bar in front.
fn quotes(log_line: &str, line: &str) -> bool {
    let text = match log_line.split_once('|') {
        Some((number, text)) if number.trim().bytes().all(|c| c.is_ascii_digit()) => text,
        _ => log_line,
    };
    !line.trim().is_empty() && text.trim() == line.trim()
}

fn is_error(line: &str) -> bool {
    line.as_bytes()
        .windows(5)
        .any(|word| word.eq_ignore_ascii_case(b"error"))
}

/// The place that a line of a log names. The forms are `file:12:5:` (clang, and what is built on it), `1:12:5:` with the
/// number of a program in front (Intel), `12:5:`, `file(12):` (NVRTC), `file:12:`, and `line 12;` (ptxas).
fn place_in(line: &str) -> Option<Place> {
    let words = line.char_indices().filter(|(at, c)| {
        let begins = *at == 0 || !line.as_bytes()[at - 1].is_ascii_alphanumeric();
        begins && c.is_ascii_digit()
    });
    let mut best: Option<(Form, Place)> = None;
    for (at, _) in words {
        let Some((form, place)) = place_at(&line[..at], &line[at..]) else {
            continue;
        };
        if best.is_none_or(|(before, _)| form > before) {
            best = Some((form, place));
        }
    }
    best.map(|(_, place)| place)
}

/// The form in which a place is written, the more telling one last: `1:12:5:` is also `1:12:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Colon,
    Word,
    Bracket,
    Columns,
    FileAndColumns,
}

/// The place whose line number begins at the border between `before` and `rest`.
fn place_at(before: &str, rest: &str) -> Option<(Form, Place)> {
    let (line, rest) = number(rest)?;
    let place = |column| Place { line, column };
    // Numbers of lines in a header are not those of the source.
    let header = |file: &str| {
        [".h", ".hpp", ".cuh", ".inc"]
            .iter()
            .any(|end| file.ends_with(end))
    };
    if let Some(file) = before.strip_suffix('(') {
        let closed = rest.strip_prefix(')')?;
        let named = !file.is_empty() && !header(file) && closed.trim_start().starts_with(':');
        return named.then(|| (Form::Bracket, place(None)));
    }
    if before.to_ascii_lowercase().ends_with("line ") {
        return Some((Form::Word, place(None)));
    }
    let rest = rest.strip_prefix(':')?;
    let file = before.strip_suffix(':');
    if file.is_some_and(header) || !(before.is_empty() || file.is_some()) {
        return None;
    }
    if let Some((column, rest)) = number(rest)
        && rest.starts_with(':')
    {
        let form = match file {
            Some(_) => Form::FileAndColumns,
            None => Form::Columns,
        };
        return Some((form, place(Some(column))));
    }
    // In `file:0:5:` it is the column.
    let is_column = |file: &str| {
        let name = file.trim_end_matches(|c: char| c.is_ascii_digit());
        name.len() < file.len() && name.ends_with(':')
    };
    file.filter(|file| !is_column(file))
        .map(|_| (Form::Colon, place(None)))
}

/// A number from 1 at the start of `text`, and what stands behind it.
fn number(text: &str) -> Option<(usize, &str)> {
    let end = text
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let number = text[..end].parse().ok().filter(|number| *number > 0)?;
    Some((number, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::lines;

    const SOURCE: &str = "kernel void f() {\n\tint x = y;\n    return;\n}\n\nint é = wrong;\n";

    #[track_caller]
    fn check(log: &str, expected: &str) {
        assert_eq!(lines(log, SOURCE), expected, "{log}");
    }

    #[test]
    fn each_compiler_has_its_way_to_name_a_line() {
        let second = "2 | \tint x = y;\n  | \t        ^";
        for log in [
            "<kernel>:2:10: error: use of undeclared identifier 'y'",
            "error: <folder>/tempfile_1b.cl:2:10: use of undeclared identifier 'y'",
            "1:2:10: error: use of undeclared identifier 'y'",
            "2:10: error: use of undeclared identifier 'y'",
            "program_source:2:10: fatal error: use of undeclared identifier 'y'",
        ] {
            check(log, second);
        }
        let third = "3 |     return;\n  |     ^";
        for log in [
            "default_program(3): error: expected a \";\"",
            "kernel.cu(3) : error C1: nothing",
            "kernel.cl:3: error: nothing",
            "ptxas application ptx input, line 3; error   : Parsing error near 'x'",
            "ERROR: 0:3: 'return' : syntax error",
        ] {
            check(log, third);
        }
    }

    #[test]
    fn what_names_no_line_of_the_source_is_left_alone() {
        for log in [
            "",
            "error: something",
            "<kernel>:99:1: error: beyond the end",
            "<kernel>:0:1: error: numbers begin at 1",
            "<kernel>:2:10: warning: unused",
            "/usr/include/math.h:2:10: error: in a header",
            "math.cuh(2): error: in a header",
            "1 error generated.",
            "error: f(2) has no value",
            "<kernel>:99999999999999999999999:1: error: no number",
        ] {
            check(log, "");
        }
        let directive = format!("#line 100 \"other.cl\"\n{SOURCE}");
        assert_eq!(lines("<kernel>:2:10: error: x", &directive), "");
    }

    #[test]
    fn a_line_that_the_log_shows_is_not_shown_again() {
        check(
            "default_program(2): error: x\n  \tint x = y;\n  \t        ^\n",
            "",
        );
        check(
            "a:2:10: error: x\n    2 | \tint x = y;\n      | \t        ^\n",
            "",
        );
        check(
            "default_program(2): error: x\n\n1 error detected",
            "2 | \tint x = y;\n  | \t^",
        );
    }

    #[test]
    fn several_errors_are_shown_once_each_and_not_without_end() {
        let log = "a:2:2: error: x\na:2:2: error: y\na:3:5: error: z\n";
        check(log, "2 | \tint x = y;\n  | \t^\n3 |     return;\n  |     ^");
        let source = "x\n".repeat(100);
        let log: String = (1..=100)
            .map(|line| format!("a:{line}:1: error: x\n"))
            .collect();
        assert_eq!(lines(&log, &source).lines().count(), 16);
    }

    #[test]
    fn a_column_within_or_behind_a_line_is_no_panic() {
        check(
            "a:6:6: error: within a letter",
            "6 | int é = wrong;\n  |      ^",
        );
        check("a:4:9: error: behind the end", "4 | }\n  |  ^");
        check("a:5:1: error: an empty line", "5 | \n  | ^");
    }

    proptest::proptest! {
        #[test]
        fn any_log_over_any_source_shows_lines_of_the_source_alone(
            log in "(error|:|\\(|\\)|[0-9]|\\.h|line | |\n|é|\\|){0,60}",
            source in "(a|é|\t|\n| ){0,20}",
        ) {
            for shown in lines(&log, &source).lines().step_by(2) {
                let (number, text) = shown.split_once(" |").unwrap();
                let number: usize = number.parse().unwrap();
                let line = source.lines().nth(number - 1).unwrap().trim_end();
                proptest::prop_assert_eq!(text.trim_start_matches(' '), line.trim_start_matches(' '));
            }
        }
    }
}
