//! The tasks of held.h as host calls. Their functions must never throw, because the runtime calls them.

#include "held.h"

#include "runtime.h"

#include <thread>

namespace outrigger {
namespace {

struct HoldTask {
  std::shared_ptr<Held> held;
  std::chrono::milliseconds limit;
};

otr_code_t run_hold(void* user, otr_code_t upstream) noexcept {
  const std::unique_ptr<HoldTask> task(static_cast<HoldTask*>(user));
  if (upstream == OTR_OK) {
    task->held->wait(task->limit);
  }
  return upstream;
}

otr_code_t run_sleep(void* user, otr_code_t upstream) noexcept {
  const std::unique_ptr<std::chrono::milliseconds> duration(static_cast<std::chrono::milliseconds*>(user));
  if (upstream == OTR_OK) {
    std::this_thread::sleep_for(*duration);
  }
  return upstream;
}

otr_code_t run_failure(void*, otr_code_t) noexcept {
  return OTR_ERR_EXECUTION;
}

// Gives `task` to a host call, which owns it once the call has succeeded.
template <class Task>
void queue(otr_stream_t stream, otr_host_fn function, std::unique_ptr<Task> task) {
  check(otr_host_call(stream, function, task.get()));
  task.release();
}

}  // namespace

void Held::wait(std::chrono::milliseconds limit) noexcept {
  std::unique_lock<std::mutex> lock(lock_);
  expired_ = !changed_.wait_for(lock, limit, [this] { return released_; });
}

bool Held::release() noexcept {
  const std::lock_guard<std::mutex> lock(lock_);
  released_ = true;
  changed_.notify_all();
  return !expired_;
}

std::shared_ptr<Held> queue_hold(otr_stream_t stream, std::chrono::milliseconds limit) {
  auto held = std::make_shared<Held>();
  queue(stream, &run_hold, std::make_unique<HoldTask>(HoldTask{held, limit}));
  return held;
}

void queue_sleep(otr_stream_t stream, std::chrono::milliseconds duration) {
  queue(stream, &run_sleep, std::make_unique<std::chrono::milliseconds>(duration));
}

void queue_failure(otr_stream_t stream) {
  check(otr_host_call(stream, &run_failure, nullptr));
}

}  // namespace outrigger
