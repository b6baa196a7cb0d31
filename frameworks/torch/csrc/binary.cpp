//! Elementwise arithmetic of two and three operands.

#include "elementwise.h"
#include "register.h"

#include <ATen/ops/add_meta.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_meta.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_meta.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/bitwise_and_meta.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_or_meta.h>
#include <ATen/ops/bitwise_or_ops.h>
#include <ATen/ops/bitwise_xor_meta.h>
#include <ATen/ops/bitwise_xor_ops.h>
#include <ATen/ops/div_meta.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/fmod_meta.h>
#include <ATen/ops/fmod_ops.h>
#include <ATen/ops/lerp_meta.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/maximum_meta.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/minimum_meta.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mul_meta.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/pow_meta.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/remainder_meta.h>
#include <ATen/ops/remainder_ops.h>
#include <ATen/ops/rsub_native.h>
#include <ATen/ops/sub_meta.h>
#include <ATen/ops/sub_ops.h>

namespace outrigger {
namespace {

// Integer division by zero is an error on the CPU and 0 in the native operators: the CPU decides. The
// zero is a value, so it can only be looked for where it is a number.
struct DivideByMode {
  static bool run(
      at::TensorIteratorBase& iterator, const at::Tensor&, const at::Tensor&,
      const std::optional<c10::string_view>& mode) {
    static const Operator exact("div");
    static const Operator truncated("div_trunc");
    static const Operator floored("div_floor");
    if (mode.has_value() && c10::isIntegralType(iterator.output().scalar_type(), /*includeBool=*/true)) {
      return false;
    }
    const Operator& op = !mode.has_value() ? exact : *mode == "trunc" ? truncated : floored;
    return submit_elementwise(iterator, op, nullptr, {});
  }
};

// As above for the operators whose result is an integer for integers. A scalar of halves is rounded first, which the native
// operators do not do.
template <Name Native>
struct Remainder {
  static bool run(at::TensorIteratorBase& iterator, const at::Tensor&, const at::Tensor&) {
    const c10::ScalarType dtype = iterator.output().scalar_type();
    return !c10::isIntegralType(dtype, /*includeBool=*/true) &&
        (!c10::isReducedFloatingType(dtype) || is_ours(iterator.input(1))) &&
        Elementwise<Native, "", Take::kNothing>::run(iterator);
  }
};

// Integers to negative powers are an error or a matter of rounding: the CPU decides.
template <Take From>
struct Power {
  template <class... Arguments>
  static bool run(at::TensorIteratorBase& iterator, const Arguments&... arguments) {
    return c10::isFloatingType(iterator.output().scalar_type()) &&
        Elementwise<"pow", "rpow", From>::run(iterator, arguments...);
  }
};

}  // namespace

void register_binary(torch::Library& m) {
  using namespace at::_ops;
  using namespace at::meta;
  variants<structured_add_Tensor, Elementwise<"add">, add_Tensor, add__Tensor, add_out>(m);
  variants<structured_sub_Tensor, Elementwise<"sub">, sub_Tensor, sub__Tensor, sub_out>(m);
  variants<structured_mul_Tensor, Elementwise<"mul", "mul">, mul_Tensor, mul__Tensor, mul_out>(m);
  variants<structured_div_Tensor, Elementwise<"div", "rdiv">, div_Tensor, div__Tensor, div_out>(m);
  variants<structured_div_Tensor_mode, DivideByMode, div_Tensor_mode, div__Tensor_mode, div_out_mode>(m);
  variants<structured_remainder_Tensor, Remainder<"remainder">, remainder_Tensor, remainder__Tensor,
           remainder_Tensor_out>(m);
  variants<structured_fmod_Tensor, Remainder<"fmod">, fmod_Tensor, fmod__Tensor, fmod_Tensor_out>(m);
  variants<structured_pow_Tensor_Tensor, Power<Take::kNothing>, pow_Tensor_Tensor, pow__Tensor,
           pow_Tensor_Tensor_out>(m);
  variants<structured_pow_Tensor_Scalar, Power<Take::kArguments>, pow_Tensor_Scalar, pow__Scalar,
           pow_Tensor_Scalar_out>(m);
  two_variants<structured_maximum, Elementwise<"maximum", "maximum">, maximum, maximum_out>(m);
  two_variants<structured_minimum, Elementwise<"minimum", "minimum">, minimum, minimum_out>(m);
  variants<structured_bitwise_and_Tensor, Elementwise<"bitwise_and", "bitwise_and">, bitwise_and_Tensor,
           bitwise_and__Tensor, bitwise_and_Tensor_out>(m);
  variants<structured_bitwise_or_Tensor, Elementwise<"bitwise_or", "bitwise_or">, bitwise_or_Tensor,
           bitwise_or__Tensor, bitwise_or_Tensor_out>(m);
  variants<structured_bitwise_xor_Tensor, Elementwise<"bitwise_xor", "bitwise_xor">, bitwise_xor_Tensor,
           bitwise_xor__Tensor, bitwise_xor_Tensor_out>(m);
  variants<structured_addcmul, Elementwise<"addcmul">, addcmul, addcmul_, addcmul_out>(m);
  variants<structured_addcdiv, Elementwise<"addcdiv">, addcdiv, addcdiv_, addcdiv_out>(m);
  variants<structured_lerp_Scalar, Elementwise<"lerp">, lerp_Scalar, lerp__Scalar, lerp_Scalar_out>(m);
  variants<structured_lerp_Tensor, Elementwise<"lerp_tensor">, lerp_Tensor, lerp__Tensor, lerp_Tensor_out>(m);
  m.impl(
      "rsub.Tensor", TORCH_FN(static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Scalar&)>(
                         at::native::rsub)));
}

}  // namespace outrigger
