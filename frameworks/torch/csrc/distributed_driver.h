//! Collectives of the driver: one communicator, for one group of ranks on one device. Where the driver cannot do
//! something, the answer is false, on all ranks, and nothing was done.
#pragma once

#include "runtime.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <memory>
#include <vector>

namespace outrigger {

/// The device and the rank for which a communicator is made.
struct Membership {
  c10::DeviceIndex device;
  int rank;
  int size;
  std::chrono::milliseconds timeout;
};

/// A rank of a communicator. The tensors of its calls are dense.
class DriverEngine {
 public:
  /// Joins the other ranks, which find one another by `store`. Waits for them. None if the driver of a rank has no
  /// communicators; `why` then says whose.
  static std::unique_ptr<DriverEngine> join(c10d::Store& store, const Membership& membership, std::string& why);
  ~DriverEngine();
  DriverEngine(const DriverEngine&) = delete;
  DriverEngine& operator=(const DriverEngine&) = delete;

  bool all_reduce(otr_stream_t stream, const at::Tensor& tensor, c10d::ReduceOp::RedOpType how);
  bool reduce(otr_stream_t stream, const at::Tensor& tensor, c10d::ReduceOp::RedOpType how, int root);
  bool reduce_scatter(
      otr_stream_t stream, const at::Tensor& out, const at::Tensor& in, c10d::ReduceOp::RedOpType how);
  bool broadcast(otr_stream_t stream, const at::Tensor& tensor, int root);
  bool all_gather(otr_stream_t stream, const at::Tensor& out, const at::Tensor& in);
  bool exchange(otr_stream_t stream, const std::vector<otr_transfer_t>& transfers);

  /// Has its work fail, on every rank.
  void abort();

 private:
  explicit DriverEngine(otr_communicator_t communicator) : communicator_(communicator) {}

  const otr_communicator_t communicator_;
};

}  // namespace outrigger
