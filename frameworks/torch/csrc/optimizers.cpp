//! Fused steps of optimizers: one native call for each parameter.

#include "register.h"

#include "fallback.h"
#include "kernel.h"

#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>

namespace outrigger {
namespace {

// The native steps walk plain memory: dense, alike, of one dtype, on one device.
bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
      a.device() == b.device();
}

bool steps_natively(at::TensorList parameters, std::initializer_list<at::TensorList> others) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (!is_ours(parameter) || !parameter.is_non_overlapping_and_dense() ||
        !c10::isFloatingType(parameter.scalar_type())) {
      return false;
    }
    for (const at::TensorList& list : others) {
      if (!list.empty() && !alike(parameter, list[i])) {
        return false;
      }
    }
  }
  return true;
}

template <bool Decoupled, class Op>
void adam(
    at::TensorList parameters, at::TensorList grads, at::TensorList averages, at::TensorList squares,
    at::TensorList maxima, at::TensorList steps, double lr, double beta1, double beta2, double weight_decay, double eps,
    bool amsgrad, bool maximize, const std::optional<at::Tensor>& grad_scale,
    const std::optional<at::Tensor>& found_inf) {
  static const Operator op(Decoupled ? "adamw_step" : "adam_step");
  bool native = !or_undefined(grad_scale).defined() && !or_undefined(found_inf).defined() &&
      steps_natively(parameters, {grads, averages, squares, maxima});
  for (const at::Tensor& step : steps) {
    native = native && is_ours(step) && step.numel() == 1 && step.scalar_type() == c10::ScalarType::Float;
  }
  size_t done = 0;
  for (; native && done < parameters.size(); ++done) {
    const at::Tensor none;
    Call<2, 4, 6> call;
    call.inputs = {operand(grads[done]), operand(steps[done])};
    call.outputs = {written_operand(parameters[done]), written_operand(averages[done]), written_operand(squares[done]),
                    amsgrad ? written_operand(maxima[done]) : operand(none)};
    call.scalars = {number(lr), number(beta1), number(beta2), number(eps), number(weight_decay),
                    number(static_cast<int64_t>(maximize))};
    native = call.submit(op, stream_of(parameters[done]), 2, amsgrad ? 4 : 3, 6);
    if (!native) {
      break;
    }
  }
  if (done == parameters.size()) {
    return;
  }
  const auto rest = [&](at::TensorList list) { return list.empty() ? list : list.slice(done); };
  fall_back<Op>(
      rest(parameters), rest(grads), rest(averages), rest(squares), rest(maxima), rest(steps), lr, beta1, beta2,
      weight_decay, eps, amsgrad, maximize, grad_scale, found_inf);
}

void sgd(
    at::TensorList parameters, at::TensorList grads, at::TensorList buffers, double weight_decay, double momentum,
    double lr, double dampening, bool nesterov, bool maximize, bool first_step,
    const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf) {
  static const Operator op("sgd_step");
  bool native = !or_undefined(grad_scale).defined() && !or_undefined(found_inf).defined() &&
      steps_natively(parameters, {grads, buffers});
  size_t done = 0;
  for (; native && done < parameters.size(); ++done) {
    const at::Tensor none;
    const bool buffered = momentum != 0.0;
    Call<1, 2, 7> call;
    call.inputs = {operand(grads[done])};
    call.outputs = {written_operand(parameters[done]), buffered ? written_operand(buffers[done]) : operand(none)};
    call.scalars = {number(lr), number(momentum), number(dampening), number(weight_decay),
                    number(static_cast<int64_t>(nesterov)), number(static_cast<int64_t>(maximize)),
                    number(static_cast<int64_t>(first_step))};
    native = call.submit(op, stream_of(parameters[done]), 1, buffered ? 2 : 1, 7);
    if (!native) {
      break;
    }
  }
  if (done == parameters.size()) {
    return;
  }
  const auto rest = [&](at::TensorList list) { return list.empty() ? list : list.slice(done); };
  fall_back<at::_ops::_fused_sgd_>(
      rest(parameters), rest(grads), rest(buffers), weight_decay, momentum, lr, dampening, nesterov, maximize,
      first_step, grad_scale, found_inf);
}

}  // namespace

void register_optimizers(torch::Library& m) {
  m.impl("_fused_adam_", TORCH_FN((adam<false, at::_ops::_fused_adam_>)));
  m.impl("_fused_adamw_", TORCH_FN((adam<true, at::_ops::_fused_adamw_>)));
  m.impl("_fused_sgd_", &sgd);
}

}  // namespace outrigger
