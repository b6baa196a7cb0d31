//! Observers of the runtime that are Python functions. A Python exception must never reach the runtime,
//! and the runtime need not know of the GIL.
#pragma once

#include <Python.h>

namespace outrigger {

/// Has `function` called for events of these kinds, with kind, device, address, size, allocated_bytes,
/// reserved_bytes, name and nanoseconds. Gives the observer's number. Call it with the GIL.
PyObject* add_observer(unsigned int kinds, PyObject* function);

/// Removes an observer, after its running calls. Call it with the GIL.
void remove_observer(unsigned long long observer);

}  // namespace outrigger
