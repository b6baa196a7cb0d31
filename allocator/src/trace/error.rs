//! Errors of traces, and their texts.
//!
//! An error must never lose the line number: without it, it is useless in a file of a million lines.

use std::fmt;
use std::io;

/// A trace that cannot be read: the line, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// The line, from 1.
    pub line: u64,
    /// The problem of the line.
    pub problem: Problem,
}

/// The problem of a line of a trace.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The line begins with no known letter.
    UnknownOperation(String),
    /// A field is not there.
    Missing {
        /// The field.
        field: &'static str,
        /// The form of such a line.
        form: &'static str,
    },
    /// A field is no number.
    NoNumber {
        /// The field.
        field: &'static str,
        /// The text in the place of the number.
        text: String,
        /// The form of such a line.
        form: &'static str,
    },
    /// A number does not fit 64 bits.
    TooLarge {
        /// The field.
        field: &'static str,
        /// The text of the number.
        text: String,
    },
    /// Something follows the last field.
    Trailing {
        /// The text behind the last field.
        text: String,
        /// The form of such a line.
        form: &'static str,
    },
    /// An allocation with an id that was used before.
    Duplicate(u64),
    /// A free or a use of an allocation that no line before made.
    Unknown(u64),
    /// A free of an allocation that was freed before.
    FreedTwice(u64),
    /// A use of an allocation that was freed before.
    UsedAfterFree(u64),
    /// A label that is not UTF-8.
    NotText,
    /// A line with more than this number of bytes.
    TooLong(usize),
    /// The header names another version of the format.
    Version(String),
    /// The input could not be read on.
    Io(io::Error),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOperation(text) => write!(
                f,
                "{text:?} is not an operation: a line is `a <id> <bytes> <stream>`, `f <id>`, \
                 `r <id> <stream>`, `m <label>`, or a comment that begins with `#`"
            ),
            Self::Missing { field, form } => write!(f, "{field} is missing: the line is `{form}`"),
            Self::NoNumber { field, text, form } => write!(
                f,
                "{text:?} is in the place of {field}: the line is `{form}`, with one space \
                 between whole decimal numbers"
            ),
            Self::TooLarge { field, text } => {
                write!(f, "{field} is {text}, but {} is the most", u64::MAX)
            }
            Self::Trailing { text, form } => {
                write!(f, "{text:?} follows the last number: the line is `{form}`")
            }
            Self::Duplicate(id) => {
                write!(
                    f,
                    "there was an allocation {id} before: an id is used only once"
                )
            }
            Self::Unknown(id) => write!(f, "no line before this one allocates {id}"),
            Self::FreedTwice(id) => write!(f, "allocation {id} was freed before"),
            Self::UsedAfterFree(id) => write!(
                f,
                "allocation {id} was freed before: a use of another stream is announced before \
                 the free"
            ),
            Self::NotText => f.write_str("the label is not UTF-8"),
            Self::TooLong(most) => write!(
                f,
                "it has more than {most} bytes: is this a trace, and is it decompressed?"
            ),
            Self::Version(header) => write!(
                f,
                "the header says {header:?}; this reader knows `alloctrace v1`"
            ),
            Self::Io(error) => write!(f, "cannot be read: {error}"),
        }
    }
}
