//! Graphs in Python: a capsule owns a `Graph` and is the first argument of the functions. They run
//! without the GIL. They must never look further into tensors than to their addresses:
//! `torch_outrigger` has checked the rest.

#include "graph_module.h"

#include "capture.h"
#include "graph.h"
#include "python.h"
#include "runtime.h"

#include <torch/csrc/autograd/python_variable.h>

#include <vector>

namespace outrigger {
namespace {

constexpr const char* kGraphName = "torch_outrigger.graph";

void free_graph(PyObject* capsule) {
  auto* graph = static_cast<Graph*>(PyCapsule_GetPointer(capsule, kGraphName));
  const WithoutGil released;
  delete graph;
}

Graph& graph_of(PyObject* capsule) {
  void* pointer = PyCapsule_GetPointer(capsule, kGraphName);
  if (pointer == nullptr) {
    throw PythonError();
  }
  return *static_cast<Graph*>(pointer);
}

/// Runs `body` without the GIL, which is held again when an exception arrives here.
template <class Body>
auto released(const Body& body) {
  const WithoutGil without;
  return body();
}

PyObject* pool_id(c10::MempoolId_t id) {
  return Py_BuildValue("(KK)", static_cast<unsigned long long>(id.first), static_cast<unsigned long long>(id.second));
}

PyObject* graph_new(PyObject* keep) {
  auto graph = std::make_unique<Graph>(PyObject_IsTrue(keep) == 1);
  PyObject* capsule = PyCapsule_New(graph.get(), kGraphName, &free_graph);
  if (capsule != nullptr) {
    graph.release();
  }
  return capsule;
}

PyObject* graph_capture_begin(PyObject* arguments) {
  PyObject* capsule = nullptr;
  unsigned long long first = 0, second = 0;
  unsigned int mode = 0;
  parse(arguments, "O(KK)I", &capsule, &first, &second, &mode);
  Graph& graph = graph_of(capsule);
  released([&] { graph.capture_begin({first, second}, mode); });
  return none();
}

/// A function of a graph that takes and returns nothing.
template <void (Graph::*Method)()>
PyObject* simple(PyObject* capsule) {
  Graph& graph = graph_of(capsule);
  released([&] { (graph.*Method)(); });
  return none();
}

/// A function of a graph that takes nothing and returns a text.
template <std::string (Graph::*Method)()>
PyObject* textual(PyObject* capsule) {
  Graph& graph = graph_of(capsule);
  const std::string text = released([&] { return (graph.*Method)(); });
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

PyObject* graph_pool(PyObject* capsule) {
  return pool_id(graph_of(capsule).pool());
}

PyObject* graph_device(PyObject* capsule) {
  return PyLong_FromLong(graph_of(capsule).device());
}

PyObject* graph_debug_dump(PyObject* arguments) {
  PyObject* capsule = nullptr;
  const char* path = nullptr;
  parse(arguments, "Os", &capsule, &path);
  Graph& graph = graph_of(capsule);
  released([&] { graph.debug_dump(path); });
  return none();
}

PyObject* graph_name(PyObject* arguments) {
  PyObject* capsule = nullptr;
  const char* name = nullptr;
  unsigned long long address = 0, bytes = 0;
  parse(arguments, "OsKK", &capsule, &name, &address, &bytes);
  graph_of(capsule).name(name, address, bytes);
  return none();
}

PyObject* graph_set(PyObject* arguments) {
  PyObject* capsule = nullptr;
  const char* name = nullptr;
  unsigned long long address = 0;
  parse(arguments, "OsK", &capsule, &name, &address);
  Graph& graph = graph_of(capsule);
  released([&] { graph.set(name, address); });
  return none();
}

PyObject* graph_run(PyObject* arguments) {
  PyObject *capsule = nullptr, *places = nullptr, *tensors = nullptr;
  parse(arguments, "OSO!", &capsule, &places, &PyList_Type, &tensors);
  Graph& graph = graph_of(capsule);
  const auto* first = reinterpret_cast<const otr_address_t*>(PyBytes_AS_STRING(places));
  std::vector<otr_address_t> addresses(first, first + PyBytes_GET_SIZE(places) / sizeof(otr_address_t));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject* one = PyList_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(THPVariable_Check(one), who(), "result ", i, " is not a tensor");
    addresses.push_back(address_of(THPVariable_Unpack(one).const_data_ptr()));
  }
  released([&] { graph.run(addresses); });
  return none();
}

PyObject* graph_update(PyObject* arguments) {
  PyObject* capsule = nullptr;
  PyObject* other = nullptr;
  parse(arguments, "OO", &capsule, &other);
  Graph& graph = graph_of(capsule);
  const Graph& from = graph_of(other);
  released([&] { graph.update(from); });
  return none();
}

PyObject* graph_info(PyObject* capsule) {
  const otr_graph_info_t info = graph_of(capsule).info();
  return Py_BuildValue(
      "{s:I,s:I,s:K}", "nodes", info.nodes, "edges", info.edges, "memory_bytes",
      static_cast<unsigned long long>(info.memory_bytes));
}

PyObject* graph_exec_info(PyObject* capsule) {
  Graph& graph = graph_of(capsule);
  const otr_graph_exec_info_t info = released([&] { return graph.exec_info(); });
  using Number = unsigned long long;
  return Py_BuildValue(
      "{s:I,s:I,s:I,s:I,s:K,s:K,s:K}", "nodes", info.nodes, "dropped", info.dropped, "levels", info.levels,
      "parallel_levels", info.parallel_levels, "replays", static_cast<Number>(info.replays), "memory_bytes",
      static_cast<Number>(info.memory_bytes), "estimated_ns", static_cast<Number>(info.estimated_ns));
}

PyObject* graph_pool_info(PyObject* capsule) {
  const otr_pool_info_t info = graph_of(capsule).pool_info();
  using Number = unsigned long long;
  return Py_BuildValue(
      "{s:I,s:K,s:K,s:K}", "users", info.users, "reserved_bytes", static_cast<Number>(info.reserved_bytes),
      "allocated_bytes", static_cast<Number>(info.allocated_bytes), "peak_allocated_bytes",
      static_cast<Number>(info.peak_allocated_bytes));
}

PyObject* pool_handle(PyObject*) {
  return pool_id(Pool::new_id());
}

PyObject* stream_is_capturing(PyObject* arguments) {
  int index = 0;
  parse(arguments, "i", &index);
  const c10::DeviceIndex device = index < 0 ? current_device() : static_cast<c10::DeviceIndex>(index);
  return PyBool_FromLong(is_capturing(current_stream(device)));
}

PyObject* capture_conditional(PyObject* arguments) {
  unsigned int kind = 0;
  PyObject *predicate = nullptr, *bodies = nullptr;
  parse(arguments, "IOO!", &kind, &predicate, &PyList_Type, &bodies);
  TORCH_CHECK_TYPE(THPVariable_Check(predicate), who(), "the predicate of a conditional node is a tensor");
  std::vector<const Graph*> graphs;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bodies); ++i) {
    graphs.push_back(&graph_of(PyList_GET_ITEM(bodies, i)));
  }
  const at::Tensor& number = THPVariable_Unpack(predicate);
  released([&] { Graph::capture_conditional(kind, number, graphs); });
  return none();
}

