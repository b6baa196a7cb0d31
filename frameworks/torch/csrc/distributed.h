//! torch.distributed with device tensors: the backend of a group of ranks. Each call is submitted to a stream of the
//! group and returns at once: to the driver where that has collectives, else to Gloo. It must never read or write
//! device memory outside of a stream's order.
#pragma once

#include "distributed_driver.h"
#include "distributed_gloo.h"
#include "distributed_work.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace outrigger {

/// The part that moves the data of a group.
enum class Engine {
  /// The driver where it can, else Gloo.
  kAny,
  /// The driver; what it cannot do is refused.
  kDriver,
  kGloo,
};

/// Parts that a group is made of.
struct GroupParts {
  /// Keys of this group alone.
  c10::intrusive_ptr<c10d::Store> store;
  /// Gloo, with the same ranks.
  c10::intrusive_ptr<c10d::Backend> gloo;
  std::chrono::milliseconds timeout;
  std::string name;
  c10::DeviceType type;
  Engine engine;
};

/// The ranks of one group. Submitted calls are in the same order on all ranks, as everywhere in torch.
class DeviceGroup final : public c10d::Backend {
 public:
  explicit DeviceGroup(GroupParts parts);
  ~DeviceGroup() override;

  const std::string getBackendName() const override {
    return "outrigger";
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return options_;
  }
  void setTimeout(std::chrono::milliseconds timeout) override;
  uint64_t getSequenceNumberForGroup() override;
  bool supportsCoalescing() const override {
    return true;
  }
  /// Not of a group that is bound to a device: torch then expects calls of NCCL from ranks that are not in the new one.
  bool supportsSplitting() const override;
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override;
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  /// Makes the communicator of the driver now instead of at the first collective. All ranks do.
  void connect(c10::Device device);

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(
      std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int rank, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int rank, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  /// Waits for submitted work, whose failures are no error here, and gives everything back.
  void shutdown() override;
  /// Has work that waits fail, on every rank that the driver or Gloo can tell.
  void abort() override;

 private:
  using Tensors = std::vector<at::Tensor>;
  using Reduction = c10d::ReduceOp;

  // The streams of a group on one device, and the driver's engine there.
  struct Lane {
    c10::DeviceIndex device = -1;
    // Collectives, in the order of the calls.
    otr_stream_t stream = 0;
    // Sends and receives over Gloo, by the other rank (-1: any) and the direction: they wait for one another only
    // where both ends do.
    std::map<std::pair<int, bool>, otr_stream_t> transfers;
    // Behind all calls of a batch: the others do not wait for it.
    otr_stream_t batches = 0;
    std::unique_ptr<DriverEngine> driver;
    // Of the call that is being submitted.
    std::chrono::milliseconds timeout{0};
    // Whether the driver was asked for its engine.
    bool decided = false;
    // The reason why the driver has no engine.
    std::string why;
  };

  // A send or a receive that waits for the end of a batch.
  struct Transfer {
    at::Tensor tensor;
    int rank;
    bool send;
  };

  // The calls between startCoalescing and endCoalescing, all on one device.
  struct Batch {
    // Of the last call.
    std::optional<WorkInfo> info;
    // The ends of what was submitted.
    Points points;
    Tensors outputs;
    // Sends and receives that the driver gets at the end.
    std::vector<Transfer> transfers;
  };

  // One call: streams in order, memory recorded, `body` with the group's stream as the current one.
  template <class Body>
  c10::intrusive_ptr<c10d::Work> submit(
      WorkInfo info, otr_stream_t stream, const Tensors& used, Tensors outputs, const Body& body);
  // The same on the stream of collectives.
  template <class Body>
  c10::intrusive_ptr<c10d::Work> collective(WorkInfo info, const Tensors& used, Tensors outputs, const Body& body);

  Lane& lane_of(c10::Device device);
  void decide(Lane& lane, c10::Device device);
  // Notes a call of the open batch, if there is one.
  void add_to_batch(const WorkInfo& info);
  // Checks that a call can be made with these tensors, and describes it.
  WorkInfo begin(c10d::OpType type, const Tensors& used);
  WorkInfo begin_on(c10d::OpType type, c10::Device device);
  // Throws where the driver alone may serve.
  void refuse_gloo(const char* name, const Lane& lane, const std::string& what) const;
  void close_lanes() noexcept;

  void all_reduce_on(Lane& lane, const at::Tensor& tensor, const Reduction& how);
  void reduce_on(Lane& lane, const at::Tensor& tensor, const Reduction& how, int root);
  void reduce_scatter_on(Lane& lane, const at::Tensor& output, const at::Tensor& input, const Reduction& how);
  void all_gather_on(Lane& lane, const at::Tensor& output, const at::Tensor& input);
  // Tensors to send to each rank, and to receive from each; undefined where there is nothing.
  struct Parts {
    Tensors sent;
    Tensors received;
    // Tensors that hold all parts one behind the other, where there are such.
    at::Tensor all_sent;
    at::Tensor all_received;
  };
  void exchange_on(Lane& lane, const char* name, const Parts& parts);
  c10::intrusive_ptr<c10d::Work> transfer(c10d::OpType type, std::vector<at::Tensor>& tensors, int rank, int tag);
  c10::intrusive_ptr<c10d::Work> transfer_over_gloo(WorkInfo info, const at::Tensor& tensor, int rank, int tag);
  c10::intrusive_ptr<c10d::Work> transfer_over_driver(WorkInfo info, const std::vector<Transfer>& transfers);

  const GroupParts parts_;
  const c10::intrusive_ptr<Options> options_;
  const std::shared_ptr<PeerFailure> failure_ = std::make_shared<PeerFailure>();
  GlooEngine gloo_;
  // Held over the submission of a call, so that two threads do not mix theirs; and by the first collective, while it
  // waits for the other ranks.
  std::mutex lock_;
  std::map<c10::DeviceIndex, Lane> lanes_;
  // The collective before this one, and its device: those on another device come behind it.
  std::shared_ptr<const Point> last_;
  c10::DeviceIndex last_device_ = -1;
  std::chrono::milliseconds timeout_;
  std::atomic<uint64_t> sequence_ = 0;
  bool closed_ = false;
  std::optional<Batch> batch_;
};

}  // namespace outrigger
