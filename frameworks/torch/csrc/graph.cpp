//! Captures, replays and pools over the C ABI. A call that can wait or call back into Python (the end
//! of a capture, the release of what it held) is made outside of the lock.

#include "graph.h"

#include <ATen/autocast_mode.h>

#include <fstream>
#include <map>
#include <utility>

namespace outrigger {
namespace {

/// Holds the GIL, if there is an interpreter to hold it of.
class Gil {
 public:
  Gil() : there_(Py_IsInitialized() != 0) {
    if (there_) {
      state_ = PyGILState_Ensure();
    }
  }
  ~Gil() {
    if (there_) {
      PyGILState_Release(state_);
    }
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  explicit operator bool() const {
    return there_;
  }

 private:
  bool there_;
  PyGILState_STATE state_ = PyGILState_UNLOCKED;
};

/// The exception that this thread is handling, as a new reference, or null. The GIL is held.
PyObject* handled_exception() {
#if PY_VERSION_HEX >= 0x030B0000
  PyObject* value = PyErr_GetHandledException();
#else
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_GetExcInfo(&type, &value, &traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
#endif
  if (value == Py_None) {
    Py_CLEAR(value);
  }
  return value;
}

/// Takes hold of the exception that is being handled at the beginning of a capture.
PyObject* exception_at_begin() {
  const Gil gil;
  return gil ? handled_exception() : nullptr;
}

/// The text of a Python object, empty if it has none. The GIL is held.
std::string text_of(PyObject* object) {
  PyObject* text = PyObject_Str(object);
  const char* utf8 = text == nullptr ? nullptr : PyUnicode_AsUTF8(text);
  std::string result = utf8 == nullptr ? "" : utf8;
  Py_XDECREF(text);
  PyErr_Clear();
  return result;
}

/// Gives up `before`, and tells the exception that is being handled now if it is another one.
std::optional<std::string> exception_since(PyObject* before) {
  const Gil gil;
  if (!gil) {
    return std::nullopt;
  }
  // An exception on its way through this thread must survive the calls here.
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* now = handled_exception();
  std::optional<std::string> text;
  if (now != nullptr && now != before) {
    text = c10::str(Py_TYPE(now)->tp_name, ": ", text_of(now));
  }
  Py_XDECREF(now);
  Py_XDECREF(before);
  PyErr_Restore(type, value, traceback);
  return text;
}

/// Calls that destroy something: they fail only for handles that are not ours.
void destroy(otr_graph_t graph, otr_graph_exec_t exec) {
  if (exec != 0) {
    warn_if_failed(otr_graph_exec_destroy(exec), "destroying an executable graph");
  }
  if (graph != 0) {
    warn_if_failed(otr_graph_destroy(graph), "destroying a graph");
  }
}

struct Pools {
  std::mutex lock;
  std::map<std::pair<c10::MempoolId_t, c10::DeviceIndex>, std::weak_ptr<Pool>> live;
  // As in CUDA: the first number counts pools of single graphs, the second those made to be shared.
  uint64_t of_graphs = 0;
  uint64_t shared = 0;
};

Pools& pools() {
  // Leaked on purpose: graphs of other static objects may outlive any order of destruction.
  static auto* all = new Pools;
  return *all;
}

}  // namespace

Pool::Pool(c10::DeviceIndex device) {
  check(otr_pool_create(static_cast<uint32_t>(device), &handle_));
}

Pool::~Pool() {
  warn_if_failed(otr_pool_destroy(handle_), "destroying a pool of graphs");
}

c10::MempoolId_t Pool::new_id() {
  const std::lock_guard<std::mutex> lock(pools().lock);
  return {0, ++pools().shared};
}

std::shared_ptr<Pool> Pool::get(c10::MempoolId_t* id, c10::DeviceIndex device) {
  Pools& all = pools();
  const std::lock_guard<std::mutex> lock(all.lock);
  if (*id == c10::MempoolId_t{0, 0}) {
    *id = {++all.of_graphs, 0};
  }
  TORCH_CHECK_VALUE(
      id->first <= all.of_graphs && id->second <= all.shared && (id->first == 0) != (id->second == 0),
      who(), "(", id->first, ", ", id->second,
      ") is not the id of a pool: use what graph_pool_handle() or the pool() of a graph has returned");
  std::weak_ptr<Pool>& entry = all.live[{*id, device}];
  std::shared_ptr<Pool> pool = entry.lock();
  if (!pool) {
    pool = std::make_shared<Pool>(device);
    entry = pool;
    std::erase_if(all.live, [](const auto& other) { return other.second.expired(); });
  }
  return pool;
}

Graph::~Graph() {
  try {
    reset();
  } catch (const std::exception& error) {
    TORCH_WARN(who(), "giving up a graph failed: ", error.what());
  }
}

void Graph::capture_begin(c10::MempoolId_t pool, uint32_t mode) {
  // A replay has to cast weights itself: they change between replays.
  at::autocast::clear_cache();
  PyObject* handled = exception_at_begin();
  try {
    const std::lock_guard<std::mutex> lock(lock_);
    TORCH_CHECK(state_ != State::kCapturing, who(), "this graph is being captured already");
    TORCH_CHECK(
        state_ == State::kEmpty,
        who(), "this graph has been captured already: reset() it first, or make another one");
    const c10::DeviceIndex device = current_device();
    const otr_stream_t stream = current_stream(device);
    c10::MempoolId_t id = pool;
    std::shared_ptr<Pool> shared = Pool::get(&id, device);
    check(otr_capture_begin(stream, mode, shared->handle()));
    state_ = State::kCapturing;
    stream_ = stream;
    device_ = device;
    pool_id_ = id;
    pool_ = std::move(shared);
    std::swap(handled_, handled);
  } catch (...) {
    exception_since(handled);
    throw;
  }
}

void Graph::capture_end() {
  PyObject* handled = nullptr;
  otr_stream_t stream = 0;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    TORCH_CHECK(
        state_ == State::kCapturing, who(), "no capture of this graph is under way: call capture_begin() first",
        failure_.empty() ? "" : "; its last one failed: ", failure_);
    // Until the end is known the graph counts as failed: nobody else can end it a second time.
    state_ = State::kFailed;
    failure_ = "it is being ended";
    std::swap(handled, handled_);
    stream = stream_;
  }
  // Copies that autocast made in the capture have their numbers at a replay only.
  at::autocast::clear_cache();
  const std::optional<std::string> exception = exception_since(handled);
  if (exception.has_value()) {
    const std::string reason = "an exception left the capture: " + *exception;
    warn_if_failed(otr_capture_abort(stream, reason.c_str()), "failing a capture");
  }
  otr_graph_t graph = 0;
  otr_status_t* status = otr_capture_end(stream, &graph);
  if (status != nullptr) {
    abandon(describe(status));
    if (exception.has_value()) {
      // The exception is the news; the failed end only follows from it.
      otr_status_free(status);
      return;
    }
    raise(status);
  }
  std::string problem;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    graph_ = graph;
    state_ = State::kCaptured;
    failure_.clear();
    try {
      for (const Name& each : names_) {
        check(otr_graph_name_buffer(graph_, each.name.c_str(), each.address, each.bytes));
      }
      if (!keep_) {
        make_exec();
      }
      return;
    } catch (const c10::Error& error) {
      problem = error.what_without_backtrace();
    }
  }
  abandon(problem);
  TORCH_CHECK(false, problem);
}

// Gives up what was captured; from now on every use says why. Not under the lock.
void Graph::abandon(std::string why) {
  std::shared_ptr<Pool> pool;
  otr_graph_t graph = 0;
  otr_graph_exec_t exec = 0;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    state_ = State::kFailed;
    failure_ = std::move(why);
    std::swap(pool, pool_);
    graph = std::exchange(graph_, 0);
    exec = std::exchange(exec_, 0);
  }
  destroy(graph, exec);
}

