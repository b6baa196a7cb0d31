//! The calls of a group: which streams they use, and who moves the data. Lists of tensors become one
//! flat tensor, in the order of the group's stream.

#include "distributed.h"

#include "capture.h"
#include "distributed_checks.h"
#include "memory.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

namespace outrigger {
namespace {

using c10d::OpType;
using Work = c10::intrusive_ptr<c10d::Work>;

// A stream, which is made when it is needed first.
otr_stream_t made(otr_stream_t& stream, c10::DeviceIndex device) {
  if (stream == 0) {
    check(otr_stream_create(static_cast<uint32_t>(device), 0, &stream));
  }
  return stream;
}

// Orders what a stream gets from now on behind what another has.
void order(otr_stream_t later, otr_stream_t earlier, c10::DeviceIndex device) {
  Point(device, earlier).order(later);
}

}  // namespace

DeviceGroup::DeviceGroup(GroupParts parts)
    : Backend(parts.gloo->getRank(), parts.gloo->getSize()),
      parts_(std::move(parts)),
      options_(c10::make_intrusive<Options>("outrigger", parts_.timeout)),
      gloo_(parts_.gloo, parts_.name, failure_),
      timeout_(parts_.timeout) {
  options_->group_name = parts_.name;
  options_->global_ranks_in_group = gloo_.gloo().getBackendOptions()->global_ranks_in_group;
  init();
}

DeviceGroup::~DeviceGroup() {
  close_lanes();
}

void DeviceGroup::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  options_->timeout = timeout;
  gloo_.gloo().setTimeout(timeout);
}

uint64_t DeviceGroup::getSequenceNumberForGroup() {
  return sequence_;
}

bool DeviceGroup::supportsSplitting() const {
  const std::optional<at::Device> bound = getBoundDeviceId();
  return !bound.has_value() || !is_ours(bound->type());
}

c10::intrusive_ptr<c10d::Backend> DeviceGroup::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) {
    return nullptr;
  }
  const c10::intrusive_ptr<Options> of_gloo = copy_of(gloo_.gloo().getBackendOptions());
  of_gloo->timeout = options->timeout;
  of_gloo->group_name = options->group_name;
  of_gloo->global_ranks_in_group = options->global_ranks_in_group;
  return c10::make_intrusive<DeviceGroup>(GroupParts{
      c10::make_intrusive<c10d::PrefixStore>("device", store->clone()),
      gloo_.gloo().split(c10::make_intrusive<c10d::PrefixStore>("gloo", store), ranks, of_gloo),
      options->timeout,
      options->group_name,
      parts_.type,
      parts_.engine,
  });
}

// ---- devices and streams --------------------------------------------------------------------------

DeviceGroup::Lane& DeviceGroup::lane_of(c10::Device device) {
  Lane& lane = lanes_[device.index()];
  lane.device = device.index();
  made(lane.stream, device.index());
  return lane;
}

void DeviceGroup::decide(Lane& lane, c10::Device device) {
  if (lane.decided) {
    return;
  }
  if (parts_.engine != Engine::kGloo) {
    // All ranks make their communicators in the same order, on whichever devices they are.
    const auto number = std::count_if(lanes_.begin(), lanes_.end(), [](const auto& entry) {
      return entry.second.decided;
    });
    // Waiting would hold up all others on the connection of the store.
    auto store = c10::make_intrusive<c10d::PrefixStore>(c10::str("lane/", number), parts_.store->clone());
    store->setTimeout(timeout_);
    lane.driver = DriverEngine::join(*store, {device.index(), rank_, size_, timeout_}, lane.why);
  }
  lane.decided = true;
}

void DeviceGroup::connect(c10::Device device) {
  const std::lock_guard<std::mutex> lock(lock_);
  check_device(device.index());
  decide(lane_of(device), device);
}

