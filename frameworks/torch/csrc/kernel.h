//! Calls of native operators: a call is built on the stack and passed on; nothing is allocated. It must
//! never decide what an operator means: docs/operators.md has names, operands and numbers.
#pragma once

#include "memory.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <array>
#include <initializer_list>

namespace outrigger {

/// A native operator, looked up once by name. One that this build of the library lacks runs nothing.
class Operator {
 public:
  explicit Operator(const char* name);

  /// Whether the driver of a device has the operator, for some operands.
  bool is_offered(c10::DeviceIndex device) const;

  /// Submits a call. False if there is no kernel for these arguments: then nothing was done.
  bool submit(otr_stream_t stream, const otr_operator_call_t& call) const {
    if (C10_UNLIKELY(!exists_)) {
      return false;
    }
    otr_status_t* status = otr_operator_call(stream, id_, &call);
    if (C10_LIKELY(status == nullptr)) {
      return true;
    }
    return refused(status);
  }

 private:
  // False for "unsupported"; throws for every other failure.
  static bool refused(otr_status_t* status);

  otr_operator_id_t id_ = 0;
  bool exists_ = false;
};

/// A tensor as an operand: sizes and strides are borrowed from it. An undefined one is an absent operand.
inline otr_tensor_t operand(const at::TensorBase& tensor) {
  if (C10_UNLIKELY(!tensor.defined())) {
    return {};
  }
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::IntArrayRef sizes = impl->sizes();
  otr_tensor_t out;
  out.address = address_of(impl->data());
  out.dtype = dtype_of(tensor.scalar_type());
  out.rank = static_cast<uint32_t>(sizes.size());
  out.sizes = sizes.data();
  out.strides = impl->strides().data();
  return out;
}

/// The same for a tensor that is written.
inline otr_tensor_t written_operand(const at::TensorBase& tensor) {
  otr_tensor_t out = operand(tensor);
  if (C10_LIKELY(tensor.defined()) && is_lazy(tensor.storage().unsafeGetStorageImpl())) {
    out.address = written_address(tensor);
  }
  return out;
}

/// A number as torch passes it.
inline otr_scalar_t number(double value) {
  otr_scalar_t out = {};
  out.dtype = OTR_DTYPE_F64;
  out.value.f64 = value;
  return out;
}

/// A whole number or truth value.
inline otr_scalar_t number(int64_t value) {
  otr_scalar_t out = {};
  out.dtype = OTR_DTYPE_I64;
  out.value.i64 = value;
  return out;
}

/// A Scalar; complex ones have no number (`has_number` is false for them).
inline otr_scalar_t number(const c10::Scalar& value) {
  return value.isFloatingPoint() ? number(value.toDouble()) : number(value.to<int64_t>());
}

/// Whether a Scalar can be passed as a number.
inline bool has_number(const c10::Scalar& value) {
  return !value.isComplex() && !value.isSymbolic() && value.type() != c10::ScalarType::UInt64;
}

/// Whether a number is in the range of a dtype.
bool is_in_range(const otr_scalar_t& number, c10::ScalarType dtype);

/// The same, for numbers that every dtype holds first. Of any other the CPU has the error, or the result.
inline bool fits(const otr_scalar_t& number, c10::ScalarType dtype) {
  return C10_LIKELY(number.dtype == OTR_DTYPE_I64 && static_cast<uint64_t>(number.value.i64) < 128) ||
      is_in_range(number, dtype);
}

/// Whether a Scalar can be passed as a number of an operator whose elements have a dtype.
inline bool has_number(const c10::Scalar& value, c10::ScalarType dtype) {
  return has_number(value) && fits(number(value), dtype);
}

/// The largest number of a floating-point dtype that the native operators know; 0 for every other.
double largest_of(c10::ScalarType dtype);

/// The value of a CPU tensor of one element, as torch promotes it.
c10::Scalar value_of(const at::TensorBase& tensor);

/// Whether a tensor is a scalar of the CPU that has such a value.
inline bool is_scalar_of_cpu(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.dim() == 0 && has_value(tensor.scalar_type());
}

/// Whether torch.use_deterministic_algorithms is on.
inline bool must_be_deterministic() {
  return at::globalContext().deterministicAlgorithms();
}

/// The operands and numbers of one call.
template <size_t Inputs, size_t Outputs, size_t Scalars>
struct Call {
  std::array<otr_tensor_t, Inputs == 0 ? 1 : Inputs> inputs;
  std::array<otr_tensor_t, Outputs == 0 ? 1 : Outputs> outputs;
  std::array<otr_scalar_t, Scalars == 0 ? 1 : Scalars> scalars;

  /// Submits the call with the first so many of each.
  bool submit(
      const Operator& op, otr_stream_t stream, size_t input_count = Inputs, size_t output_count = Outputs,
      size_t scalar_count = Scalars) const {
    otr_operator_call_t call;
    call.struct_size = sizeof(call);
    call.next = nullptr;
    call.name = nullptr;
    call.inputs = inputs.data();
    call.outputs = outputs.data();
    call.scalars = scalars.data();
    call.input_count = static_cast<uint32_t>(input_count);
    call.output_count = static_cast<uint32_t>(output_count);
    call.scalar_count = static_cast<uint32_t>(scalar_count);
    call.flags = 0;
    return op.submit(stream, call);
  }
};

/// Calls an operator on whole tensors, on the current stream of the first output that is there. False if
/// there is no kernel for them, or one of them is on another device.
bool run(
    const Operator& op, std::initializer_list<std::reference_wrapper<const at::Tensor>> outputs,
    std::initializer_list<std::reference_wrapper<const at::Tensor>> inputs,
    std::initializer_list<otr_scalar_t> scalars = {});

/// Fills a tensor with a number, in stream order. False if there is no kernel for its dtype.
bool fill_native(const at::Tensor& out, const c10::Scalar& value);

/// Copies between tensors of one device, of any layouts and dtypes, in stream order. `from` is broadcast.
void copy_on_device(const at::Tensor& to, const at::Tensor& from);

/// The tensor itself if it is contiguous or undefined, else a contiguous copy.
at::Tensor contiguous(const at::Tensor& tensor);

/// An optional tensor as one that may be undefined.
inline at::Tensor or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}

}  // namespace outrigger
