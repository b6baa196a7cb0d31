// Operators through the C ABI over the driver that does nothing, on two threads at a time: what `cargo xtask bench ops`
// measures. Device 0 is of a driver with an operator, device 1 of one without. The calls have four operands of rank 4.

#include <dlfcn.h>

#include <outrigger/driver.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "outrigger.h"
#include "wire.h"

namespace {

#ifndef OPS_THREADS
#define OPS_THREADS 2
#endif
constexpr int THREADS = OPS_THREADS;
constexpr int SIGNATURES = 64;

// One thread's stream, operator and calls.
struct Caller {
  otr_stream_t stream = 0;
  otr_operator_id_t op = 0;
  std::vector<otr_operator_call_t> calls;
  std::vector<std::array<otr_tensor_t, 4>> tensors;
  std::vector<std::array<int64_t, 8>> lists;

  Caller(uint32_t device, const char* name, int signatures, int64_t last) : calls(signatures), tensors(signatures), lists(signatures) {
    bench::ok(otr_stream_create(device, 0, &stream));
    bench::ok(otr_operator_find(name, &op));
    otr_address_t address = 0;
    bench::ok(otr_memory_alloc(device, 1 << 20, stream, &address));
    for (int at = 0; at < signatures; ++at) {
      auto& list = lists[at];
      list = {2, 3, 4 + at, last, 3 * (4 + at) * last, (4 + at) * last, last, 1};
      for (otr_tensor_t& tensor : tensors[at]) tensor = {address, OTR_DTYPE_F32, 4, list.data(), list.data() + 4};
      otr_operator_call_t& call = calls[at];
      call = {};
      call.struct_size = sizeof call;
      call.inputs = tensors[at].data();
      call.outputs = tensors[at].data() + 3;
      call.input_count = 3;
      call.output_count = 1;
    }
  }

  void run(int64_t repetitions) const {
    for (int64_t at = 0; at < repetitions; ++at) bench::ok(otr_operator_call(stream, op, &calls[at % calls.size()]));
  }
};

// The time in which each thread has called so many times.
template <class Run>
double on_all_threads(int64_t repetitions, const Run& run) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < THREADS; ++thread) {
    threads.emplace_back([&, thread] {
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) {
      }
      run(thread, repetitions);
    });
  }
  while (ready.load() < THREADS) std::this_thread::yield();
  const double start = bench::now_ns();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  return bench::now_ns() - start;
}

bench::Measure measure(const char* name, uint32_t device, const char* op, int signatures, int64_t last) {
  auto callers = std::make_shared<std::vector<Caller>>();
  for (int thread = 0; thread < THREADS; ++thread) callers->emplace_back(device, op, signatures, last);
  return {name, [callers](int64_t repetitions) {
            return on_all_threads(
                repetitions, [&](int thread, int64_t count) { (*callers)[thread].run(count); });
          }};
}

// The driver's own entry with the same calls.
bench::Measure direct(const char* name, const char* driver, int signatures) {
  void* library = dlopen(driver, RTLD_NOW);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto get = reinterpret_cast<otr_driver_get_api_fn>(dlsym(library, "otr_driver_get_api"));
  const otr_driver_api_t* api = nullptr;
  get(nullptr, &api);
  auto callers = std::make_shared<std::vector<Caller>>();
  for (int thread = 0; thread < THREADS; ++thread) callers->emplace_back(0, "addcmul", signatures, 8);
  return {name, [callers, launch = api->operators->launch](int64_t repetitions) {
            return on_all_threads(repetitions, [&](int thread, int64_t count) {
              const auto& calls = (*callers)[thread].calls;
              for (int64_t at = 0; at < count; ++at) launch(nullptr, nullptr, &calls[at % calls.size()], 0);
            });
          }};
}

}  // namespace

int main(int, char** arguments) {
  try {
    return bench::serve(
        bench::outrigger_version(),
        {measure("call", 0, "addcmul", 1, 8), measure("call_64", 0, "addcmul", SIGNATURES, 8),
         direct("direct", arguments[1], 1), direct("direct_64", arguments[1], SIGNATURES),
         measure("not_offered", 0, "lerp_tensor", 1, 8),
         measure("not_offered_alone", 1, "lerp_tensor", 1, 8), measure("refused_shape", 0, "addcmul", 1, 7),
         measure("refused_shape_alone", 1, "addcmul", 1, 7)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
