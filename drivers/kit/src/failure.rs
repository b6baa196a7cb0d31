//! Failures of submitted work (R20, R23): made once, where the work failed, and handed on by queues and events.

use std::ffi::{CStr, c_char};
use std::fmt;

use outrigger_contract as c;

use crate::Fault;

/// The label of a launch, for texts.
#[derive(Clone, Copy)]
pub struct Label(*const c_char);

// SAFETY: the text is a constant of the process, as `otr_launch` has it.
unsafe impl Send for Label {}
// SAFETY: as above.
unsafe impl Sync for Label {}

impl Label {
    /// No label.
    pub const NONE: Self = Self(std::ptr::null());

    /// The label of a launch.
    ///
    /// # Safety
    /// NULL, or NUL-terminated and alive as long as the process.
    pub unsafe fn new(label: *const c_char) -> Self {
        Self(label)
    }

    fn text(&self) -> std::borrow::Cow<'_, str> {
        if self.0.is_null() {
            return "".into();
        }
        // SAFETY: not NULL, so what `new` was promised.
        unsafe { CStr::from_ptr(self.0) }.to_string_lossy()
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

/// Work that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    fault: Fault,
    label: Label,
    /// The number of the command in its queue, from 1; 0 where nobody knows which one it was.
    number: u64,
    queue: u64,
}

impl Failure {
    /// What a host call answered, or why a command could not be started.
    #[cold]
    pub(crate) fn new(fault: Fault, label: Label, number: u64, queue: u64) -> Self {
        Self {
            fault,
            label,
            number,
            queue,
        }
    }

    /// The outcome of a host call; `None` if it succeeded.
    pub(crate) fn of_host_call(code: i32, number: u64, queue: u64) -> Option<Self> {
        if code == c::OTR_OK {
            return None;
        }
        let (code, text) = if code == c::OTR_NOT_READY {
            let text = "a host call answered OTR_NOT_READY, which is no outcome".to_owned();
            (c::OTR_ERR_EXECUTION, text)
        } else {
            (code, format!("a host call answered {code}"))
        };
        let fault = Fault::new(code, text);
        Some(Self::new(fault, Label::NONE, number, queue))
    }

    /// Its code, which host calls behind it get as `upstream`.
    pub fn code(&self) -> i32 {
        self.fault.code()
    }

    /// The failure as that of a call on queue `here`. The end of the text is what R5 says.
    #[cold]
    pub(crate) fn fault(&self, here: u64) -> Fault {
        let mut text = self.fault.text().to_owned();
        if self.queue != here {
            text.push_str(", on a queue that this work waited for");
        }
        if self.number > 0 {
            let (label, number) = (self.label.text(), self.number);
            text.push_str(&format!(" [label={label} submission={number}]"));
        }
        Fault::new(self.code(), text).ended()
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Label};
    use crate::Fault;
    use outrigger_contract as c;

    #[test]
    fn texts_name_label_and_number() {
        // SAFETY: a constant.
        let label = unsafe { Label::new(c"mm".as_ptr()) };
        let failure = Failure::new(Fault::new(11, "it failed"), label, 7, 1);
        assert_eq!(failure.fault(1).text(), "it failed [label=mm submission=7]");
        let elsewhere = failure.fault(2);
        assert!(elsewhere.text().contains("waited for"), "{elsewhere:?}");
        assert!(elsewhere.text().ends_with("submission=7]"));
        let unknown = Failure::new(Fault::new(11, "it failed"), Label::NONE, 0, 1);
        assert_eq!(unknown.fault(1).text(), "it failed");
    }

    #[test]
    fn what_host_calls_answer() {
        assert!(Failure::of_host_call(c::OTR_OK, 1, 1).is_none());
        let code = |answer| Failure::of_host_call(answer, 1, 1).unwrap().code();
        assert_eq!(code(c::OTR_NOT_READY), c::OTR_ERR_EXECUTION);
        assert_eq!((code(-7), code(1234)), (-7, 1234));
    }
}
