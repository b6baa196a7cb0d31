//! The devices' work in torch.profiler: kernels, copies, fills and host calls, by stream.
#pragma once

namespace outrigger {

/// Registers the devices with torch's profiler, for both device types. Once.
void register_activities();

}  // namespace outrigger
