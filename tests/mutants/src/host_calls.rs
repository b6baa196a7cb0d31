//! Defects of host calls: whether, when, where and with which arguments they are called, and what
//! becomes of their outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_device::{Code, NO_OUTCOME, sys};

use crate::calls::{around, callable};
use crate::mutant::{mutants, types::*};

mutants! {
    /// Host calls are called twice.
    host_call_twice [R27] (()) {
        host_call(self, next, queue, call) {
            around(next, queue, call, |original, upstream| {
                original(upstream);
                original(upstream)
            })
        }
    }

    /// After a failure host calls are not called.
    host_call_lost_after_failure [R20 R27] (()) {
        host_call(self, next, queue, call) {
            around(next, queue, call, |original, upstream| match upstream {
                0 => original(upstream),
                failed => failed,
            })
        }
    }

    /// Host calls are told that all went well, whatever happened.
    host_call_upstream_lost [R20] (()) {
        host_call(self, next, queue, call) {
            around(next, queue, call, |original, _| original(Code::OK.0))
        }
    }

    /// The answer of a host call is not looked at.
    host_call_outcome_lost [R27] (()) {
        host_call(self, next, queue, call) {
            around(next, queue, call, |original, upstream| {
                original(upstream);
                upstream
            })
        }
    }

    /// A host call that answers OTR_NOT_READY counts as a success.
    host_call_not_ready_taken [R27] (()) {
        host_call(self, next, queue, call) {
            around(next, queue, call, |original, upstream| match original(upstream) {
                code if code == Code::NOT_READY.0 => upstream,
                code => code,
            })
        }
    }

    /// A host call that cannot fail fails all the same.
    host_call_flag_ignored [R27] (()) {
        host_call(self, next, queue, call) {
            let flags = call.flags & !sys::OTR_HOST_CALL_CANNOT_FAIL;
            next.host_call(queue, &sys::otr_host_call { flags, ..*call })
        }
    }

    /// Flags of host calls are not looked at.
    host_call_flags_unchecked [R7] (()) {
        host_call(self, next, queue, call) {
            let flags = call.flags & sys::OTR_HOST_CALL_CANNOT_FAIL;
            next.host_call(queue, &sys::otr_host_call { flags, ..*call })
        }
    }

    /// A host call that cannot fail makes its queue forget a failure.
    host_call_flag_hides_failures [R20 R27] (()) {
        host_call(self, next, queue, call) {
            if call.flags & sys::OTR_HOST_CALL_CANNOT_FAIL == 0 {
                return next.host_call(queue, call);
            }
            around(next, queue, call, |original, _| original(Code::OK.0))
        }
    }

    /// Every failure of a host call is reported as OTR_ERR_EXECUTION.
    host_call_code_lost [R27] (()) {
        host_call(self, next, queue, call) {
            around(next, queue, call, |original, upstream| match original(upstream) {
                0 => 0,
                failed if failed == upstream => failed,
                _ => Code::EXECUTION.0,
            })
        }
    }

    /// A host call on an idle queue is called inside of its submission.
    host_call_in_submission [R17 R27] (()) {
        host_call(self, next, queue, call) {
            let mut told = NO_OUTCOME;
            if next.queue_query(queue, &mut told) != Code::OK.0 || told.code != Code::OK.0 {
                return next.host_call(queue, call);
            }
            let Some(original) = callable(call) else {
                return next.host_call(queue, call);
            };
            let code = original(Code::OK.0);
            // The answer of the function is the outcome of the call, as in a driver without a defect.
            let outcome = move |upstream| if upstream == 0 { code } else { upstream };
            crate::calls::submit(next, queue, call.flags, outcome)
        }
    }

    /// A host call is lost where two threads submit one at the same time.
    host_call_lost_in_a_race [R8 R27] (AtomicBool) {
        host_call(self, next, queue, call) {
            if self.state.swap(true, Ordering::AcqRel) {
                return Code::OK.0;
            }
            // Widens the window, so that the race is met within a test.
            std::thread::sleep(Duration::from_micros(20));
            let code = next.host_call(queue, call);
            self.state.store(false, Ordering::Release);
            code
        }
    }
}
