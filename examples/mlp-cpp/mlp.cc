// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A small neural network in C++ over outrigger.hpp: run by operators, one of which the library does not
// have, then captured and replayed with other inputs. Compares everything with plain C++, prints what
// memory it took, and returns 0 if all is right.
//
//   mlp [driver]     such as "host?face=discrete", or the path of a driver's library

#include <outrigger/outrigger.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 32, kIn = 64, kHidden = 128, kOut = 10;
using Floats = std::vector<float>;

Floats random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, 0.1F);
  Floats values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return normal(engine); });
  return values;
}

float softsign(float x) { return x / (1.0F + std::fabs(x)); }

/// Parameters, in plain C++.
struct Parameters {
  Floats w1 = random_floats(kIn * kHidden, 1), b1 = random_floats(kHidden, 2);
  Floats w2 = random_floats(kHidden * kOut, 3), b2 = random_floats(kOut, 4);
};

/// The network's output, in plain C++ and double precision.
Floats reference(const Parameters& p, const Floats& input) {
  const auto at = [](const Floats& values, std::int64_t index) {
    return static_cast<double>(values[static_cast<std::size_t>(index)]);
  };
  Floats output;
  for (std::int64_t row = 0; row < kBatch; ++row) {
    std::vector<double> hidden, logits;
    for (std::int64_t h = 0; h < kHidden; ++h) {
      double sum = at(p.b1, h);
      for (std::int64_t i = 0; i < kIn; ++i) sum += at(input, row * kIn + i) * at(p.w1, i * kHidden + h);
      hidden.push_back(sum / (1.0 + std::fabs(sum)));
    }
    double total = 0;
    for (std::int64_t o = 0; o < kOut; ++o) {
      double sum = at(p.b2, o);
      for (std::int64_t h = 0; h < kHidden; ++h) {
        sum += hidden[static_cast<std::size_t>(h)] * at(p.w2, h * kOut + o);
      }
      logits.push_back(std::exp(sum));
      total += logits.back();
    }
    for (const double logit : logits) output.push_back(static_cast<float>(logit / total));
  }
  return output;
}

bool same(const char* what, const Floats& got, const Floats& wanted) {
  float worst = 0;
  for (std::size_t index = 0; index < wanted.size(); ++index) {
    // A NaN is no small difference.
    const float difference = std::fabs(got[index] - wanted[index]);
    worst = std::isnan(difference) ? 1.0F : std::max(worst, difference);
  }
  std::printf("%-28s largest difference %.1e\n", what, static_cast<double>(worst));
  return worst < 1e-5F;
}

/// A vector in device memory.
otr::Buffer on_device(otr::Device device, const otr::Stream& stream, const Floats& values) {
  auto buffer = otr::Buffer::allocate(device, values.size() * sizeof(float), stream);
  buffer.upload(values.data(), values.size() * sizeof(float), stream);
  return buffer;
}

/// The network on a device.
class Network {
 public:
  Network(otr::Device device, const otr::Stream& stream, const Parameters& p)
      : w1_(on_device(device, stream, p.w1)),
        b1_(on_device(device, stream, p.b1)),
        w2_(on_device(device, stream, p.w2)),
        b2_(on_device(device, stream, p.b2)),
        hidden_(otr::Buffer::allocate(device, kBatch * kHidden * sizeof(float), stream)),
        staging_(kBatch * kHidden) {}

  /// Submits the network; returns at once. Where the stream captures, this is what is recorded.
  void forward(const otr::Stream& stream, const otr::Buffer& input, const otr::Buffer& output) {
    using otr::DType;
    const auto x = input.tensor(DType::f32, {kBatch, kIn});
    const auto hidden = hidden_.tensor(DType::f32, {kBatch, kHidden});
    const auto y = output.tensor(DType::f32, {kBatch, kOut});
    stream.call(addmm_, {b1_.tensor(DType::f32, {kHidden}), x, w1_.tensor(DType::f32, {kIn, kHidden})},
                {hidden});
    activate(stream, hidden);
    stream.call(addmm_, {b2_.tensor(DType::f32, {kOut}), hidden, w2_.tensor(DType::f32, {kHidden, kOut})},
                {y});
    stream.call(softmax_, {y}, {y}, {1});
  }

