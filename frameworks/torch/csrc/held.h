//! Tasks that tests queue on a stream to prove its order: one that waits for a signal, one that sleeps,
//! one that fails. They must never wait without a limit: a test that goes wrong has to end.
#pragma once

#include <outrigger/outrigger.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace outrigger {

/// The signal that a held stream waits for.
class Held {
 public:
  /// Waits for `release`, or until `limit` has passed.
  void wait(std::chrono::milliseconds limit) noexcept;

  /// Lets the task end. False if it had given up before.
  bool release() noexcept;

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  bool released_ = false;
  bool expired_ = false;
};

/// Queues a task that ends when the result is released, or after `limit`.
std::shared_ptr<Held> queue_hold(otr_stream_t stream, std::chrono::milliseconds limit);

/// Queues a task that takes this long.
void queue_sleep(otr_stream_t stream, std::chrono::milliseconds duration);

/// Queues a task that fails with OTR_ERR_EXECUTION.
void queue_failure(otr_stream_t stream);

}  // namespace outrigger
