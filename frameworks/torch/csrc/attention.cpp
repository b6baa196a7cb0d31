//! Scaled dot product attention, forward and backward. The driver is asked first. Else the CPU's flash kernel runs over
//! the device's bytes, and is counted as a fallback. Torch decomposes the cases that this kernel does not cover into
//! products and softmax.

#include "register.h"

#include "capture.h"
#include "fallback.h"
#include "kernel.h"
#include "recorded.h"
#include "schema_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <cmath>
#include <tuple>

namespace outrigger {
namespace {

// The flash kernel where it fits: no dropout, equal head sizes, dense, a mask without gradient.
int64_t choose(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    double dropout, bool causal, std::optional<double>, bool grouped) {
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.dim() == 4 && tensor.scalar_type() == query.scalar_type() && tensor.size(3) == query.size(3) &&
        tensor.size(0) == query.size(0) && tensor.size(1) == query.size(1) && tensor.stride(3) == 1 &&
        tensor.numel() != 0;
  };
  const c10::ScalarType dtype = query.scalar_type();
  const bool typed = dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double ||
      dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Half;
  const bool masked = mask.has_value() && mask->defined();
  const bool mask_fits = !masked ||
      (!causal && !mask->requires_grad() && (mask->dim() == 2 || mask->dim() == 4) &&
       (mask->scalar_type() == dtype || mask->scalar_type() == c10::ScalarType::Bool));
  const bool flash = typed && dropout == 0.0 && !grouped && mask_fits && fits(query) && fits(key) && fits(value);
  return static_cast<int64_t>(flash ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

// As torch does for the CPU: the kernel adds the mask, so that a mask of booleans becomes 0 and -inf.
std::optional<at::Tensor> additive(const at::Tensor& mask, c10::ScalarType dtype) {
  if (!mask.defined()) {
    return std::nullopt;
  }
  if (mask.scalar_type() != c10::ScalarType::Bool) {
    return mask;
  }
  at::Tensor added = mask.device().is_cpu() ? at::detail::empty_cpu(mask.sizes(), dtype)
                                            : empty_on(mask.device(), mask.sizes(), dtype);
  added.zero_();
  added.masked_fill_(mask.logical_not(), -std::numeric_limits<double>::infinity());
  return added;
}

// The arguments of the driver's operators from `is_causal` on.
void add_options(SchemaCall& call, const at::Tensor& query, bool causal, std::optional<double> scale) {
  call.truth(causal);
  call.number(scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3)))));
  // No dropout, and so no random numbers: see `choose`.
  call.number(0.0);
  call.number(int64_t{0});
  call.number(int64_t{0});
}

// Output and log-sum-exp of the driver; none if it has no operator for this.
std::optional<std::pair<at::Tensor, at::Tensor>> on_driver(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask, bool causal,
    std::optional<double> scale) {
  static const SchemaOperator op("attention");
  if (!op.is_offered(query.device().index())) {
    return std::nullopt;
  }
  const bool wide = query.scalar_type() == c10::ScalarType::Double;
  // The layout of torch's own kernels, which fake tensors have.
  const at::Tensor out = empty_like_on(query, query.scalar_type());
  const at::Tensor sums = empty_on(
      query.device(), {query.size(0), query.size(1), query.size(2)},
      wide ? c10::ScalarType::Double : c10::ScalarType::Float);
  SchemaCall call;
  for (const at::Tensor& tensor : {query, key, value, mask}) {
    call.input(tensor);
  }
  add_options(call, query, causal, scale);
  call.output(out);
  call.output(sums);
  return call.run(op, query.device()) ? std::make_optional(std::make_pair(out, sums)) : std::nullopt;
}

// A gradient with the strides of what it belongs to, as the driver's operator gives it.
at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& like) {
  const bool dense = like.is_non_overlapping_and_dense();
  const auto strides = dense ? like.strides().vec() : at::infer_dense_strides(like.sizes(), like.strides());
  if (gradient.strides() == at::IntArrayRef(strides)) {
    return gradient;
  }
  at::Tensor result = gradient.device().is_cpu()
      ? at::detail::empty_strided_cpu(like.sizes(), strides, gradient.scalar_type())
      : empty_like_on(like, gradient.scalar_type());
  return result.copy_(gradient);
}

using Attention = std::tuple<
    at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;

