//! Kernels of modules in Python.
#pragma once

#include <Python.h>

namespace outrigger {

/// Adds the functions to the module. False with a Python exception if that fails.
bool add_kernel_functions(PyObject* module);

}  // namespace outrigger