void Graph::expect_graph(const char* doing) const {
  switch (state_) {
    case State::kCaptured: return;
    case State::kFailed:
      TORCH_CHECK(
          false, who(), "cannot ", doing, " this graph, its capture failed: ", failure_,
          ". reset() it and capture anew");
    case State::kCapturing:
      TORCH_CHECK(false, who(), "cannot ", doing, " this graph while it is being captured: end the capture first");
    case State::kEmpty:
      TORCH_CHECK(
          false, who(), "cannot ", doing, " this graph: nothing is captured",
          device_ < 0 ? "" : ", as it has been reset", ". Capture it first");
  }
}

// The executable graph, made now if it has not been. Calls with it need no lock: if it is destroyed
// meanwhile, its handle is an error.
otr_graph_exec_t Graph::ready(const char* doing) {
  const std::lock_guard<std::mutex> lock(lock_);
  expect_graph(doing);
  if (C10_UNLIKELY(exec_ == 0)) {
    make_exec();
  }
  return exec_;
}

// Under the lock.
void Graph::make_exec() {
  check(otr_graph_instantiate(graph_, 0, &exec_));
  if (!keep_ && !debug_) {
    warn_if_failed(otr_graph_destroy(std::exchange(graph_, 0)), "destroying a graph");
  }
}

