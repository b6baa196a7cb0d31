//! Defects of memory and semaphores by file descriptor.

use std::os::fd::{FromRawFd, OwnedFd};

use outrigger_device::{Code, NO_OUTCOME};

use crate::mutant::{mutants, types::*};

mutants! {
    /// An import closes the descriptor that it was given.
    import_takes_the_descriptor [R59] (()) {
        external_memory_import(self, next, driver, device, fd, address) {
            let code = next.external_memory_import(driver, device, fd, address);
            if code == Code::OK.0 {
                drop(OwnedFd::from_raw_fd((*fd).fd));
            }
            code
        }
    }

    /// More bytes than there are are imported, as if they were there.
    import_of_more_than_there_is_taken [R60] (()) {
        external_memory_import(self, next, driver, device, fd, address) {
            match next.external_memory_import(driver, device, fd, address) {
                code if code == Code::INVALID_ARGUMENT.0 && !fd.is_null() && (*fd).size > 4096 => {
                    let mut less = *fd;
                    less.size -= 1;
                    next.external_memory_import(driver, device, &less, address)
                }
                code => code,
            }
        }
    }

    /// A wait for a semaphore holds nothing up.
    semaphore_is_not_waited_for [R61] (()) {
        external_wait(self, next, queue, semaphore, _value) {
            // Every semaphore has come to 0.
            next.external_wait(queue, semaphore, 0)
        }
    }

    /// A queue that has failed signals nothing more.
    failed_queue_does_not_signal [R62] (()) {
        external_signal(self, next, queue, semaphore, value) {
            let mut outcome = NO_OUTCOME;
            let asked = next.queue_query(queue, &mut outcome);
            let failed = ![Code::OK.0, Code::NOT_READY.0].contains(&outcome.code);
            if asked == Code::OK.0 && failed {
                return Code::OK.0;
            }
            next.external_signal(queue, semaphore, value)
        }
    }

    /// A queue that records takes a signal, and forgets it.
    recorded_signal_is_forgotten [R63] (()) {
        external_signal(self, next, queue, semaphore, value) {
            match next.external_signal(queue, semaphore, value) {
                code if code == Code::UNSUPPORTED.0 => Code::OK.0,
                code => code,
            }
        }
    }
}
