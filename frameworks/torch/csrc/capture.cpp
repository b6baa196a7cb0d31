//! A host node that does nothing owns a graph's host memory. The runtime destroys the data of the node
//! when neither the graph nor anything made from it can run again. The memory must live exactly until
//! then.

#include "capture.h"

#include <mutex>
#include <unordered_map>
#include <vector>

namespace outrigger {
namespace {

otr_capture_info_t capture_of(otr_stream_t stream) {
  auto info = otr::sized<otr_capture_info_t>();
  check(otr_capture_info(stream, &info));
  return info;
}

/// The objects that one graph keeps alive.
struct Keeper {
  uint64_t capture;
  std::vector<std::shared_ptr<const void>> objects;
};

/// The keepers by capture. An entry lives as long as its keeper, so that a capture finds its own.
struct Keepers {
  std::mutex lock;
  std::unordered_map<uint64_t, Keeper*> by_capture;
};

Keepers& keepers() {
  // Leaked on purpose: graphs of other static objects may be destroyed after it would be.
  static auto* all = new Keepers;
  return *all;
}

otr_code_t do_nothing(void*, int64_t, otr_code_t upstream) noexcept {
  return upstream;
}

void destroy_keeper(void* user) noexcept {
  const std::unique_ptr<Keeper> keeper(static_cast<Keeper*>(user));
  const std::lock_guard<std::mutex> lock(keepers().lock);
  keepers().by_capture.erase(keeper->capture);
  // The objects go last, after the lock: what they free is not ours to know.
}

}  // namespace

bool is_capturing(otr_stream_t stream) {
  return capture_of(stream).status != OTR_CAPTURE_NONE;
}

void refuse_capture(otr_stream_t stream, const char* name, const std::string& reason) {
  const std::string text = c10::str(who(), "operator ", name, " cannot be captured in a graph: ", reason);
  warn_if_failed(otr_capture_abort(stream, text.c_str()), "failing a capture");
  TORCH_CHECK_NOT_IMPLEMENTED(false, text);
}

void refuse_wait_in_capture(otr_stream_t stream, const char* name) {
  if (C10_UNLIKELY(is_capturing(stream))) {
    refuse_capture(
        stream, name,
        "the host needs its result now, but the work is being recorded and has not run. Keep the value on the "
        "device (torch.where instead of if), read it after the replay, or leave the operator out of the graph");
  }
}

void keep_in_capture(otr_stream_t stream, std::shared_ptr<const void> object) {
  const otr_capture_info_t info = capture_of(stream);
  if (info.status != OTR_CAPTURE_ACTIVE) {
    // A failed capture runs nothing, and so needs nothing.
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(keepers().lock);
    const auto found = keepers().by_capture.find(info.id);
    if (found != keepers().by_capture.end()) {
      found->second->objects.push_back(std::move(object));
      return;
    }
  }
  auto keeper = std::make_unique<Keeper>();
  keeper->capture = info.id;
  keeper->objects.push_back(std::move(object));
  auto node = otr::sized<otr_host_node_t>();
  node.function = &do_nothing;
  node.user = keeper.get();
  node.destroy = &destroy_keeper;
  node.label = "host memory";
  {
    const std::lock_guard<std::mutex> lock(keepers().lock);
    keepers().by_capture.emplace(info.id, keeper.get());
  }
  otr_status_t* status = otr_host_node(stream, &node);
  if (status != nullptr) {
    const std::lock_guard<std::mutex> lock(keepers().lock);
    keepers().by_capture.erase(info.id);
  } else {
    // The node owns it from here on.
    keeper.release();
  }
  check(status);
}

}  // namespace outrigger
