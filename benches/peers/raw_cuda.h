// CUDA by hand, on the device that the driver `cuda` takes too: the driver API, looked up in libcuda when the program starts,
// so that neither building nor packing needs CUDA. It is the peer of each metric of `cargo xtask bench driver` over CUDA,
// in the same process.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace bench {

// The one kernel of all that is about launches: adds a number to the first of `n` numbers. Both sides load this text.
inline const char* const ADD =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry add(.param .u64 p, .param .u32 n, .param .u32 value) {\n"
    "  .reg .b64 %a<2>;\n  .reg .b32 %v<2>;\n"
    "  ld.param.u64 %a0, [p];\n  cvta.to.global.u64 %a1, %a0;\n  ld.param.u32 %v0, [value];\n"
    "  ld.global.u32 %v1, [%a1];\n  add.u32 %v1, %v1, %v0;\n  st.global.u32 [%a1], %v1;\n  ret;\n}\n";

class RawCuda {
 public:
  using Handle = void*;

  // CUDA_KERNEL_NODE_PARAMS_v1 of cuda.h.
  struct KernelNode {
    Handle function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    void** parameters;
    void** extra;
  };

  explicit RawCuda(const char* library) : library_(dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    Handle context = nullptr;
    int device = 0;
    call("cuInit", 0u);
    call("cuDeviceGet", &device, 0);
    call("cuDevicePrimaryCtxRetain", &context, device);
    call("cuCtxPushCurrent_v2", context);
    find(launch_, "cuLaunchKernel");
    find(synchronize_, "cuStreamSynchronize");
    find(to_device_, "cuMemcpyHtoDAsync_v2");
    find(to_host_, "cuMemcpyDtoHAsync_v2");
    find(fill_, "cuMemsetD32Async");
    find(record_, "cuEventRecord");
    find(replay_, "cuGraphLaunch");
    call("cuStreamCreateWithPriority", &stream_, 1u, 0);  // it does not wait for the default stream
  }

  static void ok(int code) {
    if (code != 0) throw std::runtime_error("CUDA error " + std::to_string(code));
  }

  // Any other function, by its name.
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const {
    int (*function)(Arguments...) = nullptr;
    find(function, name);
    ok(function(arguments...));
  }

  // Memory for as long as the program runs.
  uint64_t alloc(size_t bytes) const {
    uint64_t address = 0;
    call("cuMemAlloc_v2", &address, bytes);
    return address;
  }

  // A kernel of a text in PTX. The linker takes it, so that what is loaded is code of the device.
  Handle kernel(const char* text, size_t size, const char* name) const {
    constexpr int PTX = 1;
    Handle link = nullptr, module = nullptr, function = nullptr;
    void* code = nullptr;
    size_t bytes = 0;
    call("cuLinkCreate_v2", 0u, static_cast<int*>(nullptr), static_cast<void**>(nullptr), &link);
    call("cuLinkAddData_v2", link, PTX, const_cast<char*>(text), size, name, 0u, static_cast<int*>(nullptr), static_cast<void**>(nullptr));
    call("cuLinkComplete", link, &code, &bytes);
    call("cuModuleLoadData", &module, const_cast<const void*>(code));
    call("cuModuleGetFunction", &function, module, name);
    call("cuLinkDestroy", link);
    return function;
  }

  // A graph of as many launches, each behind the one before.
  Handle chain(const KernelNode& node, int count) const {
    Handle graph = nullptr, exec = nullptr, last = nullptr;
    call("cuGraphCreate", &graph, 0u);
    for (int i = 0; i < count; ++i) {
      Handle added = nullptr;
      call("cuGraphAddKernelNode", &added, graph, const_cast<const Handle*>(&last), size_t(i == 0 ? 0 : 1), &node);
      last = added;
    }
    call("cuGraphInstantiateWithFlags", &exec, graph, uint64_t(0));
    call("cuGraphDestroy", graph);
    return exec;
  }

  Handle event() const {
    constexpr unsigned WITHOUT_TIME = 2;
    Handle event = nullptr;
    call("cuEventCreate", &event, WITHOUT_TIME);
    return event;
  }

  void launch(Handle function, void** arguments) const {
    ok(launch_(function, 1, 1, 1, 1, 1, 1, 0, stream_, arguments, nullptr));
  }
  void replay(Handle exec) const { ok(replay_(exec, stream_)); }
  void record(Handle event) const { ok(record_(event, stream_)); }
  void fill(uint64_t address, uint32_t value, size_t count) const { ok(fill_(address, value, count, stream_)); }
  void to_device(uint64_t to, const void* from, size_t bytes) const { ok(to_device_(to, from, bytes, stream_)); }
  void to_host(void* to, uint64_t from, size_t bytes) const { ok(to_host_(to, from, bytes, stream_)); }
  void finish() const { ok(synchronize_(stream_)); }

 private:
  void* library_;
  Handle stream_ = nullptr;
  int (*launch_)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**) = nullptr;
  int (*synchronize_)(Handle) = nullptr;
  int (*to_device_)(uint64_t, const void*, size_t, Handle) = nullptr;
  int (*to_host_)(void*, uint64_t, size_t, Handle) = nullptr;
  int (*fill_)(uint64_t, unsigned, size_t, Handle) = nullptr;
  int (*record_)(Handle, Handle) = nullptr;
  int (*replay_)(Handle, Handle) = nullptr;

  template <class Function>
  void find(Function& function, const char* name) const {
    void* const found = dlsym(library_, name);
    if (found == nullptr) throw std::runtime_error(std::string("libcuda has no ") + name);
    function = reinterpret_cast<Function>(found);
  }
};

}  // namespace bench
