//! Failures inside of the driver, and how they cross the C boundary: as a code, with the text kept for
//! `last_error` of the same thread. Nothing unwinds beyond this module.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Code;

/// A failed call.
#[derive(Debug)]
pub(super) struct Fault(Box<(Code, String)>);

impl Fault {
    #[cold]
    pub(super) fn new(code: Code, text: impl Into<String>) -> Self {
        Self(Box::new((code, text.into())))
    }

    #[cold]
    pub(super) fn argument(text: impl Into<String>) -> Self {
        Self::new(Code::INVALID_ARGUMENT, text)
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> Code {
        self.0.0
    }

    /// A NULL where an object or an output was due.
    #[cold]
    pub(super) fn null(what: &str, code: Code) -> Self {
        Self::new(code, format!("{what} is NULL"))
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The text of this thread's most recent failed call, never NULL.
pub(super) extern "C" fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Runs the body of an entry and turns its result into a code.
#[inline]
pub(super) fn answer(body: impl FnOnce() -> Result<Code, Fault>) -> i32 {
    // A body that panics has broken an invariant of this driver; the locks it held are released, and
    // the caller is told.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code.0,
        Ok(Err(fault)) => keep(fault),
        Err(payload) => {
            std::mem::forget(payload);
            keep(Fault::new(
                Code::INTERNAL,
                "the host driver panicked: a defect of Outrigger",
            ))
        }
    }
}

/// The same for a body without an answer other than success.
#[inline]
pub(super) fn done(body: impl FnOnce() -> Result<(), Fault>) -> i32 {
    answer(|| body().map(|()| Code::OK))
}

#[cold]
fn keep(fault: Fault) -> i32 {
    let (code, text) = *fault.0;
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no text any more; the code still goes out.
    let _ = LAST.try_with(|last| last.replace(text));
    code.0
}