WorkInfo DeviceGroup::begin(OpType type, const Tensors& used) {
  const char* name = name_of(type);
  const c10::Device device = used.at(0).device();
  for (const at::Tensor& tensor : used) {
    TORCH_CHECK(
        is_ours(tensor) && tensor.device() == device, who(), name, ": a tensor on ",
        tensor.device(), " and one on ", device, "; all of a call are on one device of type ", parts_.type);
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.layout() == c10::Layout::Strided && tensor.is_non_overlapping_and_dense(), who(), name,
        ": only dense tensors can be sent; give tensor.contiguous()");
  }
  WorkInfo info = begin_on(type, device);
  for (const at::Tensor& tensor : used) {
    own_memory_of(tensor);
  }
  return info;
}

WorkInfo DeviceGroup::begin_on(OpType type, c10::Device device) {
  const char* name = name_of(type);
  TORCH_CHECK(!closed_, who(), name, ": the group ", parts_.name, " was destroyed");
  const std::string failure = failure_->text();
  TORCH_CHECK_WITH(
      DistBackendError, failure.empty(), who(), name, ": the group ", parts_.name,
      " does not work any more. Destroy it, and make one of the ranks that are left. What had happened: ", failure);
  const otr_stream_t stream = current_stream(device.index());
  if (C10_UNLIKELY(is_capturing(stream))) {
    refuse_capture(
        stream, name, "ranks replay their graphs at times of their own. Capture what lies between the collectives");
  }
  return WorkInfo{device, rank_, type, ++sequence_, timeout_, failure_, false, nullptr};
}

void DeviceGroup::refuse_gloo(const char* name, const Lane& lane, const std::string& what) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      parts_.engine != Engine::kDriver, who(), name, ": the driver alone may move data (OUTRIGGER_DISTRIBUTED=driver), ",
      lane.driver == nullptr ? "and it takes no part: " + (lane.decided ? lane.why : "no collective has made the "
      "communicator yet; give init_process_group a device_id") : "and it cannot do this for " + what);
}

template <class Body>
Work DeviceGroup::submit(
    WorkInfo info, otr_stream_t stream, const Tensors& used, Tensors outputs, const Body& body) {
  add_to_batch(info);
  order(stream, current_stream(info.device.index()), info.device.index());
  const c10::StreamGuard guard(torch_stream(stream, info.device));
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const at::Tensor& tensor : used) {
    if (tensor.nbytes() != 0) {
      record_stream(tensor.storage().data_ptr(), stream);
    }
  }
  body();
  auto point = std::make_shared<const Point>(info.device.index(), stream);
  if (batch_.has_value()) {
    batch_->points.push_back(point);
    batch_->outputs = joined(std::move(batch_->outputs), outputs);
  }
  return c10::make_intrusive<DeviceWork>(std::move(info), Points{point}, std::move(outputs));
}

template <class Body>
Work DeviceGroup::collective(WorkInfo info, const Tensors& used, Tensors outputs, const Body& body) {
  const std::lock_guard<std::mutex> lock(lock_);
  const c10::Device device = info.device;
  Lane& lane = lane_of(device);
  if (info.type != OpType::BARRIER) {
    decide(lane, device);
  }
  if (last_ != nullptr && last_device_ != device.index()) {
    last_->order(lane.stream);
  }
  lane.timeout = info.timeout;
  Work work = submit(std::move(info), lane.stream, used, std::move(outputs), [&] { body(lane); });
  last_ = std::make_shared<const Point>(device.index(), lane.stream);
  last_device_ = device.index();
  return work;
}

// ---- what each collective is made of --------------------------------------------------------------

