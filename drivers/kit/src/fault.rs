//! Failures inside of a driver, of calls and of work, and how those of calls cross the C boundary: as a code, with the text
//! kept for `last_error` of the same thread (R5). Nothing unwinds beyond this module (R6).

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use outrigger_contract as c;

use crate::origin::Origin;

/// A failed call, or work that failed: a code of `base.h`, and a text that says what was wrong and what would be right.
#[derive(Clone)]
pub struct Fault(Box<Parts>);

#[derive(Clone)]
struct Parts {
    code: i32,
    text: String,
    /// The command whose failure it is, where one is known.
    origin: Option<Origin>,
    work: Work,
    is_begun: bool,
    is_elsewhere: bool,
}

/// The word of a fault on the work that was asked or waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nothing: the hardware refused the call, and the work may go on.
    Unknown,
    /// The device is lost, and does nothing any more. Nobody can say whether the work is over (R19).
    Lost,
    /// The work has ended with this failure.
    Failed,
}

/// The result of a fallible function of a driver.
pub type Result<T = (), E = Fault> = std::result::Result<T, E>;

impl Fault {
    /// A failure with a code of its own.
    #[cold]
    pub fn new(code: i32, text: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            text: text.into(),
            origin: None,
            work: match code {
                c::OTR_ERR_DEVICE_LOST => Work::Lost,
                _ => Work::Unknown,
            },
            is_begun: false,
            is_elsewhere: false,
        }))
    }

    /// Work that has ended with a failure, whatever its code.
    #[cold]
    pub fn outcome(code: i32, text: impl Into<String>) -> Self {
        let mut fault = Self::new(code, text);
        fault.0.work = Work::Failed;
        fault
    }

    /// Says that the work that was asked or waited for has ended, since it failed. Without that a fault is one of the
    /// call alone: the hardware refused it, and the work may go on. That of a lost device stays what it is.
    #[must_use]
    pub fn ended(mut self) -> Self {
        if self.0.work == Work::Unknown {
            self.0.work = Work::Failed;
        }
        self
    }

    /// Whether nothing of the work will run any more: it has ended, or the device is lost.
    pub fn is_end(&self) -> bool {
        self.0.work != Work::Unknown
    }

    /// Whether it is the outcome of work. Else the call has failed, which says nothing of the work.
    pub fn is_outcome(&self) -> bool {
        self.0.work == Work::Failed
    }

    /// An argument out of its range (`OTR_ERR_INVALID_ARGUMENT`).
    #[cold]
    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(c::OTR_ERR_INVALID_ARGUMENT, text)
    }

    /// A handle that is none (`OTR_ERR_INVALID_HANDLE`).
    #[cold]
    pub fn handle(text: impl Into<String>) -> Self {
        Self::new(c::OTR_ERR_INVALID_HANDLE, text)
    }

    /// A device that the driver does not have (`OTR_ERR_INVALID_DEVICE`, R7).
    #[cold]
    pub fn no_device(index: u32, count: usize) -> Self {
        Self::new(
            c::OTR_ERR_INVALID_DEVICE,
            format!("there is no device {index}: the driver has {count}, counted from 0"),
        )
    }

    /// A device that is not open (`OTR_ERR_INVALID_DEVICE`, R57).
    #[cold]
    pub fn not_open(index: u32) -> Self {
        Self::new(
            c::OTR_ERR_INVALID_DEVICE,
            format!("device {index} is not open: device_open comes first"),
        )
    }

    /// A feature that is absent (`OTR_ERR_UNSUPPORTED`).
    #[cold]
    pub fn unsupported(text: impl Into<String>) -> Self {
        Self::new(c::OTR_ERR_UNSUPPORTED, text)
    }

    /// Host memory or another host resource that is exhausted (`OTR_ERR_OUT_OF_HOST_MEMORY`, R29).
    #[cold]
    pub fn host_memory(text: impl Into<String>) -> Self {
        Self::new(c::OTR_ERR_OUT_OF_HOST_MEMORY, text)
    }

    /// Says that a part of the command is in the hardware queue. So the command was not refused (R4): it has failed.
    #[must_use]
    pub fn begun(mut self) -> Self {
        self.0.is_begun = true;
        self
    }

    /// Whether a part of the command is in the hardware queue.
    pub fn is_begun(&self) -> bool {
        self.0.is_begun
    }

    /// Says which command it is the failure of, unless somebody has said so before.
    #[must_use]
    pub fn of(mut self, origin: Origin) -> Self {
        self.0.origin.get_or_insert(origin);
        self
    }

    /// Says that the command was on a queue that this work waited for. What is behind such a wait has ended, even where
    /// the other device is lost (R24).
    #[must_use]
    pub fn elsewhere(mut self) -> Self {
        self.0.is_elsewhere = true;
        self.0.work = Work::Failed;
        self
    }

    /// The code.
    pub fn code(&self) -> i32 {
        self.0.code
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The message for the host: the text, and whether the command was on another queue.
    pub fn message(&self) -> String {
        let mut message = self.0.text.clone();
        if self.0.is_elsewhere {
            message.push_str(", on a queue that this work waited for");
        }
        message
    }

    /// The command whose failure it is, where one is known.
    pub fn origin(&self) -> Option<Origin> {
        self.0.origin
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message(), self.code())
    }
}

