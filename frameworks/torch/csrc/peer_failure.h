//! The reason why ranks lost one another. A function that runs in stream order can fail its stream with a code alone,
//! so the reason is kept here, for the error that the host meets when it waits for the stream.
#pragma once

#include <outrigger/outrigger.h>

#include <mutex>
#include <string>

namespace outrigger {

/// The first failure of a group of ranks.
class PeerFailure {
 public:
  /// Keeps the text unless there is one. `why_peers_were_lost` knows it from now on.
  void note(const std::string& text) noexcept;

  /// Empty as long as nothing has failed.
  std::string text() const;

 private:
  mutable std::mutex lock_;
  std::string text_;
};

/// Has `why_peers_were_lost` ask a communicator. A stream that waited for another one knows no more than the code.
void watch_communicator(otr_communicator_t communicator);

/// Has `why_peers_were_lost` ask a communicator no more.
void forget_communicator(otr_communicator_t communicator) noexcept;

/// The failure as communicators tell it, else the latest one of a group. The text continues another one; empty if
/// nothing is known.
std::string why_peers_were_lost();

}  // namespace outrigger
