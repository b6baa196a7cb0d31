//! The CPU fallback while a graph is recorded: the operator becomes a node of the graph. It must never
//! run the operator, and never store a value of the capture in the node.
#pragma once

#include "runtime.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace outrigger {

/// A text that lives as long as the process, for names of work.
const char* lasting(std::string_view text);

/// Records a call of an operator's CPU kernel into the graph that the device's current stream records.
/// The arguments on the stack are replaced by results, whose shapes come from the operator's meta
/// function or from a run on zeros;
/// arguments that the operator resizes are resized now. `name` is what the node is called; it is copied.
///
/// NotImplementedError names the operator if its shapes depend on values, if it returns a value to the
/// host, or if it draws random numbers: then the capture has failed.
void record_on_host(
    const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, std::string_view name);

/// The same by name, for kernels that call an operator which the CPU has and the device has not.
void record_on_host(
    const char* op, const char* overload, torch::jit::Stack* stack, c10::Device device, std::string_view name);

}  // namespace outrigger
