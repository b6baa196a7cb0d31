//! CPU tensors over device memory, staging if the host cannot see it, and results that are allocated on
//! the device. It must never copy between host and device if the memory is host-visible.

#include "host.h"

#include "host_view.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace outrigger {
namespace {

thread_local bool born_on_device = false;
thread_local c10::Device born_device(c10::DeviceType::PrivateUse1, 0);

// Addresses of device memory that the CPU allocator has handed out and nobody has freed, with the device's deleter.
// The deleter of bare pointers asks here and not the runtime, where the address of another device can be any
// number, also that of a host pointer.
class BornAddresses;
BornAddresses& born_addresses();
class BornAddresses {
 public:
  // A child that is forked while another thread is here must find the lock free.
  BornAddresses() {
    pthread_atfork(
        [] { born_addresses().lock_.lock(); }, [] { born_addresses().lock_.unlock(); },
        [] { born_addresses().lock_.unlock(); });
  }
  void add(void* address, c10::DeleterFnPtr deleter) {
    const std::lock_guard<std::mutex> lock(lock_);
    deleters_.emplace(address, deleter);
  }
  // The deleter of an address, or NULL if the address is none of these.
  c10::DeleterFnPtr remove(void* address) {
    const std::lock_guard<std::mutex> lock(lock_);
    const auto found = deleters_.find(address);
    if (found == deleters_.end()) {
      return nullptr;
    }
    const c10::DeleterFnPtr deleter = found->second;
    deleters_.erase(found);
    return deleter;
  }

 private:
  std::mutex lock_;
  std::unordered_map<void*, c10::DeleterFnPtr> deleters_;
};

BornAddresses& born_addresses() {
  // Leaked on purpose: CPU tensors of static objects may outlive any order of destruction.
  static auto* addresses = new BornAddresses;
  return *addresses;
}

// Frees memory that was born on a device while a CPU tensor was asked for. `is_born` knows it by this deleter.
void free_born(void* address) noexcept {
  if (const c10::DeleterFnPtr deleter = born_addresses().remove(address)) {
    deleter(address);
  }
}

bool is_born(const c10::DataPtr& pointer) {
  return pointer.get_deleter() == &free_born;
}

// Frees host memory for the CPU allocator that was there before ours; NULL if it hands out no bare pointers.
c10::DeleterFnPtr host_deleter = nullptr;

// Frees a bare pointer of the CPU allocator, which may have been born on a device.
void free_raw(void* pointer) noexcept {
  if (const c10::DeleterFnPtr deleter = born_addresses().remove(pointer)) {
    deleter(pointer);
  } else {
    host_deleter(pointer);
  }
}

// The CPU allocator of the process: the one before it, except for threads inside a scope.
class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator* before) : before_(before) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (C10_LIKELY(!born_on_device) || bytes == 0) {
      return before_->allocate(bytes);
    }
    c10::DataPtr memory = outrigger::allocate(born_device, bytes);
    // Another thread may have freed it while work that it queued on the same stream still uses it.
    synchronize(current_stream(born_device.index()));
    born_addresses().add(memory.get(), memory.get_deleter());
    void* address = memory.release_context();
    return {address, address, &free_born, c10::Device(c10::DeviceType::CPU)};
  }

  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return before_->is_simple_data_ptr(pointer);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    // Kernels take scratch memory as bare pointers, inside a scope too, and may give it back after it.
    return host_deleter == nullptr ? nullptr : &free_raw;
  }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

 private:
  c10::Allocator* before_;
};

void release_storage(void* context) noexcept {
  delete static_cast<c10::Storage*>(context);
}

// A storage on `device` over the bytes of another one, which it keeps alive.
c10::Storage storage_over(const c10::Storage& owner, c10::Device device, c10::Allocator* allocator) {
  auto* keep = new c10::Storage(owner);
  c10::DataPtr data(const_cast<void*>(owner.data()), keep, &release_storage, device);
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), owner.nbytes(), std::move(data), allocator, /*resizable=*/true);
}

// First byte and one past the last byte that a tensor reaches in its storage.
std::pair<size_t, size_t> span_of(const at::Tensor& tensor) {
  const auto item = static_cast<int64_t>(tensor.itemsize());
  int64_t first = tensor.storage_offset();
  int64_t last = first;
  if (tensor.numel() == 0) {
    return {0, 0};
  }
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const int64_t reach = (tensor.size(dim) - 1) * tensor.stride(dim);
    (reach < 0 ? first : last) += reach;
  }
  return {static_cast<size_t>(first * item), static_cast<size_t>((last + 1) * item)};
}

void copy_bits(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj()) {
    to._set_conj(true);
  }
  if (from.is_neg()) {
    to._set_neg(true);
  }
}

// Offsets of staged spans keep this alignment relative to the storage, so that every dtype stays aligned.
constexpr size_t kSpanAlignment = 64;

