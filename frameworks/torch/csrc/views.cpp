//! Operators that only make another tensor over the same storage. Torch's own implementations work on
//! every device, and are only registered for ours. It must never touch memory.

#include "register.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

namespace outrigger {
namespace {

// Torch's own rule, in which our device stands beside the CPU.
bool can_shallow_copy(const at::Tensor& self, const at::Tensor& from) {
  constexpr c10::DispatchKeySet kBackends({c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit});
  const c10::DispatchKeySet ours = self.key_set();
  const c10::DispatchKeySet theirs = from.key_set();
  const auto both = [&](c10::DispatchKey key) {
    const c10::DispatchKeySet functionality(key);
    return ours.has_any(functionality) && theirs.has_any(functionality);
  };
  const bool on_backends = ours.has_any(kBackends) && theirs.has_any(kBackends);
  return (on_backends && (both(c10::DispatchKey::Dense) || both(c10::DispatchKey::Sparse))) ||
      self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(theirs);
}

}  // namespace

void register_shallow_copies(torch::Library& m) {
  m.impl("_has_compatible_shallow_copy_type", &can_shallow_copy);
}

void register_views(torch::Library& m) {
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("view.dtype", TORCH_FN(at::native::view_dtype));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("alias", TORCH_FN(at::native::alias));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
}

}  // namespace outrigger