void DeviceGroup::all_reduce_on(Lane& lane, const at::Tensor& tensor, const Reduction& how) {
  if (how.op_ == Reduction::PREMUL_SUM) {
    tensor.copy_(scaled(tensor, how));
    return all_reduce_on(lane, tensor, Reduction::SUM);
  }
  if (adds_parts(tensor, how)) {
    return all_reduce_on(lane, at::view_as_real(tensor), how);
  }
  if (tensor.numel() == 0 || (lane.driver && lane.driver->all_reduce(lane.stream, tensor, how))) {
    return;
  }
  refuse_gloo("all_reduce", lane, c10::toString(tensor.scalar_type()));
  if (!GlooEngine::combines(tensor.scalar_type(), how)) {
    const at::Tensor wide = tensor.to(stand_in("all_reduce", tensor.scalar_type(), how));
    all_reduce_on(lane, wide, how);
    tensor.copy_(wide);
    return;
  }
  HostImages images(lane.device, lane.stream);
  const at::Tensor image = images.elements(tensor, true, true);
  gloo_.submit(
      lane.stream, images, "all_reduce", [image, how, timeout = lane.timeout](c10d::Backend& gloo) {
        Tensors tensors{image};
        c10d::AllreduceOptions options;
        options.timeout = timeout;
        options.reduceOp = how;
        gloo.allreduce(tensors, options)->wait();
      });
}

void DeviceGroup::reduce_on(Lane& lane, const at::Tensor& tensor, const Reduction& how, int root) {
  if (how.op_ == Reduction::PREMUL_SUM) {
    tensor.copy_(scaled(tensor, how));
    return reduce_on(lane, tensor, Reduction::SUM, root);
  }
  if (adds_parts(tensor, how)) {
    return reduce_on(lane, at::view_as_real(tensor), how, root);
  }
  if (tensor.numel() == 0 || (lane.driver && lane.driver->reduce(lane.stream, tensor, how, root))) {
    return;
  }
  refuse_gloo("reduce", lane, c10::toString(tensor.scalar_type()));
  if (!GlooEngine::combines(tensor.scalar_type(), how)) {
    const at::Tensor wide = tensor.to(stand_in("reduce", tensor.scalar_type(), how));
    reduce_on(lane, wide, how, root);
    tensor.copy_(wide);
    return;
  }
  HostImages images(lane.device, lane.stream);
  const at::Tensor image = images.elements(tensor, true, true);
  gloo_.submit(
      lane.stream, images, "reduce", [image, how, root, timeout = lane.timeout](c10d::Backend& gloo) {
        Tensors tensors{image};
        c10d::ReduceOptions options;
        options.timeout = timeout;
        options.reduceOp = how;
        options.rootRank = root;
        gloo.reduce(tensors, options)->wait();
      });
}

void DeviceGroup::reduce_scatter_on(
    Lane& lane, const at::Tensor& output, const at::Tensor& input, const Reduction& how) {
  if (how.op_ == Reduction::PREMUL_SUM) {
    return reduce_scatter_on(lane, output, scaled(input, how), Reduction::SUM);
  }
  if (adds_parts(input, how)) {
    return reduce_scatter_on(lane, at::view_as_real(output), at::view_as_real(input), how);
  }
  if (input.numel() == 0 || (lane.driver && lane.driver->reduce_scatter(lane.stream, output, input, how))) {
    return;
  }
  refuse_gloo("reduce_scatter", lane, c10::toString(input.scalar_type()));
  if (!GlooEngine::combines(input.scalar_type(), how)) {
    const c10::ScalarType type = stand_in("reduce_scatter", input.scalar_type(), how);
    const at::Tensor wide = at::empty(output.sizes(), output.options().dtype(type));
    reduce_scatter_on(lane, wide, input.to(type), how);
    output.copy_(wide);
    return;
  }
  HostImages images(lane.device, lane.stream);
  const at::Tensor in = images.elements(input, true, false), out = images.elements(output, false, true);
  gloo_.submit(lane.stream, images, "reduce_scatter", [in, out, how, timeout = lane.timeout](c10d::Backend& gloo) {
    at::Tensor to = out, from = in;
    c10d::ReduceScatterOptions options;
    options.timeout = timeout;
    options.reduceOp = how;
    gloo._reduce_scatter_base(to, from, options)->wait();
  });
}

