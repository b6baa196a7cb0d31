//! Kernels of compiled programs in Python.
#pragma once

#include <Python.h>

namespace outrigger {

/// Adds the functions and the type to the module. False with a Python exception if that fails.
bool add_program_functions(PyObject* module);

}  // namespace outrigger
