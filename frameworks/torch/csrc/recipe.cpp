//! Reads recipes, and runs them: all that can go wrong with a call is found out before anything is allocated.

#include "recipe.h"

#include "kernel.h"

#include <algorithm>
#include <array>
#include <utility>

namespace outrigger {
namespace {

/// The steps of an expression: a stack machine over whole numbers.
enum Step : int64_t {
  kConstant, kSymbol, kField, kAdd, kMultiply, kFloorDivide, kModulo, kMax, kMin, kEqual, kNotEqual, kLess, kLessEqual,
  kAnd, kOr, kSteps
};

constexpr size_t kMostSymbols = 64;
constexpr size_t kDepth = 32;

using Symbols = std::array<int64_t, kMostSymbols>;

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

int64_t combine(int64_t step, int64_t a, int64_t b) {
  switch (step) {
    case kAdd: return a + b;
    case kMultiply: return a * b;
    case kFloorDivide: return b == 0 ? 0 : floor_divide(a, b);
    case kModulo: return b == 0 ? 0 : a - floor_divide(a, b) * b;
    case kMax: return std::max(a, b);
    case kMin: return std::min(a, b);
    case kEqual: return a == b ? 1 : 0;
    case kNotEqual: return a != b ? 1 : 0;
    case kLess: return a < b ? 1 : 0;
    case kLessEqual: return a <= b ? 1 : 0;
    case kAnd: return (a != 0 && b != 0) ? 1 : 0;
    default: return (a != 0 || b != 0) ? 1 : 0;
  }
}

int64_t value(c10::ArrayRef<int64_t> steps, const Symbols& symbols, c10::ArrayRef<int64_t> fields) {
  std::array<int64_t, kDepth> stack;
  size_t depth = 0;
  for (size_t i = 0; i < steps.size(); i += 2) {
    const int64_t step = steps[i], argument = steps[i + 1];
    switch (step) {
      case kConstant: stack[depth++] = argument; break;
      case kSymbol: stack[depth++] = symbols[static_cast<size_t>(argument)]; break;
      case kField: stack[depth++] = fields[static_cast<size_t>(argument)]; break;
      default:
        --depth;
        stack[depth - 1] = combine(step, stack[depth - 1], stack[depth]);
    }
  }
  return stack[0];
}

/// Reads numbers one after the other, and never beyond the last.
class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& code) : code_(code) {}

  int64_t next(int64_t end, int64_t first = 0) {
    TORCH_CHECK_VALUE(at_ < code_.size(), "a recipe ends too early");
    const int64_t found = code_[at_++];
    TORCH_CHECK_VALUE(found >= first && found < end, "a recipe has ", found, " where less than ", end, " is expected");
    return found;
  }

  size_t count() {
    return static_cast<size_t>(next(static_cast<int64_t>(code_.size())));
  }

  c10::ArrayRef<int64_t> steps(size_t symbols, size_t fields) {
    const size_t count = this->count() * 2;
    TORCH_CHECK_VALUE(count <= code_.size() - at_, "a recipe ends within an expression");
    const c10::ArrayRef<int64_t> found(code_.data() + at_, count);
    at_ += count;
    size_t depth = 0;
    for (size_t i = 0; i < count; i += 2) {
      const int64_t step = found[i], argument = found[i + 1];
      const int64_t end = step == kSymbol ? static_cast<int64_t>(symbols) : static_cast<int64_t>(fields);
      const bool is_known = step == kConstant || ((step == kSymbol || step == kField) ? argument >= 0 && argument < end
                                                                                      : step > kField && step < kSteps && depth >= 2);
      depth += step <= kField ? 1 : -1;
      TORCH_CHECK_VALUE(is_known && depth <= kDepth, "a recipe has an expression that makes no sense");
    }
    TORCH_CHECK_VALUE(depth == 1, "a recipe has an expression without a value");
    return found;
  }

 private:
  const std::vector<int64_t>& code_;
  size_t at_ = 0;
};

bool fits(const at::Tensor& wanted, c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return wanted.sizes() == sizes && wanted.scalar_type() == dtype && wanted.is_non_overlapping_and_dense();
}

bool shares(const at::Tensor& one, const at::Tensor& other) {
  return one.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl();
}


}  // namespace

