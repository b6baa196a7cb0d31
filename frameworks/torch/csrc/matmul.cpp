//! Matrix products.

#include "register.h"
#include "structured.h"

#include <ATen/ops/addmm_meta.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_meta.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/addr_native.h>
#include <ATen/ops/addr_ops.h>
#include <ATen/ops/baddbmm_meta.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_meta.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/mm_meta.h>
#include <ATen/ops/mm_ops.h>

namespace outrigger {
namespace {

// The native operators take one dtype, and check sizes as torch's meta functions have done already.
template <class... Tensors>
bool one_dtype(const at::Tensor& out, const Tensors&... inputs) {
  return ((inputs.scalar_type() == out.scalar_type()) && ...);
}

struct Mm {
  static bool run(at::impl::MetaBase& meta, const at::Tensor& a, const at::Tensor& b) {
    static const Operator op("mm");
    const at::Tensor& out = meta.maybe_get_output(0);
    return one_dtype(out, a, b) && outrigger::run(op, {out}, {a, b});
  }
};

struct Bmm {
  static bool run(at::impl::MetaBase& meta, const at::Tensor& a, const at::Tensor& b) {
    static const Operator op("bmm");
    const at::Tensor& out = meta.maybe_get_output(0);
    return one_dtype(out, a, b) && outrigger::run(op, {out}, {a, b});
  }
};

// A product that is added to a scaled bias. In place, the bias is the output itself.
bool with_bias(
    const Operator& op, const at::Tensor& out, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b,
    const at::Scalar& beta, const at::Scalar& alpha) {
  const c10::ScalarType dtype = out.scalar_type();
  return has_number(beta, dtype) && has_number(alpha, dtype) && one_dtype(out, bias, a, b) &&
      outrigger::run(op, {out}, {bias, a, b}, {number(beta), number(alpha)});
}

struct Addmm {
  static constexpr bool kAddsToFirst = true;

  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b,
      const at::Scalar& beta, const at::Scalar& alpha) {
    static const Operator op("addmm");
    return with_bias(op, meta.maybe_get_output(0), bias, a, b, beta, alpha);
  }
};

struct Baddbmm {
  static constexpr bool kAddsToFirst = true;

  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b,
      const at::Scalar& beta, const at::Scalar& alpha) {
    static const Operator op("baddbmm");
    return with_bias(op, meta.maybe_get_output(0), bias, a, b, beta, alpha);
  }
};

struct Addmv {
  static constexpr bool kAddsToFirst = true;

  static bool run(
      at::impl::MetaBase& meta, const at::Tensor& bias, const at::Tensor& a, const at::Tensor& x,
      const at::Scalar& beta, const at::Scalar& alpha) {
    static const Operator op("addmv");
    return with_bias(op, meta.maybe_get_output(0), bias, a, x, beta, alpha);
  }
};

// Torch makes it of other operators, which take what its own kernel refuses.
at::Tensor addr(
    const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  const c10::ScalarType dtype = self.scalar_type();
  const auto can_take = [&](const at::Scalar& factor) {
    return has_number(factor, dtype) && !(factor.isFloatingPoint() && c10::isIntegralType(dtype, /*includeBool=*/true));
  };
  return can_take(beta) && can_take(alpha) ? at::native::math_addr(self, a, b, beta, alpha)
                                           : fall_back<at::_ops::addr>(self, a, b, beta, alpha);
}

at::Tensor dot(const at::Tensor& a, const at::Tensor& b) {
  static const Operator op("dot");
  if (a.dim() == 1 && b.dim() == 1 && a.size(0) == b.size(0) && a.scalar_type() == b.scalar_type() && is_ours(a)) {
    const at::Tensor out = empty_on(a.device(), {}, a.scalar_type());
    if (run(op, {out}, {a, b})) {
      return out;
    }
  }
  return fall_back<at::_ops::dot>(a, b);
}

}  // namespace

void register_matmul(torch::Library& m) {
  namespace ops = at::_ops;
  using namespace at::meta;
  two_variants<structured_mm, Mm, ops::mm, ops::mm_out>(m);
  two_variants<structured_bmm, Bmm, ops::bmm, ops::bmm_out>(m);
  variants<structured_addmm, Addmm, ops::addmm, ops::addmm_, ops::addmm_out>(m);
  variants<structured_baddbmm, Baddbmm, ops::baddbmm, ops::baddbmm_, ops::baddbmm_out>(m);
  variants<structured_addmv, Addmv, ops::addmv, ops::addmv_, ops::addmv_out>(m);
  m.impl("addr", &addr);
  m.impl("dot", &dot);
}

}  // namespace outrigger
