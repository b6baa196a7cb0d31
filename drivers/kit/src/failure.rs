//! Failures of submitted work (R20, R23): made once, where the work failed, and handed on by queues and events.

use outrigger_contract as c;

use crate::Fault;
use crate::origin::{Label, Origin};

/// Work that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    fault: Fault,
    queue: u64,
}

impl Failure {
    /// A failure from the answer of a host call, or from the reason why a command could not be started.
    #[cold]
    pub(crate) fn new(fault: Fault, queue: u64) -> Self {
        Self { fault, queue }
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
        Some(Self::new(fault.of(Origin::new(Label::NONE, number)), queue))
    }

    /// The code, which host calls behind the failure get as `upstream`.
    pub fn code(&self) -> i32 {
        self.fault.code()
    }

    /// The failure as that of a call on queue `here`.
    #[cold]
    pub(crate) fn fault(&self, here: u64) -> Fault {
        let fault = self.fault.clone().ended();
        if self.queue == here {
            fault
        } else {
            fault.elsewhere()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Label, Origin};
    use crate::Fault;
    use outrigger_contract as c;

    #[test]
    fn texts_name_label_and_number() {
        // SAFETY: a constant.
        let label = unsafe { Label::new(c"mm".as_ptr()) };
        let fault = Fault::new(11, "it failed");
        let failure = Failure::new(fault.clone().of(Origin::new(label, 7)), 1);
        let message = |here| failure.fault(here).message();
        assert_eq!(message(1), "it failed [label=mm submission=7]");
        let elsewhere = "it failed, on a queue that this work waited for [label=mm submission=7]";
        assert_eq!(message(2), elsewhere);
        let again = Failure::new(failure.fault(2), 2);
        assert_eq!(again.fault(3).message(), elsewhere);
        assert_eq!(Failure::new(fault, 1).fault(1).message(), "it failed");
    }

    #[test]
    fn what_host_calls_answer() {
        assert!(Failure::of_host_call(c::OTR_OK, 1, 1).is_none());
        let code = |answer| Failure::of_host_call(answer, 1, 1).unwrap().code();
        assert_eq!(code(c::OTR_NOT_READY), c::OTR_ERR_EXECUTION);
        assert_eq!((code(-7), code(1234)), (-7, 1234));
    }
}