void DeviceGroup::all_gather_on(Lane& lane, const at::Tensor& output, const at::Tensor& input) {
  if (input.numel() == 0 || (lane.driver && lane.driver->all_gather(lane.stream, output, input))) {
    return;
  }
  refuse_gloo("all_gather", lane, c10::toString(input.scalar_type()));
  HostImages images(lane.device, lane.stream);
  const at::Tensor in = images.bytes(input, true, false), out = images.bytes(output, false, true);
  gloo_.submit(lane.stream, images, "all_gather", [in, out, timeout = lane.timeout](c10d::Backend& gloo) {
    at::Tensor to = out, from = in;
    c10d::AllgatherOptions options;
    options.timeout = timeout;
    gloo._allgather_base(to, from, options)->wait();
  });
}

void DeviceGroup::exchange_on(Lane& lane, const char* name, const Parts& parts) {
  if (lane.driver) {
    std::vector<otr_transfer_t> transfers;
    const auto add = [&](const at::Tensor& tensor, size_t rank, uint32_t direction) {
      if (tensor.defined()) {
        const otr_address_t address = direction == OTR_TRANSFER_SEND ? address_of(tensor.const_data_ptr())
                                                                     : written_address(tensor);
        transfers.push_back({address, tensor.nbytes(), static_cast<uint32_t>(rank), direction});
      }
    };
    for (size_t rank = 0; rank < parts.sent.size(); ++rank) {
      add(parts.sent[rank], rank, OTR_TRANSFER_SEND);
      add(parts.received[rank], rank, OTR_TRANSFER_RECEIVE);
    }
    if (lane.driver->exchange(lane.stream, transfers)) {
      return;
    }
  }
  refuse_gloo(name, lane, "any data");
  HostImages images(lane.device, lane.stream);
  const bool whole = is_host_visible(lane.device) && parts.all_sent.defined();
  const at::Tensor in = whole ? images.bytes(parts.all_sent, true, false) : images.joined(parts.sent, true, false);
  const at::Tensor out =
      whole ? images.bytes(parts.all_received, false, true) : images.joined(parts.received, false, true);
  gloo_.submit(
      lane.stream, images, name,
      [in, out, given = bytes_of(parts.sent), taken = bytes_of(parts.received),
       timeout = lane.timeout](c10d::Backend& gloo) {
        at::Tensor to = out, from = in;
        c10d::AllToAllOptions options;
        options.timeout = timeout;
        std::vector<int64_t> input_sizes = given, output_sizes = taken;
        gloo.alltoall_base(to, from, output_sizes, input_sizes, options)->wait();
      });
}

// ---- collectives ------------------------------------------------------------------------------------

Work DeviceGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  WorkInfo info = begin(OpType::BROADCAST, tensors);
  info.timeout = limit(options.timeout, timeout_);
  const at::Tensor tensor = only("broadcast", tensors);
  const int root = root_of("broadcast", options.rootRank, size_);
  return collective(std::move(info), tensors, tensors, [&](Lane& lane) {
    if (tensor.numel() == 0 || (lane.driver && lane.driver->broadcast(lane.stream, tensor, root))) {
      return;
    }
    refuse_gloo("broadcast", lane, "any data");
    HostImages images(lane.device, lane.stream);
    const at::Tensor image = images.bytes(tensor, rank_ == root, rank_ != root);
    gloo_.submit(lane.stream, images, "broadcast", [image, root, timeout = lane.timeout](c10d::Backend& gloo) {
      Tensors list{image};
      c10d::BroadcastOptions options;
      options.timeout = timeout;
      options.rootRank = root;
      gloo.broadcast(list, options)->wait();
    });
  });
}

Work DeviceGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  only("all_reduce", tensors);
  WorkInfo info = begin(OpType::ALLREDUCE, tensors);
  info.timeout = limit(options.timeout, timeout_);
  return collective(std::move(info), tensors, tensors, [&](Lane& lane) {
    all_reduce_on(lane, tensors[0], options.reduceOp);
  });
}

Work DeviceGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  WorkInfo info = begin(OpType::ALLREDUCE_COALESCED, tensors);
  info.timeout = limit(options.timeout, timeout_);
  return collective(std::move(info), tensors, tensors, [&](Lane& lane) {
    for (const at::Tensor& tensor : tensors) {
      all_reduce_on(lane, tensor, options.reduceOp);
    }
  });
}

