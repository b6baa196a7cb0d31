//! Functions of `torch_outrigger._C` for compiled code that is replayed as a graph.
#pragma once

#include <Python.h>

namespace outrigger {

/// Adds them to the module. False with a Python exception if that fails.
bool add_call_functions(PyObject* module);

}  // namespace outrigger
