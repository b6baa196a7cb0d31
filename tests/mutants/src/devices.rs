//! Defects of opening devices, and of what they say of themselves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outrigger_device::{Code, sys};
use outrigger_layers::fail;

use crate::mutant::{mutants, types::*};

mutants! {
    /// A device that is open is not opened again.
    a_second_opening_is_refused [R58] (AtomicU64) {
        device_open(self, next, driver, device, params) {
            let code = next.device_open(driver, device, params);
            let open = 1_u64.checked_shl(device).unwrap_or(0);
            if code == Code::OK.0 && self.state.fetch_or(open, Ordering::Relaxed) & open != 0 {
                return fail(Code::BUSY, "the device is open");
            }
            code
        }
    }

    /// Opening a device opens all.
    all_are_opened [R58] (()) {
        device_open(self, next, driver, device, params) {
            let code = next.device_open(driver, device, params);
            for other in 0.. {
                if code != Code::OK.0 || next.device_open(driver, other, std::ptr::null()) != Code::OK.0 {
                    break;
                }
            }
            code
        }
    }

    /// Closing a device closes all.
    all_are_closed [R58] (()) {
        device_close(self, next, driver, device) {
            let code = next.device_close(driver, device);
            if code == Code::OK.0 {
                (0..2).for_each(|other| _ = next.device_close(driver, other));
            }
            code
        }
    }

    /// A device that was closed is open all the same.
    closing_does_nothing [R58] (()) {
        device_close(self, next, driver, device) {
            let code = next.device_close(driver, device);
            match Code(code) {
                Code::OK => next.device_open(driver, device, std::ptr::null()),
                _ => code,
            }
        }
    }

    /// A queue opens its device where the host has not.
    a_queue_opens_its_device [R57] (()) {
        queue_create(self, next, driver, device, params, queue) {
            let code = next.queue_create(driver, device, params, queue);
            if code == Code::INVALID_DEVICE.0 && next.device_open(driver, device, std::ptr::null()) == Code::OK.0 {
                return next.queue_create(driver, device, params, queue);
            }
            code
        }
    }

    /// The size of a device's memory is not known until it is open.
    memory_is_known_late [R57] (AtomicBool) {
        device_open(self, next, driver, device, params) {
            self.state.store(true, Ordering::Relaxed);
            next.device_open(driver, device, params)
        }
        device_properties(self, next, driver, device, properties) {
            let code = next.device_properties(driver, device, properties);
            let is_whole = code == Code::OK.0
                && (*properties).struct_size >= size_of::<sys::otr_device_properties>();
            if is_whole && !self.state.load(Ordering::Relaxed) {
                (*properties).total_memory = 4096;
            }
            code
        }
    }

    /// Flags of `device_open` are ignored.
    device_flags_are_ignored [R7] (()) {
        device_open(self, next, driver, device, _params) {
            next.device_open(driver, device, std::ptr::null())
        }
    }

    /// A place on the PCI bus is told without its flag.
    a_place_without_its_flag [R57] (()) {
        device_properties(self, next, driver, device, properties) {
            let code = next.device_properties(driver, device, properties);
            if code == Code::OK.0
                && (*properties).struct_size >= size_of::<sys::otr_device_properties>()
                && (*properties).flags & sys::OTR_DEVICE_PCI == 0
            {
                (*properties).pci_bus = 7;
            }
            code
        }
    }
}
