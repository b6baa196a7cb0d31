//! The verdict of a test: nothing, or what was wrong and where. The macros `check!`, `equal!` and
//! `fails!` make the messages, so that each message says what was expected and what was found.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;

use outrigger_device::Code;
use serde::{Deserialize, Serialize};

/// The end of a test.
pub type Verdict<T = ()> = Result<T, Failure>;

/// The reason why a test failed. Any error becomes one by `?`, which also notes the place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The text: what was expected and what was found.
    pub message: String,
    /// File and line of the suite.
    pub place: String,
    /// Whether the device was lost, after which a driver owes nothing more to this process.
    pub device_lost: bool,
}

impl Failure {
    /// A failure at the place of the caller.
    #[track_caller]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            place: place(Location::caller()),
            device_lost: false,
        }
    }

    /// Says in front what was tried.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// File and line, the file from the root of the repository on.
pub(crate) fn place(location: &Location<'_>) -> String {
    let file = location.file();
    let start = file.rfind("tests/conformance/src/").unwrap_or(0);
    format!("{}:{}", &file[start..], location.line())
}

impl<E: StdError + 'static> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        let device = (&error as &dyn Any).downcast_ref::<outrigger_device::Error>();
        let mut failure = match device {
            Some(error) => Self::new(format!("a call failed: {:?}: {error}", error.code())),
            None => Self::new(error.to_string()),
        };
        let lost = |error: &outrigger_device::Error| {
            error.code() == Code::DEVICE_LOST && !error.is_outcome()
        };
        failure.device_lost = device.is_some_and(lost);
        failure
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {})", self.message, self.place)
    }
}

/// The answer of a call as one code: of raw calls (`i32`), of results of the device crate, and of
/// queries, whose `false` is NOT_READY.
pub(crate) trait Answer {
    /// The code of the answer.
    fn code(&self) -> Code;

    /// The text of the driver on a failure, where the answer holds it.
    fn text(&self) -> String {
        String::new()
    }
}

impl Answer for i32 {
    fn code(&self) -> Code {
        Code(*self)
    }
}

impl Answer for Code {
    fn code(&self) -> Code {
        *self
    }
}

impl<T> Answer for Result<T, outrigger_device::Error> {
    fn code(&self) -> Code {
        self.as_ref()
            .map_or_else(outrigger_device::Error::code, |_| Code::OK)
    }

    fn text(&self) -> String {
        self.as_ref()
            .map_or_else(|error| format!(": {}", error.message()), |_| String::new())
    }
}

/// Fails the test unless a condition holds: `check!(condition, "what should be so", arguments...)`.
macro_rules! check {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err($crate::Failure::new(format!(
                "{}: expected `{}`", format_args!($($what)+), stringify!($condition)
            )));
        }
    };
}

/// Fails the test unless both are equal: `equal!(found, expected, "what it is", arguments...)`.
macro_rules! equal {
    ($found:expr, $expected:expr, $($what:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                if !(*found == *expected) {
                    return Err($crate::Failure::new($crate::verdict::difference(
                        format_args!($($what)+), expected, found,
                    )));
                }
            }
        }
    };
}

/// Fails the test unless a call answered with a code: `answers!(call, Code::X, "what was called")`. The
/// call may be a raw one (`i32`) or a result of the device crate.
macro_rules! answers {
    ($call:expr, $code:expr, $($what:tt)+) => {{
        let answer = &$call;
        let found = $crate::verdict::Answer::code(answer);
        let expected: ::outrigger_device::Code = $code;
        if found != expected {
            let mut failure = $crate::Failure::new(format!(
                "{}: expected the answer {expected:?} ({expected}), found {found:?} ({found}){}",
                format_args!($($what)+),
                $crate::verdict::Answer::text(answer),
            ));
            failure.device_lost = found == ::outrigger_device::Code::DEVICE_LOST;
            return Err(failure);
        }
    }};
}

pub(crate) use {answers, check, equal};

/// Says how two values differ; of long ones only the first difference.
pub(crate) fn difference<A: fmt::Debug + ?Sized, B: fmt::Debug + ?Sized>(
    what: fmt::Arguments<'_>,
    expected: &A,
    found: &B,
) -> String {
    const LONG: usize = 400;
    let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
    if expected.len().max(found.len()) <= LONG {
        return format!("{what}: expected {expected}, found {found}");
    }
    // Lists are the only long values: their elements are compared one by one.
    let (left, right) = (elements(&expected), elements(&found));
    let at = left.iter().zip(&right).position(|(a, b)| a != b);
    match at {
        Some(at) => {
            let differing = left.iter().zip(&right).filter(|(a, b)| a != b).count();
            format!(
                "{what}: element {at} of {}: expected {}, found {} ({differing} elements differ)",
                left.len(),
                left[at],
                right[at]
            )
        }
        None => format!(
            "{what}: expected {} elements, found {}",
            left.len(),
            right.len()
        ),
    }
}

fn elements(list: &str) -> Vec<&str> {
    list.trim_matches(['[', ']']).split(", ").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(found: &[u8], expected: &[u8]) -> Verdict {
        equal!(found, expected, "the bytes");
        Ok(())
    }

    #[test]
    fn a_long_difference_is_named_by_its_first_element() {
        let mut found = [7u8; 4096];
        let expected = found;
        assert!(failing(&found, &expected).is_ok());
        found[1000] = 9;
        found[1001] = 9;
        let failure = failing(&found, &expected).unwrap_err();
        assert_eq!(
            failure.message,
            "the bytes: element 1000 of 4096: expected 7, found 9 (2 elements differ)"
        );
        assert!(
            failure
                .place
                .starts_with("tests/conformance/src/verdict.rs:"),
            "{failure}"
        );
    }

    #[test]
    fn an_error_of_the_device_becomes_a_failure_at_the_place_of_the_question_mark() {
        fn lost() -> Verdict {
            Err(outrigger_device::Error::new(Code::DEVICE_LOST, "gone"))?;
            Ok(())
        }
        let failure = lost().unwrap_err();
        assert!(failure.device_lost);
        assert!(
            failure
                .place
                .starts_with("tests/conformance/src/verdict.rs:"),
            "{failure}"
        );
    }
}