 private:
  /// The activation: by the library if it knows it, else here, in stream order.
  void activate(const otr::Stream& stream, const otr::Tensor& hidden) {
    try {
      stream.call(otr::Operator::find("softsign"), {hidden}, {hidden});
      return;
    } catch (const otr::Error& error) {
      if (error.code() != OTR_ERR_NOT_FOUND && error.code() != OTR_ERR_UNSUPPORTED) throw;
    }
    const auto fallback = otr::Fallback::begin("softsign");
    if (fallback.warns()) std::fprintf(stderr, "warning: softsign runs on the CPU\n");
    const auto start = std::chrono::steady_clock::now();
    const auto bytes = hidden_.bytes();
    stream.copy_to_host(staging_.data(), hidden_.address(), bytes);
    stream.host(
        [this](std::int32_t upstream) {
          if (upstream == OTR_OK) std::transform(staging_.begin(), staging_.end(), staging_.begin(), softsign);
          return upstream;
        },
        "softsign");
    stream.copy_to_device(hidden_.address(), staging_.data(), bytes);
    const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - start;
    fallback.done(static_cast<std::uint64_t>(taken.count()), 2 * bytes);
  }

  otr::Operator addmm_ = otr::Operator::find("addmm"), softmax_ = otr::Operator::find("softmax");
  otr::Buffer w1_, b1_, w2_, b2_, hidden_;
  Floats staging_;
};

int run() {
  const otr::Device device(0);
  const auto info = device.info();
  std::printf("outrigger %s, %s by the driver %s\n", otr::version(), info.name, info.driver);

  const Parameters parameters;
  std::vector<Floats> inputs;
  for (unsigned seed = 10; seed < 13; ++seed) inputs.push_back(random_floats(kBatch * kIn, seed));

  const auto stream = otr::Stream::create(device);
  Network network(device, stream, parameters);
  const auto input = on_device(device, stream, inputs[0]);
  const auto output = otr::Buffer::allocate(device, kBatch * kOut * sizeof(float), stream);
  const auto result = [&] {
    Floats values(kBatch * kOut);
    output.download(values.data(), values.size() * sizeof(float), stream);
    return values;
  };

  network.forward(stream, input, output);
  bool right = same("by operators", result(), reference(parameters, inputs[0]));

  auto capture = otr::Capture::begin(stream);
  network.forward(stream, input, output);
  const auto graph = capture.end();
  graph.name_buffer("input", input);
  const auto exec = graph.instantiate();
  for (std::size_t round = 0; round < inputs.size(); ++round) {
    const auto other = on_device(device, stream, inputs[round]);
    exec.bind("input", other);  // without a copy; the graph keeps the memory
    exec.replay(stream);
    const std::string what = "replayed with input " + std::to_string(round);
    right &= same(what.c_str(), result(), reference(parameters, inputs[round]));
  }

  const auto stats = device.memory_stats();
  std::printf("graph of %u nodes; memory in use %llu bytes (peak %llu), held %llu, in %llu allocations\n",
              graph.info().nodes, static_cast<unsigned long long>(stats.allocated_bytes.current),
              static_cast<unsigned long long>(stats.allocated_bytes.peak),
              static_cast<unsigned long long>(stats.reserved_bytes.current),
              static_cast<unsigned long long>(stats.allocations.allocated));
  const std::string fallbacks = otr::Fallback::report();
  std::printf("fallbacks: %s\n", fallbacks.c_str());
  right &= fallbacks.find("softsign") != std::string::npos;

  // A wrong call throws an error that says what is wrong.
  try {
    exec.bind("inptu", input);
    right = false;
  } catch (const otr::Error& error) {
    std::printf("as expected: %s\n", error.what());
    right &= error.code() == OTR_ERR_NOT_FOUND;
  }
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    // The device of the driver that is named comes first, and the built-in one is not needed.
    if (argc > 1) setenv("OUTRIGGER_DRIVER", argv[1], 1);
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mlp: %s\n", error.what());
    return 2;
  }
}
