//! Takes the device CUDA for ours, in torch's dispatcher and in torch's own types. Nothing of this is there until it is asked for.
//!
//! Torch gives a call that names a device to the key of that device. There are no devices under the key of CUDA, so the
//! kernels here stand under it, and call the same operator for our device. Whoever names another device does not come by.
//! `to` compares and completes the device before torch dispatches by it, so it is replaced as a whole. Where torch makes a device
//! the current one before it dispatches, it asks the guard of CUDA, which is one of ours meanwhile.

#include "as_cuda.h"

#include "guard.h"
#include "personality_impl.h"
#include "runtime.h"

#include <ATen/ops/_efficientzerotensor_ops.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_ops.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/pin_memory_native.h>
#include <ATen/ops/to_native.h>
#include <ATen/ops/tril_indices_ops.h>
#include <ATen/ops/triu_indices_ops.h>
#include <torch/csrc/Device.h>

#include <map>
#include <memory>

namespace outrigger {
namespace {

c10::Device ours(c10::Device device) {
  return device.is_cuda() ? c10::Device(c10::DeviceType::PrivateUse1, device.index()) : device;
}

// An argument of an operator, with our device for CUDA.
template <class T>
decltype(auto) moved(T&& argument) {
  if constexpr (std::is_same_v<std::decay_t<T>, std::optional<c10::Device>>) {
    return argument.has_value() ? std::optional<c10::Device>(ours(*argument)) : std::nullopt;
  } else {
    return std::forward<T>(argument);
  }
}

template <class Op, class Schema = typename Op::schema>
struct ForOurs;

template <class Op, class Result, class... Arguments>
struct ForOurs<Op, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    return Op::call(moved(std::forward<Arguments>(arguments))...);
  }
};

template <class Op>
void redirect(torch::Library& m) {
  std::string name = Op::name;
  if (*Op::overload_name != '\0') {
    name.append(".").append(Op::overload_name);
  }
  m.impl(name.c_str(), &ForOurs<Op>::call);
}

at::Tensor to_device(
    const at::Tensor& self, c10::Device device, c10::ScalarType dtype, bool non_blocking, bool copy,
    std::optional<c10::MemoryFormat> format) {
  return at::native::to(self, ours(device), dtype, non_blocking, copy, format);
}

at::Tensor to_options(
    const at::Tensor& self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pinned, bool non_blocking, bool copy,
    std::optional<c10::MemoryFormat> format) {
  return at::native::to(self, dtype, layout, moved(device), pinned, non_blocking, copy, format);
}

at::Tensor pin(const at::Tensor& self, std::optional<c10::Device> device) {
  return at::native::pin_memory(self, moved(device));
}

// Torch warns of a kernel in the place of another, which is what is wanted here.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::atomic<const c10::impl::DeviceGuardImplInterface*>& guard_of_cuda() {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
}

struct Doors {
  const Guard<c10::DeviceType::CUDA> guard;
  const c10::impl::DeviceGuardImplInterface* const before = guard_of_cuda().exchange(&guard);
  torch::Library dense{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};
  torch::Library sparse{torch::Library::IMPL, "aten", c10::DispatchKey::SparseCUDA, __FILE__, __LINE__};
  torch::Library composite{torch::Library::IMPL, "aten", c10::DispatchKey::CompositeImplicitAutograd, __FILE__, __LINE__};

  Doors() {
    redirect<at::_ops::empty_memory_format>(dense);
    redirect<at::_ops::empty_strided>(dense);
    redirect<at::_ops::_efficientzerotensor>(dense);
    redirect<at::_ops::tril_indices>(dense);
    redirect<at::_ops::triu_indices>(dense);
    redirect<at::_ops::_sparse_coo_tensor_with_dims>(sparse);
    redirect<at::_ops::_sparse_coo_tensor_with_dims_and_tensors>(sparse);
    composite.impl("to.device", &to_device);
    composite.impl("to.dtype_layout", &to_options);
    composite.impl("pin_memory", &pin);
  }

  ~Doors() {
    guard_of_cuda().store(before);
  }
};

std::unique_ptr<Doors> doors;

// ---- torch's own types that are made for a device: Generator, Stream, Event, UntypedStorage ----------

std::map<PyTypeObject*, newfunc> makers;

// A new reference: our device for one that is CUDA's, else the argument.
PyObject* our_device(PyObject* argument) {
  std::optional<c10::Device> device;
  if (THPDevice_Check(argument)) {
    device = reinterpret_cast<THPDevice*>(argument)->device;
  } else if (PyUnicode_Check(argument)) {
    const char* text = PyUnicode_AsUTF8(argument);
    if (text != nullptr && std::string_view(text).substr(0, 4) == "cuda") {
      device = c10::Device(text);
    }
  }
  return device.has_value() && device->is_cuda() ? THPDevice_New(ours(*device)) : Py_NewRef(argument);
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  PyTypeObject* known = type;
  while (makers.count(known) == 0) {
    known = known->tp_base;
  }
  PyObject* result = nullptr;
  PyObject* positional = PyTuple_New(PyTuple_GET_SIZE(arguments));
  PyObject* named = keywords == nullptr ? nullptr : PyDict_Copy(keywords);
  try {
    if (positional != nullptr && (named != nullptr || keywords == nullptr)) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
        PyTuple_SET_ITEM(positional, i, our_device(PyTuple_GET_ITEM(arguments, i)));
      }
      PyObject* device = named == nullptr ? nullptr : PyDict_GetItemString(named, "device");
      if (device != nullptr) {
        PyObject* changed = our_device(device);
        PyDict_SetItemString(named, "device", changed);
        Py_XDECREF(changed);
      }
      result = PyErr_Occurred() ? nullptr : makers[known](type, positional, named);
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  Py_XDECREF(positional);
  Py_XDECREF(named);
  return result;
}

PyObject* open_doors(PyObject* types) {
  TORCH_CHECK_TYPE(PyTuple_Check(types), who(), "the types must be a tuple");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
    TORCH_CHECK_TYPE(PyType_Check(PyTuple_GET_ITEM(types, i)), who(), "the types must be types");
  }
  if (doors == nullptr) {
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard guard(&silent);
    doors = std::make_unique<Doors>();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
      auto* type = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(types, i));
      makers.emplace(type, type->tp_new);
      type->tp_new = make;
      PyType_Modified(type);
    }
  }
  Py_RETURN_NONE;
}

PyObject* close_doors(PyObject*) {
  doors.reset();
  for (const auto& [type, before] : makers) {
    type->tp_new = before;
    PyType_Modified(type);
  }
  makers.clear();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"as_cuda_open", bound<open_doors>, METH_O,
     "Has operators, and these types of torch when they are made, take the device CUDA for ours."},
    {"as_cuda_close", bound<close_doors>, METH_NOARGS, "Undoes as_cuda_open."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_as_cuda_functions(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
