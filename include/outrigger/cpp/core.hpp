// SPDX-License-Identifier: MIT OR Apache-2.0
//
// outrigger/cpp/core.hpp: devices, streams, events, memory and operators, as C++ classes that own what
// they stand for. Included by outrigger/outrigger.hpp. The rules are those of outrigger.h; a class adds
// ownership and types to them, and must never add state that a C caller could not see.

#ifndef OUTRIGGER_CPP_CORE_HPP
#define OUTRIGGER_CPP_CORE_HPP

#include <outrigger/cpp/result.hpp>

#include <array>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <vector>

namespace otr {
inline namespace OTR_CPP_FACE {

/// Element types, by the numbers of base.h.
enum class DType : otr_dtype_t {
  none = OTR_DTYPE_INVALID,
  boolean = OTR_DTYPE_BOOL,
  u8 = OTR_DTYPE_U8,
  i8 = OTR_DTYPE_I8,
  i16 = OTR_DTYPE_I16,
  i32 = OTR_DTYPE_I32,
  i64 = OTR_DTYPE_I64,
  u16 = OTR_DTYPE_U16,
  u32 = OTR_DTYPE_U32,
  u64 = OTR_DTYPE_U64,
  f16 = OTR_DTYPE_F16,
  bf16 = OTR_DTYPE_BF16,
  f32 = OTR_DTYPE_F32,
  f64 = OTR_DTYPE_F64,
  c64 = OTR_DTYPE_C64,
  c128 = OTR_DTYPE_C128,
  f8e4m3 = OTR_DTYPE_F8E4M3,
  f8e5m2 = OTR_DTYPE_F8E5M2,
  f8e8m0 = OTR_DTYPE_F8E8M0,
  f4e2m1x2 = OTR_DTYPE_F4E2M1X2,
  i4x2 = OTR_DTYPE_I4X2,
  u4x2 = OTR_DTYPE_U4X2,
  f8e4m3fnuz = OTR_DTYPE_F8E4M3FNUZ,
  f8e5m2fnuz = OTR_DTYPE_F8E5M2FNUZ,
};

/// The version of the library, such as "0.1.0".
[[nodiscard]] inline const char* version() noexcept { return otr_version(); }

/// Names the drivers that are loaded where OUTRIGGER_DRIVER is not set. Before any use of a device.
inline Outcome<> default_drivers(const char* specs) { return detail::done(otr_driver_default(specs)); }

/// Loads one more driver, or several separated by commas, and adds their devices.
inline Outcome<> load_driver(const char* spec) { return detail::done(otr_driver_load(spec)); }

/// A device, by its number. A plain value.
class Device {
 public:
  constexpr explicit Device(std::uint32_t index = 0) noexcept : index_(index) {}

  /// How many devices there are. The first call loads the drivers that OUTRIGGER_DRIVER names.
  static Outcome<std::uint32_t> count() { return detail::number<std::uint32_t>(&otr_device_count); }
  /// The current device of this thread.
  static Outcome<Device> current() {
    std::uint32_t index = 0;
    return detail::done(otr_device_current(&index), [&index] { return Device(index); });
  }

  [[nodiscard]] constexpr std::uint32_t index() const noexcept { return index_; }
  /// Makes it the current device of this thread.
  Outcome<> make_current() const { return detail::done(otr_device_set_current(index_)); }
  [[nodiscard]] Outcome<otr_device_info_t> info() const {
    return detail::filled<otr_device_info_t>([this](auto* info) { return otr_device_info(index_, info); });
  }
  /// Whether copies to another device go there straight, and not through host memory.
  [[nodiscard]] Outcome<bool> can_access(Device peer) const {
    std::uint32_t yes = 0;
    return detail::done(otr_device_can_access_peer(index_, peer.index_, &yes), [&yes] { return yes != 0; });
  }
  /// Waits for all work of all its streams.
  Outcome<> synchronize() const { return detail::done(otr_device_synchronize(index_)); }

  [[nodiscard]] Outcome<otr_memory_stats_t> memory_stats() const {
    return detail::filled<otr_memory_stats_t>(
        [this](auto* stats) { return otr_memory_stats(index_, stats); });
  }
  /// Segments, blocks and kept events as JSON, under the names of PyTorch's memory snapshots.
  [[nodiscard]] Outcome<std::string> memory_snapshot() const {
    return detail::text_of([this](char** json) { return otr_memory_snapshot(index_, json); });
  }
  /// Gives cached memory back until at most `keep` bytes stay; returns how many bytes.
  Outcome<std::uint64_t> memory_trim(std::uint64_t keep = 0) const {
    return detail::number<std::uint64_t>(
        [this, keep](auto* released) { return otr_memory_trim(index_, keep, released); });
  }
  /// The most bytes that the cache may take; UINT64_MAX lifts the limit.
  Outcome<> set_memory_limit(std::uint64_t bytes) const {
    return detail::done(otr_memory_set_limit(index_, bytes));
  }

 private:
  std::uint32_t index_;
};

/// A view of device memory as a tensor: address, element type, sizes and strides in elements.
class Tensor {
 public:
  /// The most dimensions that a view has.
  static constexpr std::size_t max_rank = 8;
  using Dims = std::initializer_list<std::int64_t>;

  /// An operand that is absent.
  Tensor() noexcept = default;
  /// Contiguous, in row-major order. Dimensions beyond max_rank end the process.
  Tensor(otr_address_t address, DType dtype, Dims sizes) noexcept
      : address_(address), dtype_(dtype), rank_(static_cast<std::uint32_t>(sizes.size())) {
    assign(sizes_, sizes);
    std::int64_t stride = 1;
    for (std::size_t dim = rank_; dim-- > 0; stride *= sizes_[dim]) strides_[dim] = stride;
  }
  /// With strides of its own, as many as sizes; other numbers end the process.
  Tensor(otr_address_t address, DType dtype, Dims sizes, Dims strides) noexcept
      : address_(address), dtype_(dtype), rank_(static_cast<std::uint32_t>(sizes.size())) {
    if (strides.size() != sizes.size()) std::terminate();
    assign(sizes_, sizes);
    assign(strides_, strides);
  }

  /// The same memory with two dimensions exchanged.
  [[nodiscard]] Tensor transposed(std::size_t a, std::size_t b) const noexcept {
    if (a >= rank_ || b >= rank_) std::terminate();
    Tensor other = *this;
    std::swap(other.sizes_[a], other.sizes_[b]);
    std::swap(other.strides_[a], other.strides_[b]);
    return other;
  }

  /// As the C functions take it. Points into this object.
  [[nodiscard]] otr_tensor_t raw() const noexcept {
    return {address_, static_cast<otr_dtype_t>(dtype_), rank_, sizes_.data(), strides_.data()};
  }

 private:
  using Array = std::array<std::int64_t, max_rank>;

  static void assign(Array& to, Dims from) noexcept {
    if (from.size() > max_rank) std::terminate();
    std::size_t dim = 0;
    for (const std::int64_t value : from) to[dim++] = value;
  }

  otr_address_t address_ = 0;
  DType dtype_ = DType::none;
  std::uint32_t rank_ = 0;
  Array sizes_{};
  Array strides_{};
};

/// A number of an operator's call. Converts from what C++ has.
class Scalar {
 public:
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Scalar(T value) noexcept {  // NOLINT: numbers are scalars
    if constexpr (std::is_floating_point_v<T>) {
      raw_.dtype = OTR_DTYPE_F64;
      raw_.value.f64 = static_cast<double>(value);
    } else {
      raw_.dtype = OTR_DTYPE_I64;
      raw_.value.i64 = static_cast<std::int64_t>(value);
    }
  }
  [[nodiscard]] const otr_scalar_t& raw() const noexcept { return raw_; }

 private:
  otr_scalar_t raw_{};
};

namespace detail {

/// The operands of a call, laid out as the C functions take them.
class Operands {
 public:
  using Tensors = std::initializer_list<Tensor>;

  Operands(const Tensors& inputs, const Tensors& outputs, std::initializer_list<Scalar> scalars) {
    tensors_.reserve(inputs.size() + outputs.size());
    for (const Tensor& tensor : inputs) tensors_.push_back(tensor.raw());
    for (const Tensor& tensor : outputs) tensors_.push_back(tensor.raw());
    scalars_.reserve(scalars.size());
    for (const Scalar& scalar : scalars) scalars_.push_back(scalar.raw());
    call_ = sized<otr_operator_call_t>();
    call_.inputs = tensors_.data();
    call_.outputs = tensors_.data() + inputs.size();
    call_.scalars = scalars_.data();
    call_.input_count = static_cast<std::uint32_t>(inputs.size());
    call_.output_count = static_cast<std::uint32_t>(outputs.size());
    call_.scalar_count = static_cast<std::uint32_t>(scalars_.size());
  }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  [[nodiscard]] const otr_operator_call_t* raw() const noexcept { return &call_; }

 private:
  std::vector<otr_tensor_t> tensors_;
  std::vector<otr_scalar_t> scalars_;
  otr_operator_call_t call_{};
};

/// A function of the host as a C function and its data.
struct HostFunction {
  std::function<std::int32_t(std::int32_t)> function;

  static std::int32_t call(void* user, std::int64_t, std::int32_t upstream) noexcept {
    auto& self = *static_cast<HostFunction*>(user);
#ifdef OTR_NO_EXCEPTIONS
    return self.function(upstream);
#else
    try {
      return self.function(upstream);
    } catch (...) {
      return OTR_ERR_EXECUTION;  // nothing may leave through the library
    }
#endif
  }
  static void destroy(void* user) noexcept { delete static_cast<HostFunction*>(user); }
};

}  // namespace detail

/// An operator, looked up once by its name in docs/operators.md. A plain value.
class Operator {
 public:
  /// OTR_ERR_NOT_FOUND if the library has none of this name.
  static Outcome<Operator> find(const char* name) {
    otr_operator_id_t id = 0;
    return detail::done(otr_operator_find(name, &id), [&id] { return Operator(id); });
  }
  /// The operator of a number that the library has given.
  explicit Operator(otr_operator_id_t id) noexcept : id_(id) {}
  [[nodiscard]] otr_operator_id_t id() const noexcept { return id_; }

 private:
  otr_operator_id_t id_;
};

class StreamRef;

/// A point of a stream. Destroyed with its object; what waits for it goes on waiting.
class Event {
 public:
  static Outcome<Event> create(Device device, bool timed = false) {
    otr_event_t event = 0;
    const std::uint32_t flags = timed ? OTR_EVENT_TIMED : 0;
    return detail::done(otr_event_create(device.index(), flags, &event), [&event] { return Event(event); });
  }
  [[nodiscard]] otr_event_t id() const noexcept { return handle_.get(); }
  /// Moves it to the end of the work submitted to a stream so far.
  inline Outcome<> record(StreamRef stream) const;
  /// Whether the work before it has finished.
  [[nodiscard]] Outcome<bool> query() const {
    std::uint32_t finished = 0;
    return detail::done(otr_event_query(id(), &finished), [&finished] { return finished != 0; });
  }
  /// Waits for the work before it.
  Outcome<> synchronize() const { return detail::done(otr_event_synchronize(id())); }
  /// Milliseconds from `start` to this one; both were created as timed and have passed.
  [[nodiscard]] Outcome<double> milliseconds_since(const Event& start) const {
    return detail::number<double>([&](double* ms) { return otr_event_elapsed(start.id(), id(), ms); });
  }

 private:
  explicit Event(otr_event_t event) noexcept : handle_(event) {}
  detail::Owned<otr_event_destroy> handle_;
};

/// A stream that somebody else owns: the runtime, or a Stream. A plain value.
class StreamRef {
 public:
  explicit StreamRef(otr_stream_t id) noexcept : id_(id) {}

  /// The default stream of a device.
  static Outcome<StreamRef> default_of(Device device) {
    otr_stream_t id = 0;
    return detail::done(otr_stream_default(device.index(), &id), [&id] { return StreamRef(id); });
  }
  /// The current stream of this thread on a device.
  static Outcome<StreamRef> current(Device device) {
    otr_stream_t id = 0;
    return detail::done(otr_stream_current(device.index(), &id), [&id] { return StreamRef(id); });
  }

  [[nodiscard]] otr_stream_t id() const noexcept { return id_; }
  /// The queue in the driver's own interface, for another library: what was submitted so far is in there.
  [[nodiscard]] Outcome<std::uint64_t> native() const {
    return detail::number<std::uint64_t>([this](auto* native) { return otr_stream_native(id_, native); });
  }
  [[nodiscard]] Outcome<Device> device() const {
    std::uint32_t index = 0;
    return detail::done(otr_stream_device(id_, &index), [&index] { return Device(index); });
  }
  /// Makes it the current stream of this thread on its device.
  Outcome<> make_current() const { return detail::done(otr_stream_set_current(id_)); }
  /// Whether all work submitted before has finished.
  [[nodiscard]] Outcome<bool> query() const {
    std::uint32_t finished = 0;
    return detail::done(otr_stream_query(id_, &finished), [&finished] { return finished != 0; });
  }
  /// Waits for all work submitted before; a failure of it is reported, and thereby cleared.
  Outcome<> synchronize() const { return detail::done(otr_stream_synchronize(id_)); }
  Outcome<> flush() const { return detail::done(otr_stream_flush(id_)); }
  /// Lets later work start after the point at which an event was last recorded.
  Outcome<> wait(const Event& event) const {
    return detail::done(otr_stream_wait_event(id_, event.id()));
  }

  /// Copies bytes in stream order; host memory stays valid and untouched until then.
  Outcome<> copy_to_device(otr_address_t to, const void* from, std::uint64_t bytes) const {
    const auto source = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(from));
    return detail::done(otr_copy(id_, to, source, bytes, OTR_COPY_HOST_TO_DEVICE));
  }
  Outcome<> copy_to_host(void* to, otr_address_t from, std::uint64_t bytes) const {
    const auto target = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(to));
    return detail::done(otr_copy(id_, target, from, bytes, OTR_COPY_DEVICE_TO_HOST));
  }
  Outcome<> copy(otr_address_t to, otr_address_t from, std::uint64_t bytes) const {
    return detail::done(otr_copy(id_, to, from, bytes, OTR_COPY_DEVICE_TO_DEVICE));
  }
  /// Fills with a value of 1, 2, 4, 8 or 16 bytes.
  template <class T>
  Outcome<> fill(otr_address_t to, std::uint64_t bytes, const T& value) const {
    static_assert(std::is_trivially_copyable_v<T>, "a pattern is plain bytes");
    return detail::done(otr_fill(id_, to, bytes, &value, sizeof value));
  }

