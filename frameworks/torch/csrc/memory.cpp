//! The device allocator, the pinned host allocator, and tensors over their memory. It must never wait
//! for a stream: the runtime reuses memory in stream order.

#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace outrigger {
namespace {

c10::CachingAllocator::Stat stat(const otr_stat_t& from) {
  c10::CachingAllocator::Stat to;
  to.current = static_cast<int64_t>(from.current);
  to.peak = static_cast<int64_t>(from.peak);
  to.allocated = static_cast<int64_t>(from.allocated);
  to.freed = static_cast<int64_t>(from.freed);
  return to;
}

/// One statistic of all blocks, of small and of large ones.
void set(
    c10::CachingAllocator::StatArray& to, const otr_stat_t& all, const otr_stat_t& small, const otr_stat_t& large) {
  using c10::CachingAllocator::StatType;
  to[static_cast<size_t>(StatType::AGGREGATE)] = stat(all);
  to[static_cast<size_t>(StatType::SMALL_POOL)] = stat(small);
  to[static_cast<size_t>(StatType::LARGE_POOL)] = stat(large);
}

/// Tells torch's profiler of a block that is handed out (sign 1) or given back (sign -1). The profiler listens on
/// the threads that it profiles.
void tell_profiler(c10::Device device, void* address, int64_t sign) noexcept {
  const auto index = static_cast<uint32_t>(device.index());
  auto block = otr::sized<otr_pointer_info_t>();
  auto stats = otr::sized<otr_memory_stats_t>();
  otr_status_t* failed = otr_memory_pointer_info(index, address_of(address), &block);
  if (failed == nullptr) {
    failed = otr_memory_stats(index, &stats);
  }
  if (failed != nullptr) {
    warn_if_failed(failed, "profiling device memory");
    return;
  }
  const auto size = static_cast<int64_t>(block.size);
  // The statistics still have the block that is given back.
  const uint64_t gone = sign < 0 ? block.size : 0;
  c10::reportMemoryUsageToProfiler(
      address, sign * size, stats.allocated_bytes.current - gone, stats.reserved_bytes.current, device);
}

/// Frees memory of one device: a deleter is given nothing but the address, which two devices may have.
template <c10::DeviceType Type, size_t Device>
void free_on(void* address) noexcept {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled()) && address != nullptr) {
    tell_profiler({Type, static_cast<c10::DeviceIndex>(Device)}, address, -1);
  }
  warn_if_failed(otr_memory_free(Device, address_of(address)), "freeing device memory");
}

template <c10::DeviceType Type, size_t... Devices>
constexpr std::array<c10::DeleterFnPtr, sizeof...(Devices)> deleters(std::index_sequence<Devices...>) {
  return {&free_on<Type, Devices>...};
}

/// By device: as many as torch can number.
template <c10::DeviceType Type>
constexpr auto kDeleters =
    deleters<Type>(std::make_index_sequence<std::numeric_limits<c10::DeviceIndex>::max() + 1>());

c10::DeleterFnPtr deleter_of(c10::Device device) {
  const auto index = static_cast<size_t>(device.index());
  return device.type() == c10::DeviceType::MTIA ? kDeleters<c10::DeviceType::MTIA>[index]
                                                : kDeleters<c10::DeviceType::PrivateUse1>[index];
}

/// Frees memory of whichever device has the address: torch hands bare pointers back without their device.
void free_raw(void* pointer) noexcept {
  if (pointer == nullptr) {
    return;
  }
  uint32_t device = 0;
  otr_status_t* failed = otr_memory_find(address_of(pointer), &device);
  if (failed == nullptr) {
    failed = otr_memory_free(device, address_of(pointer));
  }
  warn_if_failed(failed, "freeing device memory");
}

void free_pinned_memory(void* pointer) noexcept {
  warn_if_failed(otr_host_free(pointer), "freeing pinned memory");
}

c10::DispatchKeySet keys_of(c10::DeviceType type) {
  switch (type) {
    case c10::DeviceType::CPU: return c10::DispatchKeySet(c10::DispatchKey::CPU);
    case c10::DeviceType::Meta: return c10::DispatchKeySet(c10::DispatchKey::Meta);
    case c10::DeviceType::MTIA: return c10::DispatchKeySet(c10::DispatchKey::MTIA);
    default: return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
}

c10::DispatchKeySet quantized_keys_of(c10::DeviceType type) {
  switch (type) {
    case c10::DeviceType::CPU: return c10::DispatchKeySet(c10::DispatchKey::QuantizedCPU);
    case c10::DeviceType::MTIA: return c10::DispatchKeySet(c10::DispatchKey::QuantizedMTIA);
    default: return c10::DispatchKeySet(c10::DispatchKey::QuantizedPrivateUse1);
  }
}

at::Tensor make(c10::Device device, size_t bytes, c10::ScalarType dtype) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, allocate(device, bytes), allocator_of(device.type()),
      /*resizable=*/true);
  return at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), keys_of(device.type()), c10::scalarTypeToTypeMeta(dtype));
}

}  // namespace

