//! What torch.profiler shows of the devices: kernels, copies, fills and host calls, by stream.
#pragma once

namespace outrigger {

/// Registers the devices with torch's profiler, for both device types. Once.
void register_activities();

}  // namespace outrigger
