//! A call of an operator as a key, and as a recipe sees it. It must never look at elements.
#pragma once

#include "recipe.h"

#include <ATen/core/ivalue.h>

#include <string>

namespace outrigger {

/// The form of a call: first its arguments are added, one after the other, then its tensors together.
class Sight {
 public:
  explicit Sight(c10::Device device);

  /// Adds an argument; tensors only as far as that they are there. False if it has no form in a key.
  bool argument(const c10::IValue& value);

  /// Looks at the tensors, when all of them are known. Operands of one shape and layout without gaps become one dimension
  /// if the operator does the same with each element.
  void look(bool is_pointwise);

  /// An operand as the recipe sees it.
  at::Tensor shown(size_t number) const;

  RecipeCall call{c10::Device(c10::DeviceType::CPU), {}, {}, {}, false, {}, {}, {}};
  std::string key;

 private:
  void add(int64_t word);
  bool tensor(const at::Tensor& one);
  // Sizes and strides of 0 and 1 are classes of their own: a trace takes them as they are.
  void field(c10::IntArrayRef values);
  // Takes the form of results from a tensor. As with torch's iterators, dimensions of one element have the strides of
  // the layout.
  void note(const at::Tensor& model);
};

}  // namespace outrigger
