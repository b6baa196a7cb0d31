//! Sparse tensors: COO and the compressed layouts, over indices and values in device memory. Arithmetic
//! on them runs on the CPU; this file only takes tensors apart and builds them, nested ones too.

#include "sparse.h"

#include "fallback.h"
#include "nested.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_dimI_native.h>
#include <ATen/ops/_dimV_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>

namespace outrigger {
namespace {

at::SparseTensorImpl* coo(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl* compressed(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

bool is_compressed(c10::Layout layout) {
  return layout == c10::Layout::SparseCsr || layout == c10::Layout::SparseCsc ||
      layout == c10::Layout::SparseBsr || layout == c10::Layout::SparseBsc;
}

bool is_sparse(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.layout() == c10::Layout::Sparse || is_compressed(tensor.layout()));
}

bool has_members(const at::Tensor& tensor) {
  return is_sparse(tensor) || is_nested(tensor);
}

// The key of a sparse layout on the device of a tensor.
c10::DispatchKeySet key_on(c10::DispatchKey layout, const at::Tensor& values) {
  constexpr c10::DispatchKeySet kBackends(c10::DispatchKeySet::RAW, c10::full_backend_mask);
  return c10::DispatchKeySet(layout) | (values.key_set() & kBackends);
}

// A sparse or nested tensor of the same shape and properties over other members, on the members' device.
template <class Member>
at::Tensor remake(const at::Tensor& from, const Member& member) {
  if (is_nested(from)) {
    return nested_over(from, member(buffer_of(from)));
  }
  if (from.layout() == c10::Layout::Sparse) {
    const at::Tensor values = member(coo(from)->values());
    // The new tensor is on the current device until it has members.
    const c10::DeviceGuard on_device(values.device());
    at::Tensor made = at::detail::make_tensor<at::SparseTensorImpl>(
        key_on(c10::DispatchKey::Sparse, values), from.dtype());
    coo(made)->raw_resize_(coo(from)->sparse_dim(), coo(from)->dense_dim(), from.sizes());
    coo(made)->set_indices_and_values_unsafe(member(coo(from)->indices()), values);
    coo(made)->set_coalesced(coo(from)->coalesced());
    return made;
  }
  const at::Tensor values = member(compressed(from)->values());
  TORCH_CHECK_NOT_IMPLEMENTED(
      values.device().type() != c10::DeviceType::MTIA, who(), "torch has no sparse tensors of the layout ",
      from.layout(), " for mtia: use the layout torch.sparse_coo");
  at::Tensor made = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      key_on(c10::DispatchKey::SparseCsr, values), values.device(), from.layout(), from.dtype());
  compressed(made)->set_member_tensors(
      member(compressed(from)->compressed_indices()), member(compressed(from)->plain_indices()), values,
      from.sizes());
  return made;
}

template <class Visit>
void each_member(const at::Tensor& tensor, const Visit& visit) {
  if (is_nested(tensor)) {
    visit(buffer_of(tensor));
  } else if (tensor.layout() == c10::Layout::Sparse) {
    visit(coo(tensor)->indices());
    visit(coo(tensor)->values());
  } else {
    visit(compressed(tensor)->compressed_indices());
    visit(compressed(tensor)->plain_indices());
    visit(compressed(tensor)->values());
  }
}

}  // namespace

void SparseScope::announce(const at::Tensor& tensor) {
  if (!is_ours(tensor) || !has_members(tensor)) {
    if (is_ours(tensor) && tensor.is_quantized()) {
      key_ = c10::DispatchKey::QuantizedCPU;
    }
    scope_.announce(tensor);
    return;
  }
  if (is_nested(tensor)) {
    key_ = c10::DispatchKey::NestedTensorCPU;
  } else if (is_compressed(tensor.layout())) {
    key_ = c10::DispatchKey::SparseCsrCPU;
  } else if (key_ == c10::DispatchKey::CPU) {
    key_ = c10::DispatchKey::SparseCPU;
  }
  each_member(tensor, [&](const at::Tensor& member) { scope_.announce(member); });
}

at::Tensor SparseScope::to_host(const at::Tensor& tensor, bool written) {
  if (!is_ours(tensor) || !has_members(tensor)) {
    at::Tensor host = scope_.to_host(tensor, written);
    return is_ours(tensor) ? with_gradient_of(tensor, std::move(host)) : host;
  }
  for (Argument& argument : arguments_) {
    if (argument.device.is_same(tensor)) {
      argument.written |= written;
      return argument.host;
    }
  }
  at::Tensor host =
      remake(tensor, [&](const at::Tensor& member) { return scope_.to_host(member, written); });
  host = with_gradient_of(tensor, std::move(host));
  arguments_.push_back({tensor, host, written});
  return host;
}

// Kernels of the compressed layouts ask whether a gradient will be wanted, to keep what it needs.
at::Tensor SparseScope::with_gradient_of(const at::Tensor& tensor, at::Tensor host) const {
  if (key_ == c10::DispatchKey::SparseCsrCPU && at::GradMode::is_enabled() && tensor.requires_grad()) {
    host.set_requires_grad(true);
  }
  return host;
}

void SparseScope::finish() {
  for (const Argument& argument : arguments_) {
    // A nested tensor keeps its buffer, which the other scope has written back.
    if (!argument.written || is_nested(argument.device)) {
      continue;
    }
    const at::Tensor& device = argument.device;
    const at::Tensor& host = argument.host;
    if (device.layout() == c10::Layout::Sparse) {
      coo(device)->raw_resize_(coo(host)->sparse_dim(), coo(host)->dense_dim(), host.sizes());
      coo(device)->set_indices_and_values_unsafe(
          scope_.to_device(coo(host)->indices()), scope_.to_device(coo(host)->values()));
      coo(device)->set_coalesced(coo(host)->coalesced());
    } else {
      compressed(device)->set_member_tensors(
          scope_.to_device(compressed(host)->compressed_indices()),
          scope_.to_device(compressed(host)->plain_indices()), scope_.to_device(compressed(host)->values()),
          host.sizes());
    }
  }
}

at::Tensor SparseScope::to_device(const at::Tensor& result) {
  if (!has_members(result) || !result.device().is_cpu()) {
    return scope_.to_device(result);
  }
  for (const Argument& argument : arguments_) {
    if (argument.host.is_same(result)) {
      return argument.device;
    }
  }
  return remake(result, [&](const at::Tensor& member) { return scope_.to_device(member); });
}

void register_sparse_coo(torch::Library& m, c10::DispatchKey key) {
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl(
      "_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  m.impl("clone", TORCH_FN(at::native::clone_sparse));
  register_rest(m, key, c10::DispatchKey::SparseCPU);
}

void register_sparse_compressed(torch::Library& m) {
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
  m.impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
  register_rest(m, c10::DispatchKey::SparseCsrPrivateUse1, c10::DispatchKey::SparseCsrCPU);
}

}  // namespace outrigger
