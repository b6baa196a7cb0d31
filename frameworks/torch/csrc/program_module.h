//! Kernels of compiled programs in Python.
#pragma once

#include <Python.h>

#include "program.h"

namespace outrigger {

/// The kernel of a Python object, which it gives its code if it has none yet. The GIL is held; the kernel lives as long as
/// the object.
const CompiledKernel& kernel_with_code(PyObject* object);

/// Adds the functions and the type to the module. False with a Python exception if that fails.
bool add_program_functions(PyObject* module);

}  // namespace outrigger
