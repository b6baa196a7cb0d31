//! The error of a call that reached a device: what failed, and where it applies the operator, stream and submission.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};

use crate::error::PlanError;
use crate::registry::OperatorId;

/// The result of a call.
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

/// Why there is no plan for a call, as the error of the call.
#[cold]
pub fn refused(operator: OperatorId, error: PlanError) -> Error {
    let (code, reason) = match error {
        PlanError::Unsupported(reason) => (Code::UNSUPPORTED, reason),
        PlanError::Invalid(reason) => (Code::INVALID_ARGUMENT, reason),
    };
    Error::new(code, reason).in_operator(operator.name().to_string_lossy())
}

/// The first operator of a stream that failed as a host call since the last report: to a driver all host calls
/// look alike.
#[derive(Debug)]
pub struct FailedOperator(Mutex<Option<Cow<'static, CStr>>>);

impl Default for FailedOperator {
    fn default() -> Self {
        Self(Mutex::new(Rank::FailedOperator, None))
    }
}

impl FailedOperator {
    /// Notes an operator that has failed, unless one was noted before.
    pub fn set(&self, name: Cow<'static, CStr>) {
        self.0.lock().get_or_insert(name);
    }

    /// The failure was reported.
    pub fn clear(&self) {
        self.0.lock().take();
    }

    /// A failure that the stream's queue reports, with the operator that was noted.
    #[cold]
    pub fn explain(&self, error: outrigger_device::Error) -> Error {
        let error = Error::from(error);
        match &*self.0.lock() {
            Some(name) => error.in_operator(name.to_string_lossy()),
            None => error,
        }
    }
}
