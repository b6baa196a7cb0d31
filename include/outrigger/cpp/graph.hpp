// SPDX-License-Identifier: MIT OR Apache-2.0
//
// outrigger/cpp/graph.hpp: capture, graphs with named bindings, and replay. Included by
// outrigger/outrigger.hpp. An object stands for one handle; it must never keep memory or streams alive
// beside what the library keeps itself.

#ifndef OUTRIGGER_CPP_GRAPH_HPP
#define OUTRIGGER_CPP_GRAPH_HPP

#include <outrigger/cpp/core.hpp>
#include <outrigger/cpp/module.hpp>

namespace otr {
inline namespace OTR_CPP_FACE {

/// A graph that can be replayed. Destroyed with its object, without waiting.
class Executable {
 public:
  [[nodiscard]] otr_graph_exec_t id() const noexcept { return handle_.get(); }
  /// Replays in stream order and returns at once.
  Outcome<> replay(StreamRef stream) const { return detail::done(otr_graph_replay(id(), stream.id())); }

  /// The slot of a name, for those who bind often.
  [[nodiscard]] Outcome<std::uint32_t> slot(const char* name) const {
    return detail::number<std::uint32_t>([&](auto* slot) { return otr_graph_slot(id(), name, slot); });
  }
  /// Puts other memory in place of a named buffer, for later replays. It is kept alive until other memory
  /// takes its place.
  Outcome<> bind(std::uint32_t slot, otr_address_t address) const {
    return detail::done(otr_graph_bind(id(), slot, address));
  }
  Outcome<> bind(const char* name, const Buffer& buffer) const {
    std::uint32_t slot = 0;
    otr_status_t* const found = otr_graph_slot(id(), name, &slot);
    return detail::done(found != nullptr ? found : otr_graph_bind(id(), slot, buffer.address()));
  }
  /// Puts another number in place of a named one, for later replays.
  Outcome<> bind(const char* name, Scalar value) const {
    std::uint32_t slot = 0;
    otr_status_t* const found = otr_graph_slot(id(), name, &slot);
    return detail::done(found != nullptr ? found : otr_graph_bind_scalar(id(), slot, &value.raw()));
  }

  /// Puts another value in place of a named argument of a kernel, of just the same type.
  template <class T>
  Outcome<> bind_argument(const char* name, const T& value) const {
    static_assert(std::is_trivially_copyable_v<T>, "a value is plain bytes");
    std::uint32_t slot = 0;
    otr_status_t* const found = otr_graph_slot(id(), name, &slot);
    return detail::done(found != nullptr ? found : otr_graph_bind_argument(id(), slot, &value, sizeof value));
  }

  [[nodiscard]] Outcome<otr_graph_exec_info_t> info() const {
    return detail::filled<otr_graph_exec_info_t>(
        [this](auto* info) { return otr_graph_exec_info(id(), info); });
  }
  /// Compares a replay with running the nodes one after the other, and waits.
  Outcome<> check(StreamRef stream) const { return detail::done(otr_graph_check(id(), stream.id())); }
  /// The time of each node as JSON, from one replay that is waited for.
  [[nodiscard]] Outcome<std::string> profile(StreamRef stream) const {
    return detail::text_of([&](char** json) { return otr_graph_profile(id(), stream.id(), json); });
  }

 private:
  friend class Graph;
  explicit Executable(otr_graph_exec_t exec) noexcept : handle_(exec) {}
  detail::Owned<otr_graph_exec_destroy> handle_;
};

/// How a graph is written down.
enum class DumpFormat : std::uint32_t { dot = OTR_GRAPH_DOT, json = OTR_GRAPH_JSON, svg = OTR_GRAPH_SVG };

/// Nodes and edges, captured or built. Destroyed with its object; what was instantiated lives on.
class Graph {
 public:
  /// A node, by its number within its graph.
  using Node = otr_node_t;
  using Nodes = std::initializer_list<Node>;

  /// An empty graph, to be built node by node.
  static Outcome<Graph> create(Device device) {
    otr_graph_t graph = 0;
    return detail::done(otr_graph_create(device.index(), 0, &graph), [&graph] { return Graph(graph); });
  }
  [[nodiscard]] otr_graph_t id() const noexcept { return handle_.get(); }

  /// Adds an operator that runs after `after`.
  Outcome<Node> add(Nodes after, Operator op, std::initializer_list<Tensor> inputs,
                    std::initializer_list<Tensor> outputs,
                    std::initializer_list<Scalar> scalars = {}) const {
    const detail::Operands operands(inputs, outputs, scalars);
    return detail::number<Node>([&](Node* node) {
      return otr_graph_add_operator(id(), after.begin(), count(after), op.id(), operands.raw(), node);
    });
  }
  /// Adds a launch of a kernel.
  Outcome<Node> add(Nodes after, const Kernel& kernel, const Grid& grid, const Arguments& arguments) const {
    const otr_launch_t launch = arguments.raw(grid);
    return detail::number<Node>([&](Node* node) {
      return otr_graph_add_kernel(id(), after.begin(), count(after), kernel.id(), &launch, node);
    });
  }
  /// Adds a copy between device addresses.
  Outcome<Node> add_copy(Nodes after, otr_address_t to, otr_address_t from, std::uint64_t bytes) const {
    return detail::number<Node>([&](Node* node) {
      return otr_graph_add_copy(id(), after.begin(), count(after), to, from, bytes,
                                OTR_COPY_DEVICE_TO_DEVICE, node);
    });
  }
  /// Adds a fill with a value of 1, 2, 4, 8 or 16 bytes.
  template <class T>
  Outcome<Node> add_fill(Nodes after, otr_address_t to, std::uint64_t bytes, const T& value) const {
    static_assert(std::is_trivially_copyable_v<T>, "a pattern is plain bytes");
    return detail::number<Node>([&](Node* node) {
      return otr_graph_add_fill(id(), after.begin(), count(after), to, bytes, &value, sizeof value, node);
    });
  }

  /// Replays may put other memory in place of this buffer. Before the graph is instantiated.
  Outcome<> name_buffer(const char* name, const Buffer& buffer) const {
    return detail::done(otr_graph_name_buffer(id(), name, buffer.address(), buffer.bytes()));
  }
  /// Replays may put another number in place of this scalar of an operator's node.
  Outcome<> name_scalar(const char* name, Node node, std::uint32_t index) const {
    return detail::done(otr_graph_name_scalar(id(), name, node, index));
  }

  /// Replays may put another value in place of this argument of a kernel's node.
  Outcome<> name_argument(const char* name, Node node, std::uint32_t index) const {
    return detail::done(otr_graph_name_argument(id(), name, node, index));
  }

  [[nodiscard]] Outcome<otr_graph_info_t> info() const {
    return detail::filled<otr_graph_info_t>([this](auto* info) { return otr_graph_info(id(), info); });
  }
  [[nodiscard]] Outcome<std::string> dump(DumpFormat format) const {
    return detail::text_of([&](char** text) {
      return otr_graph_dump(id(), static_cast<std::uint32_t>(format), text);
    });
  }
  /// Makes it executable. `flags` is 0, or of OTR_GRAPH_SERIAL, _SUBMIT and _NATIVE.
  [[nodiscard]] Outcome<Executable> instantiate(std::uint32_t flags = 0) const {
    otr_graph_exec_t exec = 0;
    return detail::done(otr_graph_instantiate(id(), flags, &exec), [&exec] { return Executable(exec); });
  }
  /// Takes addresses and numbers over into what was instantiated from a graph of the same shape.
  Outcome<> update(const Executable& exec) const {
    return detail::done(otr_graph_update(exec.id(), id()));
  }

 private:
  friend class Capture;
  explicit Graph(otr_graph_t graph) noexcept : handle_(graph) {}

  static std::uint32_t count(Nodes nodes) noexcept { return static_cast<std::uint32_t>(nodes.size()); }

  detail::Owned<otr_graph_destroy> handle_;
};

/// A capture: work of its stream, and of streams that wait for its events, is recorded instead of run.
/// One that is destroyed before `end` is given up, and its streams are usable.
class Capture {
 public:
  static Outcome<Capture> begin(StreamRef stream, std::uint32_t mode = OTR_CAPTURE_THREAD_LOCAL) {
    return detail::done(otr_capture_begin(stream.id(), mode, 0), [&stream] { return Capture(stream.id()); });
  }
  static Outcome<Capture> begin(StreamRef stream, const Pool& pool,
                                std::uint32_t mode = OTR_CAPTURE_THREAD_LOCAL) {
    return detail::done(otr_capture_begin(stream.id(), mode, pool.id()),
                        [&stream] { return Capture(stream.id()); });
  }
  Capture(Capture&& other) noexcept : stream_(std::exchange(other.stream_, 0)) {}
  Capture& operator=(Capture&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Capture() {
    if (stream_ == 0) return;
    otr_graph_t graph = 0;
    detail::ignore(otr_capture_abort(stream_, "the capture's object was destroyed before its end"));
    detail::ignore(otr_capture_end(stream_, &graph));
  }

  /// Ends it. Fails with the first failure of a call in the capture; it has ended then, too.
  Outcome<Graph> end() {
    otr_graph_t graph = 0;
    return detail::done(otr_capture_end(std::exchange(stream_, 0), &graph),
                        [&graph] { return Graph(graph); });
  }

 private:
  explicit Capture(otr_stream_t stream) noexcept : stream_(stream) {}
  otr_stream_t stream_;
};

}  // namespace OTR_CPP_FACE
}  // namespace otr

#endif  // OUTRIGGER_CPP_GRAPH_HPP
