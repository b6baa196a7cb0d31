// Runs a trace through PyTorch's own caching allocator (libc10_cuda) over the stand-in for CUDA, for
// outrigger-bench-alloc. The policy is that of PYTORCH_ALLOC_CONF. The result is one line of numbers:
//   torch_allocator FILE replay CAPACITY LAG   ->  fits peak, then the calls at the end and at the fourth mark
//   torch_allocator FILE time THREADS REPETITIONS  ->  nanoseconds per pair: the median repetition's, the best one's
//   torch_allocator version
// FILE has two 64-bit numbers, of operations and of allocations, and then the operations.

#include "cuda_device.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include <pthread.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

// PyTorch's own initialisation would set this; it decides whether memory of another process may be asked for.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
}

namespace {

enum Kind : uint32_t { kAlloc, kFree, kRecord, kMark };

struct Op {
  Kind kind;
  uint32_t stream;
  uint64_t id;
  uint64_t size;
};

struct Trace {
  std::vector<Op> ops;
  uint64_t allocations = 0;
};

constexpr int kStreams = 8;  // a thread has half of them
constexpr int kWarmUpMarks = 4;

std::vector<c10::cuda::CUDAStream> streams() {
  std::vector<c10::cuda::CUDAStream> all{c10::cuda::getDefaultCUDAStream(0)};
  for (uintptr_t i = 1; i < kStreams; ++i) {
    all.push_back(c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(0x5000 + 0x1000 * i), 0));
  }
  return all;
}

Trace read(const char* path) {
  Trace trace;
  std::ifstream file(path, std::ios::binary);
  uint64_t count = 0;
  file.read(reinterpret_cast<char*>(&count), sizeof count);
  file.read(reinterpret_cast<char*>(&trace.allocations), sizeof trace.allocations);
  if (file) {
    trace.ops.resize(count);
    file.read(reinterpret_cast<char*>(trace.ops.data()), static_cast<std::streamsize>(count * sizeof(Op)));
  }
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", path);
    std::exit(1);
  }
  return trace;
}

// Makes `stream` the one that this thread allocates for, as a framework does around its operators.
void switch_to(const std::vector<c10::cuda::CUDAStream>& all, uint32_t stream, uint32_t& current) {
  if (stream != current) {
    c10::cuda::setCurrentCUDAStream(all[stream]);
    current = stream;
  }
}

void print(const DeviceCalls& calls) {
  uint64_t numbers[sizeof calls / sizeof(uint64_t)];
  std::memcpy(numbers, &calls, sizeof calls);
  for (const uint64_t number : numbers) std::printf(" %lu", number);
}

void replay(const Trace& trace, c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator) {
  const auto all = streams();
  std::vector<c10::DataPtr> live(trace.allocations);
  std::vector<uint32_t> stream_of(trace.allocations);
  uint64_t now = 0;
  int marks = 0;
  uint32_t current = ~0u;
  bool fits = true;
  DeviceCalls warm_up{};
  for (const Op& op : trace.ops) {
    device_tick(++now);
    switch (op.kind) {
      case kAlloc:
        switch_to(all, op.stream, current);
        stream_of[op.id] = op.stream;
        try {
          live[op.id] = allocator.allocate(op.size);
        } catch (const c10::OutOfMemoryError&) {
          fits = false;
        }
        break;
      case kFree:
        live[op.id] = c10::DataPtr();
        break;
      case kRecord:
        if (op.stream != stream_of[op.id]) allocator.recordStream(live[op.id], all[op.stream]);
        break;
      case kMark:
        device_idle();
        if (++marks == kWarmUpMarks) warm_up = device_calls();
        break;
    }
    if (!fits) break;
  }
  std::printf("%d %lu", fits, device_peak());
  print(device_calls());
  print(warm_up);
  std::printf("\n");
}

void time_pairs(const Trace& trace, c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator, int threads,
                int repetitions) {
  const auto all = streams();
  std::barrier barrier(threads);
  std::vector<double> times;
  const auto work = [&](int thread) {
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(thread % std::max(1u, std::thread::hardware_concurrency()), &core);
    pthread_setaffinity_np(pthread_self(), sizeof core, &core);
    const uint32_t base = static_cast<uint32_t>(thread) * kStreams / 2;
    std::vector<c10::DataPtr> live(trace.allocations);
    uint32_t current = ~0u;
    for (int repetition = 0; repetition <= repetitions; ++repetition) {
      barrier.arrive_and_wait();
      const auto started = std::chrono::steady_clock::now();
      for (const Op& op : trace.ops) {
        switch (op.kind) {
          case kAlloc:
            switch_to(all, base + op.stream, current);
            live[op.id] = allocator.allocate(op.size);
            break;
          case kFree:
            live[op.id] = c10::DataPtr();
            break;
          case kRecord:
            allocator.recordStream(live[op.id], all[base + op.stream]);
            break;
          case kMark:
            break;
        }
      }
      barrier.arrive_and_wait();
      const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - started;
      if (thread == 0 && repetition > 0) times.push_back(taken.count() / static_cast<double>(trace.allocations));
    }
  };
  std::vector<std::thread> workers;
  for (int thread = 0; thread < threads; ++thread) workers.emplace_back(work, thread);
  for (std::thread& worker : workers) worker.join();
  std::sort(times.begin(), times.end());
  std::printf("%f %f\n", times[times.size() / 2], times.front());
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && std::strcmp(arguments[1], "version") == 0) {
    std::puts("PyTorch " TORCH_VERSION);
    return 0;
  }
  if (count != 5) return 2;
  const bool times = std::strcmp(arguments[2], "time") == 0;
  if (times) {
    device_configure(1ull << 40, 0);
  } else {
    device_configure(std::strtoull(arguments[3], nullptr, 10), std::strtoull(arguments[4], nullptr, 10));
  }
  const Trace trace = read(arguments[1]);

  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  using Config = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  // The stand-in has no fabric handles, which PyTorch would try first.
  Config::set_expandable_segments_handle_type(c10::cuda::CUDACachingAllocator::Expandable_Segments_Handle_Type::POSIX_FD);
  auto& allocator = *c10::cuda::CUDACachingAllocator::get();
  allocator.init(1);
  c10::cuda::detail::init_p2p_access_cache(1);

  if (times) {
    time_pairs(trace, allocator, std::atoi(arguments[3]), std::atoi(arguments[4]));
  } else {
    replay(trace, allocator);
  }
  std::fflush(stdout);
  std::_Exit(0);  // the allocator's destructors run after those of what they call
}
