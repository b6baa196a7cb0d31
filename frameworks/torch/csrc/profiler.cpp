//! Events for torch's profiler (`use_device="outrigger"`). They are recorded around each operator on
//! the current stream, and read when the profile ends. It must never record into a capture, because an
//! event has no time there.

#include "profiler.h"

#include "capture.h"
#include "guard.h"

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

namespace outrigger {
namespace {

using Event = torch::profiler::impl::ProfilerVoidEventStub;

void destroy(void* event) noexcept {
  warn_if_failed(otr_event_destroy(event_handle(event)), "destroying an event of the profiler");
}

struct Profiler final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, Event* event, int64_t* cpu_nanoseconds) const override {
    const c10::DeviceIndex current = current_device();
    if (device != nullptr) {
      *device = current;
    }
    const otr_stream_t stream = current_stream(current);
    if (!is_capturing(stream)) {
      otr_event_t made = 0;
      check(otr_event_create(static_cast<uint32_t>(current), OTR_EVENT_TIMED, &made));
      *event = Event(reinterpret_cast<void*>(static_cast<uintptr_t>(made)), &destroy);
      check(otr_event_record(made, stream));
    }
    if (cpu_nanoseconds != nullptr) {
      *cpu_nanoseconds = c10::getTime();
    }
  }

  // In microseconds.
  float elapsed(const Event* start, const Event* end) const override {
    if (*start == nullptr || *end == nullptr) {
      return 0;
    }
    check(otr_event_synchronize(event_handle(start->get())));
    check(otr_event_synchronize(event_handle(end->get())));
    double milliseconds = 0;
    check(otr_event_elapsed(event_handle(start->get()), event_handle(end->get()), &milliseconds));
    return static_cast<float>(milliseconds * 1000);
  }

  bool enabled() const override {
    return true;
  }

  void onEachDevice(std::function<void(int)> body) const override {
    const c10::DeviceIndex before = current_device();
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      set_current_device(index);
      body(index);
    }
    set_current_device(before);
  }

  void synchronize() const override {
    check(otr_device_synchronize(static_cast<uint32_t>(current_device())));
  }

  // The runtime's own traces have names; torch's profiler keeps those of its operators itself.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
};

}  // namespace

void register_profiler() {
  static Profiler profiler;
  torch::profiler::impl::registerPrivateUse1Methods(&profiler);
}

}  // namespace outrigger