PyObject* capture_label(PyObject* arguments) {
  int index = 0;
  const char* label = nullptr;
  parse(arguments, "iz", &index, &label);
  check(otr_capture_label(current_stream(static_cast<c10::DeviceIndex>(index)), label));
  return none();
}

PyMethodDef methods[] = {
    {"graph_new", bound<graph_new>, METH_O, "A new graph; the argument says whether it keeps what is captured."},
    {"graph_capture_begin", bound<graph_capture_begin>, METH_VARARGS,
     "Starts a capture on the current stream: (graph, pool id, mode)."},
    {"graph_capture_end", bound<simple<&Graph::capture_end>>, METH_O, "Ends the capture."},
    {"graph_instantiate", bound<simple<&Graph::instantiate>>, METH_O, "Makes the graph executable."},
    {"graph_replay", bound<simple<&Graph::replay>>, METH_O, "Runs the graph on the current stream of its device."},
    {"graph_reset", bound<simple<&Graph::reset>>, METH_O, "Gives back the graph and its share of the pool."},
    {"graph_enable_debug_mode", bound<simple<&Graph::enable_debug_mode>>, METH_O, "Keeps the graph for dumps."},
    {"graph_pool", bound<graph_pool>, METH_O, "The id of the graph's pool."},
    {"graph_pool_info", bound<graph_pool_info>, METH_O, "What is known of the graph's pool."},
    {"graph_device", bound<graph_device>, METH_O, "The index of the graph's device, -1 before a capture."},
    {"graph_debug_dump", bound<graph_debug_dump>, METH_VARARGS, "Writes the graph to a .dot, .svg or .json: (graph, path)."},
    {"graph_name", bound<graph_name>, METH_VARARGS, "Names bytes that `graph_set` can exchange: (graph, name, address, size)."},
    {"graph_set", bound<graph_set>, METH_VARARGS, "Other bytes for a name: (graph, name, address)."},
    {"graph_run", bound<graph_run>, METH_VARARGS,
     "Replays with other bytes for all names, for this time: (graph, addresses, tensors), in the order of naming."},
    {"graph_update", bound<graph_update>, METH_VARARGS, "Takes over what another graph has recorded: (graph, other)."},
    {"graph_profile", bound<textual<&Graph::profile>>, METH_O, "One timed replay, as JSON."},
    {"graph_cost", bound<textual<&Graph::cost>>, METH_O, "A replay next to its nodes run one by one, as JSON."},
    {"graph_check", bound<simple<&Graph::check_replay>>, METH_O,
     "Compares a replay with running the nodes one by one; fails with the first that differs."},
    {"graph_info", bound<graph_info>, METH_O, "What was captured."},
    {"graph_exec_info", bound<graph_exec_info>, METH_O, "What is executed."},
    {"graph_pool_handle", bound<pool_handle>, METH_NOARGS, "A new id of a pool."},
    {"stream_is_capturing", bound<stream_is_capturing>, METH_VARARGS,
     "Whether the current stream of a device records a graph; -1 is the current device."},
    {"capture_conditional", bound<capture_conditional>, METH_VARARGS,
     "Records a conditional node on the current stream: (kind, predicate, kept graphs)."},
    {"capture_label", bound<capture_label>, METH_VARARGS,
     "The label of what the current stream of a device records from here on: (device, text or None)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_graph_functions(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
