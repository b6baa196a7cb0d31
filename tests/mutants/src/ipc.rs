//! Defects of memory and events of other processes.

use std::collections::HashSet;

use outrigger_device::{Code, params};
use outrigger_layers::Next;
use parking_lot::Mutex;

use crate::calls::change;
use crate::mutant::{mutants, types::*};

/// The size of what a mutant allocates in place of an import that there is not.
const STAND_IN: u64 = 64 << 10;

/// Memory of the driver's own, as if it were imported, of the size that the place says.
///
/// # Safety
/// The driver is open, and the place is writable.
unsafe fn stand_in(
    known: &Mutex<HashSet<u64>>,
    next: &Next,
    driver: Driver,
    device: u32,
    imported: Out<Imported>,
) -> i32 {
    let mut address = 0;
    // SAFETY: this function's contract.
    unsafe {
        let code = next.memory_alloc(
            driver,
            device,
            &params::memory((*imported).size),
            &mut address,
        );
        if code == Code::OK.0 {
            known.lock().insert(address);
            (*imported).address = address;
        }
        code
    }
}

mutants! {
    /// An import says one byte less than was asked for.
    import_size_is_wrong [R43] (()) {
        ipc_memory_import(self, next, driver, device, handle, imported) {
            let code = next.ipc_memory_import(driver, device, handle, imported);
            if code == Code::OK.0 {
                (*imported).size -= 1;
            }
            code
        }
    }

    /// An import of physical memory does not say how large it is.
    imported_object_has_no_size [R43] (()) {
        ipc_physical_import(self, next, driver, device, handle, imported, physical) {
            let code = next.ipc_physical_import(driver, device, handle, imported, physical);
            if code == Code::OK.0 {
                (*imported).size = 0;
            }
            code
        }
    }

    /// A handle of memory that was freed is imported, as memory of no meaning.
    import_of_freed_taken [R42] (Mutex<HashSet<u64>>) {
        ipc_memory_import(self, next, driver, device, handle, imported) {
            let code = next.ipc_memory_import(driver, device, handle, imported);
            if code != Code::NOT_FOUND.0 || imported.is_null() {
                return code;
            }
            (*imported).size = STAND_IN;
            stand_in(&self.state, next, driver, device, imported)
        }
        ipc_memory_close(self, next, driver, base) {
            if self.state.lock().remove(&base) {
                return next.memory_free(driver, base);
            }
            next.ipc_memory_close(driver, base)
        }
    }

    /// Bytes that are no handle are answered as those of memory that is gone.
    import_has_the_wrong_code [R42] (()) {
        ipc_memory_import(self, next, driver, device, handle, imported) {
            match next.ipc_memory_import(driver, device, handle, imported) {
                code if code == Code::INVALID_HANDLE.0 => Code::NOT_FOUND.0,
                code => code,
            }
        }
    }

    /// Imported memory is memory of its own, not the exporter's.
    import_reaches_other_bytes [R43] (Mutex<HashSet<u64>>) {
        ipc_memory_import(self, next, driver, device, handle, imported) {
            let code = next.ipc_memory_import(driver, device, handle, imported);
            if code != Code::OK.0 {
                return code;
            }
            next.ipc_memory_close(driver, (*imported).address);
            stand_in(&self.state, next, driver, device, imported)
        }
        ipc_memory_close(self, next, driver, base) {
            if self.state.lock().remove(&base) {
                return next.memory_free(driver, base);
            }
            next.ipc_memory_close(driver, base)
        }
    }

    /// Imported memory cannot be closed.
    import_cannot_be_closed [R44] (()) {
        ipc_memory_close(self, next, driver, base) {
            match next.ipc_memory_close(driver, base) {
                0 => Code::BUSY.0,
                code => code,
            }
        }
    }

    /// An imported event is an event of its own.
    imported_event_is_another [R43] (()) {
        ipc_event_import(self, next, driver, handle, event) {
            let code = next.ipc_event_import(driver, handle, event);
            if code != Code::OK.0 {
                return code;
            }
            next.event_destroy(*event);
            next.event_create(driver, 0, std::ptr::null(), event)
        }
    }

    /// A handle of an event that was destroyed is imported, as an event of no meaning.
    import_of_destroyed_event_taken [R42] (()) {
        ipc_event_import(self, next, driver, handle, event) {
            match next.ipc_event_import(driver, handle, event) {
                code if code == Code::NOT_FOUND.0 => {
                    next.event_create(driver, 0, std::ptr::null(), event)
                }
                code => code,
            }
        }
    }

    /// Work that an exporter has not reached when it ends counts as finished.
    ended_exporter_counts_as_finished [R44] (()) {
        event_query(self, next, event, outcome) {
            change(next.event_query(event, outcome), outcome, |told| match Code(told) {
                Code::CANCELLED => Code::OK.0,
                _ => told,
            })
        }
        event_synchronize(self, next, event, outcome) {
            change(next.event_synchronize(event, outcome), outcome, |told| match Code(told) {
                Code::CANCELLED => Code::OK.0,
                _ => told,
            })
        }
    }
}
