// Operators through the C ABI: on device 0, of the driver `opencl`, by Outrigger's own device kernels; on device 1, of the
// driver `host`, by its host kernels; and by hand in OpenCL. All get the same numbers, and have to give the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "../peers/raw_opencl.h"
#include "driver_kernels.h"
#include "outrigger.h"
#include "wire.h"

namespace bench {

constexpr uint32_t DRIVER = 0, HOST = 1;  // devices

// A launch of a kernel by hand: its buffers by their numbers, and items in up to three dimensions.
struct HandLaunch {
  const char* kernel;
  std::vector<size_t> buffers;
  std::vector<size_t> items;
};

// An operator with operands of certain sizes. Its buffers are the inputs, the outputs, and what the kernels by hand need
// in between.
struct Operator {
  const char* name;
  std::vector<std::vector<int64_t>> inputs;
  std::vector<std::vector<int64_t>> outputs;
  std::vector<otr_scalar_t> scalars;
  std::vector<otr_value_t> values;  // of an operator with a schema
  std::vector<HandLaunch> hand;
  size_t between = 0;  // elements
};

inline otr_scalar_t real(double value) {
  otr_scalar_t scalar{OTR_DTYPE_F64, 0, {}};
  scalar.value.f64 = value;
  return scalar;
}

inline otr_scalar_t integer(int64_t value) {
  otr_scalar_t scalar{OTR_DTYPE_I64, 0, {}};
  scalar.value.i64 = value;
  return scalar;
}

inline otr_value_t value_of(otr_value_kind_t kind, int64_t value = 0) {
  otr_value_t argument{kind, 0, {}};
  argument.of.integer = value;
  return argument;
}

inline otr_value_t integers_of(const std::vector<int64_t>& list) {
  otr_value_t argument{OTR_VALUE_INTS, static_cast<uint32_t>(list.size()), {}};
  argument.of.integers = list.data();
  return argument;
}

inline std::vector<Operator> operators() {
  static const std::vector<int64_t> zeros{0, 0}, ones{1, 1};
  const std::vector<int64_t> rows{SOFTMAX_ROWS, SOFTMAX_COLUMNS}, square{MM_SIZE, MM_SIZE};
  const std::vector<int64_t> heads{1, ATTENTION_HEADS, ATTENTION_LENGTH, ATTENTION_WIDTH};
  const size_t elements = ELEMENTS, chunks = SUM_COUNT / SUM_CHUNK;
  return {
      {"add", {{ELEMENTS}, {ELEMENTS}}, {{ELEMENTS}}, {real(1)}, {}, {{"add", {0, 1, 2}, {elements}}}},
      {"gelu", {{ELEMENTS}}, {{ELEMENTS}}, {integer(0)}, {}, {{"gelu", {0, 1}, {elements}}}},
      {"sum", {{SUM_COUNT}}, {{1}}, {}, {}, {{"sum_chunks", {0, 2}, {chunks}}, {"sum_parts", {2, 1}, {1}}}, chunks},
      {"softmax", {rows}, {rows}, {integer(1)}, {}, {{"softmax", {0, 1}, {size_t(SOFTMAX_ROWS)}}}},
      {"mm", {square, square}, {square}, {}, {}, {{"mm", {0, 1, 2}, {MM_SIZE / 32, MM_SIZE / 4}}}},
      {"convolution",
       {{1, CONV_CHANNELS, CONV_SIZE + 2, CONV_SIZE + 2}, {CONV_CHANNELS, CONV_CHANNELS, 3, 3}},
       {{1, CONV_CHANNELS, CONV_SIZE, CONV_SIZE}},
       {},
       {value_of(OTR_VALUE_INPUT, 0), value_of(OTR_VALUE_INPUT, 1), value_of(OTR_VALUE_NONE), integers_of(ones),
        integers_of(zeros), integers_of(ones), value_of(OTR_VALUE_BOOL, 0), integers_of(zeros), value_of(OTR_VALUE_INT, 1)},
       {{"convolution", {0, 1, 2}, {CONV_SIZE / 16, CONV_SIZE, CONV_CHANNELS / 4}}}},
      {"attention",
       {heads, heads, heads},
       {heads, {1, ATTENTION_HEADS, ATTENTION_LENGTH}},
       {real(1 / std::sqrt(double(ATTENTION_WIDTH))), real(0), integer(0), integer(0)},
       {value_of(OTR_VALUE_INPUT, 0), value_of(OTR_VALUE_INPUT, 1), value_of(OTR_VALUE_INPUT, 2), value_of(OTR_VALUE_NONE),
        value_of(OTR_VALUE_BOOL, 0), value_of(OTR_VALUE_SCALAR, 0), value_of(OTR_VALUE_SCALAR, 1),
        value_of(OTR_VALUE_SCALAR, 2), value_of(OTR_VALUE_SCALAR, 3)},
       {{"attention", {0, 1, 2, 3, 4}, {size_t(ATTENTION_LENGTH), size_t(ATTENTION_HEADS)}}}},
  };
}

inline size_t count_of(const std::vector<int64_t>& sizes) {
  size_t count = 1;
  for (const int64_t size : sizes) count *= static_cast<size_t>(size);
  return count;
}

// Numbers between -1 and 1, the same for all.
inline std::vector<float> numbers(size_t count, uint32_t seed) {
  std::vector<float> list(count);
  for (float& number : list) {
    seed = seed * 1664525 + 1013904223;
    number = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return list;
}

// The operator on a device of Outrigger's.
class DeviceOperator {
 public:
  DeviceOperator(uint32_t device, const Operator& of) : of_(of) {
    ok(otr_stream_create(device, 0, &stream_));
    ok(otr_operator_find(of.name, &id_));
    uint32_t offered = 0;
    ok(otr_operator_offered(device, id_, &offered));
    if (device == DRIVER && offered == 0) throw std::runtime_error("the driver does not have the operator");
    for (const auto* list : {&of_.inputs, &of_.outputs}) {
      for (const auto& sizes : *list) {
        std::vector<int64_t> strides(sizes.size(), 1);
        for (size_t at = sizes.size() - 1; at > 0; --at) strides[at - 1] = strides[at] * sizes[at];
        strides_.push_back(std::move(strides));
        uint64_t address = 0;
        ok(otr_memory_alloc(device, count_of(sizes) * sizeof(float), stream_, &address));
        tensors_.push_back({address, OTR_DTYPE_F32, static_cast<uint32_t>(sizes.size()), sizes.data(), nullptr});
      }
    }
    for (size_t at = 0; at < tensors_.size(); ++at) tensors_[at].strides = strides_[at].data();
    for (size_t at = 0; at < of_.inputs.size(); ++at) {
      const std::vector<float> list = numbers(count_of(of_.inputs[at]), static_cast<uint32_t>(at + 1));
      ok(otr_copy(stream_, tensors_[at].address, reinterpret_cast<uint64_t>(list.data()), list.size() * sizeof(float),
                  OTR_COPY_HOST_TO_DEVICE));
      ok(otr_stream_synchronize(stream_));
    }
    arguments_.ext = {sizeof arguments_, OTR_EXT_OPERATOR_ARGS, 0, nullptr};
    arguments_.values = of_.values.data();
    arguments_.count = static_cast<uint32_t>(of_.values.size());
    call_.struct_size = sizeof call_;
    call_.next = of_.values.empty() ? nullptr : &arguments_.ext;
    call_.inputs = tensors_.data();
    call_.outputs = tensors_.data() + of_.inputs.size();
    call_.scalars = of_.scalars.data();
    call_.input_count = static_cast<uint32_t>(of_.inputs.size());
    call_.output_count = static_cast<uint32_t>(of_.outputs.size());
    call_.scalar_count = static_cast<uint32_t>(of_.scalars.size());
    // The first call compiles the operator's kernels, which is no part of a measurement.
    run(1);
  }
  DeviceOperator(const DeviceOperator&) = delete;
  DeviceOperator& operator=(const DeviceOperator&) = delete;

  double run(int64_t repetitions) const {
    const double start = now_ns();
    for (int64_t i = 0; i < repetitions; ++i) ok(otr_operator_call(stream_, id_, &call_));
    ok(otr_stream_synchronize(stream_));
    return now_ns() - start;
  }

  std::vector<float> result() const {
    std::vector<float> list(count_of(of_.outputs[0]));
    ok(otr_copy(stream_, reinterpret_cast<uint64_t>(list.data()), call_.outputs[0].address, list.size() * sizeof(float),
                OTR_COPY_DEVICE_TO_HOST));
    ok(otr_stream_synchronize(stream_));
    return list;
  }

 private:
  Operator of_;
  otr_stream_t stream_ = 0;
  otr_operator_id_t id_ = 0;
  std::vector<std::vector<int64_t>> strides_;
  std::vector<otr_tensor_t> tensors_;
  otr_operator_args_t arguments_{};
  otr_operator_call_t call_{};
};

// The operator by hand.
class HandOperator {
 public:
  HandOperator(const RawOpenCl& cl, cl_program program, const Operator& of) : cl_(cl), launches_(of.hand) {
    for (size_t at = 0; at < of.inputs.size(); ++at) {
      const std::vector<float> list = numbers(count_of(of.inputs[at]), static_cast<uint32_t>(at + 1));
      buffers_.push_back(cl.alloc(list.size() * sizeof(float)));
      cl.copy(buffers_.back(), list.data(), list.size() * sizeof(float));
      cl.finish();
    }
    output_ = buffers_.size();
    count_ = count_of(of.outputs[0]);
    for (const auto& sizes : of.outputs) buffers_.push_back(cl.alloc(count_of(sizes) * sizeof(float)));
    if (of.between > 0) buffers_.push_back(cl.alloc(of.between * sizeof(float)));
    for (const HandLaunch& launch : launches_) kernels_.push_back(RawOpenCl::kernel(program, launch.kernel));
    run(1);
  }

  double run(int64_t repetitions) const {
    const double start = now_ns();
    for (int64_t i = 0; i < repetitions; ++i) {
      for (size_t at = 0; at < launches_.size(); ++at) {
        std::vector<const void*> addresses;
        for (const size_t buffer : launches_[at].buffers) addresses.push_back(buffers_[buffer]);
        const std::vector<size_t>& items = launches_[at].items;
        cl_.launch(kernels_[at], addresses, static_cast<cl_uint>(items.size()), items.data(), nullptr);
      }
    }
    cl_.finish();
    return now_ns() - start;
  }

  std::vector<float> result() const {
    std::vector<float> list(count_);
    cl_.copy(list.data(), buffers_[output_], count_ * sizeof(float));
    cl_.finish();
    return list;
  }

 private:
  const RawOpenCl& cl_;
  std::vector<HandLaunch> launches_;
  std::vector<void*> buffers_;
  std::vector<cl_kernel> kernels_;
  size_t output_ = 0, count_ = 0;
};

// Throws unless both give the same, up to the rounding of sums in another order: so much of the largest element.
inline void expect_same(const char* name, const std::vector<float>& one, const std::vector<float>& other) {
  float largest = 0;
  for (const float number : other) largest = std::max(largest, std::abs(number));
  for (size_t at = 0; at < one.size(); ++at) {
    if (!(std::abs(one[at] - other[at]) <= 1e-3f * largest)) {
      throw std::runtime_error(std::string(name) + ": element " + std::to_string(at) + " is " + std::to_string(one[at]) +
                               " and not " + std::to_string(other[at]));
    }
  }
}

// One subject of an operator, which is made at its first question and compared with the host's result.
template <class Subject, class Make>
Measure operator_measure(const std::string& name, const Operator& of, Make make) {
  auto made = std::make_shared<std::unique_ptr<Subject>>();
  return {name, [made, of, make](int64_t repetitions) {
            if (!*made) {
              auto subject = make(of);
              expect_same(of.name, subject->result(), DeviceOperator(HOST, of).result());
              *made = std::move(subject);
            }
            return (*made)->run(repetitions);
          }};
}

// `NAME`, `host_NAME` and `raw_NAME` of each operator.
inline std::vector<Measure> operator_measures(const RawOpenCl& cl, const std::string& kernels) {
  const cl_program program = cl.compile(read_text(kernels), kernel_options());
  std::vector<Measure> measures;
  for (const Operator& of : operators()) {
    const std::string name = of.name;
    const auto on = [](uint32_t device) {
      return [device](const Operator& of) { return std::make_unique<DeviceOperator>(device, of); };
    };
    measures.push_back(operator_measure<DeviceOperator>(name, of, on(DRIVER)));
    measures.push_back(operator_measure<DeviceOperator>("host_" + name, of, on(HOST)));
    measures.push_back(operator_measure<HandOperator>("raw_" + name, of, [&cl, program](const Operator& of) {
      return std::make_unique<HandOperator>(cl, program, of);
    }));
  }
  return measures;
}

}  // namespace bench