Work DeviceGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  only("reduce", tensors);
  const int root = root_of("reduce", options.rootRank, size_);
  WorkInfo info = begin(OpType::REDUCE, tensors);
  info.timeout = limit(options.timeout, timeout_);
  return collective(std::move(info), tensors, tensors, [&](Lane& lane) {
    reduce_on(lane, tensors[0], options.reduceOp, root);
  });
}

Work DeviceGroup::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr const char* kName = "all_gather";
  const at::Tensor input = only(kName, inputs);
  const Tensors list = only_list(kName, outputs, static_cast<size_t>(size_));
  WorkInfo info = begin(OpType::ALLGATHER, joined(inputs, list));
  info.timeout = limit(options.timeout, timeout_);
  for (const at::Tensor& output : list) {
    check_same(kName, output, input);
  }
  return collective(std::move(info), joined(inputs, list), list, [&](Lane& lane) {
    const at::Tensor all = at::empty({size_, input.numel()}, input.options());
    all_gather_on(lane, all, input.contiguous());
    for (int rank = 0; rank < size_; ++rank) {
      list[static_cast<size_t>(rank)].copy_(all.select(0, rank).view(input.sizes()));
    }
  });
}

Work DeviceGroup::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  WorkInfo info = begin(OpType::_ALLGATHER_BASE, {input, output});
  info.timeout = limit(options.timeout, timeout_);
  const char* name = name_of(info.type);
  check_whole(name, output, input, size_);
  return collective(std::move(info), {input, output}, {output}, [&](Lane& lane) {
    all_gather_on(lane, output, input);
  });
}

Work DeviceGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  WorkInfo info = begin(kAllGatherCoalesced<OpType>, joined(inputs, outputs));
  info.timeout = limit(options.timeout, timeout_);
  const char* name = name_of(info.type);
  TORCH_CHECK(inputs.size() == outputs.size(), who(), name, ": ", inputs.size(), " inputs, and ", outputs.size(), " outputs");
  for (size_t index = 0; index < inputs.size(); ++index) {
    check_whole(name, outputs[index], inputs[index], size_);
  }
  return collective(std::move(info), joined(inputs, outputs), outputs, [&](Lane& lane) {
    for (size_t index = 0; index < inputs.size(); ++index) {
      all_gather_on(lane, outputs[index], inputs[index]);
    }
  });
}

Work DeviceGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  constexpr const char* kName = "gather";
  const at::Tensor input = only(kName, inputs);
  const bool root = root_of(kName, options.rootRank, size_) == rank_;
  const Tensors list = root ? only_list(kName, outputs, static_cast<size_t>(size_)) : Tensors{};
  TORCH_CHECK(root || outputs.empty(), who(), kName, ": rank ", options.rootRank, " alone gives tensors for the result");
  WorkInfo info = begin(OpType::GATHER, joined(inputs, list));
  info.timeout = limit(options.timeout, timeout_);
  for (const at::Tensor& output : list) {
    check_same(kName, output, input);
  }
  return collective(std::move(info), joined(inputs, list), list, [&](Lane& lane) {
    Parts parts{Tensors(static_cast<size_t>(size_)), root ? list : Tensors(static_cast<size_t>(size_)), {}, {}};
    parts.sent[static_cast<size_t>(options.rootRank)] = input;
    exchange_on(lane, kName, parts);
  });
}

Work DeviceGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  constexpr const char* kName = "scatter";
  const at::Tensor output = only(kName, outputs);
  const bool root = root_of(kName, options.rootRank, size_) == rank_;
  const Tensors list = root ? only_list(kName, inputs, static_cast<size_t>(size_)) : Tensors{};
  TORCH_CHECK(root || inputs.empty(), who(), kName, ": rank ", options.rootRank, " alone gives tensors to send");
  WorkInfo info = begin(OpType::SCATTER, joined(outputs, list));
  info.timeout = limit(options.timeout, timeout_);
  for (const at::Tensor& input : list) {
    check_same(kName, input, output);
  }
  return collective(std::move(info), joined(outputs, list), outputs, [&](Lane& lane) {
    Parts parts{root ? list : Tensors(static_cast<size_t>(size_)), Tensors(static_cast<size_t>(size_)), {}, {}};
    parts.received[static_cast<size_t>(options.rootRank)] = output;
    exchange_on(lane, kName, parts);
  });
}

