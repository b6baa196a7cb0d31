// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What a C++ host does, with a check at each step: one text for both faces in C++, the bridge and outrigger.hpp.
// `Face` adapts one of them: each of its functions is one call of the face, a failure is a `Face::Error`, and what
// it makes is given back with its object. A scenario returns "" or what went wrong.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace scenarios {

#define CHECK(condition)                            \
  do {                                              \
    if (!(condition)) return "not so: " #condition; \
  } while (false)

constexpr std::uint32_t kFirstDevice = 0, kNoDevice = 99;
constexpr std::size_t kCount = 1000;
constexpr std::uint64_t kBytes = kCount * sizeof(float);
constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
using Floats = std::vector<float>;

inline bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// What a call that fails says; "" if it does not fail.
template <class Face, class Call>
std::string failure(Call&& call) {
  try {
    call();
  } catch (const typename Face::Error& error) {
    return error.what();
  }
  return "";
}

/// Whether all of a buffer is `value`.
template <class Face, class Buffer, class Stream>
bool holds(const Buffer& buffer, const Stream& stream, float value) {
  Floats found(kCount, -1.0F);
  Face::download(buffer, found, stream);
  for (const float one : found) {
    if (one != value) return false;
  }
  return true;
}

template <class Face, class Stream>
auto filled(std::uint32_t device, const Stream& stream, float value) {
  auto buffer = Face::allocate(device, kBytes, stream);
  Face::upload(buffer, Floats(kCount, value), stream);
  return buffer;
}

template <class Face>
std::string adds_vectors(std::uint32_t device) {
  const auto stream = Face::stream(device);
  const auto start = Face::timed_event(device), done = Face::timed_event(device);
  const auto a = filled<Face>(device, stream, 1.25F), b = filled<Face>(device, stream, 1.25F);
  auto sum = Face::allocate(device, kBytes, stream);
  Face::record(start, stream);
  Face::add(stream, sum, a, b, 3.0);
  Face::record(done, stream);
  Face::synchronize(done);
  CHECK(Face::query(done));
  CHECK(Face::milliseconds(start, done) >= 0);
  CHECK(holds<Face>(sum, stream, 5.0F));
  Face::fill(sum, std::uint8_t{0}, kBytes, stream);
  CHECK(holds<Face>(sum, stream, 0.0F));
  CHECK(Face::query(stream));
  CHECK(Face::allocated(device) >= 3 * kBytes);
  return "";
}

/// A buffer that is moved is given back once.
template <class Face>
std::string gives_back(std::uint32_t device) {
  const auto stream = Face::stream(device);
  const auto before = Face::allocated(device);
  {
    auto buffer = Face::allocate(device, kBytes, stream);
    const auto held = Face::allocated(device);
    CHECK(held >= before + kBytes);
    const auto moved = std::move(buffer);
    CHECK(Face::allocated(device) == held);
  }
  CHECK(Face::allocated(device) == before);
  return "";
}

template <class Face>
std::string reports_errors(std::uint32_t device) {
  CHECK(has(failure<Face>([] { Face::stream(kNoDevice); }), "99"));
  CHECK(has(failure<Face>([] { Face::load_driver("/nowhere.so"); }), "/nowhere.so"));
  const auto stream = Face::default_stream(device);
  CHECK(has(failure<Face>([&] { Face::call_nothing(stream, "frobnicate"); }), "frobnicate"));
  const auto small = Face::allocate(device, 16, stream);
  const Floats big(100 * kCount, 0.0F);
  CHECK(has(failure<Face>([&] { Face::upload(small, big, stream); }), "overruns"));
  return "";
}