Recipe::Recipe(
    std::vector<int64_t> code, std::vector<const CompiledKernel*> kernels, std::vector<c10::ScalarType> dtypes)
    : code_(std::move(code)) {
  Reader read(code_);
  inputs_ = read.count();
  fields_ = read.count();
  const size_t symbols = static_cast<size_t>(read.next(kMostSymbols));
  for (size_t i = 0; i < symbols; ++i) {
    symbols_.push_back(static_cast<size_t>(read.next(static_cast<int64_t>(fields_))));
  }
  for (size_t left = read.count(); left > 0; --left) {
    conditions_.push_back(read.steps(symbols, fields_));
  }
  const size_t count = read.count();
  TORCH_CHECK_VALUE(count == dtypes.size(), "a recipe has ", count, " allocations and ", dtypes.size(), " dtypes");
  for (size_t i = 0; i < count; ++i) {
    Allocation made{dtypes[i], read.next(static_cast<int64_t>(count), -1), {}, {}};
    outputs_ += made.output >= 0 ? 1 : 0;
    const size_t rank = read.count();
    for (size_t dim = 0; dim < 2 * rank; ++dim) {
      (dim < rank ? made.sizes : made.strides).push_back(read.steps(symbols, fields_));
    }
    allocations_.push_back(std::move(made));
  }
  for (size_t left = read.count(); left > 0; --left) {
    Launch launch{kernels[static_cast<size_t>(read.next(static_cast<int64_t>(kernels.size())))], {}};
    const size_t arguments = read.count();
    TORCH_CHECK_VALUE(
        arguments == launch.kernel->kinds.size(), "a recipe gives ", launch.kernel->name, " ", arguments, " arguments");
    for (size_t i = 0; i < arguments; ++i) {
      const bool is_number = read.next(2) == 1;
      TORCH_CHECK_VALUE(
          launch.kernel->kinds[i] == (is_number ? 'i' : 'a'), "a recipe gives ", launch.kernel->name, " another argument ", i);
      launch.arguments.push_back(
          is_number ? Argument{-1, read.steps(symbols, fields_)}
                    : Argument{read.next(static_cast<int64_t>(inputs_ + count)), {}});
    }
    launches_.push_back(std::move(launch));
  }
}

Recipe::Answer Recipe::run(RecipeCall& call) const {
  if (call.fields.size() != fields_ || call.inputs.size() != inputs_) {
    return Answer::kOtherSizes;
  }
  Symbols symbols;
  for (size_t i = 0; i < symbols_.size(); ++i) {
    symbols[i] = call.fields[symbols_[i]];
  }
  for (const Steps& condition : conditions_) {
    if (value(condition, symbols, call.fields) == 0) {
      return Answer::kOtherSizes;
    }
  }
  // All sizes are found before anything is allocated, since a call that does not fit must leave no trace.
  struct Place {
    c10::SmallVector<int64_t, 6> sizes, strides;
  };
  c10::SmallVector<Place, 4> places;
  for (const Allocation& one : allocations_) {
    Place place;
    if (one.output >= 0 && call.is_flat) {
      place = {call.sizes, call.strides};
    } else {
      for (const Steps& steps : one.sizes) {
        place.sizes.push_back(value(steps, symbols, call.fields));
      }
      for (const Steps& steps : one.strides) {
        place.strides.push_back(value(steps, symbols, call.fields));
      }
    }
    if (one.output >= 0 && !call.wanted.empty()) {
      const at::Tensor& wanted = call.wanted.at(static_cast<size_t>(one.output));
      if (!fits(wanted, place.sizes, one.dtype)) {
        return Answer::kOtherResults;
      }
    }
    places.push_back(std::move(place));
  }
  const bool are_there = !call.wanted.empty();
  if (are_there && call.wanted.size() != outputs_) {
    return Answer::kOtherResults;
  }
  std::vector<at::Tensor> slots = call.inputs;
  call.results.resize(outputs_);
  c10::SmallVector<int64_t, 2> moved;
  for (size_t i = 0; i < allocations_.size(); ++i) {
    const Allocation& one = allocations_[i];
    const Place& place = places[i];
    at::Tensor made;
    if (one.output >= 0 && are_there) {
      const at::Tensor& wanted = call.wanted[static_cast<size_t>(one.output)];
      const bool is_alone = std::none_of(
          call.inputs.begin(), call.inputs.end(), [&](const at::Tensor& input) { return shares(wanted, input); });
      if (is_alone && wanted.strides() == c10::IntArrayRef(place.strides)) {
        made = wanted;
      } else {
        moved.push_back(one.output);
      }
    }
    if (!made.defined()) {
      made = empty_strided_on(call.device, place.sizes, place.strides, one.dtype);
    }
    if (one.output >= 0) {
      call.results[static_cast<size_t>(one.output)] = made;
    }
    slots.push_back(std::move(made));
  }
  c10::SmallVector<uint64_t, 24> values;
  for (const Launch& launch : launches_) {
    values.clear();
    for (const Argument& argument : launch.arguments) {
      values.push_back(
          argument.slot >= 0 ? address_of(slots[static_cast<size_t>(argument.slot)].const_data_ptr())
                             : static_cast<uint64_t>(value(argument.number, symbols, call.fields)));
    }
    launch.kernel->launch(values.data());
  }
  for (const int64_t output : moved) {
    copy_on_device(call.wanted[static_cast<size_t>(output)], call.results[static_cast<size_t>(output)]);
  }
  if (are_there) {
    call.results = call.wanted;
  }
  return Answer::kDone;
}

}  // namespace outrigger
