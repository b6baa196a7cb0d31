// Measures of `cargo xtask gpu-pack` over CUDA: launches, replays, copies, fills and events through the C ABI, and
// beside each the same by hand (peers/raw_cuda.h). Both are in one process, over one context. Device 0 is of the driver
// `cuda`. The argument is the name of libcuda.

#include "outrigger.h"
#include "wire.h"

#include "../peers/raw_cuda.h"

#include <cstring>

namespace {

using bench::ok;
using bench::RawCuda;

constexpr size_t COPY_BYTES = 64 << 20;
constexpr size_t FILL_BYTES = 4096;
using Block = std::function<void(int64_t)>;

// The calls of one side: `launch` adds 1 to a number, which `read` gives when all work has finished.
struct Side {
  std::function<void()> launch, replay, finish, clear, fill, record;
  std::function<uint32_t()> read;
  std::function<void(const void*)> to_device;
  std::function<void(void*)> to_host;
};

// Pinned memory for the copies of both sides: a copy of pageable memory is one of CUDA's own, through memory of its own.
struct Pinned {
  char *from = nullptr, *to = nullptr;
  mutable char last = 0;
};

const Pinned& pinned() {
  static const Pinned memory = [] {
    Pinned made;
    for (char** pointer : {&made.from, &made.to}) ok(otr_host_alloc(COPY_BYTES, reinterpret_cast<void**>(pointer)));
    return made;
  }();
  return memory;
}

// The launches of `block`, counted by what they have added.
double counted(const Side& side, int64_t launches, const Block& block, int64_t repetitions) {
  side.clear();
  side.finish();
  const double start = bench::now_ns();
  block(repetitions);
  const double nanoseconds = bench::now_ns() - start;
  const uint32_t ran = side.read(), expected = static_cast<uint32_t>(launches);
  if (ran != expected) throw std::runtime_error(std::to_string(ran) + " launches ran, not " + std::to_string(expected));
  return nanoseconds;
}

std::vector<bench::Measure> measures_of(const std::string& prefix, const Side& side) {
  const auto copies = [&side](bool back) {
    return [&side, back](int64_t n) {
      const Pinned& memory = pinned();
      std::memset(memory.from, ++memory.last, COPY_BYTES);
      side.to_device(memory.from);
      side.finish();
      const double start = bench::now_ns();
      for (int64_t i = 0; i < n; ++i) {
        back ? side.to_host(memory.to) : side.to_device(memory.from);
        side.finish();
      }
      const double nanoseconds = bench::now_ns() - start;
      if (back && std::memcmp(memory.from, memory.to, COPY_BYTES) != 0) throw std::runtime_error("the bytes that came back are others");
      return nanoseconds;
    };
  };
  const auto launches = [&side](int64_t per, const Block& block) {
    return [&side, per, block](int64_t n) { return counted(side, n * per, block, n); };
  };
  const auto often = [&side](const std::function<void()>& what) {
    return bench::timed([&side, what](int64_t n) {
      for (int64_t i = 0; i < n; ++i) what();
      side.finish();
    });
  };
  return {
      {prefix + "launch_wait", launches(1, [&side](int64_t n) {
         for (int64_t i = 0; i < n; ++i) {
           side.launch();
           side.finish();
         }
       })},
      {prefix + "enqueue", launches(bench::CHAIN, [&side](int64_t n) {
         for (int64_t i = 0; i < n; ++i) {
           for (int node = 0; node < bench::CHAIN; ++node) side.launch();
           side.finish();
         }
       })},
      {prefix + "replay", launches(bench::CHAIN, [&side](int64_t n) {
         for (int64_t i = 0; i < n; ++i) {
           side.replay();
           side.finish();
         }
       })},
      {prefix + "fill", often(side.fill)},
      {prefix + "event", often(side.record)},
      {prefix + "to_device", copies(false)},
      {prefix + "to_host", copies(true)},
  };
}

Side outrigger_side() {
  const otr_stream_t stream = bench::make_stream();
  uint64_t value = 0, bytes = 0;
  ok(otr_memory_alloc(0, FILL_BYTES, stream, &value));
  ok(otr_memory_alloc(0, COPY_BYTES, stream, &bytes));
  otr_module_params_t params{};
  params.struct_size = sizeof params;
  params.code = bench::ADD;
  params.size = std::strlen(bench::ADD);
  params.format = OTR_CODE_PTX;
  otr_module_t module = 0;
  otr_kernel_t kernel = 0;
  ok(otr_module_load(0, &params, &module));
  ok(otr_kernel_get(module, "add", &kernel));
  struct Arguments {
    uint64_t address;
    uint32_t count, value;
  };
  static Arguments arguments{value, 1, 1};
  static otr_argument_t of[] = {{0, 8, OTR_ARGUMENT_ADDRESS}, {8, 4, OTR_ARGUMENT_VALUE}, {12, 4, OTR_ARGUMENT_VALUE}};
  static otr_launch_t launch{};
  launch.struct_size = sizeof launch;
  for (uint32_t& groups : launch.grid) groups = 1;
  for (uint32_t& items : launch.block) items = 1;
  launch.args = &arguments;
  launch.args_size = sizeof arguments;
  launch.arguments = of;
  launch.argument_count = 3;
  otr_graph_t graph = 0;
  otr_graph_exec_t exec = 0;
  ok(otr_capture_begin(stream, OTR_CAPTURE_THREAD_LOCAL, 0));
  for (int node = 0; node < bench::CHAIN; ++node) ok(otr_kernel_launch(stream, kernel, &launch));
  ok(otr_capture_end(stream, &graph));
  ok(otr_graph_instantiate(graph, 0, &exec));
  const otr_event_t event = bench::make_event();
  static const uint32_t zero = 0;
  const auto fill = [=] { ok(otr_fill(stream, value, FILL_BYTES, &zero, sizeof zero)); };
  const auto copy = [=](uint64_t to, uint64_t from, size_t size, uint32_t kind) {
    ok(otr_copy(stream, to, from, size, kind));
  };
  const auto finish = [=] { ok(otr_stream_synchronize(stream)); };
  Side side;
  side.launch = [=] { ok(otr_kernel_launch(stream, kernel, &launch)); };
  side.replay = [=] { ok(otr_graph_replay(exec, stream)); };
  side.finish = finish;
  side.clear = fill;
  side.fill = fill;
  side.record = [=] { ok(otr_event_record(event, stream)); };
  side.read = [=] {
    uint32_t number = 0;
    copy(reinterpret_cast<uint64_t>(&number), value, sizeof number, OTR_COPY_DEVICE_TO_HOST);
    finish();
    return number;
  };
  side.to_device = [=](const void* from) {
    copy(bytes, reinterpret_cast<uint64_t>(from), COPY_BYTES, OTR_COPY_HOST_TO_DEVICE);
  };
  side.to_host = [=](void* to) { copy(reinterpret_cast<uint64_t>(to), bytes, COPY_BYTES, OTR_COPY_DEVICE_TO_HOST); };
  return side;
}

Side raw_side(const RawCuda& cuda) {
  static uint64_t value = cuda.alloc(FILL_BYTES);
  static uint32_t one = 1;
  static void* arguments[] = {&value, &one, &one};
  const uint64_t bytes = cuda.alloc(COPY_BYTES);
  const RawCuda::Handle kernel = cuda.kernel(bench::ADD, std::strlen(bench::ADD) + 1, "add");
  const RawCuda::Handle exec = cuda.chain({kernel, {1, 1, 1}, {1, 1, 1}, 0, arguments, nullptr}, bench::CHAIN);
  const RawCuda::Handle event = cuda.event();
  Side side;
  side.launch = [&cuda, kernel] { cuda.launch(kernel, arguments); };
  side.replay = [&cuda, exec] { cuda.replay(exec); };
  side.finish = [&cuda] { cuda.finish(); };
  side.clear = side.fill = [&cuda] { cuda.fill(value, 0, FILL_BYTES / sizeof(uint32_t)); };
  side.record = [&cuda, event] { cuda.record(event); };
  side.read = [&cuda] {
    uint32_t number = 0;
    cuda.to_host(pinned().to, value, sizeof number);
    cuda.finish();
    std::memcpy(&number, pinned().to, sizeof number);
    return number;
  };
  side.to_device = [&cuda, bytes](const void* from) { cuda.to_device(bytes, from, COPY_BYTES); };
  side.to_host = [&cuda, bytes](void* to) { cuda.to_host(to, bytes, COPY_BYTES); };
  return side;
}

int program(const char* libcuda) {
  // The driver first: what it needs of the context is then there for both.
  const Side ours = outrigger_side();
  const RawCuda cuda(libcuda);
  const Side raw = raw_side(cuda);
  std::vector<bench::Measure> measures = measures_of("", ours);
  const std::vector<bench::Measure> more = measures_of("raw_", raw);
  measures.insert(measures.end(), more.begin(), more.end());
  return bench::serve(bench::outrigger_version(), measures);
}

}  // namespace

int main(int count, char** arguments) {
  return bench::serve_or_say([&] { return program(count > 1 ? arguments[1] : "libcuda.so.1"); });
}
