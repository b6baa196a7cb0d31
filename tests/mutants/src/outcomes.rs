//! Defects of outcomes: what is written, where, and what is said by an answer instead.

use outrigger_device::{Code, NO_OUTCOME, sys};
use outrigger_layers::fail;

use crate::calls::is_failure;
use crate::mutant::{mutants, types::*};

mutants! {
    /// The failure of work is the answer of the call that waits for it.
    failure_as_an_answer [R19] (()) {
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            if code == Code::OK.0 && is_failure((*outcome).code) {
                return fail(Code((*outcome).code), "the work has failed");
            }
            code
        }
    }

    /// A query of work that has not finished answers OTR_NOT_READY.
    unready_as_an_answer [R19] (()) {
        queue_query(self, next, queue, outcome) {
            let code = next.queue_query(queue, outcome);
            if code == Code::OK.0 && (*outcome).code == Code::NOT_READY.0 {
                return Code::NOT_READY.0;
            }
            code
        }
    }

    /// A question for the time of an event that is refused says that the event was reached.
    outcome_of_a_refused_call [R4] (()) {
        event_time(self, next, event, outcome, nanoseconds) {
            let code = next.event_time(event, outcome, nanoseconds);
            if code != Code::OK.0 && !outcome.is_null() {
                (*outcome).code = Code::OK.0;
            }
            code
        }
    }

    /// An outcome of work that is well has an empty message.
    outcome_written_whole [R19] (()) {
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            if code == Code::OK.0 && (*outcome).code == Code::OK.0 {
                (*outcome).message[0] = 0;
            }
            code
        }
    }

    /// An outcome is written further than the driver knows it.
    outcome_too_long [R1] (()) {
        event_synchronize(self, next, event, outcome) {
            let code = next.event_synchronize(event, outcome);
            if code == Code::OK.0 && (*outcome).struct_size > size_of::<sys::otr_outcome>() {
                // Beyond what the driver knows: that is the defect.
                outcome.add(1).cast::<u8>().write(0);
            }
            code
        }
    }

    /// A query without a place for the outcome is taken.
    null_outcome_taken [R7] (()) {
        queue_query(self, next, queue, outcome) {
            if outcome.is_null() { Code::OK.0 } else { next.queue_query(queue, outcome) }
        }
    }

    /// A wait without a place for the outcome is refused, and clears the failure all the same.
    refused_wait_clears [R20] (()) {
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            if outcome.is_null() {
                next.queue_synchronize(queue, &mut { NO_OUTCOME });
            }
            code
        }
    }

    /// An outcome names the submission behind the one that failed.
    submission_off_by_one [R19] (()) {
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            if code == Code::OK.0 && is_failure((*outcome).code) {
                (*outcome).submission += 1;
            }
            code
        }
    }

    /// A label that is too long is cut within a character.
    label_cut_anywhere [R19] (()) {
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            if code == Code::OK.0 && is_failure((*outcome).code) {
                let label = &mut (*outcome).label;
                let end = label.iter().position(|byte| *byte == 0);
                if end == Some(label.len() - 2) {
                    label[label.len() - 2] = 0xc3_u8 as _;
                    label[label.len() - 1] = 0;
                }
            }
            code
        }
    }
}
