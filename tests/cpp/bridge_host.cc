// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The scenarios over the bridge, and what only the bridge has: uses of pools and labels that end with an object,
// statistics and history. Called by tests/cpp_faces.rs; returns nullptr, or what went wrong.

#include "outrigger/src/bridge.rs.h"
#include "rust/cxx.h"
#include "scenarios.h"

namespace {

namespace bridge = outrigger;

struct Face {
  using Error = rust::Error;
  template <class T>
  using Box = rust::Box<T>;
  using Stream = Box<bridge::Stream>;
  using Event = Box<bridge::Event>;
  using Buffer = Box<bridge::Buffer>;
  using Pool = Box<bridge::Pool>;
  using Capture = Box<bridge::Capture>;
  using Graph = Box<bridge::Graph>;
  using Exec = Box<bridge::GraphExec>;

  static Stream stream(std::uint32_t device) {
    const std::int32_t priority = 0;
    return bridge::create_stream(device, priority);
  }
  static Stream default_stream(std::uint32_t device) { return bridge::default_stream(device); }
  static Event event(std::uint32_t device) { return bridge::create_event(device, false); }
  static Event timed_event(std::uint32_t device) { return bridge::create_event(device, true); }
  static Pool pool(std::uint32_t device) { return bridge::create_pool(device); }
  static Buffer allocate(std::uint32_t device, std::uint64_t bytes, const Stream& stream) {
    return bridge::allocate(device, bytes, *stream);
  }
  static Buffer allocate_from(const Pool& pool, std::uint64_t bytes, const Stream& stream) {
    return pool->allocate(bytes, *stream);
  }
  static void load_driver(const char* spec) { bridge::load_driver(spec); }

  // The bridge writes through objects that can be changed, which a box has of its content.
  static bridge::Buffer& changed(const Buffer& buffer) { return const_cast<bridge::Buffer&>(*buffer); }
  static void upload(const Buffer& to, const scenarios::Floats& from, const Stream& stream) {
    changed(to).upload({reinterpret_cast<const std::uint8_t*>(from.data()), from.size() * sizeof(float)}, *stream);
  }
  static void download(const Buffer& from, scenarios::Floats& to, const Stream& stream) {
    from->download({reinterpret_cast<std::uint8_t*>(to.data()), to.size() * sizeof(float)}, *stream);
  }
  static void fill(const Buffer& buffer, std::uint8_t byte, std::uint64_t, const Stream& stream) {
    changed(buffer).fill(byte, *stream);
  }
  static void add(const Stream& stream, const Buffer& out, const Buffer& a, const Buffer& b, double factor) {
    const auto tensor = [](const Buffer& of) {
      return bridge::Tensor{of->address(), bridge::DType::F32, {std::int64_t{scenarios::kCount}}, {1}};
    };
    const std::vector<bridge::Tensor> inputs{tensor(a), tensor(b)}, outputs{tensor(out)};
    stream->call("add", {inputs.data(), inputs.size()}, {outputs.data(), outputs.size()}, {&factor, 1});
  }
  static void call_nothing(const Stream& stream, const char* name) { stream->call(name, {}, {}, {}); }

  static void record(const Event& event, const Stream& stream) { event->record(*stream); }
  static void wait(const Stream& stream, const Event& event) { stream->wait(*event); }
  static void synchronize(const Event& event) { event->synchronize(); }
  static bool query(const Event& event) { return event->query(); }
  static bool query(const Stream& stream) { return stream->query(); }
  static double milliseconds(const Event& start, const Event& end) { return end->milliseconds_since(*start); }

  static std::uint64_t allocated(std::uint32_t device) { return bridge::memory_use(device).allocated; }
  static std::uint64_t reserved(std::uint32_t device) { return bridge::memory_use(device).reserved; }
  static std::uint64_t pool_allocated(const Pool& pool) { return pool->memory_use().allocated; }
  static std::uint64_t pool_reserved(const Pool& pool) { return pool->memory_use().reserved; }
  static std::string snapshot(std::uint32_t device) { return std::string(bridge::memory_snapshot(device)); }
  static void sleep(const Pool& pool) { pool->sleep(); }
  static void wake(const Pool& pool) { pool->wake(); }
  static void empty_cache(std::uint32_t device) { bridge::empty_cache(device); }
  static void limit(std::uint32_t device, std::uint64_t bytes) { bridge::set_memory_limit(device, bytes); }

  static Capture begin_capture(const Stream& stream) { return bridge::begin_capture(*stream); }
  static Graph end_capture(Capture capture) { return bridge::end_capture(std::move(capture)); }
  static std::uint32_t nodes(const Graph& graph) { return graph->node_count(); }
  static std::string dot(const Graph& graph) { return std::string(graph->dump(bridge::GraphFormat::Dot)); }
  static void name_buffer(const Graph& graph, const char* name, const Buffer& buffer) {
    graph->name_buffer(name, *buffer);
  }
  static void name_scalar(const Graph& graph, const char* name, std::uint32_t node, std::uint32_t index) {
    graph->name_scalar(name, node, index);
  }
  static Exec instantiate(const Graph& graph) { return graph->instantiate(); }
  static void replay(const Exec& exec, const Stream& stream) { exec->replay(*stream); }
  static void bind(const Exec& exec, const char* name, const Buffer& buffer) { exec->bind(name, *buffer); }
  static void bind_scalar(const Exec& exec, const char* name, double value) { exec->bind_scalar(name, value); }
  static void update(const Exec& exec, const Graph& graph) { exec->update(*graph); }
  static void check(const Exec& exec, const Stream& stream) { exec->check(*stream); }
  static std::string profile(const Exec& exec, const Stream& stream) {
    return std::string(exec->profile(*stream));
  }
};

/// Labels and pools of a thread end with their objects; history is kept while it is asked for.
std::string keeps_history(std::uint32_t device) {
  using scenarios::has;
  const std::uint64_t entries = 100, none = 0;
  const auto stream = bridge::default_stream(device);
  const auto pool = bridge::create_pool(device);
  bridge::record_memory_history(device, entries);
  {
    const auto label = bridge::label_on_this_thread("from C++");
    const auto use = pool->use_on_this_thread();
    const auto routed = bridge::allocate(device, 5000, *stream);
    CHECK(pool->memory_use().allocated >= 5000);
    CHECK(has(Face::snapshot(device), "from C++"));
    CHECK(has(Face::snapshot(device), "\"action\":\"alloc\""));
  }
  CHECK(pool->memory_use().allocated == 0);
  const auto shared = bridge::allocate(device, 5000, *stream);
  CHECK(pool->memory_use().allocated == 0);
  CHECK(has(std::string(bridge::memory_stats(device)), "allocated_bytes.all.current"));
  bridge::record_memory_history(device, none);
  CHECK(!has(Face::snapshot(device), "\"action\""));
  return "";
}

}  // namespace

extern "C" const char* outrigger_cpp_bridge(std::uint32_t device) noexcept {
  static std::string problem;
  try {
    problem = scenarios::run<Face>(device);
    if (problem.empty()) problem = keeps_history(device);
  } catch (const std::exception& error) {
    problem = std::string("exception: ") + error.what();
  }
  return problem.empty() ? nullptr : problem.c_str();
}
