//! Operators without a kernel on the device that are compiled: looked up by the class of a call, and launched. The first call
//! of a class asks Python for a recipe; later ones know the answer, and meet no Python. It must never run anything on the
//! CPU, and never change an argument of a call that it does not serve.
#pragma once

#include "fallback.h"

#include <cstdint>
#include <map>
#include <string>

namespace outrigger {

/// The treatment of a call whose class is new: nothing at all, a look at what is stored, or a compilation.
enum class CompileMode : int { kOff = 0, kCached = 1, kOn = 2 };
void set_compile_mode(CompileMode mode);
CompileMode compile_mode();

/// Compiled runs of operators since `forget_compiled`, by name; a form in place counts for its operator.
std::map<std::string, uint64_t> compiled_counts();
void forget_compiled();

/// The calls of one class, wherever they come from.
class CallClass;

/// One call of an operator that has no kernel on the device.
class CompiledCall {
 public:
  CompiledCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device)
      : op_(op), stack_(stack), device_(device) {}

  /// Runs the call, whose arguments share no memory with results but elements in the same places. False if it is not
  /// compiled: then the stack is as before.
  bool run();

  /// Says that the CPU has served the call, so that nobody tries to compile its class again.
  void fell_back();

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  c10::Device device_;
  CallClass* tried_ = nullptr;
};

}  // namespace outrigger
