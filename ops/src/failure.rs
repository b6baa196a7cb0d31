//! The error of a call that reached a device: what failed, and the operator, the stream and the submission if known.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

use arrayvec::ArrayVec;
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
    /// An error with a code, and with a text that says what was wrong and what would be right.
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

    /// The code, one of `base.h`.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The text: what was wrong, and what would be right.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operator that failed, if it is known.
    pub fn operator(&self) -> Option<&str> {
        self.0.operator.as_deref()
    }

    /// The id of the stream whose work failed, if it is known.
    pub fn stream(&self) -> Option<u64> {
        self.0.stream
    }

    /// The number of the failed command within its stream, from 1, if it is known.
    pub fn submission(&self) -> Option<u64> {
        self.0.submission
    }

    /// Notes the stream that failed, by its id.
    #[must_use]
    pub fn on_stream(mut self, id: u64) -> Self {
        self.0.stream = Some(id);
        self
    }

    /// Notes the operator that failed, by its name.
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

/// The error of a call for which there is no plan.
#[cold]
pub fn refused(operator: OperatorId, error: PlanError) -> Error {
    let (code, reason) = match error {
        PlanError::Unsupported(reason) => (Code::UNSUPPORTED, reason),
        PlanError::Invalid(reason) => (Code::INVALID_ARGUMENT, reason),
    };
    Error::new(code, reason).in_operator(operator.name().to_string_lossy())
}

/// The first operator of a stream that failed as a host call since the last report. It is noted here because a driver
/// cannot tell one host call from another.
#[derive(Debug)]
pub struct FailedOperator(Mutex<Option<Cow<'static, CStr>>>);

impl Default for FailedOperator {
    fn default() -> Self {
        Self(Mutex::new(Rank::FailedOperator, None))
    }
}

impl FailedOperator {
    /// Notes an operator that failed, unless one is noted already.
    pub fn set(&self, name: Cow<'static, CStr>) {
        self.0.lock().get_or_insert(name);
    }

    /// Clears the note after the failure was reported.
    pub fn clear(&self) {
        self.0.lock().take();
    }

    /// Turns a failure that the stream's queue reports into an error that names the noted operator, and says why it
    /// failed if the kernel did. A call that was refused has nothing to do with either.
    #[cold]
    pub fn explain(&self, error: outrigger_device::Error) -> Error {
        if !error.is_outcome() {
            return error.into();
        }
        let mut error = Error::from(error);
        if let Some(name) = &*self.0.lock() {
            error = error.in_operator(name.to_string_lossy());
        }
        if let Some(operator) = &error.0.operator
            && let Some(text) = take_text(error.code(), operator)
        {
            error.0.message = text;
        }
        error
    }
}

/// The reason why a host kernel failed. The kernel's code alone reaches the stream, so the text is kept here until the
/// failure is reported.
#[derive(Clone, PartialEq, Eq)]
struct Reason {
    code: Code,
    /// The operators that the kernel is of.
    operators: Vec<&'static CStr>,
    text: String,
}

/// The most that are kept. A failure that nobody asks for leaves one behind.
const REASONS: usize = 16;

static REASONS_KEPT: Mutex<ArrayVec<Reason, REASONS>> =
    Mutex::new(Rank::Reasons, ArrayVec::new_const());

/// The code of a host kernel that fails, whose text is kept.
#[cold]
pub(crate) fn failed_with(code: Code, operators: &[&'static CStr], text: String) -> Code {
    let new = Reason {
        code,
        operators: operators.to_vec(),
        text,
    };
    let mut all = REASONS_KEPT.lock();
    // Threads of a kernel may find the same.
    if !all.contains(&new) {
        if all.is_full() {
            all.remove(0);
        }
        all.push(new);
    }
    code
}

/// The code of a kernel that found an index out of bounds. The words are those of PyTorch.
#[cold]
pub(crate) fn out_of_bounds(
    operators: &[&'static CStr],
    index: i64,
    dimension: usize,
    size: i64,
) -> Code {
    let text = format!("index {index} is out of bounds for dimension {dimension} with size {size}");
    failed_with(Code::OUT_OF_RANGE, operators, text)
}

/// The reason why an operator failed; `None` if nobody said, or several failures may be meant.
fn take_text(code: Code, operator: &str) -> Option<String> {
    let is_mine = |one: &Reason| {
        let mut names = one.operators.iter();
        one.code == code && names.any(|name| name.to_bytes() == operator.as_bytes())
    };
    let mut all = REASONS_KEPT.lock();
    let (mine, others) = all.drain(..).partition::<Vec<_>, _>(is_mine);
    all.extend(others);
    match <[Reason; 1]>::try_from(mine) {
        Ok([one]) => Some(one.text),
        Err(_) => None,
    }
}