std::pair<at::Tensor, at::Tensor> on_host(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& bias, double dropout,
    bool causal, std::optional<double> scale) {
  FallbackRecord record("scaled_dot_product_attention");
  if (is_capturing(stream_of(query))) {
    torch::jit::Stack stack;
    torch::jit::push(
        stack, query, key, value, dropout, causal, additive(bias, query.scalar_type()), scale);
    record_on_host(
        "aten::_scaled_dot_product_flash_attention_for_cpu", "", &stack, query.device(), record.name());
    return {stack[0].toTensor(), stack[1].toTensor().contiguous()};
  }
  HostScope scope(query.device());
  record.start();
  for (const at::Tensor& tensor : {query, key, value, bias}) {
    scope.announce(tensor);
  }
  const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      scope.to_host(query, false), scope.to_host(key, false), scope.to_host(value, false), dropout, causal,
      additive(scope.to_host(bias, false), query.scalar_type()), scale);
  const std::pair<at::Tensor, at::Tensor> result(scope.to_device(out), scope.to_device(sums.contiguous()));
  record.staged(scope.staged_bytes());
  return result;
}

Attention attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
    double dropout, bool causal, bool, std::optional<double> scale) {
  const at::Tensor bias = or_undefined(mask);
  at::Tensor result;
  at::Tensor logsumexp;
  if (auto found = on_driver(query, key, value, bias, causal, scale)) {
    std::tie(result, logsumexp) = *std::move(found);
  } else {
    std::tie(result, logsumexp) = on_host(query, key, value, bias, dropout, causal, scale);
  }
  // Sequence offsets and random state do not exist for dense batches without dropout; autograd keeps
  // what it is given, so they are empty tensors.
  const at::Tensor none = empty_on(query.device(), {0}, c10::ScalarType::Long);
  return {result, logsumexp, none, none, query.sym_size(2), key.sym_size(2), none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& mask, std::array<bool, 4>, const at::Tensor& out, const at::Tensor& logsumexp,
    const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt, double dropout, bool causal,
    const at::Tensor&, const at::Tensor&, std::optional<double> scale) {
  if (!grad.defined()) {
    return {};
  }
  static const SchemaOperator op("attention_backward");
  if (op.is_offered(query.device().index())) {
    SchemaCall call;
    for (const at::Tensor& tensor : {grad, query, key, value, mask, out, logsumexp}) {
      call.input(tensor);
    }
    add_options(call, query, causal, scale);
    const auto like = [](const at::Tensor& tensor) { return empty_like_on(tensor, tensor.scalar_type()); };
    const at::Tensor grad_query = like(query);
    const at::Tensor grad_key = like(key);
    const at::Tensor grad_value = like(value);
    for (const at::Tensor& tensor : {grad_query, grad_key, grad_value, at::Tensor()}) {
      call.output(tensor);
    }
    if (call.run(op, query.device())) {
      return {grad_query, grad_key, grad_value, at::Tensor()};
    }
  }
  FallbackRecord record("scaled_dot_product_attention_backward");
  if (is_capturing(stream_of(query))) {
    torch::jit::Stack stack;
    torch::jit::push(
        stack, grad, query, key, value, out, logsumexp, dropout, causal, additive(mask, query.scalar_type()), scale);
    record_on_host(
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "", &stack, query.device(), record.name());
    return {
        laid_out_like(stack[0].toTensor(), query), laid_out_like(stack[1].toTensor(), key),
        laid_out_like(stack[2].toTensor(), value), at::Tensor()};
  }
  HostScope scope(query.device());
  record.start();
  for (const at::Tensor& tensor : {grad, query, key, value, out, logsumexp, mask}) {
    scope.announce(tensor);
  }
  const auto host = [&](const at::Tensor& tensor) { return scope.to_host(tensor, false); };
  const auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      host(grad), host(query), host(key), host(value), host(out), host(logsumexp), dropout, causal,
      additive(host(mask), query.scalar_type()), scale);
  const auto back = [&](const at::Tensor& gradient, const at::Tensor& like) {
    return scope.to_device(laid_out_like(gradient, like));
  };
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> result(
      back(grad_query, query), back(grad_key, key), back(grad_value, value), at::Tensor());
  record.staged(scope.staged_bytes());
  return result;
}

}  // namespace

void register_attention(torch::Library& m) {
  m.impl("_fused_sdp_choice", &choose);
  // Torch asks this table first, and takes a device that is not in it for one without fused kernels.
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  at::native::_fused_sdp_choice_stub.set_mtia_dispatch_ptr(&choose);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
}

}  // namespace outrigger
