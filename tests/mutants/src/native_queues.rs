//! Defects of queues that other libraries use too.

use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::Code;

use crate::mutant::{mutants, types::*};

mutants! {
    /// A queue that is made of a native one is a new queue.
    an_adopted_queue_is_a_new_one [R56] (()) {
        native_adopt(self, next, driver, device, native, queue) {
            let code = next.native_adopt(driver, device, native, queue);
            if code != Code::OK.0 {
                return code;
            }
            next.queue_destroy(*queue);
            next.queue_create(driver, device, std::ptr::null(), queue)
        }
    }

    /// A queue is called something else each time.
    the_native_queue_has_a_new_name_each_time [R55] (AtomicU64) {
        native_handle(self, next, queue, native) {
            let code = next.native_handle(queue, native);
            if code == Code::OK.0 {
                *native += self.state.fetch_add(1, Ordering::Relaxed);
            }
            code
        }
    }
}