void Graph::instantiate() {
  otr_graph_exec_t before = 0;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    expect_graph("instantiate");
    TORCH_CHECK(
        keep_, who(), "this graph is executable since capture_end(), as it was made without keep_graph=True");
    before = std::exchange(exec_, 0);
    make_exec();
  }
  destroy(0, before);
}

void Graph::replay() {
  const otr_graph_exec_t exec = ready("replay");
  check(otr_graph_replay(exec, current_stream(device_)));
}

void Graph::capture_conditional(
    uint32_t kind, const at::Tensor& predicate, const std::vector<const Graph*>& bodies) {
  TORCH_CHECK_VALUE(
      is_ours(predicate) && predicate.numel() == 1, who(), "the predicate of a conditional node is one number on the device");
  std::vector<otr_graph_t> graphs;
  for (const Graph* body : bodies) {
    const std::lock_guard<std::mutex> lock(body->lock_);
    body->expect_graph("record a conditional node with");
    graphs.push_back(body->graph_);
  }
  check(otr_capture_conditional(
      current_stream(predicate.device().index()), kind, address_of(predicate.const_data_ptr()),
      dtype_of(predicate.scalar_type()), graphs.data(), static_cast<uint32_t>(graphs.size())));
}

void Graph::reset() {
  otr_stream_t capturing = 0;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    capturing = state_ == State::kCapturing ? stream_ : 0;
  }
  if (capturing != 0) {
    warn_if_failed(otr_capture_abort(capturing, "the graph was reset while it was captured"), "failing a capture");
    try {
      capture_end();
    } catch (const c10::Error&) {
      // As it must: the capture was given up.
    }
  }
  abandon("");
  const std::lock_guard<std::mutex> lock(lock_);
  state_ = State::kEmpty;
  names_.clear();
  slots_.clear();
}

c10::MempoolId_t Graph::pool() const {
  const std::lock_guard<std::mutex> lock(lock_);
  if (state_ != State::kCapturing) {
    expect_graph("tell the pool of");
  }
  return pool_id_;
}

otr_pool_info_t Graph::pool_info() const {
  const std::lock_guard<std::mutex> lock(lock_);
  expect_graph("describe the pool of");
  auto info = otr::sized<otr_pool_info_t>();
  check(otr_pool_info(pool_->handle(), &info));
  return info;
}

c10::DeviceIndex Graph::device() const {
  const std::lock_guard<std::mutex> lock(lock_);
  return device_;
}

void Graph::enable_debug_mode() {
  const std::lock_guard<std::mutex> lock(lock_);
  debug_ = true;
}

std::string Graph::dump(uint32_t format) const {
  const std::lock_guard<std::mutex> lock(lock_);
  expect_graph("dump");
  TORCH_CHECK(
      graph_ != 0, who(), "the graph is gone since it is executable: make it with keep_graph=True, or call "
      "enable_debug_mode() before the capture");
  return text_from([&](char** text) { return otr_graph_dump(graph_, format, text); });
}

void Graph::debug_dump(const std::string& path) const {
  const auto ends_with = [&](const char* ending) { return c10::string_view(path).ends_with(ending); };
  uint32_t format = OTR_GRAPH_DOT;
  if (ends_with(".svg")) {
    format = OTR_GRAPH_SVG;
  } else if (ends_with(".json")) {
    format = OTR_GRAPH_JSON;
  } else {
    TORCH_CHECK_VALUE(ends_with(".dot"), who(), "the name of a dump ends with .dot, .svg or .json: ", path);
  }
  const std::string text = dump(format);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  TORCH_CHECK(!file.fail(), who(), "cannot write ", path);
}

