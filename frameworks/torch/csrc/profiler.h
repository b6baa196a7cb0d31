//! The times of events, which torch's profiler needs from a device.
#pragma once

namespace outrigger {

/// Registers the profiler's methods for PrivateUse1. Once.
void register_profiler();

}  // namespace outrigger
