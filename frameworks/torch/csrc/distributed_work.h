//! The object that a collective hands out: work that has been submitted to streams. Waiting for it orders the current
//! stream behind it; the host waits only where the caller says so. It must never keep tensors from being freed: the
//! allocator knows the streams that use them.
#pragma once

#include "peer_failure.h"
#include "runtime.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

namespace outrigger {

/// A point of a stream.
class Point {
 public:
  /// The end of all work that the stream has by now.
  Point(c10::DeviceIndex device, otr_stream_t stream);
  ~Point();
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;

  /// Has later work of a stream wait.
  void order(otr_stream_t stream) const;
  /// Whether the point has passed. Throws the failure of the work before it.
  bool passed() const;
  /// Waits. Throws the failure of the work before it.
  void wait() const;

 private:
  otr_event_t event_ = 0;
};

/// Points of several streams.
using Points = std::vector<std::shared_ptr<const Point>>;

/// The name that torch.distributed has for an operation.
const char* name_of(c10d::OpType type);

/// The description of work, for messages and waits.
struct WorkInfo {
  c10::Device device;
  int rank;
  c10d::OpType type;
  uint64_t sequence;
  std::chrono::milliseconds timeout;
  std::shared_ptr<PeerFailure> failure;
  /// Whether `wait` also has the host wait, as that of a barrier does.
  bool host_waits = false;
  /// The rank whose data came, of a receive from any rank.
  std::shared_ptr<std::atomic<int>> source;
};

/// One submitted collective, or several.
class DeviceWork final : public c10d::Work {
 public:
  /// `points` are behind all of its work. So is the current stream of this thread, on which the future is complete.
  DeviceWork(WorkInfo info, Points points, std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  int sourceRank() const override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override {
    return outputs_;
  }
  void synchronize() override;
  void blockCurrentStream() override {
    synchronize();
  }
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }
  uint64_t getSequencenumber() const override {
    return info_.sequence;
  }

 private:
  // Whether all has finished; throws a failure.
  bool passed() const;

  const WorkInfo info_;
  const Points points_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace outrigger
