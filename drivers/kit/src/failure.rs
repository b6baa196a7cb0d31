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
            let text = "a host call answered OTR_NOT_READY, which is no failure".to_owned();
            (c::OTR_ERR_EXECUTION, text)
        } else {
            (code, format!("a host call answered {code}"))
        };
        let fault = Fault::outcome(code, text);
        Some(Self::new(fault.of(Origin::new(Label::NONE, number)), queue))
    }

    /// The code, which host calls behind the failure get as `upstream`.
    pub fn code(&self) -> i32 {
        self.fault.code()
    }

    /// The failure as the outcome of queue `here`. That of a lost device of its own is none (R19).
    #[cold]
    pub(crate) fn fault(&self, here: u64) -> Fault {
        let fault = self.fault.clone();
        if self.queue == here {
            fault.ended()
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
    fn a_failure_keeps_its_place_wherever_it_is_told() {
        // SAFETY: a constant.
        let label = unsafe { Label::new(c"mm".as_ptr()) };
        let fault = Fault::new(11, "it failed");
        let failure = Failure::new(fault.clone().of(Origin::new(label, 7)), 1);
        let place = |fault: Fault| {
            fault
                .origin()
                .map(|origin| (origin.label(), origin.number()))
        };
        let message = |here| failure.fault(here).message();
        assert_eq!(message(1), "it failed");
        let elsewhere = "it failed, on a queue that this work waited for";
        assert_eq!(message(2), elsewhere);
        let again = Failure::new(failure.fault(2), 2);
        assert_eq!(again.fault(3).message(), elsewhere);
        assert_eq!(place(again.fault(3)), Some(("mm".into(), 7)));
        assert_eq!(place(Failure::new(fault, 1).fault(1)), None);
    }

    #[test]
    fn of_a_lost_device_only_other_queues_have_an_outcome() {
        let lost = Failure::new(Fault::new(c::OTR_ERR_DEVICE_LOST, "it is lost"), 1);
        assert!(!lost.fault(1).is_outcome() && lost.fault(2).is_outcome());
    }

    #[test]
    fn what_host_calls_answer() {
        assert!(Failure::of_host_call(c::OTR_OK, 1, 1).is_none());
        let code = |answer| Failure::of_host_call(answer, 1, 1).unwrap().code();
        assert_eq!(code(c::OTR_NOT_READY), c::OTR_ERR_EXECUTION);
        assert_eq!((code(-7), code(1234)), (-7, 1234));
        let lost = Failure::of_host_call(c::OTR_ERR_DEVICE_LOST, 1, 1).unwrap();
        assert!(
            lost.fault(1).is_outcome(),
            "a host call may answer any code"
        );
    }
}
