//! The functions of `torch_outrigger._C` about memory.
#pragma once

#include <Python.h>

namespace outrigger {

/// Adds them to the module. False with Python's exception set if that fails.
bool add_memory_functions(PyObject* module);

/// The snapshot of all devices in PyTorch's format, also pickled to `path` if that is not null. Throws.
/// Call it with the GIL.
PyObject* torch_snapshot(const char* path);

/// Has a Python function called for requests that cannot be met, with the device, the bytes asked for, those
/// that the device has in all and those that it has left; in place of the function before. Throws.
void attach_out_of_memory_observer(PyObject* observer);

}  // namespace outrigger
