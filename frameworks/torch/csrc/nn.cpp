//! Softmax and layer norm with their gradients, and shuffles of pixels.

#include "register.h"
#include "structured.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_meta.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/pixel_shuffle_native.h>
#include <ATen/ops/pixel_unshuffle_native.h>

namespace outrigger {
namespace {

template <bool Log>
struct Softmax {
  static bool run(at::impl::MetaBase& meta, const at::Tensor& self, int64_t dim, bool half_to_float) {
    static const Operator op(Log ? "log_softmax" : "softmax");
    const at::Tensor& out = meta.maybe_get_output(0);
    if (half_to_float || self.dim() == 0) {
      return false;
    }
    return self.numel() == 0 ||
        outrigger::run(op, {out}, {self}, {number(at::maybe_wrap_dim(dim, self.dim()))});
  }
};

template <bool Log>
struct SoftmaxBackward {
  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& grad, const at::Tensor& output, int64_t dim,
      c10::ScalarType input_dtype) {
    static const Operator op(Log ? "log_softmax_backward" : "softmax_backward");
    const at::Tensor& out = meta.maybe_get_output(0);
    if (grad.scalar_type() != input_dtype || output.scalar_type() != input_dtype || grad.dim() == 0) {
      return false;
    }
    return grad.numel() == 0 ||
        outrigger::run(op, {out}, {grad, output}, {number(at::maybe_wrap_dim(dim, grad.dim()))});
  }
};

// The sizes of mean and rstd: those of the input with the normalized dimensions reduced to 1.
at::DimVector reduced_sizes(const at::Tensor& input, size_t normalized) {
  at::DimVector sizes(input.sizes());
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized), sizes.end(), 1);
  return sizes;
}

bool ends_with(const at::Tensor& input, at::IntArrayRef shape) {
  return !shape.empty() && input.dim() >= static_cast<int64_t>(shape.size()) &&
      input.sizes().slice(input.sizes().size() - shape.size()) == shape;
}

bool has_shape(const at::Tensor& tensor, at::IntArrayRef shape, c10::ScalarType dtype) {
  return !tensor.defined() || (tensor.sizes() == shape && tensor.scalar_type() == dtype);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(
    const at::Tensor& input, c10::SymIntArrayRef shape_symbols, const std::optional<at::Tensor>& weight_given,
    const std::optional<at::Tensor>& bias_given, double eps) {
  static const Operator op("layer_norm");
  const at::IntArrayRef shape = C10_AS_INTARRAYREF_SLOW(shape_symbols);
  const at::Tensor weight = contiguous(or_undefined(weight_given));
  const at::Tensor bias = contiguous(or_undefined(bias_given));
  const c10::ScalarType dtype = input.scalar_type();
  // A call that does not fit goes to the CPU, which says what is wrong.
  if (is_ours(input) && ends_with(input, shape) && has_shape(weight, shape, dtype) && has_shape(bias, shape, dtype) &&
      input.numel() != 0) {
    const at::Tensor x = contiguous(input);
    const at::DimVector reduced = reduced_sizes(x, shape.size());
    at::Tensor out = empty_on(x.device(), x.sizes(), dtype);
    at::Tensor mean = empty_on(x.device(), reduced, dtype);
    at::Tensor rstd = empty_on(x.device(), reduced, dtype);
    if (run(op, {out, mean, rstd}, {x, weight, bias}, {number(static_cast<int64_t>(shape.size())), number(eps)})) {
      return {std::move(out), std::move(mean), std::move(rstd)};
    }
  }
  return fall_back<at::_ops::native_layer_norm>(input, shape_symbols, weight_given, bias_given, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad, const at::Tensor& input, c10::SymIntArrayRef shape_symbols, const at::Tensor& mean,
    const at::Tensor& rstd, const std::optional<at::Tensor>& weight_given,
    const std::optional<at::Tensor>& bias_given, std::array<bool, 3> mask) {
  static const Operator op("layer_norm_backward");
  const at::IntArrayRef shape = C10_AS_INTARRAYREF_SLOW(shape_symbols);
  const at::Tensor weight = contiguous(or_undefined(weight_given));
  const c10::ScalarType dtype = input.scalar_type();
  if (is_ours(input) && ends_with(input, shape) && has_shape(weight, shape, dtype) && input.numel() != 0 &&
      grad.scalar_type() == dtype && mean.scalar_type() == dtype) {
    const at::Tensor x = contiguous(input);
    const at::Tensor dense_grad = contiguous(grad);
    const at::Tensor dense_mean = contiguous(mean);
    const at::Tensor dense_rstd = contiguous(rstd);
    at::Tensor grad_input = mask[0] ? empty_on(x.device(), x.sizes(), dtype) : at::Tensor();
    at::Tensor grad_weight = mask[1] ? empty_on(x.device(), shape, dtype) : at::Tensor();
    at::Tensor grad_bias = mask[2] ? empty_on(x.device(), shape, dtype) : at::Tensor();
    if ((!mask[0] && !mask[1] && !mask[2]) ||
        run(op, {grad_input, grad_weight, grad_bias}, {dense_grad, x, dense_mean, dense_rstd, weight},
            {number(static_cast<int64_t>(shape.size()))})) {
      return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
    }
  }
  return fall_back<at::_ops::native_layer_norm_backward>(
      grad, input, shape_symbols, mean, rstd, weight_given, bias_given, mask);
}

// The CPU keeps the memory format; torch's kernels for other devices do not.
at::Tensor formatted_like(const at::Tensor& shuffled, const at::Tensor& self) {
  const c10::MemoryFormat format = self.suggest_memory_format();
  return format == c10::MemoryFormat::Contiguous ? shuffled : shuffled.clone(format);
}

at::Tensor pixel_shuffle(const at::Tensor& self, int64_t factor) {
  return formatted_like(at::native::math_pixel_shuffle(self, factor), self);
}

at::Tensor pixel_unshuffle(const at::Tensor& self, int64_t factor) {
  return formatted_like(at::native::math_pixel_unshuffle(self, factor), self);
}

}  // namespace

void register_nn(torch::Library& m) {
  namespace ops = at::_ops;
  using namespace at::meta;
  two_variants<structured__softmax, Softmax<false>, ops::_softmax, ops::_softmax_out>(m);
  two_variants<structured__log_softmax, Softmax<true>, ops::_log_softmax, ops::_log_softmax_out>(m);
  two_variants<structured__softmax_backward_data, SoftmaxBackward<false>, ops::_softmax_backward_data,
               ops::_softmax_backward_data_out>(m);
  two_variants<structured__log_softmax_backward_data, SoftmaxBackward<true>, ops::_log_softmax_backward_data,
               ops::_log_softmax_backward_data_out>(m);
  m.impl("native_layer_norm", &layer_norm);
  m.impl("native_layer_norm_backward", &layer_norm_backward);
  m.impl("pixel_shuffle", &pixel_shuffle);
  m.impl("pixel_unshuffle", &pixel_unshuffle);
}

}  // namespace outrigger
