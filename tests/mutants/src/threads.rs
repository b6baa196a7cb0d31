//! Defects of ownership: devices and memory that belong to a thread, and events that belong to a queue.

use std::cell::Cell;
use std::collections::HashMap;
use std::thread::ThreadId;

use outrigger_device::Code;
use outrigger_layers::fail;
use parking_lot::Mutex;

use crate::calls::key;
use crate::mutant::{mutants, types::*};

thread_local! {
    /// The device on which the thread made a queue last.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

mutants! {
    /// Memory is that of the device on which the thread made a queue last.
    alloc_on_the_current_device [R9] (()) {
        queue_create(self, next, driver, device, params, queue) {
            let code = next.queue_create(driver, device, params, queue);
            if code == Code::OK.0 {
                CURRENT.set(device);
            }
            code
        }
        memory_alloc(self, next, driver, device, params, address) {
            let mut count = 0;
            next.device_count(driver, &mut count);
            // A device that there is not is refused as ever.
            let device = if device < count { CURRENT.get() } else { device };
            next.memory_alloc(driver, device, params, address)
        }
    }

    /// Memory is freed by the thread that took it only.
    free_by_its_own_thread [R9] (Mutex<HashMap<u64, ThreadId>>) {
        memory_alloc(self, next, driver, device, params, address) {
            let code = next.memory_alloc(driver, device, params, address);
            if code == Code::OK.0 {
                self.state.lock().insert(*address, std::thread::current().id());
            }
            code
        }
        memory_free(self, next, driver, address) {
            let mut owners = self.state.lock();
            if owners.get(&address).is_some_and(|owner| *owner != std::thread::current().id()) {
                return fail(Code::INVALID_ARGUMENT, "the memory is another thread's");
            }
            owners.remove(&address);
            next.memory_free(driver, address)
        }
    }

    /// A queue that is destroyed takes the events with it that were recorded on it.
    events_go_with_their_queue [R10] (Mutex<HashMap<usize, usize>>) {
        event_record(self, next, event, queue) {
            let code = next.event_record(event, queue);
            if code == Code::OK.0 {
                self.state.lock().insert(event.expose_provenance(), key(queue));
            }
            code
        }
        event_destroy(self, next, event) {
            self.state.lock().remove(&event.addr());
            next.event_destroy(event)
        }
        queue_destroy(self, next, queue) {
            let gone: Vec<_> = self.state.lock().extract_if(|_, on| *on == queue.addr()).collect();
            for (event, _) in gone {
                next.event_destroy(std::ptr::with_exposed_provenance_mut(event));
            }
            next.queue_destroy(queue)
        }
    }
}
