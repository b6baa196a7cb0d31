//! Observers of the runtime that are Python functions.
//!
//! The runtime calls `observe` on any thread, with or without the GIL held there. It must never throw,
//! and never run Python code with an exception pending.

#include "observer.h"

#include "gil.h"

#include <unordered_map>

namespace outrigger {
namespace {

/// The functions of the observers, which live as long as their observers. Guarded by the GIL.
std::unordered_map<otr_observer_t, PyObject*>& functions() {
  static auto* map = new std::unordered_map<otr_observer_t, PyObject*>;
  return *map;
}

void observe(void* user, const otr_observation_t* what) noexcept {
  // Allocations of an observer itself are not told to it: that would never end.
  thread_local bool busy = false;
  if (busy) {
    return;
  }
  busy = true;
  const PyGILState_STATE state = PyGILState_Ensure();
  // Memory is also freed while an exception is on its way through this thread; it must survive the call.
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  auto* function = static_cast<PyObject*>(user);
  PyObject* result = PyObject_CallFunction(
      function, "IIKKKKsK", what->kind, what->device, static_cast<unsigned long long>(what->address),
      static_cast<unsigned long long>(what->size), static_cast<unsigned long long>(what->allocated_bytes),
      static_cast<unsigned long long>(what->reserved_bytes), what->name,
      static_cast<unsigned long long>(what->nanoseconds));
  if (result == nullptr) {
    // There is no caller to raise it to: sys.unraisablehook is told.
    PyErr_WriteUnraisable(function);
  }
  Py_XDECREF(result);
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
  busy = false;
}

}  // namespace

PyObject* add_observer(unsigned int kinds, PyObject* function) {
  otr_observer_t observer = 0;
  Py_INCREF(function);
  try {
    call([&] { return otr_observer_add(kinds, &observe, function, &observer); });
  } catch (...) {
    Py_DECREF(function);
    throw;
  }
  functions().emplace(observer, function);
  return PyLong_FromUnsignedLongLong(observer);
}

void remove_observer(unsigned long long observer) {
  // The removal waits for running calls, and those want the GIL, which `call` gives up.
  call([observer] { return otr_observer_remove(observer); });
  const auto entry = functions().find(observer);
  if (entry != functions().end()) {
    PyObject* function = entry->second;
    functions().erase(entry);
    Py_DECREF(function);
  }
}

}  // namespace outrigger
