//! Stacks as torch gathers them. This costs some microseconds per stack, and takes the GIL for Python
//! frames. A stack is turned into text only when a snapshot is written.

#include "stacks.h"

#include <Python.h>

#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <memory>

namespace outrigger {
namespace {

using Stack = std::shared_ptr<torch::CapturedTraceback>;

uint64_t gather(bool cpp) noexcept {
  if (Py_IsInitialized() == 0) {
    return 0;
  }
  try {
    auto stack = std::make_unique<Stack>(torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, cpp));
    return reinterpret_cast<uint64_t>(stack.release());
  } catch (...) {
    // Without memory for a stack the allocation has none.
    return 0;
  }
}

uint64_t gather_python(void*) noexcept {
  return gather(false);
}

uint64_t gather_all(void*) noexcept {
  return gather(true);
}

// Torch gives the frames' code objects back at a later stack, once it has the GIL.
void release(void*, uint64_t stack) noexcept {
  delete reinterpret_cast<Stack*>(stack);
}

void tell(void*, uint64_t context, otr_frame_fn frame, void* frames) noexcept {
  if (Py_IsInitialized() == 0) {
    return;
  }
  try {
    torch::CapturedTraceback* stack = reinterpret_cast<Stack*>(context)->get();
    const torch::SymbolizedTracebacks told = torch::symbolize({stack});
    for (const uint64_t index : told.tracebacks.at(0)) {
      const auto& one = told.all_frames.at(index);
      const auto line = static_cast<uint32_t>(std::clamp<uint64_t>(one.lineno, 0, UINT32_MAX));
      frame(frames, one.filename.c_str(), line, one.funcname.c_str());
    }
  } catch (...) {
    // A stack that cannot be told is shown as far as it was.
  }
}

}  // namespace

otr_history_options_t history_options(uint64_t entries, Stacks stacks, bool of_frees) {
  auto options = otr::sized<otr_history_options_t>();
  options.entries = entries;
  if (stacks != Stacks::kNone) {
    options.flags = of_frees ? OTR_HISTORY_CONTEXT_OF_FREES : 0;
    options.capture = stacks == Stacks::kAll ? &gather_all : &gather_python;
    options.release = &release;
    options.frames = &tell;
  }
  return options;
}

}  // namespace outrigger
