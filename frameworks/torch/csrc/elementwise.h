//! The kernel of elementwise operators. It passes operands that torch's iterator has checked, and
//! numbers among the arguments, to the native operator of a name. It must never allocate, except for a
//! CPU scalar that has no other form.
#pragma once

#include "structured.h"

#include <string_view>

namespace outrigger {

/// A name as a template argument.
template <size_t Length>
struct Name {
  constexpr Name(const char (&from)[Length]) {
    std::copy_n(from, Length, text);
  }
  char text[Length];
};

/// The numbers of a call, collected from an operator's arguments in their order.
struct Numbers {
  std::array<otr_scalar_t, 4> values;
  size_t count = 0;
  bool exact = true;

  void take(const at::Scalar& value) {
    if (C10_LIKELY(has_number(value))) {
      values[count++] = number(value);
    } else {
      exact = false;
    }
  }
  void take(double value) {
    values[count++] = number(value);
  }
  void take(int64_t value) {
    values[count++] = number(value);
  }
  void take(bool value) {
    values[count++] = number(static_cast<int64_t>(value));
  }
  // The only string among elementwise operators: gelu's approximation. torch's own kernel refuses others.
  void take(c10::string_view value) {
    exact = exact && (value == "none" || value == "tanh");
    values[count++] = number(static_cast<int64_t>(value == "tanh"));
  }
  void take(const at::Tensor&) {}
};

/// Arguments of the operator that are numbers of the native one.
enum class Take {
  kArguments,  ///< all that are no tensors
  kNothing,    ///< none: the iterator already holds a scalar argument as an operand
};

/// Submits what an iterator holds. `swapped` is the operator for exchanged operands, or null.
bool submit_elementwise(
    at::TensorIteratorBase& iterator, const Operator& op, const Operator* swapped, const Numbers& numbers);

/// The kernel for native operator `Native`; `Swapped` is the one that takes its two operands the other
/// way round (itself where they commute), used when the first is a CPU scalar.
template <Name Native, Name Swapped = "", Take From = Take::kArguments>
struct Elementwise {
  template <class... Arguments>
  static bool run(at::TensorIteratorBase& iterator, const Arguments&... arguments) {
    static const Operator op(Native.text);
    static const Operator swapped(Swapped.text[0] == '\0' ? Native.text : Swapped.text);
    Numbers numbers;
    if constexpr (From == Take::kArguments) {
      (numbers.take(arguments), ...);
    }
    return submit_elementwise(iterator, op, Swapped.text[0] == '\0' ? nullptr : &swapped, numbers);
  }
};

}  // namespace outrigger
