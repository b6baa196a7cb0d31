//! `torch_outrigger._C`: the functions of the runtime and of the shim that the Python package calls.
//!
//! The file is plain CPython: it parses arguments, calls the C ABI without the GIL, and turns a failure
//! into the Python exception that torch makes of it. A C++ exception must never leave a function here;
//! `bound` catches it for all of them.

#include <Python.h>

#include "activities.h"
#include "as_cuda.h"
#include "compiled.h"
#include "compiled_calls.h"
#include "distributed_module.h"
#include "generator.h"
#include "graph_module.h"
#include "held.h"
#include "kernel_module.h"
#include "memory_module.h"
#include "observer.h"
#include "personality.h"
#include "program_module.h"
#include "python.h"
#include "sharing_module.h"

#include <outrigger/framework.h>
#include <torch/csrc/Generator.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace outrigger {
namespace {

/// A device index from Python, checked to be that of a device before it is narrowed.
c10::DeviceIndex checked(int index) {
  const int count = device_count();
  TORCH_CHECK(
      count == 0 || (index >= 0 && index < count), who(), "invalid device index ", index, ": there ",
      count == 1 ? "is " : "are ", count, count == 1 ? " device" : " devices", ", numbered from 0");
  check_device(static_cast<c10::DeviceIndex>(count == 0 ? 0 : index));
  return static_cast<c10::DeviceIndex>(index);
}

/// The only argument, a device index.
c10::DeviceIndex device_argument(PyObject* arguments) {
  int index = 0;
  parse(arguments, "i", &index);
  return checked(index);
}

// ---- the package and its devices ----------------------------------------------------------------

PyObject* activate(PyObject* argument) {
  const char* name = text_of(argument);
  const char* variable = std::getenv("OUTRIGGER_TORCH");
  const std::string_view choice = variable == nullptr ? "" : variable;
  const bool outrigger = choice.empty() || choice == "outrigger" || choice == "both";
  const bool mtia = choice == "mtia" || choice == "both";
  TORCH_CHECK_VALUE(
      outrigger || mtia, "OUTRIGGER_TORCH=", choice,
      " does not choose a device type of torch; what does: outrigger (the default), mtia, both");
  speak_as(name);
  if (outrigger) {
    serve_outrigger(name);
  }
  if (mtia) {
    serve_mtia();
  }
  register_activities();
  lend_threads();
  return Py_BuildValue("(NN)", PyBool_FromLong(outrigger), PyBool_FromLong(mtia));
}

PyObject* version(PyObject*) {
  return PyUnicode_FromString(otr_version());
}

PyObject* runtime_init(PyObject*) {
  call([] { return otr_runtime_init(); });
  return none();
}

PyObject* default_drivers(PyObject* specs) {
  const char* text = text_of(specs);
  call([text] { return otr_driver_default(text); });
  return none();
}

PyObject* driver_load(PyObject* spec) {
  const char* text = text_of(spec);
  call([text] { return otr_driver_load(text); });
  return none();
}

PyObject* load_report(PyObject*) {
  return string_from([](char** text) { return otr_load_report(text); });
}

PyObject* count_devices(PyObject*) {
  uint32_t count = 0;
  call([&count] { return otr_device_count(&count); });
  return PyLong_FromUnsignedLong(count);
}

PyObject* check_index(PyObject* arguments) {
  device_argument(arguments);
  return none();
}

/// A number, or None where it is not known.
PyObject* known(bool is_known, long number) {
  return is_known ? PyLong_FromLong(number) : none();
}

PyObject* properties(PyObject* arguments) {
  const otr_device_info_t info = device_info(device_argument(arguments));
  return Py_BuildValue(
      "{s:s,s:s,s:s,s:s,s:K,s:N,s:I,s:I,s:i,s:i,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:N,s:N,s:N,s:N,s:N}", "name", info.name, "vendor", info.vendor, "driver",
      info.driver, "driver_version", info.driver_version, "total_memory",
      static_cast<unsigned long long>(info.total_memory), "host_visible", PyBool_FromLong(info.host_visible),
      "address_alignment", info.address_alignment, "compute_units", info.compute_units, "priority_lowest",
      info.priority_lowest, "priority_highest", info.priority_highest, "driver_ordinal", info.driver_ordinal,
      "code_formats", info.code_formats, "features", info.features, "largest_group", info.largest_group, "sub_group",
      info.sub_group, "argument_block_bytes", info.argument_block_bytes, "local_memory", info.local_memory_bytes, "uuid",
      PyBytes_FromStringAndSize(reinterpret_cast<const char*>(info.uuid), sizeof info.uuid), "pci_domain_id",
      known(info.has_pci, info.pci_domain), "pci_bus_id", known(info.has_pci, info.pci_bus), "pci_device_id",
      known(info.has_pci, info.pci_device), "numa_node", known(info.numa_node >= 0, info.numa_node));
}

PyObject* set_sync_debug(PyObject* arguments) {
  int mode = 0;
  parse(arguments, "i", &mode);
  TORCH_CHECK_VALUE(mode >= 0 && mode <= 2, who(), "there is no mode ", mode, " of waits");
  sync_debug_mode = static_cast<SyncDebug>(mode);
  return none();
}

PyObject* sync_debug(PyObject*) {
  return PyLong_FromLong(static_cast<long>(sync_debug_mode.load()));
}

PyObject* set_threads(PyObject* arguments) {
  unsigned int threads = 0;
  parse(arguments, "I", &threads);
  call([threads] { return otr_set_threads(threads); });
  return none();
}

PyObject* generator(PyObject* arguments) {
  return THPGenerator_Wrap(default_generator(c10::DeviceType::PrivateUse1, device_argument(arguments)));
}

PyObject* stream_from_native(PyObject* arguments) {
  int index = 0;
  unsigned long long native = 0;
  parse(arguments, "iK", &index, &native);
  const auto device = static_cast<uint32_t>(checked(index));
  otr_stream_t stream = 0;
  call([=, &stream] { return otr_stream_from_native(device, native, &stream); });
  has_streams = true;
  return PyLong_FromUnsignedLongLong(stream);
}

PyObject* can_access_peer(PyObject* arguments) {
  int index = 0;
  int peer = 0;
  parse(arguments, "ii", &index, &peer);
  uint32_t yes = 0;
  check(otr_device_can_access_peer(
      static_cast<uint32_t>(checked(index)), static_cast<uint32_t>(checked(peer)), &yes));
  return PyBool_FromLong(static_cast<long>(yes));
}

// ---- fallbacks, traces, observers ---------------------------------------------------------------

PyObject* fallback_report(PyObject*) {
  return string_from([](char** text) { return otr_fallback_report(text); });
}

PyObject* fallback_reset(PyObject*) {
  call([] { return otr_fallback_reset(); });
  forget_compiled();
  return none();
}

PyObject* fallback_policy(PyObject*) {
  return string_from([](char** text) { return otr_fallback_policy(text); });
}

PyObject* fallback_set_policy(PyObject* policy) {
  const char* text = text_of(policy);
  call([text] { return otr_fallback_set_policy(text); });
  return none();
}

PyObject* operator_report(PyObject*) {
  return string_from([](char** text) { return otr_operator_report(text); });
}

PyObject* compiled_report(PyObject*) {
  PyObject* counts = PyDict_New();
  for (const auto& [name, calls] : compiled_counts()) {
    PyObject* number = PyLong_FromUnsignedLongLong(calls);
    if (counts == nullptr || number == nullptr || PyDict_SetItemString(counts, name.c_str(), number) != 0) {
      throw PythonError();
    }
    Py_DECREF(number);
  }
  return counts;
}

PyObject* operator_timing(PyObject* arguments) {
  unsigned int on = 0;
  parse(arguments, "I", &on);
  call([on] { return otr_operator_timing(on); });
  return none();
}

PyObject* trace_begin(PyObject* path) {
  const char* text = text_of(path);
  call([text] { return otr_trace_begin(text); });
  return none();
}

PyObject* trace_end(PyObject*) {
  call([] { return otr_trace_end(); });
  return none();
}

PyObject* observer_add(PyObject* arguments) {
  unsigned int kinds = 0;
  PyObject* function = nullptr;
  parse(arguments, "IO", &kinds, &function);
  TORCH_CHECK_TYPE(PyCallable_Check(function), "the observer must be callable");
  return add_observer(kinds, function);
}

PyObject* observer_remove(PyObject* arguments) {
  unsigned long long observer = 0;
  parse(arguments, "K", &observer);
  remove_observer(observer);
  return none();
}

// ---- for tests ----------------------------------------------------------------------------------

constexpr const char* kHeldName = "torch_outrigger.held_stream";

void free_held(PyObject* capsule) {
  delete static_cast<std::shared_ptr<Held>*>(PyCapsule_GetPointer(capsule, kHeldName));
}

PyObject* sleep_on_stream(PyObject* arguments) {
  unsigned int milliseconds = 0;
  int index = 0;
  parse(arguments, "Ii", &milliseconds, &index);
  queue_sleep(current_stream(checked(index)), std::chrono::milliseconds(milliseconds));
  return none();
}

PyObject* fail_on_stream(PyObject* arguments) {
  queue_failure(current_stream(device_argument(arguments)));
  return none();
}

PyObject* hold_stream(PyObject* arguments) {
  int index = 0;
  unsigned int limit = 0;
  parse(arguments, "iI", &index, &limit);
  auto held = std::make_unique<std::shared_ptr<Held>>(
      queue_hold(current_stream(checked(index)), std::chrono::milliseconds(limit)));
  PyObject* capsule = PyCapsule_New(held.get(), kHeldName, &free_held);
  if (capsule != nullptr) {
    held.release();
  }
  return capsule;
}

PyObject* release_stream(PyObject* capsule) {
  void* pointer = PyCapsule_GetPointer(capsule, kHeldName);
  if (pointer == nullptr) {
    throw PythonError();
  }
  return PyBool_FromLong((*static_cast<std::shared_ptr<Held>*>(pointer))->release());
}

PyObject* new_stream(PyObject* arguments) {
  int index = 0;
  int priority = 0;
  parse(arguments, "ii", &index, &priority);
  otr_stream_t stream = 0;
  check(otr_stream_create(static_cast<uint32_t>(checked(index)), priority, &stream));
  has_streams = true;
  return PyLong_FromUnsignedLongLong(stream);
}

PyObject* destroy_stream(PyObject* arguments) {
  unsigned long long stream = 0;
  parse(arguments, "K", &stream);
  check(otr_stream_destroy(stream));
  return none();
}

/// Bytes of a value that are read at once; a larger one is read again.
constexpr size_t kUsualValue = 1 << 16;

PyObject* store_get(PyObject* arguments) {
  PyObject* key = nullptr;
  parse(arguments, "S", &key);
  const void* place = PyBytes_AS_STRING(key);
  const auto key_size = static_cast<uint64_t>(PyBytes_GET_SIZE(key));
  std::string value(kUsualValue, '\0');
  for (;;) {
    uint64_t size = 0;
    otr_status_t* status = nullptr;
    {
      const WithoutGil released;
      status = otr_store_get(place, key_size, value.data(), value.size(), &size);
    }
    if (status != nullptr && otr_status_code(status) == OTR_ERR_NOT_FOUND) {
      otr_status_free(status);
      return none();
    }
    check(status);
    if (size <= value.size()) {
      return PyBytes_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(size));
    }
    value.resize(size);
  }
}

