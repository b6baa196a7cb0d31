//! Defects of memory and events of other processes.

use std::collections::HashSet;

use outrigger_device::Code;
use parking_lot::Mutex;

use crate::calls::change;
use crate::mutant::{mutants, types::*};

/// The size of what a mutant allocates in place of an import.
const STAND_IN: u64 = 64 << 10;

mutants! {
    /// A handle of memory that was freed is imported, as memory of no meaning.
    import_of_freed_taken [R42] (Mutex<HashSet<u64>>) {
        ipc_memory_import(self, next, driver, device, handle, base) {
            let code = next.ipc_memory_import(driver, device, handle, base);
            if code != Code::NOT_FOUND.0 || base.is_null() {
                return code;
            }
            let code = next.memory_alloc(driver, device, STAND_IN, base);
            if code == Code::OK.0 {
                self.state.lock().insert(*base);
            }
            code
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
        ipc_memory_import(self, next, driver, device, handle, base) {
            match next.ipc_memory_import(driver, device, handle, base) {
                code if code == Code::INVALID_HANDLE.0 => Code::NOT_FOUND.0,
                code => code,
            }
        }
    }

    /// Imported memory is memory of its own, not the exporter's.
    import_reaches_other_bytes [R43] (Mutex<HashSet<u64>>) {
        ipc_memory_import(self, next, driver, device, handle, base) {
            let code = next.ipc_memory_import(driver, device, handle, base);
            if code != Code::OK.0 {
                return code;
            }
            next.ipc_memory_close(driver, *base);
            let code = next.memory_alloc(driver, device, STAND_IN, base);
            if code == Code::OK.0 {
                self.state.lock().insert(*base);
            }
            code
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
            next.event_create(driver, 0, 0, event)
        }
    }

    /// A handle of an event that was destroyed is imported, as an event of no meaning.
    import_of_destroyed_event_taken [R42] (()) {
        ipc_event_import(self, next, driver, handle, event) {
            match next.ipc_event_import(driver, handle, event) {
                code if code == Code::NOT_FOUND.0 => next.event_create(driver, 0, 0, event),
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
