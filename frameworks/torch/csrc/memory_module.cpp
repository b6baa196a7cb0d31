//! Memory in Python: figures, allocations outside of tensors, history, labels, traces, and pools, each
//! owned by a capsule. It must never hold the GIL over a call of the runtime that can wait or call
//! back.

#include "memory_module.h"

#include "graph.h"
#include "memory.h"
#include "python.h"
#include "stacks.h"

#include <torch/csrc/utils/object_ptr.h>

#include <mutex>
#include <string>
#include <utility>

namespace outrigger {
namespace {

using Number = unsigned long long;

/// The number of pinned host memory where a function takes a device.
constexpr int kHost = -1;

/// A device of the C ABI from Python's number.
uint32_t device_or_host(int index) {
  if (index == kHost) {
    return OTR_HOST_MEMORY;
  }
  TORCH_CHECK(index >= 0 && index <= INT8_MAX, who(), "invalid device index ", index);
  check_device(static_cast<c10::DeviceIndex>(index));
  return static_cast<uint32_t>(index);
}

/// The only argument, a device or pinned host memory.
uint32_t only_device(PyObject* arguments) {
  int index = 0;
  parse(arguments, "i", &index);
  return device_or_host(index);
}

// ---- figures and limits ---------------------------------------------------------------------------

/// Sets a number in a dictionary.
void set(PyObject* dictionary, const std::string& name, uint64_t number) {
  THPObjectPtr value(PyLong_FromUnsignedLongLong(number));
  if (!value || PyDict_SetItemString(dictionary, name.c_str(), value.get()) != 0) {
    throw PythonError();
  }
}

void set(PyObject* dictionary, const std::string& name, const otr_stat_t& stat) {
  set(dictionary, name + ".current", stat.current);
  set(dictionary, name + ".peak", stat.peak);
  set(dictionary, name + ".allocated", stat.allocated);
  set(dictionary, name + ".freed", stat.freed);
}

/// Sets the figures of all blocks, or of the blocks of a size class: `blocks` is torch's name for these.
template <class Stats>
void set_blocks(PyObject* dictionary, const std::string& blocks, const Stats& stats) {
  set(dictionary, "allocation." + blocks, stats.allocations);
  set(dictionary, "segment." + blocks, stats.segments);
  set(dictionary, "active." + blocks, stats.active);
  set(dictionary, "inactive_split." + blocks, stats.inactive_split);
  set(dictionary, "allocated_bytes." + blocks, stats.allocated_bytes);
  set(dictionary, "reserved_bytes." + blocks, stats.reserved_bytes);
  set(dictionary, "active_bytes." + blocks, stats.active_bytes);
  set(dictionary, "inactive_split_bytes." + blocks, stats.inactive_split_bytes);
  set(dictionary, "requested_bytes." + blocks, stats.requested_bytes);
}

PyObject* memory_stats(PyObject* arguments) {
  const uint32_t device = only_device(arguments);
  auto stats = otr::sized<otr_memory_stats_t>();
  call([&] { return device == OTR_HOST_MEMORY ? otr_host_stats(&stats) : otr_memory_stats(device, &stats); });
  THPObjectPtr dictionary(PyDict_New());
  if (!dictionary) {
    throw PythonError();
  }
  set_blocks(dictionary.get(), "all", stats);
  set_blocks(dictionary.get(), "small_pool", stats.small);
  set_blocks(dictionary.get(), "large_pool", stats.large);
  const std::pair<const char*, uint64_t> counts[] = {
      {"num_device_alloc", stats.device_allocs},
      {"num_device_free", stats.device_frees},
      {"num_alloc_retries", stats.alloc_retries},
      {"num_ooms", stats.ooms},
      {"num_sync_all_streams", stats.sync_all_streams},
      {"num_maps", stats.maps},
      {"num_unmaps", stats.unmaps},
      {"num_views", stats.views},
      {"num_view_reuses", stats.view_reuses},
      {"num_stream_waits", stats.stream_waits},
      {"num_host_waits", stats.host_waits},
  };
  for (const auto& [name, number] : counts) {
    set(dictionary.get(), name, number);
  }
  return dictionary.release();
}

PyObject* reset_host_peak(PyObject*) {
  call([] { return otr_host_reset_peak(); });
  return none();
}

PyObject* reset_host_accumulated(PyObject*) {
  call([] { return otr_host_reset_accumulated(); });
  return none();
}

PyObject* set_limit(PyObject* arguments) {
  int index = 0;
  Number bytes = 0;
  parse(arguments, "iK", &index, &bytes);
  const uint32_t device = device_or_host(index);
  call([=] { return device == OTR_HOST_MEMORY ? otr_host_set_limit(bytes) : otr_memory_set_limit(device, bytes); });
  return none();
}

PyObject* set_fraction(PyObject* arguments) {
  int index = 0;
  double fraction = 0;
  parse(arguments, "id", &index, &fraction);
  const uint32_t device = device_or_host(index);
  call([=] {
    // All of the memory is what there is without a limit, too.
    return fraction == 1 ? otr_memory_set_limit(device, UINT64_MAX) : otr_memory_set_fraction(device, fraction);
  });
  return none();
}

PyObject* get_fraction(PyObject* arguments) {
  const uint32_t device = only_device(arguments);
  double fraction = 0;
  call([&] { return otr_memory_fraction(device, &fraction); });
  return PyFloat_FromDouble(fraction);
}

PyObject* trim(PyObject* arguments) {
  int index = 0;
  Number keep = 0;
  parse(arguments, "iK", &index, &keep);
  const uint32_t device = device_or_host(index);
  uint64_t released = 0;
  call([&] { return otr_memory_trim(device, keep, &released); });
  return PyLong_FromUnsignedLongLong(released);
}

PyObject* snapshot(PyObject*) {
  return string_from([](char** text) { return otr_memory_snapshot(OTR_ALL_DEVICES, text); });
}

PyObject* holders(PyObject* arguments) {
  int index = 0;
  unsigned int count = 0;
  parse(arguments, "iI", &index, &count);
  const uint32_t device = device_or_host(index);
  return string_from([=](char** text) { return otr_memory_holders(device, count, text); });
}

PyObject* pointer_info(PyObject* arguments) {
  Number address = 0;
  parse(arguments, "K", &address);
  uint32_t device = 0;
  auto info = otr::sized<otr_pointer_info_t>();
  otr_status_t* status = otr_memory_find(address, &device);
  if (status == nullptr) {
    status = otr_memory_pointer_info(device, address, &info);
  }
  if (otr_status_code(status) == OTR_ERR_NOT_FOUND) {
    otr_status_free(status);
    return none();
  }
  check(status);
  return Py_BuildValue(
      "{s:I,s:K,s:K,s:K,s:K,s:K,s:z}", "device", device, "base", static_cast<Number>(info.base), "size",
      static_cast<Number>(info.size), "requested", static_cast<Number>(info.requested), "stream",
      static_cast<Number>(info.stream), "pool", static_cast<Number>(info.pool_number), "label", info.label);
}

// ---- allocations outside of tensors ---------------------------------------------------------------

PyObject* allocate_raw(PyObject* arguments) {
  int index = 0;
  Number size = 0, stream = 0;
  parse(arguments, "iKK", &index, &size, &stream);
  const uint32_t device = device_or_host(index);
  TORCH_CHECK(device != OTR_HOST_MEMORY, who(), "pinned memory is not allocated here");
  const otr_stream_t handle = stream == 0 ? current_stream(static_cast<c10::DeviceIndex>(index)) : stream;
  otr_address_t address = 0;
  call([&] { return otr_memory_alloc(device, size, handle, &address); });
  return PyLong_FromUnsignedLongLong(address);
}

PyObject* free_raw(PyObject* arguments) {
  Number address = 0;
  parse(arguments, "K", &address);
  if (address == 0) {
    return none();
  }
  call([address] {
    // torch's function has no device: the number has to suffice.
    uint32_t device = 0;
    otr_status_t* status = otr_memory_find(address, &device);
    return status != nullptr ? status : otr_memory_free(device, address);
  });
  return none();
}

// ---- history, labels, traces ----------------------------------------------------------------------

PyObject* history_start(PyObject* arguments) {
  int index = 0, of_frees = 0;
  unsigned int stacks = 0;
  Number entries = 0;
  parse(arguments, "iKIp", &index, &entries, &stacks, &of_frees);
  TORCH_CHECK(stacks <= static_cast<unsigned int>(Stacks::kAll), who(), "there are no stacks ", stacks);
  const uint32_t device = device_or_host(index);
  const otr_history_options_t options = history_options(entries, static_cast<Stacks>(stacks), of_frees != 0);
  call([&] { return otr_memory_history_start(device, &options); });
  return none();
}

PyObject* history_stop(PyObject* arguments) {
  const uint32_t device = only_device(arguments);
  call([device] { return otr_memory_history_stop(device); });
  return none();
}

PyObject* history_clear(PyObject* arguments) {
  const uint32_t device = only_device(arguments);
  call([device] { return otr_memory_history_clear(device); });
  return none();
}

PyObject* label_push(PyObject* label) {
  const char* text = text_of(label);
  call([text] { return otr_memory_label_push(text); });
  return none();
}

PyObject* label_pop(PyObject*) {
  call([] { return otr_memory_label_pop(); });
  return none();
}

PyObject* trace_start(PyObject* arguments) {
  int index = 0;
  const char* path = nullptr;
  parse(arguments, "is", &index, &path);
  const uint32_t device = device_or_host(index);
  call([=] { return otr_memory_trace_start(device, path); });
  return none();
}

PyObject* trace_mark(PyObject* arguments) {
  int index = 0;
  const char* label = nullptr;
  parse(arguments, "is", &index, &label);
  const uint32_t device = device_or_host(index);
  call([=] { return otr_memory_trace_mark(device, label); });
  return none();
}

PyObject* trace_stop(PyObject* arguments) {
  const uint32_t device = only_device(arguments);
  call([device] { return otr_memory_trace_stop(device); });
  return none();
}

// ---- pools ----------------------------------------------------------------------------------------

/// A pool of Python: its id, and what it is on each device where it was used. Guarded by the GIL.
struct MemoryPool {
  c10::MempoolId_t id;
  std::vector<std::pair<c10::DeviceIndex, std::shared_ptr<Pool>>> of_devices;

