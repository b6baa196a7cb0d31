//! The functions of `torch_outrigger._C` that show device memory to others: the CPU, and other processes.
#pragma once

#include <Python.h>

namespace outrigger {

/// Adds them to the module. False with Python's exception set if that fails.
bool add_sharing_functions(PyObject* module);

}  // namespace outrigger
