//! The error of this crate: a call that a driver, the loader or the crate itself refused, or work that failed, with
//! the command that did. It reports, and never decides what to do.

use std::fmt;

use crate::Code;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call, or the failure of work. One pointer wide, so that a `Result` of it costs the successful path nothing.
#[derive(thiserror::Error)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    message: String,
    is_outcome: bool,
    label: Option<String>,
    submission: Option<u64>,
}

impl Error {
    /// An error of a code, with a text that says what was wrong and what would be right.
    #[cold]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            is_outcome: false,
            label: None,
            submission: None,
        }))
    }

    /// The failure of work, with the label of its launch (empty: none) and its number in its queue (0: not known).
    #[cold]
    pub(crate) fn of_work(code: Code, message: String, label: String, submission: u64) -> Self {
        Self(Box::new(Inner {
            code,
            message,
            is_outcome: true,
            label: Some(label).filter(|label| !label.is_empty()),
            submission: (submission > 0).then_some(submission),
        }))
    }

    /// The same error for somebody else.
    #[cold]
    pub(crate) fn again(&self) -> Self {
        Self(self.0.clone())
    }

    /// The refusal of a command that was submitted long ago: its work has failed then. A device that is lost tells
    /// nothing of its work (R19).
    #[cold]
    pub(crate) fn into_outcome(mut self) -> Self {
        self.0.is_outcome = self.0.code != Code::DEVICE_LOST;
        self
    }

    /// Whether it is the outcome of work, all of which is over then. Else a call has failed, which says nothing about the
    /// work.
    pub fn is_outcome(&self) -> bool {
        self.0.is_outcome
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

    /// The number of the failed command among those that the driver was given in its queue, from 1, where the driver said
    /// it. Host calls that may fail are not among them.
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

#[cfg(test)]
mod tests {
    use super::Error;
    use crate::Code;

    #[test]
    fn a_failure_of_work_says_where_it_was() {
        let of = |label, submission| {
            Error::of_work(
                Code::OUT_OF_RANGE,
                "an index was 7 of 3".into(),
                label,
                submission,
            )
        };
        assert_eq!(
            of("embedding".to_owned(), 42).to_string(),
            "index or address out of range: an index was 7 of 3 (in embedding, submission 42)"
        );
        let unnamed = of(String::new(), 1);
        assert_eq!((unnamed.label(), unnamed.submission()), (None, Some(1)));
        let unnumbered = of("add".to_owned(), 0);
        assert_eq!(
            (unnumbered.label(), unnumbered.submission()),
            (Some("add"), None)
        );
        assert!(unnumbered.is_outcome());
        assert!(!Error::new(Code::OUT_OF_RANGE, "a call").is_outcome());
    }
}
