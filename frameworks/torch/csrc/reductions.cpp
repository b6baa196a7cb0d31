//! Sums, means, extremes and their like over dimensions.

#include "register.h"
#include "structured.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/all_meta.h>
#include <ATen/ops/all_ops.h>
#include <ATen/ops/amax_meta.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/amin_meta.h>
#include <ATen/ops/amin_ops.h>
#include <ATen/ops/any_meta.h>
#include <ATen/ops/any_ops.h>
#include <ATen/ops/argmax_meta.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/argmin_meta.h>
#include <ATen/ops/argmin_ops.h>
#include <ATen/ops/cumsum_meta.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/linalg_vector_norm_meta.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/max_meta.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/mean_meta.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/min_meta.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/prod_meta.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/sum_meta.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/var_ops.h>

namespace outrigger {
namespace {

using Dims = std::bitset<at::dim_bitset_size>;

// No dimensions, or an empty list of them, mean all.
Dims reduced(at::OptionalIntArrayRef dims, int64_t rank) {
  if (!dims.has_value() || dims->empty()) {
    return Dims().set();
  }
  return at::dim_list_to_bitset(dims, static_cast<size_t>(rank));
}

Dims reduced(int64_t dim, int64_t rank) {
  return Dims().set(static_cast<size_t>(at::maybe_wrap_dim(dim, rank)));
}

// The output with size 1 in the reduced dimensions, as the native operators want it.
class Kept {
 public:
  Kept(const at::Tensor& out, const at::Tensor& self, const Dims& reduced_dims) : operand_(written_operand(out)) {
    const int64_t rank = self.dim();
    const bool keeps = out.dim() == rank;
    int64_t next = 0;
    for (int64_t dim = 0; dim < rank; ++dim) {
      const bool gone = reduced_dims[static_cast<size_t>(dim)];
      sizes_.push_back(gone ? 1 : self.size(dim));
      strides_.push_back(gone ? 0 : out.stride(keeps ? dim : next));
      next += gone ? 0 : 1;
    }
    operand_.rank = static_cast<uint32_t>(rank);
    operand_.sizes = sizes_.data();
    operand_.strides = strides_.data();
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  const otr_tensor_t& get() const {
    return operand_;
  }

 private:
  at::DimVector sizes_;
  at::DimVector strides_;
  otr_tensor_t operand_;
};

bool reduce(
    const Operator& op, const at::Tensor& out, const at::Tensor& self, const Dims& dims,
    std::optional<otr_scalar_t> scalar = std::nullopt) {
  if (out.numel() == 0) {
    return true;
  }
  if (self.device() != out.device()) {
    return false;
  }
  const Kept kept(out, self, dims);
  Call<1, 1, 1> call;
  call.inputs[0] = operand(self);
  call.outputs[0] = kept.get();
  if (scalar.has_value()) {
    call.scalars[0] = *scalar;
  }
  return call.submit(op, stream_of(out), 1, 1, scalar.has_value() ? 1 : 0);
}

template <bool Mean>
struct Sum {
  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& self, at::OptionalIntArrayRef dim, bool,
      std::optional<at::ScalarType>) {
    static const Operator op(Mean ? "mean" : "sum");
    const at::Tensor& out = meta.maybe_get_output(0);
    // The mean of nothing is not a number, which the CPU says best.
    return (!Mean || self.numel() != 0) && reduce(op, out, self, reduced(dim, self.dim()));
  }
};

struct Product {
  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& self, int64_t dim, bool, std::optional<at::ScalarType>) {
    static const Operator op("prod");
    return self.dim() != 0 && reduce(op, meta.maybe_get_output(0), self, reduced(dim, self.dim()));
  }
};

struct VectorNorm {
  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& self, const at::Scalar& order, at::OptionalIntArrayRef dim, bool,
      std::optional<at::ScalarType>) {
    static const Operator op("norm");
    const double value = order.isComplex() ? 0.0 : order.toDouble();
    const bool known = value == 1.0 || value == 2.0 || value == std::numeric_limits<double>::infinity();
    return known && self.numel() != 0 &&
        reduce(op, meta.maybe_get_output(0), self, reduced(dim, self.dim()), number(value));
  }
};

template <bool Greatest>
struct Extreme {
  static bool run(at::impl::MetaBase& meta, const at::Tensor& self, at::IntArrayRef dim, bool) {
    static const Operator op(Greatest ? "amax" : "amin");
    return reduce(op, meta.maybe_get_output(0), self, reduced(at::OptionalIntArrayRef(dim), self.dim()));
  }
};

template <bool Greatest>
struct ExtremeIndex {
  static bool run(at::impl::MetaBase& meta, const at::Tensor& self, std::optional<int64_t> dim, bool) {
    static const Operator op(Greatest ? "argmax" : "argmin");
    const Dims dims = dim.has_value() ? reduced(*dim, self.dim()) : Dims().set();
    return reduce(op, meta.maybe_get_output(0), self, dims);
  }
};