Work DeviceGroup::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  constexpr const char* kName = "reduce_scatter";
  const at::Tensor output = only(kName, outputs);
  const Tensors list = only_list(kName, inputs, static_cast<size_t>(size_));
  WorkInfo info = begin(OpType::REDUCE_SCATTER, joined(outputs, list));
  info.timeout = limit(options.timeout, timeout_);
  check_contiguous(kName, output);
  for (const at::Tensor& input : list) {
    check_same(kName, input, output);
  }
  return collective(std::move(info), joined(outputs, list), outputs, [&](Lane& lane) {
    Tensors flat;
    for (const at::Tensor& input : list) {
      flat.push_back(input.reshape({-1}));
    }
    reduce_scatter_on(lane, output, at::cat(flat), options.reduceOp);
  });
}

Work DeviceGroup::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  WorkInfo info = begin(OpType::_REDUCE_SCATTER_BASE, {input, output});
  info.timeout = limit(options.timeout, timeout_);
  const char* name = name_of(info.type);
  check_whole(name, input, output, size_);
  return collective(std::move(info), {input, output}, {output}, [&](Lane& lane) {
    reduce_scatter_on(lane, output, input, options.reduceOp);
  });
}

Work DeviceGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  WorkInfo info = begin(kReduceScatterCoalesced<OpType>, joined(inputs, outputs));
  info.timeout = limit(options.timeout, timeout_);
  const char* name = name_of(info.type);
  TORCH_CHECK(inputs.size() == outputs.size(), who(), name, ": ", inputs.size(), " inputs, and ", outputs.size(), " outputs");
  for (size_t index = 0; index < inputs.size(); ++index) {
    check_whole(name, inputs[index], outputs[index], size_);
  }
  return collective(std::move(info), joined(inputs, outputs), outputs, [&](Lane& lane) {
    for (size_t index = 0; index < inputs.size(); ++index) {
      reduce_scatter_on(lane, outputs[index], inputs[index], options.reduceOp);
    }
  });
}

Work DeviceGroup::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
    const c10d::AllToAllOptions& options) {
  WorkInfo info = begin(OpType::ALLTOALL_BASE, {input, output});
  info.timeout = limit(options.timeout, timeout_);
  const char* name = name_of(info.type);
  check_contiguous(name, input);
  check_contiguous(name, output);
  const Parts parts{
      split_rows(name, input, input_sizes, size_), split_rows(name, output, output_sizes, size_), input, output};
  return collective(std::move(info), {input, output}, {output}, [&](Lane& lane) { exchange_on(lane, name, parts); });
}

Work DeviceGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  constexpr const char* kName = "all_to_all";
  TORCH_CHECK(
      static_cast<int>(inputs.size()) == size_ && static_cast<int>(outputs.size()) == size_, who(), kName, ": ",
      inputs.size(), " inputs and ", outputs.size(), " outputs in a group of ", size_, " ranks: one for each is needed");
  WorkInfo info = begin(OpType::ALLTOALL, joined(inputs, outputs));
  info.timeout = limit(options.timeout, timeout_);
  return collective(std::move(info), joined(inputs, outputs), outputs, [&](Lane& lane) {
    exchange_on(lane, kName, {inputs, outputs, {}, {}});
  });
}

