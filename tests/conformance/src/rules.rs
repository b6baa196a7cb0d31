//! The numbered rules of the headers: `R1` and on of `driver.h`, `H1` and on of `outrigger.h`. They are
//! read from the texts of the headers, so a rule cannot exist only here.

/// A numbered rule of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name by which tests know the rule, such as `R16`.
    pub name: String,
    /// The text of the rule as one line.
    pub text: String,
}

const DRIVER: &str = include_str!("../../../include/outrigger/driver.h");
const HOST: &str = include_str!("../../../include/outrigger/outrigger.h");

/// All rules of both headers, in their order.
pub fn all() -> Vec<Rule> {
    let mut rules = read(DRIVER, 'R');
    rules.extend(read(HOST, 'H'));
    rules
}

/// The rule of a name.
pub fn find(name: &str) -> Option<Rule> {
    all().into_iter().find(|rule| rule.name == name)
}

/// Reads the rules of a header's comments: a line ` *   R16 text`, and those below it that are indented
/// at least as far as its text.
fn read(header: &str, letter: char) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut column = None;
    for line in header.lines() {
        let Some(line) = line
            .strip_prefix(" *")
            .filter(|rest| !rest.starts_with('/'))
        else {
            column = None;
            continue;
        };
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if let Some((name, rest)) = start(text, letter) {
            column = Some(indent + text.len() - rest.len());
            rules.push(Rule {
                name: name.to_owned(),
                text: rest.to_owned(),
            });
            continue;
        }
        // One space less is let through: a number of three characters moves the text by one.
        match (column, rules.last_mut()) {
            (Some(column), Some(rule)) if indent + 1 >= column && !text.is_empty() => {
                rule.text.push(' ');
                rule.text.push_str(text);
            }
            _ => column = None,
        }
    }
    rules
}

/// Splits `R16 text` into both.
fn start(text: &str, letter: char) -> Option<(&str, &str)> {
    let (name, rest) = text.split_once(' ')?;
    let number = name.strip_prefix(letter)?;
    let whole = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    whole.then(|| (name, rest.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_the_driver_are_read_whole_and_in_order() {
        let rules = read(DRIVER, 'R');
        let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
        let expected: Vec<_> = (1..=rules.len()).map(|n| format!("R{n}")).collect();
        assert_eq!(names, expected);
        assert!(rules.len() >= 44);
        let r16 = find("R16").unwrap();
        assert_eq!(
            r16.text,
            "Work of one queue takes effect in the order of submission, as if one after the other. \
             A command sees all effects of those before it in its queue."
        );
        assert!(
            rules.iter().all(|rule| rule.text.ends_with('.')),
            "{rules:#?}"
        );
    }
}
