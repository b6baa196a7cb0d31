//! Registers the runtime's devices as a device type of torch. Both types get the same kernels.
#pragma once

#include <c10/core/Device.h>

namespace outrigger {

/// Registers PrivateUse1 under this name: hooks, guard, allocators, kernels. Once.
void serve_outrigger(const char* name);

/// Registers MTIA: hooks, guard, allocators, kernels. Once, and before torch first asks for its hooks.
void serve_mtia();

}  // namespace outrigger
