//! Convolution, forward and backward. It runs on the CPU over the device's bytes, and is counted as a
//! fallback. Torch's boxed fallback cannot reach these CPU kernels, because torch chooses them above
//! the dispatcher.

#include "register.h"

#include "capture.h"
#include "fallback.h"
#include "recorded.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

namespace outrigger {
namespace {

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  FallbackRecord record("convolution");
  if (is_capturing(stream_of(input))) {
    torch::jit::Stack stack;
    torch::jit::push(
        stack, input, weight, bias, stride, padding, dilation, transposed, output_padding, std::move(groups));
    record_on_host("aten::convolution", "", &stack, input.device(), record.name());
    return torch::jit::pop(stack).toTensor();
  }
  HostScope scope(input.device());
  scope.announce(input);
  scope.announce(weight);
  std::optional<at::Tensor> host_bias;
  if (bias.has_value() && bias->defined()) {
    scope.announce(*bias);
    host_bias = scope.to_host(*bias, false);
  }
  const at::Tensor result = scope.to_device(at::convolution_symint(
      scope.to_host(input, false), scope.to_host(weight, false), host_bias, stride, padding, dilation, transposed,
      output_padding, std::move(groups)));
  record.staged(scope.staged_bytes());
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  FallbackRecord record("convolution_backward");
  const std::vector<c10::SymInt> bias_sizes{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  if (is_capturing(stream_of(input))) {
    torch::jit::Stack stack;
    torch::jit::push(
        stack, grad, input, weight, std::optional<std::vector<c10::SymInt>>(bias_sizes), stride, padding, dilation,
        transposed, output_padding, std::move(groups), mask);
    record_on_host("aten::convolution_backward", "", &stack, input.device(), record.name());
    return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor()};
  }
  HostScope scope(input.device());
  scope.announce(grad);
  scope.announce(input);
  scope.announce(weight);
  auto [grad_input, grad_weight, grad_bias] = at::convolution_backward_symint(
      scope.to_host(grad, false), scope.to_host(input, false), scope.to_host(weight, false),
      c10::SymIntArrayRef(bias_sizes), stride, padding, dilation, transposed, output_padding, groups, mask);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result(
      scope.to_device(grad_input), scope.to_device(grad_weight), scope.to_device(grad_bias));
  record.staged(scope.staged_bytes());
  return result;
}

}  // namespace

void register_convolution(torch::Library& m) {
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace outrigger