/// The calls of the hardware that make up one command.
#[derive(Debug, Default)]
pub struct Sequence {
    begun: bool,
}

impl Sequence {
    /// The answer of the next call.
    ///
    /// # Errors
    /// That of the call, of a command that has [begun](Fault::begun) if a call before it was taken.
    #[inline]
    pub fn next(&mut self, answer: Result) -> Result {
        match answer {
            Ok(()) => {
                self.begun = true;
                Ok(())
            }
            Err(fault) => Err(self.refused(fault)),
        }
    }

    /// The fault of a refusal at this place.
    #[cold]
    pub fn refused(&self, fault: Fault) -> Fault {
        if self.begun { fault.begun() } else { fault }
    }
}

/// The answer of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The work has finished.
    Done,
    /// The work has not finished (`OTR_NOT_READY`).
    NotReady,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The table's entry `last_error`: the text of this thread's most recent failed call, never NULL.
pub extern "C" fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Runs the body of an entry and turns its result into a code. [`entries!`](crate::entries) puts every entry in it.
#[inline]
pub fn guard(body: impl FnOnce() -> Result) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => c::OTR_OK,
        Ok(Err(fault)) => keep(fault),
        // A body that panics has broken an invariant of the driver. Its locks are free again.
        Err(payload) => keep(panicked(payload)),
    }
}

/// The fault that a panic is.
#[cold]
pub(crate) fn panicked(payload: Box<dyn std::any::Any + Send>) -> Fault {
    let text = match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => String::new(),
    };
    // The payload is not dropped, because that may panic again.
    std::mem::forget(payload);
    Fault::new(
        c::OTR_ERR_INTERNAL,
        format!("the driver panicked, which is a defect of it: {text}"),
    )
}

#[cold]
fn keep(fault: Fault) -> i32 {
    let code = fault.code();
    let text = CString::new(fault.message().replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no text any more; the code still goes out.
    let _ = LAST.try_with(|last| last.replace(text));
    code
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::{Fault, Result, Sequence, guard, last_error};
    use outrigger_contract as c;

    fn text() -> String {
        // SAFETY: R5: never NULL, and valid until this thread's next call.
        unsafe { CStr::from_ptr(last_error()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn codes_and_texts_cross_the_boundary() {
        assert_eq!(text(), "");
        assert_eq!(guard(|| Ok(())), c::OTR_OK);
        let failing = || -> Result { Err(Fault::argument("a size of\0 0")) };
        assert_eq!(guard(failing), c::OTR_ERR_INVALID_ARGUMENT);
        assert_eq!(text(), "a size of  0");
        let other = std::thread::spawn(text).join().unwrap();
        assert_eq!(other, "", "another thread has its own text");
    }

    #[test]
    fn a_fault_is_an_outcome_only_if_it_says_so() {
        let refused = Fault::host_memory("no room");
        assert!(!refused.is_end() && !refused.is_outcome());
        assert!(refused.ended().is_outcome());
        let lost = || Fault::new(c::OTR_ERR_DEVICE_LOST, "it is lost");
        assert!(lost().is_end() && !lost().ended().is_outcome());
        assert!(lost().elsewhere().is_outcome());
        assert!(Fault::outcome(c::OTR_ERR_DEVICE_LOST, "a host call said so").is_outcome());
    }

    #[test]
    fn a_command_has_begun_when_its_first_call_was_taken() {
        let refused = || Err(Fault::host_memory("no room"));
        let mut calls = Sequence::default();
        assert!(!calls.next(refused()).unwrap_err().is_begun());
        calls.next(Ok(())).unwrap();
        assert!(calls.next(refused()).unwrap_err().is_begun());
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let code = guard(|| -> Result { panic!("no such {}", "thing") });
        std::panic::set_hook(hook);
        assert_eq!(code, c::OTR_ERR_INTERNAL);
        assert!(text().contains("no such thing"), "{}", text());
    }
}