template <class Face>
std::string manages_memory(std::uint32_t device) {
  const auto stream = Face::default_stream(device);
  const auto pool = Face::pool(device);
  {
    const auto direct = Face::allocate_from(pool, 3000, stream);
    CHECK(Face::pool_allocated(pool) >= 3000);
    CHECK(Face::pool_reserved(pool) >= Face::pool_allocated(pool));
    CHECK(has(Face::snapshot(device), "\"segments\""));
  }
  CHECK(Face::pool_allocated(pool) == 0);
  const std::string asleep = failure<Face>([&] { Face::sleep(pool); });
  CHECK(asleep.empty() ? Face::pool_reserved(pool) == 0 : has(asleep, "virtual memory"));
  Face::wake(pool);
  CHECK(!asleep.empty() || Face::pool_reserved(pool) > 0);
  const auto elsewhere = Face::allocate(device, 5000, stream);
  CHECK(Face::pool_allocated(pool) == 0);

  Face::empty_cache(device);
  Face::limit(device, Face::reserved(device));
  const std::string refused =
      failure<Face>([&] { Face::allocate(device, std::uint64_t{1} << 30, stream); });
  Face::limit(device, kNoLimit);
  CHECK(has(refused, "limit"));
  return "";
}

/// y = (x + 2 x) + (x + 3 x), the two sums on a stream each.
template <class Face, class Stream, class Buffer>
auto captured(std::uint32_t device, const Stream& stream, const Buffer& x, const Buffer& y) {
  const auto side = Face::stream(device);
  const auto fork = Face::event(device), join = Face::event(device);
  auto capture = Face::begin_capture(stream);
  const auto left = Face::allocate(device, kBytes, stream), right = Face::allocate(device, kBytes, stream);
  Face::record(fork, stream);
  Face::wait(side, fork);
  Face::add(stream, left, x, x, 2.0);
  Face::add(side, right, x, x, 3.0);
  Face::record(join, side);
  Face::wait(stream, join);
  Face::add(stream, y, left, right, 1.0);
  return Face::end_capture(std::move(capture));
}

template <class Face>
std::string replays_graphs(std::uint32_t device) {
  const auto stream = Face::stream(device);
  const auto x = filled<Face>(device, stream, 1.0F), other = filled<Face>(device, stream, 10.0F);
  const auto y = filled<Face>(device, stream, 0.0F);
  const auto graph = captured<Face>(device, stream, x, y);
  CHECK(holds<Face>(y, stream, 0.0F));  // it was recorded, and not run
  CHECK(Face::nodes(graph) == 3);
  CHECK(has(Face::dot(graph), "digraph"));

  Face::name_buffer(graph, "x", x);
  const std::uint32_t first_sum = 0, factor = 0;
  Face::name_scalar(graph, "factor", first_sum, factor);
  const auto exec = Face::instantiate(graph);
  Face::replay(exec, stream);
  CHECK(holds<Face>(y, stream, 7.0F));
  Face::bind(exec, "x", other);
  Face::replay(exec, stream);
  CHECK(holds<Face>(y, stream, 70.0F));
  Face::bind_scalar(exec, "factor", 5.0);
  Face::replay(exec, stream);
  CHECK(holds<Face>(y, stream, 100.0F));
  CHECK(has(failure<Face>([&] { Face::bind(exec, "inptu", other); }), "inptu"));
  Face::check(exec, stream);
  CHECK(has(Face::profile(exec, stream), "add"));

  const auto again = captured<Face>(device, stream, other, y);
  Face::update(exec, again);
  return "";
}

/// A capture that is given up leaves its stream usable.
template <class Face>
std::string gives_captures_up(std::uint32_t device) {
  const auto stream = Face::stream(device);
  {
    const auto capture = Face::begin_capture(stream);
    CHECK(has(failure<Face>([&] { Face::query(stream); }), "captur"));
  }
  CHECK(Face::query(stream));
  return "";
}

