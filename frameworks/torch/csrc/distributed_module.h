//! The function of `torch_outrigger._C` that makes the backend of a group of ranks.
#pragma once

#include <Python.h>

namespace outrigger {

/// Adds it to the module. False, with Python's exception set, on failure.
bool add_distributed_functions(PyObject* module);

}  // namespace outrigger