void Graph::name(const std::string& name, otr_address_t address, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(lock_);
  if (state_ == State::kCaptured) {
    TORCH_CHECK(
        exec_ == 0, who(), name, " cannot be named any more: name tensors before the graph is executable, "
        "within its capture or before instantiate()");
    check(otr_graph_name_buffer(graph_, name.c_str(), address, bytes));
  } else if (state_ == State::kFailed) {
    expect_graph("name tensors of");
  }
  names_.push_back({name, address, bytes});
}

void Graph::set(const std::string& name, otr_address_t address) {
  const otr_graph_exec_t exec = ready("set tensors of");
  uint32_t slot = 0;
  check(otr_graph_slot(exec, name.c_str(), &slot));
  check(otr_graph_bind(exec, slot, address));
}

void Graph::run(const std::vector<otr_address_t>& addresses) {
  const otr_graph_exec_t exec = ready("replay");
  if (C10_UNLIKELY(slots_.size() != names_.size())) {
    slots_.resize(names_.size());
    for (size_t i = 0; i < names_.size(); ++i) {
      check(otr_graph_slot(exec, names_[i].name.c_str(), &slots_[i]));
    }
  }
  TORCH_CHECK_VALUE(
      addresses.size() == slots_.size(), who(), "the graph has ", slots_.size(), " names, and was given ",
      addresses.size(), " addresses");
  size_t set = 0;
  otr_status_t* status = nullptr;
  for (; set < slots_.size() && status == nullptr; ++set) {
    status = otr_graph_bind(exec, slots_[set], addresses[set]);
  }
  if (status == nullptr) {
    status = otr_graph_replay(exec, current_stream(device_));
  }
  for (size_t i = 0; i < set; ++i) {
    warn_if_failed(otr_graph_bind(exec, slots_[i], 0), "letting go of memory that a graph has used");
  }
  check(status);
}

void Graph::update(const Graph& other) {
  otr_graph_t from = 0;
  {
    const std::lock_guard<std::mutex> lock(other.lock_);
    other.expect_graph("update from");
    TORCH_CHECK(
        other.graph_ != 0, who(), "the graph to update from is gone since it is executable: make it with "
        "keep_graph=True");
    from = other.graph_;
  }
  check(otr_graph_update(ready("update"), from));
}

std::string Graph::profile() {
  const otr_graph_exec_t exec = ready("profile");
  return text_from([&](char** text) { return otr_graph_profile(exec, current_stream(device_), text); });
}

std::string Graph::cost() {
  const otr_graph_exec_t exec = ready("tell the cost of");
  return text_from([&](char** text) { return otr_graph_cost(exec, current_stream(device_), text); });
}

void Graph::check_replay() {
  const otr_graph_exec_t exec = ready("check");
  check(otr_graph_check(exec, current_stream(device_)));
}

otr_graph_info_t Graph::info() const {
  const std::lock_guard<std::mutex> lock(lock_);
  expect_graph("describe");
  TORCH_CHECK(graph_ != 0, who(), "the graph is gone since it is executable");
  auto info = otr::sized<otr_graph_info_t>();
  check(otr_graph_info(graph_, &info));
  return info;
}

otr_graph_exec_info_t Graph::exec_info() {
  const otr_graph_exec_t exec = ready("describe");
  auto info = otr::sized<otr_graph_exec_info_t>();
  check(otr_graph_exec_info(exec, &info));
  return info;
}

#if OUTRIGGER_TORCH_SINCE(12)
void AcceleratorGraph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::ThreadLocal: return graph_.capture_begin(pool, OTR_CAPTURE_THREAD_LOCAL);
    case at::GraphCaptureMode::Relaxed: return graph_.capture_begin(pool, OTR_CAPTURE_RELAXED);
    default: return graph_.capture_begin(pool, OTR_CAPTURE_GLOBAL);
  }
}

void register_graphs(c10::DeviceType type) {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(type, /*lower_case=*/false), [](const at::GraphImplArgs& args) {
        return std::unique_ptr<at::GraphImplInterface>(new AcceleratorGraph(args));
      });
}
#else
void register_graphs(c10::DeviceType) {}
#endif

}  // namespace outrigger
