//! The communicators of the host contract. Ranks agree over the store: they use the driver together, or none does.

#include "distributed_driver.h"

#include "memory.h"
#include "peer_failure.h"

namespace outrigger {
namespace {

constexpr const char* kIdKey = "communicator";
constexpr char kNone = '-';
constexpr char kSome = '+';

std::string key_of(int rank) {
  return c10::str("rank/", rank);
}

// The reason why the driver of a device has no communicators; empty if it has. Asked by a text that is no id, which
// costs nothing: a driver keeps something for each id that it makes, until the ranks have come.
std::string why_not(c10::DeviceIndex device) {
  auto params = otr::sized<otr_communicator_params_t>();
  params.id = "none";
  params.rank_count = 1;
  otr_communicator_t communicator = 0;
  otr_status_t* status = otr_communicator_create(static_cast<uint32_t>(device), &params, &communicator);
  TORCH_INTERNAL_ASSERT(status != nullptr, "a text that is no id was taken for one");
  const otr_code_t code = otr_status_code(status);
  if (code != OTR_ERR_UNSUPPORTED && code != OTR_ERR_INVALID_ARGUMENT) {
    raise(status);
  }
  const std::string text = code == OTR_ERR_UNSUPPORTED ? describe(status) : "";
  otr_status_free(status);
  return text;
}

std::string new_id(c10::DeviceIndex device) {
  return text_from([device](char** text) { return otr_communicator_id(static_cast<uint32_t>(device), text); });
}

// The decision of all ranks: an id behind kSome, or behind kNone the rank that has no communicators, and why.
std::string agree(c10d::Store& store, const Membership& membership) {
  std::string reason = why_not(membership.device);
  if (membership.rank != 0) {
    store.set(key_of(membership.rank), reason.empty() ? std::string(1, kSome) : kNone + reason);
    return store.get_to_str(kIdKey);
  }
  for (int rank = 1; rank < membership.size; ++rank) {
    const std::string theirs = store.get_to_str(key_of(rank));
    if (reason.empty() && theirs[0] == kNone) {
      reason = c10::str("rank ", rank, ": ", theirs.substr(1));
    }
  }
  const std::string agreed = reason.empty() ? kSome + new_id(membership.device) : kNone + reason;
  store.set(kIdKey, agreed);
  return agreed;
}

otr_reduction_t reduction_of(c10d::ReduceOp::RedOpType how) {
  switch (how) {
    case c10d::ReduceOp::SUM: return OTR_REDUCE_SUM;
    case c10d::ReduceOp::AVG: return OTR_REDUCE_AVG;
    case c10d::ReduceOp::PRODUCT: return OTR_REDUCE_PROD;
    case c10d::ReduceOp::MIN: return OTR_REDUCE_MIN;
    case c10d::ReduceOp::MAX: return OTR_REDUCE_MAX;
    default: return 0;
  }
}

// Whether the contract has a word for such a reduction.
bool has_words(const at::Tensor& tensor, c10d::ReduceOp::RedOpType how) {
  return dtype_of(tensor.scalar_type()) != OTR_DTYPE_INVALID && reduction_of(how) != 0;
}

// False if the driver cannot; throws any other failure.
bool taken(otr_status_t* status) {
  if (status != nullptr && otr_status_code(status) == OTR_ERR_UNSUPPORTED) {
    otr_status_free(status);
    return false;
  }
  check(status);
  return true;
}

otr_address_t read_address(const at::Tensor& tensor) {
  return address_of(tensor.const_data_ptr());
}

uint64_t count_of(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel());
}

}  // namespace

std::unique_ptr<DriverEngine> DriverEngine::join(
    c10d::Store& store, const Membership& membership, std::string& why) {
  const std::string agreed = agree(store, membership);
  const std::string text = agreed.substr(1);
  if (agreed[0] == kNone) {
    why = text;
    return nullptr;
  }
  auto params = otr::sized<otr_communicator_params_t>();
  params.id = text.c_str();
  params.rank_count = static_cast<uint32_t>(membership.size);
  params.rank = static_cast<uint32_t>(membership.rank);
  params.timeout_ms = static_cast<uint64_t>(membership.timeout.count());
  otr_communicator_t communicator = 0;
  check(otr_communicator_create(static_cast<uint32_t>(membership.device), &params, &communicator));
  std::unique_ptr<DriverEngine> engine(new DriverEngine(communicator));
  watch_communicator(communicator);
  return engine;
}

DriverEngine::~DriverEngine() {
  forget_communicator(communicator_);
  warn_if_failed(otr_communicator_destroy(communicator_), "destroying a communicator");
}

void DriverEngine::abort() {
  check(otr_communicator_abort(communicator_));
}

bool DriverEngine::all_reduce(otr_stream_t stream, const at::Tensor& tensor, c10d::ReduceOp::RedOpType how) {
  if (!has_words(tensor, how)) {
    return false;
  }
  const otr_address_t address = written_address(tensor);
  return taken(otr_all_reduce(
      stream, communicator_, address, address, count_of(tensor), dtype_of(tensor.scalar_type()), reduction_of(how)));
}

bool DriverEngine::reduce(
    otr_stream_t stream, const at::Tensor& tensor, c10d::ReduceOp::RedOpType how, int root) {
  if (!has_words(tensor, how)) {
    return false;
  }
  const otr_address_t address = written_address(tensor);
  return taken(otr_reduce(
      stream, communicator_, address, address, count_of(tensor), dtype_of(tensor.scalar_type()), reduction_of(how),
      static_cast<uint32_t>(root)));
}

bool DriverEngine::reduce_scatter(
    otr_stream_t stream, const at::Tensor& out, const at::Tensor& in, c10d::ReduceOp::RedOpType how) {
  if (!has_words(in, how)) {
    return false;
  }
  return taken(otr_reduce_scatter(
      stream, communicator_, read_address(in), written_address(out), count_of(out), dtype_of(in.scalar_type()),
      reduction_of(how)));
}

bool DriverEngine::broadcast(otr_stream_t stream, const at::Tensor& tensor, int root) {
  return taken(otr_broadcast(
      stream, communicator_, written_address(tensor), tensor.nbytes(), static_cast<uint32_t>(root)));
}

bool DriverEngine::all_gather(otr_stream_t stream, const at::Tensor& out, const at::Tensor& in) {
  return taken(otr_all_gather(stream, communicator_, read_address(in), written_address(out), in.nbytes()));
}

bool DriverEngine::exchange(otr_stream_t stream, const std::vector<otr_transfer_t>& transfers) {
  return taken(otr_exchange(
      stream, communicator_, transfers.data(), static_cast<uint32_t>(transfers.size())));
}

}  // namespace outrigger
