//! Reads what the headers of the contracts declare: numbers, structs with their members, and
//! signatures. It reads only the C that these headers use. It must never skip what it does not
//! understand: that is an error.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};

/// A struct, by its members.
pub(super) struct Struct {
    /// Name and declaration of each, in their order.
    pub(super) members: Vec<(String, String)>,
}

/// All that headers declare.
#[derive(Default)]
pub(super) struct Declarations {
    /// Macros that stand for numbers.
    pub(super) numbers: BTreeSet<String>,
    /// Structs by the names of their types.
    pub(super) structs: BTreeMap<String, Struct>,
    /// Functions, function types and other types, as they are declared.
    pub(super) signatures: BTreeMap<String, String>,
}

impl Declarations {
    /// Takes what one header declares.
    ///
    /// # Errors
    /// If it has something else than the contracts are made of.
    pub(super) fn add(&mut self, header: &str) -> anyhow::Result<()> {
        let code = self.without_directives(&without_comments(header));
        for declaration in split(&code, ';')? {
            self.declaration(&declaration)
                .with_context(|| format!("it is not understood: {declaration}"))?;
        }
        Ok(())
    }

    /// Takes the numbers that are defined; what is left is declarations. What only C++ sees is dropped.
    fn without_directives(&mut self, text: &str) -> String {
        let mut code = String::new();
        let mut only_cpp = false;
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(directive) = line.trim_start().strip_prefix('#') else {
                if !only_cpp {
                    code.push_str(line);
                    code.push('\n');
                }
                continue;
            };
            // A macro of several lines is code, not a number.
            let mut last = line;
            while last.ends_with('\\') {
                last = lines.next().unwrap_or_default();
            }
            let mut words = directive.split_whitespace();
            match words.next() {
                Some("ifdef") if words.next() == Some("__cplusplus") => only_cpp = true,
                Some("endif") => only_cpp = false,
                Some("define") => {
                    let (name, value) = (words.next().unwrap_or_default(), words.next());
                    let number = value.is_some_and(|value| {
                        value.starts_with(|c: char| c.is_ascii_digit() || c == '(' || c == '-')
                            || value.starts_with("UINT")
                            || value.starts_with("SIZE")
                    });
                    if number && !name.contains('(') {
                        self.numbers.insert(name.to_owned());
                    }
                }
                _ => {}
            }
        }
        code
    }

    fn declaration(&mut self, text: &str) -> anyhow::Result<()> {
        let text = text.trim_start_matches("OTR_DRIVER_EXPORT ");
        let Some(type_of) = text.strip_prefix("typedef ") else {
            if text.starts_with("struct ") && !text.contains('{') {
                return Ok(()); // its members are the other side's
            }
            let name = declared_name(text)?;
            self.signatures.insert(name, text.to_owned());
            return Ok(());
        };
        if !(type_of.starts_with("struct") && type_of.contains('{')) {
            self.signatures
                .insert(declared_name(type_of)?, text.to_owned());
            return Ok(());
        }
        let (_, rest) = type_of.split_once('{').context("a struct has a brace")?;
        let (body, name) = rest.rsplit_once('}').context("a struct ends")?;
        let mut members = Vec::new();
        for member in split(body, ';')? {
            for (name, text) in declarators(&member)? {
                members.push((name, text));
            }
        }
        self.structs
            .insert(name.trim().to_owned(), Struct { members });
        Ok(())
    }
}

/// The members that one declaration makes: `float x, y` makes two.
fn declarators(member: &str) -> anyhow::Result<Vec<(String, String)>> {
    let parts = split(member, ',')?;
    if parts.len() == 1 {
        return Ok(vec![(declared_name(member)?, member.to_owned())]);
    }
    let first = &parts[0];
    let name = declared_name(first)?;
    let kind = first.trim_end_matches(&name).trim().to_owned();
    let mut all = vec![(name, first.clone())];
    for part in &parts[1..] {
        all.push((declared_name(part)?, format!("{kind} {part}")));
    }
    Ok(all)
}

/// The name that a declaration gives: of a function pointer, an array, a function, or what stands last.
fn declared_name(text: &str) -> anyhow::Result<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name: String = if let Some((_, rest)) = text.split_once("(*") {
        rest.chars().take_while(|c| is_word(*c)).collect()
    } else {
        let text = if text.contains('}') {
            text.rsplit('}').next().unwrap_or_default()
        } else {
            text.split(['(', '[', ':']).next().unwrap_or_default()
        };
        let last = text.trim_end().rsplit(|c| !is_word(c)).next();
        last.unwrap_or_default().to_owned()
    };
    if name.is_empty() {
        bail!("it has no name");
    }
    Ok(name)
}

/// The parts between separators that stand outside of all brackets, with single spaces; no empty ones.
fn split(text: &str, separator: char) -> anyhow::Result<Vec<String>> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        match parts.last_mut() {
            _ if c == separator && depth == 0 => parts.push(String::new()),
            Some(part) => part.push(c),
            None => {}
        }
    }
    if depth != 0 {
        bail!("brackets do not match");
    }
    let words = |part: &String| part.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(parts
        .iter()
        .map(words)
        .filter(|part| !part.is_empty())
        .collect())
}

fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        code.push_str(&rest[..at]);
        let comment = &rest[at..];
        let end = if comment.starts_with("//") {
            comment.find('\n')
        } else {
            comment.find("*/").map(|end| end + 2)
        };
        code.push(' ');
        rest = end.map_or("", |end| &comment[end..]);
    }
    code + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_contracts_are_made_of_is_read() -> anyhow::Result<()> {
        let mut all = Declarations::default();
        all.add(
            "#ifndef GUARD\n#define GUARD\n#define OTR_A 1 /* one */\n#define OTR_HAS(x) \\\n  (x)\n\
             typedef struct otr_s { size_t struct_size; // its size; really\n union { double f; int i; } value;\n\
             int (*call)(void *user, int); char name[4]; uint32_t x, y; } otr_s_t;\n\
             typedef int (*otr_fn)(int);\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\
             otr_s_t *otr_f(int a,\n   int b);\n#endif\n",
        )?;
        assert_eq!(all.numbers.iter().collect::<Vec<_>>(), ["OTR_A"]);
        let members: Vec<_> = all.structs["otr_s_t"]
            .members
            .iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(members, ["struct_size", "value", "call", "name", "x", "y"]);
        assert_eq!(all.signatures["otr_f"], "otr_s_t *otr_f(int a, int b)");
        assert_eq!(all.signatures["otr_fn"], "typedef int (*otr_fn)(int)");
        assert!(all.add("int otr_g(int").is_err());
        Ok(())
    }
}
