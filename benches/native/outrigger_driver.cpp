// Measures of `cargo xtask bench driver` over one OpenCL implementation: launches, replays and copies through the C
// ABI, and beside each the same by hand (peers/raw_opencl.h). Both are in one process, so that they share its threads
// and devices. Device 0 is of the driver `opencl`. Operators are in driver_operators.h, and starts in driver_starts.h.

#include "driver_operators.h"
#include "driver_starts.h"
#include "outrigger.h"
#include "wire.h"

#include "../peers/raw_opencl.h"

#include <array>

namespace {

using bench::ok;
using bench::RawOpenCl;

constexpr size_t COPY_BYTES = 64 << 20;
constexpr size_t ONE = 1;

// The kernel that adds 1 to a float, in the dialect: a graph of it is one launch. `kernels` lies in benches/peers.
std::string add_one_in_dialect(const std::string& kernels) {
  const std::string headers = kernels.substr(0, kernels.rfind('/')) + "/../../include/outrigger/";
  return "#define OTR_GROUP_SIZE 1\n" + bench::read_text(headers + "dialect.h") +
         bench::read_text(headers + "dialect_functions.h") +
         "OTR_KERNEL(add_one)(OTR_ITEM OTR_GLOBAL f32* value) { value[0] += 1.0f; }\n";
}

// A kernel that adds 1 to a float, on Outrigger's side.
class Launches {
 public:
  explicit Launches(const std::string& text) {
    otr_module_params_t params{};
    params.struct_size = sizeof params;
    params.code = text.data();
    params.size = text.size();
    params.format = OTR_CODE_OPENCL_C;
    otr_module_t module = 0;
    ok(otr_module_load(0, &params, &module));
    ok(otr_kernel_get(module, "add_one", &kernel_));
    args_ = value_.address();
    launch_.struct_size = sizeof launch_;
    for (uint32_t& groups : launch_.grid) groups = 1;
    for (uint32_t& items : launch_.block) items = 1;
    launch_.args = &args_;
    launch_.args_size = sizeof args_;
    launch_.arguments = &argument_;
    launch_.argument_count = 1;
  }

  double launch_wait(int64_t repetitions) const {
    return counted(repetitions, [&] {
      for (int64_t i = 0; i < repetitions; ++i) {
        launch();
        ok(otr_stream_synchronize(stream_));
      }
    });
  }

  double enqueue(int64_t repetitions) const {
    return counted(repetitions * bench::CHAIN, [&] {
      for (int64_t i = 0; i < repetitions; ++i) {
        for (int node = 0; node < bench::CHAIN; ++node) launch();
        ok(otr_stream_synchronize(stream_));
      }
    });
  }

  double replay(int64_t repetitions) const {
    otr_graph_t graph = 0;
    otr_graph_exec_t exec = 0;
    ok(otr_capture_begin(stream_, OTR_CAPTURE_THREAD_LOCAL, 0));
    for (int node = 0; node < bench::CHAIN; ++node) launch();
    ok(otr_capture_end(stream_, &graph));
    ok(otr_graph_instantiate(graph, 0, &exec));
    const double nanoseconds = counted(repetitions * bench::CHAIN, [&] {
      for (int64_t i = 0; i < repetitions; ++i) {
        ok(otr_graph_replay(exec, stream_));
        ok(otr_stream_synchronize(stream_));
      }
    });
    ok(otr_graph_exec_destroy(exec));
    ok(otr_graph_destroy(graph));
    return nanoseconds;
  }

 private:
  otr_stream_t stream_ = bench::make_stream();
  bench::DeviceFloats value_{stream_, 1};
  otr_kernel_t kernel_ = 0;
  uint64_t args_ = 0;
  otr_argument_t argument_{0, sizeof args_, OTR_ARGUMENT_ADDRESS};
  otr_launch_t launch_{};

  void launch() const { ok(otr_kernel_launch(stream_, kernel_, &launch_)); }

  // The time of `block`, which launches so many times.
  template <class Block>
  double counted(int64_t launches, const Block& block) const {
    value_.clear();
    const double start = bench::now_ns();
    block();
    const double nanoseconds = bench::now_ns() - start;
    bench::expect_additions(value_.at(0), launches);
    return nanoseconds;
  }
};

// The same by hand.
class RawLaunches {
 public:
  RawLaunches(const RawOpenCl& cl, const std::string& text) : cl_(cl), value_{cl.alloc(sizeof(float))} {
    kernel_ = RawOpenCl::kernel(cl.compile(text, ""), "add_one");
  }

  double launch_wait(int64_t repetitions) const {
    return counted(repetitions, [&] {
      for (int64_t i = 0; i < repetitions; ++i) {
        launch();
        cl_.finish();
      }
    });
  }

