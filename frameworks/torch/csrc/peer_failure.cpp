//! The failures of groups. `note` is called by streams: it must never throw, and never call the runtime.

#include "peer_failure.h"

#include <algorithm>
#include <vector>

namespace outrigger {
namespace {

struct Last {
  std::mutex lock;
  std::string text;
  std::vector<otr_communicator_t> communicators;
};

Last& last() {
  // Leaked on purpose: work may fail while static objects are destroyed.
  static auto* one = new Last;
  return *one;
}

}  // namespace

void PeerFailure::note(const std::string& text) noexcept {
  try {
    {
      const std::lock_guard<std::mutex> lock(lock_);
      if (!text_.empty()) {
        return;
      }
      text_ = text;
    }
    const std::lock_guard<std::mutex> lock(last().lock);
    last().text = text;
  } catch (...) {
    // Without memory for the reason there is still the code.
  }
}

std::string PeerFailure::text() const {
  const std::lock_guard<std::mutex> lock(lock_);
  return text_;
}

void watch_communicator(otr_communicator_t communicator) {
  const std::lock_guard<std::mutex> lock(last().lock);
  last().communicators.push_back(communicator);
}

void forget_communicator(otr_communicator_t communicator) noexcept {
  const std::lock_guard<std::mutex> lock(last().lock);
  auto& all = last().communicators;
  all.erase(std::remove(all.begin(), all.end(), communicator), all.end());
}

std::string why_peers_were_lost() {
  std::vector<otr_communicator_t> communicators;
  std::string text;
  {
    const std::lock_guard<std::mutex> lock(last().lock);
    communicators = last().communicators;
    text = last().text;
  }
  for (const otr_communicator_t communicator : communicators) {
    otr_status_t* status = otr_communicator_query(communicator);
    // One that was destroyed meanwhile has nothing to say.
    if (status != nullptr && otr_status_code(status) != OTR_ERR_INVALID_HANDLE) {
      text = otr_status_message(status);
    }
    otr_status_free(status);
  }
  return text.empty() ? text : ": " + text;
}

}  // namespace outrigger