  /// Runs an operator in stream order. OTR_ERR_UNSUPPORTED: there is no kernel for these arguments, and
  /// nothing was done. The operands lie in live memory of the stream's device.
  Outcome<> call(Operator op, std::initializer_list<Tensor> inputs, std::initializer_list<Tensor> outputs,
                 std::initializer_list<Scalar> scalars = {}) const {
    const detail::Operands operands(inputs, outputs, scalars);
    return detail::done(otr_operator_call(id_, op.id(), operands.raw()));
  }

  /// The same with a call in the form of the C functions, such as a registered function gets it.
  Outcome<> call(Operator op, const otr_operator_call_t& call) const {
    return detail::done(otr_operator_call(id_, op.id(), &call));
  }

  /// Calls a function on the host in stream order; where the stream captures, at every replay. It gets
  /// OTR_OK or the failure of the work before it, and returns OTR_OK or its own; an exception counts as
  /// OTR_ERR_EXECUTION. It must not call the library.
  Outcome<> host(std::function<std::int32_t(std::int32_t upstream)> function,
                 const char* label = nullptr) const {
    auto owner = std::make_unique<detail::HostFunction>(detail::HostFunction{std::move(function)});
    auto node = sized<otr_host_node_t>();
    node.function = &detail::HostFunction::call;
    node.destroy = &detail::HostFunction::destroy;
    node.user = owner.get();
    node.label = label;
    otr_status_t* const status = otr_host_node(id_, &node);
    if (status == nullptr) static_cast<void>(owner.release());  // `destroy` frees it
    return detail::done(status);
  }

