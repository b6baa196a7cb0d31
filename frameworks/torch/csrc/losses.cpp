//! Losses with their gradients.

#include "elementwise.h"
#include "register.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_meta.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/nll_loss_backward_meta.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_meta.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/sum_ops.h>

namespace outrigger {
namespace {

// The native operators take 64-bit targets of the scores' batch.
bool takes(const at::Tensor& scores, const at::Tensor& target, const at::Tensor& weight) {
  return target.scalar_type() == c10::ScalarType::Long && scores.numel() != 0 &&
      (!weight.defined() || weight.scalar_type() == scores.scalar_type());
}

struct NllLoss {
  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& scores, const at::Tensor& target,
      const std::optional<at::Tensor>& given, int64_t reduction, const c10::SymInt& ignored) {
    static const Operator op("nll_loss_forward");
    const at::Tensor weight = or_undefined(given);
    return takes(scores, target, weight) &&
        outrigger::run(
            op, {meta.maybe_get_output(0), meta.maybe_get_output(1)}, {scores, target, weight},
            {number(reduction), number(meta_argument(ignored))});
  }
};

struct NllLossBackward {
  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& target,
      const std::optional<at::Tensor>& given, int64_t reduction, const c10::SymInt& ignored,
      const at::Tensor& total_weight) {
    static const Operator op("nll_loss_backward");
    const at::Tensor weight = or_undefined(given);
    return takes(scores, target, weight) && grad.scalar_type() == scores.scalar_type() &&
        outrigger::run(
            op, {meta.maybe_get_output(0)}, {grad, target, weight, total_weight},
            {number(reduction), number(meta_argument(ignored))});
  }
};

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.device() == b.device() &&
      c10::isFloatingType(a.scalar_type());
}

struct SquaredError {
  static bool run(at::TensorIteratorBase& iterator, const at::Tensor& self, const at::Tensor& target, int64_t) {
    return same_layout(self, target) && Elementwise<"squared_error", "", Take::kNothing>::run(iterator);
  }
};

at::Tensor mse_loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  static const Operator op("squared_error");
  if (reduction == at::Reduction::None) {
    return FunctionalVariant<at::meta::structured_mse_loss, SquaredError, at::_ops::mse_loss>::call(
        self, target, reduction);
  }
  if (same_layout(self, target) && self.numel() != 0) {
    const at::Tensor errors = empty_on(self.device(), self.sizes(), self.scalar_type());
    if (run(op, {errors}, {self, target})) {
      return reduction == at::Reduction::Mean ? at::_ops::mean::call(errors, std::nullopt)
                                              : at::_ops::sum::call(errors, std::nullopt);
    }
  }
  return fall_back<at::_ops::mse_loss>(self, target, reduction);
}

at::Tensor mse_loss_backward(
    const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  static const Operator op("squared_error_backward");
  if (same_layout(self, target) && grad.scalar_type() == self.scalar_type() && self.numel() != 0) {
    const double factor = reduction == at::Reduction::Mean ? 2.0 / static_cast<double>(self.numel()) : 2.0;
    const at::Tensor out = empty_on(self.device(), self.sizes(), self.scalar_type());
    if (run(op, {out}, {grad, self, target}, {number(factor)})) {
      return out;
    }
  }
  return fall_back<at::_ops::mse_loss_backward>(grad, self, target, reduction);
}

}  // namespace

void register_losses(torch::Library& m) {
  namespace ops = at::_ops;
  using namespace at::meta;
  two_variants<structured_nll_loss_forward, NllLoss, ops::nll_loss_forward, ops::nll_loss_forward_output>(m);
  two_variants<structured_nll_loss_backward, NllLossBackward, ops::nll_loss_backward,
               ops::nll_loss_backward_grad_input>(m);
  m.impl("mse_loss", &mse_loss);
  m.impl("mse_loss_backward", &mse_loss_backward);
}

}  // namespace outrigger
