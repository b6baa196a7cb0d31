//! Defects of the table as a whole: sizes of structs, checks of arguments, texts.

use std::ffi::CString;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger_device::{Code, sys};
use outrigger_layers::fail;
use parking_lot::Mutex;

use crate::mutant::{mutants, types::*};

mutants! {
    /// Each time that devices are counted, it is one more; not at first, where the loader would notice it.
    count_grows [R7] (AtomicU32) {
        device_count(self, next, driver, count) {
            let code = next.device_count(driver, count);
            if code == Code::OK.0 {
                *count += self.state.fetch_add(1, Ordering::Relaxed);
            }
            code
        }
    }

    /// The last device is not counted, and can be used.
    count_one_too_few [R7] (()) {
        device_count(self, next, driver, count) {
            let code = next.device_count(driver, count);
            if code == Code::OK.0 {
                *count -= 1;
            }
            code
        }
    }

    /// Properties are written as a whole, beyond the size that the host states.
    properties_too_long [R1] (()) {
        device_properties(self, next, driver, device, properties) {
            if properties.is_null() {
                return next.device_properties(driver, device, properties);
            }
            let mut whole: sys::otr_device_properties = std::mem::zeroed();
            whole.struct_size = size_of::<sys::otr_device_properties>();
            let code = next.device_properties(driver, device, &mut whole);
            if code == Code::OK.0 {
                whole.struct_size = (*properties).struct_size;
                // Beyond the host's struct: that is the defect.
                properties.write(whole);
            }
            code
        }
    }

    /// Parameters of a queue that are longer than the driver knows are refused.
    newer_struct_refused [R1] (()) {
        queue_create(self, next, driver, device, params, queue) {
            if !params.is_null() && (*params).struct_size > size_of::<sys::otr_queue_params>() {
                return fail(Code::INVALID_ARGUMENT, "the parameters are of another size");
            }
            next.queue_create(driver, device, params, queue)
        }
    }

    /// An unknown extension of the parameters is refused.
    extension_refused [R3] (()) {
        queue_create(self, next, driver, device, params, queue) {
            if !params.is_null() && !(*params).next.is_null() {
                return fail(Code::UNSUPPORTED, "the extension is unknown");
            }
            next.queue_create(driver, device, params, queue)
        }
    }

    /// A failed allocation writes an address.
    output_on_failure [R4] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            let code = next.memory_alloc(driver, device, params, address);
            if code != Code::OK.0 && !address.is_null() {
                *address = 0xdead_0000;
            }
            code
        }
    }

    /// A failed call has no text.
    text_null [R5] (()) {
        error_text(self, _next) { None }
    }

    /// The text is that of the failure before.
    text_stale [R5] (Mutex<CString>) {
        error_text(self, next) {
            let text = next.last_error().unwrap_or_default();
            Some(std::mem::replace(&mut *self.state.lock(), text))
        }
    }


    /// A device that does not exist is answered with the code of a wrong argument.
    wrong_code_for_device [R7] (()) {
        queue_create(self, next, driver, device, params, queue) {
            match next.queue_create(driver, device, params, queue) {
                code if code == Code::INVALID_DEVICE.0 => Code::INVALID_ARGUMENT.0,
                code => code,
            }
        }
    }

    /// A NULL queue is answered with the code of a wrong argument.
    wrong_code_for_null_queue [R7] (()) {
        event_record(self, next, event, queue) {
            if queue.is_null() {
                return fail(Code::INVALID_ARGUMENT, "the queue is NULL");
            }
            next.event_record(event, queue)
        }
    }

    /// A NULL output is taken, and nothing is done.
    null_output_taken [R7] (()) {
        event_create(self, next, driver, device, params, event) {
            if event.is_null() {
                return Code::OK.0;
            }
            next.event_create(driver, device, params, event)
        }
    }

    /// Unknown flags of an event are taken.
    unknown_flag_taken [R7] (()) {
        event_create(self, next, driver, device, params, event) {
            let flags = params.as_ref().map_or(0, |params| params.flags);
            let known = outrigger_device::params::event(flags & sys::OTR_EVENT_TIMING);
            next.event_create(driver, device, &known, event)
        }
    }

    /// A failed allocation is told of on standard error.
    prints [R6] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            let code = next.memory_alloc(driver, device, params, address);
            if code != Code::OK.0 {
                let _ = writeln!(std::io::stderr(), "mutant: {} bytes cannot be had", params.size);
            }
            code
        }
    }

    /// Memory that only work can reach is declared to be the host's as well.
    visible_in_name_only [R15] (()) {
        device_properties(self, next, driver, device, properties) {
            let code = next.device_properties(driver, device, properties);
            if code == Code::OK.0 {
                (*properties).flags |= sys::OTR_DEVICE_HOST_VISIBLE;
            }
            code
        }
    }
}
