//! The place of a store, and the most that it may take: from the environment, as the user of a program sets it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FOLDER: &str = "OUTRIGGER_CACHE";
const BYTES: &str = "OUTRIGGER_CACHE_BYTES";

/// The limit of a store where nobody has set one: 1 GiB.
pub const DEFAULT_LIMIT: u64 = 1 << 30;

/// The place and the limit of a store that is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The folder, which is made when something is kept first; or why there is none: nothing is kept then.
    pub folder: Result<PathBuf, String>,
    /// Bytes that the entries may take. Where several processes write, each may pass it by a sixteenth for a while.
    pub limit: u64,
    /// A read is noted if the last note is older than this, so that entries in use are not removed.
    pub touch_after: Duration,
}

/// A value of the environment that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is `{value}`; {expected}")]
pub struct SettingsError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl Settings {
    /// A store in that folder, with defaults for the rest.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: Ok(folder.into()),
            limit: DEFAULT_LIMIT,
            touch_after: Duration::from_secs(3600),
        }
    }

    /// A store that keeps nothing.
    pub fn off(reason: impl Into<String>) -> Self {
        Self {
            folder: Err(reason.into()),
            ..Self::at(PathBuf::new())
        }
    }

    /// The settings of the environment: `OUTRIGGER_CACHE` and `OUTRIGGER_CACHE_BYTES`, else `XDG_CACHE_HOME`, else
    /// `HOME`.
    ///
    /// # Errors
    /// Names the variable whose value makes no sense.
    pub fn from_environment() -> Result<Self, SettingsError> {
        Self::from_variables(std::env::var_os)
    }

    fn from_variables(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, SettingsError> {
        let set = |name| variable(name).filter(|value: &OsString| !value.is_empty());
        let mut settings = match set(FOLDER) {
            Some(value) if value == *"off" => Self::off(format!("{FOLDER} is `off`")),
            Some(value) if Path::new(&value).is_absolute() => Self::at(value),
            Some(value) => {
                return Err(refuse(FOLDER, &value, "give an absolute path, or `off`"));
            }
            None => {
                // A relative path is to be ignored, says the XDG Base Directory Specification.
                let absolute = |name| {
                    set(name)
                        .map(PathBuf::from)
                        .filter(|path| path.is_absolute())
                };
                let base = absolute("XDG_CACHE_HOME")
                    .or_else(|| absolute("HOME").map(|home| home.join(".cache")));
                match base {
                    Some(base) => Self::at(base.join("outrigger")),
                    None => Self::off(format!("neither {FOLDER} nor HOME is set")),
                }
            }
        };
        if let Some(value) = set(BYTES) {
            let expected =
                "give a number of bytes of at least 1M, with K, M or G behind it if you like";
            settings.limit = value
                .to_str()
                .and_then(bytes)
                .filter(|bytes| *bytes >= 1 << 20)
                .ok_or_else(|| refuse(BYTES, &value, expected))?;
        }
        Ok(settings)
    }
}

fn refuse(variable: &'static str, value: &OsStr, expected: &'static str) -> SettingsError {
    SettingsError {
        variable,
        value: value.to_string_lossy().into_owned(),
        expected,
    }
}

/// A number with a unit of 1024, 1024² or 1024³.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_LIMIT, Settings, SettingsError};

    fn from(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    fn folder(variables: &[(&str, &str)]) -> Option<String> {
        let path = from(variables).unwrap().folder.ok()?;
        Some(path.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_first_variable_that_is_set_says_where() {
        let all = [
            ("OUTRIGGER_CACHE", "/fast/o"),
            ("XDG_CACHE_HOME", "/xdg"),
            ("HOME", "/users/a"),
        ];
        assert_eq!(folder(&all).unwrap(), "/fast/o");
        assert_eq!(folder(&all[1..]).unwrap(), "/xdg/outrigger");
        assert_eq!(folder(&all[2..]).unwrap(), "/users/a/.cache/outrigger");
        assert_eq!(folder(&[]), None);
        assert_eq!(
            folder(&[("OUTRIGGER_CACHE", ""), all[1]]).unwrap(),
            "/xdg/outrigger"
        );
        assert_eq!(
            folder(&[("XDG_CACHE_HOME", "relative"), all[2]]).unwrap(),
            "/users/a/.cache/outrigger"
        );
    }

    #[test]
    fn off_is_off_with_a_reason() {
        let settings = from(&[("OUTRIGGER_CACHE", "off"), ("HOME", "/users/a")]).unwrap();
        assert_eq!(settings.folder.unwrap_err(), "OUTRIGGER_CACHE is `off`");
    }

    #[test]
    fn the_limit_takes_units() {
        for (text, limit) in [
            ("2G", 2 << 30),
            ("64M", 64 << 20),
            ("2048K", 2 << 20),
            ("1048576", 1 << 20),
        ] {
            assert_eq!(
                from(&[("OUTRIGGER_CACHE_BYTES", text)]).unwrap().limit,
                limit
            );
        }
        assert_eq!(from(&[]).unwrap().limit, DEFAULT_LIMIT);
    }

    #[test]
    fn nonsense_is_an_error_that_names_the_variable() {
        for (name, value) in [
            ("OUTRIGGER_CACHE", "relative/path"),
            ("OUTRIGGER_CACHE", "none"),
            ("OUTRIGGER_CACHE_BYTES", "much"),
            ("OUTRIGGER_CACHE_BYTES", "12"),
            ("OUTRIGGER_CACHE_BYTES", "-1"),
            ("OUTRIGGER_CACHE_BYTES", "1T"),
            ("OUTRIGGER_CACHE_BYTES", "99999999999999G"),
        ] {
            let text = from(&[(name, value)]).unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("{name} is `{value}`; give")),
                "{text}"
            );
        }
    }
}
