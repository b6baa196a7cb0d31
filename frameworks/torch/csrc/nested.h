//! Nested tensors of the layout torch.strided: many small tensors in one buffer, whose sizes lie in host memory. Jagged
//! ones are a Python class over dense tensors, and need nothing here.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace outrigger {

/// Whether this is a nested tensor over one buffer.
inline bool is_nested(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(c10::DispatchKey::NestedTensor);
}

/// The storage of a nested tensor as a dense vector.
at::Tensor buffer_of(const at::Tensor& nested);

/// A nested tensor with the sizes, strides and offsets of another one, over a buffer that `buffer_of` has given.
at::Tensor nested_over(const at::Tensor& like, const at::Tensor& buffer);

/// Registers what dense tensors need to become nested ones.
void register_to_nested(torch::Library& library);

/// Registers what nested tensors need beside the fallback. `key` is the key of `library`.
void register_nested(torch::Library& library, c10::DispatchKey key);

}  // namespace outrigger
