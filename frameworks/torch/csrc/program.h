//! A kernel of a compiled program, and its launch: without Python, and without a wait. It must never compile: who makes
//! a kernel gives it its code.
#pragma once

#include "runtime.h"

#include <c10/util/SmallVector.h>

#include <string>

namespace outrigger {

struct Trial;

/// Runs the groups of a kernel from one number to another. The words are addresses, then the kernel's numbers. The result is
/// what the kernel's checks have found: OTR_OK, or how the stream fails.
using Groups = int32_t (*)(const uint64_t* words, int64_t first, int64_t end);

/// A number of a launch: fixed, or that of an argument.
struct Extent {
  int64_t fixed = 1;
  int argument = -1;

  int64_t of(const uint64_t* values) const {
    return argument < 0 ? fixed : static_cast<int64_t>(values[argument]);
  }
};

/// A kernel's arguments and code: a function of this process where the driver runs host functions, else a
/// kernel of a module.
class CompiledKernel {
 public:
  /// `kinds` has one letter for each argument: a(ddress), i(nteger), f(32), d (f64). A c behind them says that the kernel
  /// has checks: in a module it takes the address of an i32 behind the others, where it leaves how the stream fails. `name` is its
  /// name in the module, `label` what failures and traces call it; both live as long as the process.
  CompiledKernel(
      c10::Device device, const char* name, const char* label, const std::string& kinds, Extent items, Extent reduced, bool by_row,
      uint32_t group_size);

  /// Submits a launch to the current stream of the device. There is a word for each argument.
  void launch(const uint64_t* values) const {
    launch(values, nullptr);
  }

  /// Has a process of its own try the launch, behind the work of the current stream, and waits. Throws what that work has failed
  /// with. Only for a kernel that is a function of this process.
  void attempt(const uint64_t* values, Trial* trial) const;

  c10::Device device;
  const char *name, *label;
  std::string kinds;
  Extent items, reduced;
  bool by_row;  // a group works on whole rows of `reduced` elements
  uint32_t group_size;
  Groups groups = nullptr;
  otr_kernel_t kernel = 0;

 private:
  void launch(const uint64_t* values, Trial* trial) const;

  bool has_checks_;
  uint32_t addresses_;
  c10::SmallVector<otr_argument_t, 16> arguments_;
  c10::SmallVector<uint32_t, 16> offsets_;
};

}  // namespace outrigger
