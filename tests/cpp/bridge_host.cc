// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A C++ host over the bridge: what a user of the classes would write, with a check at each step.
// Called by tests/bridge.rs; returns nullptr, or what went wrong.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "outrigger/src/bridge.rs.h"
#include "rust/cxx.h"

namespace {

constexpr std::uint32_t kF32 = 12;  // OTR_DTYPE_F32

rust::Slice<const std::uint8_t> bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float)};
}

outrigger::Tensor vector_at(std::uint64_t address, std::int64_t size) {
  outrigger::Tensor tensor;
  tensor.address = address;
  tensor.dtype = kF32;
  tensor.sizes.push_back(size);
  tensor.strides.push_back(1);
  return tensor;
}

#define CHECK(condition)                             \
  do {                                               \
    if (!(condition)) return "not so: " #condition;  \
  } while (false)

std::string adds_vectors(std::uint32_t device) {
  auto stream = outrigger::create_stream(device, 0);
  auto done = outrigger::create_event(device, true);
  auto start = outrigger::create_event(device, true);
  const std::vector<float> values(1000, 1.25f);
  const auto size = values.size() * sizeof(float);
  auto a = outrigger::allocate(device, size, *stream);
  auto b = outrigger::allocate(device, size, *stream);
  auto sum = outrigger::allocate(device, size, *stream);
  a->upload(bytes_of(values), *stream);
  b->upload(bytes_of(values), *stream);
  start->record(*stream);
  const std::vector<outrigger::Tensor> inputs{vector_at(a->address(), 1000), vector_at(b->address(), 1000)};
  const std::vector<outrigger::Tensor> outputs{vector_at(sum->address(), 1000)};
  const double alpha = 3.0;
  stream->call("add", {inputs.data(), inputs.size()}, {outputs.data(), outputs.size()}, {&alpha, 1});
  done->record(*stream);
  done->synchronize();
  CHECK(done->query());
  CHECK(done->milliseconds_since(*start) >= 0);
  std::vector<float> result(1000);
  sum->download({reinterpret_cast<std::uint8_t*>(result.data()), size}, *stream);
  for (float value : result) CHECK(value == 5.0f);
  sum->fill(0, *stream);
  sum->download({reinterpret_cast<std::uint8_t*>(result.data()), size}, *stream);
  for (float value : result) CHECK(value == 0.0f);
  CHECK(outrigger::memory_use(device).allocated >= 3 * size);
  return "";
}

std::string reports_errors() {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const rust::Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message([] { outrigger::device_name(99); }).find("99") != std::string::npos);
  CHECK(message([] { outrigger::load_driver("/nowhere.so"); }).find("/nowhere.so") != std::string::npos);
  auto stream = outrigger::default_stream(0);
  CHECK(message([&] { stream->call("frobnicate", {}, {}, {}); }).find("frobnicate") != std::string::npos);
  auto small = outrigger::allocate(0, 16, *stream);
  const std::vector<float> big(100000, 0.0f);
  CHECK(message([&] { small->upload(bytes_of(big), *stream); }).find("overruns") != std::string::npos);
  return "";
}

bool has(const rust::String& json, const char* part) {
  return std::string(json).find(part) != std::string::npos;
}

std::string manages_memory(std::uint32_t device) {
  auto stream = outrigger::default_stream(device);
  outrigger::record_memory_history(device, 100);
  auto pool = outrigger::create_pool(device);
  {
    const auto label = outrigger::label_on_this_thread("from C++");
    const auto use = pool->use_on_this_thread();
    auto routed = outrigger::allocate(device, 5000, *stream);
    auto direct = pool->allocate(3000, *stream);
    CHECK(pool->memory_use().allocated >= 8000);
    CHECK(pool->memory_use().reserved >= pool->memory_use().allocated);
    CHECK(has(outrigger::memory_snapshot(device), "from C++"));
    CHECK(has(outrigger::memory_snapshot(device), "\"action\":\"alloc\""));
  }
  CHECK(pool->memory_use().allocated == 0);
  bool slept = true;
  try {
    pool->sleep();
    CHECK(pool->memory_use().reserved == 0);
  } catch (const rust::Error& error) {
    slept = false;
    CHECK(std::string(error.what()).find("virtual memory") != std::string::npos);
  }
  pool->wake();
  CHECK(!slept || pool->memory_use().reserved > 0);
  auto shared = outrigger::allocate(device, 5000, *stream);
  CHECK(pool->memory_use().allocated == 0);
  CHECK(has(outrigger::memory_stats(device), "allocated_bytes.all.current"));
  outrigger::record_memory_history(device, 0);
  CHECK(!has(outrigger::memory_snapshot(device), "\"action\""));

  outrigger::empty_cache(device);
  outrigger::set_memory_limit(device, outrigger::memory_use(device).reserved);
  bool refused = false;
  try {
    outrigger::allocate(device, std::uint64_t{1} << 30, *stream);
  } catch (const rust::Error& error) {
    refused = std::string(error.what()).find("limit") != std::string::npos;
  }
  outrigger::set_memory_limit(device, ~std::uint64_t{0});
  CHECK(refused);
  return "";
}

}  // namespace

extern "C" const char* outrigger_cpp_host(std::uint32_t device) noexcept {
  static std::string problem;
  try {
    problem = adds_vectors(device);
    if (problem.empty()) problem = reports_errors();
    if (problem.empty()) problem = manages_memory(device);
  } catch (const std::exception& error) {
    problem = std::string("exception: ") + error.what();
  }
  return problem.empty() ? nullptr : problem.c_str();
}
