//! The error of the runtime: what failed, and where it applies the operator, stream and submission.

use std::fmt;

use outrigger_device::Code;

/// The result of a call of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed call. Cheap to return: one pointer.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    code: Code,
    message: String,
    operator: Option<String>,
    stream: Option<u64>,
    submission: Option<u64>,
}

impl Error {
    /// An error of a code, with a text that names what was wrong and what would be right.
    #[cold]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            operator: None,
            stream: None,
            submission: None,
        }))
    }

    /// The code, as in `base.h`.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What was wrong, and what would be right.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operator that failed, where one did.
    pub fn operator(&self) -> Option<&str> {
        self.0.operator.as_deref()
    }

    /// The id of the stream whose work failed, where there is one.
    pub fn stream(&self) -> Option<u64> {
        self.0.stream
    }

    /// The number of the failed command within its stream, from 1, where it is known.
    pub fn submission(&self) -> Option<u64> {
        self.0.submission
    }

    /// Says that the failure is of the stream `id`.
    #[must_use]
    pub fn on_stream(mut self, id: u64) -> Self {
        self.0.stream = Some(id);
        self
    }

    /// Says that the failure is of the operator `name`.
    #[must_use]
    pub fn in_operator(mut self, name: impl Into<String>) -> Self {
        self.0.operator = Some(name.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operator) = self.operator() {
            write!(f, "{operator}: ")?;
        }
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}

impl From<outrigger_device::Error> for Error {
    #[cold]
    fn from(error: outrigger_device::Error) -> Self {
        Self(Box::new(Inner {
            code: error.code(),
            message: error.message().to_owned(),
            operator: error.label().map(str::to_owned),
            stream: None,
            submission: error.submission(),
        }))
    }
}