 protected:
  otr_stream_t id_;
};

/// A stream of one's own. Destroyed with its object, without waiting: what was submitted still runs.
class Stream : public StreamRef {
 public:
  /// A lower priority is more urgent; it is clamped to the device's range.
  static Outcome<Stream> create(Device device, std::int32_t priority = 0) {
    otr_stream_t stream = 0;
    return detail::done(otr_stream_create(device.index(), priority, &stream),
                        [&stream] { return Stream(stream); });
  }
  /// A stream over a queue of the driver's own interface, which another library has made and keeps.
  static Outcome<Stream> from_native(Device device, std::uint64_t native) {
    otr_stream_t stream = 0;
    return detail::done(otr_stream_from_native(device.index(), native, &stream),
                        [&stream] { return Stream(stream); });
  }
  Stream(Stream&& other) noexcept : StreamRef(std::exchange(other.id_, 0)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Stream() {
    if (id_ != 0) detail::ignore(otr_stream_destroy(id_));
  }

 private:
  explicit Stream(otr_stream_t stream) noexcept : StreamRef(stream) {}
};

inline Outcome<> Event::record(StreamRef stream) const {
  return detail::done(otr_event_record(id(), stream.id()));
}

/// A function of the host that serves an operator, until this object ends. Calls that run then go on.
class OperatorRegistration {
 public:
  /// Gives work to the stream. It fails as any call does: with exceptions by throwing an Error, which becomes the
  /// failure of the operator's call; another exception counts as OTR_ERR_EXECUTION. OTR_ERR_UNSUPPORTED passes the
  /// call on, and is right only while no work was given. Called from any thread, and from several at a time.
  using Function = std::function<Outcome<>(StreamRef stream, Operator op, const otr_operator_call_t& call)>;