/// In a forked child every call says so, and objects can be destroyed there (H17). The parent's work goes on.
template <class Face>
std::string is_refused_in_a_forked_child(std::uint32_t device) {
  const auto stream = Face::stream(device);
  auto event = Face::timed_event(device);
  const auto x = filled<Face>(device, stream, 1.0F), y = filled<Face>(device, stream, 0.0F);
  auto gone = Face::allocate(device, kBytes, stream);
  const auto pool = Face::pool(device);
  const auto graph = captured<Face>(device, stream, x, y);
  const auto exec = Face::instantiate(graph);
  auto capture = Face::begin_capture(stream);
  Floats numbers(kCount, 0.0F);
  const std::function<void()> calls[] = {
      [&] { Face::stream(device); },
      [&] { Face::default_stream(device); },
      [&] { Face::event(device); },
      [&] { Face::pool(device); },
      [&] { Face::load_driver("host"); },
      [&] { Face::allocate(device, kBytes, stream); },
      [&] { Face::allocate_from(pool, kBytes, stream); },
      [&] { Face::upload(gone, numbers, stream); },
      [&] { Face::download(x, numbers, stream); },
      [&] { Face::fill(gone, std::uint8_t{0}, kBytes, stream); },
      [&] { Face::add(stream, gone, x, x, 1.0); },
      [&] { Face::record(event, stream); },
      [&] { Face::wait(stream, event); },
      [&] { Face::synchronize(event); },
      [&] { Face::query(event); },
      [&] { Face::query(stream); },
      [&] { Face::milliseconds(event, event); },
      [&] { Face::allocated(device); },
      [&] { Face::pool_allocated(pool); },
      [&] { Face::snapshot(device); },
      [&] { Face::sleep(pool); },
      [&] { Face::wake(pool); },
      [&] { Face::empty_cache(device); },
      [&] { Face::limit(device, kNoLimit); },
      [&] { Face::begin_capture(stream); },
      [&] { Face::nodes(graph); },
      [&] { Face::dot(graph); },
      [&] { Face::name_buffer(graph, "x", x); },
      [&] { Face::name_scalar(graph, "factor", 0, 0); },
      [&] { Face::instantiate(graph); },
      [&] { Face::replay(exec, stream); },
      [&] { Face::bind(exec, "x", x); },
      [&] { Face::bind_scalar(exec, "factor", 1.0); },
      [&] { Face::update(exec, graph); },
      [&] { Face::check(exec, stream); },
      [&] { Face::profile(exec, stream); },
      [&] { Face::end_capture(std::move(capture)); },
  };
  const pid_t child = fork();
  if (child == 0) {
    int number = 0;
    for (const auto& call : calls) {
      ++number;
      if (!has(failure<Face>(call), "was forked")) _exit(number);
    }
    { const auto first = std::move(event); }
    { const auto second = std::move(gone); }
    _exit(0);
  }
  CHECK(child > 0);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  const int number = WEXITSTATUS(status);
  if (number != 0) return "call " + std::to_string(number) + " of a forked child was not refused";
  Face::end_capture(std::move(capture));
  CHECK(holds<Face>(x, stream, 1.0F));
  return "";
}

/// All of them; "" or the first that went wrong.
template <class Face>
std::string run(std::uint32_t device) {
  using Scenario = std::string (*)(std::uint32_t);
  const std::pair<const char*, Scenario> all[] = {
      {"adds_vectors", adds_vectors<Face>},     {"gives_back", gives_back<Face>},
      {"reports_errors", reports_errors<Face>}, {"manages_memory", manages_memory<Face>},
      {"replays_graphs", replays_graphs<Face>}, {"gives_captures_up", gives_captures_up<Face>},
      {"is_refused_in_a_forked_child", is_refused_in_a_forked_child<Face>},
  };
  for (const auto& [name, scenario] : all) {
    std::string problem;
    try {
      problem = scenario(device);
    } catch (const std::exception& error) {
      problem = std::string("exception: ") + error.what();
    }
    if (!problem.empty()) return name + (": " + problem);
  }
  return "";
}

}  // namespace scenarios
