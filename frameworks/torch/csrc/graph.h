//! One graph as torch uses it: captured on a stream, instantiated, replayed, reset. It has a memory
//! pool, which graphs share by its id. The same class serves `torch.accelerator.Graph`,
//! `torch.mtia.MTIAGraph` and `torch_outrigger.graphs`. It must never hold its lock while it waits or
//! needs the interpreter.
#pragma once

#include "runtime.h"

#include <Python.h>

#if OUTRIGGER_TORCH_SINCE(12)
#include <ATen/core/GraphImplInterface.h>
#endif
#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace outrigger {

/// A pool of memory for graphs of one device. It is given back when its last graph lets go of it.
class Pool {
 public:
  /// The pool with this id on a device, made if no graph has it now. (0, 0) asks for a new one, whose id
  /// is written to `id`. Any other id must be one that was handed out.
  static std::shared_ptr<Pool> get(c10::MempoolId_t* id, c10::DeviceIndex device);
  /// A new id, for graphs to share.
  static c10::MempoolId_t new_id();

  explicit Pool(c10::DeviceIndex device);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  otr_pool_t handle() const {
    return handle_;
  }

 private:
  otr_pool_t handle_ = 0;
};

/// A graph. Every method may be called from any thread, with or without the GIL.
class Graph {
 public:
  /// `keep` keeps the graph itself after `capture_end`, and leaves it to `instantiate` or the first
  /// `replay` to make it executable.
  explicit Graph(bool keep) : keep_(keep) {}
  /// Also ends a capture under way.
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Starts recording the current stream of the current device. `mode` is one of OTR_CAPTURE_*.
  void capture_begin(c10::MempoolId_t pool, uint32_t mode);

  /// Ends the recording. If a Python exception is being handled that was not at the beginning, as in the
  /// `__exit__` of a context manager whose body raised, the graph is thrown away and can never be
  /// replayed; the exception goes on, and this call adds none.
  void capture_end();

  /// Makes the graph executable. Needed only after a capture that keeps the graph, and allowed again then.
  void instantiate();

  /// Runs the graph on the current stream of its device.
  void replay();

  /// Gives back the graph and its share of the pool; replays that run still finish. The object can then
  /// be used for another capture.
  void reset();

  /// The id of the pool, for other graphs to share.
  c10::MempoolId_t pool() const;

  /// Keeps the graph after `capture_end` for `dump`.
  void enable_debug_mode();

  /// A picture or listing of the graph in one of OTR_GRAPH_DOT, _JSON, _SVG.
  std::string dump(uint32_t format) const;

  /// Writes `dump` to a file, in the format that its name ends with: .dot, .svg or .json.
  void debug_dump(const std::string& path) const;

  /// Names the bytes from `address` on, so that `set` can give replays others. Before `instantiate`.
  void name(const std::string& name, otr_address_t address, uint64_t bytes);

  /// Gives later replays other bytes for a name. The graph holds them until they are replaced.
  void set(const std::string& name, otr_address_t address);

  /// Replays with one address for each name, in the order of their naming. The graph lets go of them when the replay is
  /// submitted. Two threads must not run a graph, or set its names, at the same time.
  void run(const std::vector<otr_address_t>& addresses);

  /// Gives the executable graph what `other`, captured with the same nodes, has recorded.
  void update(const Graph& other);

  /// One replay with a time for each node, as JSON. Waits.
  std::string profile();

  /// The time of a replay next to that of its nodes run one by one, as JSON. Waits.
  std::string cost();

  /// Compares one replay with running the nodes one by one from the same contents of memory. Fails with
  /// the first that differs. Waits.
  void check_replay();

  /// Records a conditional node into what the current stream of a device captures: which of `bodies`, captured graphs that
  /// were kept, runs at a replay is decided by `predicate`, one number on the device. `kind` is one of OTR_GRAPH_*. The node
  /// takes the bodies as they are.
  static void capture_conditional(uint32_t kind, const at::Tensor& predicate, const std::vector<const Graph*>& bodies);

  /// Figures of the captured and of the executable graph.
  otr_graph_info_t info() const;
  otr_graph_exec_info_t exec_info();

  /// Figures of the pool.
  otr_pool_info_t pool_info() const;

  /// The device, or -1 before the first capture.
  c10::DeviceIndex device() const;

 private:
  enum class State { kEmpty, kCapturing, kCaptured, kFailed };
  struct Name {
    std::string name;
    otr_address_t address;
    uint64_t bytes;
  };

  void expect_graph(const char* doing) const;
  otr_graph_exec_t ready(const char* doing);
  void make_exec();
  void abandon(std::string why);

  const bool keep_;
  mutable std::mutex lock_;
  State state_ = State::kEmpty;
  bool debug_ = false;
  std::string failure_;
  otr_stream_t stream_ = 0;
  c10::DeviceIndex device_ = -1;
  c10::MempoolId_t pool_id_ = {0, 0};
  std::shared_ptr<Pool> pool_;
  otr_graph_t graph_ = 0;
  otr_graph_exec_t exec_ = 0;
  std::vector<Name> names_;
  // The slots of the names, once `run` has asked for them.
  std::vector<uint32_t> slots_;
  // The exception that was handled when the capture began, or null. Owned.
  PyObject* handled_ = nullptr;
};

#if OUTRIGGER_TORCH_SINCE(12)
/// A graph of our device types behind torch's interface for graphs.
class AcceleratorGraph final : public at::GraphImplInterface {
 public:
  explicit AcceleratorGraph(const at::GraphImplArgs& args) : graph_(args.keep_graph) {}

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override;
  void capture_end() override {
    graph_.capture_end();
  }
  void instantiate() override {
    graph_.instantiate();
  }
  void replay() override {
    graph_.replay();
  }
  void reset() override {
    graph_.reset();
  }
  c10::MempoolId_t pool() const override {
    return graph_.pool();
  }
  void enable_debug_mode() override {
    graph_.enable_debug_mode();
  }
  void debug_dump(const std::string& path) override {
    graph_.debug_dump(path);
  }

 private:
  Graph graph_;
};

#endif

/// Makes `torch.accelerator.Graph` work on a device type, where torch has it. Once for each, after its name is settled.
void register_graphs(c10::DeviceType type);

}  // namespace outrigger