c10::DataPtr allocate(c10::Device device, size_t bytes) {
  otr_address_t address = 0;
  if (bytes != 0) {
    const auto index = static_cast<uint32_t>(device.index());
    check(otr_memory_alloc(index, bytes, current_stream(device.index()), &address));
  } else if (C10_UNLIKELY(device.index() < 0)) {
    check_device(device.index());
  }
  void* pointer = reinterpret_cast<void*>(address);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled()) && pointer != nullptr) {
    tell_profiler(device, pointer, 1);
  }
  return {pointer, pointer, deleter_of(device), device};
}

c10::CachingDeviceAllocator::DeviceStats device_stats(c10::DeviceIndex device) {
  check_device(device);
  auto from = otr::sized<otr_memory_stats_t>();
  check(otr_memory_stats(static_cast<uint32_t>(device), &from));
  c10::CachingDeviceAllocator::DeviceStats to;
  const auto& small = from.small;
  const auto& large = from.large;
  set(to.allocation, from.allocations, small.allocations, large.allocations);
  set(to.segment, from.segments, small.segments, large.segments);
  set(to.active, from.active, small.active, large.active);
  set(to.inactive_split, from.inactive_split, small.inactive_split, large.inactive_split);
  set(to.allocated_bytes, from.allocated_bytes, small.allocated_bytes, large.allocated_bytes);
  set(to.reserved_bytes, from.reserved_bytes, small.reserved_bytes, large.reserved_bytes);
  set(to.active_bytes, from.active_bytes, small.active_bytes, large.active_bytes);
  set(to.inactive_split_bytes, from.inactive_split_bytes, small.inactive_split_bytes, large.inactive_split_bytes);
  set(to.requested_bytes, from.requested_bytes, small.requested_bytes, large.requested_bytes);
  to.num_alloc_retries = static_cast<int64_t>(from.alloc_retries);
  to.num_ooms = static_cast<int64_t>(from.ooms);
  to.num_sync_all_streams = static_cast<int64_t>(from.sync_all_streams);
  to.num_device_alloc = static_cast<int64_t>(from.device_allocs);
  to.num_device_free = static_cast<int64_t>(from.device_frees);
  return to;
}

void record_stream(const c10::DataPtr& pointer, otr_stream_t stream) {
  if (pointer) {
    const auto device = static_cast<uint32_t>(pointer.device().index());
    check(otr_memory_record_stream(device, address_of(pointer.get()), stream));
  }
}

c10::DataPtr DeviceAllocator::allocate(size_t bytes) {
  return outrigger::allocate(c10::Device(type_, current_device()), bytes);
}

c10::DeleterFnPtr DeviceAllocator::raw_deleter() const {
  return &free_raw;
}

void DeviceAllocator::copy_data(void* destination, const void* source, size_t bytes) const {
  if (bytes != 0) {
    check(otr_copy(
        current_stream(current_device()), address_of(destination), address_of(source), bytes,
        OTR_COPY_DEVICE_TO_DEVICE));
  }
}

void DeviceAllocator::emptyCache(c10::MempoolId_t) {
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    check(otr_memory_empty_cache(static_cast<uint32_t>(device)));
  }
}

void DeviceAllocator::recordStream(const c10::DataPtr& pointer, c10::Stream stream) {
  record_stream(pointer, stream_handle(stream));
}

void DeviceAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  check(otr_memory_reset_accumulated(static_cast<uint32_t>(device)));
}

void DeviceAllocator::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  check(otr_memory_reset_peak(static_cast<uint32_t>(device)));
}

std::pair<size_t, size_t> DeviceAllocator::getMemoryInfo(c10::DeviceIndex device) {
  check_device(device);
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  check(otr_memory_info(static_cast<uint32_t>(device), &free_bytes, &total_bytes));
  return {free_bytes, total_bytes};
}

DeviceAllocator* allocator_of(c10::DeviceType type) {
  // Leaked on purpose: tensors of other static objects may outlive any order of destruction.
  static auto* outrigger = new DeviceAllocator(c10::DeviceType::PrivateUse1);
  static auto* mtia = new DeviceAllocator(c10::DeviceType::MTIA);
  return type == c10::DeviceType::MTIA ? mtia : outrigger;
}

