//! Whether what a call writes shares memory with what else it reads or writes. Kernels of the device take no such call but
//! where all elements are in the same places: the CPU refuses it, or has a result for it.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace outrigger {

/// Whether the memory between the first and the last element of a tensor and that of another one have bytes in common.
/// Nested tensors have no sizes to tell that by, and no kernel of the device takes them.
inline bool may_share(const at::Tensor& a, const at::Tensor& b) {
  const auto lies_in_storage = [](const at::Tensor& one) { return one.defined() && one.has_storage() && !one.is_nested(); };
  if (!lies_in_storage(a) || !lies_in_storage(b) || !a.is_alias_of(b)) {
    return false;
  }
  const auto begin = [](const at::Tensor& tensor) { return tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()); };
  const auto end = [&](const at::Tensor& tensor) {
    int64_t elements = tensor.numel() == 0 ? 0 : 1;
    for (int64_t dim = 0; elements != 0 && dim < tensor.dim(); ++dim) {
      elements += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    return begin(tensor) + elements * static_cast<int64_t>(tensor.itemsize());
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

/// Whether two tensors have the same elements in the same places.
inline bool are_same_elements(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
      a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// Whether several elements of a tensor surely have one place.
inline bool shares_within(const at::Tensor& tensor) {
  return !tensor.is_nested() && at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
}

/// Whether a result shares memory with an argument, of whatever type.
template <class Argument>
bool may_share_argument(const at::Tensor&, const Argument&) {
  return false;
}
inline bool may_share_argument(const at::Tensor& result, const at::Tensor& argument) {
  return may_share(result, argument);
}
inline bool may_share_argument(const at::Tensor& result, const std::optional<at::Tensor>& argument) {
  return argument.has_value() && may_share(result, *argument);
}

}  // namespace outrigger
