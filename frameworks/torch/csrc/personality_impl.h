//! The part of serving a device type that is the same for both: one template over type and key.
#pragma once

#include "fallback.h"
#include "generator.h"
#include "guard.h"
#include "memory.h"
#include "personality.h"
#include "register.h"
#include "sparse.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace outrigger {

/// A library that lives as long as the process: registrations end with their library.
inline torch::Library& new_library(const char* name, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name, key, __FILE__, __LINE__);
}

/// Registers every kernel of this package under a key, and the CPU fallback for all other operators.
inline void register_kernels(c10::DispatchKey key) {
  torch::Library& aten = new_library("aten", key);
  register_host_composites(aten);
  register_copies(aten);
  register_factories(aten);
  register_views(aten);
  register_shallow_copies(aten);
  register_unary(aten);
  register_binary(aten);
  register_logic(aten);
  register_reductions(aten);
  register_matmul(aten);
  register_nn(aten);
  register_recurrent(aten);
  register_batch_norm(aten);
  register_losses(aten);
  register_convolution(aten);
  register_attention(aten);
  register_indexing(aten);
  register_random(aten);
  register_sampling(aten);
  register_optimizers(aten);
  // Torch's own kernel is composite, so a tensor subclass is not asked there, and need not know this operator.
  const c10::BackendComponent backend = c10::toBackendComponent(key);
  register_shallow_copies(new_library(
      "aten", c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::AutogradFunctionality, backend)));
  new_library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

/// Registers what quantized tensors need under their key of a device type.
inline void register_quantized_kernels(c10::DispatchKey key) {
  torch::Library& aten = new_library("aten", key);
  register_copies(aten);
  register_quantized(aten);
  register_rest(aten, key, c10::DispatchKey::QuantizedCPU);
  new_library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

/// Registers what sparse COO tensors need under their key of a device type.
inline void register_sparse_kernels(c10::DispatchKey key) {
  torch::Library& aten = new_library("aten", key);
  register_sparse_coo(aten, key);
  register_shallow_copies(aten);
  new_library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

/// Guard and allocators of a device type.
template <c10::DeviceType T>
void register_runtime() {
  static const c10::impl::DeviceGuardImplRegistrar guard(T, new Guard<T>);
  c10::SetAllocator(T, allocator_of(T));
  at::setHostAllocator(T, PinnedAllocator::instance());
}

/// Hooks of torch that both device types have in the same words. `Base` is torch's interface.
template <c10::DeviceType T, class Base>
struct Hooks : Base {
  void init() const override {
    check(otr_runtime_init());
  }
  bool isBuilt() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return index >= 0 && index < outrigger::device_count();
  }
  c10::DeviceIndex deviceCount() const override {
    return outrigger::device_count();
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_current_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = current_device();
    if (index >= 0) {
      set_current_device(index);
    }
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return PinnedAllocator::instance();
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    uint32_t device = 0;
    check(otr_memory_find(address_of(data), &device));
    return {T, static_cast<c10::DeviceIndex>(device)};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(T, index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(T, index);
  }
};

}  // namespace outrigger
