// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A graph in C++, over the bridge: captured on two streams, replayed with other memory, written down.
// Everything is destroyed with its object; a failure is an exception.

#include <cstdint>
#include <iostream>
#include <vector>

#include "outrigger/src/bridge.rs.h"
#include "rust/cxx.h"

namespace {

constexpr std::uint32_t kDevice = 0;
constexpr std::int32_t kPriority = 0;  // a lower one is more urgent
constexpr bool kUntimed = false;
constexpr std::int64_t kCount = 4;

outrigger::Tensor tensor(const outrigger::Buffer& buffer) {
  return {buffer.address(), outrigger::DType::F32, {kCount}, {1}};
}

// out = a + factor * b, in the order of a stream.
void add(const outrigger::Stream& stream, const outrigger::Buffer& out, const outrigger::Buffer& a,
         const outrigger::Buffer& b, double factor) {
  const std::vector<outrigger::Tensor> inputs{tensor(a), tensor(b)}, outputs{tensor(out)};
  stream.call("add", {inputs.data(), inputs.size()}, {outputs.data(), outputs.size()}, {&factor, 1});
}

rust::Box<outrigger::Buffer> vector_of(const outrigger::Stream& stream, float value) {
  const std::vector<float> values(kCount, value);
  auto buffer = outrigger::allocate(kDevice, kCount * sizeof value, stream);
  buffer->upload({reinterpret_cast<const std::uint8_t*>(values.data()), kCount * sizeof value}, stream);
  return buffer;
}

float first(const outrigger::Stream& stream, const outrigger::Buffer& buffer) {
  float value = 0;
  buffer.download({reinterpret_cast<std::uint8_t*>(&value), sizeof value}, stream);
  return value;
}

}  // namespace

int main() {
  const auto stream = outrigger::create_stream(kDevice, kPriority);
  const auto side = outrigger::create_stream(kDevice, kPriority);
  const auto fork = outrigger::create_event(kDevice, kUntimed);
  const auto join = outrigger::create_event(kDevice, kUntimed);
  const auto x = vector_of(*stream, 1), other_x = vector_of(*stream, 10), y = vector_of(*stream, 0);

  // y = (x + 2 x) + (x + 3 x), the two sums on a stream each. Nothing runs while it is captured.
  auto capture = outrigger::begin_capture(*stream);
  {
    const auto left = outrigger::allocate(kDevice, kCount * sizeof(float), *stream);
    const auto right = outrigger::allocate(kDevice, kCount * sizeof(float), *stream);
    fork->record(*stream);
    side->wait(*fork);  // the side stream joins the capture
    add(*stream, *left, *x, *x, 2);
    add(*side, *right, *x, *x, 3);
    join->record(*side);
    stream->wait(*join);  // and its work is joined
    add(*stream, *y, *left, *right, 1);
  }
  const auto graph = outrigger::end_capture(std::move(capture));
  std::cout << std::string(graph->dump(outrigger::GraphFormat::Dot));

  graph->name_buffer("x", *x);
  const auto exec = graph->instantiate();
  exec->replay(*stream);
  std::cout << "x = 1:  y = " << first(*stream, *y) << '\n';
  exec->bind("x", *other_x);
  exec->replay(*side);  // on any stream, behind the replay before
  const float last = first(*side, *y);
  std::cout << "x = 10: y = " << last << '\n';
  exec->check(*stream);
  return last == 70 ? 0 : 1;
}
