//! Structured operators: one kernel serves the functional, in-place and out= variants.
//!
//! Torch's own meta functions decide promotion, broadcasting, checks and the layout of the output. This
//! file allocates the output and calls the native kernel. If there is none, the whole variant runs on
//! the CPU. A kernel is a type with `static bool run(Meta&, const Arguments&...)`, which returns
//! whether it has done the work. It must never leave an output half written when it returns false.
#pragma once

#include "fallback.h"
#include "kernel.h"
#include "overlap.h"

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/native/Resize.h>
#include <c10/core/SymIntArrayRef.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <type_traits>

namespace outrigger {

/// Number of tensors that an operator returns.
template <class Result>
constexpr size_t kResults = 1;
template <class... Results>
constexpr size_t kResults<std::tuple<Results...>> = sizeof...(Results);

/// The meta class of the functional variant: outputs are made as it asks for them.
template <class Meta, size_t N>
struct Functional final : Meta {
  std::array<at::Tensor, N> outputs;

  void set_output_raw_strided(
      int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options OUTRIGGER_NAMES_PARAMETER) override {
    const c10::Device device = options.device();
    const c10::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
    outputs[index] = strides.empty()
        ? empty_on(device, sizes, dtype, options.memory_format_opt().value_or(c10::MemoryFormat::Contiguous))
        : empty_strided_on(device, sizes, strides, dtype);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
      Meta::set_output_raw_strided(index, sizes, strides, options OUTRIGGER_NAMES);
    }
  }
  void set_output_strided(
      int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options OUTRIGGER_NAMES_PARAMETER) override {
    set_output_raw_strided(index, sizes, strides, options OUTRIGGER_NAMES);
  }
  const at::Tensor& maybe_get_output(int64_t index) override {
    return outputs[index];
  }
};

/// The meta class of the in-place and out= variants: outputs are given, checked, and resized for out=.
template <class Meta, size_t N, bool Resize>
struct Given final : Meta {
  std::array<std::reference_wrapper<at::Tensor>, N> outputs;
  // Stands in where the meta function demands strides that the output does not have.
  std::array<at::Tensor, N> proxies;

  explicit Given(std::array<std::reference_wrapper<at::Tensor>, N> given) : outputs(given) {}

  void set_output_raw_strided(
      int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options OUTRIGGER_NAMES_PARAMETER) override {
    at::Tensor& out = outputs[index].get();
    TORCH_CHECK(
        options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(), ", but got ",
        out.dtype(), " instead");
    TORCH_CHECK(
        options.device() == out.device(), "Expected out tensor to have device ", options.device(), ", but got ",
        out.device(), " instead");
    if constexpr (Resize) {
      if (at::native::resize_output(out, sizes)) {
        if (!strides.empty()) {
          out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
        } else if (options.memory_format_opt().has_value()) {
          out.unsafeGetTensorImpl()->empty_tensor_restride(*options.memory_format_opt());
        }
      }
    } else {
      TORCH_CHECK(
          sizes.equals(out.sizes()), "output with shape ", out.sizes(), " doesn't match the broadcast shape ", sizes);
    }
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
      Meta::set_output_raw_strided(index, sizes, strides, options OUTRIGGER_NAMES);
    }
  }
  void set_output_strided(
      int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options OUTRIGGER_NAMES_PARAMETER) override {
    set_output_raw_strided(index, sizes, strides, options OUTRIGGER_NAMES);
    const at::Tensor& out = outputs[index].get();
    if (!strides.empty() && out.strides() != strides) {
      proxies[index] = empty_strided_on(out.device(), sizes, strides, out.scalar_type());
    }
  }
  const at::Tensor& maybe_get_output(int64_t index) override {
    return proxies[index].defined() ? proxies[index] : outputs[index].get();
  }
  /// Copies what was written to stand-ins.
  void finish() {
    for (size_t i = 0; i < N; ++i) {
      if (proxies[i].defined()) {
        copy_on_device(outputs[i].get(), proxies[i]);
      }
    }
  }
};

// Arguments as meta functions take them: plain integers for symbolic ones, references for optionals.
template <class T>
inline const T& meta_argument(const T& argument) {
  return argument;
}
inline int64_t meta_argument(const c10::SymInt& argument) {
  return argument.guard_int(__FILE__, __LINE__);
}
inline at::IntArrayRef meta_argument(const c10::SymIntArrayRef& argument) {
  return C10_AS_INTARRAYREF_SLOW(argument);
}
inline at::OptionalTensorRef meta_argument(const std::optional<at::Tensor>& argument) {
  return argument.has_value() && argument->defined() ? at::OptionalTensorRef(*argument) : at::OptionalTensorRef();
}
inline at::OptionalScalarRef meta_argument(const std::optional<at::Scalar>& argument) {
  return argument.has_value() ? at::OptionalScalarRef(&*argument) : at::OptionalScalarRef();
}

/// Whether a given result shares memory with itself or with an argument. Torch's iterators have looked already, and take
/// results that are an operand.
template <class Meta, class... Arguments>
bool shares_memory(const at::Tensor& result, const Arguments&... arguments) {
  if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
    return false;
  } else {
    return shares_within(result) || (may_share_argument(result, arguments) || ...);
  }
}