  /// Registers it for all devices, or for one. `owner` says in texts who did. OTR_ERR_BUSY if there is one already,
  /// unless `replace` is set.
  static Outcome<OperatorRegistration> create(const char* name, const char* owner, Function function,
                                              std::optional<Device> device = std::nullopt, bool replace = false) {
    auto user = std::make_unique<Function>(std::move(function));
    auto params = sized<otr_operator_registration_t>();
    params.name = name;
    params.owner = owner;
    params.function = &OperatorRegistration::call;
    params.user = user.get();
    params.destroy = &OperatorRegistration::destroy;
    params.device = device ? device->index() : OTR_ALL_DEVICES;
    params.flags = replace ? OTR_REGISTER_REPLACE : 0;
    otr_registration_t id = 0;
    otr_status_t* const status = otr_operator_register(&params, &id);
    if (status == nullptr) static_cast<void>(user.release());  // `destroy` frees it
    return detail::done(status, [&id] { return OperatorRegistration(id); });
  }
  [[nodiscard]] otr_registration_t id() const noexcept { return handle_.get(); }
  /// Ends it now. OTR_ERR_INVALID_HANDLE if another one has replaced it.
  Outcome<> withdraw() { return detail::done(otr_operator_withdraw(handle_.release())); }
  /// All registrations as JSON.
  static Outcome<std::string> list() { return detail::text_of(&otr_operator_list); }

