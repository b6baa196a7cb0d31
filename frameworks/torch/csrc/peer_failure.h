//! Why ranks lost one another, in words. A function that runs in stream order can fail its stream with a code alone,
//! so the reason is kept here, for the error that the host meets when it waits for the stream.
#pragma once

#include <mutex>
#include <string>

namespace outrigger {

/// The first failure of a group of ranks.
class PeerFailure {
 public:
  /// Keeps the text unless there is one. Also what `last_peer_failure` gives from now on.
  void note(const std::string& text) noexcept;

  /// Empty as long as nothing has failed.
  std::string text() const;

 private:
  mutable std::mutex lock_;
  std::string text_;
};

/// The latest failure of any group of this process, to go on with behind a text; empty if there was none.
std::string last_peer_failure();

}  // namespace outrigger
