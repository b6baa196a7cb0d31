//! Random numbers of more distributions, made of those of random.cpp by operators of the device. It must never make the
//! host wait for a value.

#include "register.h"

#include "fallback.h"
#include "generator.h"
#include "kernel.h"
#include "random.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/_sample_dirichlet_ops.h>
#include <ATen/ops/_standard_gamma_ops.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/binomial_ops.h>
#include <ATen/ops/cauchy_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exponential_ops.h>
#include <ATen/ops/geometric_ops.h>
#include <ATen/ops/log_normal_ops.h>
#include <ATen/ops/poisson_ops.h>
#include <ATen/ops/searchsorted.h>

#include <cmath>
#include <limits>

namespace outrigger {
namespace {

using OptionalGenerator = std::optional<at::Generator>;

// The type in which numbers for a dtype are made.
c10::ScalarType type_for(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? dtype : c10::ScalarType::Float;
}

// A new tensor of the sizes of `like`, uniform in [0, 1).
at::Tensor uniform_of(const at::Tensor& like, const OptionalGenerator& generator) {
  return at::empty(like.sizes(), like.options().dtype(type_for(like.scalar_type()))).uniform_(0, 1, generator);
}

// -log(1 - u) of uniform numbers, in place: exponential with a rate of 1. Never 0, so that one may divide by it.
at::Tensor& to_exponential(at::Tensor& uniform) {
  const double least = uniform.scalar_type() == c10::ScalarType::Double ? std::numeric_limits<double>::epsilon()
                                                                         : std::numeric_limits<float>::epsilon();
  return uniform.neg_().log1p_().neg_().clamp_min_(least / 2);
}

// The least normal number of a dtype.
double least_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half: return std::numeric_limits<c10::Half>::min();
    case c10::ScalarType::BFloat16: return std::numeric_limits<c10::BFloat16>::min();
    case c10::ScalarType::Float: return std::numeric_limits<float>::min();
    default: return std::numeric_limits<double>::min();
  }
}

// Other dtypes are an error, or not, as the CPU has it and words it.
bool is_float(const at::Tensor& self) {
  return at::isFloatingType(self.scalar_type());
}

