//! The specification by which a person names a driver: `name-or-path?key=value&key=value`. This module
//! parses and keeps the text. Whether the driver exists and knows its options shows when it is loaded.

use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::{Code, Error, Result};

/// A driver and its options, as `host?devices=2&face=discrete`, `acme` or `/opt/acme/libacme.so`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverSpec {
    text: String,
    target: Target,
    options: Vec<(String, String)>,
}

/// What the first part of a specification names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A built-in driver, or a library `liboutrigger_NAME.so` to be searched for.
    Name(String),
    /// A file.
    Path(PathBuf),
}

impl DriverSpec {
    /// Parses several specifications, separated by commas.
    pub fn split(specs: &str) -> impl Iterator<Item = (&str, Result<Self>)> {
        specs
            .split(',')
            .map(str::trim)
            .map(|text| (text, text.parse()))
    }

    /// The options, in the order of the text.
    pub fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The same options for the driver in a file.
    pub(crate) fn of_file(&self, path: &Path) -> String {
        match self.text.split_once('?') {
            Some((_, options)) => format!("{}?{options}", path.display()),
            None => path.display().to_string(),
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The options in the form of the driver contract, `key=value,key=value`; `None` without options.
    pub(crate) fn driver_options(&self) -> Option<CString> {
        if self.options.is_empty() {
            return None;
        }
        let pairs: Vec<String> = self
            .options
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        // The parser lets no NUL through.
        CString::new(pairs.join(",")).ok()
    }
}

impl FromStr for DriverSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |what: &str| {
            Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "`{text}` is not a driver specification: {what}; the form is \
                     NAME-OR-PATH?KEY=VALUE&KEY=VALUE, as host?devices=2&face=discrete"
                ),
            ))
        };
        if text.contains('\0') {
            return refuse("it contains a NUL");
        }
        if text.contains(',') {
            return refuse("it contains a comma, which separates specifications");
        }
        let (target, tail) = match text.split_once('?') {
            Some((target, tail)) => (target, Some(tail)),
            None => (text, None),
        };
        let target = if target.is_empty() {
            return refuse("the name is empty");
        } else if target.contains('/') || Path::new(target).extension().is_some_and(|e| e == "so") {
            Target::Path(PathBuf::from(target))
        } else if target
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        {
            Target::Name(target.to_owned())
        } else {
            return refuse(
                "a name has letters, digits, `_` and `-` only, and a path contains a `/` or ends in .so",
            );
        };
        let mut options: Vec<(String, String)> = Vec::new();
        for pair in tail.into_iter().flat_map(|tail| tail.split('&')) {
            match pair.split_once('=') {
                Some(("", _)) => return refuse("an option has no key"),
                Some((key, _)) if options.iter().any(|(known, _)| known == key) => {
                    return refuse(&format!("the option `{key}` is given twice"));
                }
                Some((key, value)) => options.push((key.to_owned(), value.to_owned())),
                None => return refuse(&format!("the option `{pair}` has no `=`")),
            }
        }
        Ok(Self {
            text: text.to_owned(),
            target,
            options,
        })
    }
}

impl fmt::Display for DriverSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::{DriverSpec, Target};

    #[test]
    fn names_and_paths_are_told_apart() {
        let target = |text: &str| text.parse::<DriverSpec>().unwrap().target().clone();
        assert_eq!(target("host"), Target::Name("host".into()));
        assert_eq!(target("./x"), Target::Path("./x".into()));
        assert_eq!(target("libacme.so?a=1"), Target::Path("libacme.so".into()));
    }

    #[test]
    fn options_keep_their_order() {
        let spec: DriverSpec = "host?face=discrete&devices=3&x=".parse().unwrap();
        assert_eq!(
            spec.driver_options().unwrap().to_str().unwrap(),
            "face=discrete,devices=3,x="
        );
        assert_eq!("host".parse::<DriverSpec>().unwrap().driver_options(), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, what) in [
            ("", "the name is empty"),
            ("?a=1", "the name is empty"),
            ("host?devices", "`devices` has no `=`"),
            ("host?=1", "no key"),
            ("host?a=1&a=2", "`a` is given twice"),
            ("ho st", "letters, digits"),
            ("a\0", "NUL"),
        ] {
            let error = text.parse::<DriverSpec>().unwrap_err().to_string();
            assert!(error.contains(what), "{text:?}: {error}");
        }
    }
}
