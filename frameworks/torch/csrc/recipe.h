//! The work of one compiled operator for a class of calls: conditions on sizes and strides, allocations, launches. A
//! recipe is made by `torch_outrigger.inductor.eager`, which knows the numbers below. It must never look at elements.
#pragma once

#include "program.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <vector>

namespace outrigger {

/// The tensors of a call as a recipe sees them.
struct RecipeCall {
  c10::Device device;
  std::vector<at::Tensor> inputs;
  // Of each input its sizes, then its strides.
  c10::SmallVector<int64_t, 48> fields;
  // Tensors for the results; empty if they are new. An undefined one is new, too.
  std::vector<at::Tensor> wanted;
  // The sizes and strides of results, where the operands are shown as one dimension of all their elements.
  bool is_flat = false;
  c10::SmallVector<int64_t, 6> sizes, strides;
  std::vector<at::Tensor> results;
};

/// A recipe, with the kernels that it launches. Never changed once it is made.
class Recipe {
 public:
  /// Reads what `inductor/eager.py` wrote. ValueError if that makes no sense. The kernels outlive the recipe.
  Recipe(std::vector<int64_t> code, std::vector<const CompiledKernel*> kernels, std::vector<c10::ScalarType> dtypes);

  /// The outcome of a call: it has run, the recipe is for other sizes, or for other results than those that are
  /// wanted. Nothing was done in the last two.
  enum class Answer { kDone, kOtherSizes, kOtherResults };
  Answer run(RecipeCall& call) const;

 private:
  using Steps = c10::ArrayRef<int64_t>;
  struct Allocation {
    c10::ScalarType dtype;
    int64_t output;
    std::vector<Steps> sizes, strides;
  };
  struct Argument {
    int64_t slot;  // -1: a number
    Steps number;
  };
  struct Launch {
    const CompiledKernel* kernel;
    std::vector<Argument> arguments;
  };

  std::vector<int64_t> code_;
  size_t inputs_, fields_;
  std::vector<size_t> symbols_;
  std::vector<Steps> conditions_;
  std::vector<Allocation> allocations_;
  std::vector<Launch> launches_;
  size_t outputs_ = 0;
};

}  // namespace outrigger