PyObject* store_put(PyObject* arguments) {
  PyObject *key = nullptr, *value = nullptr;
  parse(arguments, "SS", &key, &value);
  uint32_t kept = 0;
  call([&] {
    return otr_store_put(
        PyBytes_AS_STRING(key), static_cast<uint64_t>(PyBytes_GET_SIZE(key)), PyBytes_AS_STRING(value),
        static_cast<uint64_t>(PyBytes_GET_SIZE(value)), &kept);
  });
  return PyBool_FromLong(kept != 0);
}

PyObject* choose_compile_mode(PyObject* arguments) {
  int chosen = 0;
  parse(arguments, "i", &chosen);
  TORCH_CHECK_VALUE(chosen >= 0 && chosen <= 2, who(), "compiled operators have the modes 0, 1 and 2, not ", chosen);
  const CompileMode before = compile_mode();
  set_compile_mode(static_cast<CompileMode>(chosen));
  return PyLong_FromLong(static_cast<int>(before));
}

// ---- the module ---------------------------------------------------------------------------------

PyMethodDef methods[] = {
    {"activate", bound<activate>, METH_O,
     "Registers the device types that OUTRIGGER_TORCH chooses, PrivateUse1 under the given name: (outrigger, mtia) as booleans."},
    {"version", bound<version>, METH_NOARGS, "The version of the library."},
    {"runtime_init", bound<runtime_init>, METH_NOARGS, "Loads the drivers; fails if there is no device."},
    {"default_drivers", bound<default_drivers>, METH_O, "What OUTRIGGER_DRIVER is where it is not set."},
    {"driver_load", bound<driver_load>, METH_O, "Loads one more driver."},
    {"load_report", bound<load_report>, METH_NOARGS, "What was tried, taken and refused, as JSON."},
    {"device_count", bound<count_devices>, METH_NOARGS, "How many devices there are."},
    {"check_device", bound<check_index>, METH_VARARGS, "Fails unless the index is that of a device."},
    {"device_info", bound<properties>, METH_VARARGS, "What is known of a device."},
    {"set_sync_debug_mode", bound<set_sync_debug>, METH_VARARGS, "What a wait does: 0 nothing, 1 warn, 2 fail."},
    {"sync_debug_mode", bound<sync_debug>, METH_NOARGS, "What a wait does."},
    {"store_get", bound<store_get>, METH_VARARGS,
     "What is kept in the library's store under a key: (bytes) -> bytes; None if nothing is."},
    {"store_put", bound<store_put>, METH_VARARGS, "Keeps a value in the library's store: (key, value) -> whether it is kept."},
    {"set_compile_mode", bound<choose_compile_mode>, METH_VARARGS,
     "Operators without a kernel: 0 are never compiled, 1 are if that was done before, 2 at their first call. -> what was set before"},
    {"set_threads", bound<set_threads>, METH_VARARGS, "Threads of the library's own pool."},
    {"default_generator", bound<generator>, METH_VARARGS, "The default generator of a device."},
    {"stream_from_native", bound<stream_from_native>, METH_VARARGS,
     "A stream over a queue that another library made by the driver's interface: (device, queue) -> its id."},
    {"can_access_peer", bound<can_access_peer>, METH_VARARGS,
     "Whether copies between two devices need no host memory: (device, device)."},
    {"fallback_report", bound<fallback_report>, METH_NOARGS, "Operators that ran on the CPU, as JSON."},
    {"fallback_reset", bound<fallback_reset>, METH_NOARGS, "Forgets the counts of fallbacks."},
    {"fallback_policy", bound<fallback_policy>, METH_NOARGS, "What happens beside the device, as a text."},
    {"fallback_set_policy", bound<fallback_set_policy>, METH_O, "Sets what happens beside the device."},
    {"operator_report", bound<operator_report>, METH_NOARGS, "Where operators ran, as JSON."},
    {"compiled_report", bound<compiled_report>, METH_NOARGS, "How often operators ran compiled, by name."},
    {"operator_timing", bound<operator_timing>, METH_VARARGS, "Times each call (1), or no longer (0)."},
    {"trace_begin", bound<trace_begin>, METH_O, "Starts a trace into a file."},
    {"trace_end", bound<trace_end>, METH_NOARGS, "Ends the trace."},
    {"observer_add", bound<observer_add>, METH_VARARGS,
     "Calls a function for events: (kinds, function) -> observer. The function is given kind, device, "
     "address, size, allocated_bytes, reserved_bytes, name, nanoseconds."},
    {"observer_remove", bound<observer_remove>, METH_VARARGS, "Removes an observer, after its running calls."},
    {"_sleep_on_stream", bound<sleep_on_stream>, METH_VARARGS,
     "For tests: queues a pause on the device's current stream: (milliseconds, device)."},
    {"_fail_on_stream", bound<fail_on_stream>, METH_VARARGS,
     "For tests: queues a task that fails on the device's current stream."},
    {"_hold_stream", bound<hold_stream>, METH_VARARGS,
     "For tests: queues a task that ends by _release_stream or after a limit: (device, milliseconds)."},
    {"_release_stream", bound<release_stream>, METH_O,
     "For tests: ends a task of _hold_stream. False if it had ended by itself."},
    {"new_stream", bound<new_stream>, METH_VARARGS,
     "A stream that torch's pool does not give: (device, priority) -> its id."},
    {"_destroy_stream", bound<destroy_stream>, METH_VARARGS, "For tests: destroys a stream of new_stream."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "torch_outrigger._C", "The compiled part of torch_outrigger.", -1, methods, nullptr,
    nullptr, nullptr, nullptr,
};

}  // namespace
}  // namespace outrigger

PyMODINIT_FUNC PyInit__C() {
  PyObject* module = PyModule_Create(&outrigger::definition);
  if (module != nullptr && !(outrigger::add_graph_functions(module) && outrigger::add_memory_functions(module) &&
                             outrigger::add_kernel_functions(module) && outrigger::add_program_functions(module) &&
                             outrigger::add_call_functions(module) && outrigger::add_as_cuda_functions(module) &&
                             outrigger::add_distributed_functions(module) && outrigger::add_sharing_functions(module))) {
    Py_CLEAR(module);
  }
  return module;
}
