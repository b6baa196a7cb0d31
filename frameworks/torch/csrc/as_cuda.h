//! Calls of programs that name the device CUDA, for `torch_outrigger.as_cuda`.
#pragma once

#include "python.h"

namespace outrigger {

/// Adds the functions of this file to the module `_C`.
bool add_as_cuda_functions(PyObject* module);

}  // namespace outrigger
