//! Failures inside of the driver, and how they cross the C boundary: that of a call as a code, with the text kept for
//! `last_error` of the same thread, and that of work as an outcome (R19). Nothing unwinds beyond this module.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Code, sys};

/// A failed call, or work that failed.
#[derive(Debug)]
pub(super) struct Fault(Box<Parts>);

#[derive(Debug)]
struct Parts {
    code: Code,
    text: String,
    /// Of work: the label of its launch, and its number in its queue; 0 if that is not known.
    work: Option<(String, u64)>,
}

impl Fault {
    #[cold]
    pub(super) fn new(code: Code, text: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            text: text.into(),
            work: None,
        }))
    }

    /// Work that failed.
    #[cold]
    pub(super) fn of_work(
        code: Code,
        text: impl Into<String>,
        label: String,
        submission: u64,
    ) -> Self {
        let mut fault = Self::new(code, text);
        fault.0.work = Some((label, submission));
        fault
    }

    #[cold]
    pub(super) fn argument(text: impl Into<String>) -> Self {
        Self::new(Code::INVALID_ARGUMENT, text)
    }

    #[cfg(test)]
    pub(super) fn code(&self) -> Code {
        self.0.code
    }

    /// A NULL where an object or an output was due.
    #[cold]
    pub(super) fn null(what: &str, code: Code) -> Self {
        Self::new(code, format!("{what} is NULL"))
    }
}

/// The parameters of a call, which are not NULL and of version 1.0 or later (R1).
///
/// # Safety
/// `given` is NULL, or to a struct that begins with its size.
#[inline]
pub(super) unsafe fn params<'a, T>(given: *const T, what: &str) -> Result<&'a T, Fault> {
    // SAFETY: this function's contract.
    match unsafe { given.cast::<usize>().as_ref() } {
        // SAFETY: not NULL, and as large as the type.
        Some(size) if *size >= size_of::<T>() => Ok(unsafe { &*given }),
        size => Err(no_params(size.copied(), size_of::<T>(), what)),
    }
}

#[cold]
fn no_params(size: Option<usize>, least: usize, what: &str) -> Fault {
    match size {
        None => Fault::null(what, Code::INVALID_ARGUMENT),
        Some(size) => Fault::argument(format!("{what}: {size} bytes; version 1.0 has {least}")),
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
pub(super) fn done(body: impl FnOnce() -> Result<(), Fault>) -> i32 {
    // A body that panics has broken an invariant of this driver; the locks it held are released, and
    // the caller is told.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::OK.0,
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

/// Runs the body of an entry that asks or waits for work, and writes the outcome: the code that it gives, or a failure of
/// work.
///
/// # Safety
/// `outcome` is NULL, or to a struct that is not smaller than that of version 1.0.
#[inline]
pub(super) unsafe fn tell(
    outcome: *mut sys::otr_outcome,
    body: impl FnOnce() -> Result<Code, Fault>,
) -> i32 {
    done(|| {
        if outcome.is_null() {
            return Err(Fault::null("the outcome", Code::INVALID_ARGUMENT));
        }
        match body() {
            // SAFETY: not NULL, so at least the struct of version 1.0.
            Ok(code) => unsafe { (*outcome).code = code.0 },
            // SAFETY: as above.
            Err(fault) => unsafe { write(outcome, fault)? },
        }
        Ok(())
    })
}

/// Writes a failure of work. That of a call is given back.
///
/// # Safety
/// The outcome is not smaller than that of version 1.0.
#[cold]
unsafe fn write(outcome: *mut sys::otr_outcome, fault: Fault) -> Result<(), Fault> {
    let Some((label, submission)) = &fault.0.work else {
        return Err(fault);
    };
    // SAFETY: this function's contract.
    unsafe {
        (*outcome).code = fault.0.code.0;
        (*outcome).submission = *submission;
        put(&raw mut (*outcome).label, label);
        put(&raw mut (*outcome).message, &fault.0.text);
    }
    Ok(())
}

/// Writes a text with a NUL behind it, cut in front of a character where it is too long.
///
/// # Safety
/// The field is writable.
unsafe fn put<const SIZE: usize>(field: *mut [c_char; SIZE], text: &str) {
    let mut end = text.len().min(SIZE - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: this function's contract; `end` is below the size.
    unsafe {
        let field = field.cast::<u8>();
        field.copy_from_nonoverlapping(text.as_ptr(), end);
        field.add(end).write(0);
    }
}

#[cold]
fn keep(fault: Fault) -> i32 {
    let Parts { code, text, .. } = *fault.0;
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no text any more; the code still goes out.
    let _ = LAST.try_with(|last| last.replace(text));
    code.0
}
