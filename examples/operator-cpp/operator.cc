// SPDX-License-Identifier: MIT OR Apache-2.0
//
// An operator that a host brings: x = 2 x + 1, made of operators that the library has. docs/hosts.md shows it.

#include <outrigger/outrigger.hpp>

#include <cstdio>
#include <exception>
#include <vector>

int main() try {
  const otr::Device device(0);
  const auto stream = otr::Stream::create(device);
  const auto mul = otr::Operator::find("mul"), add = otr::Operator::find("add");
  const auto scale_add = otr::Operator::find("mylib::scale_add");

  const auto served = otr::OperatorRegistration::create(
      "mylib::scale_add", "mylib", [&](otr::StreamRef on, otr::Operator, const otr_operator_call_t& call) {
        auto part = call;  // x = 2 x, and then x = x + 1: the same operands, with other scalars
        const otr::Scalar two(2.0), one(1.0);
        part.scalar_count = 1;
        part.scalars = &two.raw();
        on.call(mul, part);
        part.scalars = &one.raw();
        on.call(add, part);
      });

  std::vector<float> values{1, 2, 3, 4};
  const auto bytes = values.size() * sizeof(float);
  const auto memory = otr::Buffer::allocate(device, bytes, stream);
  memory.upload(values.data(), bytes, stream);
  const auto x = memory.tensor(otr::DType::f32, {4});
  stream.call(scale_add, {x}, {x});
  memory.download(values.data(), bytes, stream);
  std::printf("%g %g %g %g\n%s\n", values[0], values[1], values[2], values[3], served.list().c_str());
  return values == std::vector<float>{3, 5, 7, 9} ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "operator: %s\n", error.what());
  return 2;
}
