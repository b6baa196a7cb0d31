//! Nested tensors over device memory. What makes or takes apart one, and what works on the buffer as a whole, is torch's
//! own code, which goes through operators of the buffer's device. The rest runs on the CPU.

#include "nested.h"

#include "fallback.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_native.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/fill_native.h>
#include <ATen/ops/gelu_native.h>
#include <ATen/ops/is_same_size_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/unbind_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>

namespace outrigger {

at::Tensor buffer_of(const at::Tensor& nested) {
  return at::native::get_nested_tensor_impl(nested)->get_unsafe_storage_as_tensor();
}

at::Tensor nested_over(const at::Tensor& like, const at::Tensor& buffer) {
  const auto* impl = at::native::get_nested_tensor_impl(like);
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      buffer, impl->get_nested_sizes(), impl->get_nested_strides(), impl->get_storage_offsets());
}

void register_to_nested(torch::Library& m) {
  // Sizes, strides and offsets are CPU tensors.
  m.impl("_nested_view_from_buffer", TORCH_FN(at::native::_nested_view_from_buffer));
  m.impl("_nested_from_padded", TORCH_FN(at::native::nested_from_padded_generic));
  m.impl("_transformer_encoder_layer_fwd", TORCH_FN(at::native::transformer_encoder_layer_forward));
}

void register_nested(torch::Library& m, c10::DispatchKey key) {
  namespace native = at::native;
  // Sizes stay on the host.
  m.impl("_nested_tensor_size", TORCH_FN(native::_nested_tensor_size));
  m.impl("_nested_tensor_strides", TORCH_FN(native::_nested_tensor_strides));
  m.impl("_nested_tensor_storage_offsets", TORCH_FN(native::_nested_tensor_storage_offsets));
  m.impl("is_same_size", TORCH_FN(native::nested_is_same_size));
  // Made, copied and taken apart as buffers.
  m.impl("_to_copy", TORCH_FN(native::_to_copy_nested));
  m.impl("copy_", TORCH_FN(native::copy_nested_));
  m.impl("clone", TORCH_FN(native::clone_nested));
  m.impl("empty_like", TORCH_FN(native::empty_like_nested));
  m.impl("alias", TORCH_FN(native::alias_nested));
  m.impl("values", TORCH_FN(native::values_nested));
  m.impl("unbind.int", TORCH_FN(native::NestedTensor_unbind));
  // Element by element, or row by row.
  m.impl("abs", TORCH_FN(native::NestedTensor_abs));
  m.impl("neg", TORCH_FN(native::NestedTensor_neg));
  m.impl("relu", TORCH_FN(native::NestedTensor_relu));
  m.impl("gelu", TORCH_FN(native::NestedTensor_gelu));
  m.impl("silu", TORCH_FN(native::NestedTensor_silu));
  m.impl("tanh", TORCH_FN(native::NestedTensor_tanh));
  m.impl("add.Tensor", TORCH_FN(native::NestedTensor_add_Tensor));
  m.impl("mul.Tensor", TORCH_FN(native::NestedTensor_mul_Tensor));
  m.impl("mul.Scalar", TORCH_FN(native::NestedTensor_mul_Scalar));
  m.impl("zero_", TORCH_FN(native::zero_nested_));
  m.impl("linear", TORCH_FN(native::nested_linear));
  m.impl("_transformer_encoder_layer_fwd", TORCH_FN(native::transformer_encoder_layer_forward));
  register_rest(m, key, c10::DispatchKey::NestedTensorCPU);
}

}  // namespace outrigger
