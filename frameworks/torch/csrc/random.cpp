//! Random numbers, drawn on the device by its own generators.
//! It must never take numbers from the CPU's generator.

#include "register.h"

#include "fallback.h"
#include "generator.h"
#include "kernel.h"
#include "random.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/ops/normal_ops.h>
#include <ATen/ops/random_ops.h>
#include <ATen/ops/uniform_ops.h>

namespace outrigger {

int64_t limit_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Bool: return 2;
    case c10::ScalarType::Half: return (1 << 11) + 1;
    case c10::ScalarType::BFloat16: return (1 << 8) + 1;
    case c10::ScalarType::Float: return (1 << 24) + 1;
    case c10::ScalarType::Double: return (int64_t{1} << 53) + 1;
    case c10::ScalarType::Byte: return 1 << 8;
    case c10::ScalarType::Char: return 1 << 7;
    case c10::ScalarType::Short: return 1 << 15;
    case c10::ScalarType::Int: return int64_t{1} << 31;
    default: return 0;
  }
}

namespace {

using OptionalGenerator = std::optional<at::Generator>;

// Fills `self` by a native operator with two numbers. False if there is none for the dtype; the numbers
// that were reserved for it are then passed over.
template <class... Numbers>
bool draw(const Operator& op, const at::Tensor& self, const OptionalGenerator& generator, Numbers... numbers) {
  at::assert_no_internal_overlap(self);
  if (dtype_of(self.scalar_type()) == OTR_DTYPE_INVALID || self.is_complex()) {
    return false;
  }
  if (self.numel() == 0) {
    return true;
  }
  const auto outputs = static_cast<uint64_t>(self.numel() + 1) / 2;
  const Philox start = reserve(generator, self.device(), outputs);
  return run(
      op, {self}, {},
      {number(numbers)..., number(static_cast<int64_t>(start.seed)), number(static_cast<int64_t>(start.offset))});
}

at::Tensor& uniform(at::Tensor& self, double from, double to, OptionalGenerator generator) {
  static const Operator op("uniform");
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  // Bounds beyond the dtype, and other dtypes, are an error, which the CPU words as torch does.
  const double largest = largest_of(self.scalar_type());
  const bool fits = largest != 0 && from >= -largest && to <= largest && to - from <= largest;
  return fits && draw(op, self, generator, from, to) ? self
                                                     : fall_back<at::_ops::uniform_>(self, from, to, generator);
}

at::Tensor& normal(at::Tensor& self, double mean, double deviation, OptionalGenerator generator) {
  static const Operator op("normal");
  TORCH_CHECK(deviation >= 0.0, "normal expects std >= 0.0, but found std ", deviation);
  const c10::ScalarType dtype = self.scalar_type();
  const bool is_known = largest_of(dtype) != 0 && fits(number(mean), dtype) && fits(number(deviation), dtype);
  return is_known && draw(op, self, generator, mean, deviation)
      ? self
      : fall_back<at::_ops::normal_>(self, mean, deviation, generator);
}

at::Tensor& bernoulli(at::Tensor& self, double p, OptionalGenerator generator) {
  static const Operator op("bernoulli");
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  return draw(op, self, generator, p) ? self : fall_back<at::_ops::bernoulli__float>(self, p, generator);
}

at::Tensor& random(at::Tensor& self, OptionalGenerator generator) {
  static const Operator op("random_int");
  const int64_t limit = limit_of(self.scalar_type());
  return limit != 0 && draw(op, self, generator, int64_t{0}, limit) ? self
                                                                    : fall_back<at::_ops::random_>(self, generator);
}

at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to, OptionalGenerator generator) {
  static const Operator op("random_int");
  const int64_t limit = limit_of(self.scalar_type());
  const bool wide = self.scalar_type() == c10::ScalarType::Long;
  // Ranges beyond the dtype are an error or a warning, which the CPU words as torch does.
  const int64_t lowest = limit != 0 && c10::isSignedType(self.scalar_type()) ? -limit : 0;
  const bool fits = to.has_value() && from < *to && (wide || (limit != 0 && from >= lowest && *to <= limit));
  return fits && draw(op, self, generator, from, *to) ? self
                                                      : fall_back<at::_ops::random__from>(self, from, to, generator);
}

at::Tensor& random_to(at::Tensor& self, int64_t to, OptionalGenerator generator) {
  return random_from(self, 0, to, std::move(generator));
}

// Torch asks for this one on PrivateUse1; elsewhere it makes dropout of other operators.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0.0 || input.numel() == 0) {
    return {input.clone(), at::ones_like(input, c10::ScalarType::Bool)};
  }
  if (p == 1.0) {
    return {at::zeros_like(input), at::zeros_like(input, c10::ScalarType::Bool)};
  }
  at::Tensor mask = empty_like_on(input, c10::ScalarType::Bool);
  bernoulli(mask, 1.0 - p, std::nullopt);
  return {input.mul(mask).mul_(1.0 / (1.0 - p)), mask};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  const at::Tensor kept = grad.mul(mask);
  // A whole number times the scale is none.
  return c10::isIntegralType(kept.scalar_type(), /*includeBool=*/true) ? kept.mul(scale) : kept.mul_(scale);
}

}  // namespace

void register_random(torch::Library& m) {
  m.impl("uniform_", &uniform);
  m.impl("normal_", &normal);
  m.impl("bernoulli_.float", &bernoulli);
  m.impl("random_", &random);
  m.impl("random_.from", &random_from);
  m.impl("random_.to", &random_to);
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
}

}  // namespace outrigger
