//! Comparisons, logic, asserts, and selection between values.

#include "elementwise.h"
#include "recorded.h"
#include "register.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/clamp_max_meta.h>
#include <ATen/ops/clamp_max_ops.h>
#include <ATen/ops/clamp_meta.h>
#include <ATen/ops/clamp_min_meta.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/eq_meta.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/ge_meta.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gt_meta.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/isnan_ops.h>
#include <ATen/ops/le_meta.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/logical_and_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/logical_or_ops.h>
#include <ATen/ops/logical_xor_ops.h>
#include <ATen/ops/lt_meta.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/ne_meta.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/where_ops.h>

#include <cmath>

namespace outrigger {
namespace {

// A bound that is not a number makes every element so: the CPU does that.
bool is_nan(const at::Scalar& bound) {
  return bound.isFloatingPoint() && std::isnan(bound.toDouble());
}

template <Name Native>
struct ClampOne {
  static bool run(at::TensorIteratorBase& iterator, const at::Tensor& self, const at::Scalar& bound) {
    return !is_nan(bound) && Elementwise<Native>::run(iterator, self, bound);
  }
};

// One operator for each of the bounds that are given.
struct Clamp {
  static bool run(
      at::TensorIteratorBase& iterator, const at::Tensor&, const std::optional<at::Scalar>& low,
      const std::optional<at::Scalar>& high) {
    static const Operator both("clamp");
    static const Operator lower("clamp_min");
    static const Operator upper("clamp_max");
    Numbers numbers;
    for (const auto& bound : {low, high}) {
      if (bound.has_value()) {
        if (is_nan(*bound)) {
          return false;
        }
        numbers.take(*bound);
      }
    }
    const Operator& op = low.has_value() && high.has_value() ? both : low.has_value() ? lower : upper;
    return submit_elementwise(iterator, op, nullptr, numbers);
  }
};

// The comparison operators that torch has not made structured.
template <Name Native, class Op>
at::Tensor& logical_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  own_memory_of(out);
  auto iterator = at::TensorIterator::comparison_op(out, self, other);
  if (Elementwise<Native, Native, Take::kNothing>::run(iterator)) {
    return out;
  }
  return fall_back<Op>(self, other, out);
}

at::Tensor& logical_not_out(const at::Tensor& self, at::Tensor& out) {
  own_memory_of(out);
  auto iterator =
      at::TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).build();
  if (out.scalar_type() == c10::ScalarType::Bool && Elementwise<"logical_not">::run(iterator)) {
    return out;
  }
  return fall_back<at::_ops::logical_not_out>(self, out);
}

at::Tensor isnan(const at::Tensor& self) {
  static const Operator op("isnan");
  const at::Tensor out = empty_like_on(self, c10::ScalarType::Bool);
  if (out.numel() == 0 || run(op, {out}, {self})) {
    return out;
  }
  return fall_back<at::_ops::isnan>(self);
}

at::Tensor& abs_out(const at::Tensor& self, at::Tensor& out) {
  if (!self.is_complex()) {
    own_memory_of(out);
    auto iterator = at::TensorIterator::unary_op(out, self);
    if (Elementwise<"abs">::run(iterator)) {
      return out;
    }
  }
  return fall_back<at::_ops::abs_out>(self, out);
}

at::Tensor relu(const at::Tensor& self) {
  static const Operator op("relu");
  if (self.scalar_type() != c10::ScalarType::Bool) {
    const at::Tensor out = empty_like_on(self, self.scalar_type());
    if (out.numel() == 0 || run(op, {out}, {self})) {
      return out;
    }
  }
  return fall_back<at::_ops::relu>(self);
}

at::Tensor& relu_(at::Tensor& self) {
  static const Operator op("relu");
  if (self.scalar_type() != c10::ScalarType::Bool &&
      (self.numel() == 0 || (self.is_non_overlapping_and_dense() && run(op, {self}, {self})))) {
    return self;
  }
  return fall_back<at::_ops::relu_>(self);
}

// A scalar on the CPU as a device tensor; anything else as it is.
bool onto(c10::Device device, const at::Tensor& tensor, at::Tensor& out) {
  if (tensor.device() == device) {
    out = tensor;
    return true;
  }
  if (!tensor.device().is_cpu() || tensor.dim() != 0) {
    return false;
  }
  const c10::Scalar value = value_of(tensor);
  out = empty_on(device, {}, tensor.scalar_type());
  return has_number(value) && fill_native(out, value);
}

// The layout of a result of `where`, which torch has not made structured.
struct Selection : at::TensorIteratorBase {
  void meta(
      const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, c10::ScalarType dtype) {
    build(at::TensorIteratorConfig()
              .check_all_same_dtype(false)
              .declare_static_dtype_and_device(dtype, condition.device())
              .add_output(maybe_get_output(0))
              .add_const_input(condition)
              .add_const_input(self)
              .add_const_input(other));
  }
};

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  static const Operator op("where");
  at::Tensor inputs[3];
  const c10::Device device = condition.device();
  if (is_ours(condition) && condition.scalar_type() == c10::ScalarType::Bool && onto(device, condition, inputs[0]) &&
      onto(device, self, inputs[1]) && onto(device, other, inputs[2])) {
    Functional<Selection, 1> selection;
    selection.meta(inputs[0], inputs[1], inputs[2], at::result_type(self, other));
    at::Tensor& out = selection.outputs[0];
    if (out.numel() == 0 || run(op, {out}, {inputs[0], inputs[1], inputs[2]})) {
      return std::move(out);
    }
  }
  return fall_back<at::_ops::where_self>(condition, self, other);
}

