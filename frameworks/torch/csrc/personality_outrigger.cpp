//! The runtime's devices as PrivateUse1, under the name "outrigger" or a vendor's.

#include "graph.h"
#include "nested.h"
#include "personality_impl.h"
#include "profiler.h"
#include "sparse.h"

#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/norm.h>
#include <c10/core/DeviceType.h>

namespace outrigger {
namespace {

struct OutriggerHooks final : Hooks<c10::DeviceType::PrivateUse1, at::PrivateUse1HooksInterface> {
  bool isAvailable() const override {
    return outrigger::device_count() > 0;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

// Banned under autocast on every device: its input is a probability, which half precision cannot hold.
at::Tensor no_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Use binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which combine the sigmoid with the loss.");
}

// Torch's own lists of what autocast runs in the lower precision, in float32, and in the widest type.
void register_autocast(torch::Library& m) {
  // Torch's lists name their types without a namespace.
  using namespace at;
#define OUTRIGGER_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define OUTRIGGER_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define OUTRIGGER_OPTIONAL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define OUTRIGGER_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(OUTRIGGER_LOWER)
  AT_FORALL_FP32(OUTRIGGER_FLOAT)
  AT_FORALL_FP32_SET_OPT_DTYPE(OUTRIGGER_OPTIONAL)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(OUTRIGGER_WIDEST)
#undef OUTRIGGER_LOWER
#undef OUTRIGGER_FLOAT
#undef OUTRIGGER_OPTIONAL
#undef OUTRIGGER_WIDEST
  m.impl("binary_cross_entropy", &no_cross_entropy);
}

}  // namespace

void serve_outrigger(const char* name) {
  static const bool served = [name] {
    // Before anything asks for the name.
    c10::register_privateuse1_backend(name);
    register_runtime<c10::DeviceType::PrivateUse1>();
    at::RegisterPrivateUse1HooksInterface(new OutriggerHooks);
    register_graphs(c10::DeviceType::PrivateUse1);
    register_profiler();
    register_kernels(c10::DispatchKey::PrivateUse1);
    register_quantized_kernels(c10::DispatchKey::QuantizedPrivateUse1);
    register_sparse_kernels(c10::DispatchKey::SparsePrivateUse1);
    const auto compressed = c10::DispatchKey::SparseCsrPrivateUse1;
    torch::Library& of_compressed = new_library("aten", compressed);
    register_sparse_compressed(of_compressed);
    register_shallow_copies(of_compressed);
    new_library("_", compressed).fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    const auto nested = c10::DispatchKey::NestedTensorPrivateUse1;
    register_to_nested(new_library("aten", c10::DispatchKey::PrivateUse1));
    register_nested(new_library("aten", nested), nested);
    new_library("_", nested).fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    new_library("_", c10::DispatchKey::AutocastPrivateUse1).fallback(torch::CppFunction::makeFallthrough());
    register_autocast(new_library("aten", c10::DispatchKey::AutocastPrivateUse1));
    return true;
  }();
  (void)served;
}

}  // namespace outrigger
