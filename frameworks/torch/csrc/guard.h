//! Torch's device guard over the runtime: devices, streams and events of one device type.
//! It must never throw where torch forbids it, and never keep state of its own.
#pragma once

#include "capture.h"
#include "memory.h"
#include "runtime.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace outrigger {

/// An event of torch is an opaque pointer; ours holds the runtime's handle in it.
inline otr_event_t event_handle(const void* event) {
  return static_cast<otr_event_t>(reinterpret_cast<uintptr_t>(event));
}

/// The guard of device type `T`.
template <c10::DeviceType T>
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return T;
  }

  c10::Device getDevice() const override {
    return {T, current_device()};
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    set_current_device(device.index());
    return previous;
  }

  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == T, who(), device, " is not a device of type ", T);
    set_current_device(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    warn_if_failed(otr_device_set_current(static_cast<uint32_t>(device.index())), "restoring the current device");
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    // Every dtype that the CPU computes with: what has no kernel on the device runs there.
    c10::DeviceCapability capability;
    auto& types = capability.capability_data.supported_scalar_types;
#define OUTRIGGER_SUPPORTED(_, name) types.has_##name = has_value(c10::ScalarType::name);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(OUTRIGGER_SUPPORTED)
#undef OUTRIGGER_SUPPORTED
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::Device exact = resolve(device);
    return torch_stream(current_stream(exact.index()), exact);
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, resolve(device));
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const c10::Device exact = resolve(device);
    const otr_device_info_t info = device_info(exact.index());
    return from_pool(exact, high_priority ? info.priority_highest : info.priority_lowest);
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    // Torch copies a stream around and never gives it back, so it must be one that lives forever.
    return from_pool(resolve(device), priority);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = getStream(stream.device());
    check(otr_stream_set_current(stream_handle(stream)));
    return previous;
  }

  void* getStreamNativeHandle(c10::Stream stream) const override {
    uint64_t native = 0;
    check(otr_stream_native(stream_handle(stream), &native));
    return reinterpret_cast<void*>(static_cast<uintptr_t>(native));
  }

  bool queryStream(const c10::Stream& stream) const override {
    uint32_t finished = 0;
    check(otr_stream_query(stream_handle(stream), &finished));
    return finished != 0;
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    // Asked for by name.
    check(otr_stream_synchronize(stream_handle(stream)));
  }

#if OUTRIGGER_TORCH_SINCE(12)
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return is_capturing(stream_handle(stream));
  }
#endif

  void record(
      void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag flag) const override {
    TORCH_CHECK(
        device == -1 || device == stream.device_index(), who(), "the event is of device ",
        static_cast<int>(device), ", the stream of device ", static_cast<int>(stream.device_index()));
    const otr_stream_t handle = stream_handle(stream);
    if (*event == nullptr) {
      const uint32_t flags = flag == c10::EventFlag::BACKEND_DEFAULT ? OTR_EVENT_TIMED : 0;
      otr_event_t made = 0;
      check(otr_event_create(static_cast<uint32_t>(stream.device_index()), flags, &made));
      *event = reinterpret_cast<void*>(static_cast<uintptr_t>(made));
    }
    check(otr_event_record(event_handle(*event), handle));
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      check(otr_stream_wait_event(stream_handle(stream), event_handle(event)));
    }
  }

  bool queryEvent(void* event) const override {
    uint32_t finished = 1;
    if (event != nullptr) {
      check(otr_event_query(event_handle(event), &finished));
    }
    return finished != 0;
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      check(otr_event_synchronize(event_handle(event)));
    }
  }

  void synchronizeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex exact = device < 0 ? current_device() : device;
    check_device(exact);
    check(otr_device_synchronize(static_cast<uint32_t>(exact)));
  }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) {
      warn_if_failed(otr_event_destroy(event_handle(event)), "destroying an event");
    }
  }

  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK(
        start != nullptr && end != nullptr,
        who(), "both events must be recorded before the time between them can be asked for");
    double milliseconds = 0;
    check(otr_event_elapsed(event_handle(start), event_handle(end), &milliseconds));
    return milliseconds;
  }

  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    record_stream(pointer, stream_handle(stream));
  }

 private:
  static c10::Device resolve(c10::Device device) {
    return device.has_index() ? device : c10::Device(T, current_device());
  }

  static c10::Stream from_pool(c10::Device device, int32_t priority) {
    check_device(device.index());
    otr_stream_t stream = 0;
    check(otr_stream_from_pool(static_cast<uint32_t>(device.index()), priority, &stream));
    has_streams = true;
    return torch_stream(stream, device);
  }
};

}  // namespace outrigger
