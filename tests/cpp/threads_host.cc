// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A host with many threads over outrigger.hpp, to be run under sanitizers: threads with streams of their
// own share operators, an event and an executable graph, and move objects between each other. Returns 0
// if every thread has computed what it should. Host functions touch atomics only: sanitizers do not see
// how a library that was built without them orders its threads.

#include <outrigger/outrigger.hpp>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4, kRounds = 25;
constexpr std::int64_t kCount = 1000;
constexpr std::uint64_t kBytes = kCount * sizeof(float);

bool round_of(otr::Device device, const otr::Stream& stream, const otr::Event& shared, otr::Operator add,
              const otr::Executable& exec, float value) {
  const auto a = otr::Buffer::allocate(device, kBytes, stream);
  auto b = otr::Buffer::allocate(device, kBytes, stream);
  stream.fill(a.address(), kBytes, value);
  stream.fill(b.address(), kBytes, 1.0F);
  stream.wait(shared);
  const otr::Buffer moved = std::move(b);
  const auto tensor = [](const otr::Buffer& buffer) { return buffer.tensor(otr::DType::f32, {kCount}); };
  stream.call(add, {tensor(a), tensor(moved)}, {tensor(a)}, {2.0});
  exec.replay(stream);
  shared.record(stream);

  std::atomic<int> called{0};
  stream.host([&called](std::int32_t upstream) {
    called.fetch_add(1);
    return upstream;
  });
  std::vector<float> result(kCount);
  a.download(result.data(), kBytes, stream);
  for (const float got : result) {
    if (got != value + 2.0F) return false;
  }
  return called.load() == 1;
}

int run() {
  const otr::Device device(0);
  const auto add = otr::Operator::find("add");
  const auto stream = otr::Stream::create(device);
  const auto shared = otr::Event::create(device);
  const auto sum = otr::Buffer::allocate(device, sizeof(float), stream);
  stream.fill(sum.address(), sizeof(float), 0.0F);
  stream.synchronize();

  // Each replay adds one; replays of all threads run one after the other.
  auto capture = otr::Capture::begin(stream);
  const auto one = sum.tensor(otr::DType::f32, {});
  stream.call(add, {one}, {one}, {1.0, 1.0});
  const auto exec = capture.end().instantiate();

  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    // The stream is made here and destroyed there.
    threads.emplace_back([&, own = otr::Stream::create(device), thread] {
      try {
        for (int round = 0; round < kRounds; ++round) {
          const float value = static_cast<float>(thread * kRounds + round);
          if (!round_of(device, own, shared, add, exec, value)) ++failed;
        }
      } catch (const std::exception& error) {
        std::fprintf(stderr, "thread %d: %s\n", thread, error.what());
        ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  device.synchronize();
  float total = 0;
  sum.download(&total, sizeof total, stream);
  std::printf("%g replays, %d threads failed\n", static_cast<double>(total), failed.load());
  return total == kThreads * kRounds && failed == 0 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "threads_host: %s\n", error.what());
    return 2;
  }
}
