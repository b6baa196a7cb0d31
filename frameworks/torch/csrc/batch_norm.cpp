//! Batch norm over the batches of several processes, in the parts that SyncBatchNorm exchanges between: a process's
//! statistics, all of them made one, the result, and the same for gradients. The CPU has none of them. Channels are dimension 1, and
//! statistics have the type in which elements are added up.

#include "register.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>

namespace outrigger {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// All dimensions but that of the channels.
at::DimVector over(const at::Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "a batch has a dimension of channels behind its first, and this input has the shape ", input.sizes());
  at::DimVector dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

// A value for each channel, as it stands beside an input.
at::Tensor beside(const at::Tensor& values, const at::Tensor& input) {
  TORCH_CHECK(values.numel() == input.size(1), "an input with ", input.size(1), " channels has ", values.numel(), " of their values");
  at::DimVector sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.reshape(sizes);
}

at::Tensor as_statistic(const at::Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()));
}

std::tuple<at::Tensor, at::Tensor> stats(const at::Tensor& input, double eps) {
  auto [variance, mean] = at::var_mean(as_statistic(input), over(input), /*correction=*/0);
  return {std::move(mean), variance.add_(eps).rsqrt_()};
}

// One row for each process.
std::tuple<at::Tensor, at::Tensor> gather_stats_with_counts(
    const at::Tensor&, const at::Tensor& means, const at::Tensor& inverses, const OptionalTensor& running_mean,
    const OptionalTensor& running_var, double momentum, double eps, const at::Tensor& counts) {
  const at::Tensor each = as_statistic(means);
  const at::Tensor weights = counts.to(each.scalar_type()).reshape({-1, 1});
  const at::Tensor total = weights.sum();
  at::Tensor mean = (each * weights).sum(0) / total;
  const at::Tensor within = as_statistic(inverses).pow(-2) - eps;
  const at::Tensor variance = ((within + (each - mean).square()) * weights).sum(0) / total;
  if (running_mean.has_value() && running_mean->defined()) {
    running_mean->mul_(1 - momentum).add_(mean, momentum);
  }
  if (running_var.has_value() && running_var->defined()) {
    running_var->mul_(1 - momentum).add_(variance * (total / (total - 1)), momentum);
  }
  return {std::move(mean), (variance + eps).rsqrt()};
}

std::tuple<at::Tensor, at::Tensor> gather_stats(
    const at::Tensor& input, const at::Tensor& means, const at::Tensor& inverses, const OptionalTensor& running_mean,
    const OptionalTensor& running_var, double momentum, double eps, int64_t count) {
  const at::Tensor counts = at::full({means.size(0)}, count, means.options());
  return gather_stats_with_counts(input, means, inverses, running_mean, running_var, momentum, eps, counts);
}

at::Tensor element(
    const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, const at::Tensor& mean,
    const at::Tensor& inverse, double) {
  at::Tensor made = (input - beside(mean, input)) * beside(inverse, input);
  if (weight.has_value() && weight->defined()) {
    made = made * beside(*weight, input);
  }
  if (bias.has_value() && bias->defined()) {
    made = made + beside(*bias, input);
  }
  return made.to(input.scalar_type());
}

at::Tensor& element_out(
    const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, const at::Tensor& mean,
    const at::Tensor& inverse, double eps, at::Tensor& out) {
  return out.resize_(input.sizes()).copy_(element(input, weight, bias, mean, inverse, eps));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward_reduce(
    const at::Tensor& given, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inverse,
    const OptionalTensor& weight, bool, bool of_weight, bool of_bias) {
  const at::Tensor grad = as_statistic(given);
  at::Tensor sum = grad.sum(over(input));
  at::Tensor sum_centred = (grad * (input - beside(mean, input))).sum(over(input));
  const c10::ScalarType dtype = weight.has_value() && weight->defined() ? weight->scalar_type() : sum.scalar_type();
  at::Tensor grad_weight = of_weight ? (sum_centred * inverse).to(dtype) : at::Tensor();
  // A sum that is exchanged in place is not the gradient.
  at::Tensor grad_bias = of_bias ? sum.to(dtype, /*non_blocking=*/false, /*copy=*/true) : at::Tensor();
  return {std::move(sum), std::move(sum_centred), std::move(grad_weight), std::move(grad_bias)};
}

at::Tensor backward_element(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inverse,
    const OptionalTensor& weight, const at::Tensor& sum, const at::Tensor& sum_centred, const at::Tensor& counts) {
  const at::Tensor total = counts.sum().to(sum.scalar_type());
  const at::Tensor slope = sum_centred / total * inverse.square();
  at::Tensor made = as_statistic(grad) - beside(sum / total, input) - (input - beside(mean, input)) * beside(slope, input);
  made = made * beside(inverse, input);
  if (weight.has_value() && weight->defined()) {
    made = made * beside(*weight, input);
  }
  return made.to(input.scalar_type());
}

}  // namespace

void register_batch_norm(torch::Library& m) {
  m.impl("batch_norm_stats", &stats);
  m.impl("batch_norm_gather_stats", &gather_stats);
  m.impl("batch_norm_gather_stats_with_counts", &gather_stats_with_counts);
  m.impl("batch_norm_elemt", &element);
  m.impl("batch_norm_elemt.out", &element_out);
  m.impl("batch_norm_backward_reduce", &backward_reduce);
  m.impl("batch_norm_backward_elemt", &backward_element);
}

}  // namespace outrigger
