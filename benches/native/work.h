// The work of the nodes, the same machine code for Outrigger and for every native peer: a kernel that adds
// 1 to one float32, and one that goes over 64 of them again and again. Both are host kernels as the driver
// contract has them: an argument block, its size, and the bias from addresses to bytes. They are aligned,
// since where a loop lies in its cache line alone can double its time.
//
// Sizes of the graphs stand here too, so that no program measures another one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace bench {

constexpr int CHAIN = 1000;        // nodes of the long chain
constexpr int WIDTH = 8;           // independent nodes of a layer
constexpr int LAYERS = 125;        // layers, each joined before the next one: 1,000 nodes
constexpr int SPIN_FLOATS = 64;    // what a spinning node goes over: 4 cache lines
constexpr int STRIDE = SPIN_FLOATS;  // floats between the data of two nodes of a layer: no line is shared
constexpr uint32_t TINY_NS = 2;    // estimates of the run times, for schedulers that take them
constexpr uint32_t SPIN_NS = 1400;

using Kernel = int32_t (*)(const void* args, uint32_t size, int64_t bias);

struct AddArgs {
  uint64_t address;
};

struct SpinArgs {
  uint64_t address;
  uint64_t passes;
};

inline float* floats_at(uint64_t address, int64_t bias) {
  return reinterpret_cast<float*>(address + static_cast<uint64_t>(bias));
}

[[gnu::noinline, gnu::aligned(64)]] inline int32_t add_one(const void* args, uint32_t, int64_t bias) {
  *floats_at(static_cast<const AddArgs*>(args)->address, bias) += 1.0f;
  return 0;
}

[[gnu::noinline, gnu::aligned(64)]] inline int32_t spin(const void* args, uint32_t, int64_t bias) {
  const SpinArgs& spin = *static_cast<const SpinArgs*>(args);
  float* data = floats_at(spin.address, bias);
  for (uint64_t pass = 0; pass < spin.passes; ++pass) {
    for (int i = 0; i < SPIN_FLOATS; ++i) data[i] = data[i] * 0.5f + 1.0f;
    asm volatile("" ::: "memory");  // every pass is made
  }
  return 0;
}

// Throws unless `value` is what `count` additions of 1 to 0 give. A float32 stops growing at 2^24.
inline void expect_additions(float value, int64_t count) {
  const float expected = static_cast<float>(std::min<int64_t>(count, 1 << 24));
  if (value != expected) {
    throw std::runtime_error("the nodes ran " + std::to_string(value) + " times, not " +
                             std::to_string(expected));
  }
}

// The passes of a spinning node: the harness has them calibrated and gives them to all programs.
inline uint64_t passes_of(int argc, char** argv) {
  return argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
}

}  // namespace bench
