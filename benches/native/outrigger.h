// Parts of all programs that measure Outrigger: a status that failed becomes an exception, and device memory with
// floats in it. Everything goes through the C ABI.
#pragma once

#include <outrigger/outrigger.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "work.h"

namespace bench {

// Throws what `status` says; nothing if it is a success.
inline void ok(otr_status_t* status) {
  if (__builtin_expect(status == nullptr, 1)) return;
  const std::string message = otr_status_message(status);
  otr_status_free(status);
  throw std::runtime_error(message);
}

// The name of what is measured.
inline std::string outrigger_version() {
  otr_device_info_t info{};
  info.struct_size = sizeof info;
  ok(otr_device_info(0, &info));
  return std::string("Outrigger ") + otr_version() + " on " + info.driver;
}

inline otr_stream_t make_stream() {
  otr_stream_t stream = 0;
  ok(otr_stream_create(0, 0, &stream));
  return stream;
}

inline otr_event_t make_event() {
  otr_event_t event = 0;
  ok(otr_event_create(0, 0, &event));
  return event;
}

// Floats on device 0, for as long as the program runs.
class DeviceFloats {
 public:
  DeviceFloats(otr_stream_t stream, size_t count) : stream_(stream), count_(count) {
    ok(otr_memory_alloc(0, count * sizeof(float), stream, &address_));
    clear();
  }

  uint64_t address(size_t index = 0) const { return address_ + index * sizeof(float); }

  // Makes all floats 0, and waits.
  void clear() const {
    const float zero = 0;
    ok(otr_fill(stream_, address_, count_ * sizeof(float), &zero, sizeof zero));
    ok(otr_stream_synchronize(stream_));
  }

  // The value of a float, after all work of the stream.
  float at(size_t index) const {
    float value = 0;
    ok(otr_copy(stream_, reinterpret_cast<uint64_t>(&value), address(index), sizeof value,
                OTR_COPY_DEVICE_TO_HOST));
    ok(otr_stream_synchronize(stream_));
    return value;
  }

 private:
  otr_stream_t stream_;
  size_t count_;
  uint64_t address_ = 0;
};

// A launch of `kernel`, whose arguments start with a device address and are kept by the caller.
template <typename Args>
otr_host_kernel_call_t kernel_call(Kernel kernel, const Args& args, uint32_t cost_ns) {
  static const uint32_t address_offset = 0;
  otr_host_kernel_call_t call{};
  call.struct_size = sizeof call;
  call.function = kernel;
  call.args = &args;
  call.args_size = sizeof args;
  call.cost_ns = cost_ns;
  call.address_offsets = &address_offset;
  call.address_count = 1;
  return call;
}

}  // namespace bench
