//! The parts of the translation between the C ABI and torch that are not on the hot path: errors,
//! devices, streams, threads. A C++ exception must never reach the runtime.

#include "runtime.h"

#include "peer_failure.h"
#include "share_work.h"

#include <c10/util/StringUtil.h>
#include <outrigger/framework.h>

#include <algorithm>
#include <atomic>
#include <exception>

#if defined(__GNUC__) && !defined(__clang__) && !defined(_OPENMP)
#error "compile with -fopenmp: without it at::parallel_for is a plain loop, and kernels run on one core"
#endif

namespace outrigger {
namespace {

#ifdef _OPENMP
// The body runs torch's own threads; an exception of ours cannot occur in it, one of the pool's must not
// leave it.
void parallel_for(
    int64_t begin, int64_t end, int64_t grain, otr_parallel_body_fn body, void* context) noexcept {
  try {
    share_work(begin, end, grain, [&](int64_t first, int64_t last) { body(context, first, last); });
  } catch (const std::exception& error) {
    TORCH_WARN(who(), "torch's thread pool failed (", error.what(), "); work may be incomplete");
  }
}
#endif

std::string& speaker() {
  static std::string prefix = "outrigger: ";
  return prefix;
}

}  // namespace

const char* who() noexcept {
  return speaker().c_str();
}

void speak_as(const char* name) {
  speaker() = c10::str(name, ": ");
}

std::string describe(const otr_status_t* status) {
  std::string text = otr_status_message(status);
  const char* name = otr_status_operator(status);
  const uint64_t stream = otr_status_stream(status);
  const uint64_t submission = otr_status_submission(status);
  if (name != nullptr && text.find(name) == std::string::npos) {
    text += c10::str(" (operator ", name, ")");
  }
  if (stream != 0) {
    text += c10::str(" (stream ", stream);
    if (submission != 0) {
      text += c10::str(", submission ", submission);
    }
    text += ")";
  }
  return text;
}

std::atomic<bool> has_streams{false};

std::atomic<SyncDebug> sync_debug_mode{SyncDebug::kDefault};

void found_a_wait() {
  TORCH_CHECK(sync_debug_mode.load() != SyncDebug::kError, who(), "called a synchronizing operation");
  TORCH_WARN(who(), "called a synchronizing operation");
}

void raise(otr_status_t* status) {
  const otr_code_t code = otr_status_code(status);
  const std::string text = who() + describe(status);
  otr_status_free(status);
  switch (code) {
    case OTR_ERR_OUT_OF_MEMORY:
    case OTR_ERR_OUT_OF_HOST_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    case OTR_ERR_OUT_OF_RANGE:
      TORCH_CHECK_INDEX(false, text);
    case OTR_ERR_UNSUPPORTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case OTR_ERR_PEER_LOST:
      TORCH_CHECK_WITH(DistBackendError, false, text, why_peers_were_lost());
    default:
      TORCH_CHECK(false, text);
  }
  // Every case above throws; the compiler cannot see it through the macros.
  std::terminate();
}

void warn_if_failed(otr_status_t* status, const char* doing) noexcept {
  // Objects that a forked child lets go are its parent's.
  if (status == nullptr || otr_status_code(status) == OTR_ERR_FORKED) {
    otr_status_free(status);
    return;
  }
  try {
    const std::string text = describe(status);
    otr_status_free(status);
    TORCH_WARN(who(), doing, " failed: ", text);
  } catch (...) {
    // A warning turned into an exception has nowhere to go from a destructor.
  }
}

c10::DeviceIndex device_count(std::string* why) noexcept {
  uint32_t count = 0;
  otr_status_t* status = otr_device_count(&count);
  if (status != nullptr) {
    try {
      if (why != nullptr) {
        *why = describe(status);
      }
    } catch (...) {
      // Without memory for the reason there is still the count.
    }
    otr_status_free(status);
    return 0;
  }
  return static_cast<c10::DeviceIndex>(std::min<uint32_t>(count, INT8_MAX));
}

void check_device(c10::DeviceIndex index) {
  std::string why;
  const c10::DeviceIndex count = device_count(&why);
  TORCH_CHECK(
      count > 0 || why.empty(), who(), "there is no device: ", why,
      ". torch_outrigger.load_report() says what was tried");
  TORCH_CHECK(
      index >= 0 && index < count, who(), "invalid device index ", static_cast<int>(index), ": there ",
      count == 1 ? "is " : "are ", static_cast<int>(count), count == 1 ? " device" : " devices",
      ", numbered from 0");
}

void set_current_device(c10::DeviceIndex index) {
  if (index != current_device()) {
    check_device(index);
    check(otr_device_set_current(static_cast<uint32_t>(index)));
  }
}

otr_stream_t stream_handle(const c10::Stream& stream) {
  if (stream.id() != 0) {
    return static_cast<otr_stream_t>(stream.id());
  }
  otr_stream_t handle = 0;
  check_device(stream.device_index());
  check(otr_stream_default(static_cast<uint32_t>(stream.device_index()), &handle));
  return handle;
}

c10::Stream torch_stream(otr_stream_t stream, c10::Device device) {
  otr_stream_t standard = 0;
  check(otr_stream_default(static_cast<uint32_t>(device.index()), &standard));
  const auto id = stream == standard ? 0 : static_cast<c10::StreamId>(stream);
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

otr_device_info_t device_info(c10::DeviceIndex device) {
  check_device(device);
  auto info = otr::sized<otr_device_info_t>();
  check(otr_device_info(static_cast<uint32_t>(device), &info));
  return info;
}

bool is_host_visible(c10::DeviceIndex device) {
  // 0: not asked yet, 1: no, 2: yes. A race asks twice and gets the same answer.
  static std::atomic<uint8_t> known[INT8_MAX + 1] = {};
  std::atomic<uint8_t>& entry = known[static_cast<uint8_t>(device) & INT8_MAX];
  uint8_t answer = entry.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(answer == 0)) {
    answer = device_info(device).host_visible != 0 ? 2 : 1;
    entry.store(answer, std::memory_order_relaxed);
  }
  return answer == 2;
}

void lend_threads() {
#ifdef _OPENMP
  // The main thread may share work first when a DataLoader pins already.
  keep_number_of_threads();
  check(otr_set_parallel_for(&parallel_for));
#endif
}

}  // namespace outrigger
