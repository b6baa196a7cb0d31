//! The parts of operator calls that are not on the hot path, and calls on whole tensors. It must never
//! fall back to the CPU: callers decide what to do without a kernel.

#include "kernel.h"

#include "capture.h"
#include "fallback.h"
#include "recorded.h"

#include <c10/core/DynamicCast.h>
#include <c10/util/SmallVector.h>

#include <cmath>
#include <limits>

namespace outrigger {

Operator::Operator(const char* name) {
  otr_status_t* status = otr_operator_find(name, &id_);
  exists_ = status == nullptr;
  if (!exists_) {
    TORCH_CHECK(
        otr_status_code(status) == OTR_ERR_NOT_FOUND, who(), "looking up operator ", name, ": ",
        otr_status_message(status));
    otr_status_free(status);
  }
}

bool Operator::is_offered(c10::DeviceIndex device) const {
  uint32_t yes = 0;
  if (exists_) {
    check(otr_operator_offered(static_cast<uint32_t>(device), id_, &yes));
  }
  return yes != 0;
}

bool Operator::refused(otr_status_t* status) {
  if (otr_status_code(status) != OTR_ERR_UNSUPPORTED) {
    raise(status);
  }
  otr_status_free(status);
  return false;
}

double largest_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half: return std::numeric_limits<c10::Half>::max();
    case c10::ScalarType::BFloat16: return std::numeric_limits<c10::BFloat16>::max();
    case c10::ScalarType::Float: return std::numeric_limits<float>::max();
    case c10::ScalarType::Double: return std::numeric_limits<double>::max();
    default: return 0;
  }
}

bool is_in_range(const otr_scalar_t& number, c10::ScalarType dtype) {
  const bool is_whole = number.dtype == OTR_DTYPE_I64;
  const double value = is_whole ? static_cast<double>(number.value.i64) : number.value.f64;
  if (c10::isIntegralType(dtype, /*includeBool=*/false)) {
    const bool is_signed = c10::isSignedType(dtype);
    const double limit = std::ldexp(1.0, static_cast<int>(8 * c10::elementSize(dtype)) - (is_signed ? 1 : 0));
    // The largest number of 64 bits is none of a double.
    return (is_whole && dtype == c10::ScalarType::Long) || (value < limit && value >= (is_signed ? -limit : 0.0));
  }
  const double largest = largest_of(c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype);
  return largest == 0 || !std::isfinite(value) || std::abs(value) <= largest;
}

c10::Scalar value_of(const at::TensorBase& tensor) {
  const void* data = tensor.const_data_ptr();
  const c10::ScalarType type = tensor.scalar_type();
  // Fetching what has no value, such as bits and numbers of less than a byte, ends the process.
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_value(type), who(), "reading the value of an element is not implemented for '", type, "'");
  if (type == c10::ScalarType::Bool) {
    return c10::Scalar(c10::fetch_and_cast<bool>(type, data));
  }
  if (c10::isFloatingType(type)) {
    return c10::Scalar(c10::fetch_and_cast<double>(type, data));
  }
  if (c10::isComplexType(type)) {
    return c10::Scalar(c10::fetch_and_cast<c10::complex<double>>(type, data));
  }
  if (type == c10::ScalarType::UInt64) {
    return c10::Scalar(c10::fetch_and_cast<uint64_t>(type, data));
  }
  return c10::Scalar(c10::fetch_and_cast<int64_t>(type, data));
}

bool run(
    const Operator& op, std::initializer_list<std::reference_wrapper<const at::Tensor>> outputs,
    std::initializer_list<std::reference_wrapper<const at::Tensor>> inputs,
    std::initializer_list<otr_scalar_t> scalars) {
  c10::SmallVector<otr_tensor_t, 8> in;
  c10::SmallVector<otr_tensor_t, 4> out;
  std::optional<c10::Device> device;
  for (const at::Tensor& tensor : outputs) {
    if (tensor.defined() && !device.has_value()) {
      device = tensor.device();
    }
  }
  if (!device.has_value() || !is_ours(device->type())) {
    return false;
  }
  for (const at::Tensor& tensor : inputs) {
    if (tensor.defined() && tensor.device() != *device) {
      return false;
    }
    in.push_back(operand(tensor));
  }
  for (const at::Tensor& tensor : outputs) {
    if (tensor.defined() && tensor.device() != *device) {
      return false;
    }
    out.push_back(written_operand(tensor));
  }
  auto call = otr::sized<otr_operator_call_t>();
  call.inputs = in.data();
  call.outputs = out.data();
  call.scalars = scalars.begin();
  call.input_count = static_cast<uint32_t>(in.size());
  call.output_count = static_cast<uint32_t>(out.size());
  call.scalar_count = static_cast<uint32_t>(scalars.size());
  return op.submit(current_stream(device->index()), call);
}

bool fill_native(const at::Tensor& out, const c10::Scalar& value) {
  static const Operator fill("fill");
  if (!has_number(value) || dtype_of(out.scalar_type()) == OTR_DTYPE_INVALID) {
    return false;
  }
  Call<0, 1, 1> call;
  call.outputs[0] = written_operand(out);
  call.scalars[0] = number(value);
  return call.submit(fill, stream_of(out), 0);
}

void copy_on_device(const at::Tensor& to, const at::Tensor& from) {
  static const Operator copy("copy");
  Call<1, 1, 0> call;
  call.inputs[0] = operand(from);
  call.outputs[0] = written_operand(to);
  if (to.scalar_type() == from.scalar_type() && call.inputs[0].dtype == OTR_DTYPE_INVALID) {
    // A type that the C ABI does not know is moved as bits of its size.
    constexpr std::pair<size_t, otr_dtype_t> kBits[] = {
        {1, OTR_DTYPE_U8}, {2, OTR_DTYPE_I16}, {4, OTR_DTYPE_I32}, {8, OTR_DTYPE_I64}, {16, OTR_DTYPE_C128}};
    for (const auto& [size, dtype] : kBits) {
      if (size == to.itemsize()) {
        call.inputs[0].dtype = call.outputs[0].dtype = dtype;
      }
    }
  }
  if (call.submit(copy, stream_of(to))) {
    return;
  }
  FallbackRecord record("copy_");
  if (is_capturing(stream_of(to))) {
    torch::jit::Stack stack{to, from, false};
    record_on_host("aten::copy_", "", &stack, to.device(), record.name());
    return;
  }
  HostScope scope(to.device());
  record.start();
  scope.announce(to);
  scope.announce(from);
  const at::Tensor host_from = scope.to_host(from, false);
  const at::Tensor host_to = scope.to_host(to, true);
  host_to.copy_(host_from);
  scope.finish();
}

at::Tensor contiguous(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_contiguous()) {
    return tensor;
  }
  at::Tensor copy = empty_on(tensor.device(), tensor.sizes(), tensor.scalar_type());
  copy_on_device(copy, tensor);
  return copy;
}

}  // namespace outrigger
