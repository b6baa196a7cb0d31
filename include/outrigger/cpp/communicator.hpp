// SPDX-License-Identifier: MIT OR Apache-2.0
//
// outrigger/cpp/communicator.hpp: ranks on devices of one or many processes that work together. Included by
// outrigger/outrigger.hpp. An object stands for one handle; it must never keep memory or streams alive beside what the
// library keeps itself.

#ifndef OUTRIGGER_CPP_COMMUNICATOR_HPP
#define OUTRIGGER_CPP_COMMUNICATOR_HPP

#include <outrigger/cpp/core.hpp>

#include <string>
#include <vector>

namespace otr {
inline namespace OTR_CPP_FACE {

/// How the elements of all ranks become one.
enum class Reduction : otr_reduction_t {
  sum = OTR_REDUCE_SUM,
  prod = OTR_REDUCE_PROD,
  min = OTR_REDUCE_MIN,
  max = OTR_REDUCE_MAX,
  avg = OTR_REDUCE_AVG,
};

/// Elements of each rank that are combined. `receive` may be `send`.
struct Elements {
  otr_address_t send = 0;
  otr_address_t receive = 0;
  std::uint64_t count = 0;
  DType dtype = DType::f32;
  Reduction reduction = Reduction::sum;
};

/// One rank of a communicator. All ranks make the same calls, in the same order; each returns at once.
class Communicator {
 public:
  /// An id for one communicator, which all of its ranks are given, in any processes.
  static Outcome<std::string> new_id(Device device) {
    return detail::text_of([device](char** text) { return otr_communicator_id(device.index(), text); });
  }
  /// Joins as a rank, and waits for all others. `timeout_ms` 0: the driver's choice.
  static Outcome<Communicator> join(Device device, const char* id, std::uint32_t rank_count, std::uint32_t rank,
                                    std::uint64_t timeout_ms = 0) {
    auto params = sized<otr_communicator_params_t>();
    params.id = id;
    params.rank_count = rank_count;
    params.rank = rank;
    params.timeout_ms = timeout_ms;
    otr_communicator_t handle = 0;
    return detail::done(otr_communicator_create(device.index(), &params, &handle),
                        [&handle] { return Communicator(handle); });
  }
  [[nodiscard]] otr_communicator_t id() const noexcept { return handle_.get(); }

  /// Fails with why the communicator has failed.
  Outcome<> query() const { return detail::done(otr_communicator_query(id())); }
  /// Makes it fail, on every rank.
  Outcome<> abort() const { return detail::done(otr_communicator_abort(id())); }

  Outcome<> all_reduce(StreamRef stream, const Elements& what) const {
    return detail::done(otr_all_reduce(stream.id(), id(), what.send, what.receive, what.count, dtype(what), how(what)));
  }
  Outcome<> reduce(StreamRef stream, const Elements& what, std::uint32_t root) const {
    return detail::done(
        otr_reduce(stream.id(), id(), what.send, what.receive, what.count, dtype(what), how(what), root));
  }
  /// Gives each rank `count` elements; `send` has as many for all ranks.
  Outcome<> reduce_scatter(StreamRef stream, const Elements& what) const {
    return detail::done(
        otr_reduce_scatter(stream.id(), id(), what.send, what.receive, what.count, dtype(what), how(what)));
  }
  Outcome<> broadcast(StreamRef stream, otr_address_t address, std::uint64_t bytes, std::uint32_t root) const {
    return detail::done(otr_broadcast(stream.id(), id(), address, bytes, root));
  }
  /// `bytes` of each rank; `receive` gets as many from all of them.
  Outcome<> all_gather(StreamRef stream, otr_address_t send, otr_address_t receive, std::uint64_t bytes) const {
    return detail::done(otr_all_gather(stream.id(), id(), send, receive, bytes));
  }
  Outcome<> exchange(StreamRef stream, const std::vector<otr_transfer_t>& transfers) const {
    const auto count = static_cast<std::uint32_t>(transfers.size());
    return detail::done(otr_exchange(stream.id(), id(), transfers.data(), count));
  }

 private:
  explicit Communicator(otr_communicator_t handle) noexcept : handle_(handle) {}
  static otr_dtype_t dtype(const Elements& what) noexcept { return static_cast<otr_dtype_t>(what.dtype); }
  static otr_reduction_t how(const Elements& what) noexcept { return static_cast<otr_reduction_t>(what.reduction); }

  detail::Owned<otr_communicator_destroy> handle_;
};

}  // namespace OTR_CPP_FACE
}  // namespace otr

#endif  // OUTRIGGER_CPP_COMMUNICATOR_HPP