 private:
  explicit OperatorRegistration(otr_registration_t id) noexcept : handle_(id) {}

  static otr_status_t* status_of(const Error& error) {
    const std::string op = error.operator_name() == nullptr ? "" : std::string(error.operator_name()) + ": ";
    return otr_status_new(error.code(), (op + error.what()).c_str());
  }
  static otr_status_t* call(void* user, otr_stream_t stream, otr_operator_id_t op,
                            const otr_operator_call_t* call) noexcept {
    const auto& function = *static_cast<const Function*>(user);
#ifdef OTR_NO_EXCEPTIONS
    const Outcome<> outcome = function(StreamRef(stream), Operator(op), *call);
    return outcome ? nullptr : status_of(outcome.error());
#else
    try {
      function(StreamRef(stream), Operator(op), *call);
      return nullptr;
    } catch (const Error& error) {
      return status_of(error);
    } catch (const std::exception& error) {
      return otr_status_new(OTR_ERR_EXECUTION, error.what());
    } catch (...) {
      return otr_status_new(OTR_ERR_EXECUTION, "an exception that is no std::exception");
    }
#endif
  }
  static void destroy(void* user) noexcept { delete static_cast<Function*>(user); }

  detail::Owned<otr_operator_withdraw> handle_;
};

/// A pool: memory of a device that serves only those who name it. Its memory goes back to the device when
/// the object and all that uses it are gone.
class Pool {
 public:
  static Outcome<Pool> create(Device device) {
    otr_pool_t pool = 0;
    return detail::done(otr_pool_create(device.index(), &pool), [&] { return Pool(pool, device); });
  }
  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] otr_pool_t id() const noexcept { return handle_.get(); }
  [[nodiscard]] Outcome<otr_pool_info_t> info() const {
    return detail::filled<otr_pool_info_t>([this](auto* info) { return otr_pool_info(id(), info); });
  }
  /// Moves what is in use to the host and gives the memory back to the device, until `wake`. Gives the
  /// bytes that the device has got back.
  Outcome<std::uint64_t> sleep() const {
    std::uint64_t released = 0;
    return detail::done(otr_pool_sleep(id(), &released), [&released] { return released; });
  }
  /// Brings memory and contents back to their addresses.
  Outcome<> wake() const { return detail::done(otr_pool_wake(id())); }

