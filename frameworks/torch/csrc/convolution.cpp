//! Convolution, forward and backward. The driver is asked first. Else it runs on the CPU over the device's bytes, and is
//! counted as a fallback. Torch's boxed fallback cannot reach these CPU kernels, because torch chooses them above
//! the dispatcher.

#include "register.h"

#include "capture.h"
#include "fallback.h"
#include "recorded.h"
#include "schema_call.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <ATen/native/ConvUtils.h>

namespace outrigger {
namespace {

// The arguments that forward and backward share, from the stride on.
struct Geometry {
  c10::IntArrayRef stride;
  c10::IntArrayRef padding;
  c10::IntArrayRef dilation;
  bool transposed;
  c10::IntArrayRef output_padding;
  int64_t groups;

  Geometry(
      c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
      c10::SymIntArrayRef output_padding, const c10::SymInt& groups)
      : stride(C10_AS_INTARRAYREF_SLOW(stride)),
        padding(C10_AS_INTARRAYREF_SLOW(padding)),
        dilation(C10_AS_INTARRAYREF_SLOW(dilation)),
        transposed(transposed),
        output_padding(C10_AS_INTARRAYREF_SLOW(output_padding)),
        groups(groups.expect_int()) {}

  void add_to(SchemaCall& call) const {
    call.integers(stride);
    call.integers(padding);
    call.integers(dilation);
    call.truth(transposed);
    call.integers(output_padding);
    call.integer(groups);
  }
};

// The result of the driver; undefined if it has no operator for this.
at::Tensor on_driver(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Geometry& geometry) {
  static const SchemaOperator op("convolution");
  if (!op.is_offered(input.device().index())) {
    return {};
  }
  const auto sizes = geometry.transposed
      ? at::native::conv_input_size(
            input.sizes(), weight.sizes(), geometry.padding, geometry.output_padding, geometry.stride,
            geometry.dilation, geometry.groups)
      : at::native::conv_output_size(
            input.sizes(), weight.sizes(), geometry.padding, geometry.stride, geometry.dilation);
  const bool last = input.suggest_memory_format() == c10::MemoryFormat::ChannelsLast && input.dim() == 4;
  const at::Tensor out = empty_on(
      input.device(), sizes, input.scalar_type(), last ? c10::MemoryFormat::ChannelsLast : c10::MemoryFormat::Contiguous);
  SchemaCall call;
  call.input(input);
  call.input(weight);
  call.input(bias);
  geometry.add_to(call);
  call.output(out);
  return call.run(op, input.device()) ? out : at::Tensor();
}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const Geometry geometry(stride, padding, dilation, transposed, output_padding, groups);
  if (const at::Tensor result = on_driver(input, weight, or_undefined(bias), geometry); result.defined()) {
    return result;
  }
  FallbackRecord record("convolution");
  if (is_capturing(stream_of(input))) {
    torch::jit::Stack stack;
    torch::jit::push(
        stack, input, weight, bias, stride, padding, dilation, transposed, output_padding, std::move(groups));
    record_on_host("aten::convolution", "", &stack, input.device(), record.name());
    return torch::jit::pop(stack).toTensor();
  }
  HostScope scope(input.device());
  record.start();
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

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

std::optional<Gradients> backward_on_driver(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, const Geometry& geometry,
    const std::array<bool, 3>& mask) {
  static const SchemaOperator op("convolution_backward");
  if (!op.is_offered(input.device().index())) {
    return std::nullopt;
  }
  const auto like = [](const at::Tensor& tensor, bool wanted) {
    return wanted ? empty_like_on(tensor, tensor.scalar_type()) : at::Tensor();
  };
  const Gradients result(
      like(input, mask[0]), like(weight, mask[1]),
      mask[2] ? empty_on(grad.device(), {grad.size(1)}, grad.scalar_type()) : at::Tensor());
  SchemaCall call;
  call.input(grad);
  call.input(input);
  call.input(weight);
  geometry.add_to(call);
  call.truths(mask);
  call.output(std::get<0>(result));
  call.output(std::get<1>(result));
  call.output(std::get<2>(result));
  return call.run(op, input.device()) ? std::optional<Gradients>(result) : std::nullopt;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  const Geometry geometry(stride, padding, dilation, transposed, output_padding, groups);
  if (std::optional<Gradients> result = backward_on_driver(grad, input, weight, geometry, mask)) {
    return *std::move(result);
  }
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
  record.start();
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
