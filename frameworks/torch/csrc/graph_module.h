//! The functions of `torch_outrigger._C` that work on graphs.
#pragma once

#include <Python.h>

namespace outrigger {

/// Adds them to the module. False with a Python exception set if that fails.
bool add_graph_functions(PyObject* module);

}  // namespace outrigger