c10::DataPtr PinnedAllocator::allocate(size_t bytes) {
  void* pointer = nullptr;
  if (bytes != 0) {
    check(otr_host_alloc(bytes, &pointer));
  }
  return {pointer, pointer, raw_deleter(), c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr PinnedAllocator::raw_deleter() const {
  return &free_pinned_memory;
}

bool PinnedAllocator::record_event(void* pointer, void*, c10::Stream stream) {
  if (!is_pinned(pointer)) {
    return false;
  }
  check(otr_host_record_stream(pointer, stream_handle(stream)));
  return true;
}

void PinnedAllocator::empty_cache() {
  check(otr_host_empty_cache());
}

at::HostStats PinnedAllocator::get_stats() {
  auto from = otr::sized<otr_memory_stats_t>();
  check(otr_host_stats(&from));
  at::HostStats to;
  to.active_requests = stat(from.active);
  to.active_bytes = stat(from.active_bytes);
  // Torch asks for what is held of the system, in use or cached.
  to.allocations = stat(from.segments);
  to.allocated_bytes = stat(from.reserved_bytes);
  to.num_host_alloc = static_cast<int64_t>(from.device_allocs);
  to.num_host_free = static_cast<int64_t>(from.device_frees);
  return to;
}

void PinnedAllocator::reset_accumulated_stats() {
  check(otr_host_reset_accumulated());
}

void PinnedAllocator::reset_peak_stats() {
  check(otr_host_reset_peak());
}

PinnedAllocator* PinnedAllocator::instance() {
  static auto* allocator = new PinnedAllocator;
  return allocator;
}

bool is_pinned(const void* pointer) {
  uint32_t yes = 0;
  if (pointer != nullptr) {
    otr_status_t* status = otr_host_is_pinned(pointer, &yes);
    // Loaders of data ask in forked workers, where nothing is pinned.
    if (otr_status_code(status) == OTR_ERR_FORKED) {
      otr_status_free(status);
      return false;
    }
    check(status);
  }
  return yes != 0;
}

at::Tensor empty_strided_on(
    c10::Device device, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  at::detail::check_size_nonnegative(sizes);
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  at::Tensor tensor = make(device, bytes, dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor empty_on(
    c10::Device device, c10::IntArrayRef sizes, c10::ScalarType dtype, c10::MemoryFormat format) {
  at::detail::check_size_nonnegative(sizes);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype));
  at::Tensor tensor = make(device, bytes, dtype);
  // A new tensor has the single size 0, which is contiguous.
  if (sizes.size() != 1 || sizes[0] != 0) {
    tensor.unsafeGetTensorImpl()->generic_set_sizes_contiguous(sizes);
  }
  if (format != c10::MemoryFormat::Contiguous && format != c10::MemoryFormat::Preserve) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(format);
  }
  return tensor;
}

at::Tensor empty_like_on(const at::Tensor& like, c10::ScalarType dtype) {
  if (like.is_contiguous()) {
    return empty_on(like.device(), like.sizes(), dtype);
  }
  if (like.is_non_overlapping_and_dense()) {
    return empty_strided_on(like.device(), like.sizes(), like.strides(), dtype);
  }
  const auto strides = at::infer_dense_strides(like.sizes(), like.strides());
  return empty_strided_on(like.device(), like.sizes(), strides, dtype);
}

at::Tensor tensor_over(
    c10::Storage storage, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
    caffe2::TypeMeta dtype, at::QuantizerPtr quantizer) {
  const c10::DeviceType type = storage.device_type();
  at::Tensor tensor = quantizer
      ? at::detail::make_tensor<at::QTensorImpl>(
            std::move(storage), quantized_keys_of(type), dtype, std::move(quantizer))
      : at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys_of(type), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::QuantizerPtr quantizer_of(const at::Tensor& tensor) {
  return tensor.is_quantized() ? at::get_qtensorimpl(tensor)->quantizer() : at::QuantizerPtr();
}

void own_memory(c10::StorageImpl* storage) {
  // The allocator that is asked for it knows no device but the current one.
  const c10::DeviceGuard on_its_device(storage->device());
  storage->mutable_data();
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  if (is_lazy(storage)) {
    own_memory(storage);
  }
  const c10::Device device = storage->device();
  c10::DataPtr grown = allocate(device, bytes);
  const size_t kept = std::min(bytes, storage->nbytes());
  if (kept != 0) {
    check(otr_copy(
        current_stream(device.index()), address_of(grown.get()), address_of(storage->data()), kept,
        OTR_COPY_DEVICE_TO_DEVICE));
  }
  storage->set_data_ptr_noswap(std::move(grown));
  storage->set_nbytes(bytes);
}

}  // namespace outrigger
