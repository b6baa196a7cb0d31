// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A host without exceptions over outrigger.hpp: every failure is a Result. Built with -fno-exceptions.
// Returns 0 if results hold what they should, else the line that found something else.

#include <outrigger/outrigger.hpp>

#include <cstring>

#define EXPECT(condition) \
  do {                    \
    if (!(condition)) return __LINE__ % 256; \
  } while (false)

int main() {
  auto stream = otr::Stream::create(otr::Device(0));
  EXPECT(stream);
  auto buffer = otr::Buffer::allocate(otr::Device(0), 64, *stream);
  EXPECT(buffer && buffer->bytes() == 64);
  EXPECT(stream->fill(buffer->address(), 64, std::uint32_t{7}));
  std::uint32_t values[16] = {};
  EXPECT(buffer->download(values, sizeof values, *stream));
  EXPECT(values[0] == 7 && values[15] == 7);

  const otr::Result<void> overrun = stream->fill(buffer->address(), 1 << 30, std::uint8_t{1});
  EXPECT(!overrun && overrun.error().code() == OTR_ERR_INVALID_ARGUMENT);
  EXPECT(std::strstr(overrun.error().what(), "1073741824") != nullptr);
  const auto none = otr::Operator::find("frobnicate");
  EXPECT(!none && none.error().code() == OTR_ERR_NOT_FOUND);
  const auto nowhere = otr::Stream::create(otr::Device(999));
  EXPECT(!nowhere && nowhere.error().code() == OTR_ERR_INVALID_DEVICE);

  // Moving leaves nothing behind that would be given back twice.
  otr::Stream moved = std::move(*stream);
  EXPECT(stream->id() == 0 && moved.id() != 0);
  EXPECT(moved.synchronize());

  // A function serves an operator until its registration ends; its failures are those of the calls.
  {
    int calls = 0;
    auto served = otr::OperatorRegistration::create(
        "results::seven", "results_host",
        [&calls](otr::StreamRef on, otr::Operator, const otr_operator_call_t& call) -> otr::Result<void> {
          if (++calls == 2) return on.fill(call.outputs[0].address, 1 << 30, std::uint8_t{1});
          return on.fill(call.outputs[0].address, 64, std::uint32_t{77});
        });
    EXPECT(served);
    const auto seven = otr::Operator::find("results::seven");
    const auto out = buffer->tensor(otr::DType::i32, {16});
    EXPECT(seven && moved.call(*seven, {}, {out}));
    EXPECT(buffer->download(values, sizeof values, moved) && values[15] == 77);
    const auto failed = moved.call(*seven, {}, {out});
    EXPECT(!failed && failed.error().code() == OTR_ERR_INVALID_ARGUMENT);
    EXPECT(std::strstr(failed.error().what(), "registered by results_host") != nullptr);
    EXPECT(served->withdraw() && calls == 2);
    const auto nobody = moved.call(*seven, {}, {out});
    EXPECT(!nobody && nobody.error().code() == OTR_ERR_UNSUPPORTED);
  }

  // A capture that is given up leaves its stream usable.
  {
    const auto capture = otr::Capture::begin(moved);
    EXPECT(capture);
    const auto refused = moved.query();
    EXPECT(!refused && refused.error().code() == OTR_ERR_CAPTURE);
  }
  const auto usable = moved.query();
  EXPECT(usable && *usable);
  return 0;
}
