//! The failures of groups. Nothing here may throw where a stream calls it, and nothing calls the runtime.

#include "peer_failure.h"

namespace outrigger {
namespace {

struct Last {
  std::mutex lock;
  std::string text;
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

std::string last_peer_failure() {
  const std::lock_guard<std::mutex> lock(last().lock);
  return last().text.empty() ? std::string() : ". The latest: " + last().text;
}

}  // namespace outrigger