// Puts our CPU allocator in front of the process's own when an operator first runs on the CPU over
// host-visible memory: a program that uses no device keeps torch's. Memory of either is freed through either.
void install_host_allocator() {
  static const bool installed = [] {
    c10::Allocator* before = c10::GetCPUAllocator();
    host_deleter = before->raw_deleter();
    c10::SetCPUAllocator(new HostAllocator(before));
    return true;
  }();
  (void)installed;
}

}  // namespace

HostScope::HostScope(c10::Device device)
    : device_(device),
      visible_(is_host_visible(device.index())),
      born_before_(born_on_device),
      born_device_before_(born_device) {
  if (visible_) {
    install_host_allocator();
  }
  synchronize(current_stream(device.index()));
  born_on_device = visible_;
  born_device = device;
}

HostScope::~HostScope() {
  born_on_device = born_before_;
  born_device = born_device_before_;
}

HostScope::Shown& HostScope::shown(const c10::Storage& storage) {
  for (Shown& entry : shown_) {
    if (entry.device.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
      return entry;
    }
  }
  if (storage.device() != device_) {
    synchronize(current_stream(storage.device().index()));
  }
  Shown entry;
  entry.device = storage;
  entry.staged = !is_host_visible(storage.device().index());
  entry.begin = entry.end = 0;
  shown_.push_back(std::move(entry));
  return shown_.back();
}

void HostScope::announce(const at::Tensor& tensor) {
  if (!is_ours(tensor) || !tensor.has_storage()) {
    return;
  }
  Shown& entry = shown(tensor.storage());
  const auto [begin, end] = span_of(tensor);
  if (end > begin) {
    const size_t aligned = begin / kSpanAlignment * kSpanAlignment;
    entry.begin = entry.end == 0 ? aligned : std::min(entry.begin, aligned);
    entry.end = std::max(entry.end, end);
  }
}

// Makes the host storage of an entry: over the device bytes, or a copy of the announced span.
void HostScope::fill(Shown& entry) {
  if (!entry.staged) {
    entry.host = storage_over(entry.device, c10::Device(c10::DeviceType::CPU), c10::GetCPUAllocator());
  } else {
    const size_t bytes = entry.end - entry.begin;
    c10::DataPtr data = c10::GetCPUAllocator()->allocate(bytes);
    if (bytes != 0) {
      const otr_stream_t stream = current_stream(entry.device.device().index());
      check(otr_copy(
          stream, address_of(data.get()), address_of(entry.device.data()) + entry.begin, bytes,
          OTR_COPY_DEVICE_TO_HOST));
      synchronize(stream);
      staged_bytes_ += bytes;
    }
    entry.host = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), c10::GetCPUAllocator(), true);
  }
  entry.data = entry.host.data();
}

at::Tensor HostScope::to_host(const at::Tensor& tensor, bool written) {
  if (!is_ours(tensor)) {
    return tensor;
  }
  for (const Argument& argument : arguments_) {
    if (argument.device.is_same(tensor)) {
      if (written && tensor.has_storage()) {
        shown(tensor.storage()).written = true;
      }
      return argument.host;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == c10::Layout::Strided && tensor.has_storage(),
      who(), "a tensor of layout ", tensor.layout(), " cannot be shown to a CPU kernel as it is");
  Shown& entry = shown(tensor.storage());
  entry.written |= written;
  if (!entry.host) {
    fill(entry);
  }
  const auto item = static_cast<int64_t>(tensor.itemsize());
  const int64_t shift = entry.staged ? static_cast<int64_t>(entry.begin) / item : 0;
  const int64_t offset = tensor.numel() == 0 ? 0 : tensor.storage_offset() - shift;
  at::Tensor host = tensor_over(
      entry.host, tensor.sizes(), tensor.strides(), entry.staged ? offset : tensor.storage_offset(),
      tensor.dtype(), quantizer_of(tensor));
  copy_bits(tensor, host);
  arguments_.push_back({tensor, host});
  return host;
}

// Staged bytes go back; a storage that the operator replaced by a larger one is taken over.
void HostScope::write_back(Shown& entry) {
  c10::StorageImpl* device = entry.device.unsafeGetStorageImpl();
  c10::StorageImpl* host = entry.host.unsafeGetStorageImpl();
  const otr_stream_t stream = current_stream(device->device().index());
  if (!entry.staged) {
    if (host->data() == entry.data) {
      return;
    }
    c10::DataPtr grown = std::move(host->mutable_data_ptr());
    if (is_born(grown)) {
      const c10::DeleterFnPtr deleter = born_addresses().remove(grown.get());
      void* address = grown.release_context();
      grown = c10::DataPtr(address, address, deleter, device->device());
      device->set_data_ptr_noswap(std::move(grown));
      device->set_nbytes(host->nbytes());
      return;
    }
    // Resized to nothing, or by a kernel that brought its own memory.
    c10::DataPtr fresh = allocate(device->device(), host->nbytes());
    if (host->nbytes() != 0) {
      check(otr_copy(
          stream, address_of(fresh.get()), address_of(grown.get()), host->nbytes(), OTR_COPY_HOST_TO_DEVICE));
      synchronize(stream);
      staged_bytes_ += host->nbytes();
    }
    device->set_data_ptr_noswap(std::move(fresh));
    device->set_nbytes(host->nbytes());
    return;
  }
  const size_t needed = entry.begin + host->nbytes();
  if (needed > device->nbytes()) {
    resize_storage(device, needed);
  }
  if (host->nbytes() != 0) {
    check(otr_copy(
        stream, address_of(device->data()) + entry.begin, address_of(host->data()), host->nbytes(),
        OTR_COPY_HOST_TO_DEVICE));
    synchronize(stream);
    staged_bytes_ += host->nbytes();
  }
}

void HostScope::finish() {
  for (Shown& entry : shown_) {
    if (entry.written && entry.host) {
      write_back(entry);
    }
  }
  for (const Argument& argument : arguments_) {
    const at::Tensor& device = argument.device;
    const at::Tensor& host = argument.host;
    Shown& entry = shown(device.storage());
    if (!entry.written) {
      continue;
    }
    c10::TensorImpl* impl = device.unsafeGetTensorImpl();
    if (host.storage().unsafeGetStorageImpl() != entry.host.unsafeGetStorageImpl()) {
      // The operator gave the tensor another storage.
      impl->set_storage_keep_dtype(adopt(host).storage());
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    } else if (device.sizes() != host.sizes() || device.strides() != host.strides()) {
      const int64_t shift = entry.staged ? static_cast<int64_t>(entry.begin / device.itemsize()) : 0;
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset() + shift);
    }
  }
}

