//! Memory of the device as the CPU sees it, for longer than one operator.
#pragma once

#include "memory.h"

namespace outrigger {

/// A CPU tensor over the memory of a device tensor, which it keeps alive. The work queued on the current stream is waited
/// for. Throws if the host does not see the memory.
at::Tensor host_view(const at::Tensor& tensor);

}  // namespace outrigger
