//! What torch's profiler needs from a device: the times of its events.
#pragma once

namespace outrigger {

/// Registers the profiler's methods for PrivateUse1. Once.
void register_profiler();

}  // namespace outrigger