template <bool Greatest>
struct ExtremeOfDim {
  static bool run(at::impl::MetaBase& meta, const at::Tensor& self, int64_t dim, bool) {
    static const Operator op(Greatest ? "max_dim" : "min_dim");
    const at::Tensor& values = meta.maybe_get_output(0);
    const at::Tensor& indices = meta.maybe_get_output(1);
    if (values.numel() == 0) {
      return true;
    }
    if (self.device() != values.device() || self.dim() == 0) {
      return false;
    }
    const Dims dims = reduced(dim, self.dim());
    const Kept kept_values(values, self, dims);
    const Kept kept_indices(indices, self, dims);
    Call<1, 2, 0> call;
    call.inputs[0] = operand(self);
    call.outputs = {kept_values.get(), kept_indices.get()};
    return call.submit(op, stream_of(values));
  }
};

template <bool All>
struct Truth {
  static bool run(at::impl::MetaBase& meta, const at::Tensor& self) {
    static const Operator op(All ? "all" : "any");
    return reduce(op, meta.maybe_get_output(0), self, Dims().set());
  }
  static bool run(at::impl::MetaBase& meta, const at::Tensor& self, int64_t dim, bool) {
    static const Operator op(All ? "all" : "any");
    return reduce(op, meta.maybe_get_output(0), self, reduced(dim, self.dim()));
  }
};

struct CumulativeSum {
  template <class Self>
  static bool run(at::impl::MetaBase& meta, const Self& self, int64_t dim, std::optional<at::ScalarType>) {
    static const Operator op("cumsum");
    const at::Tensor& out = meta.maybe_get_output(0);
    return self.dim() != 0 && self.scalar_type() == out.scalar_type() &&
        (out.numel() == 0 || outrigger::run(op, {out}, {self}, {number(at::maybe_wrap_dim(dim, self.dim()))}));
  }
};

at::Tensor extreme_of_all(const at::Tensor& self, bool greatest) {
  TORCH_CHECK(
      self.numel() > 0, greatest ? "max" : "min",
      "(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' "
      "argument.");
  return greatest ? at::_ops::amax::call(self, {}, false) : at::_ops::amin::call(self, {}, false);
}

at::Tensor max(const at::Tensor& self) {
  return extreme_of_all(self, true);
}

at::Tensor min(const at::Tensor& self) {
  return extreme_of_all(self, false);
}

// Variance or deviation; not structured in torch, so the output is made here.
template <bool Root>
at::Tensor variance(
    const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& correction, bool keepdim) {
  static const Operator op(Root ? "std" : "var");
  if (c10::isFloatingType(self.scalar_type()) && self.numel() != 0) {
    const Dims dims = reduced(dim, self.dim());
    at::DimVector sizes;
    int64_t count = 1;
    for (int64_t i = 0; i < self.dim(); ++i) {
      const bool gone = dims[static_cast<size_t>(i)];
      count *= gone ? self.size(i) : 1;
      if (!gone || keepdim) {
        sizes.push_back(gone ? 1 : self.size(i));
      }
    }
    const double less = correction.has_value() ? correction->toDouble() : 1.0;
    const at::Tensor out = empty_on(self.device(), sizes, self.scalar_type());
    // Without degrees of freedom the CPU warns as torch does.
    if (static_cast<double>(count) > less && reduce(op, out, self, dims, number(less))) {
      return out;
    }
  }
  using Op = std::conditional_t<Root, at::_ops::std_correction, at::_ops::var_correction>;
  return fall_back<Op>(self, dim, correction, keepdim);
}

}  // namespace

void register_reductions(torch::Library& m) {
  namespace ops = at::_ops;
  using namespace at::meta;
  two_variants<structured_sum_dim_IntList, Sum<false>, ops::sum_dim_IntList, ops::sum_IntList_out>(m);
  two_variants<structured_mean_dim, Sum<true>, ops::mean_dim, ops::mean_out>(m);
  two_variants<structured_prod_dim_int, Product, ops::prod_dim_int, ops::prod_int_out>(m);
  two_variants<structured_linalg_vector_norm, VectorNorm, ops::linalg_vector_norm, ops::linalg_vector_norm_out>(m);
  two_variants<structured_amax, Extreme<true>, ops::amax, ops::amax_out>(m);
  two_variants<structured_amin, Extreme<false>, ops::amin, ops::amin_out>(m);
  two_variants<structured_argmax, ExtremeIndex<true>, ops::argmax, ops::argmax_out>(m);
  two_variants<structured_argmin, ExtremeIndex<false>, ops::argmin, ops::argmin_out>(m);
  two_variants<structured_max_dim, ExtremeOfDim<true>, ops::max_dim, ops::max_dim_max>(m);
  two_variants<structured_min_dim, ExtremeOfDim<false>, ops::min_dim, ops::min_dim_min>(m);
  two_variants<structured_any, Truth<false>, ops::any, ops::any_all_out>(m);
  two_variants<structured_all, Truth<true>, ops::all, ops::all_all_out>(m);
  two_variants<structured_any_dim, Truth<false>, ops::any_dim, ops::any_out>(m);
  two_variants<structured_all_dim, Truth<true>, ops::all_dim, ops::all_out>(m);
  variants<structured_cumsum, CumulativeSum, ops::cumsum, ops::cumsum_, ops::cumsum_out>(m);
  m.impl("max", &max);
  m.impl("min", &min);
  m.impl("var.correction", TORCH_FN(variance<false>));
  m.impl("std.correction", TORCH_FN(variance<true>));
}

}  // namespace outrigger