 private:
  Pool(otr_pool_t pool, Device device) noexcept : handle_(pool), device_(device) {}
  detail::Owned<otr_pool_destroy> handle_;
  Device device_;
};

/// Device memory. Freed with its object, at any time: it is reused in stream order.
class Buffer {
 public:
  /// At least `bytes` bytes, in the order of a stream.
  static Outcome<Buffer> allocate(Device device, std::uint64_t bytes, StreamRef stream) {
    otr_address_t address = 0;
    return detail::done(otr_memory_alloc(device.index(), bytes, stream.id(), &address),
                        [&] { return Buffer(device, address, bytes); });
  }
  static Outcome<Buffer> allocate(const Pool& pool, std::uint64_t bytes, StreamRef stream) {
    otr_address_t address = 0;
    return detail::done(otr_pool_alloc(pool.id(), bytes, stream.id(), &address),
                        [&] { return Buffer(pool.device(), address, bytes); });
  }
  Buffer(Buffer&& other) noexcept
      : device_(other.device_), address_(other.release()), bytes_(other.bytes_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = other.device_;
      address_ = other.release();
      bytes_ = other.bytes_;
    }
    return *this;
  }
  ~Buffer() { reset(); }

  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] otr_address_t address() const noexcept { return address_; }
  /// As it was asked for.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// All of it, or its front, as a contiguous tensor.
  [[nodiscard]] Tensor tensor(DType dtype, Tensor::Dims sizes) const noexcept {
    return {address(), dtype, sizes};
  }
  /// Says that work of another stream uses it, too.
  Outcome<> record_stream(StreamRef stream) const {
    return detail::done(otr_memory_record_stream(device_.index(), address_, stream.id()));
  }
  /// Copies to its start, in stream order, and waits.
  Outcome<> upload(const void* from, std::uint64_t bytes, StreamRef stream) const {
    const auto source = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(from));
    return waited(otr_copy(stream.id(), address(), source, bytes, OTR_COPY_HOST_TO_DEVICE), stream);
  }
  /// Copies from its start, in stream order, and waits.
  Outcome<> download(void* to, std::uint64_t bytes, StreamRef stream) const {
    const auto target = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(to));
    return waited(otr_copy(stream.id(), target, address(), bytes, OTR_COPY_DEVICE_TO_HOST), stream);
  }
  /// Gives the memory up without freeing it: it is the caller's for otr_memory_free, with device().
  [[nodiscard]] otr_address_t release() noexcept { return std::exchange(address_, 0); }

 private:
  Buffer(Device device, otr_address_t address, std::uint64_t bytes) noexcept
      : device_(device), address_(address), bytes_(bytes) {}

  void reset() noexcept {
    if (address_ != 0) detail::ignore(otr_memory_free(device_.index(), release()));
  }

  static Outcome<> waited(otr_status_t* submitted, StreamRef stream) {
    return detail::done(submitted != nullptr ? submitted : otr_stream_synchronize(stream.id()));
  }

  Device device_;
  otr_address_t address_;
  std::uint64_t bytes_;
};

/// Leave to do an operator's work elsewhere, and its account (docs/operators.md). Asked for before the
/// work; `done` afterwards. Without it nothing is counted.
class Fallback {
 public:
  /// OTR_ERR_UNSUPPORTED where fallbacks are forbidden. `name` outlives the object.
  static Outcome<Fallback> begin(const char* name) {
    std::uint32_t first = 0;
    return detail::done(otr_fallback_begin(name, &first), [&] { return Fallback(name, first != 0); });
  }
  /// Whether the user should be warned: the first of this operator, where warnings are on.
  [[nodiscard]] bool warns() const noexcept { return warns_; }
  /// What it took: nanoseconds in all, and bytes copied between device and host.
  Outcome<> done(std::uint64_t nanoseconds, std::uint64_t staged_bytes) const {
    return detail::done(otr_fallback_end(name_, nanoseconds, staged_bytes));
  }
  /// All fallbacks so far as JSON, the most expensive first.
  static Outcome<std::string> report() { return detail::text_of(&otr_fallback_report); }

 private:
  Fallback(const char* name, bool warns) noexcept : name_(name), warns_(warns) {}
  const char* name_;
  bool warns_;
};

}  // namespace OTR_CPP_FACE
}  // namespace otr

#endif  // OUTRIGGER_CPP_CORE_HPP