// A device tensor over the bytes of a CPU tensor that is no view of an argument.
at::Tensor HostScope::adopt(const at::Tensor& result) {
  c10::Storage storage;
  for (const auto& [host, device] : adopted_) {
    if (host.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
      storage = device;
    }
  }
  if (!storage) {
    const c10::Storage& host = result.storage();
    if (is_born(host.data_ptr()) && visible_) {
      storage = storage_over(host, device_, allocator_of(device_.type()));
    } else {
      c10::DataPtr data = allocate(device_, host.nbytes());
      if (host.nbytes() != 0) {
        const otr_stream_t stream = current_stream(device_.index());
        check(otr_copy(
            stream, address_of(data.get()), address_of(host.data()), host.nbytes(), OTR_COPY_HOST_TO_DEVICE));
        synchronize(stream);
        staged_bytes_ += host.nbytes();
      }
      storage = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), host.nbytes(), std::move(data), allocator_of(device_.type()), true);
    }
    adopted_.emplace_back(host, storage);
  }
  at::Tensor tensor = tensor_over(
      std::move(storage), result.sizes(), result.strides(), result.storage_offset(), result.dtype(),
      quantizer_of(result));
  copy_bits(result, tensor);
  return tensor;
}

at::Tensor HostScope::to_device(const at::Tensor& result) {
  if (!result.defined() || !result.device().is_cpu() || !result.has_storage()) {
    return result;
  }
  for (const Argument& argument : arguments_) {
    if (argument.host.is_same(result)) {
      return argument.device;
    }
  }
  for (const Shown& entry : shown_) {
    if (entry.host && entry.host.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
      const int64_t shift = entry.staged ? static_cast<int64_t>(entry.begin / result.itemsize()) : 0;
      at::Tensor view = tensor_over(
          entry.device, result.sizes(), result.strides(), result.storage_offset() + shift, result.dtype(),
          quantizer_of(result));
      copy_bits(result, view);
      return view;
    }
  }
  return adopt(result);
}

at::Tensor host_view(const at::Tensor& tensor) {
  TORCH_CHECK(is_ours(tensor), who(), "expected a tensor of the device, got one of ", tensor.device());
  TORCH_CHECK(
      tensor.layout() == c10::Layout::Strided && tensor.has_storage() && !tensor.is_quantized(), who(),
      "only a dense tensor can be seen by the CPU, not one of layout ", tensor.layout());
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_host_visible(tensor.device().index()), who(), "the CPU does not see the memory of ", tensor.device(),
      ": copy the tensor with .cpu()");
  own_memory_of(tensor);
  synchronize(stream_of(tensor));
  at::Tensor view = tensor_over(
      storage_over(tensor.storage(), c10::Device(c10::DeviceType::CPU), c10::GetCPUAllocator()), tensor.sizes(), tensor.strides(),
      tensor.storage_offset(), tensor.dtype());
  copy_bits(tensor, view);
  return view;
}

HostMemoryGuard::HostMemoryGuard() : before_(std::exchange(born_on_device, false)) {}

HostMemoryGuard::~HostMemoryGuard() {
  born_on_device = before_;
}

}  // namespace outrigger
