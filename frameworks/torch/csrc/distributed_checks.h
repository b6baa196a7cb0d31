//! Checks of the arguments of a group's calls, and the step from tensors to parts.
#pragma once

#include "distributed.h"

namespace outrigger {

using Tensors = std::vector<at::Tensor>;

inline std::chrono::milliseconds limit(std::chrono::milliseconds asked, std::chrono::milliseconds standard) {
  return asked == c10d::kUnsetTimeout ? standard : asked;
}

inline Tensors joined(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

inline const at::Tensor& only(const char* name, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, who(), name, ": a rank has one tensor, not ", tensors.size());
  return tensors[0];
}

inline const Tensors& only_list(const char* name, const std::vector<Tensors>& lists, size_t size) {
  TORCH_CHECK(lists.size() == 1, who(), name, ": a rank has one list of tensors, not ", lists.size());
  TORCH_CHECK(
      lists[0].size() == size, who(), name, ": the list has ", lists[0].size(), " tensors, and the group ", size,
      " ranks: it needs one for each");
  return lists[0];
}

inline void check_same(const char* name, const at::Tensor& tensor, const at::Tensor& other) {
  TORCH_CHECK(
      tensor.scalar_type() == other.scalar_type() && tensor.numel() == other.numel(), who(), name,
      ": tensors of ", tensor.scalar_type(), " with ", tensor.numel(), " elements and of ", other.scalar_type(),
      " with ", other.numel(), " do not belong together: all are alike");
}

inline int root_of(const char* name, int64_t root, int size) {
  TORCH_CHECK(
      root >= 0 && root < size, who(), name, ": rank ", root, " is not one of the group's ", size,
      ", which count from 0 within the group");
  return static_cast<int>(root);
}

inline void check_contiguous(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), who(), name, ": the tensor is not contiguous; give tensor.contiguous()");
}

// Whether `whole` has room for `part` of each of `size` ranks, and both lie as they are sent.
inline void check_whole(const char* name, const at::Tensor& whole, const at::Tensor& part, int size) {
  TORCH_CHECK(
      whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * size, who(), name, ": ",
      whole.numel(), " elements of ", whole.scalar_type(), " are not those of ", size, " ranks with ", part.numel(),
      " of ", part.scalar_type(), " each");
  check_contiguous(name, whole);
  check_contiguous(name, part);
}

// A tensor times the factor of a reduction that has one.
inline at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& how) {
  const auto* factor = static_cast<const c10d::NCCLPreMulSumSupplement*>(how.supplement_.get());
  return factor->tensor_factor.defined() ? tensor.mul(factor->tensor_factor) : tensor.mul(factor->double_factor);
}

// Whether a reduction of complex numbers is that of their real and imaginary parts.
inline bool adds_parts(const at::Tensor& tensor, const c10d::ReduceOp& how) {
  return tensor.is_complex() && (how == c10d::ReduceOp::SUM || how == c10d::ReduceOp::AVG);
}

// The type in which Gloo combines elements of a type that it does not know; the results are the same, for integers
// wrap around.
inline c10::ScalarType stand_in(const char* name, c10::ScalarType type, c10d::ReduceOp::RedOpType how) {
  const bool small = type == at::kShort || type == at::kUInt16;
  TORCH_CHECK_NOT_IMPLEMENTED(
      small && GlooEngine::combines(at::kInt, how), who(), name, ": neither the driver nor Gloo combines elements of ",
      type, how == c10d::ReduceOp::AVG ? " to their mean. Sum them and divide, or convert them to float" :
      " in this way. Convert them, to float32 or int32 for example");
  return at::kInt;
}

inline std::vector<int64_t> bytes_of(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) {
    sizes.push_back(tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0);
  }
  return sizes;
}

// A tensor's rows by rank: as many as `rows` says, or the same number for each.
inline Tensors split_rows(const char* name, const at::Tensor& tensor, const std::vector<int64_t>& rows, int size) {
  TORCH_CHECK(tensor.dim() > 0, who(), name, ": a tensor without dimensions has no rows");
  const int64_t have = tensor.size(0);
  if (rows.empty()) {
    TORCH_CHECK(
        have % size == 0, who(), name, ": ", have, " rows cannot be shared equally among ", size,
        " ranks; give the sizes of the parts");
    return tensor.split_with_sizes(std::vector<int64_t>(static_cast<size_t>(size), have / size), 0);
  }
  int64_t needed = 0;
  for (const int64_t count : rows) {
    needed += count;
  }
  TORCH_CHECK(
      static_cast<int>(rows.size()) == size && needed == have, who(), name, ": ", rows.size(), " sizes with ", needed,
      " rows together do not fit ", size, " ranks and a tensor of ", have, " rows");
  return tensor.split_with_sizes(rows, 0);
}

}  // namespace outrigger
