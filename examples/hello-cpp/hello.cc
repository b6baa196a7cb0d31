// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The first program on a device: two operators are captured as a graph, which is replayed three times.

#include <outrigger/outrigger.hpp>

#include <cstdio>
#include <exception>
#include <vector>

int main() try {
  const otr::Device device(0);
  const auto stream = otr::Stream::create(device);
  const auto add = otr::Operator::find("add"), relu = otr::Operator::find("relu");

  std::vector<float> values{-2, -1, 1, 2};
  const auto bytes = values.size() * sizeof(float);
  const auto x = otr::Buffer::allocate(device, bytes, stream);
  const auto y = otr::Buffer::allocate(device, bytes, stream);
  x.upload(values.data(), bytes, stream);
  stream.fill(y.address(), bytes, 0.0F);

  const auto in = x.tensor(otr::DType::f32, {4}), out = y.tensor(otr::DType::f32, {4});
  auto capture = otr::Capture::begin(stream);
  stream.call(add, {out, in}, {out});  // recorded, not run: y = y + x
  stream.call(relu, {out}, {out});     // y = max(y, 0)
  const auto exec = capture.end().instantiate();
  for (int round = 0; round < 3; ++round) exec.replay(stream);

  y.download(values.data(), bytes, stream);  // waits for the replays
  std::printf("%s: %g %g %g %g\n", device.info().name, values[0], values[1], values[2], values[3]);
  return values == std::vector<float>{0, 0, 3, 6} ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "hello: %s\n", error.what());
  return 2;
}