// Whether the mask can be laid over the tensor, and the tensor written element by element.
bool can_mask(const at::Tensor& self, const at::Tensor& mask) {
  at::assert_no_partial_overlap(self, mask);
  return mask.scalar_type() == c10::ScalarType::Bool && mask.device() == self.device() &&
      self.is_non_overlapping_and_dense() && mask.dim() <= self.dim() &&
      at::is_expandable_to(mask.sizes(), self.sizes());
}

at::Tensor& masked_fill(at::Tensor& self, const at::Tensor& mask, const at::Scalar& value) {
  static const Operator op("masked_fill");
  const c10::ScalarType dtype = self.scalar_type();
  const bool converts = value.isFloatingPoint() && !c10::isFloatingType(dtype);
  if (has_number(value, dtype) && !converts && can_mask(self, mask) &&
      (self.numel() == 0 || run(op, {self}, {self, mask}, {number(value)}))) {
    return self;
  }
  return fall_back<at::_ops::masked_fill__Scalar>(self, mask, value);
}

at::Tensor& masked_fill_tensor(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  static const Operator op("where");
  TORCH_CHECK(
      value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ", value.dim(),
      " dimension(s).");
  if (value.device().is_cpu()) {
    return masked_fill(self, mask, value_of(value));
  }
  if (value.scalar_type() == self.scalar_type() && can_mask(self, mask) &&
      (self.numel() == 0 || run(op, {self}, {mask, value, self}))) {
    return self;
  }
  return fall_back<at::_ops::masked_fill__Tensor>(self, mask, value);
}

// Fails the stream where a bool is false. `arguments` is its address.
otr_code_t assert_on_stream(const void* arguments, uint32_t, int64_t bias) noexcept {
  const uint64_t address = *static_cast<const uint64_t*>(arguments) + static_cast<uint64_t>(bias);
  return *reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(address)) != 0 ? OTR_OK : OTR_ERR_EXECUTION;
}

// Torch's kernel on the CPU would have the host wait for the value.
void assert_async(const at::Tensor& condition, std::string_view name) {
  const int64_t count = condition.numel();
  TORCH_CHECK(
      count == 1, "Boolean value of Tensor with ", count == 0 ? "no values" : "more than one value", " is ambiguous");
  const at::Tensor holds = condition.to(at::kBool);
  const uint64_t address = address_of(holds.const_data_ptr());
  const uint32_t offset = 0;
  const otr_address_range_t range{1, 0, 0};
  auto call = otr::sized<otr_host_kernel_call_t>();
  call.function = &assert_on_stream;
  call.args = &address;
  call.args_size = sizeof(address);
  call.label = lasting(name);
  call.address_offsets = &offset;
  call.address_count = 1;
  call.address_ranges = &range;
  check(otr_host_kernel_launch(stream_of(holds), &call));
}

void assert_without_text(const at::Tensor& condition) {
  assert_async(condition, "_assert_async");
}

void assert_with_text(const at::Tensor& condition, c10::string_view text) {
  assert_async(condition, c10::str("_assert_async: ", text));
}

}  // namespace

void register_logic(torch::Library& m) {
  namespace ops = at::_ops;
  using namespace at::meta;
#define OUTRIGGER_COMPARE(name, swapped)                                                                         \
  variants<structured_##name##_Tensor, Elementwise<#name, swapped, Take::kNothing>, ops::name##_Tensor,           \
           ops::name##__Tensor, ops::name##_Tensor_out>(m);                                                       \
  variants<structured_##name##_Scalar, Elementwise<#name, swapped, Take::kNothing>, ops::name##_Scalar,           \
           ops::name##__Scalar, ops::name##_Scalar_out>(m);
  OUTRIGGER_COMPARE(eq, "eq")
  OUTRIGGER_COMPARE(ne, "ne")
  OUTRIGGER_COMPARE(lt, "gt")
  OUTRIGGER_COMPARE(le, "ge")
  OUTRIGGER_COMPARE(gt, "lt")
  OUTRIGGER_COMPARE(ge, "le")
#undef OUTRIGGER_COMPARE
  variants<structured_clamp, Clamp, ops::clamp, ops::clamp_, ops::clamp_out>(m);
  variants<structured_clamp_min, ClampOne<"clamp_min">, ops::clamp_min, ops::clamp_min_, ops::clamp_min_out>(m);
  variants<structured_clamp_max, ClampOne<"clamp_max">, ops::clamp_max, ops::clamp_max_, ops::clamp_max_out>(m);
  variants<structured_clamp_min_Tensor, Elementwise<"maximum", "maximum">, ops::clamp_min_Tensor,
           ops::clamp_min__Tensor, ops::clamp_min_Tensor_out>(m);
  variants<structured_clamp_max_Tensor, Elementwise<"minimum", "minimum">, ops::clamp_max_Tensor,
           ops::clamp_max__Tensor, ops::clamp_max_Tensor_out>(m);
  m.impl("logical_and.out", TORCH_FN((logical_out<"logical_and", ops::logical_and_out>)));
  m.impl("logical_or.out", TORCH_FN((logical_out<"logical_or", ops::logical_or_out>)));
  m.impl("logical_xor.out", TORCH_FN((logical_out<"logical_xor", ops::logical_xor_out>)));
  m.impl("logical_not.out", &logical_not_out);
  m.impl("isnan", &isnan);
  m.impl("abs.out", &abs_out);
  m.impl("relu", &relu);
  m.impl("relu_", &relu_);
  m.impl("where.self", &where);
  m.impl("masked_fill_.Scalar", &masked_fill);
  m.impl("masked_fill_.Tensor", &masked_fill_tensor);
  m.impl("_assert_async", &assert_without_text);
  m.impl("_assert_async.msg", &assert_with_text);
}

}  // namespace outrigger