/// The same for an out= variant. A sum may be written over what it is added to, as in place.
template <class Meta, class Kernel, class First, class... Rest>
bool shares_memory_out(const at::Tensor& result, const First& first, const Rest&... rest) {
  if constexpr (requires { Kernel::kAddsToFirst; }) {
    if (are_same_elements(result, first)) {
      return shares_memory<Meta>(result, rest...);
    }
  }
  return shares_memory<Meta>(result, first, rest...);
}

/// The functional variant of operator `Op`.
template <class Meta, class Kernel, class Op, class Schema = typename Op::schema>
struct FunctionalVariant;
template <class Meta, class Kernel, class Op, class Result, class... Arguments>
struct FunctionalVariant<Meta, Kernel, Op, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    Functional<Meta, kResults<Result>> op;
    op.meta(meta_argument(arguments)...);
    if (C10_LIKELY(Kernel::run(op, arguments...))) {
      if constexpr (kResults<Result> == 1) {
        return std::move(op.outputs[0]);
      } else {
        return std::apply([](auto&... out) { return Result(std::move(out)...); }, op.outputs);
      }
    }
    return fall_back<Op>(arguments...);
  }
};

/// The in-place variant of operator `Op`.
template <class Meta, class Kernel, class Op, class Schema = typename Op::schema>
struct InplaceVariant;
template <class Meta, class Kernel, class Op, class... Arguments>
struct InplaceVariant<Meta, Kernel, Op, at::Tensor&(at::Tensor&, Arguments...)> {
  static at::Tensor& call(at::Tensor& self, Arguments... arguments) {
    own_memory_of(self);
    Given<Meta, 1, /*Resize=*/false> op({self});
    op.meta(self, meta_argument(arguments)...);
    if (C10_LIKELY(!shares_memory<Meta>(self, arguments...) && Kernel::run(op, self, arguments...))) {
      op.finish();
      return self;
    }
    return fall_back<Op>(self, arguments...);
  }
};

/// The out= variant of operator `Op`, whose last arguments are the outputs.
template <class Meta, class Kernel, class Op, class Schema = typename Op::schema>
struct OutVariant;
template <class Meta, class Kernel, class Op, class Result, class... Arguments>
struct OutVariant<Meta, Kernel, Op, Result(Arguments...)> {
  static constexpr size_t kOutputs = kResults<Result>;
  static constexpr size_t kInputs = sizeof...(Arguments) - kOutputs;

  static Result call(Arguments... arguments) {
    return split(
        std::tuple<Arguments&...>(arguments...), std::make_index_sequence<kInputs>(),
        std::make_index_sequence<kOutputs>());
  }

  template <size_t... In, size_t... Out>
  static Result split(std::tuple<Arguments&...> all, std::index_sequence<In...>, std::index_sequence<Out...>) {
    (own_memory_of(std::get<kInputs + Out>(all)), ...);
    Given<Meta, kOutputs, /*Resize=*/true> op({std::get<kInputs + Out>(all)...});
    op.meta(meta_argument(std::get<In>(all))...);
    const bool shared = (shares_memory_out<Meta, Kernel>(std::get<kInputs + Out>(all), std::get<In>(all)...) || ...);
    if (C10_LIKELY(!shared && Kernel::run(op, std::get<In>(all)...))) {
      op.finish();
      return Result(std::get<kInputs + Out>(all)...);
    }
    return std::apply([](auto&... argument) -> Result { return fall_back<Op>(argument...); }, all);
  }
};

/// "add.Tensor" out of an operator's own name.
template <class Op>
std::string name_of() {
  const std::string name = std::string(Op::name).substr(sizeof("aten::") - 1);
  const std::string overload = Op::overload_name;
  return overload.empty() ? name : name + "." + overload;
}

/// Registers the functional variant.
template <class Meta, class Kernel, class Op>
void functional(torch::Library& m) {
  m.impl(name_of<Op>().c_str(), TORCH_FN((FunctionalVariant<Meta, Kernel, Op>::call)));
}
/// Registers the in-place variant.
template <class Meta, class Kernel, class Op>
void inplace(torch::Library& m) {
  m.impl(name_of<Op>().c_str(), TORCH_FN((InplaceVariant<Meta, Kernel, Op>::call)));
}
/// Registers the out= variant.
template <class Meta, class Kernel, class Op>
void out(torch::Library& m) {
  m.impl(name_of<Op>().c_str(), TORCH_FN((OutVariant<Meta, Kernel, Op>::call)));
}
/// Registers functional and out= variants.
template <class Meta, class Kernel, class Op, class OpOut>
void two_variants(torch::Library& m) {
  functional<Meta, Kernel, Op>(m);
  out<Meta, Kernel, OpOut>(m);
}
/// Registers all three variants.
template <class Meta, class Kernel, class Op, class OpInplace, class OpOut>
void variants(torch::Library& m) {
  two_variants<Meta, Kernel, Op, OpOut>(m);
  inplace<Meta, Kernel, OpInplace>(m);
}

}  // namespace outrigger
