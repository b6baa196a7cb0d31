//! Defects of device memory: addresses, alignment, figures, and running out.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_device::{Code, params, sys};
use outrigger_layers::fail;
use parking_lot::Mutex;

use crate::mutant::{mutants, types::*};

/// The distance of a misaligned allocation from an aligned address.
const OFF: u64 = 8;

/// The newest allocation that was not freed: device, size, address, and how often it was given out.
#[derive(Default)]
struct Newest {
    device: u32,
    size: u64,
    address: u64,
    times: u32,
}

mutants! {
    /// Allocations begin 8 bytes behind where they are aligned.
    alloc_misaligned [R14] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            // A size of 0 stays one, so that it is refused.
            let more = if params.size == 0 { 0 } else { params.size.saturating_add(OFF) };
            let more = sys::otr_memory_params { size: more, ..*params };
            let code = next.memory_alloc(driver, device, &more, address);
            if code == Code::OK.0 {
                *address += OFF;
            }
            code
        }
        memory_free(self, next, driver, address) {
            match next.memory_free(driver, address.wrapping_sub(OFF)) {
                code if code == Code::OK.0 => code,
                _ => next.memory_free(driver, address),
            }
        }
    }

    /// An allocation of the same size as the one before is given the same address.
    alloc_overlaps [R13] (Mutex<Newest>) {
        memory_alloc(self, next, driver, device, params, address) {
            let (mut newest, size) = (self.state.lock(), params.size);
            if newest.times > 0 && newest.device == device && newest.size == size && !address.is_null() {
                newest.times += 1;
                *address = newest.address;
                return Code::OK.0;
            }
            let code = next.memory_alloc(driver, device, params, address);
            if code == Code::OK.0 {
                *newest = Newest { device, size, address: *address, times: 1 };
            }
            code
        }
        memory_free(self, next, driver, address) {
            let mut newest = self.state.lock();
            if newest.address == address && newest.times > 0 {
                newest.times -= 1;
                if newest.times > 0 {
                    return Code::OK.0;
                }
            }
            next.memory_free(driver, address)
        }
    }

    /// A kind of memory that there is not is taken for the device's own.
    memory_kind_unchecked [R14] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            let kind = sys::OTR_MEMORY_DEVICE;
            next.memory_alloc(driver, device, &sys::otr_memory_params { kind, ..*params }, address)
        }
    }

    /// Flags of memory are not looked at.
    memory_flags_unchecked [R7] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            let flags = params.flags & sys::OTR_MEMORY_EXPORTABLE;
            next.memory_alloc(driver, device, &sys::otr_memory_params { flags, ..*params }, address)
        }
    }

    /// An alignment is taken, and not kept to.
    alignment_ignored [R14] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            let (alignment, size) = (0, params.size.saturating_add(1 << 16));
            if params.alignment <= 1 << 16 || !params.alignment.is_power_of_two() {
                return next.memory_alloc(driver, device, params, address);
            }
            let mut first = 0;
            // Of two that lie side by side one is off.
            next.memory_alloc(driver, device, &params::memory(1 << 16), &mut first);
            let params = sys::otr_memory_params { alignment, size, ..*params };
            next.memory_alloc(driver, device, &params, address)
        }
    }

    /// Two devices give out the same addresses.
    devices_overlap [R13] (Mutex<HashMap<u64, u64>>) {
        memory_alloc(self, next, driver, device, params, address) {
            if device == 0 || address.is_null() {
                return next.memory_alloc(driver, device, params, address);
            }
            let mut first = 0;
            let code = next.memory_alloc(driver, 0, params, &mut first);
            if code != Code::OK.0 {
                return next.memory_alloc(driver, device, params, address);
            }
            next.memory_free(driver, first);
            let mut own = 0;
            let code = next.memory_alloc(driver, device, params, &mut own);
            if code == Code::OK.0 {
                self.state.lock().insert(first, own);
                *address = first;
            }
            code
        }
        memory_free(self, next, driver, address) {
            let own = self.state.lock().remove(&address);
            next.memory_free(driver, own.unwrap_or(address))
        }
    }

    /// Freed memory stays taken.
    free_leaks [R12] (Mutex<HashSet<u64>>) {
        memory_alloc(self, next, driver, device, params, address) {
            let code = next.memory_alloc(driver, device, params, address);
            if code == Code::OK.0 {
                self.state.lock().insert(*address);
            }
            code
        }
        memory_free(self, next, driver, address) {
            if self.state.lock().remove(&address) {
                return Code::OK.0;
            }
            next.memory_free(driver, address.wrapping_add(1))
        }
    }

    /// A wrong address is freed with success.
    free_of_anything [R7] (()) {
        memory_free(self, next, driver, address) {
            next.memory_free(driver, address);
            Code::OK.0
        }
    }

    /// An allocation of 0 bytes succeeds.
    alloc_of_nothing [R7] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            let size = params.size.max(1);
            next.memory_alloc(driver, device, &sys::otr_memory_params { size, ..*params }, address)
        }
    }

    /// Device memory that runs out is reported as host memory.
    out_of_the_wrong_memory [R29] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            match next.memory_alloc(driver, device, params, address) {
                code if code == Code::OUT_OF_MEMORY.0 => Code::OUT_OF_HOST_MEMORY.0,
                code => code,
            }
        }
    }

    /// After the first time that memory ran out, nothing can be allocated any more.
    out_of_memory_for_good [R29] (AtomicBool) {
        memory_alloc(self, next, driver, device, params, address) {
            if self.state.load(Ordering::Relaxed) {
                return fail(Code::OUT_OF_MEMORY, "there is no memory left");
            }
            let code = next.memory_alloc(driver, device, params, address);
            if code == Code::OUT_OF_MEMORY.0 {
                self.state.store(true, Ordering::Relaxed);
            }
            code
        }
    }

    /// A refused allocation takes memory all the same.
    failed_alloc_takes [R4 R29] (()) {
        memory_alloc(self, next, driver, device, params, address) {
            let code = next.memory_alloc(driver, device, params, address);
            if code == Code::OUT_OF_MEMORY.0 {
                let mut lost = 0;
                next.memory_alloc(driver, device, &params::memory(4096), &mut lost);
            }
            code
        }
    }

    /// All memory is said to be free, whatever is allocated.
    info_never_changes [R29] (()) {
        memory_info(self, next, driver, device, free, total) {
            let code = next.memory_info(driver, device, free, total);
            if code == Code::OK.0 {
                *free = *total;
            }
            code
        }
    }

    /// The free memory of each device is that of the first.
    info_of_another_device [R13 R29] (()) {
        memory_info(self, next, driver, device, free, total) {
            let code = next.memory_info(driver, device, free, total);
            if code == Code::OK.0 {
                return next.memory_info(driver, 0, free, total);
            }
            code
        }
    }
}
