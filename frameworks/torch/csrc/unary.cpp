//! Elementwise operators of one operand, and activations with their gradients.

#include "elementwise.h"
#include "register.h"

#define OUTRIGGER_UNARY(_) \
  _(sqrt) _(rsqrt) _(reciprocal) _(exp) _(expm1) _(log) _(log1p) _(log2) _(sin) _(cos) _(tanh) _(sigmoid) \
  _(erf) _(floor) _(ceil) _(round) _(trunc) _(neg) _(sign) _(bitwise_not)

#include <ATen/ops/bitwise_not_meta.h>
#include <ATen/ops/bitwise_not_ops.h>
#include <ATen/ops/ceil_meta.h>
#include <ATen/ops/ceil_ops.h>
#include <ATen/ops/cos_meta.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/elu_meta.h>
#include <ATen/ops/elu_ops.h>
#include <ATen/ops/erf_meta.h>
#include <ATen/ops/erf_ops.h>
#include <ATen/ops/exp_meta.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expm1_meta.h>
#include <ATen/ops/expm1_ops.h>
#include <ATen/ops/floor_meta.h>
#include <ATen/ops/floor_ops.h>
#include <ATen/ops/gelu_backward_meta.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_meta.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/hardsigmoid_meta.h>
#include <ATen/ops/hardsigmoid_ops.h>
#include <ATen/ops/leaky_relu_backward_meta.h>
#include <ATen/ops/leaky_relu_backward_ops.h>
#include <ATen/ops/leaky_relu_meta.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/log1p_meta.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log2_meta.h>
#include <ATen/ops/log2_ops.h>
#include <ATen/ops/log_meta.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/neg_meta.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/reciprocal_meta.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/round_meta.h>
#include <ATen/ops/round_ops.h>
#include <ATen/ops/rsqrt_meta.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sgn_meta.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/sigmoid_backward_meta.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_meta.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sign_meta.h>
#include <ATen/ops/sign_ops.h>
#include <ATen/ops/silu_backward_meta.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_meta.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_meta.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/softplus_backward_meta.h>
#include <ATen/ops/softplus_backward_ops.h>
#include <ATen/ops/softplus_meta.h>
#include <ATen/ops/softplus_ops.h>
#include <ATen/ops/sqrt_meta.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/tanh_backward_meta.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_meta.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_meta.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/trunc_meta.h>
#include <ATen/ops/trunc_ops.h>

namespace outrigger {
namespace {

// For some gradients torch's iterator holds input and gradient in this order; the native operators take
// them as the arguments come.
template <Name Native>
struct InputFirst {
  static bool run(
      at::TensorIteratorBase& iterator, const at::Tensor& gradient, const at::Tensor& input,
      const at::Scalar& factor) {
    static const Operator op(Native.text);
    const at::Tensor& output = iterator.output();
    const c10::ScalarType type = output.scalar_type();
    const bool same = gradient.scalar_type() == type && input.scalar_type() == type &&
        gradient.device() == output.device() && input.device() == output.device();
    if (C10_UNLIKELY(!same || !has_number(factor, type))) {
      return false;
    }
    if (C10_UNLIKELY(output.numel() == 0)) {
      return true;
    }
    Call<2, 1, 1> call;
    call.inputs = {operand(gradient), operand(input)};
    call.outputs[0] = written_operand(output);
    call.scalars[0] = number(factor);
    return call.submit(op, stream_of(output));
  }
  // The native operator takes the input, not the result of the forward pass in its place.
  static bool run(
      at::TensorIteratorBase& iterator, const at::Tensor& gradient, const at::Tensor& input,
      const at::Scalar& factor, bool self_is_result) {
    return !self_is_result && run(iterator, gradient, input, factor);
  }
};

}  // namespace

void register_unary(torch::Library& m) {
  namespace ops = at::_ops;
  using namespace at::meta;
#define OUTRIGGER_REGISTER(name) \
  variants<structured_##name, Elementwise<#name>, ops::name, ops::name##_, ops::name##_out>(m);
  OUTRIGGER_UNARY(OUTRIGGER_REGISTER)
  OUTRIGGER_REGISTER(leaky_relu)
  OUTRIGGER_REGISTER(elu)
  OUTRIGGER_REGISTER(gelu)
  OUTRIGGER_REGISTER(silu)
  OUTRIGGER_REGISTER(hardsigmoid)
#undef OUTRIGGER_REGISTER
  // Of a real number it is the sign; complex ones have no kernel.
  variants<structured_sgn, Elementwise<"sign">, ops::sgn, ops::sgn_, ops::sgn_out>(m);
  two_variants<structured_leaky_relu_backward, InputFirst<"leaky_relu_backward">, ops::leaky_relu_backward,
               ops::leaky_relu_backward_grad_input>(m);
  two_variants<structured_softplus, Elementwise<"softplus">, ops::softplus, ops::softplus_out>(m);
#define OUTRIGGER_GRADIENT(name) \
  two_variants<structured_##name, Elementwise<#name>, ops::name, ops::name##_grad_input>(m);
  OUTRIGGER_GRADIENT(softplus_backward)
  OUTRIGGER_GRADIENT(gelu_backward)
  OUTRIGGER_GRADIENT(silu_backward)
  OUTRIGGER_GRADIENT(sigmoid_backward)
  OUTRIGGER_GRADIENT(tanh_backward)
#undef OUTRIGGER_GRADIENT
  two_variants<
      structured_threshold_backward,
      InputFirst<"threshold_backward">,
      ops::threshold_backward,
      ops::threshold_backward_grad_input>(m);
}

}  // namespace outrigger
