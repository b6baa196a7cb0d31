//! Device memory as torch sees it: the allocator of each device type, the pinned host allocator, and
//! tensors over their memory without a device guard. It must never touch the bytes of device memory.
#pragma once

#include "runtime.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/TensorOptions.h>

namespace outrigger {

/// Allocates on a device, in the order of its current stream. The result frees itself.
c10::DataPtr allocate(c10::Device device, size_t bytes);

/// Torch's statistics of a device, from those of the runtime.
c10::CachingDeviceAllocator::DeviceStats device_stats(c10::DeviceIndex device);

/// Tells the allocator that a block is in use on a stream other than the one it was allocated on.
void record_stream(const c10::DataPtr& pointer, otr_stream_t stream);

/// Torch's allocator for one device type. All of them share the memory of the runtime's devices.
class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  explicit DeviceAllocator(c10::DeviceType type) : type_(type) {}

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;
  bool initialized() override {
    return device_count() > 0;
  }
  void emptyCache(c10::MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return device_stats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

 private:
  c10::DeviceType type_;
};

/// The allocator of a device type that this package serves.
DeviceAllocator* allocator_of(c10::DeviceType type);

/// Pinned host memory: cached by the runtime, reused only after the streams recorded on it have passed.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
  bool record_event(void* pointer, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  /// The one instance.
  static PinnedAllocator* instance();
};

/// Whether a host pointer lies in pinned memory of the runtime.
bool is_pinned(const void* pointer);

/// Makes a tensor with these strides (in elements) on a device; sizes are checked.
at::Tensor empty_strided_on(
    c10::Device device, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);

/// Makes a tensor on a device, contiguous in the given memory format.
at::Tensor empty_on(
    c10::Device device, c10::IntArrayRef sizes, c10::ScalarType dtype,
    c10::MemoryFormat format = c10::MemoryFormat::Contiguous);

/// Makes a tensor with sizes, strides and dtype of another one on that one's device. Overlapping or
/// gapped layouts become dense.
at::Tensor empty_like_on(const at::Tensor& like, c10::ScalarType dtype);

/// Makes a tensor over an existing storage, on that one's device; a quantized one if there is a quantizer.
at::Tensor tensor_over(
    c10::Storage storage, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
    caffe2::TypeMeta dtype, at::QuantizerPtr quantizer = {});

/// The quantizer of a quantized tensor; none of any other.
at::QuantizerPtr quantizer_of(const at::Tensor& tensor);

/// Gives a storage that shares its memory until it is written (a lazy clone) memory of its own, in stream order.
void own_memory(c10::StorageImpl* storage);

/// The same for the storage of a tensor of ours, before it is written: left to torch, the memory would be on the
/// current device. Any other tensor is left alone.
inline void own_memory_of(const at::TensorBase& tensor) {
  if (is_ours(tensor) && tensor.has_storage()) {
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (C10_UNLIKELY(is_lazy(storage))) {
      own_memory(storage);
    }
  }
}

/// The address of a tensor's first element, to be written.
inline otr_address_t written_address(const at::TensorBase& tensor) {
  own_memory_of(tensor);
  return address_of(tensor.mutable_data_ptr());
}

/// Changes the size of a storage in device memory, keeping what fits, in stream order.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

}  // namespace outrigger