  /// The pool on a device, made if it has not been used there.
  otr_pool_t on(c10::DeviceIndex device) {
    for (const auto& [index, pool] : of_devices) {
      if (index == device) {
        return pool->handle();
      }
    }
    of_devices.emplace_back(device, Pool::get(&id, device));
    return of_devices.back().second->handle();
  }
};

constexpr const char* kPoolName = "torch_outrigger.pool";

void free_pool(PyObject* capsule) {
  auto* pool = static_cast<MemoryPool*>(PyCapsule_GetPointer(capsule, kPoolName));
  const WithoutGil released;
  delete pool;
}

MemoryPool& pool_of(PyObject* capsule) {
  void* pointer = PyCapsule_GetPointer(capsule, kPoolName);
  if (pointer == nullptr) {
    throw PythonError();
  }
  return *static_cast<MemoryPool*>(pointer);
}

PyObject* pool_new(PyObject* arguments) {
  Number first = 0, second = 0;
  parse(arguments, "KK", &first, &second);
  auto pool = std::make_unique<MemoryPool>(MemoryPool{{first, second}, {}});
  PyObject* capsule = PyCapsule_New(pool.get(), kPoolName, &free_pool);
  if (capsule != nullptr) {
    pool.release();
  }
  return capsule;
}

/// The handle of a pool on a device, from the arguments (pool, device).
otr_pool_t pool_and_device(PyObject* arguments) {
  PyObject* capsule = nullptr;
  int index = 0;
  parse(arguments, "Oi", &capsule, &index);
  const uint32_t device = device_or_host(index);
  TORCH_CHECK(device != OTR_HOST_MEMORY, who(), "pinned memory has no pools");
  return pool_of(capsule).on(static_cast<c10::DeviceIndex>(index));
}

PyObject* pool_begin_use(PyObject* arguments) {
  const otr_pool_t pool = pool_and_device(arguments);
  call([pool] { return otr_pool_begin_use(pool, 0); });
  return none();
}

PyObject* pool_end_use(PyObject* arguments) {
  const otr_pool_t pool = pool_and_device(arguments);
  call([pool] { return otr_pool_end_use(pool); });
  return none();
}

PyObject* pool_set_limit(PyObject* arguments) {
  PyObject* capsule = nullptr;
  int index = 0;
  Number bytes = 0;
  parse(arguments, "OiK", &capsule, &index, &bytes);
  device_or_host(index);
  const otr_pool_t pool = pool_of(capsule).on(static_cast<c10::DeviceIndex>(index));
  call([=] { return otr_pool_set_limit(pool, bytes); });
  return none();
}

PyObject* pool_info(PyObject* arguments) {
  const otr_pool_t pool = pool_and_device(arguments);
  auto info = otr::sized<otr_pool_info_t>();
  call([&] { return otr_pool_info(pool, &info); });
  return Py_BuildValue(
      "{s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:N}", "number", static_cast<Number>(info.number), "reserved_bytes",
      static_cast<Number>(info.reserved_bytes), "allocated_bytes", static_cast<Number>(info.allocated_bytes),
      "peak_allocated_bytes", static_cast<Number>(info.peak_allocated_bytes), "limit",
      static_cast<Number>(info.limit), "asleep_bytes", static_cast<Number>(info.asleep_bytes), "users", info.users,
      "asleep", PyBool_FromLong(info.asleep != 0));
}

/// The devices where a pool was used.
PyObject* pool_devices(PyObject* capsule) {
  PyObject* list = PyList_New(0);
  for (const auto& entry : pool_of(capsule).of_devices) {
    PyObject* number = list == nullptr ? nullptr : PyLong_FromLong(entry.first);
    if (number == nullptr || PyList_Append(list, number) != 0) {
      Py_CLEAR(list);
    }
    Py_XDECREF(number);
  }
  return list;
}

PyObject* pool_sleep(PyObject* arguments) {
  const otr_pool_t pool = pool_and_device(arguments);
  uint64_t released = 0;
  call([&] { return otr_pool_sleep(pool, &released); });
  return PyLong_FromUnsignedLongLong(released);
}

PyObject* pool_wake(PyObject* arguments) {
  const otr_pool_t pool = pool_and_device(arguments);
  call([pool] { return otr_pool_wake(pool); });
  return none();
}

// ---- out of memory --------------------------------------------------------------------------------

// Runs on the thread whose request failed.
void tell_out_of_memory(void* observer, const otr_observation_t* seen) noexcept {
  if (Py_IsInitialized() == 0) {
    return;
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  // Memory may be asked for while an exception is on its way through this thread; it must survive.
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* result = PyObject_CallFunction(
      static_cast<PyObject*>(observer), "iKKK", static_cast<int>(seen->device), static_cast<Number>(seen->size),
      static_cast<Number>(seen->device_total), static_cast<Number>(seen->device_free));
  if (result == nullptr) {
    PyErr_WriteUnraisable(static_cast<PyObject*>(observer));
  }
  Py_XDECREF(result);
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
}

PyObject* attach_observer(PyObject* observer) {
  TORCH_CHECK_TYPE(PyCallable_Check(observer), "the observer must be callable");
  attach_out_of_memory_observer(observer);
  return none();
}

PyMethodDef methods[] = {
    {"memory_stats", bound<memory_stats>, METH_VARARGS, "Statistics of a device, or of pinned memory (-1), by name."},
    {"host_reset_peak", bound<reset_host_peak>, METH_NOARGS, "Starts the peaks of pinned memory anew."},
    {"host_reset_accumulated", bound<reset_host_accumulated>, METH_NOARGS, "Starts its counts anew."},
    {"memory_set_limit", bound<set_limit>, METH_VARARGS, "Limits what the cache takes: (device or -1, bytes)."},
    {"memory_set_fraction", bound<set_fraction>, METH_VARARGS, "The same as a part of the memory: (device, 0 to 1)."},
    {"memory_fraction", bound<get_fraction>, METH_VARARGS, "The limit of a device as a part of its memory."},
    {"memory_trim", bound<trim>, METH_VARARGS, "Gives idle memory back until so much is left: (device, bytes)."},
    {"memory_snapshot", bound<snapshot>, METH_NOARGS, "Segments, blocks and events of all devices, as JSON."},
    {"memory_holders", bound<holders>, METH_VARARGS, "The labels that hold most: (device or -1, count), as JSON."},
    {"pointer_info", bound<pointer_info>, METH_VARARGS, "The allocation that an address is in, or None."},
    {"memory_alloc", bound<allocate_raw>, METH_VARARGS, "Allocates: (device, bytes, stream or 0) -> address."},
    {"memory_free", bound<free_raw>, METH_VARARGS, "Frees what memory_alloc gave."},
    {"history_start", bound<history_start>, METH_VARARGS,
     "Keeps events: (device or -1, entries, stacks 0 none 1 Python 2 all, also those of frees)."},
    {"history_stop", bound<history_stop>, METH_VARARGS, "Keeps none any more, and forgets those that were kept."},
    {"history_clear", bound<history_clear>, METH_VARARGS, "Forgets the events so far."},
    {"label_push", bound<label_push>, METH_O, "Names what this thread allocates from now on."},
    {"label_pop", bound<label_pop>, METH_NOARGS, "Goes back to the name before."},
    {"memory_trace_start", bound<trace_start>, METH_VARARGS, "Writes allocations and frees to a file: (device, path)."},
    {"memory_trace_mark", bound<trace_mark>, METH_VARARGS, "Notes in it that a step begins: (device, label)."},
    {"memory_trace_stop", bound<trace_stop>, METH_VARARGS, "Ends the file."},
    {"pool_new", bound<pool_new>, METH_VARARGS, "A pool of memory by its id, as a capsule."},
    {"pool_begin_use", bound<pool_begin_use>, METH_VARARGS, "This thread allocates from it: (pool, device)."},
    {"pool_end_use", bound<pool_end_use>, METH_VARARGS, "Ends that: (pool, device)."},
    {"pool_set_limit", bound<pool_set_limit>, METH_VARARGS, "Limits what is in use of it: (pool, device, bytes)."},
    {"pool_info", bound<pool_info>, METH_VARARGS, "What it holds: (pool, device)."},
    {"pool_devices", bound<pool_devices>, METH_O, "The devices where it was used."},
    {"pool_sleep", bound<pool_sleep>, METH_VARARGS, "Moves it to the host: (pool, device) -> bytes given back."},
    {"pool_wake", bound<pool_wake>, METH_VARARGS, "Brings it back: (pool, device)."},
    {"attach_out_of_memory_observer", bound<attach_observer>, METH_O,
     "Calls a function for requests that cannot be met, in place of the one before."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void attach_out_of_memory_observer(PyObject* observer) {
  // Guarded by the GIL.
  static otr_observer_t attached = 0;
  Py_INCREF(observer);
  otr_observer_t made = 0;
  call([&] { return otr_observer_add(OTR_OBSERVE_OUT_OF_MEMORY, &tell_out_of_memory, observer, &made); });
  const otr_observer_t before = attached;
  attached = made;
  if (before != 0) {
    // The removal waits for running calls, which need the GIL. The old observer stays referenced: torch has no way to
    // take one away, so there are few.
    call([before] { return otr_observer_remove(before); });
  }
}

PyObject* torch_snapshot(const char* path) {
  PyObject* module = PyImport_ImportModule("torch_outrigger._snapshot");
  PyObject* taken = module == nullptr ? nullptr : PyObject_CallMethod(module, "take", "z", path);
  Py_XDECREF(module);
  if (taken == nullptr) {
    throw PythonError();
  }
  return taken;
}

bool add_memory_functions(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
