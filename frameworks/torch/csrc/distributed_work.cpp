//! Submitted collectives over events of the runtime.

#include "distributed_work.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <thread>

namespace outrigger {
namespace {

/// The longest sleep between two looks of a wait with a limit.
constexpr auto kLook = std::chrono::milliseconds(1);

// A future that is complete on the current stream, whose callbacks and waiters are ordered behind it.
c10::intrusive_ptr<c10::ivalue::Future> future_of(c10::Device device, const std::vector<at::Tensor>& outputs) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device});
  // Torch orders waiters behind the streams of the devices that the results are on. Work without results has a device, too.
  const c10::Storage nothing(
      c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages{nothing.getWeakStorageImpl()};
  for (const at::Tensor& output : outputs) {
    storages.push_back(output.storage().getWeakStorageImpl());
  }
  future->markCompleted(c10::IValue(outputs), std::move(storages));
  return future;
}

}  // namespace

Point::Point(c10::DeviceIndex device, otr_stream_t stream) {
  check(otr_event_create(static_cast<uint32_t>(device), 0, &event_));
  otr_status_t* status = otr_event_record(event_, stream);
  if (status != nullptr) {
    warn_if_failed(otr_event_destroy(event_), "destroying an event");
    raise(status);
  }
}

Point::~Point() {
  if (event_ != 0) {
    warn_if_failed(otr_event_destroy(event_), "destroying an event");
  }
}

void Point::order(otr_stream_t stream) const {
  check(otr_stream_wait_event(stream, event_));
}

bool Point::passed() const {
  uint32_t finished = 0;
  check(otr_event_query(event_, &finished));
  return finished != 0;
}

void Point::wait() const {
  check(otr_event_synchronize(event_));
}

const char* name_of(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::BROADCAST: return "broadcast";
    case c10d::OpType::ALLREDUCE: return "all_reduce";
    case c10d::OpType::ALLREDUCE_COALESCED: return "all_reduce_coalesced";
    case c10d::OpType::REDUCE: return "reduce";
    case c10d::OpType::ALLGATHER: return "all_gather";
    case c10d::OpType::_ALLGATHER_BASE: return "all_gather_into_tensor";
    case c10d::OpType::GATHER: return "gather";
    case c10d::OpType::SCATTER: return "scatter";
    case c10d::OpType::REDUCE_SCATTER: return "reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE: return "reduce_scatter_tensor";
#if OUTRIGGER_TORCH_SINCE(14)
    case c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED: return "all_gather_into_tensor_coalesced";
    case c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED: return "reduce_scatter_tensor_coalesced";
#endif
    case c10d::OpType::ALLTOALL_BASE: return "all_to_all_single";
    case c10d::OpType::ALLTOALL: return "all_to_all";
    case c10d::OpType::SEND: return "send";
    case c10d::OpType::RECV:
    case c10d::OpType::RECVANYSOURCE: return "recv";
    case c10d::OpType::BARRIER: return "barrier";
    case c10d::OpType::COALESCED: return "a batch of sends and receives";
    default: return "a collective";
  }
}

DeviceWork::DeviceWork(WorkInfo info, Points points, std::vector<at::Tensor> outputs)
    : Work(info.rank, info.type),
      info_(std::move(info)),
      points_(std::move(points)),
      outputs_(std::move(outputs)),
      future_(future_of(info_.device, outputs_)) {}

bool DeviceWork::passed() const {
  return std::all_of(points_.begin(), points_.end(), [](const auto& point) { return point->passed(); });
}

bool DeviceWork::isCompleted() {
  try {
    return passed();
  } catch (const c10::Error&) {
    // Work that has failed will not go on.
    return true;
  }
}

bool DeviceWork::isSuccess() const {
  try {
    return passed();
  } catch (const c10::Error&) {
    return false;
  }
}

std::exception_ptr DeviceWork::exception() const {
  try {
    passed();
  } catch (const c10::Error&) {
    return std::current_exception();
  }
  return nullptr;
}

int DeviceWork::sourceRank() const {
  TORCH_CHECK(info_.source != nullptr, who(), "only a receive from any rank tells whose data came");
  for (const auto& point : points_) {
    point->wait();
  }
  return info_.source->load();
}

void DeviceWork::synchronize() {
  const otr_stream_t stream = current_stream(info_.device.index());
  for (const auto& point : points_) {
    point->order(stream);
  }
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    auto pause = std::chrono::microseconds(10);
    while (!passed()) {
      TORCH_CHECK_WITH(
          DistBackendError, std::chrono::steady_clock::now() < until, who(), name_of(info_.type),
          " has not finished within ", timeout.count(), " ms");
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(2 * pause, kLook);
    }
  } else if (info_.host_waits) {
    for (const auto& point : points_) {
      point->wait();
    }
  } else if (!info_.failure->text().empty()) {
    // Known already: better here than at the next wait for the stream.
    passed();
  }
  synchronize();
  return true;
}

}  // namespace outrigger
