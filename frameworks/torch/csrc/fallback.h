//! Runs any operator on the CPU, in stream order, and counts it. It must never run before the work that
//! was submitted to the device, and never if the mode forbids it.
#pragma once

#include "host.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <chrono>

namespace outrigger {

/// Counts one fallback from its construction to its destruction. Throws, naming the operator and how to
/// allow it, if the mode forbids fallbacks; warns at an operator's first one if the mode asks for it.
class FallbackRecord {
 public:
  /// `name` is the operator's base name, such as "convolution"; it must outlive the record.
  explicit FallbackRecord(const char* name);
  ~FallbackRecord();
  FallbackRecord(const FallbackRecord&) = delete;
  FallbackRecord& operator=(const FallbackRecord&) = delete;

  /// The operator's base name.
  const char* name() const {
    return name_;
  }

  /// Counts time from here on: the work that was submitted before has been waited for.
  void start() {
    start_ = std::chrono::steady_clock::now();
  }

  /// Says how many bytes were copied between host and device.
  void staged(uint64_t bytes) {
    staged_bytes_ = bytes;
  }

 private:
  const char* name_;
  std::chrono::steady_clock::time_point start_;
  uint64_t staged_bytes_ = 0;
};

/// The boxed fallback of every operator that has no kernel of its own.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Gives the CPU fallback every operator that has a kernel of its own for the CPU's tensors of a kind (sparse,
/// quantized) and none for ours. Left alone, many would be taken by torch's composite kernels for dense tensors.
void register_rest(torch::Library& library, c10::DispatchKey ours, c10::DispatchKey of_cpu);

/// Runs operator `Op` on the CPU, called with its own arguments.
template <class Op, class... Args>
decltype(auto) fall_back(Args&&... args) {
  return at::native::call_fallback_fn_symint<&run_on_host, Op>::call(std::forward<Args>(args)...);
}

}  // namespace outrigger