  double enqueue(int64_t repetitions) const {
    return counted(repetitions * bench::CHAIN, [&] {
      for (int64_t i = 0; i < repetitions; ++i) {
        for (int node = 0; node < bench::CHAIN; ++node) launch();
        cl_.finish();
      }
    });
  }

 private:
  const RawOpenCl& cl_;
  std::array<void*, 1> value_;
  cl_kernel kernel_ = nullptr;

  void launch() const { cl_.launch(kernel_, value_, 1, &ONE, &ONE); }

  template <class Block>
  double counted(int64_t launches, const Block& block) const {
    float value = 0;
    cl_.copy(value_[0], &value, sizeof value);
    cl_.finish();
    const double start = bench::now_ns();
    block();
    const double nanoseconds = bench::now_ns() - start;
    cl_.copy(&value, value_[0], sizeof value);
    cl_.finish();
    bench::expect_additions(value, launches);
    return nanoseconds;
  }
};

// Pageable host memory to the device and back, by whichever side `copy` is: it copies so many bytes and waits.
class Copies {
 public:
  template <class Copy>
  double run(int64_t repetitions, const Copy& copy) {
    const double start = bench::now_ns();
    for (int64_t i = 0; i < repetitions; ++i) {
      from_[i % from_.size()] += 1;
      copy(from_.data(), to_.data());
    }
    const double nanoseconds = bench::now_ns() - start;
    if (from_ != to_) throw std::runtime_error("the bytes that came back are others");
    return nanoseconds;
  }

 private:
  std::vector<char> from_ = std::vector<char>(COPY_BYTES, 1), to_ = std::vector<char>(COPY_BYTES);
};

std::function<double(int64_t)> outrigger_copies(Copies& copies) {
  const otr_stream_t stream = bench::make_stream();
  uint64_t device = 0;
  ok(otr_memory_alloc(0, COPY_BYTES, stream, &device));
  return [&copies, stream, device](int64_t repetitions) {
    return copies.run(repetitions, [&](const char* from, char* to) {
      ok(otr_copy(stream, device, reinterpret_cast<uint64_t>(from), COPY_BYTES, OTR_COPY_HOST_TO_DEVICE));
      ok(otr_stream_synchronize(stream));
      ok(otr_copy(stream, reinterpret_cast<uint64_t>(to), device, COPY_BYTES, OTR_COPY_DEVICE_TO_HOST));
      ok(otr_stream_synchronize(stream));
    });
  };
}

std::function<double(int64_t)> raw_copies(Copies& copies, const RawOpenCl& cl) {
  void* device = cl.alloc(COPY_BYTES);
  return [&copies, &cl, device](int64_t repetitions) {
    return copies.run(repetitions, [&](const char* from, char* to) {
      cl.copy(device, from, COPY_BYTES);
      cl.finish();
      cl.copy(to, device, COPY_BYTES);
      cl.finish();
    });
  };
}

// `kernels` is the file with the operators by hand.
int program(const char* self, const std::string& kernels) {
  const RawOpenCl cl;
  const Launches ours(bench::ADD_ONE);
  const RawLaunches raw(cl, bench::ADD_ONE);
  const std::string text = add_one_in_dialect(kernels);
  const Launches tasks(text);
  const RawLaunches raw_tasks(cl, text);
  Copies copies;
  bench::Starts starts(self, kernels);
  std::vector<bench::Measure> measures{
      {"launch_wait", [&](int64_t n) { return ours.launch_wait(n); }},
      {"raw_launch_wait", [&](int64_t n) { return raw.launch_wait(n); }},
      {"enqueue", [&](int64_t n) { return ours.enqueue(n); }},
      {"raw_enqueue", [&](int64_t n) { return raw.enqueue(n); }},
      {"replay", [&](int64_t n) { return ours.replay(n); }},
      {"replay_persistent", [&](int64_t n) { return tasks.replay(n); }},
      {"enqueue_dialect", [&](int64_t n) { return tasks.enqueue(n); }},
      {"raw_enqueue_dialect", [&](int64_t n) { return raw_tasks.enqueue(n); }},
      {"copy", outrigger_copies(copies)},
      {"raw_copy", raw_copies(copies, cl)},
  };
  for (const auto& more : {bench::operator_measures(cl, kernels), starts.measures()}) {
    measures.insert(measures.end(), more.begin(), more.end());
  }
  return bench::serve(bench::outrigger_version() + ", " + cl.version(), measures);
}

}  // namespace

int main(int count, char** arguments) {
  return bench::serve_or_say([&] {
    if (count == 2) return program(arguments[0], arguments[1]);
    return bench::start_once(arguments[1], arguments[2], std::strtod(arguments[3], nullptr));
  });
}
