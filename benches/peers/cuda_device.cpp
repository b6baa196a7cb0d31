// A stand-in for the CUDA runtime and driver, so that PyTorch's own allocator (libc10_cuda) runs without a
// GPU: memory is numbers, events pass with the trace's time, calls are counted. Built as libcudart.so.13. It
// has what that allocator calls and nothing more: a call of anything else fails, or ends the program with its name.

#include "cuda_device.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

constexpr uint64_t kPage = 2u << 20;

std::mutex mutex;  // guards all below, but for the atomics
uint64_t capacity = 1ull << 40, used = 0, peak = 0;
uint64_t next_address = 1ull << 33, next_handle = 1, next_stream = 0x1000;
std::unordered_map<uint64_t, uint64_t> allocations;  // by address
std::unordered_map<uint64_t, uint64_t> objects;      // physical memory by handle
DeviceCalls calls{};

std::atomic<uint64_t> now{0}, idle_at{0}, lag{200}, records{0};

// A CUDA event: the operation at which it was recorded.
struct Event {
  std::atomic<uint64_t> at{0};
};

bool passed(uint64_t at) { return now >= at + lag || at < idle_at; }

uint64_t addresses(uint64_t size) {
  const uint64_t address = next_address;
  next_address += (size + kPage - 1) / kPage * kPage;
  return address;
}

bool take(uint64_t size) {
  if (size > capacity - used) return false;
  used += size;
  if (used > peak) peak = used;
  return true;
}

// The host waits until everything submitted before now has finished. What it has waited for at this operation
// already costs nothing more.
cudaError_t wait_all() {
  std::lock_guard guard(mutex);
  if (idle_at < now) ++calls.host_waits;
  idle_at = now.load();
  return cudaSuccess;
}

CUresult mem_reserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  std::lock_guard guard(mutex);
  ++calls.reserves;
  *address = addresses(size);
  return CUDA_SUCCESS;
}

CUresult mem_address_free(CUdeviceptr, size_t) {
  std::lock_guard guard(mutex);
  ++calls.releases;
  return CUDA_SUCCESS;
}

CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*, unsigned long long) {
  std::lock_guard guard(mutex);
  ++calls.creates;
  if (!take(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = next_handle++;
  objects[*handle] = size;
  return CUDA_SUCCESS;
}

CUresult mem_release(CUmemGenericAllocationHandle handle) {
  std::lock_guard guard(mutex);
  ++calls.destroys;
  const auto object = objects.find(handle);
  if (object == objects.end()) return CUDA_ERROR_INVALID_VALUE;
  used -= object->second;
  objects.erase(object);
  return CUDA_SUCCESS;
}

CUresult mem_map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  std::lock_guard guard(mutex);
  ++calls.maps;
  return CUDA_SUCCESS;
}

CUresult mem_set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  std::lock_guard guard(mutex);
  ++calls.accesses;
  return CUDA_SUCCESS;
}

CUresult mem_unmap(CUdeviceptr, size_t) {
  std::lock_guard guard(mutex);
  ++calls.unmaps;
  return CUDA_SUCCESS;
}

CUresult mem_granularity(size_t* granularity, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *granularity = kPage;
  return CUDA_SUCCESS;
}

CUresult error_string(CUresult, const char** text) {
  *text = "refused by the stand-in for CUDA";
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult device_attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;  // no RDMA, no fabric handles
  return CUDA_SUCCESS;
}

// PyTorch wants to find every function of its table, most of which its allocator has no use for here.
CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

struct EntryPoint {
  const char* name;
  void* function;
};

const EntryPoint kEntryPoints[] = {
    {"cuMemAddressReserve", reinterpret_cast<void*>(mem_reserve)},
    {"cuMemAddressFree", reinterpret_cast<void*>(mem_address_free)},
    {"cuMemCreate", reinterpret_cast<void*>(mem_create)},
    {"cuMemRelease", reinterpret_cast<void*>(mem_release)},
    {"cuMemMap", reinterpret_cast<void*>(mem_map)},
    {"cuMemSetAccess", reinterpret_cast<void*>(mem_set_access)},
    {"cuMemUnmap", reinterpret_cast<void*>(mem_unmap)},
    {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(mem_granularity)},
    {"cuGetErrorString", reinterpret_cast<void*>(error_string)},
    {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_attribute)},
};

}  // namespace

extern "C" {

void device_configure(uint64_t bytes, uint64_t operations) {
  std::lock_guard guard(mutex);
  capacity = bytes;
  lag = operations;
}

void device_tick(uint64_t operation) { now = operation; }

void device_idle() { idle_at = now.load(); }

uint64_t device_peak() {
  std::lock_guard guard(mutex);
  return peak;
}

DeviceCalls device_calls() {
  std::lock_guard guard(mutex);
  DeviceCalls all = calls;
  all.records = records;
  return all;
}

cudaError_t cudaMalloc(void** pointer, size_t size) {
  std::lock_guard guard(mutex);
  ++calls.mallocs;
  if (!take(size)) return cudaErrorMemoryAllocation;
  const uint64_t address = addresses(size);
  allocations[address] = size;
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  std::lock_guard guard(mutex);
  if (pointer == nullptr) return cudaSuccess;
  ++calls.frees;
  const auto allocation = allocations.find(reinterpret_cast<uint64_t>(pointer));
  if (allocation == allocations.end()) return cudaErrorInvalidValue;
  used -= allocation->second;
  allocations.erase(allocation);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard guard(mutex);
  *free = capacity - used;
  *total = capacity;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::lock_guard guard(mutex);
  *properties = {};
  properties->totalGlobalMem = capacity;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13020;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t) { return "refused by the stand-in for CUDA"; }

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorStandIn"; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  std::lock_guard guard(mutex);
  *stream = reinterpret_cast<cudaStream_t>(next_stream += 16);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  std::lock_guard guard(mutex);
  ++calls.stream_waits;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return wait_all(); }

cudaError_t cudaStreamSynchronize(cudaStream_t) { return wait_all(); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  ++records;
  reinterpret_cast<Event*>(event)->at = now.load();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return passed(reinterpret_cast<Event*>(event)->at) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!passed(reinterpret_cast<Event*>(event)->at)) {
    std::lock_guard guard(mutex);
    ++calls.host_waits;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *function = reinterpret_cast<void*>(not_supported);
  for (const EntryPoint& entry : kEntryPoints) {
    if (std::strcmp(entry.name, name) == 0) *function = entry.function;
  }
  if (status != nullptr) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
