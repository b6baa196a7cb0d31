//! Builds an elementwise call from torch's iterator.

#include "elementwise.h"

namespace outrigger {
namespace {

constexpr int kMostInputs = 3;

// A CPU scalar as a device tensor without dimensions, for operators that take no number in its place.
bool upload_scalar(const at::Tensor& scalar, c10::Device device, at::Tensor& out) {
  const c10::Scalar value = value_of(scalar);
  if (!has_number(value)) {
    return false;
  }
  out = empty_on(device, {}, scalar.scalar_type());
  return fill_native(out, value);
}

// A CPU scalar in the dtype of the elements, as torch's iterator converts it: integers wrap, and what a float cannot hold is
// infinite.
otr_scalar_t converted(const c10::Scalar& value, c10::ScalarType dtype) {
  otr_scalar_t out = number(value);
  if (out.dtype == OTR_DTYPE_I64) {
    switch (dtype) {
      case c10::ScalarType::Byte: out.value.i64 = static_cast<uint8_t>(out.value.i64); break;
      case c10::ScalarType::Char: out.value.i64 = static_cast<int8_t>(out.value.i64); break;
      case c10::ScalarType::Short: out.value.i64 = static_cast<int16_t>(out.value.i64); break;
      case c10::ScalarType::Int: out.value.i64 = static_cast<int32_t>(out.value.i64); break;
      default: break;
    }
  } else if (dtype != c10::ScalarType::Double) {
    // Halves are computed as floats.
    out.value.f64 = static_cast<float>(out.value.f64);
  }
  return out;
}

}  // namespace

bool submit_elementwise(
    at::TensorIteratorBase& iterator, const Operator& op, const Operator* swapped, const Numbers& numbers) {
  const int inputs = iterator.ninputs();
  if (C10_UNLIKELY(!numbers.exact || inputs > kMostInputs || iterator.noutputs() != 1)) {
    return false;
  }
  const at::Tensor& output = iterator.output();
  if (C10_UNLIKELY(output.numel() == 0)) {
    return true;
  }
  // Computed in another type and cast to the output's: the native operator computes in the output's.
  const c10::ScalarType type = output.scalar_type();
  const auto common = common_type(iterator);
  if (C10_UNLIKELY(type != c10::ScalarType::Bool) && common.has_value() && *common != type) {
    return false;
  }
  Call<kMostInputs, 1, 4> call;
  call.outputs[0] = written_operand(output);
  if (C10_UNLIKELY(call.outputs[0].dtype == OTR_DTYPE_INVALID)) {
    return false;
  }
  const Operator* chosen = &op;
  size_t operands = 0;
  size_t scalars = 0;
  at::Tensor uploaded[kMostInputs];
  for (int i = 0; i < inputs; ++i) {
    const at::Tensor& input = iterator.input(i);
    if (C10_LIKELY(input.device() == output.device())) {
      call.inputs[operands++] = operand(input);
      continue;
    }
    if (!input.device().is_cpu() || input.dim() != 0) {
      return false;
    }
    // One scalar may stand for the last of two operands, or for the first if they can be exchanged.
    const bool last = i == 1 && operands == 1;
    const bool first = i == 0 && swapped != nullptr && is_ours(iterator.input(1));
    if (inputs == 2 && (last || first)) {
      const c10::Scalar value = value_of(input);
      if (!has_number(value)) {
        return false;
      }
      call.scalars[scalars++] = converted(value, common.value_or(type));
      chosen = first ? swapped : &op;
      continue;
    }
    if (!upload_scalar(input, output.device(), uploaded[i])) {
      return false;
    }
    call.inputs[operands++] = operand(uploaded[i]);
  }
  for (size_t i = 0; i < numbers.count; ++i) {
    if (C10_UNLIKELY(scalars == call.scalars.size() || !fits(numbers.values[i], type))) {
      return false;
    }
    call.scalars[scalars++] = numbers.values[i];
  }
  return call.submit(*chosen, stream_of(output), operands, 1, scalars);
}

}  // namespace outrigger
