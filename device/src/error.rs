//! The error of this crate: what a driver, the loader or the crate itself refused, and for failed work
//! which command failed. It reports, and never decides what to do.

use std::fmt;

use crate::Code;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call. One pointer wide, so that a `Result` of it costs the successful path nothing.
#[derive(thiserror::Error)]
pub struct Error(Box<Inner>);

struct Inner {
    code: Code,
    message: String,
    label: Option<String>,
    submission: Option<u64>,
}

/// Opens the tail of a driver's error text that names the failed command.
const TAIL: &str = " [label=";
const TAIL_SUBMISSION: &str = " submission=";

impl Error {
    /// An error of a code, with a text that says what was wrong and what would be right.
    #[cold]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            label: None,
            submission: None,
        }))
    }

    /// An error from a driver's `last_error` text.
    ///
    /// Where the text ends in `[label=NAME submission=NUMBER]`, as [`failure_text`] writes it, the tail
    /// becomes [`label`](Self::label) and [`submission`](Self::submission), where the number 0 is none.
    #[cold]
    pub(crate) fn from_driver(code: Code, text: &str) -> Self {
        let mut inner = Inner {
            code,
            message: text.to_owned(),
            label: None,
            submission: None,
        };
        if let Some((message, label, submission)) = split_failure_text(text) {
            inner.message = message.to_owned();
            inner.label = (!label.is_empty()).then(|| label.to_owned());
            inner.submission = (submission > 0).then_some(submission);
        }
        Self(Box::new(inner))
    }

    /// The code, as in `base.h`.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What was wrong, and what would be right.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The label of the launch that failed, where submitted work did and the driver said which.
    pub fn label(&self) -> Option<&str> {
        self.0.label.as_deref()
    }

    /// The number of the failed command in its queue, from 1, where the driver said it.
    pub fn submission(&self) -> Option<u64> {
        self.0.submission
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.code)?;
        if !self.0.message.is_empty() {
            write!(f, ": {}", self.0.message)?;
        }
        match (self.label(), self.0.submission) {
            (Some(label), Some(submission)) => write!(f, " (in {label}, submission {submission})"),
            (Some(label), None) => write!(f, " (in {label})"),
            (None, Some(submission)) => write!(f, " (in submission {submission})"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.code)
    }
}

/// The text of failed work: how a driver tells its host, through `last_error`, which command failed.
///
/// Any driver may end the text of a failed `queue_synchronize`, `queue_query`, `event_synchronize` or
/// `event_query` in ` [label=NAME submission=NUMBER]`: the label of the launch (empty if it had none)
/// and the number of the command in its queue, from 1, or 0 where that is not known.
pub(crate) fn failure_text(message: &str, label: &str, submission: u64) -> String {
    format!("{message}{TAIL}{label}{TAIL_SUBMISSION}{submission}]")
}

fn split_failure_text(text: &str) -> Option<(&str, &str, u64)> {
    let (message, tail) = text.strip_suffix(']')?.rsplit_once(TAIL)?;
    let (label, submission) = tail.rsplit_once(TAIL_SUBMISSION)?;
    Some((message, label, submission.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{Error, failure_text};
    use crate::Code;

    #[test]
    fn a_failure_text_names_label_and_submission() {
        let text = failure_text("an index was 7 of 3", "embedding", 42);
        let error = Error::from_driver(Code::OUT_OF_RANGE, &text);
        assert_eq!(error.message(), "an index was 7 of 3");
        assert_eq!(error.label(), Some("embedding"));
        assert_eq!(error.submission(), Some(42));
        assert_eq!(
            error.to_string(),
            "index or address out of range: an index was 7 of 3 (in embedding, submission 42)"
        );
        let unnamed = Error::from_driver(Code::EXECUTION, &failure_text("it broke", "", 1));
        assert_eq!((unnamed.label(), unnamed.submission()), (None, Some(1)));
        let unnumbered = Error::from_driver(Code::EXECUTION, &failure_text("x", "add", 0));
        assert_eq!(
            (unnumbered.label(), unnumbered.submission()),
            (Some("add"), None)
        );
    }

    #[test]
    fn another_text_stays_as_it_is() {
        for text in [
            "",
            "plain",
            "x [label=add submission=]",
            "[label=add submission=-1]",
            "]",
        ] {
            let error = Error::from_driver(Code::EXECUTION, text);
            assert_eq!(error.message(), text);
            assert_eq!(error.submission(), None);
        }
    }
}