Work DeviceGroup::barrier(const c10d::BarrierOptions& options) {
  c10::Device device(parts_.type, current_device());
  if (options.device.has_value() && is_ours(options.device->type()) && options.device->has_index()) {
    device = *options.device;
  } else if (!options.device_ids.empty()) {
    device.set_index(static_cast<c10::DeviceIndex>(options.device_ids[0]));
  }
  WorkInfo info = begin_on(OpType::BARRIER, device);
  info.timeout = limit(options.timeout, timeout_);
  info.host_waits = true;
  return collective(std::move(info), {}, {}, [&](Lane& lane) {
    HostImages nothing(lane.device, lane.stream);
    gloo_.submit(lane.stream, nothing, "barrier", [timeout = lane.timeout](c10d::Backend& gloo) {
      c10d::BarrierOptions own;
      own.timeout = timeout;
      gloo.barrier(own)->wait();
    });
  });
}

// ---- sends and receives -------------------------------------------------------------------------------

Work DeviceGroup::send(Tensors& tensors, int rank, int tag) {
  return transfer(OpType::SEND, tensors, rank, tag);
}

Work DeviceGroup::recv(Tensors& tensors, int rank, int tag) {
  return transfer(OpType::RECV, tensors, rank, tag);
}

Work DeviceGroup::recvAnysource(Tensors& tensors, int tag) {
  return transfer(OpType::RECVANYSOURCE, tensors, -1, tag);
}

Work DeviceGroup::transfer(OpType type, Tensors& tensors, int rank, int tag) {
  const char* name = name_of(type);
  const at::Tensor tensor = only(name, tensors);
  const bool any = type == OpType::RECVANYSOURCE;
  TORCH_CHECK(
      any || (rank >= 0 && rank < size_ && rank != rank_), who(), name, ": rank ", rank, " is not another one of ",
      size_, " ranks");
  WorkInfo info = begin(type, tensors);
  const std::lock_guard<std::mutex> lock(lock_);
  const Lane& lane = lane_of(info.device);
  // Both ends decide alike: the tag is the same, and a group has its communicator from the first collective on.
  if (lane.driver == nullptr || tag != 0) {
    refuse_gloo(name, lane, c10::str("the tag ", tag));
    return transfer_over_gloo(std::move(info), tensor, rank, tag);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      !any, who(), "recv: a receive from any rank is not possible where the driver moves the data. Name the rank, give a "
      "tag that is not 0 at both ends, or choose OUTRIGGER_DISTRIBUTED=gloo on all ranks");
  const Transfer one{tensor, rank, type == OpType::SEND};
  if (!batch_.has_value()) {
    return transfer_over_driver(std::move(info), {one});
  }
  add_to_batch(info);
  batch_->transfers.push_back(one);
  // Nothing is submitted yet: the work of the batch is the only one, as with NCCL.
  return nullptr;
}

Work DeviceGroup::transfer_over_gloo(WorkInfo info, const at::Tensor& tensor, int rank, int tag) {
  const bool sends = info.type == OpType::SEND;
  const c10::DeviceIndex device = info.device.index();
  const otr_stream_t stream = made(lane_of(info.device).transfers[{rank, sends}], device);
  const char* name = name_of(info.type);
  const bool any = info.type == OpType::RECVANYSOURCE;
  auto source = any ? std::make_shared<std::atomic<int>>(-1) : nullptr;
  info.source = source;
  // torch asks for the source as soon as it has waited.
  info.host_waits = any;
  return submit(std::move(info), stream, {tensor}, {tensor}, [&] {
    HostImages images(device, stream);
    const at::Tensor image = images.bytes(tensor, sends, !sends);
    gloo_.submit(stream, images, name, [image, rank, tag, sends, source](c10d::Backend& gloo) {
      Tensors list{image};
      if (source != nullptr) {
        const Work work = gloo.recvAnysource(list, tag);
        work->wait();
        source->store(work->sourceRank());
      } else {
        (sends ? gloo.send(list, rank, tag) : gloo.recv(list, rank, tag))->wait();
      }
    });
  });
}

