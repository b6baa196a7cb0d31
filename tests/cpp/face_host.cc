// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The scenarios over outrigger.hpp. Called by tests/cpp_faces.rs; returns nullptr, or what went wrong.

#include <outrigger/outrigger.hpp>

#include "scenarios.h"

namespace {

struct Face {
  using Error = otr::Error;

  static auto stream(std::uint32_t device) { return otr::Stream::create(otr::Device(device)); }
  static auto default_stream(std::uint32_t device) { return otr::StreamRef::default_of(otr::Device(device)); }
  static auto event(std::uint32_t device) { return otr::Event::create(otr::Device(device)); }
  static auto timed_event(std::uint32_t device) { return otr::Event::create(otr::Device(device), true); }
  static auto pool(std::uint32_t device) { return otr::Pool::create(otr::Device(device)); }
  static auto allocate(std::uint32_t device, std::uint64_t bytes, otr::StreamRef stream) {
    return otr::Buffer::allocate(otr::Device(device), bytes, stream);
  }
  static auto allocate_from(const otr::Pool& pool, std::uint64_t bytes, otr::StreamRef stream) {
    return otr::Buffer::allocate(pool, bytes, stream);
  }
  static void load_driver(const char* spec) { otr::load_driver(spec); }

  static void upload(const otr::Buffer& to, const scenarios::Floats& from, otr::StreamRef stream) {
    to.upload(from.data(), from.size() * sizeof(float), stream);
  }
  static void download(const otr::Buffer& from, scenarios::Floats& to, otr::StreamRef stream) {
    from.download(to.data(), to.size() * sizeof(float), stream);
  }
  static void fill(const otr::Buffer& buffer, std::uint8_t byte, std::uint64_t bytes, otr::StreamRef stream) {
    stream.fill(buffer.address(), bytes, byte);
  }
  static void add(otr::StreamRef stream, const otr::Buffer& out, const otr::Buffer& a, const otr::Buffer& b,
                  double factor) {
    const auto tensor = [](const otr::Buffer& of) { return of.tensor(otr::DType::f32, {scenarios::kCount}); };
    stream.call(otr::Operator::find("add"), {tensor(a), tensor(b)}, {tensor(out)}, {factor});
  }
  static void call_nothing(otr::StreamRef stream, const char* name) {
    stream.call(otr::Operator::find(name), {}, {});
  }

  static void record(const otr::Event& event, otr::StreamRef stream) { event.record(stream); }
  static void wait(otr::StreamRef stream, const otr::Event& event) { stream.wait(event); }
  static void synchronize(const otr::Event& event) { event.synchronize(); }
  static bool query(const otr::Event& event) { return event.query(); }
  static bool query(otr::StreamRef stream) { return stream.query(); }
  static double milliseconds(const otr::Event& start, const otr::Event& end) {
    return end.milliseconds_since(start);
  }

  static auto stats(std::uint32_t device) { return otr::Device(device).memory_stats(); }
  static std::uint64_t allocated(std::uint32_t device) { return stats(device).allocated_bytes.current; }
  static std::uint64_t reserved(std::uint32_t device) { return stats(device).reserved_bytes.current; }
  static std::uint64_t pool_allocated(const otr::Pool& pool) { return pool.info().allocated_bytes; }
  static std::uint64_t pool_reserved(const otr::Pool& pool) { return pool.info().reserved_bytes; }
  static std::string snapshot(std::uint32_t device) { return otr::Device(device).memory_snapshot(); }
  static void sleep(const otr::Pool& pool) { pool.sleep(); }
  static void wake(const otr::Pool& pool) { pool.wake(); }
  static void empty_cache(std::uint32_t device) { otr::Device(device).memory_trim(); }
  static void limit(std::uint32_t device, std::uint64_t bytes) { otr::Device(device).set_memory_limit(bytes); }

  static auto begin_capture(otr::StreamRef stream) { return otr::Capture::begin(stream); }
  static auto end_capture(otr::Capture capture) { return capture.end(); }
  static std::uint32_t nodes(const otr::Graph& graph) { return graph.info().nodes; }
  static std::string dot(const otr::Graph& graph) { return graph.dump(otr::DumpFormat::dot); }
  static void name_buffer(const otr::Graph& graph, const char* name, const otr::Buffer& buffer) {
    graph.name_buffer(name, buffer);
  }
  static void name_scalar(const otr::Graph& graph, const char* name, std::uint32_t node, std::uint32_t index) {
    graph.name_scalar(name, node, index);
  }
  static auto instantiate(const otr::Graph& graph) { return graph.instantiate(); }
  static void replay(const otr::Executable& exec, otr::StreamRef stream) { exec.replay(stream); }
  static void bind(const otr::Executable& exec, const char* name, const otr::Buffer& buffer) {
    exec.bind(name, buffer);
  }
  static void bind_scalar(const otr::Executable& exec, const char* name, double value) {
    exec.bind(name, otr::Scalar(value));
  }
  static void update(const otr::Executable& exec, const otr::Graph& graph) { graph.update(exec); }
  static void check(const otr::Executable& exec, otr::StreamRef stream) { exec.check(stream); }
  static std::string profile(const otr::Executable& exec, otr::StreamRef stream) { return exec.profile(stream); }
};

/// A communicator of one rank, and its calls on the halves of a buffer. The bridge has none.
std::string works_alone(std::uint32_t device) {
  const otr::Device here(device);
  const auto stream = otr::Stream::create(here);
  const auto comm = otr::Communicator::join(here, otr::Communicator::new_id(here).c_str(), 1, 0);
  const auto own = scenarios::filled<Face>(device, stream, 2.5F);
  const auto result = Face::allocate(device, scenarios::kBytes, stream);
  otr::Elements what;
  what.send = own.address();
  what.receive = result.address();
  what.count = scenarios::kCount;
  const auto given = [&](auto&& call) {
    stream.fill(result.address(), scenarios::kBytes, std::uint8_t{0});
    call();
    return scenarios::holds<Face>(result, stream, 2.5F);
  };
  CHECK(given([&] { comm.all_reduce(stream, what); }));
  CHECK(given([&] { comm.reduce(stream, what, 0); }));
  CHECK(given([&] { comm.reduce_scatter(stream, what); }));
  CHECK(given([&] { comm.all_gather(stream, what.send, what.receive, scenarios::kBytes); }));
  CHECK(given([&] {
    comm.exchange(stream, {{what.send, scenarios::kBytes, 0, OTR_TRANSFER_SEND},
                           {what.receive, scenarios::kBytes, 0, OTR_TRANSFER_RECEIVE}});
  }));
  comm.broadcast(stream, what.send, scenarios::kBytes, 0);
  CHECK(scenarios::holds<Face>(own, stream, 2.5F));
  const auto nobody = scenarios::failure<Face>([&] { comm.broadcast(stream, what.send, 4, 1); });
  CHECK(scenarios::has(nobody, "rank 1"));
  comm.query();
  comm.abort();
  CHECK(!scenarios::failure<Face>([&] { comm.query(); }).empty());
  return "";
}

}  // namespace

extern "C" const char* outrigger_cpp_face(std::uint32_t device) noexcept {
  static std::string problem;
  problem = scenarios::run<Face>(device);
  if (problem.empty()) problem = works_alone(device);
  return problem.empty() ? nullptr : problem.c_str();
}
