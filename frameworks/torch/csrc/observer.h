//! Observers of the runtime that are Python functions. They must never let a Python exception or the
//! GIL's rules reach the runtime.
#pragma once

#include <Python.h>

namespace outrigger {

/// Has `function` called for events of these kinds, with kind, device, address, size, allocated_bytes,
/// reserved_bytes, name and nanoseconds. Gives the observer's number. Call it with the GIL.
PyObject* add_observer(unsigned int kinds, PyObject* function);

/// Removes an observer, after its running calls. Call it with the GIL.
void remove_observer(unsigned long long observer);

}  // namespace outrigger