Work DeviceGroup::transfer_over_driver(WorkInfo info, const std::vector<Transfer>& transfers) {
  Lane& lane = lane_of(info.device);
  const char* name = name_of(info.type);
  Tensors used, received;
  std::vector<otr_transfer_t> list;
  for (const Transfer& one : transfers) {
    const otr_address_t address =
        one.send ? address_of(one.tensor.const_data_ptr()) : written_address(one.tensor);
    list.push_back(
        {address, one.tensor.nbytes(), static_cast<uint32_t>(one.rank),
         one.send ? uint32_t{OTR_TRANSFER_SEND} : uint32_t{OTR_TRANSFER_RECEIVE}});
    used.push_back(one.tensor);
    if (!one.send) {
      received.push_back(one.tensor);
    }
  }
  return submit(std::move(info), lane.stream, used, received, [&] {
    TORCH_CHECK_NOT_IMPLEMENTED(
        lane.driver->exchange(lane.stream, list), who(), name, ": the driver sends nothing from rank to rank; choose "
        "OUTRIGGER_DISTRIBUTED=gloo on all ranks");
  });
}

void DeviceGroup::startCoalescing() {
  const std::lock_guard<std::mutex> lock(lock_);
  TORCH_CHECK(!batch_.has_value(), who(), "a batch of sends and receives is open in the group ", parts_.name);
  batch_.emplace();
}

void DeviceGroup::add_to_batch(const WorkInfo& info) {
  if (!batch_.has_value()) {
    return;
  }
  TORCH_CHECK(
      !batch_->info.has_value() || batch_->info->device == info.device, who(), "a batch has calls on ",
      batch_->info->device, " and on ", info.device, "; all of a batch are on one device");
  batch_->info = info;
}

Work DeviceGroup::endCoalescing() {
  const std::lock_guard<std::mutex> lock(lock_);
  TORCH_CHECK(batch_.has_value(), who(), "no batch of sends and receives is open in the group ", parts_.name);
  Batch batch = *std::exchange(batch_, std::nullopt);
  if (!batch.info.has_value()) {
    return nullptr;
  }
  WorkInfo info = *std::move(batch.info);
  info.type = OpType::COALESCED;
  info.host_waits = false;
  Lane& lane = lane_of(info.device);
  if (!batch.transfers.empty()) {
    const Work work = transfer_over_driver(info, batch.transfers);
    if (batch.points.empty()) {
      return work;
    }
    batch.points.push_back(std::make_shared<const Point>(info.device.index(), lane.stream));
    batch.outputs = joined(std::move(batch.outputs), work->result());
  }
  const otr_stream_t stream = made(lane.batches, info.device.index());
  for (const auto& point : batch.points) {
    point->order(stream);
  }
  const c10::StreamGuard guard(torch_stream(stream, info.device));
  return c10::make_intrusive<DeviceWork>(std::move(info), std::move(batch.points), std::move(batch.outputs));
}

// ---- the end --------------------------------------------------------------------------------------------

void DeviceGroup::close_lanes() noexcept {
  closed_ = true;
  last_.reset();
  for (auto& [index, lane] : lanes_) {
    std::vector<otr_stream_t> streams{lane.stream};
    if (lane.batches != 0) {
      streams.push_back(lane.batches);
    }
    for (const auto& [key, stream] : lane.transfers) {
      streams.push_back(stream);
    }
    // Submitted work uses this object, and other ranks need it. A failure was told where somebody waited.
    for (const otr_stream_t stream : streams) {
      otr_status_free(otr_stream_synchronize(stream));
    }
    lane.driver.reset();
    for (const otr_stream_t stream : streams) {
      warn_if_failed(otr_stream_destroy(stream), "destroying a stream");
    }
  }
  lanes_.clear();
}

void DeviceGroup::shutdown() {
  const std::lock_guard<std::mutex> lock(lock_);
  close_lanes();
  gloo_.gloo().shutdown();
}

void DeviceGroup::abort() {
  failure_->note("it was aborted");
  const std::lock_guard<std::mutex> lock(lock_);
  for (auto& [index, lane] : lanes_) {
    if (lane.driver) {
      lane.driver->abort();
    }
  }
  gloo_.gloo().abort();
}

}  // namespace outrigger
