//! Parses the value of `OUTRIGGER_LAYERS` (`validate,record:FILE,...`, the outermost first), and puts
//! these layers over drivers.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use outrigger_device::{Code, Driver, Error, Result};
use parking_lot::Mutex;

use crate::fault::{FaultSpec, fault};
use crate::layered;
use crate::record::record;
use crate::trace::trace;
use crate::validate::{to_file, to_tracing, validate};

/// The environment variable with the layers.
pub const LAYERS_VARIABLE: &str = "OUTRIGGER_LAYERS";

/// Layers, the outermost first: a call of the host meets the first one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    layers: Vec<Kind>,
    /// As they were written.
    words: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Fault(FaultSpec),
    Record(String),
    Trace(String),
    /// Findings go into the file too, if there is one.
    Validate(Option<String>),
}

impl Stack {
    /// Parses a list of layers, separated by commas. An empty one is none.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the layer that makes no sense.
    pub fn parse(text: &str) -> Result<Self> {
        let words: Vec<_> = text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        let layers = words.iter().map(|word| parse_one(word));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            words,
        })
    }

    /// The layers of [`LAYERS_VARIABLE`].
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the name of the variable.
    pub fn from_environment() -> Result<Self> {
        let refuse = |problem: &str| {
            Error::new(
                Code::INVALID_ARGUMENT,
                format!("{LAYERS_VARIABLE}: {problem}"),
            )
        };
        match std::env::var(LAYERS_VARIABLE) {
            Ok(text) => Self::parse(&text).map_err(|error| refuse(error.message())),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(std::env::VarError::NotUnicode(_)) => Err(refuse("it is not valid UTF-8")),
        }
    }

    /// Whether there is no layer.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Puts the layers over a driver; without layers it stays as it is.
    ///
    /// # Errors
    /// A layer cannot be made, for instance because its file cannot be created; the driver is closed
    /// then.
    pub fn apply(&self, driver: Driver) -> Result<Driver> {
        let mut driver = driver;
        // The innermost first.
        for kind in self.layers.iter().rev() {
            driver = match kind {
                Kind::Fault(spec) => layered(driver, fault(spec))?,
                Kind::Record(pattern) => {
                    let layer = record(&file(pattern), &driver)?;
                    layered(driver, layer)?
                }
                Kind::Trace(pattern) => {
                    let layer = trace(&file(pattern), &driver)?;
                    layered(driver, layer)?
                }
                Kind::Validate(pattern) => {
                    let sink = match pattern {
                        Some(pattern) => to_file(&file(pattern))?,
                        None => to_tracing(),
                    };
                    let layer = validate(&driver, sink)?;
                    layered(driver, layer)?
                }
            };
        }
        Ok(driver)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(","))
    }
}

/// The file of a layer: `%p` stands for the number of the process. The second driver of a process writes
/// into `FILE.2`, and so on.
fn file(pattern: &str) -> PathBuf {
    static USED: Mutex<Option<HashMap<String, u32>>> = Mutex::new(None);
    let name = pattern.replace("%p", &std::process::id().to_string());
    let mut used = USED.lock();
    let count = used
        .get_or_insert_default()
        .entry(name.clone())
        .or_insert(0);
    *count += 1;
    match *count {
        1 => name.into(),
        count => format!("{name}.{count}").into(),
    }
}

fn parse_one(word: &str) -> Result<Kind> {
    let (name, value) = match word.split_once(':') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    match (name, value) {
        ("fault", Some(spec)) => FaultSpec::parse(spec).map(Kind::Fault),
        ("validate", None) => Ok(Kind::Validate(None)),
        ("validate", Some(file)) if !file.is_empty() => Ok(Kind::Validate(Some(file.to_owned()))),
        ("record", Some(file)) if !file.is_empty() => Ok(Kind::Record(file.to_owned())),
        ("trace", Some(file)) if !file.is_empty() => Ok(Kind::Trace(file.to_owned())),
        _ => Err(Error::new(
            Code::INVALID_ARGUMENT,
            format!(
                "`{word}` is not a layer; there are validate, validate:FILE, record:FILE, trace:FILE and fault:SPEC"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::Stack;

    #[test]
    fn layers_are_parsed_in_their_order() {
        let text = "validate, record:a b.rec,fault:seed=1&copy@2=call:EXECUTION,trace:t.json";
        let stack = Stack::parse(text).unwrap();
        assert_eq!(stack.to_string(), text.replace(", ", ","));
        assert!(Stack::parse("").unwrap().is_empty() && Stack::parse(" , ").unwrap().is_empty());
        for (text, what) in [
            ("validates", "`validates` is not a layer"),
            ("record", "`record` is not a layer"),
            ("trace:", "`trace:` is not a layer"),
            ("validate,fault:x", "the fault `x`"),
        ] {
            let error = Stack::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