at::Tensor& exponential(at::Tensor& self, double rate, OptionalGenerator generator) {
  if (!is_float(self)) {
    return fall_back<at::_ops::exponential_>(self, rate, generator);
  }
  TORCH_CHECK(rate > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
  at::assert_no_internal_overlap(self);
  at::Tensor made = uniform_of(self, generator);
  return self.copy_(to_exponential(made).div_(rate));
}

at::Tensor& cauchy(at::Tensor& self, double median, double sigma, OptionalGenerator generator) {
  if (!is_float(self)) {
    return fall_back<at::_ops::cauchy_>(self, median, sigma, generator);
  }
  TORCH_CHECK(sigma > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  at::assert_no_internal_overlap(self);
  at::Tensor made = uniform_of(self, generator);
  return self.copy_(made.sub_(0.5).mul_(M_PI).tan_().mul_(sigma).add_(median));
}

at::Tensor& log_normal(at::Tensor& self, double mean, double deviation, OptionalGenerator generator) {
  if (!is_float(self)) {
    return fall_back<at::_ops::log_normal_>(self, mean, deviation, generator);
  }
  TORCH_CHECK(deviation > 0.0, "log_normal_ expects std > 0.0, but found std=", deviation);
  return self.normal_(mean, deviation, std::move(generator)).exp_();
}

at::Tensor& geometric(at::Tensor& self, double p, OptionalGenerator generator) {
  const bool is_whole = at::isIntegralType(self.scalar_type(), /*includeBool=*/false) &&
      !c10::isBarebonesUnsignedType(self.scalar_type());
  if (!is_float(self) && !is_whole) {
    return fall_back<at::_ops::geometric_>(self, p, generator);
  }
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  at::assert_no_internal_overlap(self);
  at::Tensor made = uniform_of(self, generator);
  return self.copy_(to_exponential(made).div_(-std::log1p(-p)).ceil_());
}

at::Tensor& bernoulli_of(at::Tensor& self, const at::Tensor& p, OptionalGenerator generator) {
  TORCH_CHECK(
      at::isFloatingType(p.scalar_type()), "bernoulli_ expects probabilities of a floating-point dtype, but found ",
      p.scalar_type());
  at::assert_no_internal_overlap(self);
  const at::Tensor near = p.to(self.device());
  const c10::MaybeOwned<at::Tensor> chances = at::expand_inplace(self, near, "bernoulli_");
  return self.copy_(uniform_of(*chances, generator).lt(*chances));
}

at::Tensor& permutation(int64_t n, OptionalGenerator generator, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  const int64_t limit = limit_of(out.scalar_type());
  TORCH_CHECK(
      limit == 0 || n <= limit, "n is too large for the dtype ", out.scalar_type(), ": ", n);
  out.resize_({n});
  if (n == 0) {
    return out;
  }
  // Of 2^62 keys hardly ever two are equal.
  at::Tensor keys = at::empty({n}, out.options().dtype(c10::ScalarType::Long));
  keys.random_(0, int64_t{1} << 62, std::move(generator));
  return out.copy_(keys.argsort());
}

constexpr int64_t LARGEST_CATEGORY_COUNT = int64_t{1} << 24;

// Torch's checks of probabilities before it draws. The stream fails, as nobody waits for their values.
void check_chances(const at::Tensor& chances) {
  const at::Tensor valid = chances.max().lt(std::numeric_limits<double>::infinity()).logical_and_(chances.min().ge(0));
  at::_assert_async(valid, "probability tensor contains either `inf`, `nan` or element < 0");
  at::_assert_async(chances.sum(-1).gt(0).all(), "invalid multinomial distribution (sum of probabilities <= 0)");
}

at::Tensor draw_categories(const at::Tensor& self, int64_t count, bool replacement, OptionalGenerator generator) {
  TORCH_CHECK(is_float(self), "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(
      self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim, but it has ", self.dim(), " dimensions");
  const int64_t categories = self.size(-1);
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(
      replacement || count <= categories, "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(categories <= LARGEST_CATEGORY_COUNT, "number of categories cannot exceed 2^24");
  at::DimVector sizes(self.sizes());
  sizes.back() = count;
  if (self.numel() == 0) {
    return at::empty(sizes, self.options().dtype(c10::ScalarType::Long));
  }
  const at::Tensor chances = self.to(type_for(self.scalar_type()));
  check_chances(chances);
  if (!replacement || count == 1) {
    // Each category waits for a time that is exponential with its chance as the rate; those that end first are drawn.
    at::Tensor times = uniform_of(chances, generator);
    const at::Tensor speed = chances.div(to_exponential(times));
    return count == 1 ? speed.argmax(-1, /*keepdim=*/true) : std::get<1>(speed.topk(count, -1));
  }
  const at::Tensor sums = chances.cumsum(-1);
  const at::Tensor below = sums.div(sums.narrow(-1, categories - 1, 1));
  at::Tensor draws = at::empty(sizes, chances.options()).uniform_(0, 1, generator);
  return at::searchsorted(below, draws, /*out_int32=*/false, /*right=*/true);
}

at::Tensor& draw_categories_into(
    const at::Tensor& self, int64_t count, bool replacement, OptionalGenerator generator, at::Tensor& out) {
  TORCH_CHECK(
      out.scalar_type() == c10::ScalarType::Long, "multinomial expects Long tensor out, got: ", out.scalar_type());
  const at::Tensor drawn = draw_categories(self, count, replacement, std::move(generator));
  out.resize_(drawn.sizes());
  return out.copy_(drawn);
}

// Draws numbers whose distribution has parameters for each element: `parameters` have the sizes and the dtype of the result.
template <class Fallback>
at::Tensor draw_by(
    const Operator& op, std::initializer_list<std::reference_wrapper<const at::Tensor>> parameters,
    const OptionalGenerator& generator, const Fallback& by_cpu) {
  const at::Tensor& first = *parameters.begin();
  if (!is_float(first)) {
    return by_cpu();
  }
  at::Tensor made = at::empty(first.sizes(), first.options());
  if (made.numel() == 0) {
    return made;
  }
  const Philox start = reserve(generator, first.device(), static_cast<uint64_t>(made.numel()));
  const bool ran = run(
      op, {made}, parameters, {number(static_cast<int64_t>(start.seed)), number(static_cast<int64_t>(start.offset))});
  return ran ? made : by_cpu();
}

at::Tensor poisson(const at::Tensor& rate, OptionalGenerator generator) {
  static const Operator op("poisson");
  return draw_by(op, {rate}, generator, [&] { return fall_back<at::_ops::poisson>(rate, generator); });
}

at::Tensor binomial(const at::Tensor& count, const at::Tensor& chance, OptionalGenerator generator) {
  static const Operator op("binomial");
  TORCH_CHECK_VALUE(
      at::isFloatingType(count.scalar_type()), "binomial only supports floating-point dtypes for count, got: ",
      count.scalar_type());
  TORCH_CHECK_VALUE(
      at::isFloatingType(chance.scalar_type()), "binomial only supports floating-point dtypes for prob, got: ",
      chance.scalar_type());
  const auto [counts, chances] = at::expand_outplace(count, chance);
  const at::Tensor alike = chances->to(count.scalar_type());
  return draw_by(op, {*counts, alike}, generator, [&] { return fall_back<at::_ops::binomial>(count, chance, generator); });
}

at::Tensor standard_gamma(const at::Tensor& shape, OptionalGenerator generator) {
  static const Operator op("standard_gamma");
  const at::Tensor made =
      draw_by(op, {shape}, generator, [&] { return fall_back<at::_ops::_standard_gamma>(shape, generator); });
  // Never 0, of which nobody could take the logarithm.
  return is_float(shape) ? made.clamp_min(least_of(shape.scalar_type())) : made;
}

at::Tensor dirichlet(const at::Tensor& shape, OptionalGenerator generator) {
  if (!is_float(shape)) {
    return fall_back<at::_ops::_sample_dirichlet>(shape, generator);
  }
  const at::Tensor parts = standard_gamma(shape.to(c10::ScalarType::Double), std::move(generator));
  const at::Tensor shares = parts.div(parts.sum(-1, /*keepdim=*/true)).to(shape.scalar_type());
  return shares.clamp_min(least_of(shape.scalar_type()));
}

}  // namespace

void register_sampling(torch::Library& m) {
  m.impl("exponential_", &exponential);
  m.impl("cauchy_", &cauchy);
  m.impl("log_normal_", &log_normal);
  m.impl("geometric_", &geometric);
  m.impl("bernoulli_.Tensor", &bernoulli_of);
  m.impl("randperm.generator_out", &permutation);
  m.impl("poisson", &poisson);
  m.impl("binomial", &binomial);
  m.impl("_standard_gamma", &standard_gamma);
  m.impl("_sample_dirichlet", &dirichlet);
  m.impl("multinomial", &draw_categories);
  m.impl("multinomial.out", &draw_categories_into);
}

}  // namespace outrigger
